"""Print results as tables on the terminal. rich is imported at the first table, so that `--help` is fast."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xmckit.errors import counted, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from xmckit.report.tables import ReportTable

GAP = 2  # spaces between two columns
_PERCENT = re.compile(r"(P|nDCG|R|F1|PSP|PSnDCG|coverage)@\d+|micro-F1|macro-F1")


def sizes_title(facts: Mapping[str, Any]) -> str:
    """Return the name of a data set with its numbers of test rows and labels."""
    return f"{facts['dataset']}: {counted(facts['rows'], 'test row')}, {counted(facts['labels'], 'label')}"


def metric_text(name: str, value: float | None) -> str:
    """Format a share as a percentage with one decimal, and any other value with four digits."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if _PERCENT.fullmatch(name) else f"{value:.4g}"


def headline(metrics: Sequence[str], ks: Sequence[int]) -> list[str]:
    """Return the metrics that the terminal shows; report.html and metrics.json have all."""
    last = max(ks)
    wanted = [
        *(f"P@{k}" for k in ks),
        f"nDCG@{last}",
        f"R@{last}",
        *(f"PSP@{k}" for k in ks),
        f"coverage@{last}",
        "micro-F1",
    ]
    standard = [name for name in wanted if name in metrics]
    return standard + [name for name in metrics if not _PERCENT.fullmatch(name)]


def print_table(rows: Sequence[Sequence[str]], columns: Sequence[str], *, left: int = 1, title: str = "") -> None:
    """Print rows with the first `left` columns left-aligned and the others, numbers, right-aligned.

    If the columns are too many for the terminal, the rest follows as further tables; numbers are never cut.
    """
    from rich.text import Text

    console = _new_console()
    needed = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    blocks = _side_by_side(needed, left, console.width)
    # Do not break the first column into lines if possible: users copy its names.
    whole = needed[0] <= console.width // 2
    if title:
        console.print(Text(printable(title), style="bold"))
    for block in blocks:
        console.width = max(console.width, sum(needed[position] + GAP for position in block[left:]) + 12 * left)
        cells = [[row[position] for position in block] for row in rows]
        console.print(_table(cells, [columns[position] for position in block], left, whole))


def print_report_table(table: ReportTable, title: str = "") -> None:
    """Print a table of a report; its columns before the first number are left-aligned."""
    left = next((at for at, column in enumerate(table.columns) if column.numeric), len(table.columns))
    print_table(table.texts, [column.title for column in table.columns], left=left, title=title)


def _new_console() -> Console:
    from rich.console import Console

    class TableConsole(Console):
        def on_broken_pipe(self) -> None:
            """Let the program handle a reader that went away."""
            raise BrokenPipeError

    console = TableConsole(highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def _side_by_side(needed: Sequence[int], left: int, width: int) -> list[list[int]]:
    """Return the columns of each table: the first `left`, and as many others as fit into `width`."""
    head = list(range(left))
    room = width - sum(needed[:left])
    blocks, used = [list(head)], 0
    for position in range(left, len(needed)):
        if used + GAP + needed[position] > room and len(blocks[-1]) > left:
            blocks.append(list(head))
            used = 0
        blocks[-1].append(position)
        used += GAP + needed[position]
    return blocks


def _table(rows: Sequence[Sequence[str]], columns: Sequence[str], left: int, whole: bool) -> Table:
    """Return one table; `whole` keeps the first column from being broken into lines."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        keep = position >= left or (position == 0 and whole)
        table.add_column(column, justify="left" if position < left else "right", no_wrap=keep, overflow="fold")
    for row in rows:
        # Text, not markup: a cell may hold brackets.
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def print_metrics(metrics: Mapping[str, Any]) -> None:
    """Print the results of one run."""
    from xmckit.report.tables import system_name

    columns = headline(list(metrics["results"][0]["metrics"]), metrics["k"])
    rows = [
        [system_name(result, metrics), *(metric_text(name, result["metrics"].get(name)) for name in columns)]
        for result in metrics["results"]
    ]
    print_table(rows, ["", *columns], title=sizes_title(metrics))
    print(f"Percentages. Propensities with A = {metrics['propensity']['A']}, B = {metrics['propensity']['B']}.")
