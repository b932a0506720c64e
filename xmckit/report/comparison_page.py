"""The page of a comparison: finished runs side by side on the same test rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit import store
from xmckit.report.charts import Axis, Chart, Series, bar_chart, line_chart
from xmckit.report.page import render
from xmckit.report.run_charts import in_percent
from xmckit.report.tables import Cell, Column, Table, figure, metric_tables, texts
from xmckit.report.texts import percent, seconds, short, size

if TYPE_CHECKING:
    from xmckit.analysis.compare import Comparison, System

MIB = 2**20


def write_comparison(comparison: Comparison, path: Path) -> None:
    """One self-contained page."""
    store.write_text(path, comparison_page(comparison))


def comparison_page(comparison: Comparison) -> str:
    """The page as text."""
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
        checksums=_checksums(comparison),
    )


def deepest_metrics(metrics: Sequence[str]) -> list[str]:
    """Those at the largest k."""
    deepest = max((int(metric.partition("@")[2]) for metric in metrics if "@" in metric), default=0)
    return [metric for metric in metrics if metric.endswith(f"@{deepest}")]


def _metric_tables(comparison: Comparison) -> list[Table]:
    """All metrics; the best is bold, what cannot be told apart from it is marked."""
    results = [{"metrics": system.metrics} for system in comparison.systems]
    tables = metric_tables(results, [system.name for system in comparison.systems])
    return [
        Table(
            table.title,
            table.columns,
            [_marked(comparison, row, table, place) for place, row in enumerate(table.rows)],
            families=table.families,
        )
        for table in tables
    ]


def _marked(comparison: Comparison, row: Sequence[Cell], table: Table, place: int) -> list[Cell]:
    system = comparison.systems[place]
    cells = [row[0]]
    for cell, column in zip(row[1:], table.columns[1:], strict=True):
        metric = column.hint
        if metric not in comparison.metrics or metric not in system.metrics:
            cells.append(cell)
            continue
        best = system.name in comparison.best(metric)
        style = "best equal" if best else "equal" if comparison.equals_best(metric, system.name) else ""
        hint = ""
        if metric in system.intervals:
            low, high = system.intervals[metric]
            hint = f"{percent(low)} to {percent(high)} in {comparison.level:.0%} of draws"
        cells.append(Cell(cell.text, cell.value, style, hint=hint))
    return cells


def _metric_charts(comparison: Comparison) -> list[Chart]:
    wanted = [metric for metric in comparison.metrics if metric == "P@1"] + deepest_metrics(comparison.metrics)
    charts = []
    for metric in dict.fromkeys(wanted):
        bars, intervals = [], []
        for system in comparison.systems:
            if metric not in system.metrics:
                continue
            found = system.intervals.get(metric)
            between = f", {percent(found[0])} to {percent(found[1])}" if found else ""
            bars.append((system.name, 100 * system.metrics[metric], f"{percent(system.metrics[metric])}{between}"))
            intervals.append((100 * found[0], 100 * found[1]) if found else None)
        charts.append(bar_chart(f"compare-{_file(metric)}", metric, bars, Axis("%"), intervals=intervals))
    return charts


def _file(metric: str) -> str:
    return metric.replace("@", "-").lower()


def _differences(comparison: Comparison) -> Table:
    rows = [
        [
            texts(found.one),
            texts(found.other),
            Cell(found.metric),
            figure(found.value, f"{100 * found.value:+.2f}"),
            Cell(f"{100 * found.low:+.2f} … {100 * found.high:+.2f}"),
            figure(found.p, f"{found.p:.4f}"),
            figure(found.adjusted, f"{found.adjusted:.4f}"),
            Cell("significant" if found.significant else "may be chance", style="best" if found.significant else ""),
        ]
        for found in comparison.differences
    ]
    columns = [
        Column("one"), Column("other"), Column("metric"), Column("one − other", True, "percentage points"),
        Column(f"{comparison.level:.0%} of draws"), Column("p", True), Column("p, corrected", True), Column("verdict"),
    ]  # fmt: skip
    return Table("", columns, rows)


def _cost_charts(comparison: Comparison) -> list[Chart]:
    systems = comparison.systems
    charts = [
        bar_chart(
            "compare-time",
            "Time of all stages",
            [(one.name, one.cost.seconds, seconds(one.cost.seconds)) for one in systems],
            Axis("seconds"),
        ),
        bar_chart(
            "compare-memory",
            "Largest memory",
            [(one.name, one.cost.peak_bytes / MIB, size(one.cost.peak_bytes)) for one in systems],
            Axis("MiB"),
        ),
    ]
    metric = next(iter(deepest_metrics(comparison.metrics)), None)
    timed = [one for one in systems if one.cost.seconds > 0 and metric in one.metrics]
    if metric is not None and len(timed) > 1:
        points = [
            Series(
                one.name,
                [(one.cost.seconds, 100 * one.metrics[metric])],
                [f"{one.name}: {metric} {percent(one.metrics[metric])} in {seconds(one.cost.seconds)}"],
                joined=False,
            )
            for one in timed
        ]
        title = f"{metric} against time"
        axis = Axis("seconds", log=True)
        charts.append(line_chart("compare-trade", title, points, axis, Axis(f"{metric}, %", shown=in_percent)))
    return charts


def _cost_table(systems: Sequence[System]) -> Table:
    rows = [
        [
            texts(one.name),
            figure(one.cost.seconds, f"{one.cost.seconds:.1f}"),
            figure(one.cost.cpu_seconds, f"{one.cost.cpu_seconds:.1f}"),
            figure(one.cost.peak_bytes, f"{one.cost.peak_bytes / MIB:,.0f}"),
            figure(one.cost.bytes, f"{one.cost.bytes / MIB:,.1f}"),
        ]
        for one in systems
    ]
    columns = [
        Column("system"), Column("seconds", True), Column("CPU seconds", True), Column("peak MiB", True),
        Column("model MiB", True),
    ]  # fmt: skip
    return Table("", columns, rows)


def _recipes(comparison: Comparison, names: Sequence[str]) -> Table | None:
    if not comparison.recipes:
        return None
    rows = [
        [texts(found.key), *(Cell("–") if value is None else texts(str(value)) for value in found.values)]
        for found in sorted(comparison.recipes, key=lambda found: found.unset)
    ]
    return Table("", [Column("key"), *(Column(short(name)) for name in names)], rows)


def _systems(systems: Sequence[System]) -> Table:
    rows: list[list[Any]] = [
        [
            texts(one.name),
            texts(one.title),
            Cell("–" if one.path is None else f"{one.path.parent.name}/{one.path.name}"),
            Cell("–" if one.seed is None else str(one.seed), one.seed),
        ]
        for one in systems
    ]
    return Table("", [Column("system"), Column("title"), Column("run"), Column("seed", True)], rows)


def _checksums(comparison: Comparison) -> Table | None:
    rows = [[texts(name), Cell(str(value))] for name, value in comparison.checksums.items()]
    return Table("Checksums of the data", [Column("input"), Column("checksum")], rows) if rows else None
