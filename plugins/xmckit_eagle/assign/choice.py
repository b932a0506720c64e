"""Choose the rows that the labels of groups belong to: `assign` runs EAGLE over all labels, on several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix, issparse

from xmckit import DataError, Matrix, store
from xmckit.data.model import as_csr, check_entries, stored_values
from xmckit_eagle.assign.algorithm1 import NOTHING, LabelGroups, Members, Rules, assign_labels, make_scratch
from xmckit_eagle.assign.normalise import squared_lengths
from xmckit_eagle.assign.rows import compiled_rows, group_products, products_with_sum
from xmckit_eagle.assign.spread import map_labels

UNLIMITED = int(np.iinfo(np.int64).max)
_MASK = (1 << 64) - 1

Capacity = int | Literal["count", "threshold"]


@dataclass(frozen=True)
class Choice:
    """One entry per (group, label, row that gets the label), by label, then group, then rank.

    `scores` are cosines between row and embedding at the last choice (products if rows are not of unit length).
    `margins` are the distances of the scores to the best row of the group that did not get the label; inf if all did.
    """

    groups: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    scores: np.ndarray
    margins: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)


def assign(
    X: Matrix,
    membership: csr_matrix,
    labels: csr_matrix,
    *,
    iterations: int = 20,
    step: float = 0.1,
    update: Literal["sum", "mean"] = "sum",
    background: bool = False,
    leave_one_out: bool = False,
    capacity: Capacity = 1,
    threshold: float | None = None,
    counts: bool = False,
    seed: int = 0,
    workers: int = 1,
    advance: Callable[[float], None] | None = None,
) -> Choice:
    """Run Algorithm 2 of Shen et al. (2020). `membership` is rows × groups, `labels` is groups × labels.

    - `iterations` T and `step` λ of Algorithm 1; `update` "mean" divides λ by the number of the label's groups.
    - `background`: ignore the part of a row along the sum of all rows.
    - `leave_one_out`: ignore a group's own part of an embedding in the scores of its rows.
    - `capacity`: rows of a group that may get one label: a number, "count" (the number in `labels`) or "threshold"
      (any number). With a `threshold`, rows after the first need that share of the best row's score.
    - `counts`: a group weighs as much as its number in `labels`, instead of 1.
    - `seed`: draws the row that a label starts from if the sum of its rows is zero.
    - `advance` gets the share of the work that was done, part by part.

    X is not normalised here. Groups without rows and rows of zeros take no part. The result does not depend on
    `workers`.
    """
    X, by_group, by_label = _check_inputs(X, membership, labels)
    features = compiled_rows(X)
    members, mu_squared = _members(X, features, by_group, background, leave_one_out)
    rules = Rules(
        iterations=int(iterations),
        step=float(step),
        mean=update == "mean",
        weighted=bool(counts),
        background=mu_squared > 0.0,
        leave_one_out=bool(leave_one_out),
        limit=_limit(capacity),
        threshold=-np.inf if threshold is None else float(threshold),
        mu_squared=mu_squared,
    )
    label_groups = LabelGroups(
        start=by_label.indptr.astype(np.int64),
        groups=by_label.indices.astype(np.int32, copy=False),
        counts=by_label.data,
        lots=_lots(seed, by_label.shape[1]),
    )
    return _assign_all(X, features, members, label_groups, rules, workers, advance)


def _members(
    X: Matrix, features: Any, by_group: csc_matrix, background: bool, leave_one_out: bool
) -> tuple[Members, float]:
    """Return the rows of each group, and ⟨μ, μ⟩ of the sum of all rows: 0 if it is negligible or not wanted."""
    dense, mu_squared = np.zeros(X.shape[1]), 0.0
    lengths = np.sqrt(squared_lengths(X))
    start, group_rows = _without_zero_rows(by_group, lengths)
    along = np.empty(X.shape[0] if background else 0)
    if background:
        mu_squared = float(products_with_sum(features, group_rows, dense, along))
        if mu_squared <= NOTHING * lengths[group_rows].sum() ** 2:
            mu_squared = 0.0
    own = np.empty(len(group_rows) if leave_one_out else 0)
    if leave_one_out:
        group_products(features, start, group_rows, dense, own)
    return Members(start, group_rows, lengths, along, own), mu_squared


def _assign_all(
    X: Matrix,
    features: Any,
    members: Members,
    labels: LabelGroups,
    rules: Rules,
    workers: int,
    advance: Callable[[float], None] | None,
) -> Choice:
    sizes = np.diff(members.start)[labels.groups]
    slots = int(_sums(sizes, labels.start).max(initial=0))
    most = int(np.diff(labels.start).max(initial=0))
    most_given = rules.limit or np.maximum(np.rint(labels.counts), 1)
    room = np.concatenate([[0], np.cumsum(_sums(np.minimum(sizes, most_given).astype(np.int64), labels.start))])
    local = threading.local()

    def assign_range(begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(local, "scratch"):
            local.scratch = make_scratch(X.shape[1], slots, most, rules)
        size = int(room[end] - room[begin])
        whole, real = np.empty((3, size), dtype=np.int32), np.empty((2, size), dtype=np.float32)
        written = assign_labels(features, members, labels, rules, begin, end, local.scratch, whole, real)
        return (whole, real) if written == size else (whole[:, :written].copy(), real[:, :written].copy())

    parts = map_labels(assign_range, _work(X, members, labels), workers, advance)
    whole = np.concatenate([np.empty((3, 0), dtype=np.int64), *(whole for whole, _ in parts)], axis=1)
    real = np.concatenate([np.empty((2, 0), dtype=np.float32), *(real for _, real in parts)], axis=1)
    return Choice(*whole, *real)


def _work(X: Any, members: Members, labels: LabelGroups) -> np.ndarray:
    """Return the number of stored values in the rows of each label's groups, plus 1."""
    per_row = np.diff(X.indptr) if issparse(X) else np.full(X.shape[0], X.shape[1])
    return _sums(_sums(per_row[members.rows], members.start)[labels.groups], labels.start) + 1


