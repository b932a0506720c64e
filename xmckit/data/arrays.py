"""Read and write scipy's sparse `.npz` and numpy's `.npy`; a damaged file is an error, and nothing is unpickled.

Members of an npz are read completely before they are used, so that the checksums of the archive apply. The size of an
npy must match its header.
"""

from __future__ import annotations

import io
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix, save_npz

from xmckit import store
from xmckit.data.model import as_csr
from xmckit.errors import DataError

# The best ratio of deflate; a member that claims more is damaged.
_LARGEST_RATIO = 1040
_LARGEST_HEADER = 10_000

# The arrays that hold the positions of the values in each format.
_INDEX_ARRAYS = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
    ValueError, TypeError, KeyError, IndexError, EOFError, RuntimeError, OverflowError, SyntaxError, OSError,
)  # fmt: skip


def read_sparse(path: Path) -> csr_matrix:
    """Read a CSR, CSC or COO matrix of finite numbers as canonical float32 CSR."""
    arrays = _read_archive(path)
    try:
        kind = arrays["format"].item()
        kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
        matrix = _matrix(str(kind), arrays)
    except _DAMAGE as error:
        raise DataError(
            f"not a sparse matrix as scipy.sparse.save_npz writes it: {_message(error)}", path=path
        ) from None
    check_values(matrix, path)
    return as_csr(matrix)


def _matrix(kind: str, arrays: dict[str, np.ndarray]) -> csr_matrix:
    if kind not in _INDEX_ARRAYS:
        raise ValueError(f"format {kind!r}, expected csr, csc or coo")
    for name in ("shape", *_INDEX_ARRAYS[kind]):
        if arrays[name].dtype.kind not in "iu" or arrays[name].ndim != 1:
            raise ValueError(f"{name} is not a list of whole numbers")
    if arrays["data"].ndim != 1:
        raise ValueError("data is not a list of values")
    shape = tuple(arrays["shape"].tolist())
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"shape {shape}, expected rows and columns")
    places = [arrays[name] for name in _INDEX_ARRAYS[kind]]
    if kind == "coo":
        return coo_matrix((arrays["data"], tuple(places)), shape=shape).tocsr()
    matrix = (csr_matrix if kind == "csr" else csc_matrix)((arrays["data"], *places), shape=shape)
    matrix.check_format(full_check=True)
    return matrix.tocsr()


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if any(info.compress_size > path.stat().st_size for info in members.values()):
                raise zipfile.BadZipFile("a member claims to be longer than the file")
            return {name: _read_member(archive, info) for name, info in members.items()}
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except _DAMAGE as error:
        raise DataError(f"this npz file is damaged or breaks off: {_message(error)}", path=path) from None


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
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
    stream = io.BytesIO(content[:_LARGEST_HEADER])
    shape, fortran, dtype = _array_header(stream)
    array = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    readers: dict[tuple[int, int], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of the npy format is not known")
    with warnings.catch_warnings():
        # numpy reads headers in the style of Python 2 with a warning.
        warnings.simplefilter("ignore", UserWarning)
        shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    return shape, fortran, dtype


def read_dense(path: Path) -> np.ndarray:
    """Read a rows × columns `.npy` of finite numbers as float32."""
    try:
        with open(path, "rb") as stream:
            shape, fortran, dtype = _array_header(stream)
            start, end = stream.tell(), stream.seek(0, io.SEEK_END)
            entries = 1
            for size in shape:
                entries *= size
            if min(shape, default=0) < 0 or entries * dtype.itemsize != end - start:
                raise ValueError(f"{end - start} bytes of content do not make {shape} of {dtype}")
            stream.seek(start)
            array = np.fromfile(stream, dtype=dtype, count=entries).reshape(shape, order="F" if fortran else "C")
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except _DAMAGE as error:
        raise DataError(f"this npy file is damaged or breaks off: {_message(error)}", path=path) from None
    if array.ndim != 2:
        raise DataError(f"expected rows × columns, found an array with {array.ndim} dimensions", path=path)
    check_values(array, path)
    return np.ascontiguousarray(array, dtype=np.float32)


def map_dense(path: Path) -> np.ndarray:
    """Map a rows × columns `.npy`, which stays on disk; the caller checks values when it reads them."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGE as error:
        raise DataError(f"this npy file is damaged or breaks off: {_message(error)}", path=path) from None
    if array.ndim != 2:
        raise DataError(f"expected rows × columns, found an array with {array.ndim} dimensions", path=path)
    return array


def check_values(matrix: csr_matrix | np.ndarray, path: Path, first_row: int = 0) -> None:
    """Raise DataError unless the values are real numbers that are finite in float32."""
    values = matrix if isinstance(matrix, np.ndarray) else matrix.data
    if values.dtype.kind not in "biuf":
        raise DataError(f"expected numbers, found {values.dtype}", path=path)
    largest = np.finfo(np.float32).max
    if values.size and not np.abs(values).max() <= largest:
        place = int(np.argmin(np.abs(values) <= largest))
        row = (
            place // values.shape[1]
            if isinstance(matrix, np.ndarray)
            else int(np.searchsorted(matrix.indptr, place, side="right")) - 1
        )
        why = f"a value is not a finite number in float32, found {values.flat[place]}"
        raise DataError(why, path=path, row=first_row + row)


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def write_sparse(path: Path, matrix: csr_matrix) -> None:
    with store.atomic_file(path) as stream:
        save_npz(stream, csr_matrix(matrix))


def write_dense(path: Path, array: np.ndarray) -> None:
    with store.atomic_file(path) as stream:
        np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
