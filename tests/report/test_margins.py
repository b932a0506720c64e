"""The picture of margins, and its place in a report."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from xmckit.report import margins
from xmckit.report.margins import margin_histogram


def verdict(status: str = "argmaxable", margin: float | None = None, replayed: bool | None = None) -> dict[str, Any]:
    return {"status": status, "margin": margin, "replayed": replayed}


VERDICTS = [
    *(verdict(margin=10.0**-exponent, replayed=exponent < 7) for exponent in range(1, 10)),
    verdict(margin=0.3),
    verdict(),
    verdict("unargmaxable"),
    verdict("unargmaxable"),
]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is drawn, before it becomes SVG."""
    drawn: list[Any] = []
    monkeypatch.setattr(margins, "as_svg", lambda figure: drawn.append(figure) or "")
    return drawn


@pytest.mark.parametrize("verdicts", [VERDICTS, VERDICTS[:1], []])
def test_it_is_one_svg_and_the_same_each_time(verdicts: list[dict[str, Any]]) -> None:
    svg = margin_histogram(verdicts)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<metadata>" not in svg
    assert svg == margin_histogram(verdicts)


def test_every_set_is_counted_once(figures: list[Any]) -> None:
    margin_histogram(VERDICTS)
    (axes,) = figures[0].axes
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    heights = [sum(bar.get_height() for bar in bars) for bars in axes.containers]
    assert dict(zip(names, heights, strict=True)) == {
        "replayed by the head": 6,
        "proved, not replayed": 1,
        "lost in the head's own arithmetic": 3,
    }
    assert axes.get_xlabel() == "margin\n(without one: 1 argmaxable, 2 unargmaxable)"


def test_the_bars_of_a_margin_stand_at_its_place(figures: list[Any]) -> None:
    margin_histogram([verdict(margin=margin) for margin in (2e-5, 2.1e-5, 3e-2)])
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in figures[0].axes[0].patches]
    assert [height for low, high, height in bars if low <= 2e-5 < high] == [2]
    assert [height for low, high, height in bars if low <= 3e-2 < high] == [1]
    assert sum(height for _, _, height in bars) == 3
