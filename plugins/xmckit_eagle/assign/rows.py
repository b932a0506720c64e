"""Operations on the rows of a matrix in compiled code: X is (indptr, indices, data) of a CSR matrix, or a dense array.

The functions without a body are stubs: numba compiles the overload for the type of X.
"""

# numba infers the types of the overloads
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload
from scipy.sparse import issparse

from xmckit import Matrix
from xmckit.data.model import as_csr
from xmckit.sparse.lanes import prefetch


def compiled_rows(X: Matrix) -> Any:
    """Return X in float32, in the form that compiled code takes."""
    if not issparse(X):
        return np.ascontiguousarray(X, dtype=np.float32)
    X = as_csr(X)
    # Compiled code need not check whether an unsigned index counts from the end.
    indices = X.indices.astype(np.int32, copy=False).view(np.uint32)
    return X.indptr.astype(np.int64, copy=False), indices, X.data


def add_row(X: Any, row: int, factor: float, target: np.ndarray) -> None:
    """Add factor · x_row to the target."""
    raise NotImplementedError


def dot_row(X: Any, row: int, vector: np.ndarray) -> float:
    """Return ⟨x_row, vector⟩."""
    raise NotImplementedError


def fetch_row(X: Any, row: int) -> None:
    """Prefetch a row into the cache."""
    raise NotImplementedError


def clear_rows(X: Any, rows: np.ndarray, target: np.ndarray) -> None:
    """Set the target to 0 where one of the rows is stored."""
    raise NotImplementedError


@overload(add_row, jit_options={"nogil": True})
def _add_row(X, row, factor, target):
    if isinstance(X, types.Array):

        def dense(X, row, factor, target):
            for feature in range(X.shape[1]):
                target[feature] += factor * X[row, feature]

        return dense

    def sparse(X, row, factor, target):
        indptr, indices, data = X
        for place in range(indptr[row], indptr[row + 1]):
            target[indices[place]] += factor * data[place]

    return sparse


@overload(dot_row, jit_options={"nogil": True})
def _dot_row(X, row, vector):
    # Four sums overlap; a single one would wait for each addition to end before the next begins.
    if isinstance(X, types.Array):

        def dense(X, row, vector):
            end = X.shape[1]
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for place in range(0, end - 3, 4):
                a += X[row, place] * vector[place]
                b += X[row, place + 1] * vector[place + 1]
                c += X[row, place + 2] * vector[place + 2]
                d += X[row, place + 3] * vector[place + 3]
            for place in range(end - end % 4, end):
                a += X[row, place] * vector[place]
            return (a + b) + (c + d)

        return dense

    def sparse(X, row, vector):
        indptr, indices, data = X
        begin, end = indptr[row], indptr[row + 1]
        a, b, c, d = 0.0, 0.0, 0.0, 0.0
        for place in range(begin, end - 3, 4):
            a += data[place] * vector[indices[place]]
            b += data[place + 1] * vector[indices[place + 1]]
            c += data[place + 2] * vector[indices[place + 2]]
            d += data[place + 3] * vector[indices[place + 3]]
        for place in range(end - (end - begin) % 4, end):
            a += data[place] * vector[indices[place]]
        return (a + b) + (c + d)

    return sparse


@overload(fetch_row, jit_options={"nogil": True})
def _fetch_row(X, row):
    if isinstance(X, types.Array):

        def dense(X, row):
            pass

        return dense

    def sparse(X, row):
        indptr, indices, data = X
        for place in range(indptr[row], indptr[row + 1], 16):  # 16 entries of 4 bytes fill one cache line
            prefetch(indices.ctypes.data + 4 * place)
            prefetch(data.ctypes.data + 4 * place)

    return sparse


@overload(clear_rows, jit_options={"nogil": True})
def _clear_rows(X, rows, target):
    if isinstance(X, types.Array):

        def dense(X, rows, target):
            target[:] = 0.0

        return dense

    def sparse(X, rows, target):
        indptr, indices, _ = X
        for row in rows:
            for place in range(indptr[row], indptr[row + 1]):
                target[indices[place]] = 0.0

    return sparse


@njit(cache=True, nogil=True)
def group_products(X: Any, start: np.ndarray, rows: np.ndarray, dense: np.ndarray, out: np.ndarray) -> None:
    """Set out = ⟨x_i, sum of the group's rows⟩ for every row of every group; `dense` is zero before and after."""
    for group in range(len(start) - 1):
        for member in range(start[group], start[group + 1]):
            add_row(X, rows[member], 1.0, dense)
        for member in range(start[group], start[group + 1]):
            out[member] = dot_row(X, rows[member], dense)
        clear_rows(X, rows[start[group] : start[group + 1]], dense)


@njit(cache=True, nogil=True)
def products_with_sum(X: Any, rows: np.ndarray, dense: np.ndarray, out: np.ndarray) -> float:
    """Set out = ⟨x_i, μ⟩ for all i with μ = Σ x over `rows`, and return ⟨μ, μ⟩; `dense` is zero before and after."""
    for row in rows:
        add_row(X, row, 1.0, dense)
    for row in range(len(out)):
        out[row] = dot_row(X, row, dense)
    squared = 0.0
    for feature in range(len(dense)):
        squared += dense[feature] * dense[feature]
        dense[feature] = 0.0
    return squared
