"""Checksums of stored files: written when a folder is complete, compared when a block of a file is first read.

A record is a JSON file that lists the files below its folder:

    {…, "files": {"head/weights.safetensors": {"bytes": 2000000, "modified": 1700000000000000000, "xxh3": "5c0d…"}},
     "checksum": "91f2…"}

`xxh3` has 16 hexadecimal digits for each block of 1 MiB, so that a part of a large file is checked without the rest;
`modified` is the time of the last change in nanoseconds; `checksum` is that of the record itself. All readers of
`xmckit.store` look for the record above the file that they read. The checksums are XXH3, which is as fast as memory:
they find damage. They are no signature, because anybody who can change a file can change its checksum too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import mmap
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from xmckit.errors import StorageError, counted
from xmckit.store.damage import RUN_RECORD, STAGE_RECORD, damaged, is_run_folder
from xmckit.store.files import LARGE, atomic_file

if TYPE_CHECKING:
    import zipfile

BLOCK = 1 << 20
_DIGITS = 16  # of a block's checksum
_HIGHEST = 8  # folders between a file and its record
_SELF_CHECKED = (".json", ".npz", ".safetensors")  # read by `xmckit.store`, and so compared while they are read


@dataclass(frozen=True)
class Expected:
    """What a record says about a file: its size, and the checksum of each block."""

    record: Path
    bytes: int
    modified: int
    xxh3: str

    def differs(self, number: int, block: Any) -> bool:
        """Return whether a block's content is not what was stored."""
        return _digest(block) != self.xxh3[number * _DIGITS : (number + 1) * _DIGITS]


@dataclass(frozen=True)
class Flaw:
    """A damaged file of a folder, and what is wrong with it."""

    file: str
    why: str


# -- write -----------------------------------------------------------------------------------------------------------


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum of itself."""
    # As it will be read: keys that are numbers become texts, which sort in another order.
    content = json.loads(json.dumps({name: value for name, value in content.items() if name != "checksum"}))
    with atomic_file(path, "w") as stream:
        json.dump({**content, "checksum": _digest(canonical(content))}, stream, indent=2, ensure_ascii=False)
        stream.write("\n")


def seal(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the record of a stage's folder, which is complete: `content`, and the checksums of all files.

    Large files, which `link_file` links into several folders, become read-only.
    """
    files = {}
    for name, path in _files(folder).items():
        files[name] = file_checksums(path)
        if files[name]["bytes"] > LARGE and os.name == "posix":  # Windows does not replace read-only files
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
    write_record(folder / STAGE_RECORD, {**content, "files": files})


def file_checksums(path: Path) -> dict[str, Any]:
    """Return a file's entry in a record."""
    with open(path, "rb", buffering=0) as stream:
        digests = "".join(map(_digest, _blocks(stream)))
        facts = os.fstat(stream.fileno())
    return {"bytes": facts.st_size, "modified": facts.st_mtime_ns, "xxh3": digests}


# -- read ------------------------------------------------------------------------------------------------------------


def open_checked(path: Path) -> IO[bytes]:
    """Open a file to read; if a record lists it, each block is compared with its checksum when it is first read."""
    expected = find_expected(path)
    return open(path, "rb") if expected is None else CheckedFile(path, expected)  # type: ignore[return-value]


def trust_archive(archive: zipfile.ZipFile) -> None:
    """Do not compute the CRC-32 of an archive that `open_checked` has opened, if stronger checksums are compared."""
    if isinstance(archive.fp, CheckedFile):
        for member in archive.infolist():
            if hasattr(member, "CRC"):
                del member.CRC  # zipfile compares it if there is one


def compare_bytes(path: Path, content: bytes) -> None:
    """Raise StorageError if the whole content of a file, just read, is not what its record says."""
    expected = find_expected(path)
    if expected is not None:
        if len(content) != expected.bytes:
            raise damaged(path, f"{len(content):,} bytes, its record says {expected.bytes:,}")
        view = memoryview(content)
        _raise_if_different(path, expected, (view[start : start + BLOCK] for start in range(0, len(content), BLOCK)))
        _compared.add(_signature(path))


def compare_file(path: Path, *, mapped: bool = False) -> None:
    """Read a whole file, and raise StorageError if it is not what its record says.

    `mapped` is for a file that is going to be mapped into memory anyway: its content is not copied.
    """
    expected = find_expected(path)
    if expected is not None:
        with open(path, "rb", buffering=0) as stream:
            if (size := os.fstat(stream.fileno()).st_size) != expected.bytes:
                raise damaged(path, f"{size:,} bytes, its record says {expected.bytes:,}")
            blocks = _mapped_blocks(stream) if mapped and size else _blocks(stream)
            _raise_if_different(path, expected, blocks)
        _compared.add(_signature(path))


