"""Draw the metric of each system of a suite over its times of training and of prediction."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from xmckit.bench.results import Results
from xmckit.drawing import COLOURS, GREY, as_svg
from xmckit.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHAPES = {"recipe": "o", "peer": "s", "baseline": "x"}
_COSTS = (("train_seconds", "seconds to train"), ("predict_seconds", "seconds to predict"))


def draw(results: Results, metric: str) -> str:
    """Return an SVG with a row of panels for each data set: the metric over the times of training and prediction."""
    from matplotlib.figure import Figure

    data_sets = [data for data in results.data if any(results.of(data.name, one["name"]) for one in results.systems)]
    if not data_sets:
        raise UsageError(f"the suite {results.suite} has no finished cell to draw; run it first")
    known = {name for cell in results.cells for name in cell.get("metrics", ())}
    if metric not in known:
        raise UsageError(f"no cell has the metric '{metric}' (metrics: {', '.join(sorted(known))})")
    figure = Figure(figsize=(10, 3.2 * len(data_sets)), layout="constrained")
    panels = figure.subplots(len(data_sets), len(_COSTS), squeeze=False)
    colours = _colours(results)
    for line, data in zip(panels, data_sets, strict=True):
        for axes, (cost, label) in zip(line, _COSTS, strict=True):
            for system in results.systems:
                _draw_point(axes, results, data.name, system, metric, cost, colours.get(system["name"], GREY))
            axes.set_xscale("log")
            axes.set_xlabel(label)
            axes.set_ylabel(f"{metric}, %")
            axes.set_title(data.name)
            axes.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    return as_svg(figure)


def _colours(results: Results) -> dict[str, str]:
    names = [system["name"] for system in results.systems if system["kind"] != "baseline"]
    return dict(zip(names, itertools.cycle(COLOURS), strict=False))


def _draw_point(
    axes: Axes, results: Results, data: str, system: Mapping[str, str], metric: str, cost: str, colour: str
) -> None:
    value, seconds = (results.mean(data, system["name"], name) for name in (metric, cost))
    # A system that did not run stays in the legend.
    x, y = ([seconds[0]], [100 * value[0]]) if value and seconds else ([], [])
    shown = [max(number, 1e-3) for number in x]  # the axis is logarithmic
    axes.scatter(shown, y, color=colour, marker=_SHAPES[system["kind"]], label=system["title"])
    if value and seconds and value[1]:
        axes.errorbar(x, y, yerr=[100 * value[1]], color=colour, fmt="none", capsize=2)
