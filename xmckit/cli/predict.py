"""`xmckit predict`"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xmckit.cli import invocation, options
from xmckit.errors import UsageError, printable

if TYPE_CHECKING:
    from xmckit.data.row_stream import SkippedLines

# Written here so that `--help` imports nothing heavy; a test compares them with `xmckit.data.row_stream`.
_FORMATS = ("text", "jsonl", "csv", "tsv", "xmc", "svmlight")


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="FILE | - | TEXTS...")
@click.option("--file", "file", type=click.Path(), help="File with rows; - is standard input.")
@click.option(
    "--from",
    "form",
    type=click.Choice(_FORMATS),
    help="Format of the file [default: by its suffix; otherwise text, or xmc if the model takes features].",
)
@click.option("--column", default="text", show_default=True, help="Field or column with the text.")
@click.option("-k", "k", default=5, show_default=True, type=click.IntRange(min=1), help="Number of labels per row.")
@click.option("--threshold", is_flag=True, help="Print only labels above the threshold chosen on validation rows.")
@click.option("--labels", "whole_sets", is_flag=True, help="Print all labels that the decision rule outputs.")
@click.option("--skip-bad", is_flag=True, help="Skip lines that cannot be read, and count them at the end.")
@click.option(
    "--as",
    "style",
    type=click.Choice(["lines", "jsonl", "table"]),
    default="lines",
    show_default=True,
    help="Print lines for people, one JSON object per line, or a table with tabs and one line per label.",
)
@click.option("--no-text", is_flag=True, help="Leave the texts out of the output.")
@click.option("--out", "out", type=click.Path(), help="Write to this file; it appears when it is complete.")
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
    """Label rows with the model of RUN: a run folder, or the name of a recipe for its newest run.

    The rows come from a FILE (one text per line, JSON lines, csv, tsv, XMC or svmlight features, .npz, .npy), from
    standard input (-), or from TEXTS. The input may have any length: it is read and answered in chunks.
    """
    if threshold and whole_sets:
        raise UsageError("--threshold picks from the best k labels and --labels gives all that pass: choose one")
    file, texts = _file_or_texts(file, texts)
    from xmckit.analysis import predict as prediction
    from xmckit.analysis.evaluate import training_run
    from xmckit.cli.progress import TerminalProgress
    from xmckit.data.row_stream import SkippedLines
    from xmckit.data.saved import read_feature_rows
    from xmckit.model import load

    model = load(run, root=root, registry=invocation.get_registry())
    skipped = SkippedLines() if skip_bad else None
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(prediction.output_stream(out))
        quiet = invocation.quiet() or (out is None and sys.stdout.isatty())  # a bar would be mixed with the answers
        progress = stack.enter_context(TerminalProgress(quiet=quiet))
        accepted = prediction.accepted_inputs(model, read_feature_rows(training_run(run, Path(root)).train_folder))
        if file is None:
            accepted.check_texts()
            chunks = iter([prediction.text_rows(texts)])
        else:
            bar = stack.enter_context(progress("predicting", total=prediction.file_size(file)))
            chunks = prediction.read_rows(file, form, accepted, column=column, skipped=skipped, advance=bar.advance)
        style = "json" if as_json else style
        writer = prediction.AnswerWriter(stream, style, numbered=file is not None, with_texts=not no_text)
        for rows in chunks:
            writer.write(rows, prediction.answers(model, rows, k, threshold=threshold, whole_sets=whole_sets))
        writer.end()
    if skipped is not None and skipped.count:
        _print_skipped(skipped)


def _file_or_texts(file: str | None, texts: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """Return the file that is named, or texts; an argument that looks like a file must be one."""
    from xmckit.analysis.predict import STANDARD_INPUT, is_file

    if file is not None and texts:
        raise UsageError("give a file or texts, not both")
    if file is None and len(texts) == 1 and (texts[0] == STANDARD_INPUT or is_file(texts[0])):
        file, texts = texts[0], ()
    if len(texts) > 1 and all(map(is_file, texts)):
        raise UsageError("these are several files: give one, or `cat` them into standard input (-)")
    if file is None and not texts:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("give a file, texts, or - for standard input")
        file = STANDARD_INPUT
    if file == STANDARD_INPUT and sys.stdin is None:
        raise UsageError("standard input is closed: give a file or texts")
    if file is not None and file != STANDARD_INPUT and (not os.path.exists(file) or os.path.isdir(file)):
        raise UsageError(f"{file} is a folder, not a file" if os.path.isdir(file) else f"there is no file {file}")
    return file, texts


def _print_skipped(skipped: SkippedLines) -> None:
    lines = "line was" if skipped.count == 1 else "lines were"
    click.echo(f"note: {skipped.count:,} {lines} skipped:", err=True)
    for reason in skipped.first:
        click.echo(f"  {printable(reason)}", err=True)
    if skipped.count > len(skipped.first):
        click.echo(f"  … and {skipped.count - len(skipped.first):,} more", err=True)
