"""Read rows to predict for from a stream of any length, in chunks, with constant memory.

Formats: `text` (one per line), `jsonl` (a string, or an object with a text and an optional id), `csv` and `tsv` (with a
line of column names), `xmc` and `svmlight` (features; labels are ignored). A chunk ends when it is large enough or when
no further line has arrived: a program that writes one line into a pipe gets its prediction before it writes the next.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data import reading
from xmckit.data.arrays import check_values
from xmckit.data.model import Matrix
from xmckit.errors import DataError, UsageError
from xmckit.sparse.parse import Grammar, TextError, parse_rows

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

    @property
    def waiting(self) -> bool:
        return not self._ready

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number, rest = 0, bytearray()  # the rest is the start of a line whose end has not arrived
        while block := self._read() or (b"\n" if rest else b""):
            complete, line_feed, begun = block.rpartition(b"\n")
            if line_feed:
                self._ready.extend((bytes(rest) + complete).split(b"\n"))
                rest = bytearray()
            rest += begun
            while self._ready:
                number += 1
                line = self._ready.popleft().removesuffix(b"\r")
                yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if len(rest) > LONGEST_LINE:
                raise DataError(f"a line is longer than {LONGEST_LINE >> 20} MiB", path=self.name, line=number + 1)

    def _read(self) -> bytes:
        with reading.report_read_errors(self.name):
            block: bytes = self._stream.read1(BLOCK)  # type: ignore[attr-defined]
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
    width = width or 0
    chunk: list[_Row] = []
    size, wrong = 0, None
    try:
        for row in _parse_lines(lines, form, column, width, skipped):
            if row is not None:
                chunk.append(row)
                size += len(row.content)
            if chunk and (lines.waiting or len(chunk) >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE):
                complete, chunk, size = chunk, [], 0
                yield from _input_rows(complete, form, width, lines.name, skipped)
    except DataError as error:
        wrong = error
    if chunk:
        yield from _input_rows(chunk, form, width, lines.name, skipped)
    if wrong is not None:
        raise wrong


@dataclass(frozen=True)
class _Row:
    line: int
    content: Any  # str for texts, bytes for features
    id: str | None = None


def _parse_lines(
    lines: Lines, form: Format, column: str, width: int, skipped: SkippedLines | None
) -> Iterator[_Row | None]:
    """Yield the row of each line. Yield None for a line without row too, so that the rows before it need not wait."""
    if form in ("csv", "tsv"):
        return _table_rows(lines, form, column, skipped)
    if form in FEATURE_FORMATS:
        return _feature_lines(lines, form, width)
    parse = _text_row if form == "text" else _json_row
    return (_result_or_skip(skipped, parse, lines.name, number, line, column) for number, line in lines)


def _result_or_skip(skipped: SkippedLines | None, parse: Callable[..., Any], *arguments: Any) -> Any:
    """Return what `parse` returns. If it raises DataError, count the line as skipped and return None."""
    try:
        return parse(*arguments)
    except DataError as error:
        if skipped is None:
            raise
        skipped.add(error)
        return None


def _text_row(name: str, number: int, line: bytes, column: str) -> _Row:
    return _Row(number, reading.decode_line(name, line, number))


def _json_row(name: str, number: int, line: bytes, column: str) -> _Row | None:
    if not line.strip():
        return None

    def wrong(why: str) -> DataError:
        return DataError(why, path=name, line=number)

    content = reading.parse_json(name, number, line)
    fields = content if isinstance(content, dict) else {column: content}
    if column not in fields:
        known = ", ".join(list(fields)[:8])[:200] or "nothing"
        raise wrong(f"no field '{column}', only {known}; choose the field with the text (--column)")
    text, identity = fields[column], content.get("id") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise wrong(f"expected a string, or an object with a string '{column}'")
    if not reading.is_row_id(identity):
        raise wrong("an id must be a string or a whole number")
    identity = None if identity is None else str(identity)
    reading.check_encodable(f"{text}{identity}", name, number)
    return _Row(number, text, identity)


def _table_rows(lines: Lines, form: Format, column: str, skipped: SkippedLines | None) -> Iterator[_Row | None]:
    csv.field_size_limit(LONGEST_LINE)
    # Let invalid bytes pass through the csv reader, which cannot continue after an error in its input.
    texts = (line.decode("utf-8", "surrogateescape") + "\n" for _, line in lines)
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if form == "tsv" else {"strict": True}
    columns: list[str] = []
    for number, fields in _records(csv.reader(texts, **dialect)):
        if isinstance(fields, csv.Error) or columns or not fields:
            yield _result_or_skip(skipped, _table_row, lines.name, number, fields, columns, form, column)
        elif column in fields:
            columns = fields
        else:
            why = f"no column '{column}', only {', '.join(fields)}; choose the column with the texts (--column)"
            raise DataError(why, path=lines.name, line=number)


def _records(reader: Any) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Yield the first line of each record of a csv reader, and the fields or the error of the record."""
    while True:
        number = reader.line_num + 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, error


