"""Predict labels for the rows of a file or a stream: read the rows in chunks, rank labels, write the answers.

Memory does not grow with the input. A row from a pipe is answered before the next one arrives.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.analysis.evaluate import as_trained
from xmckit.data.arrays import map_dense, read_sparse
from xmckit.data.row_stream import (
    FEATURE_FORMATS,
    SUFFIXES,
    Format,
    InputRows,
    Lines,
    SkippedLines,
    matrix_chunks,
    read_chunks,
)
from xmckit.data.saved import FeatureRows
from xmckit.errors import DataError, UsageError, printable, printable_json, shorten

if TYPE_CHECKING:
    from xmckit.model import CombinedModel, Model

STANDARD_INPUT = "-"
MATRIX_SUFFIXES = (".npz", ".npy")
LONGEST_NAME = 60

Answer = list[tuple[str, float | None]]


def is_file(argument: str) -> bool:
    """Return whether the argument is an existing path, perhaps a pipe, or has the name of a file with rows."""
    has_suffix = _suffix(argument) in (".txt", *SUFFIXES, *MATRIX_SUFFIXES)
    return (has_suffix and not any(letter.isspace() for letter in argument)) or os.path.exists(argument)


def file_size(file: str) -> int | None:
    """Return the number of bytes to read; None if it is not known."""
    plain = file != STANDARD_INPUT and not file.lower().endswith(".gz") and os.path.isfile(file)
    return os.path.getsize(file) if plain else None


def _suffix(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).suffix


class AcceptedInputs(NamedTuple):
    """The inputs that a model takes: texts, rows with these features, or both."""

    texts: bool
    features: FeatureRows | None

    def check_texts(self) -> None:
        """Raise UsageError if the model does not take texts."""
        if not self.texts:
            assert self.features is not None
            raise UsageError(
                f"this model cannot take texts: give it a file with rows of {self.features.width:,} features (XMC or "
                "svmlight format, .npz, .npy)"
            )


def accepted_inputs(model: Model | CombinedModel, features: FeatureRows | None) -> AcceptedInputs:
    """Return what the model takes. UsageError if it needs both texts and features for each row."""
    texts = features is None or _takes(model, [""])
    if features is not None and not texts:
        row = as_trained(csr_matrix((1, features.width), dtype="float32"), features)
        if not _takes(model, row):
            raise UsageError(
                f"this model needs rows that have both a text and {features.width:,} features: put them into a data "
                "set, which `xmckit evaluate` takes"
            )
    return AcceptedInputs(texts, features)


def _takes(model: Model | CombinedModel, inputs: Any) -> bool:
    models: list[Model] = getattr(model, "models", [model])
    try:
        for one in models:
            one.all_features(inputs)
    except UsageError:
        return False
    return True


def text_rows(texts: tuple[str, ...]) -> InputRows:
    return InputRows(range(1, len(texts) + 1), [None] * len(texts), texts=texts)


def read_rows(
    file: str,
    form: str | None,
    accepted: AcceptedInputs,
    *,
    column: str,
    skipped: SkippedLines | None,
    advance: Callable[[float], None],
) -> Iterator[InputRows]:
    """Yield the rows of a file in chunks. Without `form`, the format follows from the file's name."""
    features = accepted.features
    matrix = _suffix(file) in MATRIX_SUFFIXES and form is None
    chosen = form or SUFFIXES.get(_suffix(file), "text" if accepted.texts else "xmc")
    if features is None and (matrix or chosen in FEATURE_FORMATS):
        raise UsageError("this model does not take one matrix of features: give it texts")
    if not matrix and chosen not in FEATURE_FORMATS:
        accepted.check_texts()
    if matrix:
        yield from _matrix_rows(Path(file), features)
        return
    with _open_input(file) as stream:
        lines = Lines(stream, "standard input" if file == STANDARD_INPUT else file, advance)
        width = features.width if features else None
        for rows in read_chunks(lines, cast("Format", chosen), width=width, column=column, skipped=skipped):
            yield replace(rows, X=as_trained(rows.X, features))


