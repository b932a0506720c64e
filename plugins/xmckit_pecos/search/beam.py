"""Beam search down a tree of linear models: the scores of PECOS's own predictor, bit for bit, in less time.

Pairs of a row and a node that it reached are processed node by node. The features of the models below a node are set
once in a table of bits, small enough for the cache, in which each entry of each row of the node is found in one step.
PECOS searches a sorted list for every row. A post-processor never falls as the margin rises, so a margin below one that
was not good enough need not be turned into a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.context import map_on_threads
from xmckit_pecos.search.levels import Frontier, LabelCopies, SearchLevel
from xmckit_pecos.search.margins import row_margins
from xmckit_pecos.search.ranking import HINGE, LOG_HINGE, LOG_SIGMOID, NOOP, SIGMOID, best_children

SCORES_AT_ONCE = 1 << 24  # candidates in a block of rows
ROWS_AT_ONCE = 1 << 14
ROW = 16  # the work of a row besides its entries, in entries
FEW = 50  # a node's features are set in the table if they are fewer than this many times the entries to look up


def search(
    levels: Sequence[SearchLevel],
    X: csr_matrix,
    k: int,
    beam: int,
    threads: int,
    post_processor: str,
    copies: LabelCopies | None = None,
    mean: bool = True,
) -> csr_matrix:
    """Return rows × nodes of the last level: up to `k` scores in each row, best first, equal ones in the tree's order.

    With `copies`, return rows × labels: the score of a label is the mean over its copies in the leaves that the row
    reaches, or the best of them if not `mean`. Of equal labels the lower one comes first.
    """
    rows, (kind, exponent) = X.shape[0], _kind(post_processor)
    kept = [min(beam, level.nodes) for level in levels[:-1]] + [k]
    indptr, indices, data = X.indptr.astype(np.int64), np.ascontiguousarray(X.indices), np.ascontiguousarray(X.data)
    blocks = _blocks(levels, indptr, beam, threads)
    start_score = np.float32(kind not in (LOG_HINGE, LOG_SIGMOID))

    def descend(block: slice) -> Frontier:
        """Return the last `Frontier` of a block of rows, or with `copies` its labels in the same form."""
        row_ends = indptr[block.start : block.stop + 1]
        count = len(row_ends) - 1
        frontier = Frontier(np.arange(count + 1), np.zeros(count, np.int32), np.full(count, start_score))
        bits = np.zeros((levels[0].inputs >> 6) + 1, np.uint64)
        for level, most in zip(levels, kept, strict=True):
            first, margins = row_margins(row_ends, indices, data, frontier, bits, FEW, level)
            merged = copies if level is levels[-1] else None
            frontier = best_children(frontier, first, margins, level, most, kind, exponent, mean, merged)
        return frontier

    ends, nodes, scores = zip(*map_on_threads(descend, blocks, workers=threads), strict=True)
    counts = np.concatenate([np.diff(part) for part in ends])
    starts = np.concatenate([[0], np.cumsum(counts)])
    columns = levels[-1].nodes if copies is None else copies.labels
    return csr_matrix((np.concatenate(scores), np.concatenate(nodes), starts), shape=(rows, columns))


def _blocks(levels: Sequence[SearchLevel], indptr: np.ndarray, beam: int, threads: int) -> list[slice]:
    """Split rows into blocks: large, to share the table of a node, but with scores that fit into memory, and with about
    the same work for each thread.
    """
    rows = len(indptr) - 1
    followed = [1, *(min(beam, level.nodes) for level in levels[:-1])]
    widest = max(nodes * level.widest for nodes, level in zip(followed, levels, strict=True))
    most = max(1, min(ROWS_AT_ONCE, SCORES_AT_ONCE // max(widest, 1)))
    if threads == 1 and rows <= most:
        return [slice(0, rows)]
    count = threads * max(1, -(-rows // (most * threads)))
    work = indptr + ROW * np.arange(rows + 1)
    cuts = np.searchsorted(work, np.linspace(work[0], work[-1], count + 1))
    starts = [start for low, high in pairwise(cuts.tolist()) for start in range(low, high, most)] or [0]
    return [slice(start, stop) for start, stop in pairwise([*starts, rows])]


def _kind(post_processor: str) -> tuple[int, int]:
    """Return (the kind of the post-processor, its exponent)."""
    named = {"sigmoid": SIGMOID, "log-sigmoid": LOG_SIGMOID, "noop": NOOP}
    if post_processor in named:
        return named[post_processor], 0
    kind, exponent = post_processor.removesuffix("-hinge").rsplit("l", 1)
    return LOG_HINGE if kind else HINGE, int(exponent)
