"""`xmckit ensemble`"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from xmckit.cli import invocation, options
from xmckit.records import Combining


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…")
@click.option(
    "--rule",
    type=click.Choice(get_args(Combining)),
    default="average",
    show_default=True,
    help="Mean of probabilities, of ranks, or of the softmax over what each run lists.",
)
@click.option(
    "--output", type=click.Path(), metavar="FOLDER", help="Keep the ensemble here; `xmckit predict` takes it."
)
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Processors to use; 0 is all.")
@options.runs_option
@options.json_option
def ensemble(
    runs: tuple[str, ...], rule: Combining, output: str | None, workers: int, root: str, as_json: bool
) -> None:
    """Combine finished runs on the same data: RUN is a run folder, or a recipe's name for its newest run."""
    from xmckit.analysis.combine import check_new, combine_runs
    from xmckit.cli.progress import TerminalProgress
    from xmckit.cli.tables import print_metrics
    from xmckit.context import cpu_count
    from xmckit.errors import UsageError
    from xmckit.runs import find_run, is_ensemble

    if output is not None:
        check_new(Path(output))
    for run in runs:
        if is_ensemble(Path(run)):
            raise UsageError(f"{run} is an ensemble of runs, not a run: name the runs themselves, all at once")
    found = [find_run(run, Path(root)) for run in runs]
    with TerminalProgress(quiet=invocation.quiet()) as progress, progress("combining predictions"):
        combined = combine_runs(found, rule, workers=workers or cpu_count())
        if output is not None:
            combined.save(Path(output))
    if as_json:
        options.print_json({"runs": [str(run.path) for run in found], "folder": output, **combined.metrics})
        return
    print_metrics(combined.metrics)
    if output is not None:
        click.echo(f"ensemble: {output}")
