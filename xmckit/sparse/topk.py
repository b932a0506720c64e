"""Select the best labels of every row from dense or sparse scores.

The order is total, so the result does not depend on the machine: higher scores first, then lower label ids. A score of
−inf marks a label that is not a candidate and is never returned; NaN is an error.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from scipy.sparse import csr_matrix

from xmckit.errors import DataError, UsageError
from xmckit.records import TopK
from xmckit.sparse.csr import Pattern, csr_pattern
from xmckit.sparse.lanes import (
    address,
    count_below,
    everywhere,
    larger,
    least_where_below,
    loader,
    not_below,
    store,
    trailing_zeros,
)

# Scores are compared with the worst kept one in blocks of this size, by a few vector instructions; only a block with a
# better score is examined one by one.
_BLOCK = 128
_GROUPS = 128  # bytes of sparse scores that are compared at once
_FEW = 64  # most candidates that are ranked by counting
_load = loader(_GROUPS)


def topk_dense(scores: np.ndarray, k: int) -> TopK:
    """Return the best `k` of each row of `scores` (rows × labels), padded with −1."""
    scores = np.asarray(scores)
    if scores.ndim != 2:
        raise UsageError(f"top k needs scores of rows × labels, not an array with {scores.ndim} dimensions")
    indices, values = _empty(scores.shape[0], k)
    row = _select_dense(np.ascontiguousarray(_ordered_floats(scores)), indices, values)
    if row >= 0:
        raise DataError("a score is not a number (NaN)", row=row)
    return TopK(indices, values)


def topk_csr(scores: csr_matrix, k: int) -> TopK:
    """Return the best `k` stored scores of each row, padded with −1; a stored zero is a score."""
    pattern = csr_pattern(scores, "the score matrix")
    indices, values = _empty(scores.shape[0], k)
    row = first_row_with_repeats(pattern)
    if row >= 0:
        raise DataError("a label has two scores", row=row)
    row = _select_csr(pattern, np.ascontiguousarray(_ordered_floats(scores.data)), indices, values)
    if row >= 0:
        raise DataError("a score is not a number (NaN)", row=row)
    return TopK(indices, values)


def _ordered_floats(scores: np.ndarray) -> np.ndarray:
    """Return scores as float32 or float64; casting float64 to float32 could create ties."""
    return scores if scores.dtype in (np.float32, np.float64) else scores.astype(np.float64)


def _empty(rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    if k < 1:
        raise UsageError(f"top k needs k of at least 1, not {k}")
    return np.full((rows, k), -1, dtype=np.int32), np.full((rows, k), -np.inf, dtype=np.float32)


@njit(cache=True, nogil=True)
def _worse(score: float, label: int, other_score: float, other_label: int) -> bool:
    return score < other_score or (score == other_score and label > other_label)


@njit(cache=True, nogil=True)
def _sift_down(scores: np.ndarray, labels: np.ndarray, size: int, score: float, label: int) -> None:
    """Replace the root of a heap, its worst entry, by (score, label), and restore the heap."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _worse(scores[child + 1], labels[child + 1], scores[child], labels[child]):
            child += 1
        if not _worse(scores[child], labels[child], score, label):
            break
        scores[place], labels[place] = scores[child], labels[child]
        place = child
    scores[place], labels[place] = score, label


@njit(cache=True, nogil=True)
def offer(scores: np.ndarray, labels: np.ndarray, size: int, score: float, label: int) -> int:
    """Keep (score, label) if it is among the best. Return the new size of the heap."""
    if size == len(scores):
        if _worse(scores[0], labels[0], score, label):
            _sift_down(scores, labels, size, score, label)
        return size
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not _worse(score, label, scores[parent], labels[parent]):
            break
        scores[place], labels[place] = scores[parent], labels[parent]
        place = parent
    scores[place], labels[place] = score, label
    return size + 1


@njit(cache=True, nogil=True)
def pour(scores: np.ndarray, labels: np.ndarray, size: int, out_labels: np.ndarray, out_scores: np.ndarray) -> None:
    """Empty the heap into a row of the result, best first."""
    for place in range(size - 1, -1, -1):
        out_labels[place], out_scores[place] = labels[0], scores[0]
        _sift_down(scores, labels, place, scores[place], labels[place])


@njit(cache=True, nogil=True)
def _any_above(scores: np.ndarray, limit: float) -> bool:
    """Tell whether a score is above `limit` or NaN."""
    above = False
    for place in range(len(scores)):
        above |= not (scores[place] <= limit)
    return above


@njit(cache=True, nogil=True)
def keep_best(scores: np.ndarray, kept: np.ndarray, kept_labels: np.ndarray) -> tuple[int, bool]:
    """Fill a heap with the best scores of a row and their labels. Return (its size, whether a score is NaN)."""
    size, has_nan, limit = 0, False, scores.dtype.type(-np.inf)
    for start in range(0, len(scores), _BLOCK):
        end = min(start + _BLOCK, len(scores))
        if not _any_above(scores[start:end], limit):
            continue
        for label in range(start, end):
            score = scores[label]
            if score <= limit:
                continue
            if np.isnan(score):
                has_nan = True
                continue
            size = offer(kept, kept_labels, size, score, label)
            if size == len(kept):
                limit = kept[0]
    return size, has_nan


@njit(cache=True, nogil=True)
def _select_dense(scores: np.ndarray, out_labels: np.ndarray, out_scores: np.ndarray) -> int:
    """Fill the result. Return the first row with a NaN, or −1."""
    rows, width = scores.shape
    k = min(out_labels.shape[1], width)
    kept, kept_labels = np.empty(k, scores.dtype), np.empty(k, np.int32)
    for row in range(rows):
        size, has_nan = keep_best(scores[row], kept, kept_labels)
        if has_nan:
            return row
        pour(kept, kept_labels, size, out_labels[row], out_scores[row])
    return -1


