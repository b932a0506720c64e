"""Line charts, bar charts and histograms as small SVG texts.

The `<title>` of each mark holds its value, so that it shows without a script; the page's script moves it into one box
that follows the pointer and the arrow keys. Colours are classes (`s0` … `s5`), which the page's style defines for
light mode, dark mode and paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

from xmckit.errors import shorten
from xmckit.report.texts import number, visible

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 54, 24, 12, 46
COLOURS = 6
LINE = 17  # height of a line of the legend
CHARACTER = 7.6  # mean width of a character; texts cannot be measured here
LONGEST_NAME = 40

# The style of a chart that is stored as a file, without the style of a page.
STANDALONE = (
    "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#333}.grid{stroke:#ddd}.axis,.whisker{stroke:#888}"
    ".line{fill:none;stroke-width:2}.dashed{stroke-dasharray:5 4}"
    + "".join(
        f".s{index}{{stroke:{colour};fill:{colour}}}.line.s{index}{{fill:none}}"
        for index, colour in enumerate(("#0072b2", "#d55e00", "#009e73", "#b4568f", "#b87800", "#5a6b7b"))
    )
)


@dataclass(frozen=True)
class Series:
    """A line through points, or points alone if not `joined`; a point without a value is a gap.

    `tips` are the texts of the points; without them a text is `name: y at x`.
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
    """A chart of a page: its file name, its heading and its SVG."""

    name: str
    title: str
    svg: Markup
    note: str = ""

    @property
    def standalone(self) -> str:
        """Return the chart as the content of a file, with its colours."""
        head, end, rest = str(self.svg).partition(">")
        return f"{head}{end}<style>{STANDALONE}</style>{rest}"


@dataclass(frozen=True)
class Axis:
    """The title, the scale and the ticks of an axis. `names` are ticks at 0, 1, 2 … instead of numbers."""

    title: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    names: Sequence[str] = ()
    format: Callable[[float], str] = number
    whole: bool = False


