"""Charts and tables of a run's report about its metrics, training and stages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from xmckit.report.charts import Axis, Chart, Series, bar_chart, line_chart
from xmckit.report.tables import (
    COST_COLUMNS,
    Cell,
    Column,
    ReportTable,
    cost_cells,
    count_cell,
    make_table,
    name_cell,
    share_cell,
)
from xmckit.report.texts import MIB, number, percent, seconds, size
from xmckit.runs import StageRecord
from xmckit.runs.records import SUMS

SYSTEMS_SHOWN = 5
BASELINE_COLOUR = 5
K = Axis("k", whole=True)
# Names of the groups in insights.json, and their names on the page.
GROUP_NAMES = {"head": "frequent", "torso": "middle", "tail": "rare"}


def short_number(value: float) -> str:
    return f"{value:.3g}"


def percent_axis(title: str, high: float | None = None) -> Axis:
    """Return an axis of percentages that starts at 0."""
    return Axis(title, low=0.0, high=high, format=short_number)


def time_chart(name: str, metric: str, systems: Sequence[tuple[str, float, float]], training: str = "") -> list[Chart]:
    """Draw a metric of systems (name, seconds, value) against their times; return nothing for a single system."""
    points = [
        Series(system, [(time, 100 * value)], [f"{system}: {metric} {percent(value)} in {seconds(time)}"], joined=False)
        for system, time, value in systems
    ]
    x, y = Axis(f"seconds{training}", log=True), Axis(f"{metric}, %", format=short_number)
    return [line_chart(name, f"{metric} against time{training}", points, x, y)] if len(points) > 1 else []


def frequency_charts(insights: Mapping[str, Any]) -> list[Chart]:
    """Show how good the model is for frequent and for rare labels."""
    model = insights["systems"][0]
    baseline = next((system for system in insights["systems"] if system["role"] == "baseline"), None)
    pairs = [_all_labels("all labels", model, insights["rows"])]
    sizes = []
    for index, group in enumerate(insights["groups"]):
        name, numbers = GROUP_NAMES[group["name"]], {key: model["thirds"][key][index] for key in SUMS}
        tips = [
            f"{_share_text(name, right, listed)} right at {at}"
            for at, (right, listed) in enumerate(zip(numbers["right"], numbers["predicted"], strict=True), start=1)
        ]
        precision = Series(name, _ratios(numbers["right"], numbers["predicted"]), tips)
        pairs.append((precision, Series(name, _ratios(numbers["gain"], numbers["best_gain"]))))
        least = f" with at least {number(group['least'])} training rows" if group["least"] else ""
        sizes.append(f"{name}: {number(group['labels'])} labels{least}")
    if baseline is not None and baseline is not model:
        name = f"{baseline['name']}, all labels"
        pairs.append(_all_labels(name, baseline, insights["rows"], dashed=True, colour=BASELINE_COLOUR))
    return [
        line_chart(
            "precision-at-k",
            "Precision at k, by label frequency",
            [one for one, _ in pairs],
            K,
            percent_axis("right among those listed, %"),
            f"The share of a group's labels in the first k places that are right. {'; '.join(sizes)}.",
        ),
        line_chart(
            "propensity-scored-precision-at-k",
            "PSP at k, by label frequency",
            [one for _, one in pairs],
            K,
            percent_axis("PSP@k, %"),
            "Propensity-scored precision of a group's labels alone: the weight of the labels found, divided by the "
            "largest weight that k places can hold. Rare labels weigh more.",
        ),
        *_charts_by_bin(insights),
        _label_frequencies(insights["frequency"]),
    ]


def _label_frequencies(frequency: Mapping[str, Sequence[int]]) -> Chart:
    points = list(zip(frequency["rank"], frequency["count"], strict=True))
    tips = [f"label {number(rank)} by frequency: {number(rows)} training rows" for rank, rows in points]
    x, y = Axis("label, by frequency", log=True), Axis("training rows", log=True)
    series = [Series("labels", points, tips, marks=False)]
    return line_chart("label-frequency", "Training rows of each label", series, x, y)


def _charts_by_bin(insights: Mapping[str, Any]) -> list[Chart]:
    """Show each system's recall and precision for labels of each frequency that occurs."""
    pairs, k = insights["bin_pairs"], insights["k"]
    occurring = [index for index, count in enumerate(pairs) if count]
    names = [f"{_range(insights['edges'], index)}\n({_short_count(pairs[index])})" for index in occurring]
    axis = Axis("training rows of a label (below: test occurrences)", names=names)
    left_out = len(insights["systems"]) - SYSTEMS_SHOWN
    note = f"The first {SYSTEMS_SHOWN} systems; {left_out} are left out." if left_out > 0 else ""
    recall: list[Series] = []
    precision: list[Series] = []
    for system in insights["systems"][:SYSTEMS_SHOWN]:
        right, predicted = system["bins"]["right"], system["bins"]["predicted"]
        is_baseline = system["role"] == "baseline"
        for series, wholes in ((recall, pairs), (precision, predicted)):
            points = [(float(at), _ratio(right[index], wholes[index])) for at, index in enumerate(occurring)]
            tips = [_share_text(system["name"], right[index], wholes[index]) for index in occurring]
            colour = BASELINE_COLOUR if is_baseline else None
            series.append(Series(system["name"], points, tips, dashed=is_baseline, colour=colour))
    return [
        line_chart(name, f"{what} among the first {k}, by frequency", series, axis, percent_axis(title), note)
        for name, what, series, title in (
            ("recall-by-frequency", "Found", recall, "of the true labels, %"),
            ("precision-by-frequency", "Right", precision, "of those listed, %"),
        )
    ]


