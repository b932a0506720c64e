"""Charts as small SVG texts: lines, bars and histograms whose every value can be read.

A value's text stands in the `<title>` of its mark, so that it shows without any script; the page's script makes one
box of it that follows pointer and arrow keys. Colours are classes (`s0` … `s5`), which the page's style paints for
light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup, escape

from xmckit.report.texts import number, short, visible

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 54, 24, 12, 46
COLOURS = 6
LINE = 17  # height of a line of the legend
CHARACTER = 7.6  # mean width of one, to lay out what cannot be measured here
LONGEST_NAME = 40

# Of a chart that stands alone as a file, where no page gives it colours.
STANDALONE = (
    "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#333}.grid{stroke:#ddd}.axis,.whisker{stroke:#888}"
    ".line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}"
    + "".join(
        f".s{place}{{stroke:{colour};fill:{colour}}}.line.s{place}{{fill:none}}"
        for place, colour in enumerate(("#0072b2", "#d55e00", "#009e73", "#b4568f", "#b87800", "#5a6b7b"))
    )
)


@dataclass(frozen=True)
class Series:
    """A line through points, or points that are not `joined`; a point without a value is a gap. `tips` say what a
    point is, `name: y at x` if empty.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    tips: Sequence[str] = ()
    dashed: bool = False
    colour: int | None = None
    marks: bool = True
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture for a page: its file name, its heading, and its SVG."""

    name: str
    title: str
    svg: Markup
    note: str = ""

    @property
    def standalone(self) -> str:
        """The chart as a file of its own."""
        head, end, rest = str(self.svg).partition(">")
        return f"{head}{end}<style>{STANDALONE}</style>{rest}"


@dataclass(frozen=True)
class Axis:
    """What is measured, and how it is laid out. `names` are ticks at 0, 1, 2 … instead of numbers."""

    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    shown: Callable[[float], str] = number
    whole: bool = False


@dataclass
class _Scale:
    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        if self.axis.log:
            share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def line_chart(name: str, title: str, series: Sequence[Series], x: Axis, y: Axis, note: str = "") -> Chart:
    """Lines over numbers, or over named places."""
    points = [point for one in series for point in one.points if _can_be_drawn(point, x, y)]
    shapes = [None if one.joined else place // COLOURS for place, one in enumerate(series)]
    legend = _Legend([_Entry(one.name, _colour(one, at), one.dashed, shapes[at]) for at, one in enumerate(series)])
    frame = _Frame(
        x, y, [point[0] for point in points], [float(point[1]) for point in points if point[1] is not None], legend
    )
    parts = frame.begin()
    for place, one in enumerate(series):
        colour = _colour(one, place)
        drawn = [point if _can_be_drawn(point, x, y) else None for point in one.points]
        places = [None if point is None else (frame.x(point[0]), frame.y(float(point[1] or 0))) for point in drawn]
        if one.joined:
            parts.append(_path(places, f"line {colour}{' dashed' if one.dashed else ''}"))
        radius = (2.6 if one.joined else 4) if one.marks else 0.01
        for index, (point, where) in enumerate(zip(drawn, places, strict=True)):
            if point is None or where is None:
                continue
            said = one.tips[index] if one.tips else _said(one.name, point, x, y)
            parts.append(_mark(_point(shapes[place] or 0, f"mark {colour}", *where, radius), said))
    return Chart(name, title, frame.finish(parts, title), note)


def histogram(
    name: str,
    title: str,
    edges: Sequence[float],
    stacks: Mapping[str, Sequence[int]],
    x: Axis,
    what: str,
    note: str = "",
) -> Chart:
    """Counts between rising edges, stacked where there are several."""
    totals = [sum(counts[place] for counts in stacks.values()) for place in range(len(edges) - 1)]
    legend = _Legend(
        [_Entry(one, f"s{place % COLOURS}") for place, one in enumerate(stacks)] if len(stacks) > 1 else []
    )
    # Whole numbers reach half a unit to either side, so that one alone stands below the middle of its bar.
    sides = [edge - 0.5 for edge in edges] if x.whole else list(edges)
    frame = _Frame(x, Axis(what, low=0, whole=True), sides, [float(total) for total in totals], legend, tight=True)
    parts = frame.begin()
    base = [0] * len(totals)
    for position, (stack, counts) in enumerate(stacks.items()):
        for place, count in enumerate(counts):
            if not count:
                continue
            left, right = frame.x(sides[place]), frame.x(sides[place + 1])
            top, bottom = frame.y(base[place] + count), frame.y(base[place])
            base[place] += count
            range_ = f"{x.shown(edges[place])} to {x.shown(edges[place + 1])}"
            if x.whole:
                last = edges[place + 1] - 1
                range_ = (
                    x.shown(edges[place]) if last == edges[place] else f"{x.shown(edges[place])} to {x.shown(last)}"
                )
            said = f"{range_}: {number(count)} {what}" + (f", {stack}" if len(stacks) > 1 else "")
            shape = f'<rect class="mark s{position % COLOURS}" x="{left:.1f}" y="{top:.1f}" '
            parts.append(_mark(f'{shape}width="{max(right - left - 0.6, 0.6):.1f}" height="{bottom - top:.1f}">', said))
    return Chart(name, title, frame.finish(parts, title), note)


def bar_chart(
    name: str,
    title: str,
    bars: Sequence[tuple[str, float, str]],
    axis: Axis,
    note: str = "",
    faint: Sequence[bool] = (),
    intervals: Sequence[tuple[float, float] | None] = (),
) -> Chart:
    """Lying bars from 0: (name, value, text) from above to below. `intervals` are drawn over them."""
    names = [short(visible(bar[0]), 26) for bar in bars]
    left = min(212, max([6, *(len(one) for one in names)]) * CHARACTER + 12)
    beside = [said.split(",")[0] for _, _, said in bars]
    right = WIDTH - 12 - max([4, *(len(one) for one in beside)]) * CHARACTER
    row, height = 24, 24 * len(bars) + 44
    ends = [bar[1] for bar in bars] + [end for found in intervals if found for end in found]
    lowest = 0 if min(ends, default=0) >= 0 else None
    scale = _scaled(Axis(axis.title, low=lowest, shown=axis.shown), [0.0, *(ends or [1.0])], left, right)
    zero = scale(0)
    parts = [_grid_x(scale, 6, height - 38), _ticks_x(scale, height - 24)]
    parts.append(f'<path class="axis" d="M{zero:.1f} 6V{height - 38}"/>')
    parts.append(_text((left + right) / 2, height - 6, axis.title, "middle"))
    for place, ((bar, value, said), shown) in enumerate(zip(bars, names, strict=True)):
        top = 8 + place * row
        parts.append(_text(left - 7, top + 13, shown, "end"))
        style = "s5" if faint and faint[place] else "s0"
        start, width = min(zero, scale(value)), max(abs(scale(value) - zero), 0.8)
        shape = f'<rect class="mark {style}" x="{start:.1f}" y="{top}" width="{width:.1f}" height="17">'
        parts.append(_mark(shape, f"{bar}: {said}"))
        edge = start + width
        if intervals and (found := intervals[place]):
            low, high = scale(found[0]), scale(found[1])
            ends_ = f"M{low:.1f} {top + 5}v7M{high:.1f} {top + 5}v7"
            parts.append(f'<path class="whisker" d="M{low:.1f} {top + 8.5}H{high:.1f}{ends_}"/>')
            edge = max(edge, high)
        parts.append(_text(edge + 5, top + 13, beside[place], "start"))
    return Chart(name, title, _svg(parts, height, title), note)


# -- the frame ---------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """Of a legend; with a `shape` where points are not joined by a line."""

    name: str
    colour: str
    dashed: bool = False
    shape: int | None = None


@dataclass(frozen=True)
class _Legend:
    entries: Sequence[_Entry]

    def lines(self) -> list[list[_Entry]]:
        """As many entries on a line as fit."""
        found: list[list[_Entry]] = []
        used = 0.0
        for entry in self.entries:
            name = short(visible(entry.name), LONGEST_NAME)
            width = len(name) * CHARACTER + 40
            if not found or used + width > WIDTH - LEFT - RIGHT:
                found.append([])
                used = 0.0
            found[-1].append(entry._replace(name=name))
            used += width
        return found


class _Frame:
    """Axes, grid and legend around the marks of a chart."""

    def __init__(
        self, x: Axis, y: Axis, xs: Sequence[float], ys: Sequence[float], legend: _Legend, tight: bool = False
    ):
        self._legend = legend.lines() if len(legend.entries) > 1 else []
        self._top: float = TOP + LINE * len(self._legend)
        self._height = HEIGHT + LINE * max(0, len(self._legend) - 1)
        bottom = BOTTOM + (12 if any("\n" in name for name in x.names) else 0)
        self._bottom = float(self._height - bottom)
        self.x = _scaled(x, xs or [1.0, 10.0], LEFT, WIDTH - RIGHT, tight)
        self.y = _scaled(y, ys or [1.0, 10.0], self._bottom, self._top)

    def begin(self) -> list[str]:
        x, y = self.x, self.y
        parts = []
        for line, entries in enumerate(self._legend):
            left = float(LEFT)
            for name, colour, dashed, shape in entries:
                middle = TOP + LINE * line
                if shape is None:
                    dashes = " dashed" if dashed else ""
                    parts.append(f'<path class="line {colour}{dashes}" d="M{left:.0f} {middle}h18"/>')
                else:
                    opened = _point(shape, f"point {colour}", left + 12, middle, 4)
                    parts.append(opened.removesuffix(">") + "/>")
                parts.append(_text(left + 23, middle + 4, name, "start"))
                left += len(name) * CHARACTER + 40
        for tick in y.ticks:
            parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 7, y(tick) + 4, y.axis.shown(tick), "end"))
        parts.append(_ticks_x(x, self._bottom + 16))
        parts.append(f'<path class="axis" d="M{LEFT} {self._bottom}H{WIDTH - RIGHT}"/>')
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, self._height - 6, x.axis.title, "middle"))
        centre = (self._top + self._bottom) / 2
        parts.append(
            f'<text class="label" text-anchor="middle" transform="translate(11 {centre:.0f}) rotate(-90)">'
            f"{escape(visible(y.axis.title))}</text>"
        )
        return parts

    def finish(self, parts: Sequence[str], title: str) -> Markup:
        return _svg(parts, self._height, title)


def _svg(parts: Sequence[str], height: float, title: str) -> Markup:
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(visible(title))}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    lines = visible(text).split("\n")
    if len(lines) == 1:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(lines[0])}</text>'
    spans = "".join(
        f'<tspan x="{x:.1f}" dy="{"0" if not place else "13"}">{escape(line)}</tspan>'
        for place, line in enumerate(lines)
    )
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{spans}</text>'


def _point(shape: int, style: str, x: float, y: float, radius: float) -> str:
    """An opened tag: a circle, and where colours come a second and a third time, a square and a diamond."""
    if shape % 3 == 0:
        return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
    if shape % 3 == 1:
        return f'<path class="{style}" d="M{x - radius:.1f} {y - radius:.1f}h{2 * radius}v{2 * radius}h{-2 * radius}z">'
    long = 1.4 * radius
    return f'<path class="{style}" d="M{x:.1f} {y - long:.1f}l{long} {long}l{-long} {long}l{-long} {-long}z">'


def _mark(opened: str, said: str) -> str:
    name = opened[1:].split(" ", 1)[0]
    return f"{opened}<title>{escape(visible(said))}</title></{name}>"


def _path(places: Sequence[tuple[float, float] | None], style: str) -> str:
    steps, pen_up = [], True
    for place in places:
        if place is None:
            pen_up = True
            continue
        steps.append(f"{'M' if pen_up else 'L'}{place[0]:.1f} {place[1]:.1f}")
        pen_up = False
    return f'<path class="{style}" d="{"".join(steps)}"/>'


def _ticks_x(scale: _Scale, y: float) -> str:
    names = scale.axis.names
    return "".join(
        _text(scale(tick), y, names[int(tick)] if names else scale.axis.shown(tick), "middle") for tick in scale.ticks
    )


def _grid_x(scale: _Scale, top: float, bottom: float) -> str:
    return "".join(f'<path class="grid" d="M{scale(tick):.1f} {top}V{bottom}"/>' for tick in scale.ticks)


def _said(name: str, point: tuple[float, float | None], x: Axis, y: Axis) -> str:
    at = x.names[int(point[0])].replace("\n", " ") if x.names else x.shown(point[0])
    return f"{name}: {y.shown(float(point[1] or 0))} at {at}"


def _colour(series: Series, place: int) -> str:
    return f"s{(place if series.colour is None else series.colour) % COLOURS}"


def _can_be_drawn(point: tuple[float, float | None], x: Axis, y: Axis) -> bool:
    if point[1] is None or not math.isfinite(point[1]) or not math.isfinite(point[0]):
        return False
    return not (x.log and point[0] <= 0) and not (y.log and point[1] <= 0)


# -- scales ------------------------------------------------------------------------------------------------------------


def _scaled(axis: Axis, values: Sequence[float], start: float, end: float, tight: bool = False) -> _Scale:
    if axis.names:
        scale = _Scale(axis, -0.5, len(axis.names) - 0.5, start, end)
        scale.ticks = [float(place) for place in range(len(axis.names))]
        return scale
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.log:
        return _log_scale(axis, low, high, start, end, tight)
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # all the same: what is left between them is rounding
        high = low + max(1.0, 0.001 * abs(low))
    step = _nice_step(low, high, axis.whole)
    if not tight:
        low = low if axis.low is not None else math.floor(low / step + 1e-9) * step
        high = high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # 0.1 added up thirty times is not 3
    ticks = [float(f"{place * step:.12g}") for place in range(first, last + 1)]
    return _Scale(axis, low, high, start, end, ticks)


def _nice_step(low: float, high: float, whole: bool) -> float:
    """About five of them from low to high: 1, 2, 2.5 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 2.5, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)
    return max(1.0, float(math.ceil(step))) if whole else step


def _log_scale(axis: Axis, low: float, high: float, start: float, end: float, tight: bool) -> _Scale:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    every = max(1, -(-(last - first) // 6))
    ticks = [10.0**power for power in range(first, last + 1, every)]
    if tight:
        ticks = [tick for tick in ticks if low <= tick <= high]
        return _Scale(axis, low, high if high > low else low * 10, start, end, ticks)
    return _Scale(axis, 10.0**first, 10.0**last, start, end, ticks)