@dataclass
class _Scale:
    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: list[float]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def line_chart(name: str, title: str, series: Sequence[Series], x: Axis, y: Axis, note: str = "") -> Chart:
    """Draw series over numbers, or over the names of the axis."""
    drawn = [[_drawable_point(point, x, y) for point in one.points] for one in series]
    points = [point for line in drawn for point in line if point is not None]
    shapes = [None if one.joined else position // COLOURS for position, one in enumerate(series)]
    colours = [f"s{(i if one.colour is None else one.colour) % COLOURS}" for i, one in enumerate(series)]
    legend = [
        _Entry(one.name, colour, one.dashed, shape) for one, colour, shape in zip(series, colours, shapes, strict=True)
    ]
    frame = _Frame(x, y, [point[0] for point in points], [point[1] for point in points], legend)
    parts = frame.begin()
    for one, line, colour, shape in zip(series, drawn, colours, shapes, strict=True):
        marks = [None if point is None else (frame.x(point[0]), frame.y(point[1])) for point in line]
        if one.joined:
            parts.append(_path(marks, f"line {colour}{' dashed' if one.dashed else ''}"))
        radius = (2.6 if one.joined else 4) if one.marks else 0.01
        for index, (point, mark) in enumerate(zip(line, marks, strict=True)):
            if point is not None and mark is not None:
                tip = one.tips[index] if one.tips else _tip(one.name, point, x, y)
                parts.append(_mark(_point(shape or 0, f"mark {colour}", *mark, radius), tip))
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
    """Draw counts between rising edges; several counts are stacked."""
    totals = [sum(counts[bar] for counts in stacks.values()) for bar in range(len(edges) - 1)]
    several = len(stacks) > 1
    legend = [_Entry(stack, f"s{position % COLOURS}") for position, stack in enumerate(stacks)]
    # Whole numbers extend half a unit to either side, so that the bar of one number is centred above it.
    sides = [edge - 0.5 for edge in edges] if x.whole else list(edges)
    frame = _Frame(x, Axis(what, low=0, whole=True), sides, [float(total) for total in totals], legend, tight=True)
    parts = frame.begin()
    base = [0] * len(totals)
    for position, (stack, counts) in enumerate(stacks.items()):
        for bar, count in enumerate(counts):
            if not count:
                continue
            left, right = frame.x(sides[bar]), frame.x(sides[bar + 1])
            top, bottom = frame.y(base[bar] + count), frame.y(base[bar])
            base[bar] += count
            first, last = edges[bar], edges[bar + 1] - 1 if x.whole else edges[bar + 1]
            range_ = x.format(first) if x.whole and first == last else f"{x.format(first)} to {x.format(last)}"
            tip = f"{range_}: {number(count)} {what}" + (f", {stack}" if several else "")
            shape = f'<rect class="mark s{position % COLOURS}" x="{left:.1f}" y="{top:.1f}" '
            parts.append(_mark(f'{shape}width="{max(right - left - 0.6, 0.6):.1f}" height="{bottom - top:.1f}">', tip))
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
    """Draw horizontal bars from 0, each (name, value, text), with `intervals` over them.

    The text up to its first comma is written beside the bar; the mark has the whole text.
    """
    names = [shorten(visible(bar[0]), 26) for bar in bars]
    left = min(212, max([6, *(len(one) for one in names)]) * CHARACTER + 12)
    beside = [text.split(",")[0] for _, _, text in bars]
    right = WIDTH - 12 - max([4, *(len(one) for one in beside)]) * CHARACTER
    row, height = 24, 24 * len(bars) + 44
    ends = [bar[1] for bar in bars] + [end for interval in intervals if interval for end in interval]
    lowest = 0 if min(ends, default=0) >= 0 else None
    scale = _make_scale(Axis(axis.title, low=lowest, format=axis.format), [0.0, *(ends or [1.0])], left, right)
    zero = scale(0)
    parts = [f'<path class="grid" d="M{scale(tick):.1f} 6V{height - 38}"/>' for tick in scale.ticks]
    parts.append(_ticks_x(scale, height - 24))
    parts.append(f'<path class="axis" d="M{zero:.1f} 6V{height - 38}"/>')
    parts.append(_text((left + right) / 2, height - 6, axis.title, "middle"))
    for index, (bar, value, text) in enumerate(bars):
        top = 8 + index * row
        parts.append(_text(left - 7, top + 13, names[index], "end"))
        style = "s5" if faint and faint[index] else "s0"
        start, width = min(zero, scale(value)), max(abs(scale(value) - zero), 0.8)
        shape = f'<rect class="mark {style}" x="{start:.1f}" y="{top}" width="{width:.1f}" height="17">'
        parts.append(_mark(shape, f"{bar}: {text}"))
        edge = start + width
        if intervals and (interval := intervals[index]):
            low, high = scale(interval[0]), scale(interval[1])
            caps = f"M{low:.1f} {top + 5}v7M{high:.1f} {top + 5}v7"
            parts.append(f'<path class="whisker" d="M{low:.1f} {top + 8.5}H{high:.1f}{caps}"/>')
            edge = max(edge, high)
        parts.append(_text(edge + 5, top + 13, beside[index], "start"))
    return Chart(name, title, _svg(parts, height, title), note)


# -- the frame ---------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """An entry of a legend; it has a `shape` if its points are not joined by a line."""

    name: str
    colour: str
    dashed: bool = False
    shape: int | None = None


def _legend_lines(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """Put as many entries on a line as fit; a single entry needs no legend."""
    lines: list[list[_Entry]] = []
    used = 0.0
    for entry in entries if len(entries) > 1 else ():
        name = shorten(visible(entry.name), LONGEST_NAME)
        width = len(name) * CHARACTER + 40
        if not lines or used + width > WIDTH - LEFT - RIGHT:
            lines.append([])
            used = 0.0
        lines[-1].append(entry._replace(name=name))
        used += width
    return lines


class _Frame:
    """Axes, grid and legend around the marks of a chart."""

    def __init__(
        self, x: Axis, y: Axis, xs: Sequence[float], ys: Sequence[float], legend: Sequence[_Entry], tight: bool = False
    ):
        self._legend = _legend_lines(legend)
        self._top: float = TOP + LINE * len(self._legend)
        self._height = HEIGHT + LINE * max(0, len(self._legend) - 1)
        bottom = BOTTOM + (12 if any("\n" in name for name in x.names) else 0)
        self._bottom = float(self._height - bottom)
        self.x = _make_scale(x, xs or [1.0, 10.0], LEFT, WIDTH - RIGHT, tight)
        self.y = _make_scale(y, ys or [1.0, 10.0], self._bottom, self._top)

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
                    point = _point(shape, f"point {colour}", left + 12, middle, 4)
                    parts.append(point.removesuffix(">") + "/>")
                parts.append(_text(left + 23, middle + 4, name, "start"))
                left += len(name) * CHARACTER + 40
        for tick in y.ticks:
            parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 7, y(tick) + 4, y.axis.format(tick), "end"))
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
    lines = [escape(line) for line in visible(text).split("\n")]
    content: str = lines[0]
    if len(lines) > 1:
        spans = (f'<tspan x="{x:.1f}" dy="{13 if row else 0}">{line}</tspan>' for row, line in enumerate(lines))
        content = "".join(spans)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{content}</text>'


