"""Merge several shortlists of labels per row into one without repeats."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit, uint64
from scipy.sparse import csr_matrix

from xmckit.context import map_on_threads
from xmckit.errors import DataError, UsageError
from xmckit.sparse.csr import csr_pattern, map_row_blocks, row_blocks, row_pointers
from xmckit.sparse.topk import first_row_with_repeats, longest_row, offer, pour


class _Lists(NamedTuple):
    """One shortlist per row, sorted by label.

    `bits` are the scores as integers: the compiler selects one of two integers without a branch, which it does not do
    for floats, and a branch would be mispredicted at every second label.
    """

    pointers: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    bits: np.ndarray


def merge_shortlists(
    shortlists: Sequence[csr_matrix],
    *,
    how: Literal["max", "sum"] = "max",
    order: Literal["score", "label"] = "score",
    k: int | None = None,
    workers: int = 1,
) -> csr_matrix:
    """Return the union of each row: a label in several shortlists gets its largest score, or the sum of its scores.

    With `k`, keep the best `k` labels of a row, by score and then by label id. Entries are stored best first, or by
    label id; values are float32. A score of −inf marks a label that is not a candidate, as in `topk_csr`.
    """
    if not shortlists or len({matrix.shape for matrix in shortlists}) != 1:
        shapes = ", ".join(str(matrix.shape) for matrix in shortlists) or "none"
        raise UsageError(f"shortlists to merge need one shape, rows × labels, found {shapes}")
    if how not in ("max", "sum") or order not in ("score", "label") or (k is not None and k < 1):
        raise UsageError(f"cannot merge shortlists by {how!r} in the order of {order!r} with k = {k}")
    # Sums are float64. The sum of two float32 that is only stored as float32 has the same bits without that.
    narrow = all(matrix.dtype == np.float32 for matrix in shortlists)
    narrow &= how == "max" or (len(shortlists) <= 2 and order == "label" and k is None)
    lists = [_by_label(matrix, np.float32 if narrow else np.float64) for matrix in shortlists]
    wrong = [row for row in map(_first_row_with_nan, lists) if row >= 0]
    if wrong:
        raise DataError("a score is not a number (NaN)", row=min(wrong))
    if len(lists) == 1:
        lists.append(_lists(np.zeros_like(lists[0].pointers), lists[0].labels[:0], lists[0].scores[:0]))
    merged = reduce(lambda left, right: _unite_lists(left, right, how == "sum", workers), lists)
    if order == "score" or k is not None:
        merged = _rank_lists(merged, k, order == "score", workers)
    pointers = row_pointers(np.diff(merged.pointers))
    values = merged.scores.astype(np.float32, copy=False)
    return csr_matrix((values, merged.labels, pointers), shape=shortlists[0].shape)


def _lists(pointers: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> _Lists:
    return _Lists(pointers, labels, scores, scores.view(np.int32 if scores.itemsize == 4 else np.int64))


def _by_label(matrix: csr_matrix, dtype: Any) -> _Lists:
    row = first_row_with_repeats(csr_pattern(matrix, "a shortlist"))
    if row >= 0:
        raise DataError("a shortlist names a label twice", row=row)
    matrix = matrix if matrix.has_sorted_indices else matrix.sorted_indices()
    pointers, labels = csr_pattern(matrix, "a shortlist")
    return _lists(pointers, labels, np.ascontiguousarray(matrix.data[: pointers[-1]], dtype=dtype))


def _first_row_with_nan(lists: _Lists) -> int:
    if not np.isnan(lists.scores.min(initial=0)):  # the minimum of numbers and NaN is NaN
        return -1
    return int(np.searchsorted(lists.pointers, np.isnan(lists.scores).argmax(), side="right")) - 1


def _unite_lists(left: _Lists, right: _Lists, adding: bool, workers: int) -> _Lists:
    starts = left.pointers + right.pointers  # as if no label were repeated
    room = _lists(starts, np.empty(starts[-1], np.int32), np.empty(starts[-1], left.scores.dtype))
    sizes = np.empty(len(starts) - 1, np.int64)
    blocks = row_blocks(len(sizes), most=max(1, workers))
    map_on_threads(lambda block: _unite(left, right, adding, block, room, sizes), blocks, workers=workers)
    pointers = _pointers(sizes)
    for block in blocks[1:]:
        gap = starts[block.start] - pointers[block.start]
        target = slice(pointers[block.start], pointers[block.stop])
        source = slice(target.start + gap, target.stop + gap)
        room.labels[target], room.scores[target] = room.labels[source], room.scores[source]
    labels, scores = room.labels[: pointers[-1]], room.scores[: pointers[-1]]
    much = 2 * pointers[-1] < starts[-1]  # of the room is empty
    return _lists(pointers, labels.copy(), scores.copy()) if much else _lists(pointers, labels, scores)


def _rank_lists(lists: _Lists, k: int | None, best_first: bool, workers: int) -> _Lists:
    sizes = np.diff(lists.pointers)
    pointers = _pointers(sizes if k is None else np.minimum(sizes, k))
    ranked = _lists(pointers, np.empty(pointers[-1], np.int32), np.empty(pointers[-1], lists.scores.dtype))
    map_row_blocks(lambda block: _rank(lists, best_first, block, ranked), len(sizes), workers)
    return ranked


def _pointers(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


@njit(cache=True, nogil=True)
def _unite(left: _Lists, right: _Lists, adding: bool, block: slice, room: _Lists, sizes: np.ndarray) -> None:
    """Write the union of a block of rows to `room`, without gaps, from where it has the first of them."""
    one, nothing = uint64(1), -left.scores.dtype.type(np.inf)
    nothing_bits = np.full(1, nothing, left.scores.dtype).view(left.bits.dtype)[0]
    # Unsigned, so that numba does not check for negative indices.
    at = uint64(room.pointers[block.start])
    for row in range(block.start, block.stop):
        first = at
        i, i_end = uint64(left.pointers[row]), uint64(left.pointers[row + 1])
        j, j_end = uint64(right.pointers[row]), uint64(right.pointers[row + 1])
        while i < i_end and j < j_end:
            a, b = left.labels[i], right.labels[j]
            if a == b:
                x, y = left.scores[i], right.scores[j]
                total = x + y if adding and x != nothing and y != nothing else max(x, y)
                room.labels[at], room.scores[at] = a, total
                at += uint64(total != nothing)
                i += one
                j += one
                continue
            bits, other_bits = left.bits[i], right.bits[j]
            bits = bits if a < b else other_bits
            room.labels[at], room.bits[at] = min(a, b), bits
            at += uint64(bits != nothing_bits)
            i += uint64(a < b)
            j += uint64(b < a)
        for place in range(i, i_end):
            room.labels[at], room.bits[at] = left.labels[place], left.bits[place]
            at += uint64(left.bits[place] != nothing_bits)
        for place in range(j, j_end):
            room.labels[at], room.bits[at] = right.labels[place], right.bits[place]
            at += uint64(right.bits[place] != nothing_bits)
        sizes[row] = at - first


@njit(cache=True, nogil=True)
def _rank(lists: _Lists, best_first: bool, block: slice, ranked: _Lists) -> None:
    """Fill `ranked` with the best labels of a block of rows, as many as it has room for."""
    longest = longest_row(ranked.pointers[block.start : block.stop + 1])
    kept, kept_scores = np.empty(longest, np.int32), np.empty(longest, lists.scores.dtype)
    for row in range(block.start, block.stop):
        here = slice(ranked.pointers[row], ranked.pointers[row + 1])
        labels, scores = ranked.labels[here], ranked.scores[here]
        count, room = 0, len(labels)
        for place in range(lists.pointers[row], lists.pointers[row + 1]):
            count = offer(kept_scores[:room], kept[:room], count, lists.scores[place], lists.labels[place])
        pour(kept_scores, kept, count, labels, scores)
        if not best_first:
            order = np.argsort(labels)
            labels[:], scores[:] = labels[order], scores[order]
