"""The page of a suite: every system on every data set, what is significant, what it cost, and what did not run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xmckit import store
from xmckit.report.charts import Axis, Chart, Series, bar_chart, line_chart
from xmckit.report.facts import flat_facts
from xmckit.report.page import render
from xmckit.report.run_charts import in_percent
from xmckit.report.tables import Cell, Column, Table, figure, texts
from xmckit.report.texts import percent, seconds, short

if TYPE_CHECKING:
    from xmckit.bench.results import DataResults, Duel, Results

MIB = 2**20
FAMILIES = ("P", "PSP")
COSTS = (
    ("train s", "train_seconds", 1, 1),
    ("predict s", "predict_seconds", 1, 2),
    ("CPU s", "cpu_seconds", 1, 1),
    ("peak MiB", "peak_bytes", MIB, 0),
    ("model MiB", "bytes", MIB, 1),
)


def write_suite(results: Results, path: Path) -> None:
    """One self-contained page."""
    store.write_text(path, suite_page(results))


def suite_page(results: Results) -> str:
    """The page as text."""
    data = [_data_set(results, one, place) for place, one in enumerate(results.data)]
    duels, failed = _duels(results), _failed(results)
    sections = [("duels", "Recipes against peers")] if duels.rows else []
    sections += [(one["id"], short(one["name"], 30)) for one in data]
    sections += [("failed", "What did not run")] if failed or results.missing else []
    return render(
        "suite.html.j2",
        title=results.title or results.suite,
        sections=[*sections, ("repeat", "Repeat it")],
        results=results,
        duels=duels,
        duel_charts=_duel_charts(results) if duels.rows else [],
        data=data,
        failed=failed,
        machine=flat_facts(results.machine),
        versions=Table(
            "Versions",
            [Column("library"), Column("version")],
            [[Cell(name), Cell(version)] for name, version in results.versions.items()],
        ),
    )


def _data_set(results: Results, data: DataResults, place: int) -> dict[str, Any]:
    done = [system for system in results.systems if results.of(data.name, system["name"])]
    return {
        "id": f"data-{place}",
        "name": data.name,
        "facts": data.facts,
        "checksum": data.checksum,
        "table": _table(results, data, done) if done else None,
        "charts": _charts(results, data, done, place) if done else [],
        "notes": data.notes,
        "published": [
            f"{one['system']}: {one['source']}" + ("" if one["same_split"] else "; on other rows of the same source")
            for one in data.published
        ],
    }


def _metrics(results: Results) -> list[str]:
    return [f"{family}@{k}" for family in FAMILIES for k in results.k]


def _table(results: Results, data: DataResults, done: list[Mapping[str, str]]) -> Table:
    """A line for each system, and one for each published number."""
    metrics = _metrics(results)
    rows = []
    for system in done:
        name = system["name"]
        cells = [texts(system["title"] or name), Cell(system["kind"])]
        cells += [_metric(results, data, name, metric) for metric in metrics]
        for _, cost, unit, places in COSTS:
            found = results.mean(data.name, name, cost)
            cells.append(Cell("–") if found is None else figure(found[0], f"{found[0] / unit:,.{places}f}"))
        rows.append([*cells, figure(count := len(results.of(data.name, name)), str(count))])
    for one in data.published:
        values = [one["metrics"].get(metric) for metric in metrics]
        cells = [texts(one["system"]), Cell("published")]
        cells += [Cell("–") if value is None else figure(value / 100, f"{value:.1f}") for value in values]
        rows.append([*cells, *[Cell("–")] * (len(COSTS) + 1)])
    columns = [Column("system"), Column("kind")]
    columns += [Column(f"@{metric.partition('@')[2]}", True, metric) for metric in metrics]
    columns += [*(Column(title, True) for title, *_ in COSTS), Column("seeds", True)]
    families = [("", 2), *((family, len(results.k)) for family in FAMILIES), ("", len(COSTS) + 1)]
    return Table("", columns, rows, families=families)


def _metric(results: Results, data: DataResults, system: str, metric: str) -> Cell:
    found = results.mean(data.name, system, metric)
    if found is None:
        return Cell("–")
    mean, deviation = found
    several = len(results.of(data.name, system)) > 1
    text = f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if several else "")
    standing = data.standings.get(metric, {}).get(system)
    if standing is None:
        return Cell(text, mean)
    if standing.best == system:
        return Cell(text, mean, "best equal", hint="the best")
    behind = f"{100 * standing.difference:.2f} behind {standing.best} "
    hint = f"{behind}({100 * standing.low:+.2f} … {100 * standing.high:+.2f}), p = {standing.p:.4f}"
    return Cell(text, mean, "equal" if standing.same else "", hint=hint)


def _charts(results: Results, data: DataResults, done: list[Mapping[str, str]], place: int) -> list[Chart]:
    """The metrics at the largest k as bars, and each of them against the time of training."""
    charts = []
    for family in FAMILIES:
        metric = f"{family}@{max(results.k)}"
        found = [(system, results.mean(data.name, system["name"], metric)) for system in done]
        scored = sorted(((system, value) for system, value in found if value), key=lambda pair: -pair[1][0])
        bars = [
            (
                system["title"] or system["name"],
                100 * value[0],
                f"{100 * value[0]:.1f}, deviation {100 * value[1]:.2f} over seeds",
            )
            for system, value in scored
        ]
        peers = [system["kind"] != "recipe" for system, _ in scored]
        note = "Grey: not a recipe of xmckit." if any(peers) else ""
        charts.append(bar_chart(f"suite-{place}-{family.lower()}", metric, bars, Axis("%"), note, peers))
    metric = f"{FAMILIES[0]}@{max(results.k)}"
    points = []
    for system in (one for one in done if one["kind"] != "baseline"):  # it would press the others together
        value, time = (results.mean(data.name, system["name"], name) for name in (metric, "train_seconds"))
        if value and time and time[0] > 0:
            name = system["title"] or system["name"]
            said = f"{name}: {metric} {percent(value[0])}, trained in {seconds(time[0])}"
            points.append(Series(name, [(time[0], 100 * value[0])], [said], joined=False))
    if len(points) > 1:
        axis = Axis("seconds of training", log=True)
        title = f"{metric} against the time of training"
        charts.append(line_chart(f"suite-{place}-trade", title, points, axis, Axis(f"{metric}, %", shown=in_percent)))
    return charts


def _duels(results: Results) -> Table:
    """The best recipe against the best peer, in every metric that is shown."""
    titles = {system["name"]: system["title"] or system["name"] for system in results.systems}
    rows = []
    for data in results.data:
        for duel in data.duels:
            if duel.metric not in _metrics(results):
                continue
            values = [results.mean(data.name, name, duel.metric) for name in (duel.recipe, duel.peer)]
            shown = [value[0] if value else None for value in values]
            rows.append(
                [
                    texts(data.name),
                    Cell(duel.metric),
                    _verdict(duel),
                    texts(titles[duel.recipe]),
                    Cell(percent(shown[0]), shown[0]),
                    texts(titles[duel.peer]),
                    Cell(percent(shown[1]), shown[1]),
                    figure(duel.difference, f"{100 * duel.difference:+.2f}"),
                    Cell(f"{100 * duel.low:+.2f} … {100 * duel.high:+.2f}"),
                    figure(duel.p, f"{duel.p:.4f}"),
                ]
            )
    columns = [
        Column("data"), Column("metric"), Column("xmckit"), Column("best recipe"), Column("its value", True),
        Column("best peer"), Column("its value", True), Column("difference", True), Column("95% of draws"),
        Column("p, corrected", True),
    ]  # fmt: skip
    return Table("", columns, rows)


def _verdict(duel: Duel) -> Cell:
    return Cell(duel.standing, style={"better": "best", "behind": "bad"}.get(duel.standing, ""))


def _duel_charts(results: Results) -> list[Chart]:
    """How far the best recipe is ahead of the best peer on each data set, and where 95 % of the draws are."""
    charts = []
    for family in FAMILIES:
        metric = f"{family}@{max(results.k)}"
        found = [(data.name, duel) for data in results.data for duel in data.duels if duel.metric == metric]
        if not found:
            continue
        bars = [
            (
                name,
                100 * duel.difference,
                f"{100 * duel.difference:+.2f}, 95 % of draws {100 * duel.low:+.2f} … {100 * duel.high:+.2f}, "
                f"{duel.recipe} against {duel.peer}",
            )
            for name, duel in found
        ]
        intervals = [(100 * duel.low, 100 * duel.high) for _, duel in found]
        title, axis = f"{metric}: best recipe minus best peer", Axis("percentage points", shown=in_percent)
        charts.append(bar_chart(f"suite-duel-{family.lower()}", title, bars, axis, intervals=intervals))
    return charts


def _failed(results: Results) -> Table | None:
    rows = [[texts(text) for text in row] for row in results.failures()]
    columns = [Column("data"), Column("system"), Column("seed"), Column("why"), Column("message")]
    return Table("", columns, rows) if rows else None
