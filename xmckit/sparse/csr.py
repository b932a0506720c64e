"""Forms of CSR matrices: index types, sorted rows."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

LARGEST_INT32 = np.iinfo(np.int32).max


def row_pointers(sizes: np.ndarray) -> np.ndarray:
    """The index pointer of rows with so many entries: int32 as long as that can hold it, then int64."""
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return ends if ends[-1] > LARGEST_INT32 else ends.astype(np.int32)


def sorted_csr(values: np.ndarray, indices: np.ndarray, pointers: np.ndarray, columns: int) -> csr_matrix:
    """A matrix whose rows are known to be sorted and to name no column twice."""
    matrix = csr_matrix((values, indices, pointers), shape=(len(pointers) - 1, columns))
    matrix.has_sorted_indices = matrix.has_canonical_format = True
    return matrix
