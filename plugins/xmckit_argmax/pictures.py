"""Pictures of what a layer can output, each from plain numbers to an SVG text."""

from __future__ import annotations

import io
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from xmckit.errors import UsageError
from xmckit_argmax.counting import Rule, share_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from xmckit import Verdict

# Okabe and Ito's palette: told apart by readers who do not see all colours.
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = [BLUE, VERMILION, GREEN, PINK, ORANGE, SKY]
GREY = "#8A8A8A"

POINTS_OF_A_CURVE = 400
MOST_BINS = 60
MOST_LABELS_OF_A_DIAGRAM = 6


def share_of_all_curve(
    labels: Sequence[int], *, bias: bool = False, rule: Rule = "sign", marked: Sequence[int] = ()
) -> str:
    """How much of all 2^n label sets is within reach by dimension (the paper's figure 2); `marked` ones get a dot.

    Above in percent, below as the logarithm: the first has its dip at n/2, the second shows how deep it goes.
    """
    if not labels or min(labels) < 1:
        raise UsageError(f"a curve over dimensions needs label counts of 1 or more, found {list(labels)}")
    figure, (percent, logarithm) = _figure(height=4.6, rows=2)
    for count, colour in zip(labels, itertools.cycle(COLOURS)):
        dims = _dims_of_curve(count, marked)
        shares = share_curve(count, dims.tolist(), bias=bias, rule=rule)
        percent.plot(dims, 100 * 10.0**shares, color=colour, linewidth=2, label=f"{count:,} labels")
        logarithm.plot(dims, shares, color=colour, linewidth=2)
        for dim in marked:
            height = float(shares[np.searchsorted(dims, dim)]) if 1 <= dim <= count else None
            if height is not None:
                logarithm.plot(dim, height, "o", color=colour, markersize=5, label=f"d = {dim:,}: {_share(height)}")
    if any(0 < dim < max(labels) / 50 for dim in marked) or max(labels) > 20 * min(labels):
        logarithm.set_xscale("log")
    percent.set_ylabel("of all sets, %")
    percent.set_ylim(-4, 104)
    logarithm.set_ylabel("log10 of the share")
    logarithm.set_xlabel("dimensions of the layer")
    figure.legend(*percent.get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=4)
    if logarithm.get_legend_handles_labels()[0]:
        # where the curve, which rises to the right, leaves room
        corner: Literal["upper left", "lower right"] = (
            "upper left" if logarithm.get_xscale() == "log" else "lower right"
        )
        logarithm.legend(frameon=False, loc=corner, fontsize=9)
    for axes in (percent, logarithm):
        axes.grid(alpha=0.25)
    return _svg(figure)


def _share(log10: float) -> str:
    return f"$10^{{{log10:.0f}}}$" if log10 < -3 else f"{100 * 10**log10:.3g} %"


