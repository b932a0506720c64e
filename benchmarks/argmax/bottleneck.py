"""Compute figures 2 and 5 of Grivas et al. (2024): how many label sets a layer can output, and DFT's smallest regions.

    python -m benchmarks.argmax.bottleneck [--only PART] [--minutes M]

Figure 2 is Cover's formula at the paper's n. A cell of figure 5 is a DFT matrix of n labels and degree k, plain or with
16 random columns, and random label sets of k labels. The matrix can output each of these sets by construction. The
verifier bounds the radius of the paper's linear programme (the largest ball in the region within the box) from both
sides, with proofs. The paper does not state the scale of the random columns; here their length is about 1, the length
of the fixed columns. Each finished cell is stored in benchmarks/results/bottleneck.json and is not run again;
docs/reproduced.md shows the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "bottleneck.json"
SHARE_LABELS, SHARE_DIMS = 1000, (50, 100, 200, 300, 400, 450, 500, 550, 600, 700, 800, 900, 1000)
DEGREES, LABELS, SLACKS = (1, 2, 3, 4), (16, 64, 256, 1024, 4096), (0, 16)
SETS, LOWEST = 200, 0.01


class Cell(NamedTuple):
    """Figure 2 at dimension `k`, or figure 5 at degree `k`."""

    figure: str
    labels: int
    k: int
    slack: int = 0
    data: str = study.GENERATED

    @property
    def key(self) -> str:
        return f"{self.figure} / {self.labels} labels / {self.k} / slack {self.slack}"


def cells() -> Iterator[Cell]:
    for dim in SHARE_DIMS:
        yield Cell("figure 2", SHARE_LABELS, dim)
    for labels in LABELS:
        for degree in DEGREES:
            for slack in SLACKS:
                yield Cell("figure 5", labels, degree, slack)


def main() -> None:
    options = study.parser(__doc__).parse_args()
    if not options.render:
        study.run_cells(cells(), run_cell, RESULTS, options)


def run_cell(cell: Cell) -> dict[str, Any]:
    if cell.figure == "figure 2":
        from xmckit_argmax.paper.counting import share_of_all

        return {"log10_share": float(f"{share_of_all(cell.labels, cell.k):.6g}")}
    return radii(cell)


def radii(cell: Cell) -> dict[str, Any]:
    """Bound the radii of random sets of k labels, and count the sets that are argmaxable at eps."""
    import numpy as np
    from scipy.sparse import csr_matrix
    from xmckit_argmax.verifier import ArgmaxVerifier
    from xmckit_heads.dft.fourier import Grid, matrix

    from xmckit import LinearDecision, make_context

    rng = np.random.default_rng([cell.labels, cell.k])
    active = np.concatenate([rng.choice(cell.labels, cell.k, replace=False) for _ in range(SETS)])
    starts = np.arange(0, len(active) + 1, cell.k)
    label_sets = csr_matrix((np.ones(len(active), np.float32), active, starts), (SETS, cell.labels))
    columns = [matrix(Grid(cell.labels, cell.k, "columns")).numpy()]
    columns.append(rng.standard_normal((cell.labels, cell.slack)) / math.sqrt(cell.labels))
    decision = LinearDecision(np.hstack(columns), None, "sign", None)
    verifier = ArgmaxVerifier(margin="largest", replay=False)
    verdicts = verifier.verify(decision, label_sets, context=make_context(workers=1)).verdicts
    bounds = np.array([(0.0, 0.0) if verdict.radius is None else verdict.radius for verdict in verdicts])
    return {
        "sets": SETS,
        "lowest": [float(f"{bound:.4g}") for bound in np.quantile(bounds, LOWEST, axis=0)],
        "median": [float(f"{bound:.4g}") for bound in np.median(bounds, axis=0)],
        "at_eps": sum(verdict.eps == "argmaxable" for verdict in verdicts),
        "proved": sum(verdict.status == "argmaxable" for verdict in verdicts),
    }


if __name__ == "__main__":
    main()
