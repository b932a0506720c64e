"""`xmckit index`"""

from __future__ import annotations

from pathlib import Path

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.errors import printable


@click.group()
def index() -> None:
    """Look at the label trees of runs."""


@index.command("show")
@click.argument("run")
@click.option("--label", "label_name", metavar="NAME", help="Show the leaves of this label, and its rows there.")
@click.option("--index", "index_name", metavar="NAME", help="Index to show, if the run has several.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(min=1), help="Labels to name.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(min=0), help="Rows to show of a leaf.")
@runs_option
@json_option
def show(
    run: str, label_name: str | None, index_name: str | None, most: int, examples: int, root: str, as_json: bool
) -> None:
    """Show the label tree of RUN: its levels and the sizes of its leaves, or the leaves of one label.

    RUN is a run folder, its name, or the name of a recipe for its newest finished run. A label may be in several leaves
    (index `overlap`). For each of them the command shows the training rows of the label that reach the leaf, and the
    labels of the leaf that are nearest to these rows. Labels are near each other when their training rows are, by the
    cosine of the sums of these rows.
    """
    from xmckit import find_run
    from xmckit_pecos.inspection.facts import TreeInspector
    from xmckit_pecos.inspection.text import label_text, tree_text

    inspector = TreeInspector(find_run(run, Path(root)), index_name)
    if label_name is None:
        facts = inspector.tree_facts(most)
        lines = tree_text(facts)
    else:
        facts = inspector.label_facts(label_name, most, examples)
        lines = label_text(facts)
    if as_json:
        print_json(facts)
    else:
        click.echo("\n".join(printable(line, keep="") for line in lines))
