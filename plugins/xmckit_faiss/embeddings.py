"""Label embeddings: the sum of the rows that have a label, projected to a few dense dimensions.

The embedding of a label is Σx / √n over its n training rows: a frequent label is longer, but not n times as long. The
projection consists of the leading right singular vectors of these sums for a sample of labels. No dense labels ×
features matrix is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit import Context, DataError, Matrix, store

FILE = "projection.npz"
ROWS_AT_ONCE = 1 << 14
SAMPLE = 10_000  # labels in the sample that the projection is fitted on
ITERATIONS = 2  # power iterations of the singular value decomposition


@dataclass(frozen=True)
class Projection:
    """A features × d matrix; `columns` is None if rows are used unchanged."""

    columns: np.ndarray | None
    inputs: int

    @property
    def width(self) -> int:
        return self.inputs if self.columns is None else int(self.columns.shape[1])

    def rows(self, X: Matrix) -> np.ndarray:
        """Return the rows of X as dense vectors in the space of the embeddings."""
        if X.shape[1] != self.inputs:
            raise DataError(f"the rows have {X.shape[1]} features, this index was built for {self.inputs}")
        values: Any = X if self.columns is None else X @ self.columns
        dense = values.toarray() if issparse(values) else np.asarray(values)
        return np.ascontiguousarray(dense, dtype=np.float32)

    def save(self, folder: Path) -> None:
        columns = np.empty((0, 0), np.float32) if self.columns is None else self.columns
        store.write_arrays(folder / FILE, {"columns": columns, "inputs": np.array(self.inputs)})

    @classmethod
    def load(cls, folder: Path) -> Projection:
        inputs = store.read_array(folder / FILE, "inputs", "i", (), low=1, high=2**31 - 1)
        columns = store.read_array(folder / FILE, "columns", "f", (None, None))
        if columns.dtype != np.float32 or (columns.size and columns.shape[0] != inputs):
            raise store.damaged(folder / FILE, f"columns is {columns.dtype} {columns.shape}, expected {inputs} rows")
        return cls(columns if columns.size else None, int(inputs))


def fit_projection(X: Matrix, Y: csr_matrix, width: int, context: Context) -> Projection:
    """Fit a projection to `width` dimensions; rows that are not wider stay unchanged."""
    inputs = int(X.shape[1])
    seen = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
    if inputs <= width:
        return Projection(None, inputs)
    chosen = np.sort(context.rng("labels of the projection").permutation(seen)[:SAMPLE])
    sums = _scale_by_counts(csr_matrix(Y[:, chosen], dtype=np.float32)).T @ X
    rank = min(width, len(chosen))
    return Projection(_singular_vectors(sums, rank, context.seed_for("projection") % 2**32), inputs)


def _singular_vectors(matrix: Matrix, rank: int, seed: int) -> np.ndarray:
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    # The last bits of BLAS sums depend on the number of threads.
    with threadpool_limits(1):
        _, _, rows = randomized_svd(matrix, rank, n_iter=ITERATIONS, random_state=seed)
    return np.ascontiguousarray(rows.T, dtype=np.float32)


def label_sums(X: Matrix, Y: csr_matrix, projection: Projection) -> np.ndarray:
    """Return labels × d: Σx / √n of each label, zeros for a label without rows."""
    scaled = _scale_by_counts(csr_matrix(Y, dtype=np.float32))
    sums = np.zeros((Y.shape[1], projection.width), dtype=np.float32)
    for start in range(0, X.shape[0], ROWS_AT_ONCE):
        part = scaled[start : start + ROWS_AT_ONCE]
        _add(part.indptr, part.indices, part.data, projection.rows(X[start : start + ROWS_AT_ONCE]), sums)
    return sums


def _scale_by_counts(Y: csr_matrix) -> csr_matrix:
    """Return Y with the value 1 / √n for a label that n rows have."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    return csr_matrix(((1 / np.sqrt(counts[Y.indices])).astype(np.float32), Y.indices, Y.indptr), shape=Y.shape)


@njit(cache=True, nogil=True)
def _add(indptr: np.ndarray, labels: np.ndarray, shares: np.ndarray, rows: np.ndarray, sums: np.ndarray) -> None:
    for row in range(len(rows)):
        for place in range(indptr[row], indptr[row + 1]):
            label, share = labels[place], shares[place]
            for column in range(rows.shape[1]):
                sums[label, column] += share * rows[row, column]
