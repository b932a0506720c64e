"""Read rows to predict for from a stream of any length, in chunks, with constant memory.

Formats: `text` (one per line), `jsonl` (a string, or an object with a text and an optional id), `csv` and `tsv` (with a
line of column names), `xmc` and `svmlight` (features; labels are ignored). A chunk ends when it is large enough or when
no further line has arrived: a program that writes one line into a pipe gets its prediction before it writes the next.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, get_args

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data import reading
from xmckit.data.arrays import check_values
from xmckit.data.model import Matrix
from xmckit.errors import DataError, UsageError
from xmckit.sparse.parse import Grammar, SparseRows, TextError, parse_rows

Format = Literal["text", "jsonl", "csv", "tsv", "xmc", "svmlight"]
FORMATS: tuple[str, ...] = get_args(Format)
FEATURE_FORMATS = ("xmc", "svmlight")
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".svm": "svmlight", ".svmlight": "svmlight",
}  # fmt: skip

BLOCK = 1 << 20
ROWS_AT_ONCE = 2048
BYTES_AT_ONCE = 8 << 20
LONGEST_LINE = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"\s*\d+\s+(\d{1,18})(?:\s+\d+)?\s*")


@dataclass(frozen=True)
class InputRows:
    """Rows that are predicted together: texts or features, with the line number and the id of each."""

    lines: Sequence[int]
    ids: Sequence[str | None]
    texts: Sequence[str] | None = None
    X: Matrix | None = None

    @property
    def inputs(self) -> Any:
        """The input of a model: features, or texts if there are none."""
        return self.texts if self.X is None else self.X

    def __len__(self) -> int:
        return len(self.lines)


class Lines:
    """The numbered lines of a stream of bytes. `waiting`: no further line has arrived."""

    def __init__(self, stream: IO[bytes], name: str, advance: Callable[[float], None] = lambda bytes_: None):
        self.name, self._stream, self._advance = name, stream, advance
        self._ready: deque[bytes] = deque()
        self._parts: list[bytes] = []

    @property
    def waiting(self) -> bool:
        return not self._ready

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while self._ready or self._more(number + 1):
            number += 1
            line = self._ready.popleft().removesuffix(b"\r")
            yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line

    def _more(self, number: int) -> bool:
        """Wait for a complete line, or a last line without its end. Return False at the end of the stream."""
        while not self._ready:
            block = self._read()
            self._parts.append(block)
            if b"\n" in block or not block:
                *lines, rest = b"".join(self._parts).split(b"\n")
                self._ready.extend(lines if block else [*lines, rest] if rest else lines)
                self._parts = [rest] if block else []
            if not block:
                break
            if sum(map(len, self._parts)) > LONGEST_LINE:
                raise DataError(f"a line is longer than {LONGEST_LINE >> 20} MiB", path=self.name, line=number)
        return bool(self._ready)

    def _read(self) -> bytes:
        try:
            block: bytes = self._stream.read1(BLOCK)  # type: ignore[attr-defined]
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"this gzip file is damaged or breaks off: {error}", path=self.name) from None
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path=self.name) from None
        self._advance(len(block))
        return block


@dataclass
class SkippedLines:
    """The number of unusable lines, and the first few errors."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, error: DataError) -> None:
        self.count += 1
        if len(self.first) < 5:
            self.first.append(str(error))


def read_chunks(
    lines: Lines, form: Format, *, width: int | None = None, column: str = "text", skipped: SkippedLines | None = None
) -> Iterator[InputRows]:
    """Yield the rows in chunks. With `skipped`, count bad lines there; otherwise raise after the rows before the line.

    `width` is the number of features of the model; `column` is the field or column with the text.
    """
    if form in FEATURE_FORMATS and width is None:
        raise UsageError("this model takes texts, not features")
    chunk: list[_Row] = []
    size, wrong = 0, None
    for record in _with_stream_error(_line_results(lines, form, column, width)):
        if isinstance(record, _Row):
            chunk.append(record)
            size += len(record.content)
        elif record is not None:
            if skipped is None or record.line is None:
                wrong = record
                break
            skipped.add(record)
        if chunk and (lines.waiting or len(chunk) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE):
            yield from _input_rows(chunk, form, width, lines.name, skipped)
            chunk, size = [], 0
    if chunk:
        yield from _input_rows(chunk, form, width, lines.name, skipped)
    if wrong is not None:
        raise wrong


@dataclass(frozen=True)
class _Row:
    line: int
    content: Any  # str for texts, bytes for features
    id: str | None = None


# The result of a line: a row, an error, or None. None is passed on too, so that the rows before it need not wait.
_LineResult: TypeAlias = "_Row | DataError | None"


def _with_stream_error(records: Iterator[_LineResult]) -> Iterator[_LineResult]:
    """Yield the results and, at the end, an error of the stream itself, which has no line."""
    try:
        yield from records
    except DataError as error:
        yield DataError(str(error))


def _line_results(lines: Lines, form: Format, column: str, width: int | None) -> Iterator[_LineResult]:
    if form == "text":
        return (_text_row(lines.name, number, line) for number, line in lines)
    if form == "jsonl":
        return (_json_row(lines.name, number, line, column) for number, line in lines)
    if form in ("csv", "tsv"):
        return _table_rows(lines, form, column)
    return _feature_rows(lines, form, width)


def _text_row(name: str, number: int, line: bytes) -> _Row | DataError:
    try:
        return _Row(number, reading.decode_line(Path(name), line, number))
    except DataError as error:
        return error


