"""`xmckit ensemble`"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import print_metrics
from xmckit.records import Combining


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…")
@click.option(
    "--rule",
    type=click.Choice(get_args(Combining)),
    default="average",
    show_default=True,
    help="Combine by the mean of probabilities, of ranks, or of the softmax over the labels that each run lists.",
)
@click.option(
    "--output", type=click.Path(), metavar="FOLDER", help="Store the ensemble in this folder for `xmckit predict`."
)
@options.workers_option
@options.runs_option
@options.json_option
def ensemble(
    runs: tuple[str, ...], rule: Combining, output: str | None, workers: int, root: str, as_json: bool
) -> None:
    """Combine finished runs on the same data. RUN is a run folder, or the name of a recipe for its newest run."""
    from xmckit import store
    from xmckit.analysis.combine import combine_runs
    from xmckit.context import cpu_count
    from xmckit.runs import find_run

    if output is not None:
        store.check_new_folder(Path(output))
    members = [find_run(run, Path(root)) for run in runs]
    with invocation.terminal_progress() as progress, progress("combining predictions"):
        combined = combine_runs(members, rule, workers=workers or cpu_count())
        if output is not None:
            combined.save(Path(output))
    if as_json:
        options.print_json({"runs": [str(run.path) for run in members], "folder": output, **combined.metrics})
        return
    print_metrics(combined.metrics)
    if output is not None:
        click.echo(f"ensemble: {output}")
