"""Tables 2 to 4 of Grivas et al. (2024) on other data: how many test label sets trained heads can output, by width.

    python -m benchmarks.argmax.measure [--data DIR] [--only TEXT] [--minutes M] [--render]

Every cell trains a BSL or DFT head by benchmarks/heads/recipes/heads.toml, for fewer epochs than
benchmarks/heads/measure.py, and verifies the different label sets of the test rows (a sample of them where there are
many): for the stored matrix, at
the paper's tolerance and at radius 1, and for BSL the same without its biases, which the paper's layers do not have.
What a cell gave goes to benchmarks/results/argmax_tables.json at once, and cells that are there are not run again.
The tables and pictures of docs/argmaxability.md are made from that file (--render does only this). DIR holds the data
sets as npz folders; without it only the built-in stdlib-calls is run.
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
DIMS = ((8, 32, 128), (16, 64, 200))  # the second half once the first is done for all data
DIMS_OF = {"debian_depends": ((16, 64), (200,))}
EPS, ONE = 1e-8, 1.0
METRICS = ("P@1", "P@5", "F1@5", "micro-F1")


class Cell(NamedTuple):
    """One head, trained and verified; d is `dim` of bsl and `slack` of dft."""

    data: str
    head: str
    d: int
    seed: int = 0

    @property
    def key(self) -> str:
        return f"{self.data} / {self.head} {self.d} / seed {self.seed}"

    @property
    def sets(self) -> list[str]:
        """What it changes in the recipe."""
        width = f"head.dim={self.d}" if self.head == "bsl" else f"head.slack={self.d}"
        found = [f"seed={self.seed}", "workers=1", f'head.use="{self.head}"', width, f"head.epochs={EPOCHS[self.data]}"]
        if self.data == "stdlib-calls":
            return [*found, 'features={use="tfidf"}']
        return [*found, f'data={{use="files", path="{self.data}"}}']


def cells() -> Iterator[Cell]:
    """In the order in which a study that is cut short says most."""
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
    from xmckit import store
    from xmckit.data.saved import load_dataset

    result = xmckit.run(paths.HEADS_RECIPE, sets=cell.sets, root=runs, data_roots=[] if data is None else [data])
    (head,) = xmckit.load(result.path).heads
    (facts,) = store.read_json(result.path / "facts.json")
    test = load_dataset(result.run.stage_folder("data")).test.Y
    metrics = result.metrics["results"][0]["metrics"]
    return {
        "metrics": {name: round(metrics[name], 5) for name in METRICS},
        "epochs": facts["facts"]["epochs"],
        "guarantee": facts["facts"].get("guarantee"),
        **verified(head.decision(), test, MOST_SETS[cell.data], cell.seed),
    }


def verified(decision: Any, test: Any, most: int, seed: int) -> dict[str, Any]:
    import numpy as np
    from scipy.sparse import csr_matrix
    from xmckit_argmax.verifier import ArgmaxVerifier

    from xmckit import make_context

    different = {tuple(np.sort(part).tolist()): None for part in np.split(test.indices, test.indptr[1:-1])}
    chosen = [list(labels) for labels in different]
    if len(chosen) > most:
        rows = np.random.default_rng(seed).choice(len(chosen), most, replace=False)
        chosen = [chosen[row] for row in np.sort(rows)]
    starts = np.cumsum([0, *map(len, chosen)])
    labels = np.fromiter((label for labels in chosen for label in labels), np.int32, int(starts[-1]))
    asked = csr_matrix((np.ones(len(labels), np.float32), labels, starts), (len(chosen), test.shape[1]))
    context = make_context(workers=1)
    began = time.perf_counter()
    at_eps = ArgmaxVerifier(eps=EPS).verify(decision, asked, context=context)
    seconds = time.perf_counter() - began
    within_reach = [row for row, verdict in enumerate(at_eps.verdicts) if verdict.status == "argmaxable"]
    at_one = ArgmaxVerifier(eps=ONE, replay=False).verify(decision, asked[within_reach], context=context)
    seconds_at_one = time.perf_counter() - began - seconds
    without_biases = None
    if decision.structure is None:
        bare = replace(decision, b=None, replay=None)
        without_biases = {
            name: answers(ArgmaxVerifier(eps=eps).verify(bare, asked, context=context), "eps")
            for name, eps in (("eps", EPS), ("one", ONE))
        }
    return {
        "labels": int(decision.W.shape[0]),
        "columns": int(decision.W.shape[1]),
        "of": len(different),
        "asked": len(chosen),
        "exact": at_eps.counts(),
        "ideal": answers(at_eps, "ideal"),
        "eps": answers(at_eps, "eps"),
        "one": answers(at_one, "eps"),
        "proofs": dict(Counter(verdict.proof for verdict in at_eps.verdicts)),
        "replayed": sum(verdict.replayed is True for verdict in at_eps.verdicts),
        "seconds": round(seconds, 2),
        "seconds_at_one": round(seconds_at_one, 2),
        "without_biases": without_biases,
    }


def answers(verdicts: Any, name: str) -> dict[str, int]:
    return dict(Counter(str(getattr(verdict, name)) for verdict in verdicts.verdicts))


if __name__ == "__main__":
    main()
