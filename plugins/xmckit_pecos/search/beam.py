"""Beam search down a tree of linear models: the scores that PECOS's own predictor gives, digit for digit, in less time.

Pairs of a row and a node that it reached are taken node by node. The features that the models below the node have are
then set in a table of bits once, small enough to stay near, where each entry of each of its rows finds them in
one step; PECOS searches a sorted list for every row. A post-processor never falls as the margin rises, so that a margin
below one that was not good enough need not be turned into a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from xmckit_pecos.search.margins import by_feature, packed, row_margins
from xmckit_pecos.search.ranking import (
    HINGE,
    LOG_HINGE,
    LOG_SIGMOID,
    NOOP,
    SIGMOID,
    best_labels,
    best_nodes,
)

SCORES_AT_ONCE = 1 << 24  # of candidates, in a block of rows
ROWS_AT_ONCE = 1 << 14
ROW = 16  # entries that a row is as much work as, besides those that it has
FEW = 50  # features of a node are listed where they are fewer than so many times those that are looked up
SHARE = 4  # a feature's weights are stored for all children of a node where one child in so many has one
MANY = 1 << 25  # weights of a level; of more, one child in two has to have one, with which nothing takes more memory


@dataclass(frozen=True)
class Level:
    """The models of one level, by the node above them.

    Below node n are `children[starts[n]:starts[n + 1]]`; of the features that their models have, the sorted
    `features[feature_starts[n]:feature_starts[n + 1]]`, feature i is in `entries[entry_starts[i]:entry_starts[i + 1]]`.
    Where there are as many of these as children, they are the bits of the children's weights; where not, pairs of a
    child, counted from the node's first, and the bits of its weight.
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

    @classmethod
    def of(cls, W: csc_matrix, C: csc_matrix, bias: float) -> Level:
        """W: features × nodes, its last row the weights of the bias if that is above 0; C: nodes × nodes above."""
        inputs = int(W.shape[0]) - (1 if bias > 0 else 0)
        starts, children = C.indptr.astype(np.int64), C.indices.astype(np.int32)
        constants, feature_starts, features, entry_starts, places, weights = by_feature(
            W.indptr.astype(np.int64), W.indices, W.data, starts, children, np.float32(max(bias, 0.0)), inputs
        )
        share = SHARE if len(weights) <= MANY else 2
        entry_starts, entries = packed(starts, feature_starts, entry_starts, places, weights, share)
        return cls(
            starts,
            children,
            constants,
            feature_starts,
            features,
            entry_starts,
            entries,
            nodes=int(W.shape[1]),
            inputs=inputs,
        )

    @property
    def widest(self) -> int:
        return int(np.diff(self.starts).max(initial=0))

    @property
    def scoring(self) -> Any:
        """What `row_margins` takes."""
        return self.starts, self.bias, self.feature_starts, self.features, self.entry_starts, self.entries


@dataclass(frozen=True)
class Copies:
    """Which nodes of the last level are the same label: `copies[starts[n]:starts[n + 1]]` are all label n.

    A node is the child number `place_of` of the leaf `leaf_of`; −1 for one in no leaf.
    """

    label_of: np.ndarray
    starts: np.ndarray
    copies: np.ndarray
    leaf_of: np.ndarray
    place_of: np.ndarray

    @classmethod
    def of(cls, label_of: np.ndarray, labels: int, last: Level) -> Copies:
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

    @property
    def ranking(self) -> Any:
        """What `best_labels` takes."""
        return self.label_of, self.starts, self.copies, self.leaf_of, self.place_of


def search(
    levels: Sequence[Level],
    X: csr_matrix,
    k: int,
    beam: int,
    threads: int,
    post_processor: str,
    copies: Copies | None = None,
    mean: bool = True,
) -> csr_matrix:
    """Rows × nodes of the last level: up to `k` scores a row, best first; of equal ones the first in the tree.

    With `copies`, rows × labels: a label has the mean score of its copies in the leaves that the row reaches, or that
    of the best of them; of equal ones the lower label comes first.
    """
    rows, (kind, exponent) = X.shape[0], _kind(post_processor)
    kept = [min(beam, level.nodes) for level in levels[:-1]] + [k]
    indptr, indices, data = X.indptr.astype(np.int64), np.ascontiguousarray(X.indices), np.ascontiguousarray(X.data)
    blocks = _blocks(levels, indptr, beam, threads)
    start_score = np.float32(kind not in (LOG_HINGE, LOG_SIGMOID))

    def down(block: slice) -> Any:
        """(ends of rows, nodes, scores) of one block of rows."""
        row_ends = indptr[block.start : block.stop + 1]
        count = len(row_ends) - 1
        ends, nodes, scores = np.arange(count + 1), np.zeros(count, np.int32), np.full(count, start_score)
        bits = np.zeros((levels[0].inputs >> 6) + 1, np.uint64)
        for level, most in zip(levels, kept, strict=True):
            first, margins = row_margins(row_ends, indices, data, ends, nodes, bits, FEW, *level.scoring)
            if copies is not None and level is levels[-1]:
                return best_labels(
                    ends, nodes, scores, first, margins, level.starts, level.children, most, kind, exponent,
                    mean, *copies.ranking,
                )  # fmt: skip
            ends, nodes, scores = best_nodes(
                ends, nodes, scores, first, margins, level.starts, level.children, most, kind, exponent
            )
        return ends, nodes, scores

    if threads == 1 or len(blocks) == 1:
        parts = [down(block) for block in blocks]
    else:
        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(down, blocks))
    ends, nodes, scores = zip(*parts, strict=True)
    counts = np.concatenate([np.diff(some) for some in ends])
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = levels[-1].nodes if copies is None else copies.labels
    return csr_matrix((np.concatenate(scores), np.concatenate(nodes), starts), shape=(rows, columns))


def _blocks(levels: Sequence[Level], indptr: np.ndarray, beam: int, threads: int) -> list[slice]:
    """Rows that are taken together: as many as share what is made for a node without their scores taking much memory,
    and about as much work for each thread.
    """
    rows = len(indptr) - 1
    followed = [1, *(min(beam, level.nodes) for level in levels[:-1])]
    widest = max(nodes * level.widest for nodes, level in zip(followed, levels, strict=True))
    most = max(1, min(ROWS_AT_ONCE, SCORES_AT_ONCE // max(widest, 1)))
    count = threads * max(1, -(-rows // (most * threads)))
    work = indptr + ROW * np.arange(rows + 1)
    cuts = np.searchsorted(work, np.linspace(work[0], work[-1], count + 1))
    starts = [start for low, high in pairwise(cuts.tolist()) for start in range(low, high, most)] or [0]
    return [slice(start, stop) for start, stop in pairwise([*starts, rows])]


def _kind(post_processor: str) -> tuple[int, int]:
    """(which, exponent)."""
    named = {"sigmoid": SIGMOID, "log-sigmoid": LOG_SIGMOID, "noop": NOOP}
    if post_processor in named:
        return named[post_processor], 0
    kind, exponent = post_processor.removesuffix("-hinge").rsplit("l", 1)
    return LOG_HINGE if kind else HINGE, int(exponent)
