"""Helpers of the readers: bytes of plain and gzip files, errors with line numbers, files with one string per line."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import mmap
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context, map_on_threads
from xmckit.data.model import Dataset, Split, check_entries
from xmckit.errors import DataError, UsageError
from xmckit.params import Configured
from xmckit.sparse import parse
from xmckit.sparse import parse_kernels as kernels
from xmckit.store import limits

# Entry of `Dataset.info` that says: no file declares the labels, they are those that rows happen to have.
LABEL_NAMES, FROM_ROWS = "label_names", "those of the rows"
_BLOCK = 1 << 22
_QUOTED_BYTES = 40
_BYTE_ORDER_MARK = "\ufeff"
# Errors that concern a whole row, so that quoting the bytes at their position would not help.
_UNQUOTED = (kernels.DUPLICATE_LABEL, kernels.DUPLICATE_INDEX, kernels.COLUMNS)

_MESSAGES = {
    kernels.BAD_LABEL: "expected a label number",
    kernels.NEGATIVE_LABEL: "a label number is negative",
    kernels.LABEL_RANGE: "a label number is out of range",
    kernels.LABEL_END: "expected a comma or a space after a label number",
    kernels.BAD_INDEX: "expected index:value",
    kernels.NEGATIVE_INDEX: "an index is negative",
    kernels.INDEX_RANGE: "an index is out of range",
    kernels.NO_COLON: "expected index:value, with the colon right after the index",
    kernels.BAD_VALUE: "expected a decimal number as value",
    kernels.NOT_FINITE: "a value is not a finite number in float32",
    kernels.VALUE_END: "expected a space after a value",
    kernels.STRAY_RETURN: "a carriage return inside a line",
    kernels.DUPLICATE_LABEL: "the row has one label twice",
    kernels.DUPLICATE_INDEX: "the row has one index twice",
    kernels.BAD_INTEGER: "expected non-negative whole numbers",
    kernels.COLUMNS: "this line has too few or too many numbers",
}


class FileReader(Configured, ABC):
    """Base of readers whose files have known names: a reader finds them, and this class checks that it is one set."""

    form: ClassVar[str]
    looks_for: ClassVar[str]

    @abstractmethod
    def layouts(self, path: Path) -> Sequence[Sequence[Path]]:
        """Return the files of each data set at `path`."""

    def matches(self, path: Path) -> bool:
        return len(self.layouts(path)) > 0

    def layout(self, path: Path) -> Sequence[Path]:
        """Return the files of the only data set at `path`."""
        layouts = self.layouts(path)
        if not layouts:
            raise DataError(f"not {self.form}: expected {self.looks_for}", path=path)
        if len(layouts) > 1:
            listed = "; ".join(", ".join(file.name for file in files) for files in layouts)
            raise UsageError(f"{path}: several data sets in one folder ({listed}). Move each to a folder of its own.")
        return layouts[0]


def find_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the names that is a file in `folder`, plain before `.gz`, or None."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def file_names(folder: Path) -> list[str]:
    """Return the sorted names of the files in a folder; none if the folder cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if _is_regular(entry))
    except OSError:
        return []


def matching_files(folder: Path, pattern: str) -> dict[str, Path]:
    """Return the files whose names match the pattern, ignoring case, by its first group; a plain file before `.gz`."""
    files: dict[str, Path] = {}
    for name in reversed(file_names(folder)):
        if match := re.fullmatch(rf"{pattern}(\.gz)?", name, re.IGNORECASE):
            key = (match[1] or "").lower()
            if key in files and files[key].name != f"{name}.gz":
                raise UsageError(
                    f"{folder}: is the data in {name} or in {files[key].name}? Move one to another folder."
                )
            files[key] = folder / name
    return files


def _is_regular(entry: os.DirEntry[str]) -> bool:
    """Exclude pipes and devices, which might never end; include broken links, so that the error names them."""
    if not entry.is_symlink():
        return entry.is_file()
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)


def read_bytes(path: Path) -> np.ndarray:
    """Return the content as read-only bytes: mapped, or decompressed if the name ends with `.gz`."""
    with report_read_errors(path):
        return _decompress_file(path) if path.suffix.lower() == ".gz" else _map_file(path)


@contextlib.contextmanager
def report_read_errors(path: str | Path) -> Iterator[None]:
    """Raise DataError for errors of the disk and of damaged gzip files."""
    try:
        yield
    except FileNotFoundError:
        raise DataError("no such file", path=path) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"this gzip file is damaged or breaks off: {error}", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path=path) from None


