"""The page of a comparison: finished runs side by side on the same test rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from xmckit import store
from xmckit.errors import shorten
from xmckit.report.charts import Axis, Chart, bar_chart
from xmckit.report.page import render
from xmckit.report.run_charts import time_chart
from xmckit.report.tables import (
    Cell,
    Column,
    ReportTable,
    cost_cells,
    cost_columns,
    metric_tables,
    name_cell,
    number_cell,
    pair_table,
)
from xmckit.report.texts import LONGEST_NAME, MIB, percent, seconds, size

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison, System


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write one self-contained page."""
    store.write_text(path, comparison_page(comparison))


def comparison_page(comparison: Comparison) -> str:
    """Return the page as text."""
    names = [system.name for system in comparison.systems]
    recipes = _recipes(comparison, names)
    sections = [("results", "Results"), ("differences", "Differences"), ("costs", "Time and memory")]
    sections += [("recipes", "Recipes")] if recipes else []
    return render(
        "comparison.html.j2",
        title=f"{' · '.join(names)} on {comparison.dataset}",
        sections=[*sections, ("repeat", "Repeat it")],
        comparison=comparison,
        tables=_metric_tables(comparison),
        charts=_metric_charts(comparison),
        differences=_differences(comparison),
        costs=_cost_charts(comparison),
        cost_table=_cost_table(comparison.systems),
        recipes=recipes,
        systems=_systems(comparison.systems),
        checksums=pair_table("Checksums of the data", "input", "checksum", comparison.checksums),
    )


def deepest_metrics(metrics: Sequence[str]) -> list[str]:
    """Return the metrics at the largest k."""
    deepest = max((int(metric.partition("@")[2]) for metric in metrics if "@" in metric), default=0)
    return [metric for metric in metrics if metric.endswith(f"@{deepest}")]


def _metric_tables(comparison: Comparison) -> list[ReportTable]:
    """Show all metrics; the best is bold, and systems that do not differ significantly from it are shaded."""
    results = [{"metrics": system.metrics} for system in comparison.systems]
    tables = metric_tables(results, [system.name for system in comparison.systems])
    return [
        replace(
            table,
            rows=[
                [row[0], *(_marked(comparison, system, *pair) for pair in zip(row[1:], table.columns[1:], strict=True))]
                for row, system in zip(table.rows, comparison.systems, strict=True)
            ],
        )
        for table in tables
    ]


def _marked(comparison: Comparison, system: System, cell: Cell, column: Column) -> Cell:
    metric = column.hint
    if metric not in comparison.metrics or metric not in system.metrics:
        return cell
    best = system.name in comparison.best(metric)
    style = "best equal" if best else "equal" if comparison.equals_best(metric, system.name) else ""
    hint = ""
    if metric in system.intervals:
        low, high = system.intervals[metric]
        hint = f"{percent(low)} to {percent(high)} in {comparison.level:.0%} of draws"
    return replace(cell, style=style, hint=hint)


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


def _differences(comparison: Comparison) -> ReportTable:
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
        for one in comparison.differences
    ]
    columns = [
        Column("one"), Column("other"), Column("metric"), Column("one − other", True, "percentage points"),
        Column(f"{comparison.level:.0%} of draws"), Column("p", True), Column("p, corrected", True), Column("verdict"),
    ]  # fmt: skip
    return ReportTable("", columns, rows)


def _cost_charts(comparison: Comparison) -> list[Chart]:
    systems = comparison.systems
    time = [(one.name, one.cost.seconds, seconds(one.cost.seconds)) for one in systems]
    memory = [(one.name, one.cost.peak_bytes / MIB, size(one.cost.peak_bytes)) for one in systems]
    charts = [
        bar_chart("compare-time", "Time of all stages", time, Axis("seconds")),
        bar_chart("compare-memory", "Peak memory", memory, Axis("MiB")),
    ]
    for metric in deepest_metrics(comparison.metrics)[:1]:
        timed = [one for one in systems if one.cost.seconds > 0 and metric in one.metrics]
        points = [(one.name, one.cost.seconds, one.metrics[metric]) for one in timed]
        charts += time_chart("compare-trade", metric, points)
    return charts


def _cost_table(systems: Sequence[System]) -> ReportTable:
    rows = [[name_cell(one.name), *cost_cells(one.cost, ".1f")] for one in systems]
    return ReportTable("", [Column("system"), *cost_columns("model")], rows)


def _recipes(comparison: Comparison, names: Sequence[str]) -> ReportTable | None:
    if not comparison.recipes:
        return None
    rows = [
        [name_cell(one.key), *(Cell("–") if value is None else name_cell(str(value)) for value in one.values)]
        for one in sorted(comparison.recipes, key=lambda one: one.unset)
    ]
    return ReportTable("", [Column("key"), *(Column(shorten(name, LONGEST_NAME)) for name in names)], rows)


def _systems(systems: Sequence[System]) -> ReportTable:
    rows = [
        [
            name_cell(one.name),
            name_cell(one.title),
            Cell("–" if one.path is None else f"{one.path.parent.name}/{one.path.name}"),
            number_cell(one.seed, "d"),
        ]
        for one in systems
    ]
    return ReportTable("", [Column("system"), Column("title"), Column("run"), Column("seed", True)], rows)