def _limit(capacity: Capacity) -> int:
    if capacity == "count":
        return 0
    return UNLIMITED if capacity == "threshold" else min(int(capacity), UNLIMITED)


def _sums(values: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the sums of `values[start[i] : start[i + 1]]`; slices may be empty."""
    running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return running[start[1:]] - running[start[:-1]]


def _without_zero_rows(members: csc_matrix, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    kept = lengths[members.indices] > 0
    return (
        np.concatenate([[0], np.cumsum(kept)])[members.indptr].astype(np.int64),
        members.indices[kept].astype(np.int32, copy=False),
    )


def _lots(seed: int, labels: int) -> np.ndarray:
    """Draw 64 random bits per label (splitmix64)."""
    z = np.uint64((seed * 0x9E3779B97F4A7C15) & _MASK) + np.arange(1, labels + 1, dtype=np.uint64) * np.uint64(
        0xD1B54A32D192ED03
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(31))


def _check_inputs(X: Matrix, membership: csr_matrix, labels: csr_matrix) -> tuple[Matrix, csc_matrix, csc_matrix]:
    """Return X in float32 without repeated entries, the rows of each group, and the groups of each label."""
    if len(X.shape) != 2:
        raise DataError(f"features must have two dimensions, rows × features, found {len(X.shape)}")
    if membership.shape[0] != X.shape[0]:
        raise DataError(f"the groups are about {membership.shape[0]} rows, but there are {X.shape[0]} rows of features")
    if labels.shape[0] != membership.shape[1]:
        raise DataError(f"rows are in {membership.shape[1]} groups, but there are labels for {labels.shape[0]} groups")
    for what, matrix in {"membership": membership, "labels": labels}.items():
        store.check_matrix(matrix, f"the groups' {what}")
        if not (np.isfinite(matrix.data) & (matrix.data >= 0)).all():
            raise DataError(f"the groups' {what} has a value that is negative or not a number")
    by_group, by_label = (as_csr(matrix).tocsc() for matrix in (membership, labels))
    for matrix in (by_group, by_label):
        matrix.sort_indices()
    return _finite(X), by_group, by_label


def _finite(X: Any) -> Matrix:
    """Return X in float32; raise DataError if a value is not finite or overflows float32."""
    with np.errstate(over="ignore"):
        rows: Any = as_csr(X, what="the feature matrix") if issparse(X) else np.ascontiguousarray(X, dtype=np.float32)
    finite = np.isfinite(stored_values(rows))
    check_entries(rows, finite, "the features have a value that is not a finite number of 32 bits")
    return rows
