"""Kernels for `xmckit.components.metrics`: the ranks of true labels, and sums over them.

Everything after `ranks_of_truth` reads only the few true pairs; nothing has size rows × labels. Blocks of rows do not
depend on the number of workers. Sums are float64, over the rows of a block in order and then over the blocks in order,
so they have the same bits on every call.

numba counts references, atomically, to every array that it slices or passes on. Kernels therefore do neither once per
row, or are inlined.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from xmckit.context import map_on_threads
from xmckit.sparse.csr import Pattern, map_row_blocks, row_blocks

# A scan adds _ONCE + rank for each place where it finds a true label, and subtracts _ONCE at the end, in 32 bits. This
# gives the rank of a label that was found once, and MISSED, above any rank, for a label that was never found. Sums fit
# into 32 bits for rankings of up to half of _ONCE labels.
_ONCE = 1 << 16
MISSED = (1 << 32) - _ONCE

SOUND, OUT_OF_RANGE, REPEATED, AFTER_PADDING, NOT_DESCENDING = range(5)

_FEW = 32  # most true labels of a row for which scanning its ranking is the faster way


def ranks_of_truth(
    predicted: np.ndarray, scores: np.ndarray, true: Pattern, dropped: Pattern, label_count: int, workers: int = 1
) -> tuple[np.ndarray, int, int]:
    """Return (rank from 0 of each true label in its row's ranking or MISSED, error code, first row with the error).

    A rank counts only labels that are not dropped; no true label may be dropped.
    """
    ranks = np.full(len(true.indices), MISSED, np.uint32)
    if not predicted.shape[1]:
        return ranks, SOUND, -1

    def rank_block(block: slice) -> tuple[int, int]:
        return _rank_rows(predicted, scores, true, dropped, label_count, block, ranks)

    for wrong, row in map_row_blocks(rank_block, len(predicted), workers):
        if wrong != SOUND:
            return ranks, wrong, row
    return ranks, SOUND, -1


@njit(cache=True, nogil=True)
def _rank_rows(
    predicted: np.ndarray,
    scores: np.ndarray,
    true: Pattern,
    dropped: Pattern,
    label_count: int,
    block: slice,
    ranks: np.ndarray,
) -> tuple[int, int]:
    """Fill `ranks`, which hold MISSED, for a block of rows. Return (error code, first row with the error)."""
    indptr, labels = true
    start, stop = block.start, block.stop
    wrong, row = SOUND, start
    while row < stop:
        if _may_be_wrong(predicted, scores, row, label_count):
            wrong = _row_error(predicted, scores, row, label_count)
            if wrong != SOUND:
                break
        begin, end = indptr[row], indptr[row + 1]
        if end - begin <= _FEW and predicted.shape[1] <= _ONCE // 2:
            _scan(predicted, row, labels, begin, end, ranks)
        elif not _look_up(predicted, row, labels, begin, end, ranks):
            wrong = REPEATED
            break
        row += 1
    # In the loop above, this check would take as long as everything else.
    if predicted.shape[1] <= _ONCE // 2:
        repeated = _first_repeated(indptr, ranks, start, row)
        if repeated >= 0:
            return REPEATED, repeated
    if dropped.indptr[start] < dropped.indptr[stop]:
        _skip_dropped(predicted, indptr, dropped, slice(start, row), ranks)
    return wrong, row


# Loops over one row without calls and early exits, on 32-bit numbers only: the compiler vectorises them.
@njit(cache=True, nogil=True, inline="always")
def _may_be_wrong(predicted: np.ndarray, scores: np.ndarray, row: int, label_count: int) -> bool:
    """Tell whether a row may have an error: anything but labels and descending scores, also valid padding."""
    last, limit = predicted.shape[1] - 1, np.uint32(label_count)
    wrong = np.uint32(np.uint32(predicted[row, last]) >= limit) | np.uint32(np.isnan(scores[row, last]))
    for rank in range(last):
        wrong |= np.uint32(np.uint32(predicted[row, rank]) >= limit) | np.uint32(
            not (scores[row, rank] >= scores[row, rank + 1])
        )
    return bool(wrong != 0)


@njit(cache=True, nogil=True)
def _row_error(predicted: np.ndarray, scores: np.ndarray, row: int, label_count: int) -> int:
    """Return the error code of a row, or SOUND."""
    width = predicted.shape[1]
    for rank in range(width):
        if predicted[row, rank] < -1 or predicted[row, rank] >= label_count:
            return OUT_OF_RANGE
    count = 0
    while count < width and predicted[row, count] != -1:
        count += 1
    for rank in range(count, width):
        if predicted[row, rank] != -1:
            return AFTER_PADDING
    for rank in range(count):
        if np.isnan(scores[row, rank]) or (rank and scores[row, rank - 1] < scores[row, rank]):
            return NOT_DESCENDING
    return SOUND


@njit(cache=True, nogil=True, inline="always")
def _scan(predicted: np.ndarray, row: int, labels: np.ndarray, begin: int, end: int, ranks: np.ndarray) -> None:
    """Compare true labels, four at a time, with all predictions; faster than a table for few true labels."""
    once = np.uint32(_ONCE)
    for place in range(begin, end, 4):
        second, third, fourth = min(place + 1, end - 1), min(place + 2, end - 1), min(place + 3, end - 1)
        a, b, c, d = labels[place], labels[second], labels[third], labels[fourth]
        sum_a, sum_b, sum_c, sum_d = np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)
        for rank in range(predicted.shape[1]):
            label, code = predicted[row, rank], np.uint32(_ONCE + rank)
            sum_a += code if label == a else np.uint32(0)
            sum_b += code if label == b else np.uint32(0)
            sum_c += code if label == c else np.uint32(0)
            sum_d += code if label == d else np.uint32(0)
        ranks[place], ranks[second] = sum_a - once, sum_b - once
        ranks[third], ranks[fourth] = sum_c - once, sum_d - once


@njit(cache=True, nogil=True)
def _first_repeated(indptr: np.ndarray, ranks: np.ndarray, start: int, stop: int) -> int:
    """Return the first row of start … stop − 1 in which a scan found a true label twice, or −1."""
    once, most = np.uint32(_ONCE), np.uint32(MISSED - _ONCE)
    repeated = np.uint32(0)
    for place in range(indptr[start], indptr[stop]):
        repeated |= np.uint32(ranks[place] - once < most)
    if repeated:
        for row in range(start, stop):
            for place in range(indptr[row], indptr[row + 1]):
                if ranks[place] - once < most:
                    return row
    return -1


@njit(cache=True, nogil=True)
def _look_up(predicted: np.ndarray, row: int, labels: np.ndarray, begin: int, end: int, ranks: np.ndarray) -> bool:
    """Fill ranks for many true labels or a very long ranking. Return False if a true label occurs twice."""
    for rank in range(predicted.shape[1]):
        place = _search(predicted[row, rank], labels, begin, end)
        if place >= 0:
            if ranks[place] != MISSED:
                return False
            ranks[place] = rank
    return True


@njit(cache=True, nogil=True, inline="always")
def _search(label: int, labels: np.ndarray, begin: int, end: int) -> int:
    """Return the position of a label among the sorted labels begin … end − 1, or −1."""
    low, high = begin, end
    while low < high:
        middle = (low + high) >> 1
        if labels[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low if low < end and labels[low] == label else -1


@njit(cache=True, nogil=True)
def _place_of(label: int, predicted: np.ndarray, row: int, filled: int) -> int:
    """Return the position of a label that occurs at most once, or −1."""
    position = np.int32(-1)
    for place in range(filled):
        position = max(position, np.int32(place) if predicted[row, place] == label else np.int32(-1))
    return int(position)


@njit(cache=True, nogil=True)
def _skip_dropped(predicted: np.ndarray, indptr: np.ndarray, dropped: Pattern, block: slice, ranks: np.ndarray) -> None:
    """Make ranks count only labels that are not dropped."""
    drop_indptr, drop_labels = dropped
    width, offset = predicted.shape[1], drop_indptr[block.start]
    drop_ranks = np.empty(drop_indptr[block.stop] - offset, np.int32)
    for row in range(block.start, block.stop):
        for drop in range(drop_indptr[row], drop_indptr[row + 1]):
            drop_ranks[drop - offset] = _place_of(drop_labels[drop], predicted, row, width)
        for place in range(indptr[row], indptr[row + 1]):
            rank = ranks[place]
            if rank != MISSED:
                for drop in range(drop_indptr[row], drop_indptr[row + 1]):
                    ranks[place] -= 0 <= drop_ranks[drop - offset] < rank


class RankingSums(NamedTuple):
    """Sums over rows, one number per cutoff; `best_…` are those of the best possible ranking.

    `covered` counts the labels with a hit, out of `occurring` labels in the truth.
    """

    hits: np.ndarray
    recall: np.ndarray
    ndcg: np.ndarray
    gain: np.ndarray
    best_gain: np.ndarray
    weighted_ndcg: np.ndarray
    best_weighted_ndcg: np.ndarray
    covered: np.ndarray
    occurring: int


def ranking_sums(
    true: Pattern, ranks: np.ndarray, weights: np.ndarray, cutoffs: np.ndarray, workers: int = 1
) -> RankingSums:
    """Return hits, recall, nDCG, gain, weighted nDCG and covered labels, for ascending cutoffs.

    A hit is added once, to the first cutoff that includes it, and summed over cutoffs at the end. The denominators of
    recall and nDCG depend on the number of true labels of a row, so hits are grouped by that number.
    """
    places = np.arange(1, cutoffs[-1] + 1)
    discount = np.append(1 / np.log2(places + 1), 0.0)
    # One further cutoff takes the misses.
    first_cut = np.append(np.searchsorted(cutoffs, places), len(cutoffs))
    sizes, group_of_size = _groups(np.bincount(np.diff(true.indptr)))
    shape = len(sizes), len(cutoffs) + 1

    def add_block(block: slice) -> tuple[np.ndarray, np.ndarray]:
        found, best = np.zeros((*shape, 4)), np.zeros((*shape, 2))
        _add_rows(true, ranks, weights, group_of_size, first_cut, discount, block, found, best)
        return found, best

    # Fewer blocks limit the memory for sums by size and cutoff if there are very many of both.
    blocks = row_blocks(len(true.indptr) - 1, most=max(1, min(32, (1 << 21) // (shape[0] * shape[1]))))
    tasks: list[Callable[[], Any]] = [partial(_covered_labels, true.indices, ranks, first_cut, len(weights))]
    tasks += [partial(add_block, block) for block in blocks]
    covered, *parts = map_on_threads(lambda task: task(), tasks, workers=workers)
    found, best = (np.cumsum(sum(part), axis=1)[:, :-1] for part in zip(*parts, strict=True))

    norm = np.cumsum(discount)[np.minimum(sizes[:, None], cutoffs) - 1]
    return RankingSums(
        hits=found[..., 0].sum(axis=0),
        recall=(found[..., 0] / sizes[:, None]).sum(axis=0),
        ndcg=(found[..., 2] / norm).sum(axis=0),
        gain=found[..., 1].sum(axis=0),
        best_gain=best[..., 0].sum(axis=0),
        weighted_ndcg=(found[..., 3] / norm).sum(axis=0),
        best_weighted_ndcg=(best[..., 1] / norm).sum(axis=0),
        covered=np.cumsum(covered)[:-1],
        occurring=int(covered.sum()),
    )


def _groups(rows_of_size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (the sizes above 0 that rows have, the group of each size)."""
    sizes = 1 + np.flatnonzero(rows_of_size[1:])
    group_of_size = np.zeros(len(rows_of_size), np.int64)
    group_of_size[sizes] = np.arange(len(sizes))
    return sizes, group_of_size


@njit(cache=True, nogil=True)
def _add_rows(
    true: Pattern,
    ranks: np.ndarray,
    weights: np.ndarray,
    group_of_size: np.ndarray,
    first_cut: np.ndarray,
    discount: np.ndarray,
    block: slice,
    found: np.ndarray,
    best: np.ndarray,
) -> None:
    """Add to `found` (group, cutoff: hits, gain, DCG, weighted DCG) and `best` (group, cutoff: gain, weighted DCG)."""
    indptr, labels = true
    deepest = len(discount) - 1
    heaviest = np.empty(min(deepest, len(group_of_size)))
    for row in range(block.start, block.stop):
        group, size = group_of_size[indptr[row + 1] - indptr[row]], 0
        for place in range(indptr[row], indptr[row + 1]):
            rank, weight = min(ranks[place], deepest), weights[labels[place]]
            cut = first_cut[rank]
            found[group, cut, 0] += 1
            found[group, cut, 1] += weight
            found[group, cut, 2] += discount[rank]
            found[group, cut, 3] += weight * discount[rank]
            if size == len(heaviest) and weight <= heaviest[size - 1]:
                continue
            # Compare with every weight in turn: without a branch, this is faster than a search and a shift.
            for other in range(size):
                before = heaviest[other]
                heaviest[other] = before if before > weight else weight
                weight = weight if before > weight else before
            if size < len(heaviest):
                heaviest[size] = weight
                size += 1
        for rank in range(size):
            best[group, first_cut[rank], 0] += heaviest[rank]
            best[group, first_cut[rank], 1] += heaviest[rank] * discount[rank]


def _covered_labels(labels: np.ndarray, ranks: np.ndarray, first_cut: np.ndarray, label_count: int) -> np.ndarray:
    """Return how many labels each cutoff is the first to cover; the last number counts labels without a hit."""
    missed = int(first_cut[-1])
    # The smallest type, so that random access stays in the cache.
    kind = np.min_scalar_type(missed + 1)
    level = np.full(label_count, missed + 1, kind)
    _lower_levels(labels, ranks, first_cut.astype(kind), level)
    return np.asarray(_count_levels(level, missed + 2).sum(axis=0)[: missed + 1])


@njit(cache=True, nogil=True)
def _lower_levels(labels: np.ndarray, ranks: np.ndarray, first_cut: np.ndarray, level: np.ndarray) -> None:
    deepest = len(first_cut) - 1
    for place in range(len(labels)):
        label = labels[place]
        level[label] = min(level[label], first_cut[min(ranks[place], deepest)])


@njit(cache=True, nogil=True)
def _count_levels(level: np.ndarray, levels: int) -> np.ndarray:
    # Four counters in turn, because adding to the same one has to wait for the addition before.
    counts = np.zeros((4, levels), np.int64)
    for label in range(len(level)):
        counts[label & 3, level[label]] += 1
    return counts


@njit(cache=True, nogil=True)
def rises_in_rows(pattern: Pattern) -> bool:
    """Tell whether labels ascend in every row: they may only fall where a row ends."""
    indptr, labels = pattern
    falls = np.int32(0)
    for place in range(len(labels) - 1):
        falls += np.int32(labels[place] >= labels[place + 1])
    ends = 0
    for row in range(1, len(indptr) - 1):
        end = indptr[row]
        # An end that several rows share (all but the first are empty) counts once.
        if indptr[row - 1] < end < len(labels) and labels[end - 1] >= labels[end]:
            ends += 1
    return falls == ends


@njit(cache=True, nogil=True)
def without_pairs(pattern: Pattern, dropped: Pattern) -> Pattern:
    """Return the pattern of a matrix without the pairs of another one. Both have sorted rows."""
    indptr, labels = pattern
    drop_indptr, drop_labels = dropped
    kept_indptr, kept = np.zeros_like(indptr), np.empty_like(labels)
    size = 0
    for row in range(len(indptr) - 1):
        drop, drop_end = drop_indptr[row], drop_indptr[row + 1]
        for place in range(indptr[row], indptr[row + 1]):
            while drop < drop_end and drop_labels[drop] < labels[place]:
                drop += 1
            if drop == drop_end or drop_labels[drop] != labels[place]:
                kept[size] = labels[place]
                size += 1
        kept_indptr[row + 1] = size
    return Pattern(kept_indptr, kept[:size].copy())
