"""A study of many cells that goes on where it was ended: each finished cell is a line of one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MADE_UP = "made up"
AT_HAND = ("stdlib-calls", "planted-bimodal", MADE_UP)


def parser(description: str | None) -> argparse.ArgumentParser:
    """What every study understands."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    found.add_argument(
        "--only", action="append", default=[], metavar="PART", help="run only cells whose key contains this; may repeat"
    )
    found.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after this time")
    found.add_argument("--render", action="store_true", help="only write the page and the pictures anew")
    return found


def run_cells(
    cells: Iterable[Any],
    run: Callable[[Any], dict[str, Any]],
    results: Path,
    options: argparse.Namespace,
    **facts: Any,
) -> None:
    """Run what is not in `results` yet. A cell is a named tuple with `data` and `key`; `facts` are stored beside them.

    Without a folder of data only cells on stdlib-calls, which comes with Python, and on made-up data are run.
    """
    from xmckit.runs.provenance import library_versions, machine

    found: dict[str, Any] = json.loads(results.read_text("utf-8")) if results.exists() else {"cells": {}}
    found |= {"machine": machine(), "versions": library_versions(), **facts}
    began = time.monotonic()
    for cell in cells:
        if cell.key in found["cells"] or not all(part in cell.key for part in options.only):
            continue
        if cell.data not in AT_HAND and options.data is None:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print("the time is over", file=sys.stderr)
            break
        start = time.monotonic()
        found["cells"][cell.key] = {**cell._asdict(), **run(cell)}
        print(f"{cell.key}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        _write(results, found)


def _write(results: Path, found: dict[str, Any]) -> None:
    """One cell a line; the file is never half written."""
    cells = ",\n".join(f"{json.dumps(key)}: {json.dumps(cell)}" for key, cell in found["cells"].items())
    rest = {key: value for key, value in found.items() if key != "cells"}
    part = results.with_suffix(".part")
    part.write_text(f'{{"cells": {{\n{cells}\n}},\n{json.dumps(rest)[1:-1]}}}\n', "utf-8")
    part.replace(results)


def row(values: Iterable[object]) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, values))} |"


def picture(name: str, drawn: list[str], caption: str) -> list[str]:
    """Lines that show a picture, if it was drawn."""
    return ["", f"![{caption}]({name}.svg)"] if name in drawn else []


def replace_table(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Put `lines` between two markers of a page."""
    text = page.read_text("utf-8")
    before, rest = text.split(begin, 1)
    page.write_text(f"{before}{begin}\n{chr(10).join(lines)}\n{end}{rest.split(end, 1)[1]}", "utf-8")
