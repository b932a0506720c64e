"""The report of a run."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.report import run_charts
from xmckit.report.charts import Chart
from xmckit.report.facts import flat_facts
from xmckit.report.margins import margin_histogram
from xmckit.report.page import render
from xmckit.report.shown import told
from xmckit.report.tables import Cell, Column, Table, count, metric_tables, texts
from xmckit.report.texts import percent, seconds, short, size
from xmckit.runs import Run, StageRecord, layout

SCOPES = {"full": "full layer", "shortlist": "with each row's candidates"}
MOST_SETS, LABELS_OF_A_SET, MOST_VERDICT_CARDS = 100, 20, 3
LONGEST_RECIPE = 100_000
COMBINED_BY = {"average": "probabilities", "rank": "ranks", "softmax": "softmax shares"}
STATUSES = ("argmaxable", "unargmaxable", "unresolved")


def write_report(run: Run) -> Path:
    """Write `plots/*.svg` and `report.html` of a finished run; return the report's path."""
    page = _page(run)
    (run.path / layout.PLOTS).mkdir(exist_ok=True)
    for chart in _all_charts(page):
        store.write_text(run.path / layout.PLOTS / f"{chart.name}.svg", chart.standalone)
    store.write_text(run.report, render("run.html.j2", **page))
    return run.report


def _page(run: Run) -> dict[str, Any]:
    """Everything that the template shows."""
    metrics, insights, heads = run.metrics(), run.diagnostics(), run.head_facts()
    indexes = run.index_facts()
    name_of = _namer(run)
    calibration, calibration_table = run_charts.calibration(insights)
    probabilistic = insights["systems"][0]["calibration"] is not None
    stage_charts, stage_table = run_charts.stages(run.stages)
    verdicts = _verdicts(run, name_of) if run.has_verdicts else None
    told_heads = [told(told_once(head, indexes), "head", name_of) for head in heads]
    page = {
        "title": run.manifest.title or run.name,
        "manifest": run.manifest,
        "run_name": run.path.name,
        "metrics": metrics,
        "cards": [*_cards(metrics), *_verdict_cards(verdicts), _cost_card(run.stages)],
        "combined_by": COMBINED_BY.get(metrics.get("ensemble", "")),
        "tables": metric_tables(metrics["results"], [_system_name(result, metrics) for result in metrics["results"]]),
        "frequency": run_charts.by_frequency(insights),
        "groups": run_charts.group_table(insights),
        "calibration": calibration,
        "calibration_table": calibration_table,
        "probabilistic": probabilistic,
        "deepest": insights["k"],
        "examples": _examples(run.examples(), probabilistic),
        "training": run_charts.training(heads),
        "label_stages": [
            told(stage, "labels", name_of) | {"agreement": stage["agreement"]} for stage in run.label_facts()
        ],
        "indexes": [told(index, "index", name_of) for index in indexes],
        "heads": [head for head in told_heads if head["facts"] or head["warnings"] or any(head["shown"].values())],
        "verdicts": verdicts,
        "data": _data(run),
        "features": _features(run),
        "stages": stage_charts,
        "stage_table": stage_table,
        "recipe": short(run.recipe_text(), LONGEST_RECIPE),
        "origins": _origins(run),
        "repeat": _repeat(run),
    }
    return {**page, "sections": _sections(page)}


