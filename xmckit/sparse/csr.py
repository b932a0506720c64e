"""Build CSR matrices: index types, sorted rows, rows from lists."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

LARGEST_INT32 = np.iinfo(np.int32).max


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


def canonical(matrix: csr_matrix) -> csr_matrix:
    """Return the matrix with sorted indices, without duplicates and stored zeros; the input does not change."""
    if matrix.has_canonical_format and matrix.data.all():
        return matrix
    matrix = matrix.copy()
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
