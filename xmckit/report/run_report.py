"""The report of a run."""

from __future__ import annotations

import functools
import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.errors import shorten
from xmckit.report import run_charts
from xmckit.report.charts import Chart
from xmckit.report.component_sections import component_section, is_empty
from xmckit.report.page import render
from xmckit.report.tables import (
    Cell,
    Column,
    ReportTable,
    count_cell,
    make_table,
    metric_tables,
    name_cell,
    pair_table,
    system_name,
)
from xmckit.report.texts import flat_facts, percent, seconds, size
from xmckit.report.verdict_section import SCOPES, verdict_section
from xmckit.runs import Run, StageRecord, layout
from xmckit.runs.records import Example

MOST_VERDICT_CARDS = 3
LONGEST_RECIPE = 100_000
COMBINED_BY = {"average": "probabilities", "rank": "ranks", "softmax": "softmax shares"}


def write_report(run: Run) -> Path:
    """Write `plots/*.svg` and `report.html` of a finished run; return the report's path."""
    page = _page(run)
    (run.path / layout.PLOTS).mkdir(exist_ok=True)
    for chart in _all_charts(page):
        store.write_text(run.path / layout.PLOTS / f"{chart.name}.svg", chart.standalone)
    store.write_text(run.report, render("run.html.j2", **page))
    return run.report


def _page(run: Run) -> dict[str, Any]:
    """Return everything that the template shows."""
    metrics, insights, heads = run.metrics(), run.diagnostics(), run.head_facts()
    indexes, label_facts = run.index_facts(), run.label_facts()
    label_name = _label_reader(run)
    section = functools.partial(component_section, label_name=label_name)
    calibration, calibration_table = run_charts.calibration_section(insights)
    probabilistic = insights["systems"][0]["calibration"] is not None
    stage_charts, stage_table = run_charts.stage_section(run.stages)
    verdicts = verdict_section(run, label_name) if run.has_verdicts else None
    head_sections = [section(without_index_facts(head, indexes), "head") for head in heads]
    return {
        "title": run.manifest.title or run.name,
        "manifest": run.manifest,
        "run_name": run.path.name,
        "metrics": metrics,
        "cards": [*_cards(metrics), *_verdict_cards(verdicts), _cost_card(run.stages)],
        "combined_by": COMBINED_BY.get(metrics.get("ensemble", "")),
        "tables": metric_tables(metrics["results"], [system_name(result, metrics) for result in metrics["results"]]),
        "frequency": run_charts.frequency_charts(insights),
        "groups": run_charts.group_table(insights),
        "calibration": calibration,
        "calibration_table": calibration_table,
        "probabilistic": probabilistic,
        "deepest": insights["k"],
        "examples": _examples(run.examples(), probabilistic),
        "training": run_charts.training_charts(heads),
        "label_stages": [section(stage, "labels") | {"agreement": stage["agreement"]} for stage in label_facts],
        "indexes": [section(index, "index") for index in indexes],
        "heads": [head for head in head_sections if not is_empty(head)],
        "verdicts": verdicts,
        "data": _data_section(run),
        "features": _feature_table(run, with_labels=bool(label_facts)),
        "stages": stage_charts,
        "stage_table": stage_table,
        "recipe": shorten(run.recipe_text(), LONGEST_RECIPE),
        "origins": _origin_tables(run),
        "repeat": _repeat_section(run),
    }


def _label_reader(run: Run) -> Callable[[int], str]:
    """Return a function from the number of a label to its name; names are read when the first is needed."""
    read_names = functools.cache(run.label_names)  # many reports show no label

    def label_name(label: int) -> str:
        names = read_names()
        if not 0 <= label < len(names):
            problem = f"a component's facts or the verdicts name label {label}, the data has {len(names)} labels"
            raise store.damaged(run.path, problem)
        return names[label]

    return label_name


def _all_charts(page: Mapping[str, Any]) -> list[Chart]:
    charts = [*page["frequency"], *page["calibration"], *page["training"], *page["stages"]]
    for section in (*page["label_stages"], *page["indexes"], *page["heads"]):
        charts += section["charts"]
    return charts + (page["verdicts"]["margins"] if page["verdicts"] else [])


def _card(value: str, name: str, beside: str = "") -> dict[str, str]:
    return {"value": value, "name": name, "beside": beside}


