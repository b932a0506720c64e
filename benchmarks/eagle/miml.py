"""Compare Deep-MIML and co-attention on bags of images, as Table 3 and figures 5 and 10 of Shen et al. (2020).

    python -m benchmarks.eagle.miml [--data DIR] [--only WHAT] [--minutes M] [--json] [--render]

DIR holds mnist/mnist.npz and fashion_mnist/fashion_mnist.npz (X_trn, y_trn, X_tst, y_tst); without them,
scikit-learn's digits are used. A cell is one fit: a data set, a bag size, a method, a loss, a rate, a τ and a seed.
Deep-MIML chooses the loss (and the learning rate, if RATES has several) for all methods, as the paper does with the
learning rate. Each method with several values of τ chooses its own. Choices are made by the accuracy on validation
rows with seed 0. Each finished cell is stored in benchmarks/results/eagle_miml.json and is not run again. docs/miml.md
and its pictures come from that file and from eagle_simulation.json; --render only writes them.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.common import paths, study
from xmckit.runs.provenance import library_versions, machine

RESULTS = paths.RESULTS / "eagle_miml.json"
SEEDS = (0, 1, 2)
SIZES = (4, 50)
PICTURED = "fashion_mnist"
RATES, LOSSES = (0.003,), ("softmax", "bce")
# rows used of the training set, and the share of them that becomes validation rows
ROWS, VALIDATION = 8_000, 0.1
# method → (fixed parameters, name of the parameter to choose, its candidates)
PAPER = {"background": False, "direct": 0.0}
METHODS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    "Deep-MIML": (PAPER, "tau", (0.0,)),
    "EAGLE-0": ({"iterations": 0, **PAPER}, "tau", (0.3, 1.0)),
    "EAGLE": ({"iterations": 20, **PAPER}, "tau", (0.3, 1.0)),
    "EAGLE, embeddings trained": ({"iterations": 20, "embeddings": "trained", **PAPER}, "tau", (1.0,)),
    "likeness added": ({"iterations": 0, "tau": 0.0}, "direct", (1.0, 10.0)),
    "likeness and attention": ({"tau": 0.3}, "direct", (1.0,)),
}
COMMON: dict[str, Any] = {"epochs": 50, "patience": 4, "batch": 32, "dim": 128}
COMMON |= {"encoder": {"use": "sparse-linear", "width": 128}}


class Images(NamedTuple):
    """Hold pixels (from 0 to 1, minus the mean training image) and classes."""

    train: np.ndarray
    train_class: np.ndarray
    test: np.ndarray
    test_class: np.ndarray
    side: int


class BagProblem(NamedTuple):
    """Hold training rows in bags, and validation and test rows with their own labels."""

    train: Any
    validation: Any
    test: Any


class Cell(NamedTuple):
    """Describe one fit. `value` is the value of the parameter that the method chooses, τ for most."""

    data: str
    size: int
    method: str
    loss: str
    rate: float
    value: float
    seed: int

    @property
    def key(self) -> str:
        return " / ".join(map(str, self))

    @property
    def params(self) -> dict[str, Any]:
        fixed, name, _ = METHODS[self.method]
        return {**COMMON, **fixed, name: self.value, "loss": self.loss, "learning_rate": self.rate}


@lru_cache(maxsize=1)
def images(name: str, folder: Path | None) -> Images:
    if name == "digits":
        from sklearn.datasets import load_digits

        pixels, classes = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(pixels))
        pixels, classes = pixels[order] / 16, classes[order]
        parts = pixels[:1400], classes[:1400], pixels[1400:], classes[1400:]
    else:
        assert folder is not None
        with np.load(folder / name / f"{name}.npz") as stored:
            X_trn, y_trn, X_tst, y_tst = (stored[key] for key in ("X_trn", "y_trn", "X_tst", "y_tst"))
        order = np.random.default_rng(0).permutation(len(X_trn))[:ROWS]
        parts = X_trn[order] / 255, y_trn[order], X_tst / 255, y_tst
    train, test = (np.asarray(part, dtype=np.float32).reshape(len(part), -1) for part in (parts[0], parts[2]))
    mean = train.mean(axis=0)
    return Images(train - mean, parts[1], test - mean, parts[3], round(train.shape[1] ** 0.5))


def problem(pictures: Images, size: int, seed: int) -> BagProblem:
    """Draw random bags of training rows with the merged lists of their labels."""
    from xmckit import Groups, Split
    from xmckit.data.model import as_csr

    def split(X: np.ndarray, classes: np.ndarray) -> Split:
        return Split(X, csr_matrix(np.eye(10, dtype=np.float32)[classes]))

    held = round(VALIDATION * len(pictures.train))
    order = np.random.default_rng([seed, size]).permutation(len(pictures.train))
    train, validation = (
        split(pictures.train[rows], pictures.train_class[rows]) for rows in (order[held:], order[:held])
    )
    bag = np.arange(train.rows) // size
    membership = csr_matrix((np.ones(train.rows, dtype=np.float32), (np.arange(train.rows), bag)))
    groups = Groups(membership, as_csr(membership.T @ train.Y))
    unlabelled = Split(train.X, csr_matrix(train.Y.shape, dtype=np.float32), groups=groups)
    return BagProblem(unlabelled, validation, split(pictures.test, pictures.test_class))


class BagStudy:
    """Run cells and write them to the results file one by one."""

    def __init__(self, folder: Path | None, minutes: float):
        self.folder, self.end = folder, time.monotonic() + 60 * minutes
        self.results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        self.results = {"cells": {}, "chosen": {}, "pictures": {}, **self.results}

    def result(self, cell: Cell) -> dict[str, Any]:
        """Return the result of a cell, and run the cell if it is new."""
        if cell.key not in self.results["cells"]:
            if time.monotonic() > self.end:
                raise TimeoutError
            print(cell.key, file=sys.stderr, flush=True)
            self.results["cells"][cell.key] = {**cell._asdict(), **self._fit(cell)}
            self.write()
        return dict(self.results["cells"][cell.key])

    def run(self, data: str, size: int) -> None:
        """Choose loss and learning rate with Deep-MIML and each method's own parameter, then run the other seeds."""

        def validation(*form: Any) -> float:
            return float(self.result(Cell(data, size, *form, seed=0))["validation"])

        forms = [(loss, rate) for loss in LOSSES for rate in RATES]
        loss, rate = max(forms, key=lambda form: validation("Deep-MIML", *form, 0.0))
        values = {
            method: max(among, key=lambda value: validation(method, loss, rate, value))
            for method, (_, _, among) in METHODS.items()
        }
        self.results["chosen"][f"{data} / {size}"] = {"loss": loss, "rate": rate, "value": values}
        for seed in SEEDS:
            for method, value in values.items():
                self.result(Cell(data, size, method, loss, rate, value, seed))
        self.write()

    def _fit(self, cell: Cell) -> dict[str, Any]:
        from xmckit_eagle.miml.head import MIMLHead

        import xmckit

        pixels = images(cell.data, self.folder)
        task = problem(pixels, cell.size, cell.seed)
        began = time.perf_counter()
        head = MIMLHead(**cell.params)
        head.fit(task.train, context=xmckit.make_context(workers=1).using(seed=cell.seed, validation=task.validation))
        seconds = time.perf_counter() - began
        if cell.data == PICTURED and cell.seed == 0 and "EAGLE" in cell.method and cell.value:
            pictures = self.results["pictures"]
            pictures[f"{cell.data} / {cell.size} / {cell.method}"] = as_text(np.asarray(head.embeddings()))
            means = [pixels.train[pixels.train_class == kind].mean(axis=0) for kind in range(10)]
            pictures[f"{cell.data} / means"] = as_text(np.array(means))
        best = max(head.history, key=lambda epoch: epoch.score or 0)
        return {
            "rows": task.train.rows, "validation": accuracy(head, task.validation), "test": accuracy(head, task.test),
            "epochs": best.number, "seconds": round(seconds, 1),
        }  # fmt: skip

    def write(self) -> None:
        self.results |= {"machine": machine(), "versions": library_versions()}
        study.write_cells(RESULTS, self.results)