def _dims_of_curve(labels: int, marked: Iterable[int]) -> np.ndarray:
    """Dimensions from 1 to `labels`: even steps, small ones at the left end and where the share falls, and `marked`."""
    half, width = labels / 2, 4 * math.sqrt(labels)
    parts = [
        np.linspace(1, labels, POINTS_OF_A_CURVE),
        np.geomspace(1, labels, POINTS_OF_A_CURVE // 2),
        np.linspace(half - width, half + width, POINTS_OF_A_CURVE // 2),
        np.asarray(list(marked), dtype=np.float64),
    ]
    dims = np.unique(np.rint(np.concatenate(parts)).astype(np.int64))
    return dims[(dims >= 1) & (dims <= labels)]


def margin_histogram(verdicts: Iterable[Verdict]) -> str:
    """How much room argmaxable sets have: their margins by what the head's own scorer made of their witnesses.

    Sets without a margin are counted below the axis.
    """
    found = list(verdicts)
    groups = {
        "replayed by the head": (BLUE, [v.margin for v in found if v.margin and v.replayed]),
        "proved, not replayed": (SKY, [v.margin for v in found if v.margin and v.replayed is None]),
        "lost in the head's own arithmetic": (
            VERMILION,
            [v.margin for v in found if v.margin and v.replayed is not None and not v.replayed],
        ),
    }
    shown = {name: group for name, group in groups.items() if group[1]}
    figure, (axes,) = _figure()
    if shown:
        edges = _decade_bins(np.concatenate([margins for _, margins in shown.values()]))
        colours, margins = zip(*shown.values(), strict=True)
        axes.hist(margins, edges.tolist(), stacked=True, color=colours, label=list(shown), edgecolor="white", lw=0.5)
        figure.legend(frameon=False, loc="outside upper left", ncols=2, fontsize=9)
        axes.set_xscale("log")
    else:
        axes.text(0.5, 0.5, "no label set has a margin", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
    axes.set_xlabel(f"margin ρ{_without_margin(found)}")
    axes.set_ylabel("label sets")
    axes.margins(y=0.12)
    axes.grid(alpha=0.25, axis="y")
    return _svg(figure)


def _decade_bins(margins: np.ndarray) -> np.ndarray:
    """Edges from one power of ten to another, four bins a decade unless that makes too many."""
    exponents = np.log10(margins)
    low, high = math.floor(exponents.min()), math.ceil(exponents.max())
    high = max(high, low + 1)
    edges = np.logspace(low, high, min(4 * (high - low), MOST_BINS) + 1)
    # a power of ten may come out next to itself
    edges[0], edges[-1] = min(edges[0], margins.min()), max(edges[-1], margins.max())
    return edges


def _without_margin(verdicts: Sequence[Verdict]) -> str:
    statuses = [verdict.status for verdict in verdicts if not verdict.margin]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    if not counts:
        return ""
    return "\n(without one: " + ", ".join(f"{count:,} {status}" for status, count in counts.items()) + ")"


@dataclass(frozen=True)
class ReachByDimension:
    """Shares (0 to 1) of the same label sets that a layer reaches, for each of `dims`: one row of `at_eps`, and of
    `at_radius_1`, per seed (a plain list is one seed). Either may be None."""

    name: str
    dims: Sequence[int]
    at_eps: Sequence | None = None
    at_radius_1: Sequence | None = None


def reach_by_dimension(layers: Sequence[ReachByDimension], *, sets: str = "test label sets") -> str:
    """How many label sets are argmaxable by dimension (the paper's figure 6a): at its tolerance, and with a ball of
    radius 1 inside; the mean over seeds, with the standard deviation shaded."""
    from matplotlib.ticker import NullLocator

    figure, (axes,) = _figure(width=6.6)
    for layer, colour in zip(layers, itertools.cycle(COLOURS)):
        for shares, style in ((layer.at_eps, "-"), (layer.at_radius_1, "--")):
            if shares is None:
                continue
            percent = 100 * np.atleast_2d(np.asarray(shares, dtype=np.float64))
            if percent.shape[1] != len(layer.dims):
                raise UsageError(f"{layer.name}: {percent.shape[1]} shares for {len(layer.dims)} dimensions")
            mean, spread = percent.mean(axis=0), percent.std(axis=0)
            axes.plot(layer.dims, mean, style, marker="o", markersize=4, color=colour, linewidth=2)
            axes.fill_between(layer.dims, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({dim for layer in layers for dim in layer.dims})
    axes.set_xticks(ticks, [str(dim) for dim in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("dimensions of the layer")
    axes.set_ylabel(f"argmaxable {sets}, %")
    axes.set_ylim(-4, 104)
    axes.grid(alpha=0.25)
    figure.legend(handles=_keys(layers), frameon=False, loc="outside right center", fontsize=9)
    return _svg(figure)


def _keys(layers: Sequence[ReachByDimension]) -> list[Line2D]:
    """Colours name the layers, line styles what was asked of the ball inside."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=colour, linewidth=2, label=layer.name)
        for layer, colour in zip(layers, itertools.cycle(COLOURS))
    ]
    if any(layer.at_eps is not None for layer in layers):
        keys.append(Line2D([], [], color=GREY, linestyle="-", label="radius above eps"))
    if any(layer.at_radius_1 is not None for layer in layers):
        keys.append(Line2D([], [], color=GREY, linestyle="--", label="radius above 1"))
    return keys


def hasse_diagram(labels: int, argmaxable: Callable[[tuple[int, ...]], bool]) -> str:
    """All sets of a few labels by how many are active (the paper's figure 15a), argmaxable ones filled and green.

    Lines join sets that differ by one label. `argmaxable` is asked once for each set, label ids in ascending order.
    """
    if not 1 <= labels <= MOST_LABELS_OF_A_DIAGRAM:
        raise UsageError(
            f"a diagram of all sets of {labels} labels cannot be read, expected 1 to {MOST_LABELS_OF_A_DIAGRAM} labels"
        )
    levels = [list(itertools.combinations(range(labels), size)) for size in range(labels + 1)]
    reached = {active: bool(argmaxable(active)) for level in levels for active in level}
    place = {
        active: (position - (len(level) - 1) / 2, float(size))
        for size, level in enumerate(levels)
        for position, active in enumerate(level)
    }
    widest = max(len(level) for level in levels)
    # a node is as wide as its signs
    figure, (axes,) = _figure(width=1.8 + widest * (0.14 + 0.08 * labels), height=0.8 + 0.8 * labels)
    _draw_edges(axes, place, reached)
    for active, (x, y) in place.items():
        _draw_node(axes, x, y, "".join("+" if label in active else "−" for label in range(labels)), reached[active])
    _name_levels(axes, levels, reached, -(widest - 1) / 2)
    axes.set_xlim(-widest / 2 - 0.1, widest / 2 + 0.1)
    axes.set_ylim(-0.5, labels + 0.5)
    axes.set_axis_off()
    return _svg(figure)


def _draw_edges(
    axes: Axes, place: Mapping[tuple[int, ...], tuple[float, float]], reached: Mapping[tuple[int, ...], bool]
) -> None:
    for upper in place:
        for left_out in upper:
            lower = tuple(label for label in upper if label != left_out)
            both = reached[upper] and reached[lower]
            axes.plot(
                *zip(place[lower], place[upper], strict=True),
                color=GREEN if both else "#C8C8C8",
                linewidth=1.1 if both else 0.6,
                zorder=2 if both else 1,
            )


def _draw_node(axes: Axes, x: float, y: float, signs: str, reached: bool) -> None:
    box = {
        "boxstyle": "round,pad=0.35",
        "facecolor": GREEN if reached else "white",
        "edgecolor": GREEN if reached else VERMILION,
        "linewidth": 1.2,
        "linestyle": "-" if reached else (0, (3, 2)),
    }
    colour = "white" if reached else VERMILION
    axes.text(
        x,
        y,
        signs,
        ha="center",
        va="center",
        family="monospace",
        size=9,
        weight="bold",
        color=colour,
        bbox=box,
        zorder=3,
    )


def _name_levels(
    axes: Axes, levels: Sequence[Collection[tuple[int, ...]]], reached: Mapping[tuple[int, ...], bool], left: float
) -> None:
    for size, level in enumerate(levels):
        count = sum(reached[active] for active in level)
        text = f"{size} active\n{count} of {len(level)}"
        axes.annotate(text, (left, size), (-62, 0), textcoords="offset points", ha="right", va="center", size=9)


def _figure(*, width: float = 5.6, height: float = 3.4, rows: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    buffer = io.StringIO()
    # A fixed salt and no date: the same numbers give the same bytes.
    with rc_context({"svg.hashsalt": "xmckit", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    without_head = re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), flags=re.DOTALL)
    return re.sub(r"<metadata>.*?</metadata>", "", without_head, flags=re.DOTALL)