def _table_row(
    name: str, number: int, fields: list[str] | csv.Error, columns: list[str], form: Format, column: str
) -> _Row | None:
    if isinstance(fields, csv.Error):
        raise DataError(f"not {form}: {fields}", path=name, line=number)
    if not fields:
        return None
    if len(fields) != len(columns):
        raise DataError(f"expected {len(columns)} columns, found {len(fields)}", path=name, line=number)
    values = dict(zip(columns, fields, strict=True))
    text, identity = values[column], values.get("id")
    try:
        f"{text}{identity}".encode()
    except UnicodeEncodeError:
        raise DataError("not UTF-8", path=name, line=number) from None
    return _Row(number, text, identity)


def _feature_lines(lines: Lines, form: Format, width: int) -> Iterator[_Row | None]:
    for number, line in lines:
        if form == "xmc" and number == 1 and (header := _HEADER.fullmatch(line)):
            if int(header[1]) != width:
                raise DataError(f"the file has {int(header[1])} features, the model takes {width}", path=lines.name)
            continue
        no_row = form == "svmlight" and not line.partition(b"#")[0].strip()
        yield None if no_row else _Row(number, line)


def _input_rows(
    chunk: Sequence[_Row], form: Format, width: int, name: str, skipped: SkippedLines | None
) -> Iterator[InputRows]:
    numbers, ids = [row.line for row in chunk], [row.id for row in chunk]
    if form not in FEATURE_FORMATS:
        yield InputRows(numbers, ids, texts=[row.content for row in chunk])
        return
    try:
        X = _parse_features(chunk, form, width, name)
    except DataError as error:
        if skipped is None:
            before = [row for row in chunk if row.line < (error.line or 0)]
            yield from _input_rows(before, form, width, name, skipped)
            raise
        parsed = (_result_or_skip(skipped, _parse_features, [row], form, width, name) for row in chunk)
        valid = [row for row, X in zip(chunk, parsed, strict=True) if X is not None]
        yield from _input_rows(valid, form, width, name, skipped)
    else:
        if chunk:
            yield InputRows(numbers, ids, X=X)


def _parse_features(chunk: Sequence[_Row], form: Format, width: int, name: str) -> csr_matrix:
    first = 1 if form == "svmlight" else 0
    grammar = Grammar(features=width, first_feature=first, annotated=form == "svmlight")
    text = np.frombuffer(b"".join(row.content + b"\n" for row in chunk), dtype=np.uint8)
    try:
        return parse_rows(text, 0, grammar).features(width)
    except TextError as error:
        message = reading.error_text(text, error, f"features are numbered from {first} and there are {width}")
        row = chunk[reading.line_number(text, error.position) - 1]
        raise DataError(message, path=name, line=row.line) from None


def matrix_chunks(X: Matrix, path: Path) -> Iterator[InputRows]:
    """Yield the rows of a matrix in chunks; a dense matrix may be mapped from disk."""
    for start in range(0, int(X.shape[0]), ROWS_AT_ONCE):
        block = X[start : start + ROWS_AT_ONCE]
        if not isinstance(block, csr_matrix):
            check_values(block, path, start)
            block = np.ascontiguousarray(block, dtype=np.float32)
        count = int(block.shape[0])
        yield InputRows(range(start + 1, start + count + 1), [None] * count, X=block)
