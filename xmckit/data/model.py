"""The data model: splits of rows with features and labels, groups of rows, and data sets. Public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.errors import DataError
from xmckit.sparse.csr import canonical

Matrix: TypeAlias = "csr_matrix | np.ndarray"
Features: TypeAlias = "csr_matrix | np.ndarray | Mapping[str, csr_matrix | np.ndarray]"


# The name of a matrix that is not one of several named blocks.
ONLY_BLOCK = "X"


def rows_of(X: Features) -> int:
    """Return the number of rows of a matrix, or of blocks side by side."""
    if isinstance(X, Mapping):
        return int(next(iter(X.values())).shape[0])
    return int(X.shape[0])


def take_rows(X: Features, rows: np.ndarray) -> Features:
    """Return some rows of a matrix, or of each block."""
    return {name: block[rows] for name, block in X.items()} if isinstance(X, Mapping) else X[rows]


def as_csr(matrix: Any, dtype: type = np.float32, *, what: str = "the matrix") -> csr_matrix:
    """Return a `csr_matrix` (the type that PECOS takes) with sorted indices, without duplicates and stored zeros.

    The input does not change: a matrix in this form is shared, any other is copied. DataError, which calls the matrix
    `what`, if it is not sound.
    """
    if issparse(matrix):
        store.check_matrix(matrix, what)
    return canonical(csr_matrix(matrix, dtype=dtype))


def stored_values(matrix: Matrix) -> np.ndarray:
    """Return the values of a dense array, or the stored values of a sparse matrix."""
    return matrix if isinstance(matrix, np.ndarray) else matrix.data


def check_entries(
    matrix: Matrix, sound: np.ndarray, message: str, *, path: Path | None = None, first_row: int = 0
) -> None:
    """Raise DataError unless all stored values are `sound`, with the row and the value of the first that is not."""
    if sound.all():
        return
    entry = int(np.argmin(sound))
    row = entry // matrix.shape[1] if isinstance(matrix, np.ndarray) else int(matrix.tocoo().row[entry])
    raise DataError(f"{message}, found {stored_values(matrix).flat[entry]:g}", path=path, row=first_row + row)


@dataclass(frozen=True)
class Groups:
    """Rows that were labelled together: `membership` is rows × groups, `labels` is groups × labels.

    A value above 1 in `labels` is the number of times that the label was given inside the group.
    """

    membership: csr_matrix
    labels: csr_matrix
    names: Sequence[str] | None = None

    def check(self, rows: int, labels: int) -> None:
        """Raise DataError unless the matrices are sound and fit a split with these numbers of rows and labels."""
        for name, matrix in {"membership": self.membership, "labels": self.labels}.items():
            store.check_matrix(matrix, f"the groups' {name}")
        self.check_sizes(rows, labels)

    def check_sizes(self, rows: int, labels: int) -> None:
        """Raise DataError unless the groups fit a split with these numbers of rows and labels."""
        groups = self.membership.shape[1]
        if self.membership.shape[0] != rows or self.labels.shape != (groups, labels):
            raise DataError(
                f"groups do not fit the data: membership is {_size(self.membership)} and labels are "
                f"{_size(self.labels)}, expected {rows} × m and m × {labels}"
            )
        if self.names is not None and len(self.names) != groups:
            raise DataError(f"groups do not fit the data: there are {groups} groups but {len(self.names)} names")


@dataclass(frozen=True)
class Split:
    """Rows with features and labels. Optional parts have one entry per row, and `take` keeps them aligned.

    `X` is a CSR matrix, a dense array or named blocks of these side by side; None if there are only `texts`. `weights`
    has the pattern of Y. `filter` marks (row, label) pairs that are left out of scoring. `names` are row ids.
    """

    X: Features | None
    Y: csr_matrix
    texts: Sequence[str] | None = None
    weights: csr_matrix | None = None
    groups: Groups | None = None
    filter: csr_matrix | None = None
    names: Sequence[str] | None = None

    @property
    def rows(self) -> int:
        return int(self.Y.shape[0])

    @property
    def labels(self) -> int:
        return int(self.Y.shape[1])

    @property
    def blocks(self) -> Mapping[str, Matrix]:
        """X as named blocks; a single matrix is the block `X`."""
        if self.X is None:
            return {}
        return self.X if isinstance(self.X, Mapping) else {ONLY_BLOCK: self.X}

    @property
    def matrix(self) -> Matrix:
        """X as the single matrix that the features stage makes."""
        if self.X is None or isinstance(self.X, Mapping):
            raise DataError("these rows have no single feature matrix: a featurizer has to make one first")
        return self.X

    def take(self, rows: np.ndarray) -> Split:
        """Return the split with these rows, in this order; groups keep their labels and lose the other rows."""
        return Split(
            X=None if self.X is None else take_rows(self.X, rows),
            Y=self.Y[rows],
            texts=None if self.texts is None else [self.texts[row] for row in rows],
            weights=None if self.weights is None else self.weights[rows],
            groups=None if self.groups is None else replace(self.groups, membership=self.groups.membership[rows]),
            filter=None if self.filter is None else self.filter[rows],
            names=None if self.names is None else [self.names[row] for row in rows],
        )

    def check(self, what: str = "split") -> None:
        """Raise DataError unless all parts are sound and finite and fit together."""
        parts: dict[str, Any] = {**self.blocks, "labels": self.Y, "weights": self.weights, "filter": self.filter}
        for name, part in parts.items():
            if issparse(part):
                store.check_matrix(part, f"{name} of {what}")
        if self.groups is not None:
            self.groups.check(self.rows, self.labels)
        if self.X is None and self.texts is None:
            raise DataError(f"{what} has neither features nor texts")
        if self.X is not None and not self.blocks:
            raise DataError(f"{what} has an empty set of feature blocks")
        self.check_sizes(what)
        for name, block in self.blocks.items():
            finite = np.isfinite(stored_values(block))
            check_entries(block, finite, f"{what} has a value in {name} that is not a finite number")
        if self.weights is not None:
            sound = np.isfinite(self.weights.data) & (self.weights.data >= 0)
            check_entries(self.weights, sound, f"{what} has a weight that is not a finite number of at least 0")

    def check_sizes(self, what: str = "split") -> None:
        """Raise DataError unless all parts have the same rows and labels, and matching patterns."""
        for name, block in self.blocks.items():
            if block.ndim != 2 or block.shape[0] != self.rows:
                raise DataError(f"{what} has {self.rows} rows of labels but {block.shape[0]} rows of features {name}")
        for name, column in {"texts": self.texts, "names": self.names}.items():
            if column is not None and len(column) != self.rows:
                raise DataError(f"{what} has {self.rows} rows of labels but {len(column)} {name}")
        for name, other in {"weights": self.weights, "filter": self.filter}.items():
            if other is not None and other.shape != self.Y.shape:
                raise DataError(f"{what} has labels of size {_size(self.Y)} but {name} of size {_size(other)}")
        if self.weights is not None and not (
            np.array_equal(self.weights.indptr, self.Y.indptr) and np.array_equal(self.weights.indices, self.Y.indices)
        ):
            raise DataError(f"{what} has weights with another pattern than its labels")
        if self.groups is not None:
            self.groups.check_sizes(self.rows, self.labels)


@dataclass(frozen=True)
class Dataset:
    """Train and test rows over the same labels, with facts about the labels.

    `propensity` is the family or the pair (A, B) for propensity-scored metrics, if known. `info` holds what a report
    says about the data: source, licence, citation, counts.
    """

    name: str
    train: Split
    test: Split
    label_names: Sequence[str] | None = None
    label_features: Matrix | None = None
    propensity: str | tuple[float, float] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> int:
        return self.train.labels

    def label(self, index: int) -> str:
        """Return the name of a label, or its number if labels have no names."""
        return self.label_names[index] if self.label_names is not None else str(index)

    def check(self) -> None:
        """Raise DataError unless the parts are sound and fit together."""
        self.train.check(f"{self.name}: train")
        self.test.check(f"{self.name}: test")
        self.check_sizes()

    def check_sizes(self) -> None:
        """Raise DataError unless train, test, label names and label features have the same columns."""
        if self.train.labels != self.test.labels:
            raise DataError(f"{self.name}: train has {self.train.labels} labels but test has {self.test.labels}")
        if _widths(self.train.X) != _widths(self.test.X):
            raise DataError(
                f"{self.name}: train has features {_widths(self.train.X)} but test has {_widths(self.test.X)}"
            )
        if self.label_names is not None and len(self.label_names) != self.labels:
            raise DataError(f"{self.name}: {self.labels} labels but {len(self.label_names)} label names")
        if self.label_features is not None and self.label_features.shape[0] != self.labels:
            raise DataError(f"{self.name}: {self.labels} labels but {self.label_features.shape[0]} label feature rows")


def labels_of_groups(membership: csr_matrix, Y: csr_matrix) -> csr_matrix:
    """Return groups × labels: how many rows of a group have each label."""
    labels = csr_matrix(membership.T @ Y)
    labels.sort_indices()
    return labels


def _size(matrix: Any) -> str:
    return " × ".join(str(n) for n in matrix.shape)


def _widths(X: Features | None) -> dict[str, int] | int | None:
    if isinstance(X, Mapping):
        return {name: int(block.shape[1]) for name, block in X.items()}
    return None if X is None else int(X.shape[1])


def carve_validation(split: Split, share: float, rng: np.random.Generator) -> tuple[Split, Split | None]:
    """Split off a share of the rows for early stopping, thresholds and calibration. Return (the rest, the share).

    Groups stay whole, so that the labels of a group are not seen on both sides. A row in several groups goes to
    validation only if all its groups do; a group that shares rows with others may then have rows on both sides. The
    order of the rows stays.
    """
    wanted = round(split.rows * share)
    if wanted == 0 or split.rows < 2:
        return split, None
    held = np.zeros(split.rows, dtype=bool)
    if split.groups is None:
        held[rng.permutation(split.rows)[:wanted]] = True
    else:
        membership = split.groups.membership
        order = rng.permutation(membership.shape[1])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        # A row is held once all its groups are: at the largest rank among them. Rows in no group are never held.
        last = np.full(split.rows, len(order), dtype=np.int64)
        in_group = np.flatnonzero(np.diff(membership.indptr))
        if len(in_group):
            last[in_group] = np.maximum.reduceat(rank[membership.indices], membership.indptr[in_group])
        within = np.sort(last[in_group])
        cut = within[min(wanted, len(within)) - 1] if len(within) else -1
        held = last <= cut
        if held.all() or not held.any():
            return split, None
    return split.take(np.flatnonzero(~held)), split.take(np.flatnonzero(held))
