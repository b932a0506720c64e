"""`xmckit argmax reach`"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.runs import VerdictSummary, layout, read_verdicts
from xmckit_argmax.cli.common import PLOT, find_verified_folders


@click.command()
@click.argument("runs", nargs=-1, required=True)
@runs_option
@PLOT
@json_option
def reach(runs: tuple[str, ...], root: str, plot: Path | None, as_json: bool) -> None:
    """Compare how many of the same label sets heads of several widths can output.

    RUNS has one verified run for each width. The label sets are those of the first run's recipe, or else the first by
    name that `xmckit verify` verified for it. `xmckit run mine.toml --sweep head.dim=8,16,32` with [verify] in the
    recipe makes such runs.
    """
    from xmckit import store

    rows = [
        {
            "head": result["head"],
            "scope": result["scope"],
            "columns": result["dim"],
            "sets": sum(result["counts"].values()),
            "argmaxable": result["counts"]["argmaxable"],
            "at_eps": result["eps"]["argmaxable"] if any(result["eps"].values()) else None,
        }
        for verdicts in _read_common_verdicts(list(dict.fromkeys(runs)), Path(root))
        for result in verdicts["results"]
        if result["verifiable"] and any(result["counts"].values())
    ]
    rows.sort(key=lambda row: (row["head"], row["scope"], row["columns"]))
    if plot is not None:
        store.write_text(plot, _draw(rows))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        eps = "" if row["at_eps"] is None else f", {row['at_eps']} at eps"
        scope = "" if row["scope"] == "full" else " (candidates)"
        click.echo(
            f"{row['head']}{scope}, {row['columns']} columns: {row['argmaxable']} of {row['sets']} label sets{eps}"
        )


def _read_common_verdicts(runs: Sequence[str], root: Path) -> list[VerdictSummary]:
    """Read the verdicts of each run on the label sets of the first run's first verdicts."""
    from xmckit import UsageError

    label_sets, common = None, []
    for run in runs:
        every = [read_verdicts(folder) for folder in find_verified_folders(run, root)]
        label_sets = label_sets or every[0]["files"][layout.ASSIGNMENTS]
        same = [verdicts for verdicts in every if verdicts["files"][layout.ASSIGNMENTS] == label_sets]
        if not same:
            raise UsageError(f"{run} was not verified for the label sets of {runs[0]}: they cannot be compared")
        common.append(same[0])
    return common


def _draw(rows: Sequence[dict[str, Any]]) -> str:
    from xmckit_argmax.figures import ReachByDimension, reach_by_dimension

    layers = []
    for (head, scope), group in itertools.groupby(rows, key=lambda row: (row["head"], row["scope"])):
        by_columns = {row["columns"]: row for row in group}
        exact, at_eps = (
            [None if row[key] is None else row[key] / row["sets"] for row in by_columns.values()]
            for key in ("argmaxable", "at_eps")
        )
        name = head if scope == "full" else f"{head}, candidates"
        layers.append(ReachByDimension(name, list(by_columns), exact=exact, at_eps=None if None in at_eps else at_eps))
    return reach_by_dimension(layers, sets="label sets")
