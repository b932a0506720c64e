"""Write, link, lock and remove files and folders so that others see them complete or not at all.

Every write goes to a temporary name in the same folder and is then renamed, so that readers see the old file, the new
file, or none. What `atomic_file` and `atomic_folder` wrote is on the disk when they return, and the content before the
name, so that this also holds after a loss of power. No link is followed when something is removed.
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
from typing import IO, TYPE_CHECKING, Any

from xmckit.errors import StorageError, UsageError, name_file_in_errors

if TYPE_CHECKING:
    from filelock import BaseFileLock

TEMPORARY = ".tmp-"
LARGE = 1 << 18  # bytes: smaller files are copied, larger ones are linked
_CLONE = 0x40049409  # FICLONE of Linux
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
            if not any(part.startswith(TEMPORARY) for part in path.parts):  # `atomic_folder` does it for its folder
                sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk: a rename is not before that."""
    if os.name != "posix":
        return  # Windows cannot open a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):  # some file systems cannot
            raise
    finally:
        os.close(descriptor)


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
def atomic_folder(path: Path, *, exclusive: bool = False, replace: bool = False, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on any error.

    If somebody else has completed `path` meanwhile, theirs stays: equal names mean equal content. If they do not,
    `exclusive` makes that a FileExistsError, and `replace` puts the new folder in the place of an older one. Without
    `sync` nobody waits for the disk: for a folder that is made of another one, and known by its checksums.
    """
    temporary, replaced = temporary_beside(path), temporary_beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for below, _, _ in os.walk(temporary) if sync else ():
            sync_folder(Path(below))
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
        if sync:
            sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        _remove(replaced)


def remove_folder(path: Path, keep: Callable[[Path], bool] = lambda folder: False) -> bool:
    """Remove a folder that others may look at: it disappears at once, not file by file. A link is removed itself.

    `keep` is asked about the folder when nobody else can reach it any more. If it says yes, because another process
    has put a new folder there meanwhile, the folder returns to its place and the answer is False.
    """
    doomed = temporary_beside(path)
    try:
        path.rename(doomed)
    except FileNotFoundError:
        return True
    if keep(doomed):
        with contextlib.suppress(OSError):  # somebody has put another one there: theirs stays
            os.rename(doomed, path)
        _remove(doomed)
        return False
    _remove(doomed)
    return True


def _remove(path: Path) -> None:
    """Remove what has this name, if anything has; others may be removing it too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_stale(folder: Path) -> None:
    """Remove the half-written files of killed processes of this machine from `folder`."""
    for entry in folder.glob(f"{TEMPORARY}{_HOST}-*"):
        process = entry.name.removeprefix(f"{TEMPORARY}{_HOST}-").split("-", 1)[0]
        if process.isdigit() and not process_alive(int(process)):
            _remove(entry)


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
    """Put every file below `source` into `target` by `link_file`."""

    def fail(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(source, onerror=fail):
        target_folder = target / Path(folder).relative_to(source)
        target_folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            link_file(Path(folder, name), target_folder / name)


def link_file(source: Path, target: Path) -> None:
    """Make `target` a file with the content of `source`, and of the same age.

    A small file is copied, so that a change of one does not change the other. A large one shares its blocks until one
    of the two is changed, where the file system can do that (btrfs, XFS); elsewhere it is a hard link, or a copy if
    there are no hard links either.
    """
    temporary = temporary_beside(target)
    try:
        if source.stat().st_size <= LARGE:
            shutil.copy2(source, temporary)
        elif not _clone(source, temporary):
            try:
                os.link(source, temporary)
            except OSError:
                shutil.copy2(source, temporary)
        os.replace(temporary, target)
    finally:
        # os.replace does nothing, and leaves both names, if they already are links to the same file.
        temporary.unlink(missing_ok=True)


def _clone(source: Path, target: Path) -> bool:
    """Make a file that shares the blocks of `source` until one of them is changed; return whether that is possible."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        with open(source, "rb") as old, open(target, "wb") as new:
            fcntl.ioctl(new.fileno(), _CLONE, old.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        return False
    shutil.copystat(source, target)
    return True


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file `path` during the block.

    UsageError with the text `busy` if another process holds it; StorageError if the file system has no locks.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(busy) from None
    except (NotImplementedError, OSError) as error:
        if not _has_no_locks(error):
            raise
        raise StorageError(
            f"{path}: this file system has no file locks, which keep two processes from writing into the same folder; "
            "use a folder on another file system, such as a local disk"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def turn(path: Path, waiting: Callable[[], contextlib.AbstractContextManager[Any]] | None) -> Iterator[bool]:
    """Hold the lock file `path` during the block, for work that two processes may do at once but should not.

    If another process holds it, wait within `waiting()` until that one releases it or ends; with None do not wait.
    Yield whether it is this process's turn: True also if the file system has no locks. The file is removed at the end.
    """
    from filelock import FileLock

    lock = FileLock(path, fallback_to_soft=False)
    if not _take(lock, waiting):
        yield False
        return
    try:
        yield True
    finally:
        if os.name == "posix":  # Windows does not remove open files; there, filelock removes them after the release
            path.unlink(missing_ok=True)  # while it is held: whoever waits looks for the file again
        lock.release()


def _take(lock: BaseFileLock, waiting: Callable[[], contextlib.AbstractContextManager[Any]] | None) -> bool:
    """Acquire a lock; return False if another process holds it and nobody wants to wait."""
    from filelock import Timeout

    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is None:
                return False
            with waiting():
                lock.acquire()
    except (NotImplementedError, OSError) as error:
        if not _has_no_locks(error):
            raise
    return True


def _has_no_locks(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) or (isinstance(error, OSError) and error.errno in _NO_LOCKS)
