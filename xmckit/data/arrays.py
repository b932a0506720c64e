"""Read and write scipy's sparse `.npz` and numpy's `.npy`; a damaged file is an error, and nothing is unpickled.

`xmckit.store.npy` decodes the arrays, `xmckit.store.matrices` checks that they make a matrix, and `xmckit.store.limits`
says how many rows and columns they may claim.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from xmckit import store
from xmckit.data import reading
from xmckit.data.model import Matrix, as_csr, check_entries, stored_values
from xmckit.errors import DataError
from xmckit.store.npy import DAMAGE, decode_npy, read_npz

# The arrays that hold the positions of the values in each format.
_FORMATS: dict[str, tuple[Any, tuple[str, str]]] = {
    "csr": (store.make_csr, ("indices", "indptr")),
    "csc": (store.make_csc, ("indices", "indptr")),
    "coo": (store.make_coo, ("row", "col")),
}


@contextlib.contextmanager
def _report_damage(path: Path, message: str) -> Iterator[None]:
    """Raise DataError with the message for any error that a damaged file can cause."""
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except DAMAGE as error:
        raise DataError(f"{message}: {str(error) or type(error).__name__}", path=path) from None


def read_sparse(path: Path) -> csr_matrix:
    """Read a CSR, CSC or COO matrix of finite numbers as canonical float32 CSR."""
    with _report_damage(path, "this npz file is damaged or breaks off"):
        arrays = read_npz(path)
    with _report_damage(path, "not a sparse matrix as scipy.sparse.save_npz writes it"):
        kind = arrays["format"].item()
        matrix = _matrix(kind.decode("ascii") if isinstance(kind, bytes) else str(kind), arrays)
    _check_shape(path, matrix.shape, sum(array.nbytes for array in arrays.values()))
    matrix = matrix.tocsr()
    check_values(matrix, path)
    return as_csr(matrix)


def read_matrix(path: Path) -> Matrix:
    """Read a sparse `.npz` or a dense `.npy`."""
    return read_sparse(path) if path.suffix == ".npz" else read_dense(path)


def _matrix(kind: str, arrays: dict[str, np.ndarray]) -> Any:
    if kind not in _FORMATS:
        raise ValueError(f"format {kind!r}, expected csr, csc or coo")
    make, positions = _FORMATS[kind]
    return make(arrays["data"], *(arrays[name] for name in positions), arrays["shape"])


def _check_shape(path: Path, shape: tuple[int, ...], size: int) -> None:
    """Raise DataError if the content, of `size` bytes, does not allow this number of rows or columns."""
    for what, claimed in zip(("rows", "columns"), shape, strict=True):
        store.check_claim(path, what, claimed, size)


def read_dense(path: Path) -> np.ndarray:
    """Read a rows × columns `.npy` of finite numbers as float32."""
    array = map_dense(path)
    check_values(array, path)
    return np.array(array, dtype=np.float32, order="C")


def map_dense(path: Path) -> np.ndarray:
    """Map a rows × columns `.npy`, which stays on disk; the caller checks values when it reads them."""
    with _report_damage(path, "this npy file is damaged or breaks off"):
        array = decode_npy(reading.read_bytes(path))
    if array.ndim != 2:
        raise DataError(f"expected rows × columns, found an array with {array.ndim} dimensions", path=path)
    _check_shape(path, array.shape, array.nbytes)
    return array


def check_values(matrix: Matrix, path: Path, first_row: int = 0) -> None:
    """Raise DataError unless the values are real numbers that are finite in float32."""
    values = stored_values(matrix)
    if values.dtype.kind not in "biuf":
        raise DataError(f"expected numbers, found {values.dtype}", path=path)
    finite = np.abs(values) <= np.finfo(np.float32).max
    check_entries(matrix, finite, "a value is not a finite number in float32", path=path, first_row=first_row)


def write_sparse(path: Path, matrix: csr_matrix) -> None:
    with store.atomic_file(path) as stream:
        save_npz(stream, csr_matrix(matrix))


def write_dense(path: Path, array: np.ndarray) -> None:
    with store.atomic_file(path) as stream:
        np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
