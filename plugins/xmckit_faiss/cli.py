"""`xmckit search` and `xmckit labels add`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from xmckit.errors import printable


@click.command()
@click.argument("run")
@click.argument("query")
@click.option("-k", "k", default=10, show_default=True, type=click.IntRange(min=1), help="Labels to show.")
@click.option("--text", "how", flag_value="text", help="QUERY is a text, even if a label has that name.")
@click.option("--label", "how", flag_value="label", help="QUERY is the name of a label.")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def search(run: str, query: str, k: int, how: str | None, root: str, as_json: bool) -> None:
    """Show the labels of RUN that are nearest to QUERY, a label's name or a text, by their embeddings.

    RUN is a run folder, its name, the name of a recipe for its newest finished run, or a folder that `xmckit labels
    add` wrote. Near is what points in the same direction: scores are cosines, whatever the metric of the run's index.
    """
    label_search = _label_search()
    told = label_search.nearest_labels(label_search.SearchableRun.open(run, Path(root)), query, k, how, _say)
    if as_json:
        click.echo(json.dumps(told, indent=2, ensure_ascii=True))
        return
    click.echo(printable(f"{told['as']} {query!r}: nearest labels, by cosine", keep=""))
    for item in told["labels"]:
        click.echo(printable(f"  {item['cosine']:+.3f}  {item['label']}", keep=""))


@click.command()
@click.argument("run")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="The new folder; by default beside the run.")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def add(run: str, file: Path, output: Path | None, root: str, as_json: bool) -> None:
    """Give the model of RUN the labels of FILE, without training it anew.

    FILE has a line of JSON for each label: {"label": "name", "examples": ["text", "text"]}, or with a "text" that
    describes it. The run stays as it is: a new folder has the model with the labels, which `xmckit predict` and
    `xmckit search` take in the place of a run. What the model says about its other labels does not change, but more of
    them compete.
    """
    label_search = _label_search()
    target = label_search.SearchableRun.open(run, Path(root))
    output = output or _beside(target.path)
    done = label_search.add_labels_to_run(target, file, output, _say)
    extension, refusals = done.extension, done.refusals
    if as_json:
        told = {
            "folder": str(extension.path),
            "labels": extension.labels,
            "predictable": not refusals,
            "why": refusals,
            "indexes": done.indexes,
        }
        click.echo(json.dumps(told, indent=2, ensure_ascii=True))
        return
    count, names = len(extension.labels), ", ".join(extension.labels[:5])
    click.echo(f"{count} new label{'s' * (count > 1)}: {printable(names, keep='')}{', …' * (count > 5)}")
    for line in done.indexes:
        listed = "lists the new labels" if line["new"] else f"goes on listing the first {line['labels']:,} labels"
        click.echo(f"head {line['head']}: index {line['index']} {listed}")
    for refusal in refusals:
        click.echo(f"not predictable: {refusal}")
    first = "xmckit search" if refusals else "xmckit predict"
    click.echo(f'folder: {extension.path}\ntry: {first} {extension.path} "some text"')


def _label_search() -> Any:
    """What the commands do; where faiss is missing, the error says what to install."""
    from xmckit import make_context

    make_context().resolve("indexer", "faiss")
    from xmckit_faiss import label_search

    return label_search


def _beside(path: Path) -> Path:
    """A free name beside the run."""
    number = 1
    while (found := path.with_name(f"{path.name}-labels-{number}")).exists():
        number += 1
    return found


def _say(text: str) -> None:
    click.echo(text, err=True)
