"""Kernels behind `xmckit.metrics`: where the true labels are in the rankings, and sums over them.

Everything after `ranks_of_truth` touches only the true pairs, of which there are few; nothing is rows × labels.
Work is spread over blocks of rows that do not depend on the number of workers; sums are float64, over the rows of a
block in order and then over the blocks in order, so they have the same bits on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from xmckit.executors import Threads
from xmckit.sparse.topk import has_repeats, slots_for

MISSED = np.iinfo(np.int32).max  # the rank of a true label that is not in the ranking

SOUND, OUT_OF_RANGE, REPEATED, AFTER_PADDING, NOT_DESCENDING = range(5)

_SLOT_BITS = 15  # a table of 128 KiB: most rows of 100 labels without a collision, and it stays in a core's cache
_SCANS = 8  # collisions of a row that are looked at one by one
_REPEAT = -1


def row_blocks(rows: int, most: int = 32) -> list[slice]:
    """The rows in at most `most` parts; depends on nothing else, so that results do not depend on the workers."""
    size = max(1024, -(-rows // most))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def ranks_of_truth(
    predicted: np.ndarray,
    scores: np.ndarray,
    indptr: np.ndarray,
    labels: np.ndarray,
    drop_indptr: np.ndarray,
    drop_labels: np.ndarray,
    label_count: int,
    workers: int = 1,
) -> tuple[np.ndarray, int, int]:
    """(rank from 0 of each true label in its row's ranking or MISSED, what is wrong, the first row where it is wrong).

    A rank counts only what is not dropped; no true label is to be dropped.
    """
    ranks = np.empty(len(labels), np.int32)

    def rank_block(block: slice) -> tuple[int, int]:
        return _rank_rows(  # type: ignore[no-any-return]
            predicted, scores, indptr, labels, drop_indptr, drop_labels, label_count, block.start, block.stop, ranks
        )

    for wrong, row in Threads().map(rank_block, row_blocks(len(predicted)), workers=workers):
        if wrong != SOUND:
            return ranks, wrong, row
    return ranks, SOUND, -1


@njit(cache=True, nogil=True)
def _rank_rows(
    predicted: np.ndarray,
    scores: np.ndarray,
    indptr: np.ndarray,
    labels: np.ndarray,
    drop_indptr: np.ndarray,
    drop_labels: np.ndarray,
    label_count: int,
    start: int,
    stop: int,
    ranks: np.ndarray,
) -> tuple[int, int]:
    """Fill `ranks` for rows start … stop − 1; (what is wrong, the row where it is wrong).

    Each row leaves `first` + rank in the slots of its labels. `first` grows from row to row, so that whatever is
    smaller belongs to another row, and nothing is cleared between rows.
    """
    width = predicted.shape[1]
    drop_ranks, hashes = np.empty(_longest(drop_indptr, start, stop), np.int32), np.empty(width, np.uint16)
    slots, exact = np.zeros(1 << _SLOT_BITS, np.int32), np.zeros(slots_for(width), np.int64)
    first = 1 - width
    for row in range(start, stop):
        first += width
        if first > MISSED - width:
            slots[:] = 0
            first = 1
        filled, wrong = _filled(predicted[row], label_count)
        ranking = predicted[row, :filled]
        if wrong == SOUND and not _descending(scores[row, :filled]):
            wrong = NOT_DESCENDING
        if wrong != SOUND:
            return wrong, row
        collisions = _enter(ranking, first, slots, hashes)
        if collisions == _REPEAT or (collisions > _SCANS and has_repeats(ranking, row, exact)):
            return REPEATED, row
        true = slice(indptr[row], indptr[row + 1])
        _find(labels[true], ranking, first, slots, collisions, ranks[true])
        drop = drop_labels[drop_indptr[row] : drop_indptr[row + 1]]
        if len(drop):
            _find(drop, ranking, first, slots, collisions, drop_ranks)
            _move_up(ranks[true], drop_ranks[: len(drop)])
    return SOUND, -1


@njit(cache=True, nogil=True)
def _longest(indptr: np.ndarray, start: int, stop: int) -> int:
    longest = 0
    for row in range(start, stop):
        longest = max(longest, indptr[row + 1] - indptr[row])
    return longest


@njit(cache=True, nogil=True)
def _slot(label: int) -> np.uint16:
    # numba makes 64 bits of a product of 32: the cast back lets the compiler stay with vectors of 32.
    return np.uint16(np.uint32(np.uint32(label) * np.uint32(0x9E3779B1)) >> np.uint32(32 - _SLOT_BITS))


@njit(cache=True, nogil=True)
def _enter(ranking: np.ndarray, first: int, slots: np.ndarray, hashes: np.ndarray) -> int:
    """Put `first` + rank into the slot of every label; how many slots were taken already, or _REPEAT.

    A label that comes twice is found here unless there are more than _SCANS collisions.
    """
    for rank in range(len(ranking)):
        hashes[rank] = _slot(ranking[rank])
    collisions = 0
    for rank in range(len(ranking)):
        slot = hashes[rank]
        if slots[slot] >= first:
            collisions += 1
            if collisions <= _SCANS and _place_of(ranking[rank], ranking[:rank]) >= 0:
                return _REPEAT
        slots[slot] = first + rank
    return collisions


@njit(cache=True, nogil=True)
def _find(
    labels: np.ndarray, ranking: np.ndarray, first: int, slots: np.ndarray, collisions: int, ranks: np.ndarray
) -> None:
    """The rank of each label, or MISSED, into `ranks`."""
    if not len(ranking):
        ranks[: len(labels)] = MISSED
        return
    # Whether a label is a hit is hard to guess: numbers instead of branches, which the processor would guess.
    for place in range(len(labels)):
        rank = np.int64(slots[_slot(labels[place])]) - first
        hit = np.int64(rank >= 0) & np.int64(ranking[max(rank, 0)] == labels[place])
        ranks[place] = rank if hit else MISSED
    if collisions:
        for place in range(len(labels)):
            # A label that shares its slot with a later one was overwritten.
            if ranks[place] == MISSED and slots[_slot(labels[place])] >= first:
                found = _place_of(labels[place], ranking)
                ranks[place] = found if found >= 0 else MISSED


@njit(cache=True, nogil=True)
def _move_up(ranks: np.ndarray, drop_ranks: np.ndarray) -> None:
    """Count only what is not dropped. MISSED is above every rank and stays."""
    for place in range(len(ranks)):
        if ranks[place] != MISSED:
            ranks[place] -= _count_below(drop_ranks, ranks[place])


@njit(cache=True, nogil=True)
def _filled(ranking: np.ndarray, label_count: int) -> tuple[int, int]:
    """(the number of labels before the padding, what is wrong)."""
    lowest, highest = _range(ranking)
    if lowest >= 0 and highest < label_count:
        return len(ranking), SOUND
    if lowest < -1 or highest >= label_count:
        return 0, OUT_OF_RANGE
    filled = 0
    while ranking[filled] != -1:
        filled += 1
    for rank in range(filled, len(ranking)):
        if ranking[rank] != -1:
            return filled, AFTER_PADDING
    return filled, SOUND


# The next three have no early exit and stay in 32 bits: that lets the compiler turn them into vector code.
@njit(cache=True, nogil=True)
def _place_of(label: int, ranking: np.ndarray) -> int:
    """The place of a label that comes once, or −1."""
    found = np.int32(-1)
    for place in range(len(ranking)):
        found = max(found, np.int32(place) if ranking[place] == label else np.int32(-1))
    return int(found)


@njit(cache=True, nogil=True)
def _range(labels: np.ndarray) -> tuple[np.int32, np.int32]:
    lowest, highest = np.int32(0), np.int32(0)
    for place in range(len(labels)):
        lowest = min(lowest, labels[place])
        highest = max(highest, labels[place])
    return lowest, highest


@njit(cache=True, nogil=True)
def _descending(scores: np.ndarray) -> bool:
    """Whether no score is NaN or above the one before it."""
    wrong = len(scores) == 1 and np.isnan(scores[0])
    for place in range(len(scores) - 1):
        wrong |= not (scores[place] >= scores[place + 1])
    return not wrong


@njit(cache=True, nogil=True)
def _count_below(values: np.ndarray, limit: int) -> int:
    below = 0
    for place in range(len(values)):
        below += values[place] < limit
    return below


@njit(cache=True, nogil=True)
def _put_best(value: float, size: int, best: np.ndarray) -> int:
    """Put `value` into `best`, whose first `size` values descend and which drops what does not fit; the new size."""
    if size == len(best) and value <= best[size - 1]:
        return size
    # Comparing with every value in turn needs no branch, which is faster than to look for the place.
    for place in range(size):
        other = best[place]
        best[place] = other if other > value else value
        value = value if other > value else other
    if size < len(best):
        best[size] = value
        size += 1
    return size


class RankingSums(NamedTuple):
    """Sums over rows, one number per cutoff; `best_` is the same for the best possible ranking.

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
    indptr: np.ndarray,
    labels: np.ndarray,
    ranks: np.ndarray,
    weights: np.ndarray,
    cutoffs: np.ndarray,
    workers: int = 1,
) -> RankingSums:
    """Hits, recall, nDCG, gain and nDCG with labels weighted, and covered labels, for cutoffs that ascend.

    A hit is added once, to the first cutoff that reaches it; sums over cutoffs come at the end. The share of recall
    and the norm of nDCG depend on the row's number of true labels, so hits are kept apart by that number.
    """
    places = np.arange(1, cutoffs[-1] + 1)
    discount = np.append(1 / np.log2(places + 1), 0.0)
    # One cutoff more takes the misses.
    first_cut = np.append(np.searchsorted(cutoffs, places), len(cutoffs))
    sizes, group_of_size = _groups(np.bincount(np.diff(indptr)))
    shape = len(sizes), len(cutoffs) + 1

    def add_block(block: slice) -> tuple[np.ndarray, np.ndarray]:
        found, best = np.zeros((*shape, 4)), np.zeros((*shape, 2))
        _add_rows(
            indptr, labels, ranks, weights, group_of_size, first_cut, discount, block.start, block.stop, found, best
        )
        return found, best

    # Sums by size and cutoff must not add up to much memory where there are very many of both.
    blocks = row_blocks(len(indptr) - 1, most=max(1, min(32, (1 << 21) // (shape[0] * shape[1]))))
    tasks: list[Callable[[], Any]] = [partial(_covered_labels, labels, ranks, first_cut, len(weights))]
    tasks += [partial(add_block, block) for block in blocks]
    covered, *parts = Threads().map(_call, tasks, workers=workers)
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


def _call(task: Callable[[], Any]) -> Any:
    return task()


def _groups(rows_of_size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the sizes above 0 that rows have, the place of each size among them)."""
    sizes = 1 + np.flatnonzero(rows_of_size[1:])
    group_of_size = np.zeros(len(rows_of_size), np.int64)
    group_of_size[sizes] = np.arange(len(sizes))
    return sizes, group_of_size


@njit(cache=True, nogil=True)
def _add_rows(
    indptr: np.ndarray,
    labels: np.ndarray,
    ranks: np.ndarray,
    weights: np.ndarray,
    group_of_size: np.ndarray,
    first_cut: np.ndarray,
    discount: np.ndarray,
    start: int,
    stop: int,
    found: np.ndarray,
    best: np.ndarray,
) -> None:
    """Add to `found` (group, cutoff, and: hits, gain, DCG, weighted DCG) and `best` (…: gain, weighted DCG)."""
    deepest = len(discount) - 1
    heaviest = np.empty(min(deepest, len(group_of_size)))
    for row in range(start, stop):
        group, size = group_of_size[indptr[row + 1] - indptr[row]], 0
        for place in range(indptr[row], indptr[row + 1]):
            rank, weight = ranks[place], weights[labels[place]]
            if rank < deepest:
                sums = found[group, first_cut[rank]]
                sums[0] += 1
                sums[1] += weight
                sums[2] += discount[rank]
                sums[3] += weight * discount[rank]
            size = _put_best(weight, size, heaviest)
        for rank in range(size):
            sums = best[group, first_cut[rank]]
            sums[0] += heaviest[rank]
            sums[1] += heaviest[rank] * discount[rank]


def _covered_labels(labels: np.ndarray, ranks: np.ndarray, first_cut: np.ndarray, label_count: int) -> np.ndarray:
    """How many labels each cutoff is the first to cover; the last number: labels that occur and are never a hit."""
    missed = int(first_cut[-1])
    # The smallest type: what is hit at random then fits into the cache.
    kind = np.min_scalar_type(missed + 1)
    level = np.full(label_count, missed + 1, kind)
    _lower_levels(labels, ranks, first_cut.astype(kind), level)
    return np.asarray(_count_levels(level, missed + 2)[: missed + 1])


@njit(cache=True, nogil=True)
def _lower_levels(labels: np.ndarray, ranks: np.ndarray, first_cut: np.ndarray, level: np.ndarray) -> None:
    deepest = len(first_cut) - 1
    for place in range(len(labels)):
        label = labels[place]
        level[label] = min(level[label], first_cut[min(ranks[place], deepest)])


@njit(cache=True, nogil=True)
def _count_levels(level: np.ndarray, levels: int) -> np.ndarray:
    # Four counters in turn: to add to the same one again has to wait for the first addition.
    counts = np.zeros((4, levels), np.int64)
    for label in range(len(level)):
        counts[label & 3, level[label]] += 1
    return counts.sum(axis=0)


@njit(cache=True, nogil=True)
def rises_in_rows(indptr: np.ndarray, labels: np.ndarray) -> bool:
    """Whether each label is above the one before it in its row: falls come only where a row ends."""
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
def hits_per_row(indptr: np.ndarray, ranks: np.ndarray, k: int) -> np.ndarray:
    hits = np.zeros(len(indptr) - 1, np.int64)
    for row in range(len(hits)):
        for place in range(indptr[row], indptr[row + 1]):
            hits[row] += ranks[place] < k
    return hits


@njit(cache=True, nogil=True)
def shared_per_label(
    indptr: np.ndarray, labels: np.ndarray, other_indptr: np.ndarray, other_labels: np.ndarray, label_count: int
) -> np.ndarray:
    """How often each label is in both matrices at the same row. Both have sorted rows."""
    shared = np.zeros(label_count, np.int64)
    for row in range(len(indptr) - 1):
        other, other_end = other_indptr[row], other_indptr[row + 1]
        for place in range(indptr[row], indptr[row + 1]):
            while other < other_end and other_labels[other] < labels[place]:
                other += 1
            if other < other_end and other_labels[other] == labels[place]:
                shared[labels[place]] += 1
    return shared


@njit(cache=True, nogil=True)
def without_pairs(
    indptr: np.ndarray, labels: np.ndarray, drop_indptr: np.ndarray, drop_labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The pattern of a matrix without the pairs of another one. Both have sorted rows."""
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
    return kept_indptr, kept[:size].copy()


@njit(cache=True, nogil=True)
def predictions_per_label(
    predicted: np.ndarray, drop_indptr: np.ndarray, drop_labels: np.ndarray, k: int, label_count: int
) -> np.ndarray:
    """How often each label is among the first `k` that are not dropped. Rows of the pairs to drop are sorted."""
    counts = np.zeros(label_count, np.int64)
    for row in range(predicted.shape[0]):
        dropped = drop_labels[drop_indptr[row] : drop_indptr[row + 1]]
        kept = 0
        for rank in range(predicted.shape[1]):
            label = predicted[row, rank]
            if kept == k or label < 0:
                break
            place = np.searchsorted(dropped, label)
            if place == len(dropped) or dropped[place] != label:
                counts[label] += 1
                kept += 1
    return counts
