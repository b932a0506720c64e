"""Measure what one and two copies of every label cost over a plain tree: Table 5 of Liu et al. (2021).

    python -m benchmarks.overlap.costs [--data DIR] [--only PART] [--minutes M]

A cell is one data set. XR-Linear on a plain tree and on overlapping trees with λ = 1 and λ = 2 take turns with the
same beam, so overlap scores more labels, as in the paper (benchmarks.overlap.speed compares at equal numbers). Times
are processor seconds of one thread, the best turn of each. Each finished cell is stored in
benchmarks/results/overlap_costs.json and is not run again; docs/reproduced.md shows the results.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import paths, study
from benchmarks.overlap import measure as overlap

RESULTS = paths.RESULTS / "overlap_costs.json"
TURNS = 2
SYSTEMS: dict[str, dict[str, Any]] = {
    "XR-Linear": {"use": "tree"},
    "λ = 1": {"use": "overlap", "copies_per_label": 1},
    "λ = 2": {"use": "overlap", "copies_per_label": 2},
}


class Cell(NamedTuple):
    data: str

    @property
    def key(self) -> str:
        return self.data


def cells() -> Iterator[Cell]:
    yield from map(Cell, overlap.SETS)


def main() -> None:
    options = study.parser(__doc__).parse_args()
    if not options.render:
        overlap.warm_up(1)
        study.run_cells(cells(), lambda cell: run_cell(cell, options.data), RESULTS, options, turns=TURNS)


def run_cell(cell: Cell, folder: Path | None) -> dict[str, Any]:
    data = overlap.load(cell.data, "as they are", folder)
    turns = [{system: measure(data, options) for system, options in SYSTEMS.items()} for _ in range(TURNS)]
    return {
        "seconds": {
            system: {what: round(min(turn[system][what] for turn in turns), 4) for what in ("train", "predict")}
            for system in SYSTEMS
        }
    }


def measure(data: overlap.OverlapData, options: dict[str, Any]) -> dict[str, float]:
    """Return the processor seconds of training index and head, and of predicting all test rows."""
    import xmckit

    leaf_size, beam = data.shape
    context = xmckit.make_context(workers=1)
    began = time.process_time()
    index = context.build("indexer", {"leaf_size": leaf_size, "beam": beam, **options}).build(
        data.train, context=context
    )
    head = context.build("head", {"use": "xrlinear", "beam": beam, "threshold": 0.0})
    head.fit(data.train, indexes=[index], context=context)
    trained = time.process_time() - began
    head.predict(data.test.X[:10], overlap.TOP)  # loads the model
    began = time.process_time()
    head.predict(data.test.X, overlap.TOP)
    return {"train": trained, "predict": time.process_time() - began}


if __name__ == "__main__":
    main()