def _map_file(path: Path) -> np.ndarray:
    with open(path, "rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            return np.frombuffer(b"", dtype=np.uint8)
        return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _decompress_file(path: Path) -> np.ndarray:
    content, largest = bytearray(), limits.largest_content(path)
    with gzip.open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            content += block
            if len(content) > largest:
                limits.check_growth(path, len(content))
    text = np.frombuffer(content, dtype=np.uint8)
    text.flags.writeable = False
    return text


def line_number(text: np.ndarray, position: int) -> int:
    """Return the number, from 1, of the line that holds the byte at `position`."""
    return 1 + sum(
        int(np.count_nonzero(text[start : min(start + _BLOCK, position)] == 10)) for start in range(0, position, _BLOCK)
    )


def quote(text: np.ndarray, position: int, *, whole_line: bool = False) -> str:
    """Quote the word, or the rest of the line, at `position` for an error message."""
    line = text[position : position + _QUOTED_BYTES + 1].tobytes().split(b"\n")[0].removesuffix(b"\r")
    part = line if whole_line else line.split(b" ")[0]
    quoted = part[:_QUOTED_BYTES].decode("utf-8", "backslashreplace")
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in quoted)
    return f"'{printable}'" + ("…" if len(part) > _QUOTED_BYTES else "")


def error_text(text: np.ndarray, error: parse.TextError, expected: str = "") -> str:
    """Return the message for an error."""
    quoted = "" if error.code in _UNQUOTED else f", found {quote(text, error.position)}"
    hint = f" ({expected})" if expected else ""
    return f"{_MESSAGES[error.code]}{quoted}{hint}"


def raise_data_error(path: Path, text: np.ndarray, error: parse.TextError, expected: str = "") -> NoReturn:
    raise DataError(error_text(text, error, expected), path=path, line=line_number(text, error.position)) from None


def read_rows(
    path: Path,
    text: np.ndarray,
    start: int,
    grammar: parse.Grammar,
    *,
    context: Context,
    rows: int | None = None,
    expected: str = "",
) -> parse.SparseRows:
    """Parse `text` on the context's workers; raise DataError with file and line for an error in it.

    If the grammar does not say how many labels and features there are, the largest numbers in the text do, within the
    limits of `xmckit.store.limits`.
    """
    # Threads with every executor, because the chunks fill shared arrays.
    spread = functools.partial(map_on_threads, workers=context.workers)
    try:
        with context.progress(f"reading {path.name}", total=len(text) - start) as bar:
            parsed = parse.parse_rows(text, start, grammar, rows=rows, spread=spread, advance=bar.advance)
    except parse.WrongRows as error:
        message = f"the header says {rows} rows, found {error.rows} lines below it"
        raise DataError(message, path=path, line=1) from None
    except parse.TextError as error:
        raise_data_error(path, text, error, expected)
    if grammar.features > parse.LARGEST_INDEX:
        store.check_claim(path, "features", parsed.features_seen, len(text))
    if grammar.labels > parse.LARGEST_INDEX:
        store.check_claim(path, "labels", parsed.labels_seen, len(text))
    return parsed


