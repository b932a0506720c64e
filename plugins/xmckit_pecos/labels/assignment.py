"""Assign labels to the leaves that their rows reach: C* of Liu et al. 2021.

M holds the leaves that each training row reaches, so (YᵀM)[l, k] counts the rows of label l that reach leaf k. Nothing
here takes labels × leaves memory: each thread counts one label at a time and keeps only the label's best leaves. The
result does not depend on the number of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from scipy.sparse import csc_matrix, csr_matrix

from xmckit.context import map_on_threads

BLOCKS_PER_WORKER = 4  # several, because some labels are more work than others


class Reachability(NamedTuple):
    """The leaves that the rows of each label reach: Y by column and M by row. Compiled kernels take it as it is.

    Label l is on `rows[starts[l]:starts[l + 1]]`; row r reaches `row_leaves[row_starts[r]:row_starts[r + 1]]`.
    """

    starts: np.ndarray
    rows: np.ndarray
    row_starts: np.ndarray
    row_leaves: np.ndarray
    leaves: int

    @classmethod
    def from_matrices(cls, Y: csr_matrix, M: csr_matrix) -> Reachability:
        by_label = csc_matrix(Y)
        return cls(
            by_label.indptr.astype(np.int64),
            by_label.indices.astype(np.int32),
            M.indptr.astype(np.int64),
            M.indices.astype(np.int32),
            M.shape[1],
        )

    @property
    def labels(self) -> int:
        return len(self.starts) - 1

    def map_blocks(self, function: Callable[[int, int], Any], workers: int) -> list[Any]:
        """Call `function(first, last)` on threads, for ranges of labels with about as many pairs in each."""
        cuts = np.searchsorted(self.starts, np.linspace(0, self.starts[-1], workers * BLOCKS_PER_WORKER + 1)[1:-1])
        edges = np.unique(np.concatenate([[0], cuts, [self.labels]])).tolist()
        return map_on_threads(lambda block: function(*block), list(itertools.pairwise(edges)), workers=workers)


@dataclass(frozen=True)
class Placement:
    """Copies (label, leaf), sorted by label.

    `bound` is an upper bound of Σ C∘(YᵀM) over all placements within the same limits.
    """

    label_of: np.ndarray
    leaf_of: np.ndarray
    bound: float = np.inf

    def starts(self, labels: int) -> np.ndarray:
        """Return where the copies of each label begin."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.label_of, minlength=labels))])

    @property
    def first_copies(self) -> np.ndarray:
        """A mask of the copies that are the first of their label."""
        first = np.ones(len(self.label_of), dtype=bool)
        first[1:] = self.label_of[1:] != self.label_of[:-1]
        return first

    def add(self, label_of: np.ndarray, leaf_of: np.ndarray) -> Placement:
        """Return a placement with more copies, each behind the copies that its label has already."""
        label_of = np.concatenate([self.label_of, label_of])
        order = np.argsort(label_of, kind="stable")
        return replace(self, label_of=label_of[order], leaf_of=np.concatenate([self.leaf_of, leaf_of])[order])

    def room_left(self, room: np.ndarray) -> np.ndarray:
        return room - np.bincount(self.leaf_of, minlength=len(room))

    def best_first(self, rows: np.ndarray) -> Placement:
        """Sort the copies of each label by `rows`, the rows that reach them, most first."""
        order = np.lexsort((self.leaf_of, -rows, self.label_of))
        return replace(self, label_of=self.label_of[order], leaf_of=self.leaf_of[order])


@dataclass(frozen=True)
class PlacementValue:
    """The two objectives of a placement.

    `covered`: Tr(YᵀBinary(MCᵀ)), the pairs of a row and its label in which the row reaches a leaf of the label.
    `rows`: for each copy, the rows of its label that reach its leaf. Their sum is Σ C∘(YᵀM).
    """

    covered: int
    rows: np.ndarray

    @property
    def paths(self) -> int:
        return int(self.rows.sum())


def evaluate(reach: Reachability, placement: Placement, workers: int) -> PlacementValue:
    """Count the pairs that a placement covers, and the rows that reach each copy."""
    starts = placement.starts(reach.labels)
    parts = reach.map_blocks(partial(_hits, reach, starts, placement.leaf_of), workers)
    return PlacementValue(sum(covered for covered, _ in parts), np.concatenate([hits for _, hits in parts]))


