"""`xmckit predict`"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from xmckit.cli import invocation, options
from xmckit.errors import DataError, UsageError, printable

if TYPE_CHECKING:
    from xmckit.analysis.evaluate import FeatureRows
    from xmckit.data.rows import Format, Rows, Skipped
    from xmckit.model import CombinedModel, Model

# Written here so that `--help` imports nothing heavy; a test compares them with `xmckit.data.rows`.
_FORMATS = ("text", "jsonl", "csv", "tsv", "xmc", "svmlight")
_MATRICES = (".npz", ".npy")
_NAMES_OF_FILES = (".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".svm", ".svmlight", *_MATRICES)
_STANDARD_INPUT = "-"


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="FILE | - | TEXTS...")
@click.option("--file", "file", type=click.Path(), help="A file with rows; - is standard input.")
@click.option(
    "--from",
    "form",
    type=click.Choice(_FORMATS),
    help="What is in the file [default: what its name says; without one, texts, or xmc for a model of features].",
)
@click.option("--column", default="text", show_default=True, help="The field or column with the text.")
@click.option("-k", "k", default=5, show_default=True, type=click.IntRange(min=1), help="Labels for each row.")
@click.option(
    "--threshold", is_flag=True, help="Only the labels that pass the threshold chosen on the validation share."
)
@click.option("--labels", "whole_sets", is_flag=True, help="All labels that the decision rule outputs, however many.")
@click.option("--skip-bad", is_flag=True, help="Leave out lines that cannot be read, and count them at the end.")
@click.option(
    "--as",
    "style",
    type=click.Choice(["lines", "jsonl", "table"]),
    default="lines",
    show_default=True,
    help="Lines for people, an object a line, or a table with tabs: a line for each label.",
)
@click.option("--no-text", is_flag=True, help="Leave the texts out of the output.")
@click.option("--out", "out", type=click.Path(), help="Write to this file, which appears when it is complete.")
@options.runs_option
@options.json_option
def predict(
    run: str,
    texts: tuple[str, ...],
    file: str | None,
    form: str | None,
    column: str,
    k: int,
    threshold: bool,
    whole_sets: bool,
    skip_bad: bool,
    style: str,
    no_text: bool,
    out: str | None,
    root: str,
    as_json: bool,
) -> None:
    """Label rows with the model of RUN: a run folder, or a recipe's name for its newest run.

    The rows are those of a FILE (texts one a line, JSON lines, csv, tsv, XMC or svmlight features, .npz, .npy), those
    of standard input (-), or TEXTS. Input of any length is read as it comes and answered in chunks.
    """
    if threshold and whole_sets:
        raise UsageError("--threshold picks from the best k labels and --labels gives all that pass: choose one")
    file, texts = _file_or_texts(file, texts)
    from xmckit.cli.progress import TerminalProgress
    from xmckit.data.rows import Rows, Skipped
    from xmckit.model import load

    model = load(run, root=root, registry=invocation.get_registry())
    skipped = Skipped() if skip_bad else None
    style = "json" if as_json else style
    with contextlib.ExitStack() as stack:
        stream = _output(out, stack)
        quiet = invocation.quiet() or (out is None and sys.stdout.isatty())  # a bar would be written into the answers
        progress = stack.enter_context(TerminalProgress(quiet=quiet))
        features = _features(run, root)
        _check_takes_one(model, features)
        if file is None:
            _check_takes_texts(model, features)
            chunks: Iterator[Rows] = iter([Rows(range(1, len(texts) + 1), [None] * len(texts), texts=texts)])
        else:
            bar = stack.enter_context(progress("predicting", total=_size(file)))
            chunks = _chunks(file, form, model, features, column, skipped, bar.advance, stack)
        writer = _Writer(stream, style, numbered=file is not None, with_texts=not no_text)
        for rows in chunks:
            writer.write(rows, _answers(model, rows, k, threshold, whole_sets))
        writer.end()
    _tell(skipped)


def _file_or_texts(file: str | None, given: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The one file that is named, or texts; a name that can only be a file's must be one."""
    if file is not None and given:
        raise UsageError("give a file or texts, not both")
    if file is None and len(given) == 1 and (given[0] == _STANDARD_INPUT or _is_file(given[0])):
        file, given = given[0], ()
    if len(given) > 1 and all(_is_file(argument) for argument in given):
        raise UsageError("these are several files: give one, or `cat` them into standard input (-)")
    if file is None and not given:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("give a file, texts, or - for standard input")
        file = _STANDARD_INPUT
    if file == _STANDARD_INPUT and sys.stdin is None:
        raise UsageError("standard input is closed: give a file or texts")
    if file is not None and file != _STANDARD_INPUT and (not os.path.exists(file) or os.path.isdir(file)):
        raise UsageError(f"{file} is a folder, not a file" if os.path.isdir(file) else f"there is no file {file}")
    return file, given


