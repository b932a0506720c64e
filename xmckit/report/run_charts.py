"""The charts and tables that the report of a run makes of its numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from xmckit.report.charts import Axis, Chart, Series, bar_chart, line_chart
from xmckit.report.tables import Cell, Column, Table, count, figure, share, texts
from xmckit.report.texts import number, seconds, size
from xmckit.runs import StageRecord

SYSTEMS_SHOWN = 5
K = Axis("k", whole=True)


def in_percent(value: float) -> str:
    return f"{value:.3g}"


def share_axis(title: str, high: float | None = None) -> Axis:
    """Percentages from 0 on."""
    return Axis(title, low=0.0, high=high, shown=in_percent)


def by_frequency(insights: Mapping[str, Any]) -> list[Chart]:
    """How good the model is for frequent and for rare labels."""
    model = insights["systems"][0]
    baseline = next((system for system in insights["systems"] if system["role"] == "baseline"), None)
    groups = [f"{group['name']}: {_group_size(group)}" for group in insights["groups"]]
    precision = [_precision_of_all("all labels", model, insights["rows"])]
    psp = [Series("all labels", _ratios(model["all"]["gain"], model["all"]["best_gain"]))]
    for place, group in enumerate(insights["groups"]):
        numbers = {key: values[place] for key, values in model["thirds"].items()}
        tips = [
            f"{_part(group['name'], right, listed)} right at {at}"
            for at, (right, listed) in enumerate(zip(numbers["right"], numbers["predicted"], strict=True), start=1)
        ]
        precision.append(Series(group["name"], _ratios(numbers["right"], numbers["predicted"]), tips))
        psp.append(Series(group["name"], _ratios(numbers["gain"], numbers["best_gain"])))
    if baseline is not None and baseline is not model:
        name = f"{baseline['name']}, all labels"
        precision.append(_precision_of_all(name, baseline, insights["rows"], dashed=True, colour=5))
        gains = _ratios(baseline["all"]["gain"], baseline["all"]["best_gain"])
        psp.append(Series(name, gains, dashed=True, colour=5))
    sizes = "; ".join(groups)
    return [
        line_chart(
            "precision-at-k",
            "Precision at k, by label frequency",
            precision,
            K,
            share_axis("right among those listed, %"),
            f"Of the labels of a group that stand in the first k places, the share that is right. {sizes}.",
        ),
        line_chart(
            "propensity-scored-precision-at-k",
            "PSP at k, by label frequency",
            psp,
            K,
            share_axis("PSP@k, %"),
            "Propensity-scored precision of the labels of a group alone: what is found of it, rare labels counting "
            "more, against the most that k places can hold.",
        ),
        *_over_bins(insights),
        line_chart(
            "label-frequency",
            "How often labels occur",
            [
                Series(
                    "labels",
                    list(zip(insights["frequency"]["rank"], insights["frequency"]["count"], strict=True)),
                    [
                        f"label {number(rank)} of the most frequent: {number(rows)} training rows"
                        for rank, rows in zip(
                            insights["frequency"]["rank"], insights["frequency"]["count"], strict=True
                        )
                    ],
                    marks=False,
                )
            ],
            Axis("label, by how frequent it is", log=True),
            Axis("training rows", log=True),
        ),
    ]


def _over_bins(insights: Mapping[str, Any]) -> list[Chart]:
    """Each system's share of right places and of found pairs, for labels of each frequency that occurs."""
    occurring = [place for place, pairs in enumerate(insights["bin_pairs"]) if pairs]
    names = [
        f"{_range(insights['edges'], place)}\n({_short_count(insights['bin_pairs'][place])})" for place in occurring
    ]
    axis = Axis("training rows of a label (below: test occurrences)", names=names)
    k = insights["k"]
    left_out = len(insights["systems"]) - SYSTEMS_SHOWN
    note = f"The first {SYSTEMS_SHOWN} systems; {left_out} are left out." if left_out > 0 else ""
    recall: list[Series] = []
    precision: list[Series] = []
    for system in insights["systems"][:SYSTEMS_SHOWN]:
        bins, style = system["bins"], {"dashed": system["role"] == "baseline"}
        colour = 5 if system["role"] == "baseline" else None
        found = [_ratio(bins["right"][place], insights["bin_pairs"][place]) for place in occurring]
        right = [_ratio(bins["right"][place], bins["predicted"][place]) for place in occurring]
        for series, values, of in ((recall, found, insights["bin_pairs"]), (precision, right, bins["predicted"])):
            tips = [_part(system["name"], bins["right"][place], of[place]) for place in occurring]
            series.append(Series(system["name"], list(enumerate(values)), tips, colour=colour, **style))
    return [
        line_chart(
            "recall-by-frequency",
            f"Found among the first {k}, by frequency",
            recall,
            axis,
            share_axis("of the true labels, %"),
            note,
        ),
        line_chart(
            "precision-by-frequency",
            f"Right among the first {k}, by frequency",
            precision,
            axis,
            share_axis("of those listed, %"),
            note,
        ),
    ]


