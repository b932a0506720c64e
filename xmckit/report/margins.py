"""The picture of margins: how much room the label sets have that a layer can output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xmckit.drawing import BLUE, SKY, VERMILION, as_svg

MOST_BINS = 60
# What the head's own scorer made of a set's witness, and how such sets are drawn.
GROUPS = {
    True: ("replayed by the head", BLUE),
    None: ("proved, not replayed", SKY),
    False: ("lost in the head's own arithmetic", VERMILION),
}


def margin_histogram(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts as verdicts.json has them to an SVG text; sets without a margin are counted below the axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    shown = {
        group: [verdict["margin"] for verdict in verdicts if verdict["margin"] and verdict["replayed"] is replayed]
        for replayed, group in GROUPS.items()
    }
    shown = {group: margins for group, margins in shown.items() if margins}
    if shown:
        names, colours = zip(*shown, strict=True)
        edges = _decade_bins(np.concatenate(list(shown.values())))
        axes.hist(
            list(shown.values()), edges.tolist(), stacked=True, color=colours, label=names, edgecolor="white", lw=0.5
        )
        figure.legend(frameon=False, loc="outside upper left", ncols=2, fontsize=9)
        axes.set_xscale("log")
    else:
        axes.text(0.5, 0.5, "no label set has a margin", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
    axes.set_xlabel(f"margin{_without_margin(verdicts)}")
    axes.set_ylabel("label sets")
    axes.margins(y=0.12)
    axes.grid(alpha=0.25, axis="y")
    return as_svg(figure)


def _decade_bins(margins: np.ndarray) -> np.ndarray:
    """Edges from one power of ten to another, four bins a decade unless that makes too many."""
    exponents = np.log10(margins)
    low, high = math.floor(exponents.min()), math.ceil(exponents.max())
    high = max(high, low + 1)
    edges = np.logspace(low, high, min(4 * (high - low), MOST_BINS) + 1)
    # a power of ten may come out next to itself
    edges[0], edges[-1] = min(edges[0], margins.min()), max(edges[-1], margins.max())
    return edges


def _without_margin(verdicts: Sequence[Mapping[str, Any]]) -> str:
    statuses = [verdict["status"] for verdict in verdicts if not verdict["margin"]]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    if not counts:
        return ""
    return "\n(without one: " + ", ".join(f"{count:,} {status}" for status, count in counts.items()) + ")"
