"""The report's exhibits about assignments: a histogram of their confidence, and a table of some of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xmckit import Groups
from xmckit.exhibits import Cell, Exhibit, Histogram, Label, Table
from xmckit_eagle.assign.choice import Choice

TABLE_ROWS = 60  # assignments in the table: a third each of the surest, the middle and the least sure
BINS = 20


def assignment_exhibits(
    choice: Choice, confidence: np.ndarray, groups: Groups, row_names: Sequence[str] | None
) -> list[Exhibit]:
    """Return a histogram of all assignments, and a table of some in which the group left a choice."""
    counts, edges = np.histogram(confidence, BINS, (0.0, 1.0))
    return [
        Histogram(
            "How sure the assignments are",
            edges.tolist(),
            counts.tolist(),
            "confidence",
            "assignments",
            "From 0, a guess among the rows of the group, to 1, no other row came close.",
        ),
        _assignment_table(choice, confidence, groups, row_names),
    ]


def _assignment_table(choice: Choice, confidence: np.ndarray, groups: Groups, row_names: Sequence[str] | None) -> Table:
    with_choice = np.flatnonzero(np.isfinite(choice.margins))  # the margin is inf if all rows got the label
    order = with_choice[np.argsort(-confidence[with_choice], kind="stable")]
    ranks = np.arange(len(order))
    if len(order) > TABLE_ROWS:
        third = TABLE_ROWS // 3
        middle = len(order) // 2 - third // 2
        ranks = np.concatenate([np.arange(start, start + third) for start in (0, middle, len(order) - third)])
    sizes = np.bincount(groups.membership.indices, minlength=groups.membership.shape[1])
    rows: list[list[Cell]] = [
        [
            Label(int(choice.labels[entry])),
            round(float(confidence[entry]), 3),
            row_names[row] if row_names is not None else f"row {row}",
            groups.names[group] if groups.names is not None else f"group {group}",
            int(sizes[group]),
            round(float(choice.margins[entry]), 4),
        ]
        for entry in order[ranks].tolist()
        for group, row in [(int(choice.groups[entry]), int(choice.rows[entry]))]
    ]
    return Table(
        "Some assignments",
        ["label", "confidence", "given to", "of group", "rows in it", "margin"],
        rows,
        of=len(order),
        note="The surest, some of the middle and the least sure, among groups that left a choice.",
    )