@njit(cache=True, nogil=True)
def _hits(
    reach: Reachability, copy_starts: np.ndarray, copy_leaves: np.ndarray, first: int, last: int
) -> tuple[int, np.ndarray]:
    """Return (covered pairs, rows that reach each copy) of some labels."""
    before = copy_starts[first]
    copy_at = np.full(reach.leaves, -1, np.int64)
    hits = np.zeros(copy_starts[last] - before, np.int64)
    covered = 0
    for label in range(first, last):
        for copy in range(copy_starts[label], copy_starts[label + 1]):
            copy_at[copy_leaves[copy]] = copy - before
        for i in range(reach.starts[label], reach.starts[label + 1]):
            row, hit = reach.rows[i], False
            for path in range(reach.row_starts[row], reach.row_starts[row + 1]):
                copy = copy_at[reach.row_leaves[path]]
                if copy >= 0:
                    hits[copy] += 1
                    hit = True
            covered += hit
        for copy in range(copy_starts[label], copy_starts[label + 1]):
            copy_at[copy_leaves[copy]] = -1
    return covered, hits


class CandidateLeaves(NamedTuple):
    """The largest entries of each row of YᵀM, largest first; equal ones in the order of their leaves.

    `cut[l]` is an upper bound of the entries that were left out of label l's row, 0 if none was.
    """

    starts: np.ndarray
    leaves: np.ndarray
    counts: np.ndarray
    cut: np.ndarray


def candidate_leaves(reach: Reachability, start: np.ndarray, most: int, workers: int) -> CandidateLeaves:
    """Find up to `most` leaves of each label. They include its `start` leaf, if one of its rows gets there."""
    parts = reach.map_blocks(lambda first, last: _candidate_leaves(reach, start, first, last, most), workers)
    sizes, leaves, counts, cut = (np.concatenate(part) for part in zip(*parts, strict=True))
    return CandidateLeaves(np.concatenate([[0], np.cumsum(sizes)]), leaves, counts, cut)


@njit(cache=True, nogil=True)
def _candidate_leaves(
    reach: Reachability, start: np.ndarray, first: int, last: int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (number of candidates, leaves, counts, `cut`) of some labels."""
    bound = 0
    for label in range(first, last):
        paths = 0
        for row in reach.rows[reach.starts[label] : reach.starts[label + 1]]:
            paths += reach.row_starts[row + 1] - reach.row_starts[row]
        bound += min(paths, most)
    sizes, cut = np.zeros(last - first, np.int64), np.zeros(last - first, np.int32)
    leaves, counts = np.empty(bound, np.int32), np.empty(bound, np.int32)
    count_of = np.zeros(reach.leaves, np.int32)
    touched = np.empty(reach.leaves, np.int32)
    keys = np.empty(reach.leaves, np.int64)
    used = 0
    for label in range(first, last):
        size = 0
        for row in reach.rows[reach.starts[label] : reach.starts[label + 1]]:
            for leaf in reach.row_leaves[reach.row_starts[row] : reach.row_starts[row + 1]]:
                if count_of[leaf] == 0:
                    touched[size] = leaf
                    size += 1
                count_of[leaf] += 1
        # in rising order the largest count comes first, and of equal ones the first leaf
        for i in range(size):
            keys[i] = (-np.int64(count_of[touched[i]])) * reach.leaves + touched[i]
        keys[:size].sort()
        kept = min(size, most)
        for i in range(kept):
            leaf = keys[i] % reach.leaves
            leaves[used + i], counts[used + i] = leaf, count_of[leaf]
        if kept < size:
            cut[label - first] = count_of[keys[kept] % reach.leaves]
            own = start[label]
            if count_of[own] and not contains(leaves, used, used + kept, own):
                cut[label - first] = counts[used + kept - 1]
                leaves[used + kept - 1], counts[used + kept - 1] = own, count_of[own]
        sizes[label - first] = kept
        used += kept
        for i in range(size):
            count_of[touched[i]] = 0
    return sizes, leaves[:used].copy(), counts[:used].copy(), cut


@njit(cache=True, nogil=True)
def contains(leaves: np.ndarray, start: int, end: int, leaf: int) -> bool:
    for i in range(start, end):  # noqa: SIM110, numba has no any()
        if leaves[i] == leaf:
            return True
    return False


def best_leaves(candidates: CandidateLeaves, copies: int) -> Placement:
    """Return Proj_λ(YᵀM), equation (10): the first `copies` candidates of each label."""
    sizes = np.minimum(np.diff(candidates.starts), copies)
    skipped = candidates.starts[:-1] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
    entries = np.arange(sizes.sum()) + np.repeat(skipped, sizes)
    label_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Placement(label_of, candidates.leaves[entries], float(candidates.counts[entries].sum()))
