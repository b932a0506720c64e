"""Make groups from labelled rows, for experiments: at random, of similar rows, or a mixture of the two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from numba import njit
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import Configured, Context, Groups, Matrix, Params, Split, UsageError
from xmckit.data.model import as_csr
from xmckit_eagle.assign.normalise import squared_lengths
from xmckit_eagle.assign.rows import add_row, clear_rows, compiled_rows, dot_row

PASSES = 8  # at most, of 2-means for one split


class AggregateParams(Params):
    method: Literal["random", "clusters", "given"] = Field(
        "random",
        description='"random": groups of `size` rows; "clusters": 2**depth groups of similar rows, by repeated '
        'splitting into halves; "given": the groups that come with the data.',
    )
    size: int = Field(4, ge=1, description="Rows in a random group; the last group may have fewer.")
    depth: int = Field(8, ge=0, le=30, description="Number of times that clusters are split, for 2**depth groups.")
    noise: float = Field(0.0, ge=0, le=1, description="Share of the rows, drawn at random, that swap their groups.")
    merge: Literal["list", "set"] = Field(
        "list", description='"list": a group has a label as often as its rows; "set": once.'
    )


class Aggregate(Configured):
    """Give every row all labels of its groups, as in section 7.2 of Shen et al. (2020); `eagle` undoes this.

    Rows in no group keep their labels.
    """

    Params: ClassVar[type[Params]] = AggregateParams

    def apply(self, train: Split, *, context: Context) -> Split:
        membership = self.membership(train, context)
        groups = Groups(membership, group_labels(membership, train.Y, self.params.merge))
        return replace(train, Y=labels_of_groups(groups, train.Y), weights=None, groups=groups)

    def membership(self, train: Split, context: Context) -> csr_matrix:
        rng = context.rng("aggregate")
        if self.params.method == "given":
            if train.groups is None:
                raise UsageError('these rows have no groups: method must be "random" or "clusters"')
            if self.params.noise:
                raise UsageError('noise has no meaning with method = "given": leave it out')
            return as_csr(train.groups.membership)
        if self.params.method == "random":
            group_of = random_groups(train.rows, self.params.size, rng)
        else:
            group_of = cluster_groups(train.matrix, self.params.depth, seed=context.seed_for("aggregate"))
        return membership_matrix(swap_groups(group_of, self.params.noise, rng))


def random_groups(rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the group of each row; groups have `size` rows, the last one may have fewer."""
    group_of = np.empty(rows, dtype=np.int64)
    group_of[rng.permutation(rows)] = np.arange(rows) // size
    return group_of


def cluster_groups(X: Matrix, depth: int, *, seed: int) -> np.ndarray:
    """Return the group of each row: 2**depth groups by repeated balanced 2-means, with sizes that differ by at most 1.

    A split starts from two rows and alternates between the means c₁ and c₂ of the halves and the halves themselves: the
    rows in the order of ⟨x, c₁ − c₂⟩, cut in the middle. Rows count with unit length.
    """
    rows = X.shape[0]
    if 1 << depth > rows:
        raise UsageError(f"depth {depth} makes {1 << depth:,} groups, but there are only {rows:,} rows")
    lengths = np.sqrt(squared_lengths(X))
    factors = np.divide(1.0, lengths, out=np.zeros(rows), where=lengths > 0)
    features = compiled_rows(X)
    order = np.arange(rows)
    bounds = np.array([0, rows])
    axis, scores = np.zeros(X.shape[1]), np.empty(rows)
    for level in range(depth):
        draws = np.random.default_rng([seed, level]).random((len(bounds) - 1, 2))
        middle = (bounds[:-1] + bounds[1:]) // 2
        _halve(features, factors, order, bounds, middle, draws, axis, scores)
        bounds = np.sort(np.concatenate([bounds, middle]))
    group_of = np.empty(rows, dtype=np.int64)
    group_of[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return group_of


def swap_groups(group_of: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Let a share `noise` of the rows swap groups at random: 0 changes nothing, 1 keeps only the groups' sizes."""
    group_of = group_of.copy()
    drawn = rng.permutation(len(group_of))[: round(noise * len(group_of))]
    group_of[drawn] = group_of[rng.permutation(drawn)]
    return group_of


def membership_matrix(group_of: np.ndarray) -> csr_matrix:
    """Return rows × groups with a 1 for the group of each row."""
    rows = len(group_of)
    ones = np.ones(rows, dtype=np.float32)
    groups = int(group_of.max(initial=-1)) + 1
    return csr_matrix((ones, group_of.astype(np.int32), np.arange(rows + 1)), shape=(rows, groups))


def group_labels(membership: csr_matrix, Y: csr_matrix, merge: str = "list") -> csr_matrix:
    """Return groups × labels: the number of the group's rows with the label, or with "set" 1 if there are some."""
    labels = as_csr(membership.T.tocsr() @ _ones(Y))
    return labels if merge == "list" else _ones(labels)


def labels_of_groups(groups: Groups, Y: csr_matrix) -> csr_matrix:
    """Return rows × labels: all labels of the row's groups; rows in no group keep those in Y."""
    own = np.diff(groups.membership.indptr) == 0
    kept = _ones(Y).multiply(own[:, None]).tocsr()
    return _ones(as_csr(groups.membership @ groups.labels + kept))


def _ones(matrix: csr_matrix) -> csr_matrix:
    result = as_csr(matrix)
    return csr_matrix((np.ones(result.nnz, dtype=np.float32), result.indices, result.indptr), shape=result.shape)


@njit(cache=True, nogil=True)
def _halve(
    X: Any, factors: np.ndarray, order: np.ndarray, bounds: np.ndarray, middle: np.ndarray, draws: np.ndarray,
    axis: np.ndarray, scores: np.ndarray,
) -> None:  # fmt: skip
    """Sort the rows of `order` between any two `bounds` so that their two halves are the two clusters."""
    for node in range(len(middle)):
        rows = order[bounds[node] : bounds[node + 1]].copy()
        half = middle[node] - bounds[node]
        size = len(rows)
        if size < 2:
            continue
        one = int(draws[node, 0] * size)
        other = (one + 1 + int(draws[node, 1] * (size - 1))) % size
        add_row(X, rows[one], factors[rows[one]], axis)
        add_row(X, rows[other], -factors[rows[other]], axis)
        before = np.zeros(size, dtype=np.bool_)
        for turn in range(PASSES):
            for at in range(size):
                scores[at] = -factors[rows[at]] * dot_row(X, rows[at], axis)
            clear_rows(X, rows, axis)
            ranked = np.argsort(scores[:size], kind="mergesort")
            first = np.zeros(size, dtype=np.bool_)
            first[ranked[:half]] = True
            if turn and np.array_equal(first, before):
                break
            before = first
            for at in range(size):
                weight = factors[rows[at]] / half if first[at] else -factors[rows[at]] / (size - half)
                add_row(X, rows[at], weight, axis)
        clear_rows(X, rows, axis)
        left, right = bounds[node], middle[node]
        for at in range(size):
            if before[at]:
                order[left] = rows[at]
                left += 1
            else:
                order[right] = rows[at]
                right += 1
