"""Build and check CSR matrices: index types, sorted rows, rows from lists, blocks of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import map_on_threads
from xmckit.errors import UsageError

LARGEST_INT32 = np.iinfo(np.int32).max


class Pattern(NamedTuple):
    """Where a CSR matrix has entries, in the types that kernels are compiled for: int64 and int32."""

    indptr: np.ndarray
    indices: np.ndarray


def csr_pattern(matrix: csr_matrix, what: str) -> Pattern:
    """Return the pattern of a valid matrix; `what` names the matrix in errors."""
    if getattr(matrix, "format", "") != "csr":
        form = getattr(matrix, "format", type(matrix).__name__)
        raise UsageError(f"{what} has to be a CSR matrix, not {form.upper()}")
    store.check_matrix(matrix, what)
    return Pattern(matrix.indptr.astype(np.int64, copy=False), matrix.indices.astype(np.int32, copy=False))


def canonical_pattern(matrix: csr_matrix, what: str) -> Pattern:
    """Return the pattern with sorted indices, without duplicates and stored zeros; the matrix does not change."""
    pattern = csr_pattern(matrix, what)  # scipy's code must not run on a broken matrix
    in_order = canonical(matrix)
    return pattern if in_order is matrix else csr_pattern(in_order, what)


def canonical(matrix: csr_matrix) -> csr_matrix:
    """Return the matrix with sorted indices, without duplicates and stored zeros; the input does not change."""
    if matrix.has_canonical_format and matrix.data.all():
        return matrix
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def row_pointers(sizes: np.ndarray | list[int]) -> np.ndarray:
    """Return the index pointer of rows of these sizes: int32 if it is large enough, otherwise int64."""
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return ends if ends[-1] > LARGEST_INT32 else ends.astype(np.int32)


def sorted_csr(values: np.ndarray, indices: np.ndarray, pointers: np.ndarray, columns: int) -> csr_matrix:
    """Return a matrix of rows that are known to be sorted and to name no column twice."""
    matrix = csr_matrix((values, indices, pointers), shape=(len(pointers) - 1, columns))
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix


def csr_from_lists(rows: Sequence[Sequence[int]], columns: int) -> csr_matrix:
    """Return rows × columns with a 1 for each number in the list of a row, in the order of the list."""
    pointers = row_pointers([len(row) for row in rows])
    indices = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(pointers[-1]))
    return csr_matrix((np.ones(len(indices), dtype=np.float32), indices, pointers), shape=(len(rows), columns))


def row_blocks(rows: int, most: int = 32) -> list[slice]:
    """Divide the rows into at most `most` blocks, independent of the workers, so that results are too."""
    size = max(1024, -(-rows // most))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def map_row_blocks(function: Callable[[slice], Any], rows: int, workers: int) -> list[Any]:
    """Call `function` on blocks of rows, on up to `workers` threads; return the results in order."""
    return map_on_threads(function, row_blocks(rows), workers=workers)
