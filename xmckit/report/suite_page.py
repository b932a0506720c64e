"""The page of a suite: every system on every data set, with significance, costs and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit import store
from xmckit.report.charts import Axis, Chart, bar_chart
from xmckit.report.page import render
from xmckit.report.run_charts import short_number, time_chart
from xmckit.report.tables import (
    BEST,
    SAME,
    Cell,
    Column,
    ReportTable,
    make_table,
    name_cell,
    number_cell,
    pair_table,
    share_cell,
)
from xmckit.report.texts import MIB, flat_facts

if TYPE_CHECKING:
    from xmckit.bench.results import DataResults, Duel, Results

FAMILIES = ("P", "PSP")
COSTS = (
    ("train s", "train_seconds", 1, ",.1f"),
    ("predict s", "predict_seconds", 1, ",.2f"),
    ("CPU s", "cpu_seconds", 1, ",.1f"),
    ("peak MiB", "peak_bytes", 1 / MIB, ",.0f"),
    ("model MiB", "bytes", 1 / MIB, ",.1f"),
)
COST_COLUMNS = (*(title for title, *_ in COSTS), "seeds")


def write_suite(results: Results, path: Path) -> None:
    """Write one self-contained page."""
    store.write_text(path, suite_page(results))


def suite_page(results: Results) -> str:
    """Return the page as text."""
    return render(
        "suite.html.j2",
        title=results.title or results.suite,
        results=results,
        duels=_duel_table(results),
        duel_charts=_duel_charts(results),
        data=[_data_set(results, one, index) for index, one in enumerate(results.data)],
        failures=_failure_table(results),
        machine=flat_facts(results.machine),
        versions=pair_table("Versions", "library", "version", results.versions),
    )


def _data_set(results: Results, data: DataResults, index: int) -> dict[str, Any]:
    done = _done_systems(results, data)
    return {
        "id": f"data-{index}",
        "name": data.name,
        "facts": data.facts,
        "checksum": data.checksum,
        "table": data_table(results, data) if done else None,
        "charts": _charts(results, data, done, f"suite-{index}") if done else [],
        "notes": data.notes,
        "published": published_notes(data),
    }


def published_notes(data: DataResults) -> list[str]:
    """Return the source of each published result."""
    return [
        f"{one['system']}: {one['source']}" + ("" if one["same_split"] else "; on other rows of the same source")
        for one in data.published
    ]


def metric_names(results: Results) -> list[str]:
    """Return the metrics that the tables of a suite have."""
    return [f"{family}@{k}" for family in FAMILIES for k in results.k]


def deepest_metrics(results: Results) -> list[str]:
    """Return the metrics at the largest k, one for each family."""
    return [f"{family}@{max(results.k)}" for family in FAMILIES]


def _done_systems(results: Results, data: DataResults) -> list[Mapping[str, str]]:
    """Return the systems with finished cells."""
    return [system for system in results.systems if results.of(data.name, system["name"])]


def _title(system: Mapping[str, str]) -> str:
    return system["title"] or system["name"]


def data_table(results: Results, data: DataResults) -> ReportTable:
    """Show a line for each system with finished cells, and one for each published result."""
    metrics = metric_names(results)
    rows = []
    for system in _done_systems(results, data):
        name = system["name"]
        cells = [name_cell(_title(system)), Cell(system["kind"])]
        cells += [_metric_cell(results, data, name, metric) for metric in metrics]
        for _, cost, scale, spec in COSTS:
            mean = results.mean(data.name, name, cost)
            cells.append(number_cell(mean[0] if mean else None, spec, scale))
        rows.append([*cells, number_cell(len(results.of(data.name, name)), "d")])
    for one in data.published:
        values = [one["metrics"].get(metric) for metric in metrics]
        cells = [name_cell(one["system"]), Cell("published")]
        cells += [Cell("–") if value is None else Cell(f"{value:.1f}", value / 100) for value in values]
        rows.append([*cells, *[number_cell(None, "")] * len(COST_COLUMNS)])
    at_k = [Column(f"@{metric.partition('@')[2]}", True, metric) for metric in metrics]
    families = [("", 2), *((family, len(results.k)) for family in FAMILIES), ("", len(COST_COLUMNS))]
    return make_table(["system", "kind", *at_k, *COST_COLUMNS], rows, families=families)


def _metric_cell(results: Results, data: DataResults, system: str, metric: str) -> Cell:
    mean_and_deviation = results.mean(data.name, system, metric)
    if mean_and_deviation is None:
        return Cell("–")
    mean, deviation = mean_and_deviation
    several = len(results.of(data.name, system)) > 1
    text = f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if several else "")
    standing = data.standings.get(metric, {}).get(system)
    if standing is None:
        return Cell(text, mean)
    if standing.best == system:
        return Cell(text, mean, BEST, hint="best")
    behind = f"{100 * standing.difference:.2f} behind {standing.best} "
    hint = f"{behind}({100 * standing.low:+.2f} … {100 * standing.high:+.2f}), p = {standing.p:.4f}"
    return Cell(text, mean, SAME if standing.same else "", hint=hint)


def _charts(results: Results, data: DataResults, done: list[Mapping[str, str]], prefix: str) -> list[Chart]:
    """Draw the metrics at the largest k as bars, and precision against the time of training."""
    charts = []
    for family, metric in zip(FAMILIES, deepest_metrics(results), strict=True):
        means = [(system, results.mean(data.name, system["name"], metric)) for system in done]
        scored = sorted(((system, value) for system, value in means if value), key=lambda pair: -pair[1][0])
        bars = [
            (_title(system), 100 * mean, f"{100 * mean:.1f}, deviation {100 * deviation:.2f} over seeds")
            for system, (mean, deviation) in scored
        ]
        peers = [system["kind"] != "recipe" for system, _ in scored]
        note = "Grey: not a recipe of xmckit." if any(peers) else ""
        charts.append(bar_chart(f"{prefix}-{family.lower()}", metric, bars, Axis("%"), note, peers))
    metric, points = deepest_metrics(results)[0], []
    for system in done:
        if system["kind"] == "baseline":  # its time is so short that it would squeeze the others together
            continue
        value, time = (results.mean(data.name, system["name"], name) for name in (metric, "train_seconds"))
        if value and time and time[0] > 0:
            points.append((_title(system), time[0], value[0]))
    return charts + time_chart(f"{prefix}-trade", metric, points, " of training")


def listed_duels(results: Results, metrics: Sequence[str]) -> list[tuple[str, Duel]]:
    """Return the duels in these metrics, each with the name of its data set."""
    return [(data.name, duel) for data in results.data for duel in data.duels if duel.metric in metrics]


def _duel_table(results: Results) -> ReportTable:
    """Compare the best recipe with the best peer in every metric of the page."""
    titles = {system["name"]: _title(system) for system in results.systems}
    rows = []
    for name, duel in listed_duels(results, metric_names(results)):
        means = [results.mean(name, system, duel.metric) for system in (duel.recipe, duel.peer)]
        recipe, peer = (share_cell(mean[0] if mean else None) for mean in means)
        rows.append(
            [
                name_cell(name),
                Cell(duel.metric),
                Cell(duel.conclusion, style={"better": "best", "behind": "bad"}.get(duel.conclusion, "")),
                name_cell(titles[duel.recipe]),
                recipe,
                name_cell(titles[duel.peer]),
                peer,
                number_cell(duel.difference, "+.2f", 100),
                Cell(f"{100 * duel.low:+.2f} … {100 * duel.high:+.2f}"),
                number_cell(duel.p, ".4f"),
            ]
        )
    columns = ["data", "metric", "xmckit", "best recipe", "its value", "best peer", "its value", "difference"]
    return make_table([*columns, "95% of draws", "p, corrected"], rows)


def _duel_charts(results: Results) -> list[Chart]:
    """Draw the difference between the best recipe and the best peer on each data set, with its 95 % interval."""
    charts = []
    for family, metric in zip(FAMILIES, deepest_metrics(results), strict=True):
        duels = listed_duels(results, [metric])
        if not duels:
            continue
        bars = [
            (
                name,
                100 * duel.difference,
                f"{100 * duel.difference:+.2f}, 95 % of draws {100 * duel.low:+.2f} … {100 * duel.high:+.2f}, "
                f"{duel.recipe} against {duel.peer}",
            )
            for name, duel in duels
        ]
        intervals = [(100 * duel.low, 100 * duel.high) for _, duel in duels]
        title, axis = f"{metric}: best recipe minus best peer", Axis("percentage points", format=short_number)
        charts.append(bar_chart(f"suite-duel-{family.lower()}", title, bars, axis, intervals=intervals))
    return charts


def _failure_table(results: Results) -> ReportTable | None:
    rows = [[name_cell(text) for text in row] for row in results.failures()]
    return make_table(["data", "system", "seed", "reason", "message"], rows) if rows else None
