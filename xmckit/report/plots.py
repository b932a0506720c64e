"""The pictures of a report, each from plain numbers to an SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xmckit.drawing import COLOURS, as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(name: str, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> str:
    """One of PLOTS as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    PLOTS[name][1](axes, curves, stages)
    axes.spines[["top", "right"]].set_visible(False)
    return as_svg(figure)


def _frequency(axes: Axes, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> None:
    axes.loglog(curves["frequency"]["rank"], curves["frequency"]["count"], color=COLOURS[0], linewidth=2)
    axes.set_xlabel("label, by how frequent it is")
    axes.set_ylabel("training rows")
    axes.grid(alpha=0.25, which="major")


def _precision_at(axes: Axes, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for position, system in enumerate(curves["systems"]):
        precision = [100 * value for value in system["precision_at"]]
        axes.plot(
            range(1, len(precision) + 1),
            precision,
            marker="o",
            markersize=3,
            color=_colour(position),
            label=system["name"],
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("k")
    axes.set_ylabel("precision at k, %")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)


def _recall_by_frequency(axes: Axes, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> None:
    occurring = [position for position, count in enumerate(curves["relevant"]) if count]
    systems = curves["systems"]
    width = 0.8 / len(systems)
    for number, system in enumerate(systems):
        shift = (number - (len(systems) - 1) / 2) * width
        heights = [100 * system["recall"][position] for position in occurring]
        places = [place + shift for place in range(len(occurring))]
        axes.bar(places, heights, width, color=_colour(number), label=system["name"])
    names = [f"{_range(curves['edges'], position)}\n({curves['relevant'][position]:,})" for position in occurring]
    axes.set_xticks(range(len(occurring)), names, fontsize=8)
    axes.set_xlabel("training rows of the label\n(below: test occurrences)")
    axes.set_ylabel(f"found among the first {curves['bins_k']}, %")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25, axis="y")


def _range(edges: Sequence[int], position: int) -> str:
    low = edges[position]
    if position + 1 == len(edges):
        return f"{low:,}+"
    high = edges[position + 1] - 1
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _time(axes: Axes, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> None:
    names = [stage["name"] for stage in stages][::-1]
    seconds = [stage["seconds"] for stage in stages][::-1]
    bars = axes.barh(names, seconds, color=[COLOURS[5] if stage["reused"] else COLOURS[0] for stage in stages][::-1])
    axes.bar_label(bars, labels=[f"{value:.1f} s" for value in seconds], padding=3, fontsize=8)
    axes.set_xlabel("seconds (light: taken from the cache)")
    axes.margins(x=0.15)


def _training(axes: Axes, curves: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> None:
    for position, head in enumerate(curves["training"]):
        epochs = head["training"]
        seconds = [epoch["seconds"] for epoch in epochs]
        axes.plot(seconds, [epoch["loss"] for epoch in epochs], marker=".", color=_colour(position), label=head["name"])
    if any(epoch["loss"] > 0 for head in curves["training"] for epoch in head["training"]):
        axes.set_yscale("log")
    axes.set_xlabel("seconds (one dot an epoch)")
    axes.set_ylabel("training loss, per row")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)


def _colour(position: int) -> str:
    return COLOURS[position % len(COLOURS)]


PLOTS = {
    "label-frequency": ("How often labels occur", _frequency),
    "precision-at-k": ("Precision of the first k labels", _precision_at),
    "recall-by-frequency": ("Rare and frequent labels", _recall_by_frequency),
    "training": ("How training went", _training),
    "time": ("Where the time went", _time),
}
