"""The page of a comparison: finished runs side by side on the same test rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xmckit import store
from xmckit.errors import shorten
from xmckit.report.charts import Axis, Chart, bar_chart
from xmckit.report.page import render
from xmckit.report.run_charts import cost_charts, time_chart
from xmckit.report.tables import (
    BEST,
    COST_COLUMNS,
    SAME,
    Cell,
    Column,
    ReportTable,
    cost_cells,
    make_table,
    metric_tables,
    name_cell,
    number_cell,
    pair_table,
)
from xmckit.report.texts import LONGEST_NAME, percent

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison, Difference, RecipeDifference, System


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write one self-contained page."""
    store.write_text(path, comparison_page(comparison))


def comparison_page(comparison: Comparison) -> str:
    """Return the page as text."""
    names = [system.name for system in comparison.systems]
    return render(
        "comparison.html.j2",
        title=f"{' · '.join(names)} on {comparison.dataset}",
        comparison=comparison,
        tables=_metric_tables(comparison),
        charts=_metric_charts(comparison),
        differences=difference_table(comparison.differences, comparison.level),
        costs=_cost_charts(comparison),
        cost_table=cost_table(comparison.systems),
        recipes=recipe_table(sorted(comparison.recipes, key=lambda one: one.unset), names),
        systems=_system_table(comparison.systems),
        checksums=pair_table("Checksums of the data", "input", "checksum", comparison.checksums),
    )


def deepest_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics at the largest k."""
    deepest = max((int(metric.partition("@")[2]) for metric in metrics if "@" in metric), default=0)
    return [metric for metric in metrics if metric.endswith(f"@{deepest}")]


def _metric_tables(comparison: Comparison) -> list[ReportTable]:
    """Show all metrics; the best is bold, and systems that do not differ significantly from it are shaded."""

    def mark(cell: Cell, position: int, metric: str) -> Cell:
        system = comparison.systems[position]
        if metric not in comparison.metrics or metric not in system.metrics:
            return cell
        hint = ""
        if metric in system.intervals:
            low, high = system.intervals[metric]
            hint = f"{percent(low)} to {percent(high)} in {comparison.level:.0%} of draws"
        return replace(cell, style=style_of(comparison, metric, system.name), hint=hint)

    systems = comparison.systems
    return metric_tables([{"metrics": one.metrics} for one in systems], [one.name for one in systems], mark)


def style_of(comparison: Comparison, metric: str, name: str) -> str:
    """Return the style of a system's metric: the best, equal to the best, or neither."""
    if metric not in comparison.metrics:
        return ""
    if name in comparison.best(metric):
        return BEST
    return SAME if comparison.equals_best(metric, name) else ""


def _metric_charts(comparison: Comparison) -> list[Chart]:
    wanted = [metric for metric in comparison.metrics if metric == "P@1"] + deepest_metrics(comparison.metrics)
    charts = []
    for metric in dict.fromkeys(wanted):
        bars, intervals = [], []
        for system in comparison.systems:
            if metric not in system.metrics:
                continue
            value, interval = system.metrics[metric], system.intervals.get(metric)
            between = f", {percent(interval[0])} to {percent(interval[1])}" if interval else ""
            bars.append((system.name, 100 * value, f"{percent(value)}{between}"))
            intervals.append((100 * interval[0], 100 * interval[1]) if interval else None)
        name = f"compare-{metric.replace('@', '-').lower()}"
        charts.append(bar_chart(name, metric, bars, Axis("%"), intervals=intervals))
    return charts


def difference_table(differences: Sequence[Difference], level: float) -> ReportTable:
    """Show differences in percentage points; the level is that of the intervals."""
    rows = [
        [
            name_cell(one.one),
            name_cell(one.other),
            Cell(one.metric),
            number_cell(one.value, "+.2f", 100),
            Cell(f"{100 * one.low:+.2f} … {100 * one.high:+.2f}"),
            number_cell(one.p, ".4f"),
            number_cell(one.adjusted, ".4f"),
            Cell("significant" if one.significant else "may be chance", style="best" if one.significant else ""),
        ]
        for one in differences
    ]
    difference = Column("difference", True, "system minus the one that it is compared with, in percentage points")
    draws = f"{level:.0%} of draws"
    return make_table(["system", "compared with", "metric", difference, draws, "p", "p, corrected", "conclusion"], rows)


def _cost_charts(comparison: Comparison) -> list[Chart]:
    systems = comparison.systems
    costs = [(one.name, one.cost, False) for one in systems]
    charts = cost_charts("compare-", "Time of all stages", "Peak memory", costs)
    for metric in deepest_metrics(comparison.metrics)[:1]:
        timed = [one for one in systems if one.cost.seconds > 0 and metric in one.metrics]
        points = [(one.name, one.cost.seconds, one.metrics[metric]) for one in timed]
        charts += time_chart("compare-trade", metric, points)
    return charts


def cost_table(systems: Sequence[System]) -> ReportTable:
    """Show what each system cost."""
    rows = [[name_cell(one.name), *cost_cells(one.cost, ".1f")] for one in systems]
    return make_table(["system", *COST_COLUMNS, "model MiB"], rows)


def recipe_table(recipes: Iterable[RecipeDifference], names: Sequence[str]) -> ReportTable:
    """Show the values in which the recipes of the systems `names` differ."""
    rows = [
        [name_cell(one.key), *(Cell("–") if value is None else name_cell(str(value)) for value in one.values)]
        for one in recipes
    ]
    return make_table(["key", *(shorten(name, LONGEST_NAME) for name in names)], rows)


def _system_table(systems: Sequence[System]) -> ReportTable:
    rows = [
        [
            name_cell(one.name),
            name_cell(one.title),
            Cell("–" if one.path is None else f"{one.path.parent.name}/{one.path.name}"),
            number_cell(one.seed, "d"),
        ]
        for one in systems
    ]
    return make_table(["system", "title", "run", "seed"], rows)
