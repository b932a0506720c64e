"""Beam search down a tree of linear models: the scores that PECOS's own predictor gives, bit for bit, in less time.

Pairs of a row and a node that it reached are taken node by node. The features that the models below the node have are
then spread out into a table once, where each entry of each of its rows finds them in one step; PECOS searches a sorted
list for every row. A post-processor never falls as the margin rises, so that a margin below one that was not good
enough need not be turned into a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csc_matrix, csr_matrix

SCORES_AT_ONCE = 1 << 22  # of candidates, in a block of rows
ROWS_AT_ONCE = 1 << 14
BLOCKS_PER_THREAD = 4  # rows are not all as much work
SPARSE = 4  # weights of which not even one in so many is there are stored one by one
FEW = 8  # a table is made where its features are fewer than so many times the entries that are looked up

_HINGE, _LOG_HINGE, _SIGMOID, _LOG_SIGMOID, _NOOP = range(5)


@dataclass(frozen=True)
class Level:
    """The models of one level, by the node above them.

    Below node n are `children[starts[n]:starts[n + 1]]`; of the features that their models have, the sorted
    `features[feature_starts[n]:feature_starts[n + 1]]`, feature i is in `entry_starts[i]:entry_starts[i + 1]` of
    `places`, counted from the node's first child, and `weights`. Where most would have an entry for most children, all
    have one for every child, and there are no places.
    """

    starts: np.ndarray
    children: np.ndarray
    bias: np.ndarray
    feature_starts: np.ndarray
    features: np.ndarray
    entry_starts: np.ndarray
    places: np.ndarray
    weights: np.ndarray
    nodes: int
    inputs: int

    @classmethod
    def of(cls, W: csc_matrix, C: csc_matrix, bias: float) -> Level:
        """W: features × nodes, its last row the weights of the bias if that is above 0; C: nodes × nodes above."""
        inputs = int(W.shape[0]) - (1 if bias > 0 else 0)
        starts, children = C.indptr.astype(np.int64), C.indices.astype(np.int32)
        constants, feature_starts, features, entry_starts, places, weights = _by_feature(
            W.indptr.astype(np.int64), W.indices, W.data, starts, children, np.float32(max(bias, 0.0)), inputs
        )
        if len(weights) * SPARSE >= np.diff(feature_starts) @ np.diff(starts):
            entry_starts, weights = _with_zeros(starts, feature_starts, entry_starts, places, weights)
            places = places[:0]
        return cls(
            starts,
            children,
            constants,
            feature_starts,
            features,
            entry_starts,
            places,
            weights,
            nodes=int(W.shape[1]),
            inputs=inputs,
        )

    @property
    def widest(self) -> int:
        return int(np.diff(self.starts).max(initial=0))

    @property
    def scoring(self) -> Any:
        """What `_margins` takes."""
        return (
            self.starts,
            self.bias,
            self.feature_starts,
            self.features,
            self.entry_starts,
            self.places,
            self.weights,
        )


def search(levels: Sequence[Level], X: csr_matrix, k: int, beam: int, threads: int, post_processor: str) -> csr_matrix:
    """Rows × nodes of the last level: up to `k` scores a row, best first; of equal ones the first in the tree."""
    rows, (kind, exponent) = X.shape[0], _kind(post_processor)
    kept = [beam] * (len(levels) - 1) + [k]
    indptr, indices, data = X.indptr.astype(np.int64), X.indices, X.data
    block = _rows_at_once(levels, rows, beam, threads)

    def down(start: int) -> Any:
        """(ends of rows, nodes, scores) of one block of rows."""
        row_ends = indptr[start : min(start + block, rows) + 1]
        count = len(row_ends) - 1
        ends, nodes, scores = np.arange(count + 1), np.zeros(count, np.int32), np.empty(0, np.float32)
        table = np.full(levels[0].inputs, -1, np.int32)
        for level, most in zip(levels, kept, strict=True):
            first, margins = _margins(row_ends, indices, data, ends, nodes, table, *level.scoring)
            ends, nodes, scores = _best(
                ends, nodes, scores, first, margins, level.starts, level.children, most, kind, exponent
            )
        return ends, nodes, scores

    begins = range(0, max(rows, 1), block)
    if threads == 1 or len(begins) == 1:
        parts = [down(start) for start in begins]
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(down, begins))
    ends, nodes, scores = zip(*parts, strict=True)
    counts = np.concatenate([np.diff(some) for some in ends])
    starts = np.concatenate([[0], np.cumsum(counts)])
    return csr_matrix((np.concatenate(scores), np.concatenate(nodes), starts), shape=(rows, levels[-1].nodes))


def _rows_at_once(levels: Sequence[Level], rows: int, beam: int, threads: int) -> int:
    """Rows in a block: as many as share a node's table without their scores taking much memory."""
    followed = [1, *(min(beam, level.nodes) for level in levels[:-1])]
    widest = max(nodes * level.widest for nodes, level in zip(followed, levels, strict=True))
    fair = -(-rows // (threads * BLOCKS_PER_THREAD)) if threads > 1 else rows
    return max(1, min(ROWS_AT_ONCE, SCORES_AT_ONCE // max(widest, 1), fair))


def _kind(post_processor: str) -> tuple[int, int]:
    """(which, exponent)."""
    named = {"sigmoid": _SIGMOID, "log-sigmoid": _LOG_SIGMOID, "noop": _NOOP}
    if post_processor in named:
        return named[post_processor], 0
    kind, exponent = post_processor.removesuffix("-hinge").rsplit("l", 1)
    return _LOG_HINGE if kind else _HINGE, int(exponent)


@njit(cache=True, nogil=True)
def _by_feature(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    bias: Any,
    inputs: int,
) -> Any:
    """`Level.bias` to `Level.weights`: the columns below each node, turned."""
    entries = 0
    for child in children:
        entries += indptr[child + 1] - indptr[child]
    constants = np.zeros(len(children), np.float32)
    places, weights = np.empty(entries, np.int32), np.empty(entries, np.float32)
    features, ends = np.empty(entries, np.int32), np.empty(entries + 1, np.int64)
    feature_starts = np.zeros(len(starts), np.int64)
    count, where = np.zeros(inputs, np.int32), np.empty(inputs, np.int64)
    used = filled = 0
    ends[0] = 0
    for node in range(len(starts) - 1):
        first = used
        for place in range(starts[node], starts[node + 1]):
            for entry in range(indptr[children[place]], indptr[children[place] + 1]):
                feature = indices[entry]
                if feature == inputs:
                    constants[place] = bias * data[entry]
                    continue
                if not count[feature]:
                    features[used] = feature
                    used += 1
                count[feature] += 1
        features[first:used].sort()
        for i in range(first, used):
            where[features[i]] = filled
            filled += count[features[i]]
            ends[i + 1] = filled
            count[features[i]] = 0
        for place in range(starts[node], starts[node + 1]):
            for entry in range(indptr[children[place]], indptr[children[place] + 1]):
                feature = indices[entry]
                if feature != inputs:
                    places[where[feature]], weights[where[feature]] = place - starts[node], data[entry]
                    where[feature] += 1
        feature_starts[node + 1] = used
    return constants, feature_starts, features[:used].copy(), ends[: used + 1].copy(), places[:filled], weights[:filled]


@njit(cache=True, nogil=True)
def _with_zeros(
    starts: np.ndarray,
    feature_starts: np.ndarray,
    entry_starts: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
) -> Any:
    """(`Level.entry_starts`, `Level.weights`) with an entry of every feature for every child."""
    ends = np.zeros(len(entry_starts), np.int64)
    for node in range(len(starts) - 1):
        for i in range(feature_starts[node], feature_starts[node + 1]):
            ends[i + 1] = ends[i] + starts[node + 1] - starts[node]
    filled = np.zeros(ends[-1], np.float32)
    for i in range(len(entry_starts) - 1):
        for j in range(entry_starts[i], entry_starts[i + 1]):
            filled[ends[i] + places[j]] = weights[j]
    return ends, filled


@njit(cache=True, nogil=True)
def _margins(
    row_ends: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    reached_ends: np.ndarray,
    reached: np.ndarray,
    table: np.ndarray,
    starts: np.ndarray,
    bias: np.ndarray,
    feature_starts: np.ndarray,
    features: np.ndarray,
    entry_starts: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
) -> Any:
    """(where the children of each reached node begin, their margins). `table` is −1 everywhere, before and after."""
    nodes, pairs = len(starts) - 1, len(reached)
    first = np.zeros(pairs + 1, np.int64)
    visits = np.zeros(nodes + 1, np.int64)
    for pair in range(pairs):
        first[pair + 1] = first[pair] + starts[reached[pair] + 1] - starts[reached[pair]]
        visits[reached[pair] + 1] += 1
    for node in range(nodes):
        visits[node + 1] += visits[node]
    order, row_of = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    for row in range(len(row_ends) - 1):
        for pair in range(reached_ends[row], reached_ends[row + 1]):
            order[visits[reached[pair]]], row_of[pair] = pair, row
            visits[reached[pair]] += 1
    margins = np.zeros(first[pairs], np.float32)
    begin = 0
    for node in range(nodes):
        end = visits[node]  # the last of this node's pairs, by now
        if begin == end:
            continue
        low, high = feature_starts[node], feature_starts[node + 1]
        entries = 0
        for i in range(begin, end):
            entries += row_ends[row_of[order[i]] + 1] - row_ends[row_of[order[i]]]
        spread = high - low < FEW * entries
        if spread:
            for i in range(low, high):
                table[features[i]] = i - low
        for i in range(begin, end):
            row, ours = row_of[order[i]], margins[first[order[i]] : first[order[i] + 1]]
            for entry in range(row_ends[row], row_ends[row + 1]):
                feature, x = indices[entry], data[entry]
                at = low + table[feature] if spread else _find(features, low, high, feature)
                if at < low:
                    continue
                if len(places):
                    for j in range(entry_starts[at], entry_starts[at + 1]):
                        ours[places[j]] += x * weights[j]
                else:
                    theirs = weights[entry_starts[at] : entry_starts[at + 1]]
                    for child in range(len(ours)):
                        ours[child] += x * theirs[child]
            for child in range(len(ours)):
                ours[child] += bias[starts[node] + child]
        if spread:
            for i in range(low, high):
                table[features[i]] = -1
        begin = end
    return first, margins


@njit(cache=True, nogil=True)
def _find(features: np.ndarray, low: int, high: int, feature: int) -> int:
    """Where a feature is between `low` and `high`, or −1."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if features[middle] < feature:
            low = middle + 1
        else:
            high = middle
    return low if low < end and features[low] == feature else -1


@njit(cache=True, nogil=True, error_model="numpy")
def _score(margin: Any, kind: int, exponent: int) -> Any:
    """The margin as one factor, or term, of a score; PECOS computes in double precision and rounds once."""
    if kind in (_HINGE, _LOG_HINGE):
        below = np.float64(np.float32(np.maximum(0.0, 1.0 - np.float64(margin))))
        power = below
        for _ in range(exponent - 1):
            power *= below
        return np.float32(math.exp(-power)) if kind == _HINGE else np.float32(-power)
    if kind == _SIGMOID:
        return np.float32(1.0 / (1.0 + np.float64(np.exp(-np.float32(margin)))))
    if kind == _LOG_SIGMOID:
        return np.float32(-math.log(1.0 + np.float64(np.exp(-np.float32(margin)))))
    return np.float32(margin)


@njit(cache=True, nogil=True)
def _best(
    reached_ends: np.ndarray,
    reached: np.ndarray,
    scores: np.ndarray,
    first: np.ndarray,
    margins: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    most: int,
    kind: int,
    exponent: int,
) -> Any:
    """(ends of rows, children, scores): the `most` best children of the nodes that each row reached, best first.

    `scores` are those of the reached nodes; there are none at the root.
    """
    rows = len(reached_ends) - 1
    ends = np.zeros(rows + 1, np.int64)
    for row in range(rows):
        ends[row + 1] = ends[row] + min(most, first[reached_ends[row + 1]] - first[reached_ends[row]])
    best, values = np.empty(ends[rows], np.int32), np.empty(ends[rows], np.float32)
    widest = 0
    for row in range(rows):
        widest = max(widest, ends[row + 1] - ends[row])
    heap, found = np.empty(widest, np.float32), np.empty(widest, np.int64)  # the worst on top
    for row in range(rows):
        room, size = ends[row + 1] - ends[row], 0
        for pair in range(reached_ends[row], reached_ends[row + 1]):
            failed = np.float32(-np.inf)  # the largest margin below this node that was not good enough
            for place in range(first[pair], first[pair + 1]):
                margin = margins[place]
                if size == room and margin <= failed:
                    continue
                score = _score(margin, kind, exponent)
                if len(scores) and kind in (_HINGE, _SIGMOID):
                    score *= scores[pair]
                elif len(scores) and kind in (_LOG_HINGE, _LOG_SIGMOID):
                    score += scores[pair]
                if size < room:
                    heap[size], found[size] = score, place
                    _up(heap, found, size)
                    size += 1
                elif score > heap[0]:
                    heap[0], found[0] = score, place
                    _down(heap, found, size)
                else:
                    failed = margin
        for place in range(ends[row] + size - 1, ends[row] - 1, -1):
            values[place], best[place] = heap[0], found[0] - first[reached_ends[row]]
            size -= 1
            heap[0], found[0] = heap[size], found[size]
            _down(heap, found, size)
        for place in range(ends[row], ends[row + 1]):
            at = best[place] + first[reached_ends[row]]
            pair = reached_ends[row] + np.searchsorted(
                first[reached_ends[row] + 1 : reached_ends[row + 1] + 1], at, side="right"
            )
            best[place] = children[starts[reached[pair]] + at - first[pair]]
    return ends, best, values


@njit(cache=True, nogil=True)
def _worse(heap: np.ndarray, found: np.ndarray, one: int, other: int) -> bool:
    """Of equal scores, the later is worse."""
    return heap[one] < heap[other] or (heap[one] == heap[other] and found[one] > found[other])


@njit(cache=True, nogil=True)
def _swap(heap: np.ndarray, found: np.ndarray, one: int, other: int) -> None:
    heap[one], heap[other] = heap[other], heap[one]
    found[one], found[other] = found[other], found[one]


@njit(cache=True, nogil=True)
def _up(heap: np.ndarray, found: np.ndarray, place: int) -> None:
    while place and _worse(heap, found, place, (place - 1) // 2):
        _swap(heap, found, place, (place - 1) // 2)
        place = (place - 1) // 2


@njit(cache=True, nogil=True)
def _down(heap: np.ndarray, found: np.ndarray, size: int) -> None:
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _worse(heap, found, below + 1, below):
            below += 1
        if not _worse(heap, found, below, place):
            return
        _swap(heap, found, place, below)
        place = below
