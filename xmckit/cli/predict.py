"""`xmckit predict`"""

from __future__ import annotations

import sys
from typing import IO, Any

import click

from xmckit.cli import common
from xmckit.errors import printable


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1)
@click.option("--file", "file", type=click.File("r", encoding="utf-8"), help="One text a line; - is standard input.")
@click.option("-k", "k", default=5, show_default=True, type=click.IntRange(min=1), help="Labels for each text.")
@click.option(
    "--threshold", is_flag=True, help="Only the labels that pass the threshold chosen on the validation share."
)
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@common.json_option
def predict(
    run: str,
    texts: tuple[str, ...],
    file: IO[str] | None,
    k: int,
    threshold: bool,
    root: str,
    as_json: bool,
) -> None:
    """Label TEXTS with the model of RUN: a run folder, or a recipe's name for its newest run."""
    from xmckit.errors import UsageError
    from xmckit.model import load

    if file is None and not texts:
        if sys.stdin.isatty():
            raise UsageError("give texts, or --file FILE, or --file - for standard input")
        file = click.open_file("-", encoding="utf-8")
    lines = [*texts, *(_lines(file) if file else ())]
    model = load(run, root=root, registry=common.get_registry())
    passed = [set(names) for names in model.labels(lines)] if threshold else None
    results: list[dict[str, Any]] = [
        {
            "text": text,
            "labels": [
                {"label": tag.label, "score": round(tag.score, 4)}
                for tag in tags
                if passed is None or tag.label in passed[row]
            ],
        }
        for row, (text, tags) in enumerate(zip(lines, model.predict(lines, k=k), strict=True))
    ]
    if as_json:
        common.print_json(results)
        return
    for result in results:
        shown = ", ".join(f"{_short(item['label'])} ({item['score']:+.2f})" for item in result["labels"])
        click.echo(f"{_short(result['text'])}: {shown or 'no label passes'}")


def _lines(file: IO[str]) -> list[str]:
    from xmckit.errors import DataError

    try:
        return [line.rstrip("\n") for line in file]
    except UnicodeDecodeError as error:
        raise DataError(f"this is not UTF-8 text: {error}", path=file.name) from None


def _short(text: str) -> str:
    """Enough of a text or a label to know it again, on one line."""
    start = text if len(text) <= 60 else f"{text[:59]}…"
    return printable(start, keep="")