def read_integers(path: Path, columns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (the numbers of a text table, its bytes)."""
    text = read_bytes(path)
    try:
        return parse.parse_integers(text, columns), text
    except parse.TextError as error:
        raise_data_error(path, text, error, f"expected {columns or 'as many'} on every line")


def check_range(path: Path, text: np.ndarray, table: np.ndarray, low: int, high: Sequence[int], message: str) -> None:
    """Raise DataError unless the numbers from `read_integers` are between `low` and the `high` of their column."""
    wrong = np.flatnonzero(((table < low) | (table > np.asarray(high))).any(axis=1))
    if not len(wrong):
        return
    lines_with_numbers = [line for line, content in enumerate(text.tobytes().split(b"\n"), 1) if content.strip()]
    # `read_integers` cuts the largest numbers.
    largest = kernels.LARGEST_INTEGER
    numbers = (f"a number above {largest - 1}" if number == largest else str(number) for number in table[wrong[0]])
    raise DataError(f"{message} {' '.join(numbers)}", path=path, line=lines_with_numbers[wrong[0]])


def decode_line(path: str | Path, content: bytes, line: int) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start} of the line is {content[error.start]:#04x}"
        raise DataError(message, path=path, line=line) from None


def parse_json(
    path: str | Path, number: int, line: bytes, what: str = "JSON", pairs_hook: Callable[[list], Any] | None = None
) -> Any:
    """Return the JSON value of a line, or raise DataError."""
    try:
        return json.loads(decode_line(path, line, number), object_pairs_hook=pairs_hook)
    except (ValueError, RecursionError) as error:
        # Without Python's line number, which is always 1.
        why = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(f"not {what}: {why}", path=path, line=number) from None


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a UTF-8 file without ends and byte order mark; lines end with LF or CR LF."""
    lines = read_bytes(path).tobytes().removeprefix(_BYTE_ORDER_MARK.encode()).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def read_strings(path: Path, *, count: int | None = None, what: str = "") -> list[str]:
    """Read strings, one per line; with `count`, raise DataError unless it is their number, one for each `what`.

    In a `.jsonl` file each is a JSON string, which may contain line ends.
    """
    parse_line = _json_string if path.name.removesuffix(".gz").endswith(".jsonl") else decode_line
    strings = [parse_line(path, line, number) for number, line in enumerate(read_lines(path), 1)]
    if count is not None and len(strings) != count:
        raise DataError(f"expected {count} lines, one for each {what}, found {len(strings)}", path=path)
    return strings


def _json_string(path: Path, line: bytes, number: int) -> str:
    string = parse_json(path, number, line)
    if not isinstance(string, str):
        raise DataError(f"expected a JSON string, found {line.decode()[:_QUOTED_BYTES]!r}", path=path, line=number)
    return check_encodable(string, path, number)


def is_row_id(value: Any) -> bool:
    """Return whether a JSON value can be the id of a row: a string, a whole number, or None."""
    return value is None or (isinstance(value, (str, int)) and not isinstance(value, bool))


def check_encodable(string: str, path: str | Path, line: int) -> str:
    """Return the string; raise DataError if it holds half of a surrogate pair, which UTF-8 cannot encode."""
    if not string.isascii():
        try:
            string.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("a string holds half of a surrogate pair, which is no text", path=path, line=line) from None
    return string


def write_strings(folder: Path, stem: str, strings: Iterable[str]) -> None:
    """Write `stem.txt` with one string per line, or `stem.jsonl` with JSON strings if text would not keep them."""
    strings = list(strings)
    starts_with_mark = bool(strings) and strings[0].startswith(_BYTE_ORDER_MARK)
    if starts_with_mark or any("\n" in string or "\r" in string for string in strings):
        store.write_text(folder / f"{stem}.jsonl", "".join(json.dumps(string) + "\n" for string in strings))
    else:
        store.write_text(folder / f"{stem}.txt", "".join(string + "\n" for string in strings))


def optional_strings(folder: Path, stems: Sequence[str], *, count: int, what: str) -> list[str] | None:
    path = strings_file(folder, *stems)
    return None if path is None else read_strings(path, count=count, what=what)


def strings_file(folder: Path, *stems: str) -> Path | None:
    return find_file(folder, *(f"{stem}{suffix}" for stem in stems for suffix in (".txt", ".jsonl")))


def check_ones(Y: csr_matrix, path: Path) -> csr_matrix:
    """Return Y; raise DataError unless all values are 1."""
    check_entries(Y, Y.data == 1, "a label's value must be 1", path=path)
    return Y


def check_dataset(dataset: Dataset, *paths: Path) -> Dataset:
    """Return the data set; raise DataError unless its parts fit together and it has rows and test labels.

    Training rows need no label, because labels of their groups may come from another file.
    """
    for split, path in zip((dataset.train, dataset.test), paths, strict=True):
        if not split.rows:
            raise DataError("there are no rows", path=path)
    if not dataset.test.Y.nnz:
        raise DataError("no row has a label", path=paths[1])
    try:
        dataset.check()
    except DataError as error:
        raise DataError(str(error), path=paths[0].parent) from None
    return dataset


def check_one_matrix(dataset: Dataset, form: str, *absent: str) -> None:
    """Raise UsageError unless the features of each split are one matrix and no split has an `absent` part."""
    for split in (dataset.train, dataset.test):
        if split.X is None or isinstance(split.X, dict):
            raise UsageError(f"{form} holds one feature matrix; this data has blocks or only texts: use npz or jsonl")
        check_absent(split, form, *absent)


def check_absent(split: Split, form: str, *parts: str) -> None:
    """Raise UsageError if a split has one of the parts, which a format cannot hold."""
    for part in parts:
        if getattr(split, part) is not None:
            raise UsageError(f"{form} cannot hold {part}: use npz")


def json_object(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    """Return the object of a line, or raise DataError."""
    content = parse_json(path, number, line, "a JSON object", _unique)
    if not isinstance(content, dict):
        raise DataError(f"expected a JSON object, found {type(content).__name__}", path=path, line=number)
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key occurs twice")
    return keys
