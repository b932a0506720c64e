"""Arrays, strings and parameters on disk: npz, safetensors and JSON, written atomically, never pickled.

Every write goes to a temporary name in the same folder and is then renamed, so that readers see the old file, the new
file, or none. Every error about a damaged file names the file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
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
from typing import IO, TYPE_CHECKING, Any, TypeVar, overload

from xmckit.errors import StorageError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from pydantic import TypeAdapter, ValidationError
    from scipy.sparse import csr_matrix

Shape = TypeVar("Shape")

TEMPORARY = ".tmp-"
# zipfile raises RuntimeError for encrypted files and unknown compression.
_UNREADABLE = (
    ValueError, KeyError, EOFError, OSError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile
)  # fmt: skip
_MOST_MISTAKES = 8  # listed in an error
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_HOST = re.sub(r"\W", "", platform.node()) or "host"  # machines may share a folder


def damaged(path: Path, why: str) -> StorageError:
    """Return the error for a stored file with wrong content; it tells the user to delete the folder."""
    return StorageError(
        f"{path}: this file is damaged or not xmckit's ({why}). Delete the folder and run again; "
        "for a run also empty the cache that it shares, with `xmckit runs clean`."
    )


@contextlib.contextmanager
def _explain_damage(path: Path, why: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise StorageError if the block does not find the file, or raises one of `errors` because of its content."""
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except errors as error:
        raise damaged(path, f"{why}: {error}") from None


def temporary_beside(path: Path) -> Path:
    """Return a unique name in the same folder; it contains host and process id for `remove_stale`."""
    return path.with_name(f"{TEMPORARY}{_HOST}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it becomes `path`, on any error it is removed."""
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


def check_new_folder(path: Path) -> None:
    """Raise UsageError if no folder of this name can be created."""
    if path.exists():
        raise UsageError(f"{path} exists already: name a new folder")
    above = next(parent for parent in path.resolve().parents if parent.exists())
    if not above.is_dir():
        raise UsageError(f"{path} cannot be a folder: the file {above} is in its way")
    if not os.access(above, os.W_OK):
        raise UsageError(f"{path} cannot be written: name a folder outside {above}")


@contextlib.contextmanager
def atomic_folder(path: Path, *, exclusive: bool = False, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on any error.

    If somebody else has completed `path` meanwhile, theirs stays: equal names mean equal content. If they do not,
    `exclusive` makes that a FileExistsError, and `replace` puts the new folder in the place of an older one.
    """
    temporary, replaced = temporary_beside(path), temporary_beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if replace:
            with contextlib.suppress(FileNotFoundError):
                path.rename(replaced)
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
    finally:
        shutil.rmtree(replaced, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder that others may look at: it disappears at once, not file by file."""
    doomed = temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(doomed)
        shutil.rmtree(doomed)


def remove_stale(folder: Path) -> None:
    """Remove the half-written files of killed processes of this machine from `folder`."""
    for entry in folder.glob(f"{TEMPORARY}{_HOST}-*"):
        process = entry.name.removeprefix(f"{TEMPORARY}{_HOST}-").split("-", 1)[0]
        if process.isdigit() and not process_alive(int(process)):
            # Another process may be removing the same files.
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def process_alive(process: int) -> bool:
    """Return whether a process with this id exists."""
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):  # the number comes from a file, and may be no id at all
        return False
    except PermissionError:
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path, "w") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


@overload
def read_json(path: Path) -> Any: ...
@overload
def read_json(path: Path, shape: type[Shape]) -> Shape: ...
def read_json(path: Path, shape: Any = Any) -> Any:
    """Return the content of a JSON file; check that it has the type `shape`, such as a TypedDict."""
    with _explain_damage(path, "not JSON", ValueError, RecursionError):
        content = json.loads(path.read_bytes())
    if shape is not Any:
        check_type(path, content, shape)
    return content


