"""Select cells of results and write them as Markdown tables and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = list[dict[str, Any]]


def select(cells: Cells, **values: Any) -> Cells:
    """Return the cells with these values."""
    return [cell for cell in cells if all(cell[name] == value for name, value in values.items())]


def unique(values: Iterable[Any]) -> list[Any]:
    """Return the different values in the order of their first occurrence."""
    return list(dict.fromkeys(values))


def row(values: Iterable[object]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(map(str, values))} |"


def header(names: Iterable[object]) -> Iterator[str]:
    """Yield the first two lines of a table."""
    columns = list(names)
    yield row(columns)
    yield row(["---"] * len(columns))


def spread(values: Iterable[float], digits: int) -> str:
    """Return the mean and, for several values, the standard deviation."""
    array = np.array(list(values))
    mean = f"{array.mean():.{digits}f}"
    return mean if len(array) < 2 else f"{mean} ± {array.std(ddof=1):.{digits}f}"


def versions_text(versions: dict[str, str], libraries: Iterable[str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in libraries if name in versions)


def picture(name: str, drawn: Iterable[str], caption: str) -> list[str]:
    """Return the lines that show a picture, if it was drawn."""
    return ["", f"![{caption}]({name}.svg)"] if name in drawn else []


def save_figure(figure: Figure, axes: Iterable[Axes], name: str) -> None:
    """Save a figure of the documentation, without frames and with a light grid."""
    from matplotlib import rc_context

    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    with rc_context({"svg.hashsalt": "xmckit"}):  # the same numbers give the same bytes
        figure.savefig(paths.DOCS / f"{name}.svg", metadata={"Date": None})


def write_page(name: str, lines: Iterable[str]) -> None:
    """Write a page of the documentation."""
    page = paths.DOCS / name
    page.write_text("\n".join(lines).rstrip() + "\n", "utf-8")
    print(f"wrote {page}")


def replace_table(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Replace the lines between two markers of a page."""
    text = page.read_text("utf-8")
    before, rest = text.split(begin, 1)
    page.write_text(f"{before}{begin}\n{chr(10).join(lines)}\n{end}{rest.split(end, 1)[1]}", "utf-8")
