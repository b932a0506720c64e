"""What components show: stored as plain values, cut to size, refused when it is something else."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit import exhibits
from xmckit.errors import PluginError
from xmckit.exhibits import Branch, Histogram, Label, Outline, Table


class Shows:
    def __init__(self, *shown: Any):
        self._shown = list(shown)

    def exhibits(self) -> list[Any]:
        return self._shown


def stored(*shown: Any) -> list[dict[str, Any]]:
    found = exhibits.stored(Shows(*shown), "toy")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_a_component_that_shows_nothing() -> None:
    assert exhibits.stored(object(), "toy") == []


def test_cells_of_a_table() -> None:
    row = ["text", 3, np.float32(0.5), None, Label(np.int64(7)), [Label(1), Label(2)], float("nan"), True]
    (table,) = stored(Table("t", [str(place) for place in range(len(row))], [row], of=10))
    assert table["rows"] == [["text", 3, 0.5, None, {"label": 7}, {"labels": [1, 2], "of": 2}, None, True]]
    assert table["of"] == 10


def test_what_is_long_is_cut_and_counted() -> None:
    many = [Label(place) for place in range(1000)]
    table, outline = stored(
        Table("t", ["a", "b"], [["x" * 10_000, many]] * 1000),
        Outline("o", [Branch("b", 5, list(range(1000)), [Branch("c", 1)] * 1000)] * 3),
    )
    assert len(table["rows"]) == exhibits.MOST_ROWS
    assert table["of"] == 1000
    assert len(table["rows"][0][0]) == exhibits.LONGEST_TEXT
    assert table["rows"][0][1]["of"] == 1000
    assert len(outline["branches"]) == 1
    assert len(outline["branches"][0]["branches"]) == exhibits.MOST_BRANCHES - 1
    assert outline["branches"][0]["of"] == 1000
    assert len(json.dumps([table, outline])) < 200_000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("a text", "gave a str, expected Table, Histogram or Outline"),
        (Table("t", ["a"], [[1, 2]]), "does not fit its columns"),
        (Table("t", ["a"], [[{}]]), "has a dict in a cell"),
        (Histogram("h", [0, 1], [1, 2], "x", "y"), "2 edges and 2 counts"),
        (Histogram("h", [0, 0], [1], "x", "y"), "one more edge than counts, in rising order"),
        (Histogram("h", [0, float("inf")], [1], "x", "y"), "one more edge than counts, in rising order"),
        (Histogram("h", list(range(500)), [1] * 499, "x", "y"), "499 counts"),
    ],
    ids=["no exhibit", "row", "cell", "edges", "flat", "inf", "many"],
)
def test_what_is_no_exhibit_names_its_component(wrong: Any, message: str) -> None:
    with pytest.raises(PluginError, match="toy") as caught:
        stored(wrong)
    assert message in str(caught.value)


def test_exhibits_have_to_be_a_list() -> None:
    class Wrong:
        def exhibits(self) -> int:
            return 3

    with pytest.raises(PluginError, match="gave a int, expected a list"):
        exhibits.stored(Wrong(), "toy")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.integers(0, 10**6), max_size=200) | st.lists(st.floats(-1e6, 1e6), max_size=200))
def test_a_histogram_counts_every_value_once(values: list[float]) -> None:
    (found,) = stored(exhibits.histogram("h", np.array(values), "x", "y"))
    assert sum(found["counts"]) == len(values)


def test_leaves_of_any_clusters() -> None:
    label_of = np.array([0, 1, 2, 0], dtype=np.int32)
    clusters = csr_matrix((np.ones(4, np.float32), np.array([0, 0, 0, 1]), np.arange(5)), shape=(4, 2))
    (found,) = exhibits.stored_all(exhibits.leaf_exhibits(clusters, label_of), "toy")
    assert dict(zip(found["edges"], found["counts"], strict=False)) == {1: 1, 2: 0, 3: 1}
    assert found["note"] == (
        "2 leaves, the smallest with 1 labels, the largest with 3. 1 labels are in several leaves."
    )
