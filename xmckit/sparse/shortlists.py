"""Several shortlists of labels per row become one, in which every label comes once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit.errors import DataError, UsageError
from xmckit.executors import Threads
from xmckit.sparse.csr import row_pointers
from xmckit.sparse.scoring import row_blocks
from xmckit.sparse.topk import csr_pattern, first_row_with_repeats, offer, pour


def merge_shortlists(
    shortlists: Sequence[csr_matrix],
    *,
    how: Literal["max", "sum"] = "max",
    order: Literal["score", "label"] = "score",
    k: int | None = None,
    workers: int = 1,
) -> csr_matrix:
    """The union, row by row: a label that several shortlists name gets its largest score, or the sum of its scores.

    With `k` only the best `k` labels of a row stay, by score and then by label id. Entries are stored best first, or by
    label id; values are float32. A score of −inf says that a label is no candidate, as in `topk_csr`.
    """
    if not shortlists or len({matrix.shape for matrix in shortlists}) != 1:
        shapes = ", ".join(str(matrix.shape) for matrix in shortlists) or "none"
        raise UsageError(f"shortlists to merge need one shape, rows × labels, found {shapes}")
    if how not in ("max", "sum") or order not in ("score", "label") or (k is not None and k < 1):
        raise UsageError(f"cannot merge shortlists by {how!r} in the order of {order!r} with k = {k}")
    rows, labels = shortlists[0].shape
    patterns = [csr_pattern(matrix, "a shortlist") for matrix in shortlists]
    for indptr, indices in patterns:
        row = first_row_with_repeats(indptr, indices)
        if row >= 0:
            raise DataError("a shortlist names a label twice", row=row)
    by_label = [matrix if matrix.has_sorted_indices else matrix.sorted_indices() for matrix in shortlists]
    stacked = _side_by_side([csr_pattern(m, "a shortlist") for m in by_label], [m.data for m in by_label], rows)

    def merge(block: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        return _merge(*stacked, how == "sum", order == "score", k or labels, block.start, block.stop)

    parts = Threads().map(merge, row_blocks(rows), workers=workers)
    for *_, row in parts:
        if row >= 0:
            raise DataError("a score is not a number (NaN)", row=row)
    pointers = row_pointers(np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)]))
    merged = np.concatenate([np.zeros(0, np.int32), *(part[1] for part in parts)])
    values = np.concatenate([np.zeros(0, np.float32), *(part[2] for part in parts)])
    return csr_matrix((values, merged, pointers), shape=(rows, labels))


def _side_by_side(
    patterns: Sequence[tuple[np.ndarray, np.ndarray]], scores: Sequence[np.ndarray], rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(where each shortlist's rows start in what follows, all labels, all scores), one shortlist after the other."""
    begins = np.cumsum([0, *(len(indices) for _, indices in patterns)])
    starts = np.empty((len(patterns), rows + 1), np.int64)
    for nth, (indptr, _) in enumerate(patterns):
        starts[nth] = indptr + begins[nth]
    return (
        starts,
        np.concatenate([indices for _, indices in patterns]),
        np.concatenate(scores).astype(np.float64, copy=False),
    )


@njit(cache=True, nogil=True)
def _merge(
    starts: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    adding: bool,
    best_first: bool,
    k: int,
    start: int,
    stop: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """(entries of each row, labels, scores, the first row with a NaN or −1) of rows start … stop − 1.

    The shortlists of a row are in the order of their labels, and are read side by side.
    """
    most, longest = 0, 0
    for row in range(start, stop):
        here = 0
        for nth in range(len(starts)):
            here += starts[nth, row + 1] - starts[nth, row]
        most, longest = most + here, max(longest, here)
    union, united = np.empty(longest, np.int32), np.empty(longest)
    kept, kept_scores = np.empty(min(k, longest), np.int32), np.empty(min(k, longest))
    sizes, at = np.zeros(stop - start, np.int64), np.empty(len(starts), np.int64)
    out_labels, out_scores = np.empty(most, np.int32), np.empty(most, np.float32)
    size = 0
    for row in range(start, stop):
        found = _unite(starts, labels, scores, row, adding, at, union, united)
        if found < 0:
            return sizes, out_labels, out_scores, row
        if best_first or found > k:
            count = 0
            for nth in range(found):
                count = offer(kept_scores, kept, count, united[nth], union[nth])
            found = count
            pour(kept_scores, kept, found, union[:found], united[:found])
            if not best_first:
                order = np.argsort(union[:found])
                union[:found], united[:found] = union[:found][order], united[:found][order]
        for nth in range(found):
            out_labels[size + nth], out_scores[size + nth] = union[nth], united[nth]
        sizes[row - start] = found
        size += found
    return sizes, out_labels[:size].copy(), out_scores[:size].copy(), -1


@njit(cache=True, nogil=True)
def _unite(
    starts: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    row: int,
    adding: bool,
    at: np.ndarray,
    union: np.ndarray,
    united: np.ndarray,
) -> int:
    """The number of labels in `union`, in increasing order, with their scores; −1 if one is not a number."""
    found = 0
    for nth in range(len(starts)):
        at[nth] = starts[nth, row]
    while True:
        label = -1
        for nth in range(len(starts)):
            if at[nth] < starts[nth, row + 1] and (label < 0 or labels[at[nth]] < label):
                label = labels[at[nth]]
        if label < 0:
            return found
        total, named = 0.0, False
        for nth in range(len(starts)):
            if at[nth] < starts[nth, row + 1] and labels[at[nth]] == label:
                score = scores[at[nth]]
                at[nth] += 1
                if score == -np.inf:
                    continue
                if np.isnan(score):
                    return -1
                total = score if not named else total + score if adding else max(total, score)
                named = True
        if np.isnan(total):  # inf − inf
            return -1
        if named:
            union[found], united[found] = label, total
            found += 1
