"""Fetch a data set of the catalogue: download it and unpack it into a folder with its name.

Archives are not trusted: their paths never decide where a file is written, links are refused, and the unpacked size is
limited. The folder appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
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
from xmckit.context import Bar, Progress, silent
from xmckit.data.catalogue import RECORD, ArchiveSource, Entry, KnownFile, download_folder, faults, manual_steps
from xmckit.data.download import RetryPolicy, TransferError, download, web_page_hint
from xmckit.errors import DataError, UsageError

# Unpacked files may have this many times the size of the archive: text compresses to a tenth, a bomb to a thousandth.
LARGEST_GROWTH = 100
ALWAYS_ALLOWED = 1 << 26
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True)
class FetchResult:
    """The result of `fetch`. `checked`: whether a published checksum was compared; None if the set existed."""

    name: str
    folder: Path
    address: str | None = None
    bytes: int = 0
    checked: bool | None = None


def fetch(
    entry: Entry,
    root: Path,
    *,
    progress: Progress = silent,
    retry: RetryPolicy | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> FetchResult:
    """Put the set into a folder with its name in `root`, unless a complete folder exists."""
    folder = root / entry.name
    if folder.exists() or folder.is_symlink():
        if wrong := faults(entry, folder):
            raise DataError(f"this folder is not the complete set: {'; '.join(wrong)}. Move it away", path=folder)
        return FetchResult(entry.name, folder)
    if not entry.sources:
        raise DataError(f"{entry.name} cannot be fetched: {manual_steps(entry, folder)}")
    with _locked_download_folder(folder) as waiting:
        store.remove_stale(root)
        source, size = _fetch_from_sources(entry, folder, waiting, progress, retry, log)
        shutil.rmtree(waiting)
    return FetchResult(entry.name, folder, source.address, size, source.checksum is not None)


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


def _fetch_from_sources(
    entry: Entry,
    folder: Path,
    waiting: Path,
    progress: Progress,
    retry: RetryPolicy | None,
    log: Callable[[str], None],
) -> tuple[ArchiveSource, int]:
    """Make the folder of the set from the first source that works. Return the source and the size of its archive."""
    failures = []
    for source in entry.sources:
        try:
            archive = download(source, waiting, progress=progress, retry=retry)
            _make_folder(entry, source, archive, folder, progress)
            return source, archive.stat().st_size
        except TransferError as error:
            failures.append(str(error))
            if source is not entry.sources[-1]:
                log(f"{error}; trying another address")
    raise DataError(f"could not fetch {entry.name}.\n{_lines(failures)}\nBy hand: {manual_steps(entry, folder)}")


def _lines(failures: list[str]) -> str:
    return "\n".join(f"- {failure}" for failure in failures)


def _make_folder(entry: Entry, source: ArchiveSource, archive: Path, folder: Path, progress: Progress) -> None:
    with store.atomic_folder(folder) as temporary:
        try:
            with progress("unpacking", total=len(entry.unpack)) as bar:
                files = unpack(archive, entry.unpack, temporary, bar)
            _check_files(entry, files)
        except DataError as error:
            archive.unlink()  # unpacking it again would fail again
            raise TransferError(f"{source.address}: {error}") from None
        store.write_json(temporary / RECORD, _record(entry, source, archive, files))


def _check_files(entry: Entry, files: Mapping[str, KnownFile]) -> None:
    """Raise DataError if a file differs from the size or checksum in the catalogue."""
    for name, actual in files.items():
        known = entry.needed[name]
        if known.bytes not in (None, actual.bytes) or known.sha256 not in (None, actual.sha256):
            raise DataError(f"{name} in the archive is not the file that the catalogue describes for {entry.name}")


def _record(entry: Entry, source: ArchiveSource, archive: Path, files: Mapping[str, KnownFile]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "address": source.address,
        "bytes": archive.stat().st_size,
        "sha256": store.file_sha256(archive),
        "licence": entry.licence,
        "citation": entry.citation,
        "files": {name: known.model_dump() for name, known in files.items()},
    }


# -- archives ------------------------------------------------------------------------------------------------------


def unpack(archive: Path, wanted: Mapping[str, str], folder: Path, bar: Bar | None = None) -> dict[str, KnownFile]:
    """Write only the files in `wanted` (file → the end of its path in the archive) into `folder`."""
    limit = LARGEST_GROWTH * archive.stat().st_size + ALWAYS_ALLOWED
    try:
        if zipfile.is_zipfile(archive):
            members = _zip_members(archive, wanted)
        elif tarfile.is_tarfile(archive):
            members = _tar_members(archive, wanted)
        else:
            raise DataError(
                f"this is neither a zip nor a tar archive. {web_page_hint(archive)}".rstrip(". "), path=archive
            )
        written: dict[str, KnownFile] = {}
        for name, stream in members:
            if name in written:
                raise DataError(f"the archive has several files {wanted[name]}", path=archive)
            written[name] = _write(stream, folder / name, limit, archive)
            limit -= written[name].bytes or 0
            if bar is not None:
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


def _zip_members(archive: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            name = None if member.is_dir() else _wanted_name(member.filename, wanted)
            if name is None:
                continue
            if stat.S_ISLNK(member.external_attr >> 16):
                raise DataError(f"{member.filename} is a link, expected a file", path=archive)
            with content.open(member) as stream:
                yield name, stream


def _tar_members(archive: Path, wanted: Mapping[str, str]) -> Iterator[tuple[str, IO[bytes]]]:
    # As a stream, because a compressed archive can only be read forwards.
    with tarfile.open(archive, "r|*") as content:
        for member in content:
            name = None if member.isdir() else _wanted_name(member.name, wanted)
            if name is None:
                continue
            stream = content.extractfile(member) if member.isreg() else None
            if stream is None:
                raise DataError(f"{member.name} is a link or a device, expected a file", path=archive)
            with stream:
                yield name, stream


def _write(stream: IO[bytes], path: Path, limit: int, archive: Path) -> KnownFile:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as target:
        while block := stream.read(1 << 20):
            size += len(block)
            if size > limit:
                raise DataError(f"its files are larger than {LARGEST_GROWTH} times its size", path=archive)
            digest.update(block)
            target.write(block)
    return KnownFile(bytes=size, sha256=digest.hexdigest())
