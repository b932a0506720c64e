"""The arrays that beam search works on: the models of a level by feature, and the copies of each label."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import csc_matrix

SHARE = 4  # a feature stores the weights of all children of a node if one child in this many has one
MANY = 1 << 25  # weights of a level above which it takes one child in two, so that this never needs more memory


class SearchLevel(NamedTuple):
    """The models of one level, by the node above them. Compiled kernels take it as it is.

    Below node n are `children[starts[n]:starts[n + 1]]`. The features of their models are the sorted
    `features[feature_starts[n]:feature_starts[n + 1]]`. Feature i has `entries[entry_starts[i]:entry_starts[i + 1]]`.
    If these are as many as the children of n, they are the bits of the children's weights. Otherwise they are pairs of
    a child, counted from the node's first, and the bits of its weight.
    """

    starts: np.ndarray
    children: np.ndarray
    bias: np.ndarray
    feature_starts: np.ndarray
    features: np.ndarray
    entry_starts: np.ndarray
    entries: np.ndarray
    nodes: int
    inputs: int
    widest: int  # the largest number of children of a node

    @classmethod
    def from_matrices(cls, W: csc_matrix, C: csc_matrix, bias: float) -> SearchLevel:
        """Convert W, features × nodes, with a last row of weights for a bias above 0, and C, nodes × nodes above."""
        inputs = int(W.shape[0]) - (1 if bias > 0 else 0)
        starts, children = C.indptr.astype(np.int64), C.indices.astype(np.int32)
        constants, feature_starts, features, entry_starts, places, weights = _group_by_feature(
            W.indptr.astype(np.int64), W.indices, W.data, starts, children, np.float32(max(bias, 0.0)), inputs
        )
        share = SHARE if len(weights) <= MANY else 2
        entry_starts, entries = _pack(starts, feature_starts, entry_starts, places, weights, share)
        nodes, widest = int(W.shape[1]), int(np.diff(starts).max(initial=0))
        return cls(starts, children, constants, feature_starts, features, entry_starts, entries, nodes, inputs, widest)


class LabelCopies(NamedTuple):
    """The nodes of the last level that are the same label: `copies[starts[n]:starts[n + 1]]` are all label n.

    A node is child number `place_of` of leaf `leaf_of`, which is −1 for a node in no leaf.
    """

    label_of: np.ndarray
    starts: np.ndarray
    copies: np.ndarray
    leaf_of: np.ndarray
    place_of: np.ndarray

    @classmethod
    def from_tree(cls, label_of: np.ndarray, labels: int, last: SearchLevel) -> LabelCopies:
        counts = np.diff(last.starts)
        leaf_of, place_of = np.full((2, last.nodes), -1, np.int32)
        leaf_of[last.children] = np.repeat(np.arange(len(counts)), counts)
        place_of[last.children] = np.arange(len(last.children)) - np.repeat(last.starts[:-1], counts)
        starts = np.concatenate([[0], np.cumsum(np.bincount(label_of, minlength=labels))])
        copies = np.argsort(label_of, kind="stable").astype(np.int32)
        return cls(label_of.astype(np.int32), starts, copies, leaf_of, place_of)

    @property
    def labels(self) -> int:
        return len(self.starts) - 1


class Frontier(NamedTuple):
    """The nodes that rows have reached: row r has `nodes[ends[r]:ends[r + 1]]`, best first, with their scores."""

    ends: np.ndarray
    nodes: np.ndarray
    scores: np.ndarray


@njit(cache=True, nogil=True)
def _group_by_feature(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    bias: Any,
    inputs: int,
) -> Any:
    """Return `SearchLevel.bias` to `features`, and the arguments of `_pack`: the columns of each node by feature."""
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
def _pack(
    starts: np.ndarray,
    feature_starts: np.ndarray,
    entry_starts: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
    share: int,
) -> Any:
    """Return `entry_starts` and `entries`. A feature of one child in `share` stores weights of all children."""
    packed_starts = np.zeros(len(entry_starts), np.int64)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            count = entry_starts[i + 1] - entry_starts[i]
            packed_starts[i + 1] = packed_starts[i] + (width if count * share >= width else 2 * count)
    entries = np.zeros(packed_starts[-1], np.uint32)
    numbers = entries.view(np.float32)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            first, every = packed_starts[i], packed_starts[i + 1] - packed_starts[i] == width
            for nth in range(entry_starts[i + 1] - entry_starts[i]):
                place, weight = places[entry_starts[i] + nth], weights[entry_starts[i] + nth]
                if every:
                    numbers[first + place] += weight
                else:
                    entries[first + 2 * nth], numbers[first + 2 * nth + 1] = place, weight
    return packed_starts, entries