def _is_file(argument: str) -> bool:
    """Whether it is there, perhaps as a pipe, or has the name of a file."""
    named = not any(letter.isspace() for letter in argument) and _suffix(argument) in _NAMES_OF_FILES
    return named or os.path.exists(argument)


def _suffix(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).suffix


def _size(file: str) -> int | None:
    plain = file != _STANDARD_INPUT and not file.lower().endswith(".gz") and os.path.isfile(file)
    return os.path.getsize(file) if plain else None


def _output(out: str | None, stack: contextlib.ExitStack) -> IO[str]:
    if out is None:
        return sys.stdout
    from xmckit import store

    path = Path(out)
    if not path.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {path.parent}")
    if path.exists() and not path.is_file():  # a device would be replaced by a file
        raise UsageError(f"--out {out}: it is there and is not a file")
    store.remove_stale(path.parent)
    stream: IO[str] = stack.enter_context(store.atomic_file(path, "w"))
    return stream


def _features(run: str, root: str) -> FeatureRows | None:
    from xmckit.analysis.evaluate import feature_rows, training_run

    return feature_rows(training_run(run, Path(root)))


def _chunks(
    file: str,
    form: str | None,
    model: Model | CombinedModel,
    features: FeatureRows | None,
    column: str,
    skipped: Skipped | None,
    advance: Callable[[float], None],
    stack: contextlib.ExitStack,
) -> Iterator[Rows]:
    from xmckit.analysis.evaluate import as_trained
    from xmckit.data.arrays import map_dense, read_sparse
    from xmckit.data.rows import OF_FEATURES, Lines, matrix_chunks, read_chunks

    matrix = _suffix(file) in _MATRICES and form is None
    chosen = form or _form(file, takes_texts=features is None or _takes_texts(model))
    if features is None and (matrix or chosen in OF_FEATURES):
        raise UsageError("this model does not take one matrix of features: give it texts")
    if not matrix and chosen not in OF_FEATURES:
        _check_takes_texts(model, features)
    width = features.width if features else None
    if matrix:
        X = map_dense(Path(file)) if _suffix(file) == ".npy" else read_sparse(Path(file))
        if width != int(X.shape[1]):
            raise DataError(f"rows have {X.shape[1]} features, the model takes {width}", path=file)
        chunks = matrix_chunks(X, Path(file))
    else:
        lines = Lines(_opened(file, stack), "standard input" if file == _STANDARD_INPUT else file, advance)
        chunks = read_chunks(lines, cast("Format", chosen), width=width, column=column, skipped=skipped)
    return (replace(rows, X=as_trained(rows.X, features)) for rows in chunks)


def _form(file: str, *, takes_texts: bool) -> Format:
    from xmckit.data.rows import SUFFIXES

    return SUFFIXES.get(_suffix(file), "text" if takes_texts else "xmc")


def _check_takes_texts(model: Model | CombinedModel, features: FeatureRows | None) -> None:
    if features is not None and not _takes_texts(model):
        raise UsageError(
            f"this model cannot take texts: give it a file with rows of {features.width:,} features (XMC or svmlight "
            "format, .npz, .npy)"
        )


def _check_takes_one(model: Model | CombinedModel, features: FeatureRows | None) -> None:
    """UsageError where some of its features need texts and others a matrix: rows have the one or the other here."""
    from scipy.sparse import csr_matrix

    from xmckit.analysis.evaluate import as_trained

    if features is None or _takes_texts(model):
        return
    if not _takes(model, as_trained(csr_matrix((1, features.width), dtype="float32"), features)):
        raise UsageError(
            f"this model needs rows that have both a text and {features.width:,} features: put them into a data set, "
            "which `xmckit evaluate` takes"
        )


def _takes_texts(model: Model | CombinedModel) -> bool:
    return _takes(model, [""])


def _takes(model: Model | CombinedModel, inputs: Any) -> bool:
    models: list[Model] = getattr(model, "models", [model])
    try:
        for one in models:
            one.all_features(inputs)
    except UsageError:
        return False
    return True


def _opened(file: str, stack: contextlib.ExitStack) -> IO[bytes]:
    if file == _STANDARD_INPUT:
        return sys.stdin.buffer
    opened: Callable[..., Any] = gzip.open if file.lower().endswith(".gz") else open
    stream: IO[bytes] = stack.enter_context(opened(file, "rb"))
    return stream


