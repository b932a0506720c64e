"""`xmckit compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from xmckit.cli import invocation, options
from xmckit.cli.tables import headline, metric_text, print_report_table, print_table, sizes_title

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison


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
            from xmckit.report.comparison_page import write_comparison

            write_comparison(comparison, Path(html))
    if as_json:
        options.print_json({**comparison.to_json(), "html": html})
        return
    print_comparison(comparison)
    if html is not None:
        click.echo(f"page: {html}")


def print_comparison(comparison: Comparison) -> None:
    """Print tables of metrics, significant differences, costs, and differences between the recipes."""
    from xmckit.report.comparison_page import cost_table, deepest_metrics, difference_table, recipe_table, style_of
    from xmckit.report.tables import BEST, MARKS, SAME

    names = [system.name for system in comparison.systems]
    ks = sorted({int(name.partition("@")[2]) for name in comparison.metrics})
    columns = headline(list(comparison.systems[0].metrics), ks)
    rows = []
    for system in comparison.systems:
        marks = [MARKS.get(style_of(comparison, metric, system.name), " ") for metric in columns]
        texts = [metric_text(metric, system.metrics.get(metric)) for metric in columns]
        rows.append([system.name, *(text + mark for text, mark in zip(texts, marks, strict=True))])
    print_table(rows, ["", *columns], title=sizes_title(vars(comparison)))
    constants = comparison.propensity
    click.echo(f"Percentages. Propensities with A = {constants['A']}, B = {constants['B']}.")
    click.echo(
        f"{MARKS[BEST]} best, {MARKS[SAME]} not significantly different from the best: paired bootstrap over test "
        f"rows, {comparison.draws:,} draws, Holm's correction, level {comparison.level:.0%}."
    )
    if unmarked := [metric for metric in columns if metric not in comparison.metrics]:
        click.echo(f"Not compared by row, and therefore without a mark: {', '.join(unmarked)}.")
    click.echo()
    deepest = deepest_metrics(comparison.metrics)
    differences = [comparison.difference(metric, other, names[0]) for other in names[1:] for metric in deepest]
    table = difference_table(differences, comparison.level).without("compared with", "p")
    print_report_table(table, f"compared with {names[0]}")
    click.echo()
    print_report_table(cost_table(comparison.systems), "time and memory")
    listed = [one for one in comparison.recipes if not one.unset]
    if listed:
        click.echo()
        print_report_table(recipe_table(listed, names), "where the recipes differ")
    if unset := len(comparison.recipes) - len(listed):
        click.echo(
            f"Not listed: defaults of components that not all runs have, {unset:,}; --html and --json have them."
        )