def _open_input(file: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if file == STANDARD_INPUT:
        return contextlib.nullcontext(sys.stdin.buffer)
    opener: Callable[..., Any] = gzip.open if file.lower().endswith(".gz") else open
    stream: IO[bytes] = opener(file, "rb")
    return stream


def _matrix_rows(path: Path, features: FeatureRows | None) -> Iterator[InputRows]:
    X = map_dense(path) if _suffix(path.name) == ".npy" else read_sparse(path)
    if features is not None and features.width != int(X.shape[1]):
        raise DataError(f"rows have {X.shape[1]} features, the model takes {features.width}", path=path)
    return (replace(rows, X=as_trained(rows.X, features)) for rows in matrix_chunks(X, path))


def answers(
    model: Model | CombinedModel, rows: InputRows, k: int, *, threshold: bool = False, whole_sets: bool = False
) -> Iterator[Answer]:
    """Yield the labels of each row, best first, with their scores; a label that is not ranked has no score.

    `threshold` keeps the ranked labels that the decision rule outputs; `whole_sets` gives all that it outputs.
    """
    names = model.label_names
    sets = model.sets(rows.inputs) if threshold or whole_sets else None
    largest = int(np.diff(sets.indptr).max(initial=0)) if whole_sets and sets is not None else 0
    best = model.topk(rows.inputs, min(max(k, largest), len(names)))
    for row, (labels, scores) in enumerate(zip(best.indices.tolist(), best.scores.tolist(), strict=True)):
        ranked = {label: score for label, score in zip(labels, scores, strict=True) if label >= 0}
        chosen = list(ranked)
        if sets is not None:
            output = dict.fromkeys(sets.indices[sets.indptr[row] : sets.indptr[row + 1]].tolist())
            chosen = [label for label in ranked if label in output]
            if whole_sets:
                chosen += [label for label in output if label not in ranked]
        yield [(names[label], ranked.get(label)) for label in chosen]


@contextlib.contextmanager
def output_stream(out: str | None) -> Iterator[IO[str]]:
    """Yield standard output, or a file that appears when it is complete."""
    if out is None:
        yield sys.stdout
        return
    path = Path(out)
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {out}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise UsageError(f"cannot write {out}: it exists and is not a file")
    store.remove_stale(path.parent)
    with store.atomic_file(path, "w") as stream:
        yield stream


class AnswerWriter:
    """Write the answers of each chunk as soon as they are known, as `lines`, `jsonl`, `json` or a `table`."""

    def __init__(self, stream: IO[str], style: str, *, numbered: bool, with_texts: bool):
        self._stream, self._style, self._numbered, self._with_texts = stream, style, numbered, with_texts
        # A terminal or pipe that cannot show a character gets its escape.
        self._ascii = not (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")
        self._count = 0
        if style == "table":
            stream.write("line\tid\trank\tlabel\tscore\n")

    def write(self, rows: InputRows, answers: Iterator[Answer]) -> None:
        render = {"lines": self._line, "table": self._table}.get(self._style, self._json)
        for row, answer in enumerate(answers):
            self._stream.write(render(rows, row, answer))
            self._count += 1
        self._stream.flush()

    def end(self) -> None:
        if self._style == "json":
            self._stream.write("\n]\n" if self._count else "[]\n")
        self._stream.flush()

    def _line(self, rows: InputRows, row: int, answer: Answer) -> str:
        labels = [_one_line(label) + ("" if score is None else f" ({score:+.2f})") for label, score in answer]
        return f"{self._name(rows, row)}: {', '.join(labels) or 'no label passes'}\n"

    def _name(self, rows: InputRows, row: int) -> str:
        if (identity := rows.ids[row]) is not None:
            return _one_line(identity)
        if rows.texts is not None and self._with_texts and rows.texts[row].strip():
            return _one_line(rows.texts[row])
        return f"line {rows.lines[row]}"

    def _table(self, rows: InputRows, row: int, answer: Answer) -> str:
        start = f"{rows.lines[row]}\t{printable(rows.ids[row] or '', keep='')}"
        return "".join(
            f"{start}\t{rank}\t{printable(label, keep='')}\t{'' if score is None else f'{score:.4f}'}\n"
            for rank, (label, score) in enumerate(answer, 1)
        )

    def _json(self, rows: InputRows, row: int, answer: Answer) -> str:
        facts: dict[str, Any] = {"line": rows.lines[row]} if self._numbered else {}
        if rows.ids[row] is not None:
            facts["id"] = rows.ids[row]
        if rows.texts is not None and self._with_texts:
            facts["text"] = rows.texts[row]
        facts["labels"] = [
            {"label": label, "score": None if score is None else round(score, 4)} for label, score in answer
        ]
        content = printable_json(json.dumps(facts, ensure_ascii=self._ascii))
        if self._style == "jsonl":
            return f"{content}\n"
        return f"{',' if self._count else '['}\n{content}"


def _one_line(text: str) -> str:
    """Return enough of a text or a label to recognise it, on one line."""
    return printable(shorten(text, LONGEST_NAME), keep="")
