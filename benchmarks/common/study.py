"""Run a study cell by cell: each finished cell is a line of one JSON file, so that an interrupted study can resume."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from xmckit.runs.provenance import library_versions, machine

GENERATED = "made up"  # the data set of cells that generate their own data, as results store it
BUILT_IN = ("stdlib-calls", "planted-bimodal", GENERATED)  # data sets that need no folder


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every study."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    options.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="run only cells with a key that contains this; may repeat",
    )
    options.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this time")
    options.add_argument("--render", action="store_true", help="only write the page and its pictures again")
    return options


def run_cells(
    cells: Iterable[Any],
    run: Callable[[Any], dict[str, Any]],
    path: Path,
    options: argparse.Namespace,
    **facts: Any,
) -> None:
    """Run the cells that `path` does not contain yet. `facts` are stored beside the cells.

    A cell is a named tuple with `data` and `key`. Without a folder of data, only cells on built-in or generated data
    run.
    """
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"cells": {}}
    results |= {"machine": machine(), "versions": library_versions(), **facts}
    began = time.monotonic()
    for cell in cells:
        if cell.key in results["cells"] or not all(part in cell.key for part in options.only):
            continue
        if cell.data not in BUILT_IN and options.data is None:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            print("the time is over", file=sys.stderr)
            break
        start = time.monotonic()
        results["cells"][cell.key] = {**cell._asdict(), **run(cell)}
        print(f"{cell.key}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        write_cells(path, results)


def write_cells(path: Path, results: dict[str, Any]) -> None:
    """Write one cell per line. The file is replaced as a whole, so that it is never incomplete."""
    cells = ",\n".join(f"{json.dumps(key)}: {json.dumps(cell)}" for key, cell in results["cells"].items())
    rest = {key: value for key, value in results.items() if key != "cells"}
    part = path.with_suffix(".part")
    part.write_text(f'{{"cells": {{\n{cells}\n}},\n{json.dumps(rest)[1:-1]}}}\n', "utf-8")
    part.replace(path)


def write_results(path: Path, results: dict[str, Any]) -> None:
    """Write results that have no cells, with the machine and the versions of the libraries."""
    results = results | {"machine": machine(), "versions": library_versions()}
    path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