@contextlib.contextmanager
def compared(folder: Path) -> Iterator[None]:
    """Compare all files of a folder that the block loads.

    `xmckit.store` compares what it reads. Files of other types, which a library may parse in native code, are compared
    before the block, and what the block did not read by `xmckit.store` is compared after it.
    """
    nearest = _nearest_record(Path(os.path.abspath(folder), "any file"))
    names = list(_files(folder).values()) if nearest is not None and nearest[0].name == STAGE_RECORD else []
    for path in names:
        if path.suffix not in _SELF_CHECKED:
            compare_file(path)
    yield
    for path in names:
        if _signature(path) not in _compared:
            compare_file(path)


def read_record(path: Path) -> dict[str, Any]:
    """Read a record, and compare it with its own checksum; one that has no checksums is of an older version."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not JSON: {error}") from None
    compare_record(path, content)
    checked: dict[str, Any] = content
    return checked


def compare_record(path: Path, content: Any) -> None:
    """Raise StorageError if the content of a record does not have the checksum in it."""
    if not isinstance(content, dict):
        raise damaged(path, f"expected an object, found a {type(content).__name__}")
    files = content.get("files", {})
    if not isinstance(files, dict):
        raise damaged(path, f"expected files by name, found a {type(files).__name__}")
    if "checksum" not in content:
        # A key that is damaged itself is missing; records of older versions list sizes, or no files.
        if any(not isinstance(entry, int) for entry in files.values()) or "sequence" in content:
            raise damaged(path, "its own checksum is missing")
        return
    rest = {name: value for name, value in content.items() if name != "checksum"}
    try:
        digest = _digest(canonical(rest))
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    if digest != content["checksum"]:
        raise damaged(path, "its content does not have the checksum that it was written with")
    if not all(isinstance(entry, int) or _is_entry(entry) for entry in files.values()):
        raise damaged(path, "expected bytes, modified and xxh3 of each file")


def has_checksums(record: Mapping[str, Any]) -> bool:
    """Return whether a record lists checksums; those of older versions list sizes."""
    return "checksum" in record


def find_expected(path: Path) -> Expected | None:
    """Return what the nearest record above a file says about it; None if there is none, or none with checksums.

    StorageError if the file lies in the folder of a stage whose record does not list it.
    """
    path = Path(os.path.abspath(path))
    nearest = _nearest_record(path)
    if nearest is None:
        return None
    record, content = nearest
    entry = content.get("files", {}).get(path.relative_to(record.parent).as_posix())
    if isinstance(entry, dict):
        return Expected(record, **entry)
    if record.name == STAGE_RECORD:
        raise damaged(path, f"{record} does not list it")
    return None


def _nearest_record(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest record with checksums above a file, other than the file itself, and its content."""
    for folder in path.parents[:_HIGHEST]:
        for record in (folder / STAGE_RECORD, folder / RUN_RECORD):
            with contextlib.suppress(OSError):
                facts = os.stat(record)
                if record != path and (record.name == STAGE_RECORD or is_run_folder(folder)):
                    content = _cached_record(record, facts.st_ino, facts.st_size, facts.st_mtime_ns)
                    if has_checksums(content):
                        return record, content
    return None


