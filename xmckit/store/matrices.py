"""Check sparse matrices before compiled code sees them: the one validation of CSR, CSC and COO in the project.

A kernel that follows a wrong index pointer reads or writes memory that is not its own. scipy's `check_format` does not
prevent that: it skips most checks if the last index pointer is 0 or negative. So every reader, stored stage, model and
certificate passes through this module, and so do matrices that plugins and callers hand over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from xmckit.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import coo_matrix, csc_matrix, csr_matrix

Sizes: TypeAlias = "Sequence[int] | np.ndarray"
LARGEST_SIZE = 2**31 - 1  # rows, columns and labels are numbered by int32


def make_csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: Sizes) -> csr_matrix:
    """Return the CSR matrix of these arrays, which are not copied if possible; ValueError says what is wrong."""
    from scipy.sparse import csr_matrix

    return _make_compressed(csr_matrix, data, indices, indptr, shape)


def make_csc(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: Sizes) -> csc_matrix:
    """Return the CSC matrix of these arrays; ValueError says what is wrong."""
    from scipy.sparse import csc_matrix

    return _make_compressed(csc_matrix, data, indices, indptr, shape)


def make_coo(data: np.ndarray, row: np.ndarray, col: np.ndarray, shape: Sizes) -> coo_matrix:
    """Return the COO matrix of these arrays; ValueError says what is wrong."""
    from scipy.sparse import coo_matrix

    rows, columns = _check_shape(shape)
    data, row, col = _values(data), _whole_numbers(row, "row"), _whole_numbers(col, "col")
    if not len(data) == len(row) == len(col):
        raise ValueError(f"{len(row)} row and {len(col)} column numbers for {len(data)} values")
    _check_range(row, rows, "a row number")
    _check_range(col, columns, "a column number")
    return coo_matrix((data, (row, col)), shape=(rows, columns))


def check_matrix(matrix: Any, what: str) -> None:
    """Raise DataError unless a scipy matrix of any origin is sound; `what` names it in the message.

    Formats that scipy converts in Python (lil, dok, dia) have no index arrays to check.
    """
    try:
        if matrix.format == "coo":
            make_coo(matrix.data, matrix.row, matrix.col, matrix.shape)
        elif matrix.format == "bsr":
            _check_blocks(matrix)
        elif matrix.format in ("csr", "csc"):
            major = int(matrix.format == "csc")
            _check_compressed(matrix.data, matrix.indices, matrix.indptr, matrix.shape, major)
    except ValueError as error:
        raise DataError(f"{what} is not a sound {matrix.format.upper()} matrix: {error}") from None


def _check_blocks(matrix: Any) -> None:
    blocks, *size = matrix.data.shape
    if len(size) != 2 or 0 in size or any(total % part for total, part in zip(matrix.shape, size, strict=True)):
        raise ValueError(f"{blocks} blocks of size {size} do not divide {matrix.shape}")
    shape = [total // part for total, part in zip(matrix.shape, size, strict=True)]
    _check_compressed(matrix.data[:, 0, 0], matrix.indices, matrix.indptr, shape, 0)


def _make_compressed(kind: Any, data: Any, indices: Any, indptr: Any, shape: Sizes) -> Any:
    data, indices, indptr, sizes = _check_compressed(data, indices, indptr, shape, int(kind.__name__ == "csc_matrix"))
    return kind((data, indices, indptr), shape=sizes)


def _check_compressed(
    data: Any, indices: Any, indptr: Any, shape: Sizes, major: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Return the arrays and the shape; `major` is the axis that `indptr` divides: 0 in CSR, 1 in CSC."""
    sizes = _check_shape(shape)
    data, indices, indptr = _values(data), _whole_numbers(indices, "indices"), _whole_numbers(indptr, "indptr")
    if len(indptr) != sizes[major] + 1:
        raise ValueError(f"indptr has {len(indptr)} entries, expected {sizes[major] + 1}")
    if indptr[0] != 0:
        raise ValueError(f"indptr starts with {indptr[0]}, expected 0")
    if not (indptr[1:] >= indptr[:-1]).all():
        raise ValueError("indptr decreases")
    if not int(indptr[-1]) == len(indices) == len(data):
        raise ValueError(f"indptr ends with {indptr[-1]}, but there are {len(indices)} indices and {len(data)} values")
    _check_range(indices, sizes[1 - major], "an index")
    return data, indices, indptr, sizes


def _check_shape(shape: Sizes) -> tuple[int, int]:
    import numpy as np

    array = np.asarray(shape)
    if array.dtype.kind not in "iu" or array.shape != (2,) or int(array.min()) < 0:
        raise ValueError(f"shape {array.tolist()}, expected two whole numbers: rows and columns")
    rows, columns = (int(size) for size in array)
    if max(rows, columns) > LARGEST_SIZE:
        raise ValueError(f"shape {rows} × {columns}, expected at most {LARGEST_SIZE:,} rows and columns")
    return rows, columns


def _values(data: Any) -> np.ndarray:
    import numpy as np

    array = np.asanyarray(data)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"data is {array.dtype} of shape {array.shape}, expected a list of numbers")
    return native(array)


def _whole_numbers(numbers: Any, name: str) -> np.ndarray:
    import numpy as np

    array = np.asanyarray(numbers)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected a list of whole numbers")
    return native(array)


def native(array: np.ndarray) -> np.ndarray:
    """Return the array in this machine's byte order, aligned and contiguous, as kernels are compiled for."""
    import numpy as np

    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.require(native, requirements=["C_CONTIGUOUS", "ALIGNED"])


def _check_range(numbers: np.ndarray, size: int, what: str) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < size:
        raise ValueError(f"{what} is not between 0 and {size - 1}")
