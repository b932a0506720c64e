"""Fetch a data set of the catalogue: download it and unpack it into a folder with its name.

Archives are not trusted: their paths never decide where a file is written, links are refused, and the unpacked size is
limited. The folder appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from xmckit import store
from xmckit.context import Progress, silent
from xmckit.data.catalogue import RECORD, ArchiveSource, Entry, KnownFile, download_folder, faults, manual_steps
from xmckit.data.download import RetryPolicy, TransferError, download, web_page_hint
from xmckit.errors import DataError, UsageError, name_file_in_errors

# Unpacked files may have this many times the size of the archive: text compresses to a tenth, a bomb to a thousandth.
LARGEST_GROWTH = 100
ALWAYS_ALLOWED = 1 << 26
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True)
class FetchResult:
    """The result of `fetch`. `checked`: whether a published checksum was compared; None if the set existed."""

    folder: Path
    address: str | None = None
    bytes: int = 0
    checked: bool | None = None


def fetch(
    entry: Entry,
    root: Path,
    *,
    progress: Progress = silent,
    retry: RetryPolicy,
    log: Callable[[str], None] = lambda message: None,
) -> FetchResult:
    """Put the set into a folder with its name in `root`, from the first source that works, unless it is complete."""
    folder = root / entry.name
    if folder.exists() or folder.is_symlink():
        if wrong := faults(entry, folder):
            raise DataError(f"this folder is not the complete set: {'; '.join(wrong)}. Move it away", path=folder)
        return FetchResult(folder)
    if not entry.sources:
        raise DataError(f"{entry.name} cannot be fetched: {manual_steps(entry, folder)}")
    failures = []
    with _locked_download_folder(folder) as waiting:
        store.remove_stale(root)
        for source in entry.sources:
            try:
                archive = download(source, waiting, progress=progress, retry=retry)
                _make_folder(entry, source, archive, folder, progress)
            except TransferError as error:
                failures.append(f"- {error}\n")
                if source is not entry.sources[-1]:
                    log(f"{error}; trying another address")
            else:
                size = archive.stat().st_size
                shutil.rmtree(waiting)
                return FetchResult(folder, source.address, size, source.checksum is not None)
    raise DataError(f"could not fetch {entry.name}.\n{''.join(failures)}By hand: {manual_steps(entry, folder)}")


@contextlib.contextmanager
def _locked_download_folder(folder: Path) -> Iterator[Path]:
    """Lock and return the folder for unfinished downloads; remove it if it stays empty."""
    waiting = download_folder(folder)
    created_parent = not folder.parent.exists()
    try:
        waiting.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder.parent} cannot be a folder: a file has this name") from None
    with store.locked(waiting / ".lock", f"{folder.name} is being fetched by another process; wait for it or stop it"):
        try:
            yield waiting
        finally:
            if waiting.is_dir() and [entry.name for entry in waiting.iterdir()] == [".lock"]:
                shutil.rmtree(waiting)  # nothing was received
                if created_parent and not any(folder.parent.iterdir()):
                    folder.parent.rmdir()


def _make_folder(entry: Entry, source: ArchiveSource, archive: Path, folder: Path, progress: Progress) -> None:
    with store.atomic_folder(folder) as temporary:
        try:
            files = unpack(archive, entry.unpack, temporary, progress)
            _check_files(entry, files)
        except DataError as error:
            archive.unlink()  # unpacking it again would fail again
            raise TransferError(f"{source.address}: {error}") from None
        record = {
            "name": entry.name,
            "address": source.address,
            "bytes": archive.stat().st_size,
            "sha256": store.file_sha256(archive),
            "licence": entry.licence,
            "citation": entry.citation,
            "files": {name: known.model_dump() for name, known in files.items()},
        }
        store.write_json(temporary / RECORD, record)


def _check_files(entry: Entry, files: Mapping[str, KnownFile]) -> None:
    """Raise DataError if a file differs from the size or checksum in the catalogue."""
    for name, actual in files.items():
        known = entry.needed[name]
        if known.bytes not in (None, actual.bytes) or known.sha256 not in (None, actual.sha256):
            raise DataError(f"{name} in the archive is not the file that the catalogue describes for {entry.name}")


# -- archives ------------------------------------------------------------------------------------------------------


def unpack(archive: Path, wanted: Mapping[str, str], folder: Path, progress: Progress = silent) -> dict[str, KnownFile]:
    """Write only the files in `wanted` (file → the end of its path in the archive) into `folder`."""
    limit = LARGEST_GROWTH * archive.stat().st_size + ALWAYS_ALLOWED
    written: dict[str, KnownFile] = {}
    try:
        with progress("unpacking", total=len(wanted)) as bar:
            for path, is_file, open_member in _members(archive):
                name = _wanted_name(path, wanted)
                if name is None:
                    continue
                if not is_file:
                    raise DataError(f"{path} is a link or a device, expected a file", path=archive)
                if name in written:
                    raise DataError(f"the archive has several files {wanted[name]}", path=archive)
                with open_member() as stream:
                    written[name] = _write(stream, folder / name, limit, archive)
                limit -= written[name].bytes or 0
                bar.advance(1)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # an error of the disk; EINVAL comes from an invalid position in a damaged archive
        raise DataError(f"the archive is damaged: {error}", path=archive) from None
    if missing := [path for name, path in wanted.items() if name not in written]:
        raise DataError(f"the archive has no file {', '.join(missing)}", path=archive)
    return written


def _wanted_name(member: str, wanted: Mapping[str, str]) -> str | None:
    """Return the wanted file that a path in an archive matches, ignoring case, or None."""
    parts = PurePosixPath(member.replace("\\", "/").lower()).parts
    for name, end in wanted.items():
        tail = PurePosixPath(end.lower()).parts
        if parts[-len(tail) :] == tail:
            return name
    return None


def _members(archive: Path) -> Iterator[tuple[str, bool, Callable[[], Any]]]:
    """Yield the path of each member that is no folder, whether it is a regular file, and a function that opens it."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as content:
            for entry in content.infolist():
                if not entry.filename.endswith("/"):  # is_dir() fails for an empty name
                    is_link = stat.S_ISLNK(entry.external_attr >> 16)
                    yield entry.filename, not is_link, functools.partial(content.open, entry)
    elif tarfile.is_tarfile(archive):
        # As a stream, because a compressed archive can only be read forwards.
        with tarfile.open(archive, "r|*") as stream:
            for member in stream:
                if not member.isdir():
                    yield member.name, member.isreg(), functools.partial(stream.extractfile, member)
    else:
        message = f"this is neither a zip nor a tar archive. {web_page_hint(archive)}"
        raise DataError(message.rstrip(". "), path=archive)


def _write(stream: IO[bytes], path: Path, limit: int, archive: Path) -> KnownFile:
    digest, size = hashlib.sha256(), 0
    with name_file_in_errors(path), open(path, "xb") as target:
        while block := stream.read(1 << 20):
            size += len(block)
            if size > limit:
                raise DataError(f"its files are larger than {LARGEST_GROWTH} times its size", path=archive)
            digest.update(block)
            target.write(block)
    return KnownFile(bytes=size, sha256=digest.hexdigest())