def _cards(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the headline: a few metrics of the model, beside those of the baseline."""
    model, deepest = metrics["results"][0]["metrics"], max(metrics["k"])
    baseline = next((result for result in metrics["results"] if result["role"] == "baseline"), None)
    wanted = [f"P@{k}" for k in metrics["k"]] + [f"nDCG@{deepest}", f"PSP@{deepest}", "micro-F1"]
    beside = {
        name: f"{baseline['name']} {percent(baseline['metrics'].get(name))}" if baseline else "" for name in wanted
    }
    return [_card(percent(model[name]), name, beside[name]) for name in wanted if name in model]


def _verdict_cards(verdicts: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """Return how many label sets each head can never output, on its shortlists if it has some."""
    if verdicts is None:
        return []
    last = {result["head"]: result for result in verdicts["proved"]}
    cards = []
    for head, result in last.items():
        value = f"{result['counts']['unargmaxable']:,} of {verdicts['assignments']:,}"
        scope = "" if result["scope"] == "full" else f", {SCOPES[result['scope']]}"
        cards.append(_card(value, "label sets never output", f"{head}{scope}"))
    return cards[:MOST_VERDICT_CARDS]


def _cost_card(stages: Sequence[StageRecord]) -> dict[str, str]:
    peak = max(stage.peak_bytes for stage in stages)
    total = seconds(sum(stage.seconds for stage in stages))
    return _card(total, "for all stages", f"{size(peak)} of memory at most")


def _examples(examples: list[Example], probabilistic: bool) -> list[dict[str, Any]]:
    """Add a display text for each score, and the probability if the score is calibrated."""

    def text(score: float | None) -> str:
        if score is None:
            return ""
        shown = f"{score:.2f}".replace("-", "−")
        probability = 1 / (1 + math.exp(-score)) if score > -700 else 0.0
        return f"{shown} · {100 * probability:.3g} %" if probabilistic else shown

    return [
        {**example, "predicted": [{**item, "score_text": text(item["score"])} for item in example["predicted"]]}
        for example in examples
    ]


def without_index_facts(head: Mapping[str, Any], indexes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a head without facts that the section of an index shows already."""
    known = [index["facts"] for index in indexes if index["facts"]]
    return {**head, "facts": {name: fact for name, fact in head["facts"].items() if fact not in known}}


def _data_section(run: Run) -> dict[str, Any]:
    description = run.description()
    train, test = (dict(flat_facts(description.pop(part))) for part in ("train", "test"))
    rows = [[Cell(name), Cell(value), Cell(test.get(name, ""))] for name, value in train.items()]
    columns = [Column(""), Column("train", True), Column("test", True)]
    return {"table": ReportTable("", columns, rows, fixed=True), "facts": flat_facts(description)}


def _feature_table(run: Run, *, with_labels: bool) -> ReportTable | None:
    """Show the feature stages and the stages that use them, if a stage is recorded as their user."""
    users: dict[str, list[str]] = defaultdict(list)
    for stage, features in (run.manifest.features or {}).items():
        kind, _, name = stage.partition("-")
        if name or with_labels:
            users[features].append(f"{kind} {name}" if name else "label stages")
    rows = []
    for features, names in users.items():
        facts = run.features_facts(features)
        name = run.stage(features).section or features
        rows.append([name_cell(name), name_cell(facts["use"]), count_cell(facts["columns"]), Cell(names=names)])
    return make_table(["features", "component", "columns", "used by"], rows, fixed=True) if rows else None


def _origin_tables(run: Run) -> tuple[ReportTable, ReportTable]:
    """Show the origin of each value of the recipe: the values that somebody wrote, and the defaults."""
    columns = ("key", "value", "origin")
    written: list[list[Cell]] = []
    defaults: list[list[Cell]] = []
    for value in run.origins():
        rows = defaults if value["origin"] == layout.DEFAULT_ORIGIN else written
        rows.append([name_cell(text) for text in (value["key"], value["value"], value["origin"])])
    return make_table(columns, written, "Origin of the values"), make_table(columns, defaults).without("origin")


def _repeat_section(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    argv = manifest.argv or []
    by_program = bool(argv) and Path(argv[0]).name in ("xmckit", "__main__.py", "xmckit.exe")
    machine = {
        name.removesuffix("_bytes"): f"{value // 2**20:,} MiB"
        if name == "memory_bytes" and isinstance(value, int)
        else value
        for name, value in (manifest.machine or {}).items()
    }
    return {
        "command": shlex.join(["xmckit", *argv[1:]]) if by_program else None,
        "machine": flat_facts({**machine, "workers": manifest.workers, "seed": manifest.seed}),
        "versions": pair_table("Versions", "library", "version", manifest.versions or {}),
        "data": pair_table("Checksums of the data", "input", "checksum", manifest.data) if manifest.data else None,
    }
