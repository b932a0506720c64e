"""Pictures of a suite: how good each system is against how long it trains, and against the memory that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xmckit.bench.results import Results
from xmckit.drawing import COLOURS, GREY, as_svg
from xmckit.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHAPES = {"recipe": "o", "peer": "s", "baseline": "x"}
_COSTS = (("train_seconds", 1, "seconds to train"), ("predict_seconds", 1, "seconds to predict"))


def draw(results: Results, metric: str) -> str:
    """One row of panels for each data set, as SVG: the metric over training and over prediction time."""
    from matplotlib.figure import Figure

    shown = [data for data in results.data if any(results.of(data.name, one["name"]) for one in results.systems)]
    if not shown:
        raise UsageError(f"the suite {results.suite} has no finished cell to draw: run it first")
    known = {name for cell in results.cells for name in cell.get("metrics", ())}
    if metric not in known:
        raise UsageError(f"no cell has the metric '{metric}' (metrics: {', '.join(sorted(known))})")
    figure = Figure(figsize=(10, 3.2 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), len(_COSTS), squeeze=False)
    colours = _colours(results)
    for line, data in zip(panels, shown, strict=True):
        for axes, (cost, unit, label) in zip(line, _COSTS, strict=True):
            for system in results.systems:
                _point(axes, results, data.name, system["name"], metric, cost, unit, colours[system["name"]])
            axes.set_xscale("log")
            axes.set_xlabel(label)
            axes.set_ylabel(f"{metric}, %")
            axes.set_title(data.name)
            axes.grid(alpha=0.3)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    return as_svg(figure)


def _colours(results: Results) -> dict[str, str]:
    own = [system["name"] for system in results.systems if system["kind"] != "baseline"]
    found = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(own)}
    return {system["name"]: found.get(system["name"], GREY) for system in results.systems}


def _point(
    axes: Axes, results: Results, data: str, system: str, metric: str, cost: str, unit: float, colour: str
) -> None:
    about = next(one for one in results.systems if one["name"] == system)
    value, price = results.mean(data, system, metric), results.mean(data, system, cost)
    # A system that did not run keeps its place in the legend.
    x, y = ([price[0] / unit], [100 * value[0]]) if value and price else ([], [])
    axes.scatter(
        [max(number, 1e-3) for number in x], y, color=colour, marker=_SHAPES[about["kind"]], label=about["title"]
    )  # fmt: skip
    if value and price and value[1]:
        axes.errorbar(x, y, yerr=[100 * value[1]], color=colour, fmt="none", capsize=2)
