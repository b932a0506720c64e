"""Decode npz and npy files of unknown origin: every claim is checked before memory is allocated for it.

numpy's own reader trusts the header: it allocates what the header claims, and takes a byte 2 as a boolean, for which
numpy later counts more entries than it finds. Here the header must match the size of the content, nothing is unpickled,
and the checksums of the archive are compared.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit.store.checksums import open_checked, trust_archive
from xmckit.store.limits import check_growth

if TYPE_CHECKING:
    import numpy as np

# What a damaged file can raise; zipfile raises RuntimeError for encrypted files and unknown compression.
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, EOFError, OSError, RuntimeError, ArithmeticError,
    ValueError, TypeError, LookupError, AttributeError, SyntaxError,
)  # fmt: skip
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BLOCK = 1 << 20
_ENCRYPTED = 1  # a flag of a member
_LOCAL_HEADER = "<26xHH"
_LARGEST_HEADER = 10_000
_LARGEST_CODE_POINT = 0x10FFFF


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Read the arrays of an npz, or only those called `names`; an error of `DAMAGE` says what is wrong with it."""
    with open_checked(path) as stream, zipfile.ZipFile(stream) as archive:
        trust_archive(archive)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) < len(archive.infolist()):
            raise ValueError("two arrays have the same name")
        if missing := [name for name in names if name not in members]:
            raise ValueError(f"it has no array {missing[0]}")
        wanted = {name: members[name] for name in names or members}
        if any(info.compress_type not in _METHODS for info in wanted.values()):
            raise ValueError("it is compressed by a method that numpy does not use")
        check_growth(path, sum(info.file_size for info in wanted.values()))
        return {name: _read_member(archive, name, info) for name, info in wanted.items()}


def _read_member(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> np.ndarray:
    import numpy as np

    with archive.open(info) as member:
        stored = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & _ENCRYPTED
        # zipfile has checked the member's own header; what is stored as it is needs no copy of each block.
        stream: Any = _at_content(archive, info) if stored else member
        beginning = stream.read(min(info.file_size, _LARGEST_HEADER))
        try:
            shape, fortran, dtype, start = _check_header(beginning, info.file_size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        array = np.empty(math.prod(shape), dtype=dtype)
        content: Any = array.view(np.uint8)
        expected: int | None = getattr(info, "CRC", None)  # None: stronger checksums are compared
        filled, checksum = len(beginning) - start, None if expected is None else zlib.crc32(beginning)
        content[:filled] = np.frombuffer(beginning, dtype=np.uint8)[start:]
        while filled < len(content) and (count := stream.readinto(content[filled : filled + _BLOCK])):
            if checksum is not None:
                checksum = zlib.crc32(content[filled : filled + count], checksum)
            filled += count
    if filled != len(content) or checksum != expected:
        raise ValueError(f"{name} breaks off" if filled != len(content) else f"the checksum of {name} is wrong")
    _check_content(array, name)
    return array.reshape(shape, order="F" if fortran else "C")


def _at_content(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Any:
    """Return the file of the archive, at the first byte of a member."""
    stream: Any = archive.fp
    stream.seek(info.header_offset)
    *_, name_length, extra_length = struct.unpack(_LOCAL_HEADER, stream.read(struct.calcsize(_LOCAL_HEADER)))
    stream.seek(name_length + extra_length, io.SEEK_CUR)
    return stream


def decode_npy(content: np.ndarray) -> np.ndarray:
    """Return the array in the bytes of an npy, without a copy."""
    import numpy as np

    shape, fortran, dtype, start = _check_header(content[:_LARGEST_HEADER].tobytes(), len(content))
    array = np.frombuffer(content, dtype=dtype, offset=start)
    _check_content(array, "it")
    return array.reshape(shape, order="F" if fortran else "C")


def _check_header(beginning: bytes, size: int) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Return the shape, the order, the type and the start of the array in an npy of `size` bytes."""
    stream = io.BytesIO(beginning)
    shape, fortran, dtype = read_header(stream)
    start = stream.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - start:
        raise ValueError(f"{size - start} bytes of content do not make {shape} of {dtype}")
    return shape, fortran, dtype, start


def _check_content(array: np.ndarray, name: str) -> None:
    """Raise ValueError if the bytes of a list are no truth values, or no text, although its type says so."""
    import numpy as np

    if not len(array) or array.dtype.kind not in "bU":
        return
    largest = int(array.view(np.uint8 if array.dtype.kind == "b" else f"{array.dtype.str[0]}u4").max())
    if largest > (1 if array.dtype.kind == "b" else _LARGEST_CODE_POINT):
        raise ValueError(f"{name} holds a byte that is no truth value, or a number that is no character: {largest}")


def read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an npy. Return the shape, whether the order is Fortran's, and the type of a number or text."""
    import numpy as np

    major, minor = np.lib.format.read_magic(stream)
    read_array_header: Any = getattr(np.lib.format, f"read_array_header_{major}_{minor}", None)
    if read_array_header is None:
        raise ValueError(f"version {major}.{minor} of the npy format is not known")
    with warnings.catch_warnings():
        # numpy warns about headers in the style of Python 2 and about old names of types.
        warnings.simplefilter("ignore")
        try:
            shape, fortran, dtype = read_array_header(stream)
        except MemoryError:  # the parser of Python literals has a stack of its own
            raise ValueError("the header is not a Python literal") from None
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which pickle would have to load")
    if dtype.kind not in "biufcSU" or dtype.itemsize == 0:
        raise ValueError(f"it holds {dtype}, expected numbers or texts")
    return shape, fortran, dtype
