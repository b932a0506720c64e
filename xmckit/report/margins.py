"""The picture of margins: how much room the label sets have that a layer can output."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from xmckit.report.charts import Axis, Chart, histogram
from xmckit.report.run_charts import decades

MOST_BINS = 60
# What the head's own scorer made of a set's witness.
GROUPS = {True: "replayed by the head", False: "lost in the head's own arithmetic", None: "proved, not replayed"}


def margin_histogram(name: str, title: str, verdicts: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Verdicts as verdicts.json has them; sets without a margin are counted below. None where no set has one."""
    found = {
        group: [verdict["margin"] for verdict in verdicts if verdict["margin"] and verdict["replayed"] is replayed]
        for replayed, group in GROUPS.items()
    }
    found = {group: margins for group, margins in found.items() if margins}
    if not found:
        return None
    smallest, largest = min(map(min, found.values())), max(map(max, found.values()))
    edges = decades(smallest, largest, MOST_BINS)
    stacks = {group: _counts(margins, edges) for group, margins in found.items()}
    return histogram(
        name, title, edges, stacks, Axis("margin", log=True, shown=_shown), "label sets", _without(verdicts)
    )


def _counts(margins: Sequence[float], edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    for margin in margins:
        counts[min(max(bisect_right(edges, margin) - 1, 0), len(counts) - 1)] += 1
    return counts


def _shown(value: float) -> str:
    return f"{value:.2g}"


def _without(verdicts: Sequence[Mapping[str, Any]]) -> str:
    statuses = [verdict["status"] for verdict in verdicts if not verdict["margin"]]
    counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    if not counts:
        return ""
    return "Without a margin: " + ", ".join(f"{count:,} {status}" for status, count in counts.items()) + "."
