"""Figures about the label sets that a layer can output; each function turns plain numbers into an SVG text."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from xmckit.drawing import COLOURS, GREEN, GREY, VERMILION, as_svg
from xmckit.errors import UsageError
from xmckit_argmax.paper.counting import Rule, share_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

LabelSet = tuple[int, ...]

POINTS_OF_A_CURVE = 400
MOST_LABELS_OF_A_DIAGRAM = 6
# the fields of ReachByDimension, with line style and name
CURVES: Any = (
    ("exact", ":", "stored matrix"), ("at_eps", "-", "radius above eps"), ("at_radius_1", "--", "radius above 1"),
)  # fmt: skip


def share_of_all_curve(
    labels: Sequence[int], *, bias: bool = False, rule: Rule = "sign", marked: Sequence[int] = ()
) -> str:
    """Draw the share of all 2^n label sets that is within reach by dimension (the paper's figure 2).

    `marked` dimensions get a dot. The upper plot is in percent and drops at n/2; the lower plot is logarithmic and
    shows how small the share becomes.
    """
    if not labels or min(labels) < 1:
        raise UsageError(f"a curve over dimensions needs label counts of 1 or more, not {list(labels)}")
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
        # the curve rises to the right: this corner is free
        corner: Any = "upper left" if logarithm.get_xscale() == "log" else "lower right"
        logarithm.legend(frameon=False, loc=corner, fontsize=9)
    for axes in (percent, logarithm):
        axes.grid(alpha=0.25)
    return as_svg(figure)


def _share(log10: float) -> str:
    return f"$10^{{{log10:.0f}}}$" if log10 < -3 else f"{100 * 10**log10:.3g} %"


def _dims_of_curve(labels: int, marked: Iterable[int]) -> np.ndarray:
    """Return dimensions from 1 to `labels`: even steps, small steps at the left end and at the drop, and `marked`."""
    half, width = labels / 2, 4 * math.sqrt(labels)
    parts = [
        np.linspace(1, labels, POINTS_OF_A_CURVE),
        np.geomspace(1, labels, POINTS_OF_A_CURVE // 2),
        np.linspace(half - width, half + width, POINTS_OF_A_CURVE // 2),
        np.asarray(list(marked), dtype=np.float64),
    ]
    dims = np.unique(np.rint(np.concatenate(parts)).astype(np.int64))
    return dims[(dims >= 1) & (dims <= labels)]


@dataclass(frozen=True)
class ReachByDimension:
    """The shares (0 to 1) of the same label sets that a layer reaches, for each of `dims`.

    `exact` is for its stored matrix, `at_eps` at the paper's tolerance, `at_radius_1` with a ball of radius 1. Each has
    one row per seed (a plain list is one seed), or is None.
    """

    name: str
    dims: Sequence[int]
    at_eps: Sequence | None = None
    at_radius_1: Sequence | None = None
    exact: Sequence | None = None


def reach_by_dimension(
    layers: Sequence[ReachByDimension], *, sets: str = "test label sets", dims: str = "dimensions of the layer"
) -> str:
    """Draw the share of argmaxable label sets by dimension (the paper's figure 6a): mean and deviation over seeds."""
    from matplotlib.ticker import NullLocator

    figure, (axes,) = _figure(width=6.6)
    for layer, colour in zip(layers, itertools.cycle(COLOURS)):
        for field, style, _ in CURVES:
            shares = getattr(layer, field)
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
    axes.set_xlabel(dims)
    axes.set_ylabel(f"argmaxable {sets}, %")
    axes.set_ylim(-4, 104)
    axes.grid(alpha=0.25)
    figure.legend(handles=_keys(layers), frameon=False, loc="outside right center", fontsize=9)
    return as_svg(figure)


def _keys(layers: Sequence[ReachByDimension]) -> list[Line2D]:
    """Return the legend: colours stand for layers, line styles for the required radius."""
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=colour, linewidth=2, label=layer.name)
        for layer, colour in zip(layers, itertools.cycle(COLOURS))
    ]
    for field, style, label in CURVES:
        if any(getattr(layer, field) is not None for layer in layers):
            keys.append(Line2D([], [], color=GREY, linestyle=style, label=label))
    return keys


def hasse_diagram(labels: int, argmaxable: Callable[[LabelSet], bool], *, names: Sequence[str] = ()) -> str:
    """Draw all sets of a few labels by their size (the paper's figure 15a), argmaxable ones filled and green.

    Lines join sets that differ by one label. `argmaxable` is called once for each set, label ids in ascending order.
    `names` are written below, in the order of the signs.
    """
    if not 1 <= labels <= MOST_LABELS_OF_A_DIAGRAM:
        raise UsageError(
            f"a diagram of all sets of {labels} labels cannot be read, expected 1 to {MOST_LABELS_OF_A_DIAGRAM} labels"
        )
    levels = [list(itertools.combinations(range(labels), size)) for size in range(labels + 1)]
    reached = {active: bool(argmaxable(active)) for level in levels for active in level}
    nodes = {
        active: (position - (len(level) - 1) / 2, float(size))
        for size, level in enumerate(levels)
        for position, active in enumerate(level)
    }
    widest = max(len(level) for level in levels)
    # a node is as wide as its signs
    figure, (axes,) = _figure(width=1.8 + widest * (0.14 + 0.08 * labels), height=0.8 + 0.8 * labels)
    _draw_edges(axes, nodes, reached)
    for active, (x, y) in nodes.items():
        _draw_node(axes, x, y, "".join("+" if label in active else "−" for label in range(labels)), reached[active])
    _name_levels(axes, levels, reached, -(widest - 1) / 2)
    axes.set_xlim(-widest / 2 - 0.1, widest / 2 + 0.1)
    axes.set_ylim(-0.5, labels + 0.5)
    axes.set_axis_off()
    if names:
        text = "\n".join(textwrap.wrap(f"Signs: {', '.join(names)}", round(13 * figure.get_figwidth())))
        figure.supxlabel(text.replace("$", r"\$"), fontsize=9)
    return as_svg(figure)


def _draw_edges(axes: Axes, nodes: Mapping[LabelSet, tuple[float, float]], reached: Mapping[LabelSet, bool]) -> None:
    for upper in nodes:
        for left_out in upper:
            lower = tuple(label for label in upper if label != left_out)
            both = reached[upper] and reached[lower]
            colour, width, layer = (GREEN, 1.1, 2) if both else ("#C8C8C8", 0.6, 1)
            ends = zip(nodes[lower], nodes[upper], strict=True)
            axes.plot(*ends, color=colour, linewidth=width, zorder=layer)


def _draw_node(axes: Axes, x: float, y: float, signs: str, reached: bool) -> None:
    fill, edge, text, line = (GREEN, GREEN, "white", "-") if reached else ("white", VERMILION, VERMILION, (0, (3, 2)))
    box = {"facecolor": fill, "edgecolor": edge, "linestyle": line, "linewidth": 1.2, "boxstyle": "round,pad=0.35"}
    font: Any = {"family": "monospace", "size": 9, "weight": "bold", "color": text}
    axes.text(x, y, signs, ha="center", va="center", bbox=box, zorder=3, **font)


def _name_levels(axes: Axes, levels: Sequence[list[LabelSet]], reached: Mapping[LabelSet, bool], left: float) -> None:
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
