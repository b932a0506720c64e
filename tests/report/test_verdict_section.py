"""The section about verdicts: the histogram of margins, and label sets that only rounding outputs."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit.report.run_charts import decades
from xmckit.report.verdict_section import margin_histogram, rounding_notes, verdict_table


def verdict(status: str = "argmaxable", margin: float | None = None, replayed: bool | None = None) -> dict[str, Any]:
    return {"status": status, "margin": margin, "replayed": replayed}


VERDICTS = [
    *(verdict(margin=10.0**-exponent, replayed=exponent < 7) for exponent in range(1, 10)),
    verdict(margin=0.3),
    verdict(),
    verdict("unargmaxable"),
    verdict("unargmaxable"),
]


def tips(svg: str) -> list[str]:
    return [str(title.text) for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")]


def counted(verdicts: list[dict[str, Any]]) -> dict[str, int]:
    """Sets by group, as the marks say."""
    chart = margin_histogram("margins", "Margins", verdicts)
    assert chart is not None
    found: dict[str, int] = {}
    for tip in tips(str(chart.svg)):
        count, group = re.fullmatch(r".*: ([\d,]+) label sets(?:, (.*))?", tip).groups()  # type: ignore[union-attr]
        found[group or ""] = found.get(group or "", 0) + int(count.replace(",", ""))
    return found


def test_every_set_is_counted_once() -> None:
    assert counted(VERDICTS) == {
        "replayed by the head": 6,
        "proved, not replayed": 1,
        "lost in the head's own arithmetic": 3,
    }
    chart = margin_histogram("margins", "Margins", VERDICTS)
    assert chart is not None
    assert chart.note == "Without a margin: 1 argmaxable, 2 unargmaxable."


def test_sets_without_margins_are_no_picture() -> None:
    assert margin_histogram("margins", "Margins", [verdict(), verdict("unargmaxable")]) is None
    assert margin_histogram("margins", "Margins", []) is None


def test_the_bars_of_a_margin_stand_at_its_place() -> None:
    chart = margin_histogram("margins", "Margins", [verdict(margin=margin) for margin in (2e-5, 2.1e-5, 3e-2)])
    assert chart is not None
    bars = []
    for tip in tips(str(chart.svg)):
        low, high, count = re.fullmatch(r"(\S+) to (\S+): (\d+) label sets", tip).groups()  # type: ignore[union-attr]
        bars.append((float(low), float(high), int(count)))
    assert [count for low, high, count in bars if low <= 2e-5 < high] == [2]
    assert [count for low, high, count in bars if low <= 3e-2 < high] == [1]


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.floats(1e-300, 1e3), min_size=1, max_size=30))
def test_any_margins_can_be_drawn_and_none_is_lost(margins: list[float]) -> None:
    assert counted([verdict(margin=margin) for margin in margins]) == {"": len(margins)}
    edges = decades(min(margins), max(margins), 60)
    assert all(low < high for low, high in itertools.pairwise(edges))
    assert edges[0] <= min(margins) <= max(margins) <= edges[-1]


def result_of(head: str, outputs: int, by_rounding: int) -> dict[str, Any]:
    statuses = {"argmaxable": 8 - by_rounding, "unargmaxable": by_rounding, "unresolved": 0}
    none = dict.fromkeys(statuses, 0)
    return {
        "head": head, "scope": "full", "rule": "sign", "counts": statuses, "share": 1.0, "ideal": none, "eps": none,
        "smallest_margin": 0.1, "replayed": {"yes": 8, "no": 0, "not tried": 0}, "outputs": outputs,
        "by_rounding": by_rounding,
    }  # fmt: skip


def test_outputs_by_rounding_have_a_column_and_a_note() -> None:
    some, all_own, few_own = result_of("a", 4, 3), result_of("b", 8, 0), result_of("c", 1, 0)
    table = verdict_table([some, all_own, few_own])
    assert table.columns[-1].title == "output by rounding"
    assert [row[-1].text for row in table.rows] == ["3 of 4", "0 of 8", "0 of 1"]
    (note,) = rounding_notes([some, all_own, few_own])
    assert note.startswith("a: of 4 verified label sets that it output, it outputs 3 only by rounding")
    # label sets of the data, of which a head happens to output one
    assert verdict_table([few_own]).columns[-1].title == "replayed"
    old = {key: value for key, value in few_own.items() if key not in ("outputs", "by_rounding")}
    assert verdict_table([old]).columns[-1].title == "replayed"
