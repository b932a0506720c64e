"""Format the results of a suite as tables for the terminal, and as Markdown between the markers of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmckit import store
from xmckit.bench.results import Change, DataResults, Duel, Results
from xmckit.errors import StorageError, UsageError

BEST, SAME, CHANGED = "*", "=", "!"
METRICS = ("P", "PSP")
_MIB = 2**20


def columns(results: Results) -> list[str]:
    """Return the names of the metrics in the tables."""
    return [f"{name}@{k}" for name in METRICS for k in results.k]


def data_rows(results: Results, data: DataResults) -> list[list[str]]:
    """Return a row for each system with finished cells: metrics with their marks, times and sizes."""
    rows = []
    for system in results.systems:
        name = system["name"]
        cells = results.of(data.name, name)
        if not cells:
            continue
        metrics = [_metric(results, data, name, metric) for metric in columns(results)]
        rows.append([system["title"], *metrics, *_costs(results, data.name, name), str(len(cells))])
    return rows


COST_COLUMNS = ("train s", "predict s", "CPU s", "peak MiB", "model MiB", "seeds")


def _metric(results: Results, data: DataResults, system: str, metric: str) -> str:
    mean_and_deviation = results.mean(data.name, system, metric)
    if mean_and_deviation is None:
        return "–"
    mean, deviation = mean_and_deviation
    text = f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if len(results.of(data.name, system)) > 1 else "")
    gap = data.standings.get(metric, {}).get(system)
    if gap is None:
        return text
    return text + (BEST if gap.best == system else SAME if gap.same else "")


def _costs(results: Results, data: str, system: str) -> list[str]:
    texts = []
    for cost, unit, places in (
        ("train_seconds", 1, 1), ("predict_seconds", 1, 2), ("cpu_seconds", 1, 1), ("peak_bytes", _MIB, 0),
        ("bytes", _MIB, 1),
    ):  # fmt: skip
        mean = results.mean(data, system, cost)
        texts.append("–" if mean is None else f"{mean[0] / unit:,.{places}f}")
    return texts


def data_title(data: DataResults) -> str:
    """Return the name of a data set with its sizes and checksum."""
    facts = data.facts
    if not facts:
        return f"{data.name}: no results"
    return (
        f"{data.name}: {facts['rows']:,} training and {facts['test_rows']:,} test rows, {facts['features']:,} "
        f"features, {facts['labels']:,} labels; data {data.checksum[:12]}"
    )


def duel_rows(results: Results) -> list[list[str]]:
    """Compare the best recipe with the best peer on each data set, in P and PSP at the largest k."""
    deepest = max(results.k)
    titles = {system["name"]: system["title"] for system in results.systems}
    rows = []
    for data in results.data:
        for duel in data.duels:
            if duel.metric not in {f"{name}@{deepest}" for name in METRICS}:
                continue
            values = [results.mean(data.name, name, duel.metric) for name in (duel.recipe, duel.peer)]
            recipe, peer = (f"{100 * value[0]:.1f}" if value else "–" for value in values)
            rows.append(
                [
                    data.name, duel.metric, f"{titles[duel.recipe]} {recipe}", f"{titles[duel.peer]} {peer}",
                    f"{100 * duel.difference:+.1f} ({100 * duel.low:+.1f} … {100 * duel.high:+.1f})", _conclusion(duel),
                ]
            )  # fmt: skip
    return rows


def _conclusion(duel: Duel) -> str:
    return f"behind by {-100 * duel.difference:.1f}" if duel.conclusion == "behind" else duel.conclusion


DUEL_COLUMNS = ("data", "metric", "best recipe", "best peer", "difference", "xmckit")


LEGEND = (
    f"Percentages, mean ± deviation over seeds. {BEST} marks the best system on the data set, {SAME} a system that "
    "does not differ from it significantly: paired bootstrap over test rows, Holm's correction over all pairs, level "
    "95%. Each system runs in a child process of its own, with the same threads and the same measurements."
)


def markdown(results: Results) -> str:
    """Return all tables of a suite as Markdown."""
    machine = results.machine
    lines = [f"### {results.title or results.suite}", ""]
    if machine:
        where = f"{machine.get('processor', '')}, {machine.get('system', '')}".strip(", ")
        threads = f"{results.threads} thread{'' if results.threads == 1 else 's'}"
        lines += [f"{threads} for every system; {where}; {machine.get('python', '')}.", ""]
    lines += [LEGEND, ""]
    if rows := duel_rows(results):
        lines += ["The best recipe against the best peer (recipe minus peer, 95% of draws):", ""]
        lines += [*_markdown_table(DUEL_COLUMNS, rows, left=4), ""]
    for data in results.data:
        lines += [f"#### {data_title(data)}", ""]
        if rows := data_rows(results, data):
            rows += _published_rows(results, data)
            lines += [*_markdown_table(["", *columns(results), *COST_COLUMNS], rows), ""]
            lines += [f"{note[:1].upper()}{note[1:]}." for note in _published_notes(data)]
            lines += [f"Note: {note}." for note in data.notes]
            if lines[-1]:
                lines.append("")
    if rows := results.failures():
        lines += ["What did not run:", ""]
        lines += [*_markdown_table(["data", "system", "seed", "why", ""], rows, left=5), ""]
    if results.missing:
        lines += [f"Not run yet: {len(results.missing)} cells.", ""]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    lines += [f"Versions: {versions}."] if versions else []
    return "\n".join(lines).rstrip() + "\n"


def _published_rows(results: Results, data: DataResults) -> list[list[str]]:
    rows = []
    for one in data.published:
        values = [f"{one['metrics'][name]:.1f}" if name in one["metrics"] else "–" for name in columns(results)]
        rows.append([f"published: {one['system']}", *values, *["–"] * len(COST_COLUMNS)])
    return rows


def _published_notes(data: DataResults) -> list[str]:
    return [
        f"{one['system']}: {one['source']}" + ("" if one["same_split"] else "; on other rows of the same source")
        for one in data.published
    ]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    rule = ["---" if place < left else "---:" for place in range(len(header))]
    return [_line(row) for row in (header, rule, *rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_between_markers(page: Path, name: str, text: str) -> None:
    """Replace the text between the markers with this name; the rest of the page stays."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    try:
        content = page.read_text("utf-8")
    except FileNotFoundError:
        raise StorageError(f"{page}: no such file") from None
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise UsageError(f"{page} needs the line {begin} and below it the line {end}, each once")
    head, tail = content[: content.index(begin) + len(begin)], content[content.index(end) :]
    store.write_text(page, f"{head}\n{text}{tail}")


CHANGE_COLUMNS = ("train", "predict", "memory")


def change_rows(changes: Sequence[Change], metrics: Sequence[str]) -> list[list[str]]:
    """Return a row for each change: the later metrics with their differences, and the ratios of costs."""
    rows = []
    for change in changes:
        ratios = (change.train_ratio, change.predict_ratio, change.memory_ratio)
        rows.append(
            [
                f"{change.data} / {change.system}",
                *(_metric_change(change, metric) for metric in metrics),
                *("–" if ratio is None else f"{ratio:.2f}×" for ratio in ratios),
            ]
        )
    return rows


def _metric_change(change: Change, metric: str) -> str:
    if metric not in change.metrics:
        return "–"
    before, after = change.metrics[metric]
    mark = "" if change.significant is None else CHANGED if change.significant.get(metric) else SAME
    return f"{100 * after:.1f} ({100 * (after - before):+.1f}){mark}"
