from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from exact_lp import exactly_argmaxable
from xmckit_argmax import figures as module
from xmckit_argmax.figures import (
    ReachByDimension,
    hasse_diagram,
    reach_by_dimension,
    share_of_all_curve,
)
from xmckit_argmax.paper.counting import argmaxable_count

import xmckit
from xmckit.drawing import GREEN, VERMILION

W63 = np.array([[1, 1, 0], [1, 0.5, 1], [1, -0.5, 1], [1, -1, 0], [1, -0.5, -1], [1, 0.5, -1]])

EXAMPLES = {
    "curve": lambda: share_of_all_curve([100, 400], marked=[3, 50, 300]),
    "one label": lambda: share_of_all_curve([1], marked=[1]),
    "far apart": lambda: share_of_all_curve([10, 100_000], bias=True, rule="topk"),
    "reach": lambda: reach_by_dimension([ReachByDimension("BSL", [8, 16], [0.5, 1.0], [[0.1, 0.2], [0.3, 0.2]])]),
    "diagram": lambda: hasse_diagram(3, lambda active: len(active) != 2),
    "one node above another": lambda: hasse_diagram(1, lambda active: False),
}


@pytest.fixture
def figures(monkeypatch):
    """What is drawn, before it becomes SVG."""
    drawn = []
    monkeypatch.setattr(module, "as_svg", lambda figure: drawn.append(figure) or "")
    return drawn


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_picture_is_one_svg_and_the_same_each_time(name):
    svg = EXAMPLES[name]()
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<metadata>" not in svg
    assert svg == EXAMPLES[name]()


def test_the_curve_is_covers_share(figures):
    share_of_all_curve([300], marked=[20, 150])
    percent, logarithm = figures[0].axes
    dims, heights = percent.lines[0].get_data()
    assert dims[0] == 1
    assert dims[-1] == 300
    exact = [100 * argmaxable_count(300, int(dim)) / 2**300 for dim in dims]
    np.testing.assert_allclose(heights, exact, rtol=1e-9, atol=1e-12)
    marks = [(line.get_xdata()[0], line.get_ydata()[0]) for line in logarithm.lines[1:]]
    assert marks[0] == (20, pytest.approx(math.log10(argmaxable_count(300, 20)) - 300 * math.log10(2)))
    assert marks[1] == (150, pytest.approx(math.log10(0.5)))
    assert [text.get_text() for text in logarithm.get_legend().get_texts()] == ["d = 20: $10^{-60}$", "d = 150: 50 %"]


def test_reach_shows_the_mean_over_seeds(figures):
    reach_by_dimension([
        ReachByDimension("BSL", [8, 16], [[0.2, 1.0], [0.4, 1.0]], [0.0, 0.5]),
        ReachByDimension("DFT", [8, 16], [1.0, 0.9], exact=[1.0, 1.0]),
    ])  # fmt: skip
    (axes,) = figures[0].axes
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines], [[30, 100], [0, 50], [100, 100], [100, 90]])
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names == ["BSL", "DFT", "stored matrix", "radius above eps", "radius above 1"]
    with pytest.raises(xmckit.UsageError, match="BSL: 3 shares for 2 dimensions"):
        reach_by_dimension([ReachByDimension("BSL", [8, 16], [0.1, 0.2, 0.3])])


def test_the_diagram_of_the_papers_example(figures):
    hasse_diagram(6, lambda active: exactly_argmaxable(W63, None, "sign", active))
    (axes,) = figures[0].axes
    nodes = {text.get_text(): text for text in axes.texts if set(text.get_text()) <= set("+−")}
    assert len(nodes) == 64
    green = {signs for signs, node in nodes.items() if node.get_bbox_patch().get_linestyle() == "-"}
    assert len(green) == 32
    # the green sets are those that change sign at most twice around the circle
    changes = {signs: sum(signs[place] != signs[place - 1] for place in range(6)) for signs in nodes}
    assert green == {signs for signs, count in changes.items() if count <= 2}
    assert all(node.get_position()[1] == signs.count("+") for signs, node in nodes.items())
    assert len(axes.lines) == 6 * 2**5
    joins = [line for line in axes.lines if line.get_color() == GREEN]
    assert len(joins) == 2 * 6 + 4 * 12
    levels = [text.get_text() for text in axes.texts if "active" in text.get_text()]
    assert levels[2] == "2 active\n6 of 15"
    assert {text.get_color() for text in nodes.values()} == {"white", VERMILION}


def test_what_cannot_be_drawn_is_an_error():
    with pytest.raises(xmckit.UsageError, match="7 labels cannot be read, expected 1 to 6"):
        hasse_diagram(7, lambda active: True)
    with pytest.raises(xmckit.UsageError, match="label counts of 1 or more"):
        share_of_all_curve([0])
