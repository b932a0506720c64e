"""Bring rows and targets into the form that the linear models of a tree take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import DataError, Matrix, Split, UsageError
from xmckit.data.model import as_csr


@dataclass(frozen=True)
class TrainingRows:
    """Rows to train on: features, labels as ones, and weights with the pattern of Y that multiply the cost of pairs."""

    X: Matrix
    Y: csr_matrix
    weights: csr_matrix | None = None

    @classmethod
    def from_split(cls, train: Split) -> TrainingRows:
        rows = cls(features(train.matrix), *targets(train))
        if not rows.Y.nnz:
            raise DataError("no training row has a label, so there is nothing to learn from")
        return rows

    @property
    def label_counts(self) -> np.ndarray:
        """The number of rows of each label."""
        return np.bincount(self.Y.indices, minlength=self.Y.shape[1])


def features(X: Matrix) -> Matrix:
    """Return X as PECOS takes it: a canonical float32 csr_matrix or a contiguous float32 array, with finite numbers."""
    if issparse(X):
        ready: Any = as_csr(X)
        ready.sort_indices()
        values = ready.data
    else:
        ready = values = np.ascontiguousarray(X, dtype=np.float32)
        if ready.ndim != 2:
            raise UsageError(f"expected a matrix of features, not an array with {ready.ndim} dimensions")
    if not ready.shape[1]:
        raise DataError("the rows have no features at all, so there is nothing to learn from")
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(np.asarray(ready.sum(axis=1)).ravel()))[0])
        raise DataError("a feature is not a finite number", row=row)
    return ready


def targets(train: Split) -> tuple[csr_matrix, csr_matrix | None]:
    """Return (Y of ones, weights with its pattern or None), without pairs that are stored as 0 in Y."""
    if train.weights is None:
        Y = as_csr(train.Y)
        return csr_matrix((np.ones(Y.nnz, dtype=np.float32), Y.indices, Y.indptr), shape=Y.shape), None
    train.check("train")
    true = train.Y.data != 0
    starts = np.concatenate([[0], np.cumsum(true)])[train.Y.indptr]
    Y, weights = (
        csr_matrix((data[true].astype(np.float32), train.Y.indices[true], starts), shape=train.Y.shape).sorted_indices()
        for data in (np.ones(train.Y.nnz), train.weights.data)
    )
    return Y, weights


def useful_threads(threads: int, X: Matrix, per_thread: int = 1 << 16) -> int:
    """Limit the threads to those with enough work: waking one for a small matrix takes longer than the work itself."""
    entries = X.size if isinstance(X, np.ndarray) else X.nnz
    return max(1, min(threads, entries // per_thread))