def _point(shape: int, style: str, x: float, y: float, radius: float) -> str:
    """Return the opening tag of a circle; a square and a diamond distinguish series of the same colour."""
    if shape % 3 == 0:
        return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
    if shape % 3 == 1:
        return f'<path class="{style}" d="M{x - radius:.1f} {y - radius:.1f}h{2 * radius}v{2 * radius}h{-2 * radius}z">'
    long = 1.4 * radius
    return f'<path class="{style}" d="M{x:.1f} {y - long:.1f}l{long} {long}l{-long} {long}l{-long} {-long}z">'


def _mark(opening_tag: str, tip: str) -> str:
    name = opening_tag[1:].split(" ", 1)[0]
    return f"{opening_tag}<title>{escape(visible(tip))}</title></{name}>"


def _path(points: Sequence[tuple[float, float] | None], style: str) -> str:
    steps, command = [], "M"
    for point in points:
        if point is not None:
            steps.append(f"{command}{point[0]:.1f} {point[1]:.1f}")
        command = "M" if point is None else "L"
    return f'<path class="{style}" d="{"".join(steps)}"/>'


def _ticks_x(scale: _Scale, y: float) -> str:
    names = scale.axis.names
    return "".join(
        _text(scale(tick), y, names[int(tick)] if names else scale.axis.format(tick), "middle") for tick in scale.ticks
    )


def _tip(name: str, point: tuple[float, float], x: Axis, y: Axis) -> str:
    at = x.names[int(point[0])].replace("\n", " ") if x.names else x.format(point[0])
    return f"{name}: {y.format(point[1])} at {at}"


def _drawable_point(point: tuple[float, float | None], x: Axis, y: Axis) -> tuple[float, float] | None:
    """Return the point; None if it has no value or no logarithm where the axis needs one."""
    at, value = point
    if value is None or not math.isfinite(value) or not math.isfinite(at):
        return None
    return None if (x.log and at <= 0) or (y.log and value <= 0) else (at, float(value))


# -- scales ------------------------------------------------------------------------------------------------------------


def _make_scale(axis: Axis, values: Sequence[float], start: float, end: float, tight: bool = False) -> _Scale:
    if axis.names:
        ticks = [float(position) for position in range(len(axis.names))]
        return _Scale(axis, -0.5, len(axis.names) - 0.5, start, end, ticks)
    low = min(values) if axis.low is None else axis.low
    high = max(values) if axis.high is None else axis.high
    if axis.log:
        return _log_scale(axis, low, high, start, end, tight)
    if high - low <= 1e-6 * max(abs(low), abs(high)):  # equal values; a difference is rounding
        high = low + max(1.0, 0.001 * abs(low))
    step = _nice_step(low, high, axis.whole)
    if not tight:
        low = low if axis.low is not None else math.floor(low / step + 1e-9) * step
        high = high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded, because 30 × 0.1 is not 3.
    ticks = [float(f"{multiple * step:.12g}") for multiple in range(first, last + 1)]
    return _Scale(axis, low, high, start, end, ticks)


def _nice_step(low: float, high: float, whole: bool) -> float:
    """Return 1, 2, 2.5 or 5 times a power of ten, so that about five steps go from low to high."""
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
