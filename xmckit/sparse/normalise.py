"""Rows of CSR matrices weighted by column and brought to length 1."""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit.errors import UsageError
from xmckit.executors import Threads
from xmckit.sparse.scoring import row_blocks
from xmckit.sparse.topk import csr_pattern


def weigh_rows(
    matrix: csr_matrix,
    column_weights: np.ndarray | None = None,
    *,
    unit: bool = True,
    factor: float = 1.0,
    workers: int = 1,
) -> None:
    """Multiply columns by their weights, then with `unit` bring rows to length 1, then multiply by `factor`; in place.

    In float64, since squares of float32 leave its range. Rows of zeros stay.
    """
    csr_pattern(matrix, "the matrix")
    weights = np.ones(0) if column_weights is None else np.asarray(column_weights, dtype=np.float64)
    if column_weights is not None and weights.shape != (matrix.shape[1],):
        raise UsageError(f"a matrix with {matrix.shape[1]} columns needs as many weights, found {weights.shape}")

    def weigh(block: slice) -> None:
        _weigh(matrix.indptr, matrix.indices, matrix.data, weights, unit, factor, block.start, block.stop)

    Threads().map(weigh, row_blocks(matrix.shape[0]), workers=workers)


@njit(cache=True, nogil=True)
def _weigh(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    weights: np.ndarray,
    unit: bool,
    factor: float,
    start: int,
    stop: int,
) -> None:
    for row in range(start, stop):
        squares = 0.0
        if unit:
            for place in range(indptr[row], indptr[row + 1]):
                weight = weights[indices[place]] if len(weights) else 1.0
                squares += (weight * data[place]) ** 2
        scale = factor / np.sqrt(squares) if squares > 0.0 else factor
        for place in range(indptr[row], indptr[row + 1]):
            weight = weights[indices[place]] if len(weights) else 1.0
            data[place] *= scale * weight
