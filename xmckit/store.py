"""Arrays, strings and parameters on disk: npz, safetensors and JSON, written atomically, never pickled.

Every write goes to a temporary name in the same folder and is renamed, so that a file is either the old one, the
new one, or not there. Every read of a damaged file names the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from xmckit.errors import StorageError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_matrix

TEMPORARY = ".tmp-"
# A zip that claims to be encrypted, or packed in a way that Python lacks, is a RuntimeError.
_UNREADABLE = (
    ValueError, KeyError, EOFError, OSError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile
)  # fmt: skip
_HOST = re.sub(r"\W", "", platform.node()) or "host"  # a folder may be shared by machines


def damaged(path: Path, why: str) -> StorageError:
    """The error for a stored file that is not what was written; the way out is always the same."""
    return StorageError(
        f"{path}: this file is damaged or not xmckit's ({why}). Delete the folder and run again; "
        "for a run also empty the cache that it shares, with `xmckit runs clean`."
    )


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that no other process uses; it carries host and process id for `remove_stale`."""
    return path.with_name(f"{TEMPORARY}{_HOST}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it becomes `path`, on any error it is gone."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, on any error it is gone.

    If somebody else completed `path` meanwhile, theirs stays: equal names mean equal content. Where they do not,
    `exclusive` makes that a FileExistsError.
    """
    temporary = temporary_beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():
                raise
            if exclusive:
                raise FileExistsError(f"{path} exists already") from None
            shutil.rmtree(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_stale(folder: Path) -> None:
    """Remove what killed processes of this machine left half-written in `folder`."""
    for entry in folder.glob(f"{TEMPORARY}{_HOST}-*"):
        process = entry.name.removeprefix(f"{TEMPORARY}{_HOST}-").split("-", 1)[0]
        if process.isdigit() and not process_alive(int(process)):
            # Another process may be removing the same leftovers at this moment.
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def process_alive(process: int) -> bool:
    """Whether a process with this id exists now."""
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path, "w") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not JSON: {error}") from None


def write_text(path: Path, text: str) -> None:
    with atomic_file(path, "w") as stream:
        stream.write(text)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Named arrays of numbers as an uncompressed npz."""
    import numpy as np

    # numpy.savez would pickle arrays of objects, and complains from a destructor when the disk is full.
    with atomic_file(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of an npz; `names`, when given, must all be there."""
    import numpy as np

    try:
        # numpy leaves a file open that it cannot read; this one is ours to close.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (names or archive.files)}
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except _UNREADABLE as error:
        raise damaged(path, f"not an npz with {', '.join(names) or 'arrays'}: {error}") from None
    return arrays


def write_csr(path: Path, matrix: csr_matrix) -> None:
    import numpy as np

    write_arrays(
        path,
        {
            "data": matrix.data,
            "indices": matrix.indices,
            "indptr": matrix.indptr,
            "shape": np.asarray(matrix.shape, dtype=np.int64),
        },
    )


def read_csr(path: Path) -> csr_matrix:
    return _as_csr(path, read_arrays(path))


def _as_csr(path: Path, arrays: Mapping[str, np.ndarray]) -> csr_matrix:
    from scipy.sparse import csr_matrix

    try:
        matrix = csr_matrix(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(int(n) for n in arrays["shape"])
        )
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(path, f"not a CSR matrix: {error}") from None
    return matrix


def write_matrix(path: Path, matrix: csr_matrix | np.ndarray) -> None:
    """A CSR matrix or a dense array; `read_matrix` knows which it was."""
    if hasattr(matrix, "indptr"):
        write_csr(path, matrix)
    else:
        write_arrays(path, {"dense": matrix})


def read_matrix(path: Path) -> csr_matrix | np.ndarray:
    arrays = read_arrays(path)
    return arrays["dense"] if "dense" in arrays else _as_csr(path, arrays)


def write_strings(path: Path, strings: Sequence[str]) -> None:
    """Strings as one UTF-8 buffer and offsets: millions of texts load in one read."""
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
    try:
        return [buffer[start:end].decode("utf-8", "surrogatepass") for start, end in itertools.pairwise(offsets)]
    except UnicodeDecodeError as error:
        raise damaged(path, str(error)) from None


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Torch tensors as safetensors."""
    from safetensors.torch import save

    content = save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    with atomic_file(path) as stream:
        stream.write(content)


def read_tensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except SafetensorError as error:
        raise damaged(path, f"not a safetensors file: {error}") from None


def file_sha256(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file's content; `advance` hears the number of bytes read as they come."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def canonical_sha256(value: Any) -> str:
    """SHA-256 of a JSON value, the same for equal values whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def link_tree(source: Path, target: Path) -> None:
    """A second name for every file below `source`: a hard link, or a copy where the file system has none.

    Files are replaced, never rewritten in place, so the two trees cannot disturb each other.
    """

    def missing(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=missing):
        here = target / Path(folder).relative_to(source)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            link_file(Path(folder, name), here / name)


def link_file(source: Path, target: Path) -> None:
    temporary = temporary_beside(target)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)
        os.replace(temporary, target)
    finally:
        # Replacing a name by another name of the same file does nothing and leaves both.
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` during the block; UsageError with the text `busy` if another process holds it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(busy) from None
    try:
        yield
    finally:
        lock.release()
