"""Kernels behind `xmckit.metrics`: where the true labels are in the rankings, and sums over them.

Everything after `ranks_of_truth` touches only the true pairs, of which there are few; nothing is rows × labels.
Sums run over the rows in order, in float64, so they are the same on every call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from xmckit.sparse.topk import slots_for

MISSED = np.iinfo(np.int32).max  # the rank of a true label that is not in the ranking

SOUND, OUT_OF_RANGE, REPEATED, AFTER_PADDING, NOT_DESCENDING = range(5)


@njit(cache=True, nogil=True)
def ranks_of_truth(
    predicted: np.ndarray,
    scores: np.ndarray,
    indptr: np.ndarray,
    labels: np.ndarray,
    drop_indptr: np.ndarray,
    drop_labels: np.ndarray,
    label_count: int,
) -> tuple[np.ndarray, int, int]:
    """(rank from 0 of each true label in its row's ranking or MISSED, what is wrong, the row where it is wrong).

    A rank counts only what is not dropped; no true label is to be dropped. Each row leaves its number in the buckets
    of its predicted labels: a bucket without it proves that a label is not predicted, so that the row itself is
    rarely searched.
    """
    rows, width = predicted.shape
    ranks, dropped = np.empty(len(labels), np.int32), np.empty(width, np.int32)
    buckets = np.zeros(_bucket_count(width), np.int32)
    for row in range(rows):
        filled, wrong = _filled(predicted[row], label_count)
        ranking = predicted[row, :filled]
        if wrong == SOUND and not _descending(scores[row, :filled]):
            wrong = NOT_DESCENDING
        if wrong == SOUND and _leave_mark(ranking, row + 1, buckets):
            wrong = REPEATED
        if wrong != SOUND:
            return ranks, wrong, row
        drops = 0
        for place in range(drop_indptr[row], drop_indptr[row + 1]):
            rank = _rank_of(drop_labels[place], ranking, row + 1, buckets)
            if rank != MISSED:
                dropped[drops] = rank
                drops += 1
        for place in range(indptr[row], indptr[row + 1]):
            rank = _rank_of(labels[place], ranking, row + 1, buckets)
            ranks[place] = rank if rank == MISSED else rank - _count_below(dropped, drops, rank)
    return ranks, SOUND, -1


@njit(cache=True, nogil=True)
def _bucket_count(width: int) -> int:
    """A power of two: enough that few labels of a row meet, few enough for the second-level cache."""
    return slots_for(min(4 * width * width, max(1 << 15, 8 * width)))


@njit(cache=True, nogil=True)
def _bucket(label: int, buckets: np.ndarray) -> int:
    return ((label * 0x9E3779B1) >> 12) & (len(buckets) - 1)


@njit(cache=True, nogil=True)
def _leave_mark(ranking: np.ndarray, mark: int, buckets: np.ndarray) -> bool:
    """Put `mark` into the bucket of every label; whether a label comes twice."""
    for rank in range(len(ranking)):
        bucket = _bucket(ranking[rank], buckets)
        if buckets[bucket] == mark and _place_of(ranking[rank], ranking[:rank]) >= 0:
            return True
        buckets[bucket] = mark
    return False


@njit(cache=True, nogil=True)
def _rank_of(label: int, ranking: np.ndarray, mark: int, buckets: np.ndarray) -> int:
    if buckets[_bucket(label, buckets)] != mark:
        return MISSED
    place = _place_of(label, ranking)
    return place if place >= 0 else MISSED


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
def _count_below(values: np.ndarray, count: int, limit: int) -> int:
    below = 0
    for place in range(count):
        below += values[place] < limit
    return below


@njit(cache=True, nogil=True)
def _best_first(values: np.ndarray, places: np.ndarray, out: np.ndarray) -> int:
    """Fill `out` with the largest of values[places], descending; how many there are."""
    size = 0
    for place in range(len(places)):
        value = values[places[place]]
        if size == len(out):
            if value <= out[size - 1]:
                continue
        else:
            size += 1
        slot = size - 1
        while slot > 0 and out[slot - 1] < value:
            out[slot] = out[slot - 1]
            slot -= 1
        out[slot] = value
    return size


class RankingSums(NamedTuple):
    """Sums over rows, one number per cutoff; `best_` is the same for the best possible ranking."""

    hits: np.ndarray
    recall: np.ndarray
    ndcg: np.ndarray
    gain: np.ndarray
    best_gain: np.ndarray
    weighted_ndcg: np.ndarray
    best_weighted_ndcg: np.ndarray


def ranking_sums(
    indptr: np.ndarray, labels: np.ndarray, ranks: np.ndarray, weights: np.ndarray, cutoffs: np.ndarray
) -> RankingSums:
    """Hits, recall, nDCG, and gain and nDCG with labels weighted, for cutoffs that ascend.

    A hit is added once, to the first cutoff that reaches it; sums over cutoffs come at the end. The norm of nDCG
    depends on the cutoff and on the row's number of true labels, so its parts are kept apart by that number.
    """
    places = np.arange(1, cutoffs[-1] + 1)
    discount = 1 / np.log2(places + 1)
    sums = np.zeros((4, len(cutoffs)))
    dcg_by_size = np.zeros((len(places) + 1, 3, len(cutoffs)))
    _add_rows(indptr, labels, ranks, weights, np.searchsorted(cutoffs, places), discount, sums, dcg_by_size)
    norm = np.cumsum(discount)[np.minimum(places[:, None], cutoffs) - 1]
    ndcg = np.cumsum(dcg_by_size[1:], axis=2) / norm[:, None, :]
    hits, recall, gain, best_gain = np.cumsum(sums, axis=1)
    dcg, weighted, best_weighted = ndcg.sum(axis=0)
    return RankingSums(hits, recall, dcg, gain, best_gain, weighted, best_weighted)


@njit(cache=True, nogil=True)
def _add_rows(
    indptr: np.ndarray,
    labels: np.ndarray,
    ranks: np.ndarray,
    weights: np.ndarray,
    first_cut: np.ndarray,
    discount: np.ndarray,
    sums: np.ndarray,
    dcg_by_size: np.ndarray,
) -> None:
    deepest = len(discount)
    best = np.empty(deepest)
    for row in range(len(indptr) - 1):
        start, count = indptr[row], indptr[row + 1] - indptr[row]
        if count == 0:
            continue
        size, share = min(count, deepest), 1.0 / count
        for place in range(start, start + count):
            rank = ranks[place]
            if rank < deepest:
                cut, weight = first_cut[rank], weights[labels[place]]
                sums[0, cut] += 1
                sums[1, cut] += share
                sums[2, cut] += weight
                dcg_by_size[size, 0, cut] += discount[rank]
                dcg_by_size[size, 1, cut] += weight * discount[rank]
        for rank in range(_best_first(weights, labels[start : start + count], best)):
            sums[3, first_cut[rank]] += best[rank]
            dcg_by_size[size, 2, first_cut[rank]] += best[rank] * discount[rank]


@njit(cache=True, nogil=True)
def best_rank_per_label(labels: np.ndarray, ranks: np.ndarray, label_count: int) -> np.ndarray:
    """The best rank that each label has in a row where it is true (MISSED: in none); −1 if it is true nowhere."""
    best = np.full(label_count, np.int32(-1))
    for place in range(len(labels)):
        label = labels[place]
        if best[label] < 0 or ranks[place] < best[label]:
            best[label] = ranks[place]
    return best


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
