"""Charts are well-formed and deterministic, and show every value at its place."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit.report.charts import HEIGHT, WIDTH, Axis, Series, bar_chart, histogram, line_chart
from xmckit.report.run_charts import calibration_section, training_charts

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


def marks(svg: str) -> list[tuple[float, float, str]]:
    """(x, y, what it says) of each point."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    return [(float(one.get("cx", "")), float(one.get("cy", "")), str(one[0].text)) for one in found]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.tuples(numbers, st.none() | numbers), max_size=20), st.booleans(), st.booleans())
def test_any_points_can_be_drawn_inside_the_picture(points: list, x_log: bool, y_log: bool) -> None:
    chart = line_chart("one", "One", [Series("a", points)], Axis("x", log=x_log), Axis("y", log=y_log))
    found = marks(str(chart.svg))
    drawn = [
        point for point in points
        if point[1] is not None and not (x_log and point[0] <= 0) and not (y_log and point[1] <= 0)
    ]  # fmt: skip
    assert len(found) == len(drawn)
    assert all(-1 <= x <= WIDTH + 1 and -1 <= y <= HEIGHT + 1 for x, y, _ in found)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40), st.integers(-(10**6), 10**6), st.integers(1, 10**6))
def test_any_histogram_can_be_drawn(counts: list[int], start: int, step: int) -> None:
    edges = [start + step * place for place in range(len(counts) + 1)]
    chart = histogram("one", "One", edges, {"": counts}, Axis("x", whole=True), "things")
    bars = list(ElementTree.fromstring(str(chart.svg)).iter(f"{SVG}rect"))
    assert len(bars) == sum(count > 0 for count in counts)
    assert all(float(bar.get("height", "")) >= 0 for bar in bars)


def test_a_whole_number_stands_below_the_middle_of_its_bar() -> None:
    chart = histogram("one", "One", [55, 56, 57], {"": [13, 51]}, Axis("labels", whole=True), "leaves")
    drawn = ElementTree.fromstring(str(chart.svg))
    middles = [float(bar.get("x", "")) + float(bar.get("width", "")) / 2 for bar in drawn.iter(f"{SVG}rect")]
    below = {text.text: float(text.get("x", "")) for text in drawn.iter(f"{SVG}text") if text.text in ("55", "56")}
    assert middles == pytest.approx([below["55"], below["56"]], abs=1)
    assert "57" not in [text.text for text in drawn.iter(f"{SVG}text")]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.text(), st.text())
def test_no_name_gets_out_of_its_place(name: str, title: str) -> None:
    series = [Series(name, [(0, 1), (1, 2)]), Series("other", [(0, 2)])]
    for chart in (
        line_chart("one", title, series, Axis(name), Axis(title)),
        bar_chart("two", title, [(name, 3.0, "3"), (title, 0.0, "0")], Axis(name)),
        histogram("three", title, [0, 1, 2], {name: [1, 2], "other": [0, 1]}, Axis(title), name),
    ):
        tree = ElementTree.fromstring(str(chart.svg))
        assert {one.tag.removeprefix(SVG) for one in tree.iter()} <= {
            "svg", "path", "text", "tspan", "circle", "rect", "title",
        }  # fmt: skip
        ElementTree.fromstring(chart.standalone)


def test_a_line_rises_with_its_values_and_says_them() -> None:
    chart = line_chart("one", "One", [Series("a", [(1, 10.0), (2, None), (3, 30.0)])], Axis("k"), Axis("%", low=0))
    (left, low, first), (right, high, last) = marks(str(chart.svg))
    assert left < right
    assert low > high
    assert (first, last) == ("a: 10 at 1", "a: 30 at 3")
    # a gap breaks the line
    (line,) = re.findall(r'class="line s0" d="([^"]*)"', str(chart.svg))
    assert line.count("M") == 2


def test_equal_steps_on_a_logarithmic_axis_are_equal_factors() -> None:
    chart = line_chart(
        "one", "One", [Series("a", [(1, 1.0), (10, 10.0), (100, 100.0)])], Axis("x", log=True), Axis("y")
    )
    places = [x for x, _, _ in marks(str(chart.svg))]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)


