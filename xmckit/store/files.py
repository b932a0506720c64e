"""Write, link, lock and remove files and folders so that others see them complete or not at all.

Every write goes to a temporary name in the same folder and is then renamed, so that readers see the old file, the new
file, or none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from xmckit.errors import StorageError, UsageError, name_file_in_errors

TEMPORARY = ".tmp-"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_HOST = re.sub(r"\W", "", platform.node()) or "host"  # machines may share a folder


def temporary_beside(path: Path) -> Path:
    """Return a unique name in the same folder; it contains host and process id for `remove_stale`."""
    return path.with_name(f"{TEMPORARY}{_HOST}-{os.getpid()}-{secrets.token_hex(4)}-{path.name}")


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file beside `path`; on success it becomes `path`, on any error it is removed."""
    temporary = temporary_beside(path)
    try:
        with name_file_in_errors(path):
            with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with atomic_file(path, "w") as stream:
        stream.write(text)


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; on an error, such as a full disk, the file stays as it was."""
    content = (line + "\n").encode("utf-8", "backslashreplace")
    with name_file_in_errors(path), open(path, "ab", buffering=0) as stream:
        size = stream.seek(0, os.SEEK_END)
        try:
            while content:
                content = content[stream.write(content) :]
        except OSError:
            stream.truncate(size)
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
