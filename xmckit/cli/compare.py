"""`xmckit compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import headline, metric_text, print_table

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison

BEST, SAME = "*", "="


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…")
@options.html_option
@click.option("--draws", type=click.IntRange(min=100), default=4000, show_default=True, help="Draws of the bootstrap.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed of the bootstrap.")
@options.runs_option
@options.json_option
def compare(runs: tuple[str, ...], html: str | None, draws: int, seed: int, root: str, as_json: bool) -> None:
    """Compare finished runs on the same data. RUN is a run folder, or the name of a recipe for its newest run.

    Significance is tested by a paired bootstrap over test rows with Holm's correction. The test compares these trained
    models; it says nothing about models trained with other seeds.
    """
    from xmckit.analysis.compare import compare_runs
    from xmckit.runs import find_run

    finished = [find_run(run, Path(root)) for run in runs]
    with invocation.terminal_progress() as progress, progress("comparing runs"):
        comparison = compare_runs(finished, draws=draws, seed=seed)
        if html is not None:
            from xmckit.report import write_comparison

            write_comparison(comparison, Path(html))
    if as_json:
        options.print_json({**comparison.to_json(), "html": html})
        return
    print_comparison(comparison)
    if html is not None:
        click.echo(f"page: {html}")


def print_comparison(comparison: Comparison) -> None:
    """Print tables of metrics, significant differences, costs, and differences between the recipes."""
    ks = sorted({int(name.partition("@")[2]) for name in comparison.metrics})
    columns = headline(list(comparison.systems[0].metrics), ks)
    rows = [
        [one.name, *(metric_text(name, one.metrics.get(name)) + _mark(comparison, name, one.name) for name in columns)]
        for one in comparison.systems
    ]
    title = f"{comparison.dataset}: {comparison.rows:,} test rows, {comparison.labels:,} labels"
    print_table(rows, ["", *columns], title=title)
    constants = comparison.propensity
    click.echo(f"Percentages. Propensities with A = {constants['A']}, B = {constants['B']}.")
    click.echo(
        f"{BEST} best, {SAME} not significantly different from the best: paired bootstrap over test rows, "
        f"{comparison.draws:,} draws, Holm's correction, level {comparison.level:.0%}."
    )
    if unmarked := [metric for metric in columns if metric not in comparison.metrics]:
        click.echo(f"Not compared by row, and therefore without a mark: {', '.join(unmarked)}.")
    click.echo()
    _print_differences(comparison)
    _print_costs(comparison)
    _print_recipes(comparison)


def _print_recipes(comparison: Comparison) -> None:
    names = [system.name for system in comparison.systems]
    keys = [
        [one.key, *("–" if value is None else str(value) for value in one.values)]
        for one in comparison.recipes
        if not one.unset
    ]
    if keys:
        click.echo()
        print_table(keys, ["", *names], left=1 + len(names), title="where the recipes differ")
    if unset := len(comparison.recipes) - len(keys):
        click.echo(
            f"Not listed: defaults of components that not all runs have, {unset:,}; --html and --json have them."
        )


def _mark(comparison: Comparison, metric: str, name: str) -> str:
    if metric not in comparison.metrics:
        return ""
    if name in comparison.best(metric):
        return BEST
    return SAME if comparison.equals_best(metric, name) else " "


def _print_differences(comparison: Comparison) -> None:
    """Print the differences from the first run, in the metrics at the largest k."""
    from xmckit.report.comparison_page import deepest_metrics

    first, *others = (system.name for system in comparison.systems)
    rows = []
    for other in others:
        for metric in deepest_metrics(comparison.metrics):
            one = comparison.difference(metric, other, first)
            interval = f"{100 * one.low:+.1f} … {100 * one.high:+.1f}"
            verdict = "significant" if one.significant else "may be chance"
            rows.append([other, metric, f"{100 * one.value:+.1f}", interval, f"{one.adjusted:.4f}", verdict])
    level = f"{comparison.level:.0%} of draws"
    print_table(rows, ["", "", "difference", level, "p, corrected", ""], left=2, title=f"compared with {first}")
    click.echo()


def _print_costs(comparison: Comparison) -> None:
    rows = [
        [
            system.name,
            f"{system.cost.seconds:.1f}",
            f"{system.cost.cpu_seconds:.1f}",
            f"{system.cost.peak_bytes / 2**20:.0f}",
            f"{system.cost.bytes / 2**20:.1f}",
        ]
        for system in comparison.systems
    ]
    print_table(rows, ["", "seconds", "CPU seconds", "peak MiB", "model MiB"], title="time and memory")
