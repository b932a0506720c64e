"""Measure how exactly indexer `overlap` must train the matcher that only decides where labels move.

    python -m benchmarks.overlap.tolerance [--data DIR] [--only PART] [--minutes M]

A cell is one data set, number of copies per label, tolerance of PECOS's solver and seed. A fifth of the training rows
is held out and scored; test rows are not used. (The weights of words come from all training rows.) Each finished cell
is stored in benchmarks/results/overlap_tolerance.json and is not run again, and the next `python -m
benchmarks.overlap.measure --render` shows the results in docs/overlap.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.common import paths, study
from benchmarks.overlap import measure as overlap

RESULTS = paths.RESULTS / "overlap_tolerance.json"
TOLERANCES = (0.1, 0.5, 1.0)
SHARE = 0.2


class Cell(NamedTuple):
    data: str
    copies: int | Literal["auto"]
    tolerance: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data} / copies {self.copies} / tolerance {self.tolerance} / seed {self.seed}"


def cells() -> Iterator[Cell]:
    copies: tuple[int | Literal["auto"], ...] = ("auto", 2)
    for data in overlap.SETS:
        yield from (
            Cell(data, count, tolerance, seed) for seed in overlap.SEEDS for count in copies for tolerance in TOLERANCES
        )


def run_cell(cell: Cell, folder: Path | None, workers: int) -> dict[str, Any]:
    import xmckit
    from xmckit.data.model import carve_validation

    data = overlap.load(cell.data, "as they are", folder)
    train, held_out = carve_validation(data.train, SHARE, np.random.default_rng(cell.seed))
    data = data._replace(train=train, test=held_out)
    leaf_size, beam = data.shape
    context = xmckit.make_context(seed=cell.seed, workers=workers)
    options = {"use": "overlap", "leaf_size": leaf_size, "beam": beam, "copies_per_label": cell.copies}
    with patch("xmckit_pecos.overlap.ROUGH", cell.tolerance):
        began = time.process_time()
        index = context.build("indexer", options).build(train, context=context)
        seconds = time.process_time() - began
    head = context.build("head", {"use": "xrlinear", "beam": beam, "threshold": 0.0})
    head.fit(train, indexes=[index], context=context)
    return {**overlap.scores(head.predict(held_out.X, overlap.TOP), data, workers), "index_cpu": round(seconds, 3)}


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="threads")
    options = parser.parse_args()
    if not options.render:
        overlap.warm_up(options.workers)
        study.run_cells(cells(), lambda cell: run_cell(cell, options.data, options.workers), RESULTS, options)


if __name__ == "__main__":
    main()
