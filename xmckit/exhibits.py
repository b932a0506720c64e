"""Exhibits: tables, histograms and outlines that a component adds to the report besides its facts.

A label preprocessor, a LabelIndex or a head may have `exhibits()`, which returns some after `apply`, `build` or `fit`.
They hold plain values. `Label(7)` stands for the label with number 7; the report writes its name. Long exhibits
are cut when they are stored, and the report says how much is left out, so that no exhibit makes a report large.
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

from xmckit.errors import PluginError, shorten
from xmckit.protocols import SupportsExhibits, offers

MOST_ROWS = 120
MOST_BINS = 200
MOST_BRANCHES = 400
MOST_LABELS = 12  # of a cell or a branch
LONGEST_TEXT = 300


@dataclass(frozen=True)
class Label:
    """A label by its number, for a cell of a table."""

    number: int


Cell: TypeAlias = "str | float | int | Label | Sequence[Label] | None"


@dataclass(frozen=True)
class Table:
    """Rows under named columns. `of` is the number of all rows if `rows` holds only some of them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    of: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` of `what` lie between `edges[i]` and `edges[i + 1]`; `axis` names the quantity of the edges."""

    title: str
    edges: Sequence[float]
    counts: Sequence[int]
    axis: str
    what: str
    note: str = ""


@dataclass(frozen=True)
class Branch:
    """A node of an outline, with some of its `size` labels. `of` counts all nodes below if `branches` has only some."""

    title: str
    size: int
    labels: Sequence[int] = ()
    branches: Sequence[Branch] = ()
    of: int | None = None


@dataclass(frozen=True)
class Outline:
    """A tree that the reader of a report can unfold."""

    title: str
    branches: Sequence[Branch]
    note: str = ""


Exhibit: TypeAlias = "Table | Histogram | Outline"


def stored(component: Any, name: str) -> list[Any]:
    """Return the exhibits of a component as JSON values, cut to size; none if it has no `exhibits`."""
    if not offers(component, SupportsExhibits):
        return []
    exhibits = component.exhibits()
    if not isinstance(exhibits, Sequence):
        raise PluginError(f"exhibits() of {name} gave a {type(exhibits).__name__}, expected a list")
    return stored_all(exhibits, name)


def stored_all(exhibits: Sequence[Exhibit], name: str) -> list[Any]:
    """Return exhibits as JSON values, cut to size; errors blame the component `name`."""
    return [_exhibit_json(exhibit, name) for exhibit in exhibits]


def leaf_exhibits(clusters: csr_matrix, label_of: np.ndarray) -> list[Exhibit]:
    """Return a histogram of leaf sizes; `clusters` is pseudo-labels × leaves with one non-zero per row."""
    sizes = np.bincount(clusters.indices, minlength=clusters.shape[1])
    copies = np.bincount(label_of, minlength=1)
    least, most = (int(sizes.min()), int(sizes.max())) if len(sizes) else (0, 0)
    note = f"{len(sizes):,} leaves, the smallest with {least:,} labels, the largest with {most:,}."
    if (several := int((copies > 1).sum())) > 0:
        note += f" {several:,} labels are in several leaves."
    return [histogram("Labels in a leaf", sizes, "labels", "leaves", note)]


def histogram(title: str, values: np.ndarray, axis: str, what: str, note: str = "", bins: int = 40) -> Histogram:
    """Count values in bins of equal width; a few different integers get a bin each."""
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


def _exhibit_json(exhibit: Any, name: str) -> dict[str, Any]:
    if isinstance(exhibit, Table):
        if any(len(row) != len(exhibit.columns) for row in exhibit.rows):
            raise PluginError(f"the table {exhibit.title!r} of {name} has a row that does not fit its columns")
        return {
            **_heading_json("table", exhibit),
            "columns": [_text(column) for column in exhibit.columns],
            "rows": [[_cell_json(cell, name) for cell in row] for row in exhibit.rows[:MOST_ROWS]],
            "of": max(len(exhibit.rows), exhibit.of or 0),
        }
    if isinstance(exhibit, Histogram):
        edges = [int(edge) if isinstance(edge, Integral) else float(edge) for edge in exhibit.edges]
        counts = [int(count) for count in exhibit.counts]
        rising = all(low < high for low, high in itertools.pairwise(edges)) and all(map(math.isfinite, edges))
        if len(edges) != len(counts) + 1 or not 1 <= len(counts) <= MOST_BINS or not rising:
            raise PluginError(
                f"the histogram {exhibit.title!r} of {name} has {len(edges)} edges and {len(counts)} counts, expected "
                f"1 to {MOST_BINS} counts and one more edge than counts, in rising order"
            )
        texts = {"axis": _text(exhibit.axis), "what": _text(exhibit.what)}
        return {**_heading_json("histogram", exhibit), "edges": edges, "counts": counts, **texts}
    if isinstance(exhibit, Outline):
        return {**_heading_json("outline", exhibit), "branches": _branches_json(exhibit.branches, [MOST_BRANCHES])}
    raise PluginError(f"exhibits() of {name} gave a {type(exhibit).__name__}, expected Table, Histogram or Outline")


def _heading_json(kind: str, exhibit: Exhibit) -> dict[str, Any]:
    return {"kind": kind, "title": _text(exhibit.title), "note": str(exhibit.note)[: 3 * LONGEST_TEXT]}


def _branches_json(branches: Sequence[Branch], left: list[int]) -> list[dict[str, Any]]:
    """Return branches as JSON values; `left` holds the number of nodes that may still be stored."""
    values = []
    for branch in branches:
        if left[0] <= 0:
            break
        left[0] -= 1
        values.append(
            {
                "title": _text(branch.title),
                "size": int(branch.size),
                "labels": [int(label) for label in branch.labels[:MOST_LABELS]],
                "branches": _branches_json(branch.branches, left),
                "of": max(len(branch.branches), branch.of or 0),
            }
        )
    return values


def _cell_json(cell: Any, name: str) -> Any:
    if cell is None or isinstance(cell, bool):
        return cell
    if isinstance(cell, str):
        return _text(cell)
    if isinstance(cell, Label):
        return {"label": int(cell.number)}
    if isinstance(cell, Integral):
        return int(cell)
    if isinstance(cell, Real):
        return float(cell) if math.isfinite(cell) else None
    if isinstance(cell, Sequence) and all(isinstance(item, Label) for item in cell):
        return {"labels": [int(item.number) for item in cell[:MOST_LABELS]], "of": len(cell)}
    raise PluginError(f"a table of {name} has a {type(cell).__name__} in a cell, expected a text, a number or a Label")


def _text(text: Any) -> str:
    return shorten(str(text), LONGEST_TEXT)
