"""The commands `xmckit search` and `xmckit labels add`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.errors import counted, printable


@click.command()
@click.argument("run")
@click.argument("query")
@click.option("-k", "k", default=10, show_default=True, type=click.IntRange(min=1), help="Number of labels to show.")
@click.option("--text", "how", flag_value="text", help="QUERY is a text, even if a label has that name.")
@click.option("--label", "how", flag_value="label", help="QUERY is the name of a label.")
@runs_option
@json_option
def search(run: str, query: str, k: int, how: str | None, root: str, as_json: bool) -> None:
    """Show the labels of RUN with the nearest embeddings to QUERY, a label's name or a text.

    RUN is a run folder, its name, the name of a recipe for its newest finished run, or a folder that `xmckit labels
    add` wrote. Scores are cosines, also if the index of the run uses another metric.
    """
    label_search = _label_search()
    result = label_search.nearest_labels(label_search.SearchableRun.open(run, Path(root)), query, k, how, _say)
    if as_json:
        print_json(result)
        return
    click.echo(printable(f"{result['as']} {query!r}: nearest labels, by cosine", keep=""))
    for item in result["labels"]:
        click.echo(printable(f"  {item['cosine']:+.3f}  {item['label']}", keep=""))


@click.command()
@click.argument("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="The new folder (default: beside the run).")
@runs_option
@json_option
def add(run: str, file: Path, output: Path | None, root: str, as_json: bool) -> None:
    """Add the labels of FILE to the model of RUN, without retraining.

    FILE has one JSON object per line and label: {"label": "name", "examples": ["text", "text"]}, or with a "text" that
    describes the label. The run does not change: the command writes a new folder, which `xmckit predict` and `xmckit
    search` accept in place of a run. The scores of the other labels do not change, but more labels compete.
    """
    label_search = _label_search()
    target = label_search.SearchableRun.open(run, Path(root))
    output = output or _free_name_beside(target.path)
    extension, refusals, indexes = label_search.add_labels_to_run(target, file, output, _say)
    if as_json:
        summary = {
            "folder": str(extension.path),
            "labels": extension.labels,
            "predictable": not refusals,
            "why": refusals,
            "indexes": indexes,
        }
        print_json(summary)
        return
    count, names = len(extension.labels), ", ".join(extension.labels[:5])
    click.echo(f"{counted(count, 'new label')}: {printable(names, keep='')}{', …' * (count > 5)}")
    for line in indexes:
        listed = "lists the new labels" if line["new"] else f"still lists only the first {line['labels']:,} labels"
        click.echo(f"head {line['head']}: index {line['index']} {listed}")
    for refusal in refusals:
        click.echo(f"not predictable: {refusal}")
    first = "xmckit search" if refusals else "xmckit predict"
    click.echo(f'folder: {extension.path}\ntry: {first} {extension.path} "some text"')


def _label_search() -> Any:
    """Import the module behind the commands; if faiss is missing, the error says what to install."""
    from xmckit import make_context

    make_context().resolve("indexer", "faiss")
    from xmckit_faiss import label_search

    return label_search


def _free_name_beside(path: Path) -> Path:
    candidates = (path.with_name(f"{path.name}-labels-{number}") for number in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())


def _say(text: str) -> None:
    click.echo(text, err=True)