@njit(cache=True, nogil=True)
def _select_csr(pattern: Pattern, scores: np.ndarray, out_labels: np.ndarray, out_scores: np.ndarray) -> int:
    """Fill the result. Return the first row with a NaN, or −1."""
    indptr, labels = pattern
    k, groups = out_labels.shape[1], _GROUPS // scores.itemsize
    longest = longest_row(indptr)
    near, near_labels = np.empty(longest, scores.dtype), np.empty(longest, np.int32)
    kept, kept_labels = np.empty(k, scores.dtype), np.empty(k, np.int32)
    maxima = np.empty(groups, scores.dtype)
    for row in range(len(indptr) - 1):
        first, last = indptr[row], indptr[row + 1]
        limit = scores.dtype.type(np.finfo(scores.dtype).min)  # what is below is −inf
        if k <= groups and last - first >= groups:
            limit = max(limit, _lower_bound(scores, first, last, maxima, k))
        count = _collect(scores, labels, first, last, limit, near, near_labels)
        for place in range(count):
            if np.isnan(near[place]):
                return row
        if count <= _FEW:
            _rank(near[:count], near_labels[:count], out_labels[row], out_scores[row])
        else:
            size = 0
            for place in range(count):
                if near[place] >= limit:
                    size = offer(kept, kept_labels, size, near[place], near_labels[place])
                    limit = kept[0] if size == k else limit
            pour(kept, kept_labels, size, out_labels[row], out_scores[row])
    return -1


@njit(cache=True, nogil=True)
def _lower_bound(scores: np.ndarray, first: int, last: int, maxima: np.ndarray, k: int) -> float:
    """Return a number that at least `k` of the scores first … last − 1 reach: the k-th largest maximum of groups.

    Each of the n groups takes every n-th score; the rest behind the last complete n is left out. It needs no branch.
    """
    groups, start = len(maxima), address(scores, scores) + first * scores.itemsize
    best = everywhere(scores.dtype.type(-np.inf), _load(start, scores))
    for block in range((last - first) // groups):
        best = larger(_load(start + block * _GROUPS, scores), best)
    store(address(maxima, scores), best)
    above = everywhere(scores.dtype.type(0), best)
    for group in range(groups):
        above = count_below(above, best, maxima[group])
    return least_where_below(best, above, scores.dtype.type(k))


@njit(cache=True, nogil=True)
def _collect(
    scores: np.ndarray,
    labels: np.ndarray,
    first: int,
    last: int,
    limit: float,
    near: np.ndarray,
    near_labels: np.ndarray,
) -> int:
    """Copy the scores first … last − 1 that are not below `limit`, and their labels. Return their number."""
    count, groups = 0, _GROUPS // scores.itemsize
    while first + groups <= last:
        bits = not_below(_load(address(scores, scores) + first * scores.itemsize, scores), limit)
        while bits != 0:
            here = first + np.int64(trailing_zeros(bits))
            bits &= bits - uint64(1)
            near[count], near_labels[count] = scores[here], labels[here]
            count += 1
        first += groups
    for place in range(first, last):
        if not scores[place] < limit:
            near[count], near_labels[count] = scores[place], labels[place]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _rank(scores: np.ndarray, labels: np.ndarray, out_labels: np.ndarray, out_scores: np.ndarray) -> None:
    """Rank by counting better entries, which beats sorting for a few, because it has no branch to mispredict."""
    for place in range(len(scores)):
        score, label, rank = scores[place], labels[place], 0
        for other in range(len(scores)):
            rank += (scores[other] > score) | ((scores[other] == score) & (labels[other] < label))
        if rank < len(out_labels):
            out_labels[rank], out_scores[rank] = label, score


@njit(cache=True, nogil=True)
def longest_row(indptr: np.ndarray) -> int:
    """Return the number of entries of the longest row."""
    longest = 0
    for row in range(len(indptr) - 1):
        longest = max(longest, indptr[row + 1] - indptr[row])
    return longest


@njit(cache=True, nogil=True)
def slots_for(entries: int) -> int:
    """Return the size of a hash table for up to `entries` labels: a power of two, at most half full."""
    size = 4
    while size < 2 * entries:
        size *= 2
    return size


@njit(cache=True, nogil=True)
def has_repeats(labels: np.ndarray, row: int, table: np.ndarray) -> bool:
    """Tell whether a label occurs twice.

    `table` starts with `slots_for(len(labels))` zeros and serves one row after the other without clearing: an entry is
    (row + 1) · 2³² + label, so that entries of other rows count as empty.
    """
    mask = len(table) - 1
    for place in range(len(labels)):
        entry = (np.int64(row + 1) << 32) | labels[place]
        slot = ((labels[place] * 0x9E3779B1) >> 12) & mask
        while table[slot] >> 32 == row + 1:
            if table[slot] == entry:
                return True
            slot = (slot + 1) & mask
        table[slot] = entry
    return False


@njit(cache=True, nogil=True)
def first_row_with_repeats(pattern: Pattern) -> int:
    """Return the first row that names a label twice, or −1."""
    indptr, labels = pattern
    table = np.zeros(slots_for(longest_row(indptr)), np.int64)
    for row in range(len(indptr) - 1):
        here = labels[indptr[row] : indptr[row + 1]]
        if not _rising(here) and has_repeats(here, row, table):
            return row
    return -1


@njit(cache=True, nogil=True)
def _rising(labels: np.ndarray) -> bool:
    rising = True
    for place in range(len(labels) - 1):
        rising &= labels[place] < labels[place + 1]
    return rising