def test_bars_are_as_long_as_their_values() -> None:
    chart = bar_chart("one", "One", [("a", 10.0, "ten"), ("b", 20.0, "twenty")], Axis("x"), faint=[False, True])
    short, long = ElementTree.fromstring(str(chart.svg)).iter(f"{SVG}rect")
    assert float(long.get("width", "")) == pytest.approx(2 * float(short.get("width", "")), abs=0.2)
    assert [bar[0].text for bar in (short, long)] == ["a: ten", "b: twenty"]
    assert "s5" in str(long.get("class"))


def test_bars_below_nothing_end_where_the_others_begin_and_intervals_reach_over_them() -> None:
    bars = [("a", -10.0, "less"), ("b", 20.0, "more")]
    chart = bar_chart("one", "One", bars, Axis("x"), intervals=[(-15.0, -5.0), None])
    tree = ElementTree.fromstring(str(chart.svg))
    less, more = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in tree.iter(f"{SVG}rect")]
    assert sum(less) == pytest.approx(more[0], abs=0.1)
    assert more[1] == pytest.approx(2 * less[1], abs=0.2)
    (whisker,) = [one.get("d", "") for one in tree.iter(f"{SVG}path") if one.get("class") == "whisker"]
    low, high = re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", whisker)[0]
    assert float(low) == pytest.approx(less[0] - less[1] / 2, abs=0.2)
    assert float(high) == pytest.approx(less[0] + less[1] / 2, abs=0.2)


def test_the_text_beside_the_longest_bar_is_inside_the_picture() -> None:
    said = "1 h 40 min"
    chart = bar_chart("one", "One", [("head-first", 6000.0, said), ("score", 2.0, "2.00 s")], Axis("seconds"))
    (text,) = [one for one in ElementTree.fromstring(str(chart.svg)).iter(f"{SVG}text") if one.text == said]
    assert float(text.get("x", "")) + 6.5 * len(said) <= WIDTH


def test_all_systems_of_a_suite_have_distinct_marks() -> None:
    series = [Series(f"system {place}", [(place + 1, 1.0)], joined=False) for place in range(16)]
    chart = line_chart("one", "One", series, Axis("x"), Axis("y"))
    tree = ElementTree.fromstring(str(chart.svg))
    looks = [
        (one.tag, str(one.get("class")).split()[1], str(one.get("d")).count("l"))
        for one in tree.iter()
        if str(one.get("class")).startswith("mark")
    ]
    assert len(set(looks)) == len(looks) == 16


def test_only_scores_that_are_meant_as_probabilities_are_called_reliable() -> None:
    numbers = {"ece": 0.1, "mean_said": 0.2, "mean_true": 0.3, "places": 9, "said": [0.2], "true": [0.3], "sizes": [9]}
    baseline = {"name": "popularity", "role": "baseline", "calibration": numbers}
    ranking = {"name": "lml", "role": "head", "calibration": None}
    assert calibration_section({"systems": [ranking, baseline]}) == ([], None)
    charts, table = calibration_section({"systems": [ranking, {**baseline, "name": "bsl", "role": "head"}, baseline]})
    assert len(charts) == 1
    assert table is not None
    assert [row[0].names for row in table.rows] == [["bsl"], ["popularity"]]


def test_a_chart_alone_brings_its_colours() -> None:
    chart = line_chart("one", "One", [Series("a", [(0, 1)])], Axis("x"), Axis("y"))
    assert ".s0{" in chart.standalone
    assert "<style>" not in str(chart.svg)
    again = line_chart("one", "One", [Series("a", [(0, 1)])], Axis("x"), Axis("y"))
    assert again.standalone == chart.standalone


def test_a_training_without_any_loss_can_be_drawn() -> None:
    """Where nothing is to be learned there is no logarithm to draw."""
    epochs = [{"number": 1, "loss": 0.0, "score": None, "seconds": 0.1}]
    (chart,) = training_charts([{"name": "idle", "training": epochs}, {"name": "other", "training": []}])
    assert [said for _, _, said in marks(str(chart.svg))] == ["idle, epoch 1: loss 0, after 0.10 s"]
