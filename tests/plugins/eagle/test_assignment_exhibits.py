"""What a report shows of assignments."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from xmckit_eagle.assign.choice import Choice
from xmckit_eagle.exhibits import TABLE_ROWS, assignment_exhibits

from xmckit import Groups
from xmckit.exhibits import Histogram, Label, Table, stored_all


def made(count: int, *, open_: int) -> tuple[Histogram, Table]:
    """Of `count` assignments, of which the first `open_` had a choice, ever less sure."""
    numbers = np.arange(count, dtype=np.int32)
    margins = np.where(numbers < open_, 1.0, np.inf).astype(np.float32)
    confidence = np.linspace(1, 0, count).astype(np.float32)
    membership = csr_matrix((np.ones(count, np.float32), numbers, np.arange(count + 1)), shape=(count, count))
    groups = Groups(membership, csr_matrix((count, 5)), [f"group <{number}>" for number in numbers])
    choice = Choice(numbers, numbers % 5, numbers, np.zeros(count, np.float32), margins)
    shown, table = assignment_exhibits(choice, confidence, groups, None)
    assert isinstance(shown, Histogram)
    assert isinstance(table, Table)
    stored_all([shown, table], "eagle")
    return shown, table


@pytest.mark.parametrize("count", [0, 1, 7, 60, 61, 1000])
def test_every_assignment_is_counted_and_the_surest_and_least_sure_are_named(count: int) -> None:
    shown, table = made(count, open_=count)
    assert sum(shown.counts) == count
    assert table.of == count
    assert len(table.rows) == min(count, TABLE_ROWS)
    names = [row[3] for row in table.rows]
    assert len(set(names)) == len(names)
    if count:
        assert names[0] == "group <0>"
        assert names[-1] == f"group <{count - 1}>"
        assert table.rows[0][:3] == [Label(0), 1.0, "row 0"]


def test_where_there_was_no_choice_nothing_is_named() -> None:
    shown, table = made(10, open_=3)
    assert sum(shown.counts) == 10
    assert [row[3] for row in table.rows] == ["group <0>", "group <1>", "group <2>"]
