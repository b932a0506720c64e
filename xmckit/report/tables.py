"""Tables of pages, of the terminal and of Markdown: the text of each cell, and the value by which it is sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xmckit.errors import shorten
from xmckit.report.texts import LONGEST_NAME, MIB, number

FILTER_FROM = 10  # rows from which a table has a field to filter them
FIRST_FAMILIES = ("P", "nDCG", "PSP", "PSnDCG")
# Styles of the best value of a column, and of values that do not differ significantly from it; the marks stand for
# them where a table is plain text.
BEST, SAME = "best equal", "equal"
MARKS = {BEST: "*", SAME: "="}


@dataclass(frozen=True)
class Cell:
    """A cell shows `text`, or `names`, which are foreign texts; its column is sorted by `value`, or by the text."""

    text: str = ""
    value: float | str | None = None
    style: str = ""
    names: Sequence[str] = ()
    more: int = 0
    hint: str = ""
    numeric: bool = False

    @property
    def key(self) -> str | None:
        """Return the sort key for the page's script; None if it is the text itself."""
        return None if self.value is None else str(self.value)

    @property
    def plain(self) -> str:
        """Return the cell as plain text, with the mark of its style."""
        return (", ".join(self.names) or self.text) + MARKS.get(self.style, "")


@dataclass(frozen=True)
class Column:
    """A heading. `numeric` columns are right-aligned and sorted as numbers, the largest first."""

    title: str
    numeric: bool = False
    hint: str = ""


@dataclass(frozen=True)
class ReportTable:
    """A table that the reader can sort, and filter if it is long, unless it is `fixed`.

    `families` are headings over several columns. `of` is the number of rows before the table was cut.
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

    @property
    def texts(self) -> list[list[str]]:
        """Return the rows as plain text."""
        return [[cell.plain for cell in row] for row in self.rows]

    def without(self, *titles: str) -> ReportTable:
        """Return the table without the columns that have these titles."""
        kept = [position for position, column in enumerate(self.columns) if column.title not in titles]
        rows = [[row[position] for position in kept] for row in self.rows]
        return replace(self, columns=[self.columns[position] for position in kept], rows=rows)


def make_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[Cell]], title: str = "", **more: Any
) -> ReportTable:
    """Make a table; a column that is only a title is numeric if all its cells are."""
    headings = [
        Column(column, all(row[position].numeric for row in rows)) if isinstance(column, str) else column
        for position, column in enumerate(columns)
    ]
    return ReportTable(title, headings, rows, **more)


def name_cell(name: str) -> Cell:
    """Show a foreign text, which may run from right to left."""
    return Cell(names=[shorten(name, LONGEST_NAME)])


def count_cell(value: float | None) -> Cell:
    return Cell(number(value), value, numeric=True)


def number_cell(value: float | None, spec: str, scale: float = 1) -> Cell:
    """Show `scale` × the value in this format."""
    return Cell("–" if value is None else f"{scale * value:{spec}}", value, numeric=True)


def share_cell(value: float | None) -> Cell:
    """Show a share as a percentage."""
    return number_cell(value, ".2f", 100)


COST_COLUMNS = ("seconds", "CPU seconds", "peak MiB")


def cost_cells(cost: Any, seconds: str) -> list[Cell]:
    """Show what a stage or a system cost, with its seconds in this format."""
    return [
        number_cell(cost.seconds, seconds),
        number_cell(cost.cpu_seconds, seconds),
        number_cell(cost.peak_bytes, ",.0f", 1 / MIB),
        number_cell(cost.bytes, ",.1f", 1 / MIB),
    ]


def pair_table(title: str, first: str, second: str, values: Mapping[str, Any]) -> ReportTable:
    """Show names and values in two columns."""
    rows = [[name_cell(name), Cell(str(value))] for name, value in values.items()]
    return make_table([first, second], rows, title)


def system_name(result: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return the name of a result with its role, or with the rule by which an ensemble combines heads."""
    role = {"head": "", "ensemble": metrics.get("ensemble", "ensemble")}.get(result["role"], result["role"])
    return f"{result['name']} ({role})" if role else str(result["name"])


def metric_tables(
    results: Sequence[Mapping[str, Any]], names: Sequence[str], mark: Callable[[Cell, int, str], Cell] | None = None
) -> list[ReportTable]:
    """Show the metrics of the results, which are called `names`, in two tables that fit a page.

    `mark` may change the style of a cell; it also gets the number of the result and the name of the metric.
    """
    families: dict[str, list[str]] = {}
    for metric in dict.fromkeys(metric for result in results for metric in result["metrics"]):
        families.setdefault(metric.partition("@")[0], []).append(metric)
    first = {family: families.pop(family) for family in FIRST_FAMILIES if family in families}
    tables = []
    for part in filter(None, (first, families)):
        metrics = [metric for family in part.values() for metric in family]
        rows = [[name_cell(name)] for name in names]
        for metric in metrics:
            values = [result["metrics"].get(metric) for result in results]
            best = max((value for value in values if value is not None), default=None)
            for position, value in enumerate(values):
                is_best = len(results) > 1 and value is not None and value == best
                cell = replace(share_cell(value), style="best" if is_best else "")
                rows[position].append(mark(cell, position, metric) if mark else cell)
        columns = [Column(f"@{at}" if (at := metric.partition("@")[2]) else metric, True, metric) for metric in metrics]
        headings = [(name if "@" in family[0] else "", len(family)) for name, family in part.items()]
        tables.append(make_table(["system", *columns], rows, families=[("", 1), *headings]))
    return tables