class CheckedFile(io.RawIOBase):
    """A file that is read by blocks, each compared with its checksum when it is first read."""

    def __init__(self, path: Path, expected: Expected):
        super().__init__()
        self._path, self._expected = path, expected
        self._stream = open(path, "rb", buffering=0)  # noqa: SIM115  closed by `close`
        size = os.fstat(self._stream.fileno()).st_size
        if size != expected.bytes:
            self._stream.close()
            raise damaged(path, f"{size:,} bytes, its record says {expected.bytes:,}")
        self._block = memoryview(bytearray(min(BLOCK, size)))
        self._number, self._filled, self._position = -1, 0, 0
        self._unread = set(range(-(-size // BLOCK)))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._expected.bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "negative position")  # as the system says it, which zipfile relies on
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        done = 0
        while done < len(target) and self._position < self._expected.bytes:
            number, offset = divmod(self._position, BLOCK)
            self._load(number)
            count = min(len(target) - done, self._filled - offset)
            target[done : done + count] = self._block[offset : offset + count]
            done += count
            self._position += count
        return done

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._expected.bytes - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        number, offset = divmod(self._position, BLOCK)
        if 0 < size <= BLOCK - offset:
            self._load(number)
            self._position += size
            return bytes(self._block[offset : offset + size])
        content = bytearray(size)
        self.readinto(content)
        return bytes(content)

    def close(self) -> None:
        if not self.closed and not self._unread:
            _compared.add(_signature(self._path))
        self._stream.close()
        super().close()

    def _load(self, number: int) -> None:
        if number == self._number:
            return
        self._stream.seek(number * BLOCK)
        self._filled = _fill(self._stream, self._block)
        block = self._block[: self._filled]
        if number in self._unread and self._expected.differs(number, block):
            self._number = -1
            raise _different(self._path, self._expected, [number])
        self._number = number
        self._unread.discard(number)


# -- look for damage -------------------------------------------------------------------------------------------------


def folder_flaws(
    folder: Path,
    record: Mapping[str, Any],
    *,
    thorough: bool,
    advance: Callable[[int], None] = lambda count: None,
    known: dict[tuple[int, ...], str] | None = None,
) -> list[Flaw]:
    """Compare a stage's folder with its record, a sound one: missing, foreign and damaged files, and links.

    Without `thorough` a file is read only if it was changed after the record was written. `known` remembers what was
    found in a file, for other names of the same file; `advance` is called with the number of bytes of each file.
    """
    listed, flaws = record.get("files", {}), []
    here = {name: path for name, path in _entries(folder) if name != STAGE_RECORD}
    for name in sorted(here.keys() | listed.keys()):
        if name not in here:
            flaws.append(Flaw(name, "missing"))
        elif here[name].is_symlink():
            flaws.append(Flaw(name, f"a symbolic link to {os.readlink(here[name])}"))
        elif name not in listed:
            flaws.append(Flaw(name, "not in the record"))
        elif why := file_flaw(here[name], listed[name], thorough=thorough, known=known):
            flaws.append(Flaw(name, why))
        if name in here and name in listed:
            advance(here[name].lstat().st_size)
    return flaws


def file_flaw(path: Path, entry: Any, *, thorough: bool = True, known: dict[tuple[int, ...], str] | None = None) -> str:
    """Compare a file with its entry in a record; return what is wrong, empty if nothing is."""
    facts = path.stat()
    if isinstance(entry, int):  # of an older version
        return "" if facts.st_size == entry else f"{facts.st_size:,} bytes instead of {entry:,}"
    if facts.st_size != entry["bytes"]:
        return f"{facts.st_size:,} bytes instead of {entry['bytes']:,}"
    if not thorough and facts.st_mtime_ns == entry["modified"]:
        return ""
    same_file = (*_signature(path), hash(entry["xxh3"]))
    if known is not None and same_file in known:
        return known[same_file]
    expected = Expected(path, **entry)
    try:
        with open(path, "rb", buffering=0) as stream:
            wrong = [number for number, block in enumerate(_blocks(stream)) if expected.differs(number, block)]
        why = _describe(expected, wrong) if wrong else ""
    except OSError as error:
        why = f"it cannot be read: {error.strerror}"
    if known is not None:
        known[same_file] = why
    return why


def canonical(value: Any) -> bytes:
    """Return a JSON value as bytes that do not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


_compared: set[tuple[int, ...]] = set()  # signatures of the files that this process has compared as a whole


def _signature(path: Path) -> tuple[int, ...]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


@functools.lru_cache(maxsize=256)
def _cached_record(path: Path, inode: int, size: int, modified: int) -> dict[str, Any]:
    return read_record(path)


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.keys() != {"bytes", "modified", "xxh3"}:
        return False
    size, digests = entry["bytes"], entry["xxh3"]
    right_types = type(size) is int and type(entry["modified"]) is int and isinstance(digests, str)
    return right_types and size >= 0 and len(digests) == -(-size // BLOCK) * _DIGITS


def _raise_if_different(path: Path, expected: Expected, blocks: Iterable[Any]) -> None:
    if wrong := [number for number, block in enumerate(blocks) if expected.differs(number, block)]:
        raise _different(path, expected, wrong)


def _different(path: Path, expected: Expected, wrong: list[int]) -> StorageError:
    return damaged(path, f"{_describe(expected, wrong)} in {expected.record}")


def _describe(expected: Expected, wrong: list[int]) -> str:
    start, all_blocks = wrong[0] * BLOCK, counted(-(-expected.bytes // BLOCK), "block")
    which = f"bytes {start:,} to {min(start + BLOCK, expected.bytes) - 1:,}"
    return f"{len(wrong):,} of {all_blocks}, the first at {which}, does not have the checksum"


def _files(folder: Path) -> dict[str, Path]:
    """Return all files below a folder except its record; StorageError if there is a link."""
    files = {}
    for name, path in _entries(folder):
        if path.is_symlink():
            raise StorageError(
                f"{path} is a symbolic link to {os.readlink(path)}: a stage holds files and folders only"
            )
        if name != STAGE_RECORD:
            files[name] = path
    return files


def _entries(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield everything below a folder that is not a folder itself, links to folders included."""
    for below, folders, names in sorted(os.walk(folder)):
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        for name in sorted([*names, *links]):
            path = Path(below, name)
            yield path.relative_to(folder).as_posix(), path


def _blocks(stream: Any) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(BLOCK))
    while filled := _fill(stream, buffer):
        yield buffer[:filled]


def _mapped_blocks(stream: Any) -> Iterator[memoryview]:
    with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
        for start in range(0, len(view), BLOCK):
            with view[start : start + BLOCK] as block:
                yield block


def _fill(stream: Any, buffer: memoryview) -> int:
    """Read until the buffer is full or the file ends; return the number of bytes."""
    filled = 0
    while filled < len(buffer) and (count := stream.readinto(buffer[filled:])):
        filled += count
    return filled


def _digest(content: Any) -> str:
    import xxhash

    return xxhash.xxh3_64_hexdigest(content)
