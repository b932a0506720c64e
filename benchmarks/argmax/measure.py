"""Count the test label sets that heads can output, by width, as tables 2 to 4 of Grivas et al. (2024).

The data differ from those of the paper.

    python -m benchmarks.argmax.measure [--data DIR] [--only TEXT] [--minutes M] [--render]

Every cell trains a BSL or DFT head with benchmarks/heads/recipes/heads.toml, for fewer epochs than
benchmarks.heads.measure, and verifies the different label sets of the test rows, or a sample of them. It verifies them
for the stored matrix, at the paper's tolerance and at radius 1, and for BSL also without the biases, which the paper's
layers do not have. Each finished cell is stored in benchmarks/results/argmax_tables.json and is not run again. The
tables and pictures of docs/argmaxability.md come from that file; --render only writes them. DIR holds the data sets as
npz folders; without it, only the built-in stdlib-calls runs.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "argmax_tables.json"
EPOCHS = {"stdlib-calls": 10, "cve_libraries": 12, "delicious": 6, "debian_depends": 2}
MOST_SETS = {"stdlib-calls": 1000, "cve_libraries": 500, "delicious": 300, "debian_depends": 200}
DIMS = ((8, 32, 128), (16, 64, 200))  # the second half runs after the first half of all data sets
DIMS_OF = {"debian_depends": ((16, 64), (200,))}
EPS, ONE = 1e-8, 1.0
METRICS = ("P@1", "P@5", "F1@5", "micro-F1")


class Cell(NamedTuple):
    """Train and verify one head. d is `dim` of bsl and `slack` of dft."""

    data: str
    head: str
    d: int
    seed: int = 0

    @property
    def key(self) -> str:
        return f"{self.data} / {self.head} {self.d} / seed {self.seed}"

    @property
    def sets(self) -> list[str]:
        """Return the changes to the recipe."""
        width = f"head.dim={self.d}" if self.head == "bsl" else f"head.slack={self.d}"
        changes = [
            f"seed={self.seed}",
            "workers=1",
            f'head.use="{self.head}"',
            width,
            f"head.epochs={EPOCHS[self.data]}",
        ]
        if self.data == "stdlib-calls":
            return [*changes, 'features={use="tfidf"}']
        return [*changes, f'data={{use="files", path="{self.data}"}}']


def cells() -> Iterator[Cell]:
    """Yield the most informative cells first, for a study that is interrupted."""
    for half in (0, 1):
        for data in EPOCHS:
            for d in DIMS_OF.get(data, DIMS)[half]:
                for head in ("bsl", "dft"):
                    yield Cell(data, head, d)


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    options = parser.parse_args()
    if not options.render:
        facts = {"epochs": EPOCHS, "most_sets": MOST_SETS}
        study.run_cells(cells(), lambda cell: run_cell(cell, options.data, options.runs), RESULTS, options, **facts)
    from benchmarks.argmax import page

    page.write(json.loads(RESULTS.read_text("utf-8")))


def run_cell(cell: Cell, data: Path | None, runs: Path) -> dict[str, Any]:
    import xmckit

    result = xmckit.run(paths.HEADS_RECIPE, sets=cell.sets, root=runs, data_roots=[] if data is None else [data])
    (head,) = xmckit.load(result.path).heads
    (facts,) = result.run.head_facts()
    test = result.run.dataset().test.Y
    metrics = result.metrics["results"][0]["metrics"]
    return {
        "metrics": {name: round(metrics[name], 5) for name in METRICS},
        "epochs": facts["facts"]["epochs"],
        "guarantee": facts["facts"].get("guarantee"),
        **verify(head.decision(), test, MOST_SETS[cell.data], cell.seed),
    }


def verify(decision: Any, test: Any, most: int, seed: int) -> dict[str, Any]:
    import numpy as np
    from scipy.sparse import csr_matrix
    from xmckit_argmax.verifier import ArgmaxVerifier

    from xmckit import make_context

    different_sets = {tuple(np.sort(part).tolist()): None for part in np.split(test.indices, test.indptr[1:-1])}
    chosen = [list(labels) for labels in different_sets]
    if len(chosen) > most:
        rows = np.random.default_rng(seed).choice(len(chosen), most, replace=False)
        chosen = [chosen[row] for row in np.sort(rows)]
    starts = np.cumsum([0, *map(len, chosen)])
    labels = np.fromiter((label for labels in chosen for label in labels), np.int32, int(starts[-1]))
    label_sets = csr_matrix((np.ones(len(labels), np.float32), labels, starts), (len(chosen), test.shape[1]))
    context = make_context(workers=1)
    began = time.perf_counter()
    at_eps = ArgmaxVerifier(eps=EPS).verify(decision, label_sets, context=context)
    seconds = time.perf_counter() - began
    within_reach = [row for row, verdict in enumerate(at_eps.verdicts) if verdict.status == "argmaxable"]
    at_one = ArgmaxVerifier(eps=ONE, replay=False).verify(decision, label_sets[within_reach], context=context)
    seconds_at_one = time.perf_counter() - began - seconds
    without_biases = None
    if decision.structure is None:
        bare = replace(decision, b=None, replay=None)
        without_biases = {
            name: count_answers(ArgmaxVerifier(eps=eps).verify(bare, label_sets, context=context), "eps")
            for name, eps in (("eps", EPS), ("one", ONE))
        }
    return {
        "labels": int(decision.W.shape[0]),
        "columns": int(decision.W.shape[1]),
        "of": len(different_sets),
        "asked": len(chosen),
        "exact": at_eps.counts(),
        "ideal": count_answers(at_eps, "ideal"),
        "eps": count_answers(at_eps, "eps"),
        "one": count_answers(at_one, "eps"),
        "proofs": dict(Counter(verdict.proof for verdict in at_eps.verdicts)),
        "replayed": sum(verdict.replayed is True for verdict in at_eps.verdicts),
        "seconds": round(seconds, 2),
        "seconds_at_one": round(seconds_at_one, 2),
        "without_biases": without_biases,
    }


def count_answers(verdicts: Any, name: str) -> dict[str, int]:
    return dict(Counter(str(getattr(verdict, name)) for verdict in verdicts.verdicts))


if __name__ == "__main__":
    main()