def _sections(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = {
        "results": "Results",
        "frequency": "Label frequency",
        "calibration": "Calibration",
        "examples": "Examples" if page["examples"] else "",
        "training": "Training" if page["training"] else "",
        "labels": "Training labels" if page["label_stages"] else "",
        "index": "Label index" if page["indexes"] else "",
        "heads": "Heads" if page["heads"] else "",
        "verdicts": "What it can output" if page["verdicts"] else "",
        "data": "Data",
        "stages": "Time and memory",
        "recipe": "Recipe",
        "repeat": "Repeat it",
    }
    return [(id_, name) for id_, name in found.items() if name]


def _all_charts(page: Mapping[str, Any]) -> list[Chart]:
    charts = [*page["frequency"], *page["calibration"], *page["training"], *page["stages"]]
    for by in (*page["label_stages"], *page["indexes"], *page["heads"]):
        charts += by["shown"]["charts"]
    return charts + (page["verdicts"]["margins"] if page["verdicts"] else [])


def _namer(run: Run) -> Callable[[int], str]:
    """The names of labels, read when the first one is asked for."""
    names: list[str] = []

    def name_of(label: int) -> str:
        if not names:
            names.extend(run.label_names())
        return names[label]

    return name_of


def _cards(metrics: Mapping[str, Any]) -> list[dict[str, str]]:
    """The headline: a few metrics of the model, beside the baseline's."""
    model, deepest = metrics["results"][0], max(metrics["k"])
    baseline = next((result for result in metrics["results"] if result["role"] == "baseline"), None)
    wanted = [f"P@{k}" for k in metrics["k"]] + [f"nDCG@{deepest}", f"PSP@{deepest}", "micro-F1"]
    cards = []
    for name in wanted:
        if name in model["metrics"]:
            beside = f"{baseline['name']} {percent(baseline['metrics'].get(name))}" if baseline else ""
            cards.append({"value": percent(model["metrics"][name]), "name": name, "beside": beside})
    return cards


def _verdict_cards(verdicts: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """How many of the label sets that were asked a head can never output, on its shortlists where it has some."""
    if verdicts is None:
        return []
    last = {result["head"]: result for result in verdicts["proved"]}
    return [
        {
            "value": f"{result['counts']['unargmaxable']:,} of {verdicts['assignments']:,}",
            "name": "label sets never output",
            "beside": head if result["scope"] == "full" else f"{head}, {SCOPES[result['scope']]}",
        }
        for head, result in last.items()
    ][:MOST_VERDICT_CARDS]


def _cost_card(stages: Sequence[StageRecord]) -> dict[str, str]:
    peak = max(stage.peak_bytes for stage in stages)
    return {
        "value": seconds(sum(stage.seconds for stage in stages)),
        "name": "for all stages",
        "beside": f"{size(peak)} of memory at most",
    }


def _system_name(result: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    role = {"head": "", "ensemble": metrics.get("ensemble", "ensemble")}.get(result["role"], result["role"])
    return f"{result['name']} ({role})" if role else str(result["name"])


def _examples(examples: list[dict[str, Any]], probabilistic: bool) -> list[dict[str, Any]]:
    """With a text for each score, and the probability that it stands for where it is meant as one."""
    for example in examples:
        for item in example["predicted"]:
            score = item["score"]
            item["said"] = "" if score is None else f"{score:.2f}".replace("-", "−")
            if score is not None and probabilistic:
                probability = 1 / (1 + math.exp(-score)) if score > -700 else 0.0
                item["said"] += f" · {100 * probability:.3g} %"
    return examples


def told_once(head: Mapping[str, Any], indexes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a head tells, but for the facts of an index which stand there already."""
    known = [index["facts"] for index in indexes if index["facts"]]
    return {**head, "facts": {name: fact for name, fact in head["facts"].items() if fact not in known}}


def _data(run: Run) -> dict[str, Any]:
    told = run.description()
    train, test = (dict(flat_facts(told.pop(part))) for part in ("train", "test"))
    rows = [[Cell(name), Cell(value), Cell(test.get(name, ""))] for name, value in train.items()]
    columns = [Column(""), Column("train", True), Column("test", True)]
    return {"table": Table("", columns, rows, fixed=True), "facts": flat_facts(told)}


def _features(run: Run) -> Table | None:
    """Which features there are and who sees them, where there are several."""
    sees: dict[str, list[str]] = defaultdict(list)
    for stage, features in (run.manifest.features or {}).items():
        kind, _, name = stage.partition("-")
        if name or run.label_facts():
            sees[features].append(f"{kind} {name}" if name else "label stages")
    rows = []
    for features, by in sees.items():
        told = run.features_facts(features)
        name = run.stage(features).section or features
        rows.append([texts(name), texts(told["use"]), count(told["columns"]), Cell("", names=by)])
    columns = [Column("features"), Column("component"), Column("columns", True), Column("seen by")]
    return Table("", columns, rows, fixed=True) if rows else None


def _origins(run: Run) -> tuple[Table, Table]:
    """Where each value of the recipe was written: those that somebody wrote, and the defaults."""
    written = run.origins()
    columns = [Column("key"), Column("value"), Column("origin")]
    rows = [
        (one["origin"] == layout.DEFAULT_ORIGIN, [texts(one["key"]), texts(one["value"]), texts(one["origin"])])
        for one in written
    ]
    own, defaults = ([row for default, row in rows if default is wanted] for wanted in (False, True))
    return Table("What was written, and where", columns, own), Table("", columns[:2], [row[:2] for row in defaults])


def _repeat(run: Run) -> dict[str, Any]:
    manifest = run.manifest
    argv = manifest.argv or []
    by_program = bool(argv) and Path(argv[0]).name in ("xmckit", "__main__.py", "xmckit.exe")
    machine = {
        name.removesuffix("_bytes"): f"{value // 2**20:,} MiB" if name == "memory_bytes" and value else value
        for name, value in (manifest.machine or {}).items()
    }
    versions = [[Cell(name), Cell(value)] for name, value in (manifest.versions or {}).items()]
    prints = [[texts(name), Cell(str(value))] for name, value in (manifest.data or {}).items()]
    return {
        "command": shlex.join(["xmckit", *argv[1:]]) if by_program else None,
        "machine": flat_facts({**machine, "workers": manifest.workers, "seed": manifest.seed}),
        "versions": Table("Versions", [Column("library"), Column("version")], versions),
        "data": Table("Checksums of the data", [Column("input"), Column("checksum")], prints) if prints else None,
    }


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _verdicts(run: Run, name_of: Callable[[int], str]) -> dict[str, Any]:
    """What the report says about verdicts: a line for each head and scope, and the sets that can never be output."""
    verdicts = run.verdicts()
    proved = [result for result in verdicts["results"] if result["verifiable"]]
    # Columns that only some verifiers and layers fill.
    also = [key for key in ("ideal", "eps") if any(any(result[key].values()) for result in proved)]
    margins = [
        margin_histogram(
            f"margins-{result['head']}-{result['scope']}",
            f"{result['head']}, {SCOPES[result['scope']]}: margins of what it can produce",
            result["verdicts"],
        )
        for result in proved
    ]
    asked = (
        store.read_arrays(run.stage_folder(layout.VERIFY) / layout.ASSIGNMENTS, "indices", "indptr") if proved else {}
    )
    never = [_never(result, asked, name_of) for result in proved if result["counts"]["unargmaxable"]]
    return {
        "proved": proved,
        "assignments": verdicts["assignments"],
        "of": verdicts["of"],
        "also": also,
        "table": _verdict_table(verdicts["results"], also),
        "margins": [chart for chart in margins if chart is not None],
        "never": never,
        "caveats": [f"{head}: {caveat}" for head, caveat in _caveats(proved).items()],
        "not_verifiable": [
            f"{one['head']} is not verifiable: {one['why']}" for one in verdicts["results"] if not one["verifiable"]
        ],
        "shortlisted": any(result["scope"] != "full" for result in proved),
    }


def _caveats(proved: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {result["head"]: result["caveat"] for result in proved if result["caveat"]}


def _verdict_table(results: Sequence[Mapping[str, Any]], also: Sequence[str]) -> Table:
    rows = []
    for result in results:
        if not result["verifiable"]:
            continue
        tried = result["replayed"]["yes"] + result["replayed"]["no"]
        smallest = result["smallest_margin"]
        rows.append(
            [
                texts(result["head"]),
                Cell(SCOPES[result["scope"]]),
                Cell(result["rule"]),
                *(count(result["counts"][status]) for status in STATUSES),
                Cell(percent(result["share"]), result["share"]),
                *(Cell(_can_and_cannot(result[key])) for key in also),
                Cell("–" if smallest is None else f"{smallest:.3g}", smallest),
                Cell(f"{result['replayed']['yes']:,} of {tried:,}" if tried else "–"),
            ]
        )
    columns = [Column("head"), Column("scope"), Column("rule"), *(Column(status, True) for status in STATUSES)]
    columns += [Column("share %", True)]
    columns += [Column({"ideal": "ideal: can / cannot", "eps": "at eps: can / cannot"}[key]) for key in also]
    return Table("", [*columns, Column("smallest margin", True), Column("replayed")], rows)


def _can_and_cannot(counts: Mapping[str, int]) -> str:
    return f"{counts['argmaxable']:,} / {counts['unargmaxable']:,}" if sum(counts.values()) else "–"


def _never(result: Mapping[str, Any], asked: Mapping[str, np.ndarray], name_of: Callable[[int], str]) -> Table:
    """The label sets that can never be output, by name, the most frequent first."""
    where: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, verdict in enumerate(result["verdicts"]):
        if verdict["status"] == "unargmaxable":
            own = asked["indices"][asked["indptr"][place] : asked["indptr"][place + 1]]
            where[tuple(own.tolist())].append(place)
    first = sorted(where.items(), key=lambda item: (-len(item[1]), item[1][0]))[:MOST_SETS]
    missed = [result["verdicts"][places[0]]["missed"] for _, places in first]
    rows = []
    for (labels, places), outside in zip(first, missed, strict=True):
        row = [_named(labels, name_of, "no label at all"), count(len(labels)), count(len(places))]
        row.append(Cell(result["verdicts"][places[0]]["proof"]))
        rows.append([*row, _named(outside, name_of, "")] if any(missed) else row)
    columns = [Column("label set"), Column("labels", True), Column("times asked", True), Column("proof")]
    columns += [Column("missed by the shortlist")] if any(missed) else []
    title = f"{result['head']}, {SCOPES[result['scope']]}: label sets that can never be predicted"
    return Table(title, columns, rows, of=len(where))


def _named(labels: Sequence[int], name_of: Callable[[int], str], none: str) -> Cell:
    names = [short(name_of(label), 80) for label in labels[:LABELS_OF_A_SET]]
    return Cell(none, names=names, more=len(labels) - len(names))
