"""What a component shows in the report besides its facts: tables, histograms and outlines.

A label preprocessor, a LabelIndex or a head may offer `exhibits()`, which returns a few of these after `apply`, `build`
or `fit`. They hold plain values. A label is named by its number, as `Label(7)`: the report writes its name. What is
long is cut when it is stored, and the report says how much is left out, so that no exhibit makes a report large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.errors import PluginError

MOST_ROWS = 120
MOST_BINS = 200
MOST_BRANCHES = 400
MOST_LABELS = 12  # of a cell or a branch
LONGEST_TEXT = 300


@dataclass(frozen=True)
class Label:
    """A label by its number, wherever a cell of a table may be a text."""

    number: int


Cell: TypeAlias = "str | float | int | Label | Sequence[Label] | None"


@dataclass(frozen=True)
class Table:
    """Rows under names of columns. `of`: how many rows there would be, where these are only some of them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    of: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` of `what` lie from `edges[i]` to `edges[i + 1]`; `axis` says what the edges measure."""

    title: str
    edges: Sequence[float]
    counts: Sequence[int]
    axis: str
    what: str
    note: str = ""


@dataclass(frozen=True)
class Branch:
    """A node of an outline: some labels of it, of `size`, and the nodes below, of `of` where these are only some."""

    title: str
    size: int
    labels: Sequence[int] = ()
    branches: Sequence[Branch] = ()
    of: int | None = None


@dataclass(frozen=True)
class Outline:
    """A tree that a reader unfolds."""

    title: str
    branches: Sequence[Branch]
    note: str = ""


Exhibit: TypeAlias = "Table | Histogram | Outline"


def stored(component: Any, name: str) -> list[dict[str, Any]]:
    """What `component` shows, as JSON holds it, cut to size; nothing where it does not offer `exhibits`."""
    if not hasattr(component, "exhibits"):
        return []
    given = component.exhibits()
    if not isinstance(given, Sequence):
        raise PluginError(f"exhibits() of {name} gave a {type(given).__name__}, expected a list")
    return stored_all(given, name)


def stored_all(given: Sequence[Exhibit], name: str) -> list[dict[str, Any]]:
    """Exhibits as JSON holds them, or PluginError that names whose they are."""
    return [_stored(exhibit, name) for exhibit in given]


def leaf_exhibits(clusters: csr_matrix, label_of: np.ndarray) -> list[Exhibit]:
    """The sizes of the clusters (pseudo-labels × clusters, one non-zero a row) that an index sorts labels into."""
    sizes = np.bincount(clusters.indices, minlength=clusters.shape[1])
    copies = np.bincount(label_of, minlength=1)
    least, most = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    note = f"{len(sizes):,} leaves, the smallest with {least:,} labels, the largest with {most:,}."
    if (several := int((copies > 1).sum())) > 0:
        note += f" {several:,} labels stand in several leaves."
    return [histogram("Labels in a leaf", sizes, "labels", "leaves", note)]


def histogram(title: str, values: np.ndarray, axis: str, what: str, note: str = "", bins: int = 40) -> Histogram:
    """Of any values in bins of equal width; integers that are few get a bin each."""
    values = np.asarray(values)
    if not len(values):
        return Histogram(title, [0, 1], [0], axis, what, note)
    low, high = values.min(), values.max()
    if values.dtype.kind in "iu":
        step = max(1, -(-(int(high) - int(low) + 1) // bins))
        edges = np.arange(int(low), int(high) + step + 1, step)
    else:
        edges = np.linspace(low, high if high > low else low + 1, bins + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(title, edges.tolist(), counts.tolist(), axis, what, note)


def _stored(exhibit: Any, name: str) -> dict[str, Any]:
    if isinstance(exhibit, Table):
        if any(len(row) != len(exhibit.columns) for row in exhibit.rows):
            raise PluginError(f"the table {exhibit.title!r} of {name} has a row that does not fit its columns")
        return {
            **_named("table", exhibit),
            "columns": [_text(column) for column in exhibit.columns],
            "rows": [[_cell(cell, name) for cell in row] for row in exhibit.rows[:MOST_ROWS]],
            "of": max(len(exhibit.rows), exhibit.of or 0),
        }
    if isinstance(exhibit, Histogram):
        edges = [int(edge) if isinstance(edge, Integral) else float(edge) for edge in exhibit.edges]
        counts = [int(count) for count in exhibit.counts]
        rising = all(low < high for low, high in itertools.pairwise(edges)) and all(map(math.isfinite, edges))
        if len(edges) != len(counts) + 1 or not 1 <= len(counts) <= MOST_BINS or not rising:
            raise PluginError(
                f"the histogram {exhibit.title!r} of {name} has {len(edges)} edges and {len(counts)} counts, expected "
                f"rising edges, one more than counts, of which there are 1 to {MOST_BINS}"
            )
        texts = {"axis": _text(exhibit.axis), "what": _text(exhibit.what)}
        return {**_named("histogram", exhibit), "edges": edges, "counts": counts, **texts}
    if isinstance(exhibit, Outline):
        return {**_named("outline", exhibit), "branches": _branches(exhibit.branches, [MOST_BRANCHES])}
    raise PluginError(f"exhibits() of {name} gave a {type(exhibit).__name__}, expected Table, Histogram or Outline")


def _named(kind: str, exhibit: Exhibit) -> dict[str, Any]:
    return {"kind": kind, "title": _text(exhibit.title), "note": str(exhibit.note)[: 3 * LONGEST_TEXT]}


def _branches(branches: Sequence[Branch], left: list[int]) -> list[dict[str, Any]]:
    """As JSON; `left` counts down how many nodes may still be stored."""
    found = []
    for branch in branches:
        if left[0] <= 0:
            break
        left[0] -= 1
        found.append(
            {
                "title": _text(branch.title),
                "size": int(branch.size),
                "labels": [int(label) for label in branch.labels[:MOST_LABELS]],
                "branches": _branches(branch.branches, left),
                "of": max(len(branch.branches), branch.of or 0),
            }
        )
    return found


def _cell(cell: Any, name: str) -> Any:
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str):
        return _text(cell)
    if isinstance(cell, Label):
        return {"label": int(cell.number)}
    if isinstance(cell, Real):
        return _number(cell)
    if isinstance(cell, Sequence) and all(isinstance(item, Label) for item in cell):
        return {"labels": [int(item.number) for item in cell[:MOST_LABELS]], "of": len(cell)}
    raise PluginError(f"a table of {name} has a {type(cell).__name__} in a cell, expected a text, a number or a Label")


def _number(value: Any) -> int | float | None:
    if isinstance(value, Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _text(text: Any) -> str:
    text = str(text)
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