def accuracy(head: Any, rows: Any) -> float:
    return round(float((head.predict(rows.X, 1).indices.ravel() == rows.Y.indices).mean()), 5)


def as_text(rows: np.ndarray) -> str:
    """Encode rows as bytes: 128 is 0, and the largest absolute value of a row is at an end of the scale."""
    scale = np.abs(rows).max(axis=1, keepdims=True)
    levels = np.round(128 + 127 * rows / np.where(scale > 0, scale, 1)).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    parser.add_argument("--only", default="", help='run only cells that begin with this, such as "mnist / 4"')
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this time")
    parser.add_argument("--json", action="store_true", help="print the cells as JSON")
    parser.add_argument("--render", action="store_true", help="only write the page and its pictures again")
    options = parser.parse_args()
    bags = BagStudy(options.data, options.minutes)
    if not options.render:
        try:
            for data in available_sets(options.data):
                for size in SIZES:
                    if f"{data} / {size}".startswith(options.only):
                        bags.run(data, size)
        except TimeoutError:
            print("the time is over", file=sys.stderr)
    from benchmarks.eagle import miml_page

    miml_page.write(bags.results)
    if options.json:
        print(json.dumps({key: value for key, value in bags.results.items() if key != "pictures"}))


def available_sets(folder: Path | None) -> list[str]:
    """Return the data sets that the folder has, or scikit-learn's digits."""
    names = [name for name in ("mnist", "fashion_mnist") if folder and (folder / name / f"{name}.npz").exists()]
    return names or ["digits"]


if __name__ == "__main__":
    main()
