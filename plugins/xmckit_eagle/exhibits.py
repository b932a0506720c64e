"""What a report shows of the assignments: how sure they are, and some of them by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xmckit import Groups
from xmckit.exhibits import Cell, Exhibit, Histogram, Label, Table
from xmckit_eagle.assign.choice import Choice

SHOWN = 60  # assignments by name: a third each of the surest, of the middle and of the least sure
BINS = 20


def assignment_exhibits(
    choice: Choice, confidence: np.ndarray, groups: Groups, row_names: Sequence[str] | None
) -> list[Exhibit]:
    """Only groups where there was a choice are named: a margin of inf means that there was none."""
    counts, edges = np.histogram(confidence, BINS, (0.0, 1.0))
    return [
        Histogram(
            "How sure the assignments are",
            edges.tolist(),
            counts.tolist(),
            "confidence",
            "assignments",
            "From 0, a guess among the rows of the group, to 1, nothing else came near.",
        ),
        _by_name(choice, confidence, groups, row_names),
    ]


def _by_name(choice: Choice, confidence: np.ndarray, groups: Groups, row_names: Sequence[str] | None) -> Table:
    open_ = np.flatnonzero(np.isfinite(choice.margins))
    order = open_[np.argsort(-confidence[open_], kind="stable")]
    places = np.unique(np.linspace(0, len(order) - 1, SHOWN).astype(np.int64)) if len(order) else order
    if len(order) > SHOWN:
        third = SHOWN // 3
        middle = len(order) // 2 - third // 2
        places = np.concatenate([np.arange(start, start + third) for start in (0, middle, len(order) - third)])
    sizes = np.bincount(groups.membership.indices, minlength=groups.membership.shape[1])
    rows: list[list[Cell]] = [
        [
            Label(int(choice.labels[place])),
            round(float(confidence[place]), 3),
            row_names[row] if row_names is not None else f"row {row}",
            groups.names[group] if groups.names is not None else f"group {group}",
            int(sizes[group]),
            round(float(choice.margins[place]), 4),
        ]
        for place in order[places].tolist()
        for group, row in [(int(choice.groups[place]), int(choice.rows[place]))]
    ]
    return Table(
        "Some assignments",
        ["label", "confidence", "given to", "of group", "rows in it", "margin"],
        rows,
        of=len(order),
        note="The surest, some of the middle and the least sure, of those where the group left a choice.",
    )
