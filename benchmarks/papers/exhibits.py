"""What the exhibits of the papers are made of (see papers.py): cells of studies, claims that are counted, tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.study import row

Cells = list[dict[str, Any]]
Results = dict[str, dict[str, Any]]
Published = dict[str, dict[str, Any]]

NO_BREAK = "\u00a0"
PRECISIONS = ("P@1", "P@3", "P@5")


class Claim(NamedTuple):
    """Something a paper says: `right` of the `of` comparisons here, and of those in the paper where it has numbers."""

    text: str
    right: int
    of: int
    published: tuple[int, int] | None = None


class Shown(NamedTuple):
    table: list[str]
    claims: list[Claim]
    asked: list[Any]  # the cells that belong to it, of which some may not be there
    pictures: Sequence[tuple[str, str]] = ()
    note: str = ""


def claim(text: str, here: Iterable[bool], published: Iterable[bool] | None = None) -> Claim:
    found = list(here)
    theirs = None if published is None else list(published)
    return Claim(text, sum(found), len(found), None if theirs is None else (sum(theirs), len(theirs)))


def cells_of(results: Results, name: str) -> Cells:
    found = results.get(name, {}).get("cells", {})
    return list(found.values() if isinstance(found, dict) else found)


def of(cells: Cells, **wanted: Any) -> Cells:
    return [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.mean(found)) if found else None


def text(value: float | None, digits: int = 1) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def joined(values: Iterable[float | None], digits: int = 1) -> str:
    """Several numbers in one cell of a table; – where there is none at all."""
    found = [text(value, digits) for value in values]
    return "–" if set(found) == {"–"} else f"{NO_BREAK}/{NO_BREAK}".join(found)


def above(pairs: Iterable[tuple[float | None, float | None]]) -> list[bool]:
    """Of the pairs that have both numbers, whether the first is larger."""
    return [
        one > other
        for one, other in pairs
        if one is not None and other is not None and not math.isnan(one) and not math.isnan(other)
    ]


def steps(values: Iterable[float | None]) -> list[tuple[float | None, float | None]]:
    found = list(values)
    return list(zip(found[1:], found[:-1], strict=True))


def table(head: Iterable[object], lines: Iterable[Iterable[object]]) -> list[str]:
    first = list(head)
    return [row(first), row(["---"] * len(first)), *(row(line) for line in lines)]


def column(entry: dict[str, Any], line: str, name: str) -> float:
    return float(entry["rows"][line][entry["columns"].index(name)])


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


class Part(NamedTuple):
    """A cell of a study whose keys say more."""

    data: str
    key: str


def minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