def group_table(insights: Mapping[str, Any]) -> ReportTable:
    """Show the results of every system on frequent, middle and rare labels."""
    k = insights["k"]
    rows = []
    for system in insights["systems"]:
        for index, group in enumerate(insights["groups"]):
            at_k = {key: system["thirds"][key][index][:k][-1] for key in SUMS}
            rows.append(
                [
                    name_cell(system["name"]),
                    Cell(GROUP_NAMES[group["name"]]),
                    count_cell(group["labels"]),
                    count_cell(group["least"]),
                    count_cell(group["pairs"]),
                    share_cell(_share(at_k["right"], at_k["predicted"])),
                    share_cell(_share(at_k["gain"], at_k["best_gain"])),
                    share_cell(_share(at_k["right"], group["pairs"])),
                ]
            )
    columns = ["system", "group", "labels", "training rows ≥", "test occurrences"]
    columns += [f"right @{k} %", f"PSP@{k} %", f"found @{k} %"]
    note = (
        "Labels are ordered by frequency and divided so that each group has about a third of all label occurrences in "
        "the training rows."
    )
    return make_table(columns, rows, "Frequent, middle and rare labels", note=note)


def calibration_section(insights: Mapping[str, Any]) -> tuple[list[Chart], ReportTable | None]:
    """Show how the probabilities that scores stand for agree with the share that is right."""
    calibrated = [system for system in insights["systems"] if system["calibration"]]
    if all(system["role"] == "baseline" for system in calibrated):
        return [], None
    diagonal = [(0.0, 0.0), (100.0, 100.0)]
    series = [Series("perfect", diagonal, ["0 %", "100 %"], True, BASELINE_COLOUR, marks=False)]
    for index, system in enumerate(calibrated[:SYSTEMS_SHOWN]):
        numbers = system["calibration"]
        points = [
            (100 * probability, 100 * true) for probability, true in zip(numbers["said"], numbers["true"], strict=True)
        ]
        tips = [
            f"{system['name']}: {number(places)} places with a mean probability of {probability:.1f} %, "
            f"{true:.1f} % are right"
            for (probability, true), places in zip(points, numbers["sizes"], strict=True)
        ]
        series.append(Series(system["name"], points, tips, colour=index))
    x, y = percent_axis("probability that the score stands for, %", 100.0), percent_axis("right, %", 100.0)
    rows = [
        [
            name_cell(system["name"]),
            *(share_cell(system["calibration"][key]) for key in ("ece", "mean_said", "mean_true")),
            count_cell(system["calibration"]["places"]),
        ]
        for system in calibrated
    ]
    ece = Column("ECE %", True, "expected calibration error")
    table = make_table(["system", ece, "mean probability %", "right %", "places"], rows)
    return [line_chart("calibration", "Reliability of the scores", series, x, y)], table