def group_table(insights: Mapping[str, Any]) -> Table:
    """Head, torso and tail in numbers, for every system."""
    k = insights["k"]
    at = k - 1
    rows = []
    for system in insights["systems"]:
        for place, group in enumerate(insights["groups"]):
            numbers = {key: values[place][min(at, len(values[place]) - 1)] for key, values in system["thirds"].items()}
            rows.append(
                [
                    texts(system["name"]),
                    Cell(group["name"]),
                    count(group["labels"]),
                    count(group["least"]),
                    count(group["pairs"]),
                    share(_share(numbers["right"], numbers["predicted"])),
                    share(_share(numbers["gain"], numbers["best_gain"])),
                    share(_share(numbers["right"], group["pairs"])),
                ]
            )
    columns = [
        Column("system"), Column("group"), Column("labels", True), Column("training rows ≥", True),
        Column("test occurrences", True), Column(f"right @{k} %", True), Column(f"PSP@{k} %", True),
        Column(f"found @{k} %", True),
    ]  # fmt: skip
    return Table(
        "Head, torso and tail",
        columns,
        rows,
        note="The most frequent labels that hold a third of all training labels between them are the head, those of "
        "the next third the torso, the rest the tail.",
    )


def calibration(insights: Mapping[str, Any]) -> tuple[list[Chart], Table | None]:
    """How the probabilities that scores stand for agree with what is right."""
    told = [system for system in insights["systems"] if system["calibration"]]
    if all(system["role"] == "baseline" for system in told):
        return [], None
    ends = [(0.0, 0.0), (100.0, 100.0)]
    series = [Series("as it should be", ends, ["0 %", "100 %"], True, 5, marks=False)]
    for place, system in enumerate(told[:SYSTEMS_SHOWN]):
        numbers = system["calibration"]
        points = [(100 * said, 100 * true) for said, true in zip(numbers["said"], numbers["true"], strict=True)]
        tips = [
            f"{system['name']}: {number(places)} places with a mean probability of {said:.1f} %, {true:.1f} % are right"
            for (said, true), places in zip(points, numbers["sizes"], strict=True)
        ]
        series.append(Series(system["name"], points, tips, colour=place))
    chart = line_chart(
        "calibration",
        "Reliability of the scores",
        series,
        share_axis("probability that the score stands for, %", 100.0),
        share_axis("right, %", 100.0),
    )
    rows = [
        [
            texts(system["name"]),
            figure(system["calibration"]["ece"], f"{100 * system['calibration']['ece']:.2f}"),
            share(system["calibration"]["mean_said"]),
            share(system["calibration"]["mean_true"]),
            count(system["calibration"]["places"]),
        ]
        for system in told
    ]
    table = Table(
        "",
        [
            Column("system"), Column("ECE %", True, "expected calibration error"), Column("mean probability %", True),
            Column("right %", True), Column("places", True),
        ],
        rows,
    )  # fmt: skip
    return [chart], table