# -- answers -------------------------------------------------------------------------------------------------------

Answer = list[tuple[str, float | None]]


def _answers(model: Model | CombinedModel, rows: Rows, k: int, threshold: bool, whole_sets: bool) -> Iterator[Answer]:
    """The labels of each row, best first, with their scores; one that is not among those that are ranked has none."""
    import numpy as np

    names = model.label_names
    sets = model.sets(rows.inputs) if threshold or whole_sets else None
    largest = int(np.diff(sets.indptr).max(initial=0)) if whole_sets and sets is not None else 0
    best = model.topk(rows.inputs, min(max(k, largest), len(names)))
    for row, (labels, scores) in enumerate(zip(best.indices.tolist(), best.scores.tolist(), strict=True)):
        ranked = {label: score for label, score in zip(labels, scores, strict=True) if label >= 0}
        if sets is None:
            yield [(names[label], score) for label, score in ranked.items()]
            continue
        passed = dict.fromkeys(sets.indices[sets.indptr[row] : sets.indptr[row + 1]].tolist())
        chosen = [label for label in ranked if label in passed]
        if whole_sets:
            chosen += [label for label in passed if label not in ranked]
        yield [(names[label], ranked.get(label)) for label in chosen]


class _Writer:
    """Writes the answers of each chunk as soon as they are known."""

    def __init__(self, stream: IO[str], style: str, *, numbered: bool, with_texts: bool):
        self._stream, self._style, self._numbered, self._with_texts = stream, style, numbered, with_texts
        # a terminal or pipe that cannot take a character gets its escape
        self._ascii = not (getattr(stream, "encoding", None) or "").lower().replace("-", "").startswith("utf")
        self._count = 0
        if style == "table":
            stream.write("line\tid\trank\tlabel\tscore\n")

    def write(self, rows: Rows, answers: Iterator[Answer]) -> None:
        render = {"lines": self._line, "table": self._table}.get(self._style, self._json)
        for row, answer in enumerate(answers):
            self._stream.write(render(rows, row, answer))
            self._count += 1
        self._stream.flush()

    def end(self) -> None:
        if self._style == "json":
            self._stream.write("\n]\n" if self._count else "[]\n")
        self._stream.flush()

    def _line(self, rows: Rows, row: int, answer: Answer) -> str:
        shown = ", ".join(f"{_short(label)}{_shown(score)}" for label, score in answer)
        return f"{self._name(rows, row)}: {shown or 'no label passes'}\n"

    def _name(self, rows: Rows, row: int) -> str:
        if (identity := rows.ids[row]) is not None:
            return _short(identity)
        if rows.texts is not None and self._with_texts and rows.texts[row].strip():
            return _short(rows.texts[row])
        return f"line {rows.lines[row]}"

    def _table(self, rows: Rows, row: int, answer: Answer) -> str:
        start = f"{rows.lines[row]}\t{printable(rows.ids[row] or '', keep='')}"
        return "".join(
            f"{start}\t{rank}\t{printable(label, keep='')}\t{'' if score is None else f'{score:.4f}'}\n"
            for rank, (label, score) in enumerate(answer, 1)
        )

    def _json(self, rows: Rows, row: int, answer: Answer) -> str:
        facts: dict[str, Any] = {"line": rows.lines[row]} if self._numbered else {}
        if rows.ids[row] is not None:
            facts["id"] = rows.ids[row]
        if rows.texts is not None and self._with_texts:
            facts["text"] = rows.texts[row]
        facts["labels"] = [
            {"label": label, "score": None if score is None else round(score, 4)} for label, score in answer
        ]
        content = json.dumps(facts, ensure_ascii=self._ascii)
        if self._style == "jsonl":
            return f"{content}\n"
        return f"{',' if self._count else '['}\n{content}"


def _shown(score: float | None) -> str:
    return "" if score is None else f" ({score:+.2f})"


def _short(text: str) -> str:
    """Enough of a text or a label to know it again, on one line."""
    start = text if len(text) <= 60 else f"{text[:59]}…"
    return printable(start, keep="")


def _tell(skipped: Skipped | None) -> None:
    if skipped is None or not skipped.count:
        return
    lines = "line was" if skipped.count == 1 else "lines were"
    click.echo(f"note: {skipped.count:,} {lines} skipped:", err=True)
    for reason in skipped.first:
        click.echo(f"  {printable(reason)}", err=True)
    if skipped.count > len(skipped.first):
        click.echo(f"  … and {skipped.count - len(skipped.first):,} more", err=True)