def training_charts(heads: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Show the loss and the validation score of each epoch, for heads that report them."""
    losses, scores = [], []
    for head in heads:
        name, epochs = head["name"], head["training"]
        if not epochs:
            continue
        tips = [
            f"{name}, epoch {epoch['number']}: loss {epoch['loss']:.4g}, after {seconds(epoch['seconds'])}"
            for epoch in epochs
        ]
        losses.append(Series(name, [(epoch["number"], epoch["loss"]) for epoch in epochs], tips))
        if any(epoch["score"] is not None for epoch in epochs):
            points = [(one["number"], None if one["score"] is None else 100 * one["score"]) for one in epochs]
            tips = ["" if score is None else f"{name}, epoch {epoch}: {score:.2f}" for epoch, score in points]
            scores.append(Series(name, points, tips))
    positive = [point[1] for series in losses for point in series.points if point[1]]
    wide = bool(positive) and max(positive) > 10 * min(positive)
    loss, score = Axis("loss, per row", log=wide, low=None if wide else 0), "nDCG@5 of the validation rows, %"
    epoch_axis = Axis("epoch", whole=True)
    charts = [line_chart("training", "Training loss", losses, epoch_axis, loss)] if losses else []
    if scores:
        charts.append(line_chart("validation", "Validation", scores, epoch_axis, Axis(score, format=short_number)))
    return charts


def stage_section(records: Sequence[StageRecord]) -> tuple[list[Chart], ReportTable]:
    """Show the time and the memory of each stage."""
    costs = [(record.name, record, bool(record.reused)) for record in records]
    return cost_charts("", "Time of each stage", "Peak memory, with child processes", costs), stage_table(records)


def cost_charts(prefix: str, time: str, memory: str, costs: Sequence[tuple[str, Any, bool]]) -> list[Chart]:
    """Draw `time` and `memory` of stages or systems, each (name, cost, whether it comes from the cache)."""
    reused = [cached for _, _, cached in costs]
    times = [
        (name, cost.seconds, seconds(cost.seconds) + (", taken from the cache" if cached else ""))
        for name, cost, cached in costs
    ]
    peaks = [(name, cost.peak_bytes / MIB, size(cost.peak_bytes)) for name, cost, _ in costs]
    note = "Grey: taken from the cache. The bar shows the cost of the original computation." if any(reused) else ""
    return [
        bar_chart(f"{prefix}time", time, times, Axis("seconds"), note, reused),
        bar_chart(f"{prefix}memory", memory, peaks, Axis("MiB"), "", reused),
    ]


def stage_table(records: Sequence[StageRecord]) -> ReportTable:
    """Show what each stage cost; a last column says which come from the cache, if some do."""
    rows = [
        [Cell(record.name), Cell(record.use), *cost_cells(record, ".2f"), Cell("yes" if record.reused else "")]
        for record in records
    ]
    table = make_table(["stage", "component", *COST_COLUMNS, "on disk MiB", "from the cache"], rows)
    return table if any(record.reused for record in records) else table.without("from the cache")


def _all_labels(name: str, system: Mapping[str, Any], rows: int, **style: Any) -> tuple[Series, Series]:
    """Return P@k, which divides by k even if fewer labels are listed, and PSP@k."""
    numbers = system["all"]
    precision = [(float(k), _ratio(hits, rows * k)) for k, hits in enumerate(numbers["right"], start=1)]
    return Series(name, precision, **style), Series(name, _ratios(numbers["gain"], numbers["best_gain"]), **style)


def _ratios(parts: Sequence[float], wholes: Sequence[float]) -> list[tuple[float, float | None]]:
    return [(k, _ratio(part, whole)) for k, (part, whole) in enumerate(zip(parts, wholes, strict=True), start=1)]


def _share_text(name: str, part: float, whole: float) -> str:
    """Return a share with its counts, because it may be a share of very few."""
    return f"{name}: {short_number(_ratio(part, whole) or 0)} %, {number(part)} of {number(whole)}"


def _ratio(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _range(edges: Sequence[int], index: int) -> str:
    """Return a short text such as 101–1k or 1k+, because seven of them stand side by side."""
    low = edges[index]
    if index + 1 == len(edges):
        return f"{low // 1000}k+"
    high = edges[index + 1] - 1
    return f"{low}" if low == high else f"{low}–{high if high < 1000 else f'{high // 1000}k'}"


def _short_count(value: int) -> str:
    """Return about four characters, because seven of them stand side by side."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.0f}M"
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:,}"


def decades(low: float, high: float, most: int) -> list[float]:
    """Return edges from one power of ten to another: four bins for each decade, at most `most` bins."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    bins = min(4 * (last - first), most)
    edges = [10 ** (first + index * (last - first) / bins) for index in range(bins + 1)]
    # A computed power of ten may differ from the exact one in the last digit.
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    return sorted(set(edges))
