"""Build exhibits of the papers: count claims and format tables from the cells of studies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.markdown import Cells, header, row

Results = dict[str, dict[str, Any]]
Published = dict[str, dict[str, Any]]

NO_BREAK = "\u00a0"
PRECISIONS = ("P@1", "P@3", "P@5")


class Claim(NamedTuple):
    """Count a claim: `right` of `total` comparisons here, and (right, total) in the paper if it has numbers."""

    text: str
    right: int
    total: int
    published: tuple[int, int] | None = None


class Exhibit(NamedTuple):
    """Hold what a section of the page shows."""

    table: list[str]
    claims: list[Claim]
    cells: list[Any]  # all cells of the studies behind it; some may not have run
    pictures: Sequence[tuple[str, str]] = ()
    note: str = ""


def count_claim(text: str, here: Iterable[bool], published: Iterable[bool] | None = None) -> Claim:
    ours = list(here)
    theirs = None if published is None else list(published)
    return Claim(text, sum(ours), len(ours), None if theirs is None else (sum(theirs), len(theirs)))


def cells_of(results: Results, name: str) -> Cells:
    cells = results.get(name, {}).get("cells", {})
    return list(cells.values() if isinstance(cells, dict) else cells)


def mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return float(np.mean(numbers)) if numbers else None


def number_text(value: float | None, digits: int = 1) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def join_numbers(values: Iterable[float | None], digits: int = 1) -> str:
    """Return several numbers for one cell of a table, or – if all are missing."""
    texts = [number_text(value, digits) for value in values]
    return "–" if set(texts) == {"–"} else f"{NO_BREAK}/{NO_BREAK}".join(texts)


def above(pairs: Iterable[tuple[float | None, float | None]]) -> list[bool]:
    """Return whether the first number is larger, for each pair that has both."""
    return [
        one > other
        for one, other in pairs
        if one is not None and other is not None and not math.isnan(one) and not math.isnan(other)
    ]


def steps(values: Iterable[float | None]) -> list[tuple[float | None, float | None]]:
    """Return the pairs (value, value before it)."""
    numbers = list(values)
    return list(zip(numbers[1:], numbers[:-1], strict=True))


def table(head: Iterable[object], lines: Iterable[Iterable[object]]) -> list[str]:
    return [*header(head), *map(row, lines)]


def value_of(entry: dict[str, Any], line: str, name: str) -> float:
    return float(entry["rows"][line][entry["columns"].index(name)])


class Part(NamedTuple):
    """Name a cell of a study with other keys."""

    data: str
    key: str


def difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other
