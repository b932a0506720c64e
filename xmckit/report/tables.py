"""Tables of a page: what a cell shows, and by what its column is sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xmckit.report.texts import number, percent, short

FILTER_FROM = 10  # rows from which a table has a field to filter them


@dataclass(frozen=True)
class Cell:
    """`text` is what is shown, `value` what is sorted by; `names` are other people's words, each set apart."""

    text: str = ""
    value: float | str | None = None
    style: str = ""
    names: Sequence[str] = ()
    more: int = 0
    hint: str = ""

    @property
    def key(self) -> str | None:
        """What the page's script sorts by; None where that is the text itself."""
        return None if self.value is None else str(self.value)


@dataclass(frozen=True)
class Column:
    """A heading. `numeric` columns stand to the right and are sorted as numbers, the largest first."""

    title: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Table:
    """Rows to be sorted and, from some number on, filtered, unless they are `fixed`. `families` are headings over
    several columns.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    of: int | None = None
    note: str = ""
    families: Sequence[tuple[str, int]] = ()
    fixed: bool = False

    @property
    def filtered(self) -> bool:
        return len(self.rows) >= FILTER_FROM and not self.fixed

    @property
    def left_out(self) -> int:
        return max(0, (self.of or 0) - len(self.rows))


def texts(*names: str) -> Cell:
    """Other people's words, which may run from right to left."""
    return Cell(names=[short(name) for name in names])


def count(value: float | None) -> Cell:
    return Cell(number(value), value)


def share(value: float | None, style: str = "", hint: str = "") -> Cell:
    """A share as a percentage."""
    return Cell(percent(value), value, style, hint=hint)


def figure(value: Any, text: str) -> Cell:
    """A number that is written in its own way."""
    return Cell(text, value)


FIRST_FAMILIES = ("P", "nDCG", "PSP", "PSnDCG")


def metric_tables(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Table]:
    """Metrics by family in two tables that fit a page; `names` are what the results are called."""
    families: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metric for result in results for metric in result["metrics"]):
        families.setdefault(metric.partition("@")[0], []).append(metric)
    first = {family: families.pop(family) for family in FIRST_FAMILIES if family in families}
    return [_metric_table(part, results, names) for part in (first, families) if part]


def _metric_table(
    families: Mapping[str, Sequence[str]], results: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> Table:
    metrics = [metric for group in families.values() for metric in group]
    best = {
        metric: max((result["metrics"][metric] for result in results if metric in result["metrics"]), default=None)
        for metric in metrics
    }
    rows = []
    for result, name in zip(results, names, strict=True):
        values = [result["metrics"].get(metric) for metric in metrics]
        cells = [
            share(value, "best" if len(results) > 1 and value is not None and value == best[metric] else "")
            for metric, value in zip(metrics, values, strict=True)
        ]
        rows.append([texts(name), *cells])
    columns = [Column(f"@{at}" if (at := metric.partition("@")[2]) else metric, True, metric) for metric in metrics]
    return Table(
        "",
        [Column("system"), *columns],
        rows,
        families=[("", 1), *((name if "@" in of[0] else "", len(of)) for name, of in families.items())],
    )