def check_type(path: Path, content: Any, shape: Any) -> Any:
    """Return the content of a file as `shape`, any type that pydantic knows; if it is of another type, say where."""
    from pydantic import ValidationError

    try:
        return _type_adapter(shape).validate_python(content, strict=True)
    except ValidationError as error:
        raise damaged(path, reasons(error)) from None


@functools.cache
def _type_adapter(shape: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def reasons(error: ValidationError) -> str:
    """Return the mistakes that pydantic found, in one line."""
    mistakes = error.errors()
    more = len(mistakes) - _MOST_MISTAKES
    return "; ".join(map(_mistake, mistakes[:_MOST_MISTAKES])) + (f"; and {more} more" if more > 0 else "")


def _mistake(mistake: Any) -> str:
    where, found = ".".join(map(str, mistake["loc"])), mistake["input"]
    shown = f", found {found!r:.60}" if not isinstance(found, (dict, list)) and mistake["type"] != "missing" else ""
    return f"{where}: {mistake['msg']}{shown}" if where else f"{mistake['msg']}{shown}"


def write_text(path: Path, text: str) -> None:
    with atomic_file(path, "w") as stream:
        stream.write(text)


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
    import numpy as np

    # Open the file here: numpy does not close a file that it cannot read.
    with (
        _explain_damage(path, f"not an npz with {', '.join(names) or 'arrays'}", *_UNREADABLE),
        open(path, "rb") as stream,
        np.load(stream, allow_pickle=False) as archive,
    ):
        return {name: archive[name] for name in (names or archive.files)}


def write_csr(path: Path, matrix: csr_matrix) -> None:
    import numpy as np

    arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    write_arrays(path, {**arrays, "shape": np.asarray(matrix.shape, dtype=np.int64)})


def read_csr(path: Path) -> csr_matrix:
    return _as_csr(path, read_arrays(path))


def _as_csr(path: Path, arrays: Mapping[str, np.ndarray]) -> csr_matrix:
    from scipy.sparse import csr_matrix

    with _explain_damage(path, "not a CSR matrix", ValueError, TypeError, KeyError):
        parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
        matrix = csr_matrix(parts, shape=tuple(int(n) for n in arrays["shape"]))
        matrix.check_format(full_check=True)
    return matrix


def write_matrix(path: Path, matrix: csr_matrix | np.ndarray) -> None:
    """Write a CSR matrix or a dense array; `read_matrix` restores the same type."""
    if hasattr(matrix, "indptr"):
        write_csr(path, matrix)
    else:
        write_arrays(path, {"dense": matrix})


def read_matrix(path: Path) -> csr_matrix | np.ndarray:
    arrays = read_arrays(path)
    return arrays["dense"] if "dense" in arrays else _as_csr(path, arrays)


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
    with _explain_damage(path, "not UTF-8", UnicodeDecodeError):
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

    with _explain_damage(path, "not a safetensors file", SafetensorError):
        return load_file(path)


def file_sha256(path: Path, advance: Callable[[int], None] | None = None, *, algorithm: str = "sha256") -> str:
    """Return the SHA-256 of a file's content, or the digest by another `algorithm`.

    `advance` is called with the number of bytes of each read.
    """
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def canonical_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def link_tree(source: Path, target: Path) -> None:
    """Link every file below `source` into `target`, or copy it if the file system has no hard links.

    Files are replaced, never rewritten in place, so changes in one tree do not affect the other.
    """

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=fail):
        target_folder = target / Path(folder).relative_to(source)
        target_folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            link_file(Path(folder, name), target_folder / name)


def link_file(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy."""
    temporary = temporary_beside(target)
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copy2(source, temporary)
        os.replace(temporary, target)
    finally:
        # os.replace does nothing, and leaves both names, if they already are links to the same file.
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` during the block.

    UsageError with the text `busy` if another process holds it; StorageError if the file system has no locks.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(busy) from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        raise StorageError(
            f"{path}: this file system has no file locks, which keep two processes from writing into the same folder; "
            "use a folder on another file system, such as a local disk"
        ) from error
    try:
        yield
    finally:
        lock.release()
