"""Read and write scipy's sparse `.npz` and numpy's `.npy`; a damaged file is an error, and nothing is unpickled.

Members of an npz are read completely before they are used, so that the checksums of the archive apply. The size of an
npy must match its header.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from xmckit import store
from xmckit.data import reading
from xmckit.data.model import Matrix, as_csr, check_entries, stored_values
from xmckit.errors import DataError

# The best ratio of deflate; a member that claims more is damaged.
_LARGEST_RATIO = 1040
_LARGEST_HEADER = 10_000

# The arrays that hold the positions of the values in each format.
_FORMATS: dict[str, tuple[Any, tuple[str, str]]] = {
    "csr": (store.make_csr, ("indices", "indptr")),
    "csc": (store.make_csc, ("indices", "indptr")),
    "coo": (store.make_coo, ("row", "col")),
}

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
    ValueError, TypeError, KeyError, IndexError, EOFError, RuntimeError, OverflowError, SyntaxError, OSError,
)  # fmt: skip


@contextlib.contextmanager
def _report_damage(path: Path, message: str) -> Iterator[None]:
    """Raise DataError with the message for any error that a damaged file can cause."""
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except _DAMAGE as error:
        raise DataError(f"{message}: {str(error) or type(error).__name__}", path=path) from None


def read_sparse(path: Path) -> csr_matrix:
    """Read a CSR, CSC or COO matrix of finite numbers as canonical float32 CSR."""
    with _report_damage(path, "this npz file is damaged or breaks off"):
        arrays = _read_archive(path)
    with _report_damage(path, "not a sparse matrix as scipy.sparse.save_npz writes it"):
        kind = arrays["format"].item()
        matrix = _matrix(kind.decode("ascii") if isinstance(kind, bytes) else str(kind), arrays)
    check_values(matrix, path)
    return as_csr(matrix)


def read_matrix(path: Path) -> Matrix:
    """Read a sparse `.npz` or a dense `.npy`."""
    return read_sparse(path) if path.suffix == ".npz" else read_dense(path)


def _matrix(kind: str, arrays: dict[str, np.ndarray]) -> csr_matrix:
    if kind not in _FORMATS:
        raise ValueError(f"format {kind!r}, expected csr, csc or coo")
    make, positions = _FORMATS[kind]
    return make(arrays["data"], *(arrays[name] for name in positions), arrays["shape"]).tocsr()


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if any(info.compress_size > path.stat().st_size for info in members.values()):
            raise zipfile.BadZipFile("a member claims to be longer than the file")
        return {name: _array(_read_member(archive, info)) for name, info in members.items()}


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytearray:
    if info.file_size > _LARGEST_RATIO * (info.compress_size + 1):
        raise zipfile.BadZipFile(f"{info.filename} claims {info.file_size} bytes")
    content = bytearray(info.file_size)
    view, filled = memoryview(content), 0
    with archive.open(info) as stream:
        while block := stream.read(1 << 22):
            view[filled : filled + len(block)] = block
            filled += len(block)
    if filled != info.file_size:
        raise zipfile.BadZipFile(f"{info.filename} breaks off")
    return content


def _array(content: bytearray | np.ndarray) -> np.ndarray:
    """Return the array in the bytes of an npy, without a copy."""
    stream = io.BytesIO(bytes(content[:_LARGEST_HEADER]))
    shape, fortran, dtype = _read_header(stream)
    size = len(content) - stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size} bytes of content do not make {shape} of {dtype}")
    array = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an npy. Return the shape, whether the order is Fortran's, and the type."""
    major, minor = np.lib.format.read_magic(stream)
    read_header: Any = getattr(np.lib.format, f"read_array_header_{major}_{minor}", None)
    if read_header is None:
        raise ValueError(f"version {major}.{minor} of the npy format is not known")
    with warnings.catch_warnings():
        # numpy reads headers in the style of Python 2 with a warning.
        warnings.simplefilter("ignore", UserWarning)
        shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    return shape, fortran, dtype


def read_dense(path: Path) -> np.ndarray:
    """Read a rows × columns `.npy` of finite numbers as float32."""
    array = map_dense(path)
    check_values(array, path)
    return np.array(array, dtype=np.float32, order="C")


def map_dense(path: Path) -> np.ndarray:
    """Map a rows × columns `.npy`, which stays on disk; the caller checks values when it reads them."""
    with _report_damage(path, "this npy file is damaged or breaks off"):
        array = _array(reading.read_bytes(path))
    if array.ndim != 2:
        raise DataError(f"expected rows × columns, found an array with {array.ndim} dimensions", path=path)
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
