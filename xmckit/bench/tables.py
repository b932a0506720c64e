"""Format the results of a suite as tables for the terminal, and as Markdown between the markers of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xmckit import store
from xmckit.bench.results import Change, DataResults, Duel, Results
from xmckit.errors import StorageError, UsageError, counted
from xmckit.report import suite_page
from xmckit.report.tables import BEST, MARKS, SAME

CHANGED = "!"


def columns(results: Results) -> list[str]:
    """Return the headings of `data_rows`."""
    return ["", *suite_page.metric_names(results), *suite_page.COST_COLUMNS]


def data_rows(results: Results, data: DataResults) -> list[list[str]]:
    """Return metrics with their marks, times and sizes of each system, and published metrics; none without a cell."""
    if not results.done(data.name):
        return []
    return [
        [f"published: {name}" if kind == "published" else name, *values]
        for name, kind, *values in suite_page.data_table(results, data).texts
    ]


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
    titles = {system["name"]: system["title"] for system in results.systems}
    rows = []
    for name, duel in suite_page.listed_duels(results, suite_page.deepest_metrics(results)):
        means = [results.mean(name, system, duel.metric) for system in (duel.recipe, duel.peer)]
        recipe, peer = (f"{100 * mean[0]:.1f}" if mean else "–" for mean in means)
        difference = f"{100 * duel.difference:+.1f} ({100 * duel.low:+.1f} … {100 * duel.high:+.1f})"
        systems = [f"{titles[duel.recipe]} {recipe}", f"{titles[duel.peer]} {peer}"]
        rows.append([name, duel.metric, *systems, difference, _conclusion(duel)])
    return rows


def _conclusion(duel: Duel) -> str:
    return f"behind by {-100 * duel.difference:.1f}" if duel.conclusion == "behind" else duel.conclusion


DUEL_COLUMNS = ("data", "metric", "best recipe", "best peer", "difference", "xmckit")


LEGEND = (
    f"Percentages, mean ± deviation over seeds. {MARKS[BEST]} marks the best system of a data set, {MARKS[SAME]} those "
    "that do not differ from it significantly: paired bootstrap over test rows, Holm's correction over all pairs, "
    "level 95%. Times and memory are measured in a separate child process for every system."
)


def markdown(results: Results) -> str:
    """Return all tables of a suite as Markdown."""
    machine = results.machine
    lines = [f"### {results.title or results.suite}", ""]
    if machine:
        where = f"{machine.get('processor', '')}, {machine.get('system', '')}".strip(", ")
        lines += [f"{counted(results.threads, 'thread')} for every system; {where}; {machine.get('python', '')}.", ""]
    lines += [LEGEND, ""]
    if rows := duel_rows(results):
        lines += ["The best recipe against the best peer (recipe minus peer, 95% of draws):", ""]
        lines += [*_markdown_table(DUEL_COLUMNS, rows, left=4), ""]
    for data in results.data:
        lines += [f"#### {data_title(data)}", ""]
        if rows := data_rows(results, data):
            lines += [*_markdown_table(columns(results), rows), ""]
            lines += [f"{note[:1].upper()}{note[1:]}." for note in suite_page.published_notes(data)]
            lines += [f"Note: {note}." for note in data.notes]
            if lines[-1]:
                lines.append("")
    if rows := results.failures():
        lines += ["What did not run:", ""]
        lines += [*_markdown_table(["data", "system", "seed", "why", ""], rows, left=5), ""]
    if results.missing:
        lines += [f"Not run yet: {counted(len(results.missing), 'cell')}.", ""]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    lines += [f"Versions: {versions}."] if versions else []
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    rule = ["---" if place < left else "---:" for place in range(len(header))]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


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
    mark = "" if change.significant is None else CHANGED if change.significant.get(metric) else MARKS[SAME]
    return f"{100 * after:.1f} ({100 * (after - before):+.1f}){mark}"