def training(heads: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Loss and validation score of each epoch, for heads that tell them."""
    trained = [head for head in heads if head["training"]]
    if not trained:
        return []
    losses, scores = [], []
    for head in trained:
        epochs = head["training"]
        tips = [
            f"{head['name']}, epoch {one['number']}: loss {one['loss']:.4g}, after {seconds(one['seconds'])}"
            for one in epochs
        ]
        losses.append(Series(head["name"], [(one["number"], one["loss"]) for one in epochs], tips))
        if any(one["score"] is not None for one in epochs):
            points = [(one["number"], None if one["score"] is None else 100 * one["score"]) for one in epochs]
            told = [
                f"{head['name']}, epoch {number_}: {value:.2f}" if value is not None else ""
                for number_, value in points
            ]
            scores.append(Series(head["name"], points, told))
    positive = [point[1] for one in losses for point in one.points if point[1]]
    wide = bool(positive) and max(positive) > 10 * min(positive)
    epoch = Axis("epoch", whole=True)
    charts = [
        line_chart("training", "Training loss", losses, epoch, Axis("loss, per row", log=wide, low=None if wide else 0))
    ]
    if scores:
        charts.append(
            line_chart(
                "validation", "Validation", scores, epoch, Axis("nDCG@5 of the validation rows, %", shown=in_percent)
            )
        )
    return charts


def stages(records: Sequence[StageRecord]) -> tuple[list[Chart], Table]:
    """Time and memory of each stage."""
    reused = [bool(record.reused) for record in records]
    said = [seconds(record.seconds) + (", taken from the cache" if record.reused else "") for record in records]
    time = [(record.name, record.seconds, text) for record, text in zip(records, said, strict=True)]
    memory = [(record.name, record.peak_bytes / 2**20, size(record.peak_bytes)) for record in records]
    grey = "Grey: taken from the cache; this is what it cost when it was made." if any(reused) else ""
    charts = [
        bar_chart("time", "Where the time went", time, Axis("seconds"), grey, reused),
        bar_chart("memory", "Largest memory of the process", memory, Axis("MiB"), "", reused),
    ]
    rows = [
        [
            Cell(record.name),
            Cell(record.use),
            figure(record.seconds, f"{record.seconds:.2f}"),
            figure(record.cpu_seconds, f"{record.cpu_seconds:.2f}"),
            figure(record.peak_bytes, f"{record.peak_bytes / 2**20:,.0f}"),
            figure(record.bytes, f"{record.bytes / 2**20:,.1f}"),
            *([Cell("yes" if record.reused else "")] if any(reused) else []),
        ]
        for record in records
    ]
    columns = [
        Column("stage"), Column("component"), Column("seconds", True), Column("CPU seconds", True),
        Column("peak MiB", True), Column("on disk MiB", True), *([Column("from the cache")] if any(reused) else []),
    ]  # fmt: skip
    return charts, Table("", columns, rows)


def _precision_of_all(name: str, system: Mapping[str, Any], rows: int, **style: Any) -> Series:
    """P@k, which divides by k also where fewer labels are listed."""
    right = system["all"]["right"]
    points = [(float(place), 100 * hits / (rows * place)) for place, hits in enumerate(right, start=1)]
    return Series(name, points, **style)


def _ratios(parts: Sequence[float], wholes: Sequence[float]) -> list[tuple[float, float | None]]:
    return [
        (place, _ratio(part, whole)) for place, (part, whole) in enumerate(zip(parts, wholes, strict=True), start=1)
    ]


def _part(name: str, part: float, whole: float) -> str:
    """What a point says whose share may be one of very few."""
    return f"{name}: {in_percent(_ratio(part, whole) or 0)} %, {number(part)} of {number(whole)}"


def _ratio(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _group_size(group: Mapping[str, Any]) -> str:
    least = f" of at least {number(group['least'])} training rows" if group["least"] else ""
    return f"{number(group['labels'])} labels{least}"


def _range(edges: Sequence[int], place: int) -> str:
    """Short, since seven of them stand side by side: 101–1k, and 1k+ for more."""
    low = edges[place]
    if place + 1 == len(edges):
        return f"{low // 1000}k+"
    high = edges[place + 1] - 1
    return f"{low}" if low == high else f"{low}–{high if high < 1000 else f'{high // 1000}k'}"


def _short_count(value: int) -> str:
    """At most four characters or so: seven of them stand side by side."""
    for limit, unit in ((1_000_000, "M"), (10_000, "k")):
        if value >= limit:
            return f"{value / (1000 if unit == 'k' else limit):.0f}{unit}"
    return f"{value:,}"


def decades(low: float, high: float, most: int) -> list[float]:
    """Edges from one power of ten to another, four bins a decade unless that makes too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    bins = min(4 * (last - first), most)
    edges = [10 ** (first + place * (last - first) / bins) for place in range(bins + 1)]
    # a power of ten may come out next to itself
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    return [
        edge for edge, following in itertools.zip_longest(edges, edges[1:]) if following is None or edge < following
    ]
