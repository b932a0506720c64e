"""`xmckit compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli import invocation, options

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison

BEST, SAME = "*", "="


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…")
@click.option("--html", type=click.Path(), metavar="FILE", help="Also write one self-contained page.")
@click.option("--draws", type=click.IntRange(min=100), default=4000, show_default=True, help="Of the bootstrap.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the bootstrap.")
@options.runs_option
@options.json_option
def compare(runs: tuple[str, ...], html: str | None, draws: int, seed: int, root: str, as_json: bool) -> None:
    """Compare finished runs on the same data: RUN is a run folder, or a recipe's name for its newest run.

    A difference is significant where a paired bootstrap over test rows says so, after Holm's correction. It is one
    between these models: trained with another seed, each would be another.
    """
    from xmckit.analysis.compare import compare_runs
    from xmckit.cli.progress import TerminalProgress
    from xmckit.errors import UsageError
    from xmckit.runs import find_run, is_ensemble

    for run in runs:
        if is_ensemble(Path(run)):
            raise UsageError(f"{run} is an ensemble of runs, not a run: name the runs themselves")
    found = [find_run(run, Path(root)) for run in runs]
    with TerminalProgress(quiet=invocation.quiet()) as progress, progress("comparing runs"):
        comparison = compare_runs(found, draws=draws, seed=seed)
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
    """Metrics, what is significant, costs, and how the recipes differ, as tables."""
    from xmckit.cli.tables import headline, print_table, shown

    def cell(system: Any, metric: str) -> str:
        text = shown(metric, system.metrics.get(metric))
        if metric not in comparison.metrics:
            return text
        return text + _mark(comparison, metric, system.name)

    ks = sorted({int(name.partition("@")[2]) for name in comparison.metrics})
    columns = headline(list(comparison.systems[0].metrics), ks)
    rows = [[system.name, *(cell(system, metric) for metric in columns)] for system in comparison.systems]
    title = f"{comparison.dataset}: {comparison.rows:,} test rows, {comparison.labels:,} labels"
    print_table(rows, ["", *columns], title=title)
    constants = comparison.propensity
    click.echo(f"Percentages. Propensities with A = {constants['A']}, B = {constants['B']}.")
    click.echo(
        f"{BEST} the best, {SAME} not told apart from it: paired bootstrap over test rows, {comparison.draws:,} draws, "
        f"Holm's correction, level {comparison.level:.0%}."
    )
    if unmarked := [metric for metric in columns if metric not in comparison.metrics]:
        click.echo(f"Not compared by row, and so without a mark: {', '.join(unmarked)}.")
    click.echo()
    _print_differences(comparison)
    _print_costs(comparison)
    _print_recipes(comparison)


def _print_recipes(comparison: Comparison) -> None:
    from xmckit.cli.tables import print_table

    names = [system.name for system in comparison.systems]
    keys = [[one.key, *map(_shown_value, one.values)] for one in comparison.recipes if not one.unset]
    if keys:
        click.echo()
        print_table(keys, ["", *names], left=1 + len(names), title="where the recipes differ")
    if unset := len(comparison.recipes) - len(keys):
        click.echo(
            f"Not listed: defaults of components that not all runs have, {unset:,}; --html and --json have them."
        )


def _mark(comparison: Comparison, metric: str, name: str) -> str:
    if name in comparison.best(metric):
        return BEST
    return SAME if comparison.equals_best(metric, name) else " "


def _print_differences(comparison: Comparison) -> None:
    """To the first run, in the metrics at the largest k."""
    from xmckit.cli.tables import print_table

    first, *others = (system.name for system in comparison.systems)
    deepest = max(int(metric.partition("@")[2]) for metric in comparison.metrics)
    shown_here = [metric for metric in comparison.metrics if metric.endswith(f"@{deepest}")]
    rows = []
    for other in others:
        for metric in shown_here:
            found = comparison.difference(metric, other, first)
            interval = f"{100 * found.low:+.1f} … {100 * found.high:+.1f}"
            verdict = "significant" if found.significant else "may be chance"
            rows.append([other, metric, f"{100 * found.value:+.1f}", interval, f"{found.adjusted:.4f}", verdict])
    level = f"{comparison.level:.0%} of draws"
    print_table(rows, ["", "", "difference", level, "p, corrected", ""], left=2, title=f"compared with {first}")
    click.echo()


def _print_costs(comparison: Comparison) -> None:
    from xmckit.cli.tables import print_table

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


def _shown_value(value: Any) -> str:
    return "–" if value is None else str(value)
