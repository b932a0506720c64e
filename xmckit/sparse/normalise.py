"""Weight the columns of CSR matrices and scale rows to length 1."""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit.errors import UsageError
from xmckit.sparse.csr import Pattern, csr_pattern, map_row_blocks
from xmckit.sparse.topk import longest_row


def weigh_rows(
    matrix: csr_matrix,
    column_weights: np.ndarray | None = None,
    *,
    unit: bool = True,
    factor: float = 1.0,
    workers: int = 1,
) -> None:
    """Multiply columns by their weights, then with `unit` scale rows to length 1, then multiply by `factor`; in place.

    It computes in float64, because squares of float32 can overflow. Rows of zeros stay.
    """
    pattern = csr_pattern(matrix, "the matrix")
    weights = np.ones(0) if column_weights is None else np.asarray(column_weights, dtype=np.float64)
    if column_weights is not None and weights.shape != (matrix.shape[1],):
        raise UsageError(f"a matrix with {matrix.shape[1]} columns needs as many weights, found {weights.shape}")

    def weigh(block: slice) -> None:
        _weigh(pattern, matrix.data, weights, unit, factor, block)

    map_row_blocks(weigh, matrix.shape[0], workers)


@njit(cache=True, nogil=True)
def _weigh(pattern: Pattern, data: np.ndarray, weights: np.ndarray, unit: bool, factor: float, block: slice) -> None:
    indptr, indices = pattern
    weighted = np.empty(longest_row(indptr[block.start : block.stop + 1]))
    for row in range(block.start, block.stop):
        values, columns = data[indptr[row] : indptr[row + 1]], indices[indptr[row] : indptr[row + 1]]
        for place in range(len(values)):
            weighted[place] = values[place]
        if len(weights):
            for place in range(len(values)):
                weighted[place] *= weights[columns[place]]
        squares = _squares(weighted[: len(values)]) if unit else 0.0
        scale = factor / np.sqrt(squares) if squares > 0.0 else factor
        for place in range(len(values)):
            values[place] = weighted[place] * scale


@njit(cache=True, nogil=True)
def _squares(values: np.ndarray) -> float:
    """Return the sum of squares, as four independent sums that the processor can overlap."""
    one, two, three, four = 0.0, 0.0, 0.0, 0.0
    whole = len(values) - len(values) % 4
    for place in range(0, whole, 4):
        one += values[place] ** 2
        two += values[place + 1] ** 2
        three += values[place + 2] ** 2
        four += values[place + 3] ** 2
    for place in range(whole, len(values)):
        one += values[place] ** 2
    return (one + two) + (three + four)
