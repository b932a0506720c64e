"""Normalise rows for the paper's cosine: weighted by idf and of unit length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit import Matrix
from xmckit.data.model import as_csr

DENSE = 0.5  # a sparse matrix with more than this share of its entries stored counts as dense
UNIT = 1e-3  # a length that differs from 1 by no more than this is unit length


def normalise_rows(X: Matrix, how: str) -> tuple[Matrix, str]:
    """Return normalised rows and the method used: "idf" (and unit length), "unit" or "none". X is not changed.

    "auto" keeps rows that have unit length, since they are weighted already (idf twice is worse), and applies "idf" to
    others. Dense rows have every feature, so that idf carries no information: they get unit length, and so do rows of a
    sparse matrix with most entries stored.
    """
    rows: Any
    with np.errstate(over="ignore"):  # `assign` refuses values that overflow float32
        rows = as_csr(X) if issparse(X) else np.asarray(X, dtype=np.float32)
    if how == "auto":
        lengths = np.sqrt(squared_lengths(rows))
        how = "none" if (np.abs(lengths[lengths > 0] - 1) <= UNIT).all() else "idf"
    if how == "idf" and (not issparse(rows) or rows.nnz > DENSE * rows.shape[0] * rows.shape[1]):
        how = "unit"
    if how == "none":
        return rows, how
    if not issparse(rows):
        lengths = np.sqrt(squared_lengths(rows))
        return (rows / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32), how
    return (idf_rows(rows) if how == "idf" else _unit_rows(rows, np.ones(rows.shape[1]))), how


def idf_rows(X: csr_matrix) -> csr_matrix:
    """Return rows weighted by ln(rows / rows that have the feature), of unit length; rows of zeros stay.

    A feature that all rows have gets weight 0: it does not distinguish them.
    """
    X = as_csr(X)
    have = np.bincount(X.indices, minlength=X.shape[1])
    return _unit_rows(X, np.log(max(1, X.shape[0]) / np.maximum(have, 1)))


def _unit_rows(X: csr_matrix, weights: np.ndarray) -> csr_matrix:
    rows = csr_matrix((X.data.astype(np.float32), X.indices, X.indptr), shape=X.shape)
    _weigh(rows.indptr, rows.indices, rows.data, weights)
    return rows


def squared_lengths(X: Matrix) -> np.ndarray:
    """Return ⟨x_i, x_i⟩ of every row, in float64."""
    if not issparse(X):
        return np.asarray(np.einsum("ij,ij->i", X, X, dtype=np.float64))
    matrix = csr_matrix(X)
    squares = np.empty(matrix.shape[0])
    _row_squares(matrix.indptr, matrix.data, squares)
    return squares


@njit(cache=True, nogil=True)
def _row_squares(indptr: np.ndarray, data: np.ndarray, out: np.ndarray) -> None:
    for row in range(len(out)):
        out[row] = 0.0
        for place in range(indptr[row], indptr[row + 1]):
            out[row] += np.float64(data[place]) * data[place]


@njit(cache=True, nogil=True)
def _weigh(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, idf: np.ndarray) -> None:
    for row in range(len(indptr) - 1):
        squared = 0.0
        for place in range(indptr[row], indptr[row + 1]):
            squared += (data[place] * idf[indices[place]]) ** 2
        factor = 1.0 / np.sqrt(squared) if squared > 0.0 else 0.0
        for place in range(indptr[row], indptr[row + 1]):
            data[place] *= idf[indices[place]] * factor
