"""Arrays, sparse matrices, strings and tensors: npz and safetensors, written atomically, never pickled."""

from __future__ import annotations

import itertools
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit.errors import DataError
from xmckit.store.checksums import compare_file
from xmckit.store.damage import damaged, explain_damage
from xmckit.store.files import atomic_file
from xmckit.store.limits import check_claim
from xmckit.store.matrices import make_csr, native
from xmckit.store.npy import DAMAGE, decode_npy, read_npz

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_matrix

_KINDS = {"i": "whole numbers", "u": "whole numbers without sign", "f": "floating-point numbers", "b": "truth values"}


_LARGEST_SIZE = 1 << 27  # rows or columns of a stored matrix; the readers of data sets allow fewer


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays of numbers as an uncompressed npz."""
    import numpy as np

    # numpy.savez would pickle arrays of objects, and fails in a destructor when the disk is full.
    with atomic_file(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Read the arrays of an npz, or only those called `names`, which must exist."""
    with explain_damage(path, f"not an npz with {', '.join(names) or 'arrays'}", *DAMAGE):
        return read_npz(path, *names)


def read_npy(path: Path) -> np.ndarray:
    """Read the array of an npy file that a user named; DataError if it is none."""
    import numpy as np

    try:
        return decode_npy(np.fromfile(path, dtype=np.uint8))
    except DAMAGE as error:
        raise DataError(f"this file is not a matrix in numpy's format: {error}", path=path) from None


def read_array(path: Path, name: str, kinds: str, shape: Sequence[int | None], **limits: float) -> np.ndarray:
    """Read one array of an npz and check its type as `check_array` does."""
    return check_array(path, name, read_arrays(path, name)[name], kinds, shape, **limits)


def check_array(
    path: Path,
    name: str,
    array: np.ndarray,
    kinds: str,
    shape: Sequence[int | None],
    *,
    low: float | None = None,
    high: float | None = None,
) -> np.ndarray:
    """Return an array that was stored in a file, in native byte order and contiguous; StorageError if it is wrong.

    `kinds` are the letters of numpy for the allowed types ("i" signed, "u" unsigned, "f" floating point, "b" truth
    values), `shape` has None for a size that is free, and all numbers must be finite and from `low` to `high`.
    """
    import numpy as np

    sizes = tuple("any" if size is None else size for size in shape)
    right_shape = array.ndim == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True)
    )
    if array.dtype.kind not in kinds or not right_shape:
        expected = f"{' or '.join(_KINDS[kind] for kind in kinds)} of shape {sizes}"
        raise damaged(path, f"{name} is {array.dtype} of shape {array.shape}, expected {expected}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise damaged(path, f"{name} holds a value that is not a finite number")
    if array.size:
        least, most = array.min(), array.max()
        if (low is not None and least < low) or (high is not None and most > high):
            limits = " and ".join(
                f"{word} {limit}" for word, limit in (("at least", low), ("at most", high)) if limit is not None
            )
            raise damaged(path, f"{name} holds values from {least} to {most}, expected {limits}")
    return native(array)


def write_csr(path: Path, matrix: csr_matrix) -> None:
    import numpy as np

    arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    write_arrays(path, {**arrays, "shape": np.asarray(matrix.shape, dtype=np.int64)})


def read_csr(path: Path) -> csr_matrix:
    """Read the sound CSR matrix that `write_csr` wrote."""
    return _as_csr(path, read_arrays(path))


def _as_csr(path: Path, arrays: Mapping[str, np.ndarray]) -> csr_matrix:
    import numpy as np

    with explain_damage(path, "not a CSR matrix", ValueError, TypeError, KeyError):
        matrix = make_csr(*(arrays[name] for name in ("data", "indices", "indptr", "shape")))
    if not np.isfinite(matrix.data).all():
        raise damaged(path, "a value is not a finite number")
    if max(matrix.shape) > _LARGEST_SIZE:
        check_claim(path, "rows or columns", max(matrix.shape), path.stat().st_size)
    return matrix


def write_matrix(path: Path, matrix: csr_matrix | np.ndarray) -> None:
    """Write a CSR matrix or a dense array; `read_matrix` restores the same type."""
    if hasattr(matrix, "indptr"):
        write_csr(path, matrix)
    else:
        write_arrays(path, {"dense": matrix})


def read_matrix(path: Path) -> csr_matrix | np.ndarray:
    """Read what `write_matrix` wrote: a sound CSR matrix, or a dense one of numbers."""
    arrays = read_arrays(path)
    if "dense" not in arrays:
        return _as_csr(path, arrays)
    return check_array(path, "dense", arrays["dense"], "biuf", (None, None))


def write_strings(path: Path, strings: Sequence[str]) -> None:
    """Write strings as one UTF-8 buffer and offsets, so that millions of texts load in one read."""
    import numpy as np

    encoded = [string.encode("utf-8", "surrogatepass") for string in strings]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(item) for item in encoded], out=offsets[1:])
    write_arrays(path, {"utf8": np.frombuffer(b"".join(encoded), dtype=np.uint8), "offsets": offsets})


def read_strings(path: Path) -> list[str]:
    arrays = read_arrays(path, "utf8", "offsets")
    utf8, ends = arrays["utf8"], arrays["offsets"]
    if utf8.dtype != "uint8" or ends.dtype.kind != "i" or (utf8.ndim, ends.ndim) != (1, 1) or not len(ends):
        raise damaged(
            path, f"expected bytes and offsets, found {utf8.dtype} {utf8.shape} and {ends.dtype} {ends.shape}"
        )
    buffer, offsets = utf8.tobytes(), ends.tolist()
    if offsets[0] or offsets[-1] != len(buffer) or any(end < start for start, end in itertools.pairwise(offsets)):
        raise damaged(path, f"expected offsets that rise from 0 to {len(buffer)}")
    with explain_damage(path, "not UTF-8", UnicodeDecodeError):
        return [buffer[start:end].decode("utf-8", "surrogatepass") for start, end in itertools.pairwise(offsets)]


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write torch tensors as safetensors."""
    from safetensors.torch import save

    content = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    with atomic_file(path) as stream:
        stream.write(content)


def read_tensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    with explain_damage(path, "not a safetensors file", SafetensorError):
        compare_file(path, mapped=True)
        return load_file(path)