def _json_row(name: str, number: int, line: bytes, column: str) -> _LineResult:
    if not line.strip():
        return None

    def wrong(why: str) -> DataError:
        return DataError(why, path=name, line=number)

    try:
        content = json.loads(reading.decode_line(Path(name), line, number))
    except DataError as error:
        return error
    except (ValueError, RecursionError) as error:
        return wrong(f"not JSON: {reading.json_error_text(error)}")
    identity = content.get("id") if isinstance(content, dict) else None
    text = content.get(column) if isinstance(content, dict) else content
    if isinstance(content, dict) and column not in content:
        fields = ", ".join(list(content)[:8])[:200] or "nothing"
        return wrong(f"no field '{column}', only {fields}; choose the field with the text (--column)")
    if not isinstance(text, str):
        return wrong(f"expected a string, or an object with a string '{column}'")
    if identity is not None and (isinstance(identity, bool) or not isinstance(identity, (str, int))):
        return wrong("an id must be a string or a whole number")
    identity = None if identity is None else str(identity)
    try:
        reading.check_encodable(f"{text}{identity}", Path(name), number)
    except DataError as error:
        return error
    return _Row(number, text, identity)


def _table_rows(lines: Lines, form: Format, column: str) -> Iterator[_LineResult]:
    csv.field_size_limit(LONGEST_LINE)
    # Let invalid bytes pass through the csv reader, which cannot continue after an error in its input.
    texts = (line.decode("utf-8", "surrogateescape") + "\n" for _, line in lines)
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if form == "tsv" else {"strict": True}
    reader = csv.reader(texts, **dialect)
    columns: list[str] | None = None
    while True:
        begin = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield DataError(f"not {form}: {error}", path=lines.name, line=begin)
            continue
        if not fields:
            yield None
            continue
        if columns is None:
            columns = fields
            if column not in columns:
                raise DataError(
                    f"no column '{column}', only {', '.join(columns)}; choose the column with the texts (--column)",
                    path=lines.name,
                    line=begin,
                )
            continue
        yield _table_row(lines.name, begin, fields, columns, column)


def _table_row(name: str, number: int, fields: list[str], columns: list[str], column: str) -> _Row | DataError:
    if len(fields) != len(columns):
        return DataError(f"expected {len(columns)} columns, found {len(fields)}", path=name, line=number)
    values = dict(zip(columns, fields, strict=True))
    text, identity = values[column], values.get("id")
    try:
        f"{text}{identity}".encode()
    except UnicodeEncodeError:
        return DataError("not UTF-8", path=name, line=number)
    return _Row(number, text, identity)


def _feature_rows(lines: Lines, form: Format, width: int | None) -> Iterator[_LineResult]:
    for number, line in lines:
        if form == "xmc" and number == 1 and (header := _HEADER.fullmatch(line)):
            if int(header[1]) != width:
                raise DataError(f"the file has {int(header[1])} features, the model takes {width}", path=lines.name)
            continue
        no_row = form == "svmlight" and not line.partition(b"#")[0].strip()
        yield None if no_row else _Row(number, line)


def _input_rows(
    chunk: Sequence[_Row], form: Format, width: int | None, name: str, skipped: SkippedLines | None
) -> Iterator[InputRows]:
    if form not in FEATURE_FORMATS:
        yield InputRows([row.line for row in chunk], [row.id for row in chunk], texts=[row.content for row in chunk])
        return
    assert width is not None
    grammar = Grammar(features=width, first_feature=1 if form == "svmlight" else 0, annotated=form == "svmlight")
    good, wrong = chunk, None
    try:
        parsed = _parse(chunk, grammar)
    except TextError:
        good, wrong = _valid_rows(chunk, grammar, width, name, skipped)
        parsed = _parse(good, grammar)
    if good:
        yield InputRows([row.line for row in good], [row.id for row in good], X=parsed.features(width))
    if wrong is not None:
        raise wrong


def _valid_rows(
    chunk: Sequence[_Row], grammar: Grammar, width: int, name: str, skipped: SkippedLines | None
) -> tuple[list[_Row], DataError | None]:
    """Return the valid rows before the first error, and this error; with `skipped`, all valid rows."""
    good = []
    for record in chunk:
        wrong = _row_error(record, grammar, width, name)
        if wrong is None:
            good.append(record)
        elif skipped is None:
            return good, wrong
        else:
            skipped.add(wrong)
    return good, None


def _parse(chunk: Sequence[_Row], grammar: Grammar) -> SparseRows:
    return parse_rows(_bytes(chunk), 0, grammar, rows=None if grammar.annotated else len(chunk))


def _bytes(chunk: Sequence[_Row]) -> np.ndarray:
    return np.frombuffer(b"".join(record.content + b"\n" for record in chunk), dtype=np.uint8)


def _row_error(record: _Row, grammar: Grammar, width: int, name: str) -> DataError | None:
    try:
        _parse([record], grammar)
    except TextError as error:
        expected = f"features are numbered from {grammar.first_feature} and there are {width}"
        return DataError(reading.error_text(_bytes([record]), error, expected), path=name, line=record.line)
    return None


def matrix_chunks(X: Matrix, path: Path) -> Iterator[InputRows]:
    """Yield the rows of a matrix in chunks; a dense matrix may be mapped from disk."""
    for start in range(0, int(X.shape[0]), ROWS_AT_ONCE):
        block = X[start : start + ROWS_AT_ONCE]
        if not isinstance(block, csr_matrix):
            check_values(block, path, start)
            block = np.ascontiguousarray(block, dtype=np.float32)
        count = int(block.shape[0])
        yield InputRows(range(start + 1, start + count + 1), [None] * count, X=block)
