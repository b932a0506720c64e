"""Parse sparse rows from text, one row per line: `labels index:value index:value …`.

The bytes of a mapped or decompressed file are cut into chunks at line ends. A first pass bounds what each chunk can
hold, so that the arrays are allocated once; a second pass fills them. Chunks do not depend on the number of workers, so
the result does not either.

A number becomes the float32 that `np.float32(float(text))` gives: see `parse_kernels._round`.

The grammar: spaces or tabs separate fields. A line ends with a line feed; a carriage return before it is ignored, and
the last line may lack both. The first field holds labels, separated by commas. A line without labels starts with a
space or with its first `index:value`. Indices consist of digits. Values are decimal numbers with an optional exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.sparse import parse_kernels as kernels
from xmckit.sparse.csr import sorted_csr
from xmckit.sparse.parse_kernels import LARGEST_INDEX as LARGEST_INDEX
from xmckit.sparse.parse_kernels import Grammar as Grammar

CHUNK_BYTES = 8 << 20

Advance = Callable[[float], None]
Spread = Callable[[Callable[[Any], Any], list], list]

_LINE_FEED = ord("\n")
_NO_VALUES = np.empty(0, dtype=np.float32)


class TextError(Exception):
    """An error in the text: its code and its position in bytes."""

    def __init__(self, code: int, position: int):
        super().__init__(code, position)
        self.code, self.position = code, position


class WrongRows(Exception):
    """The text does not have the expected number of rows."""

    def __init__(self, rows: int):
        super().__init__(rows)
        self.rows = rows


@dataclass(frozen=True)
class SparseRows:
    """Parsed rows with sorted, distinct column indices and one value per feature."""

    rows: int
    label_ends: np.ndarray
    label_indices: np.ndarray
    feature_ends: np.ndarray
    feature_indices: np.ndarray
    values: np.ndarray

    def labels(self, columns: int) -> csr_matrix:
        ones = np.ones(len(self.label_indices), dtype=np.float32)
        return sorted_csr(ones, self.label_indices, self.label_ends, columns)

    def features(self, columns: int) -> csr_matrix:
        matrix = sorted_csr(self.values, self.feature_indices, self.feature_ends, columns)
        if not self.values.all():
            matrix.eliminate_zeros()
        return matrix

    @property
    def labels_seen(self) -> int:
        return int(self.label_indices.max(initial=-1)) + 1

    @property
    def features_seen(self) -> int:
        return int(self.feature_indices.max(initial=-1)) + 1


def map_serially(function: Callable[[Any], Any], items: list) -> list:
    return [function(item) for item in items]


def parse_rows(
    text: np.ndarray,
    start: int,
    grammar: Grammar,
    *,
    rows: int | None = None,
    spread: Spread = map_serially,
    advance: Advance = lambda steps: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> SparseRows:
    """Parse `text` (read-only uint8) from byte `start` on; raise TextError at the first error.

    With `rows`, raise WrongRows before any allocation if the text has another number of rows.
    `spread` maps a function over the chunks; it may use threads, which share the arrays.
    """
    chunks = _chunks(text, start, chunk_bytes)
    counts = np.array(spread(lambda chunk: kernels.count(chunk.text), chunks), dtype=np.int64).reshape(-1, 3)
    lines = int(counts[:, 0].sum())
    if rows is not None and lines != rows:
        raise WrongRows(lines)
    return _SecondPass(grammar, chunks, counts, advance).run(spread)


@dataclass(frozen=True)
class _Chunk:
    """`length` bytes of complete lines at `position` of the whole text, followed by padding."""

    padded: np.ndarray
    length: int
    position: int

    @property
    def text(self) -> np.ndarray:
        return self.padded[: self.length]


def _chunks(text: np.ndarray, start: int, chunk_bytes: int) -> list[_Chunk]:
    complete = kernels.after_last_line(text, start, max(start, len(text) - kernels.PADDING))
    chunks = []
    while start < complete:
        end = kernels.after_line(text, min(start + chunk_bytes, complete) - 1)
        chunks.append(_Chunk(text[start : end + kernels.PADDING], end - start, start))
        start = end
    if start < len(text):
        chunks.append(_last_chunk(text, start))
    return chunks


def _last_chunk(text: np.ndarray, start: int) -> _Chunk:
    """Return a copy of the rest of the text, with a final line feed and padding."""
    rest = len(text) - start
    length = rest + (text[-1] != _LINE_FEED)
    padded = np.zeros(length + kernels.PADDING, dtype=np.uint8)
    padded[:rest] = text[start:]
    padded[length - 1] = _LINE_FEED
    padded.flags.writeable = False  # like a mapped file, so that kernels compile once
    return _Chunk(padded, length, start)


class _SecondPass:
    """Parse chunks into their own parts of shared arrays, then close the gaps between the parts."""

    def __init__(self, grammar: Grammar, chunks: list[_Chunk], counts: np.ndarray, advance: Advance):
        self.grammar, self.chunks, self.advance = grammar, chunks, advance
        # A label ends with a comma or is the last of its line; every feature has one colon.
        most = np.column_stack([counts[:, 0], counts[:, 0] + counts[:, 1], counts[:, 2]])
        if not grammar.has_labels:
            most[:, 1] = 0
        self.bounds = np.vstack([np.zeros((1, 3), np.int64), np.cumsum(most, axis=0)])
        rows, labels, features = (int(n) for n in self.bounds[-1])
        self.label_ends = np.zeros(rows + 1, dtype=np.int64)
        self.feature_ends = np.zeros(rows + 1, dtype=np.int64)
        self.label_indices = np.empty(labels, dtype=np.int32)
        self.feature_indices = np.empty(features, dtype=np.int32)
        self.values = np.empty(features, dtype=np.float32)

    def run(self, spread: Spread) -> SparseRows:
        results = spread(self.fill, list(range(len(self.chunks))))
        errors = [error for _, error in results if error is not None]
        if errors:
            raise min(errors, key=lambda error: error.position)
        return self.close_gaps(np.array([used for used, _ in results], dtype=np.int64).reshape(-1, 3))

    def fill(self, number: int) -> tuple[np.ndarray, TextError | None]:
        """Parse one chunk. Return its numbers of rows, labels and features, and its error."""
        chunk = self.chunks[number]
        (rows, labels, features), (rows_end, labels_end, features_end) = self.bounds[number : number + 2].tolist()
        arrays = kernels.RowArrays(
            label_ends=self.label_ends[rows + 1 : rows_end + 1],
            label_indices=self.label_indices[labels:labels_end],
            feature_ends=self.feature_ends[rows + 1 : rows_end + 1],
            feature_indices=self.feature_indices[features:features_end],
            values=self.values[features:features_end],
            # Memory for the worst case costs nothing as long as nobody touches it.
            undecided=np.empty((features_end - features, 3), dtype=np.int64),
            unsorted_labels=np.empty((rows_end - rows, 2), dtype=np.int64),
            unsorted_features=np.empty((rows_end - rows, 2), dtype=np.int64),
            report=np.zeros(8, dtype=np.int64),
        )
        kernels.parse(chunk.padded, chunk.length, self.grammar, arrays)
        error = _finish(chunk.text, arrays)
        if error is not None:
            error = TextError(error.code, error.position + chunk.position)
        self.advance(chunk.length)
        return arrays.report[[kernels.ROWS, kernels.LABELS, kernels.FEATURES]], error

    def close_gaps(self, used: np.ndarray) -> SparseRows:
        starts = np.vstack([np.zeros((1, 3), np.int64), np.cumsum(used, axis=0)])
        rows, labels, features = (int(n) for n in starts[-1])
        for number in range(len(self.chunks)):
            old, new, size = self.bounds[number], starts[number], used[number]
            for ends, before in ((self.label_ends, new[1]), (self.feature_ends, new[2])):
                _move(ends, old[0] + 1, new[0] + 1, size[0])
                ends[new[0] + 1 : new[0] + 1 + size[0]] += before
            _move(self.label_indices, old[1], new[1], size[1])
            _move(self.feature_indices, old[2], new[2], size[2])
            _move(self.values, old[2], new[2], size[2])
        return SparseRows(
            rows,
            _cut(self.label_ends, rows + 1),
            _cut(self.label_indices, labels),
            _cut(self.feature_ends, rows + 1),
            _cut(self.feature_indices, features),
            _cut(self.values, features),
        )


def _finish(text: np.ndarray, arrays: kernels.RowArrays) -> TextError | None:
    """Do what the kernel leaves open: round hard values and sort rows. Return the first error."""
    report = arrays.report.tolist()
    if report[kernels.CODE]:
        return TextError(report[kernels.CODE], report[kernels.POSITION])
    unsorted_labels = arrays.unsorted_labels[: report[kernels.UNSORTED_LABELS]]
    unsorted_features = arrays.unsorted_features[: report[kernels.UNSORTED_FEATURES]]
    return (
        _round(text, arrays.undecided[: report[kernels.UNDECIDED_VALUES]], arrays.values)
        or _sort(kernels.DUPLICATE_LABEL, unsorted_labels, arrays.label_ends, arrays.label_indices, _NO_VALUES)
        or _sort(kernels.DUPLICATE_INDEX, unsorted_features, arrays.feature_ends, arrays.feature_indices, arrays.values)
    )


def _move(array: np.ndarray, old: int, new: int, size: int) -> None:
    if old != new:
        array[new : new + size] = array[old : old + size]


def _cut(array: np.ndarray, size: int) -> np.ndarray:
    return array if len(array) == size else array[:size].copy()


def _round(text: np.ndarray, undecided: np.ndarray, values: np.ndarray) -> TextError | None:
    """Round the rare values that the kernel leaves open with Python's `float`."""
    for place, start, end in undecided.tolist():
        with np.errstate(over="ignore"):
            values[place] = np.float32(float(text[start:end].tobytes()))
        if not np.isfinite(values[place]):
            return TextError(kernels.NOT_FINITE, start)
    return None


def _sort(code: int, rows: np.ndarray, ends: np.ndarray, indices: np.ndarray, values: np.ndarray) -> TextError | None:
    """Sort the rows (number, position) that are out of order. Return the error of a repeated index."""
    if not len(rows):
        return None
    twice = kernels.sort_rows(rows, ends, indices, values)
    return TextError(code, int(rows[twice, 1])) if twice >= 0 else None


def parse_integers(text: np.ndarray, columns: int | None = None) -> np.ndarray:
    """Parse a table of non-negative integers, one row per line, as int64; raise TextError for anything else.

    Without `columns`, the first line sets their number. Blank lines are skipped.
    """
    chunks = _chunks(text, 0, len(text) + 1)
    parts: list[np.ndarray] = []
    for chunk in chunks:
        numbers = np.empty((chunk.length + 1) // 2, dtype=np.int64)
        code, place, size, width = kernels.parse_integers(chunk.padded, chunk.length, columns or 0, numbers)
        if code:
            raise TextError(code, place + chunk.position)
        columns = width or columns
        parts.append(numbers[:size])
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)]).reshape(-1, columns or 1)
