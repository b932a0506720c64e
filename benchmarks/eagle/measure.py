"""Measure EAGLE: train on row labels that were recovered from group labels, on six data sets and many groupings.

    python -m benchmarks.eagle.measure [--data DIR] [--only PART] [--minutes M] [--render]

A cell is one data set, one grouping, one seed and one way to label the rows. XR-Linear trains on the labelled rows and
is scored on the test rows, which keep their true labels. Each finished cell is stored in benchmarks/results/eagle.json
and is not run again. docs/eagle.md and its pictures come from that file; --render only writes them. DIR holds the data
sets as npz folders; without it, only the built-in stdlib-calls runs. --only runs the cells with a key that contains
PART, such as "bibtex" or "random 4 / ".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "eagle.json"
SEEDS = (0, 1, 2)
SETS = ("bibtex", "cve_libraries", "stdlib-calls", "reuters21578", "delicious", "debian_depends")
WAYS: dict[str, dict[str, Any] | None] = {
    "group labels": None,
    "EAGLE-0": {"paper": True, "normalise": "idf", "iterations": 0},
    "EAGLE": {"paper": True, "normalise": "idf"},
    "default": {},
}
PARTS: dict[str, dict[str, Any]] = {
    "without refine": {"refine": 0},
    "without cover": {"cover": False},
    "without both": {"refine": 0, "cover": False},
    "one row": {"capacity": "one"},
    "rows as stored": {"normalise": "unit"},
    "without weights": {"soft": False},
    "with the head as judge": {"head": {"use": "xrlinear"}},
}
ROWS = {"bibtex": 4880, "cve_libraries": 5751, "reuters21578": 13234, "delicious": 12920, "debian_depends": 42091}
ROWS |= {"stdlib-calls": 9700}
TREE = {"beam_size": 10, "only_topk": 5}


class Cell(NamedTuple):
    data: str
    grouping: str
    way: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data} / {self.grouping} / {self.way} / seed {self.seed}"


def depth_for(data: str, size: int) -> int:
    """Return the depth at which clusters have about `size` rows."""
    return round(math.log2(ROWS[data] / size))


def cells() -> Iterator[Cell]:  # noqa: C901  # a list of cells, in order
    """Yield the most informative cells first, for a study that is interrupted."""
    for seed in SEEDS:
        for data in SETS:
            yield Cell(data, "none", "true labels", seed)
            for way in WAYS:
                yield Cell(data, "random 4", way, seed)
        for data in SETS:
            yield Cell(data, "random 4 set", "default", seed)
        for grouping in ("class", "file"):
            for way in WAYS:
                yield Cell("stdlib-calls", grouping, way, seed)
        for data in SETS[:-1]:
            for grouping in ("random 10", f"clusters {depth_for(data, 16)}"):
                for way in WAYS:
                    yield Cell(data, grouping, way, seed)
        for grouping in (*(f"random {size}" for size in (2, 6, 8)), *(f"clusters {depth}" for depth in range(6, 11))):
            for way in WAYS:
                yield Cell("bibtex", grouping, way, seed)
        for grouping in ("random 10", f"clusters {depth_for(SETS[-1], 16)}"):
            for way in WAYS:
                yield Cell(SETS[-1], grouping, way, seed)
        if seed == SEEDS[0]:
            for data in SETS[:-1]:
                for way in PARTS:
                    yield Cell(data, "random 4", way, seed)
            for noise in (0.25, 0.5, 0.75, 1.0):
                for way in WAYS:
                    yield Cell("bibtex", f"clusters 8 noise {noise}", way, seed)


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="threads")
    options = parser.parse_args()
    if not options.render:
        study.run_cells(cells(), lambda cell: run_cell(cell, options.data, options.workers), RESULTS, options)
    from benchmarks.eagle import page

    page.write(json.loads(RESULTS.read_text("utf-8")))


def run_cell(cell: Cell, folder: Path | None, workers: int) -> dict[str, Any]:
    train, test = load(cell.data, folder, cell.grouping if cell.grouping in ("class", "file") else "none")
    labelled, facts, seconds = (train, {}, 0.0) if cell.grouping == "none" else label_rows(train, cell, workers)
    began = time.perf_counter()
    precision = xr_linear(labelled, test, cell.seed, workers)
    facts["training_seconds"] = round(time.perf_counter() - began, 2)
    return {**precision, **facts, "seconds": round(seconds, 2)}


@lru_cache(maxsize=1)
def load(data: str, folder: Path | None, groups: str) -> tuple[Any, Any]:
    """Return the training and test rows, each with one feature matrix of unit rows."""
    from dataclasses import replace

    import xmckit

    context = xmckit.make_context()
    if data == "stdlib-calls":
        dataset = context.build("dataset", {"use": data, "groups": groups}).read(context=context)
        features = context.build("featurizer", {"use": "tfidf"})
    else:
        dataset = context.build("dataset", {"use": "files", "path": Path(str(folder), data)}).read(context=context)
        features = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    features.fit(dataset.train, context=context)
    train, test = (
        replace(split, X=features.transform(split, context=context), texts=None)
        for split in (dataset.train, dataset.test)
    )
    return train, test


def label_rows(train: Any, cell: Cell, workers: int) -> tuple[Any, dict[str, Any], float]:
    """Return the training rows as the cell labels them, facts about these labels, and the seconds."""
    from xmckit_eagle.grouping import Aggregate
    from xmckit_eagle.preprocessor import Eagle

    import xmckit

    context = xmckit.make_context(seed=cell.seed, workers=workers)
    grouped = Aggregate(**aggregation(cell.grouping)).apply(train, context=context)
    params = {**WAYS, **PARTS}[cell.way]
    began = time.perf_counter()
    if params is None:
        labelled, eagle_facts = grouped, {}
    else:
        eagle = Eagle(**params)
        labelled = eagle.apply(grouped, context=context)
        eagle_facts = eagle.facts()
    seconds = time.perf_counter() - began
    kept = ("capacity", "normalised", "refinement_rounds", "held_out_groups_recognised", "rows_that_took_a_label",
            "round_with_head_kept", "held_out_groups_recognised_by_head")  # fmt: skip
    return (
        labelled,
        {**agreement(train.Y, grouped.groups, labelled.Y), **{k: eagle_facts[k] for k in kept if k in eagle_facts}},
        seconds,
    )


def aggregation(grouping: str) -> dict[str, Any]:
    """Return the parameters of `aggregate` for a grouping, such as "random 4 set" or "clusters 8 noise 0.5"."""
    words = grouping.split()
    if words[0] in ("class", "file"):
        return {"method": "given"}
    params: dict[str, Any] = {"method": words[0], {"random": "size", "clusters": "depth"}[words[0]]: int(words[1])}
    if "noise" in words:
        params["noise"] = float(words[-1])
    if "set" in words:
        params["merge"] = "set"
    return params


def agreement(truth: Any, groups: Any, Y: Any) -> dict[str, Any]:
    """Compare the assigned row labels with the true ones.

    A pair (group, label) is a hit if the label was given to a row of the group that truly has it. `share` counts all
    pairs; `share_several` counts the pairs of labels that more than one group has.
    """
    import numpy as np

    right = Y.multiply(truth).tocsr()
    pairs = groups.labels > 0
    hit = ((groups.membership.T @ right) > 0).multiply(pairs)
    several = np.asarray(pairs.sum(axis=0)).ravel() > 1
    sizes = np.bincount(groups.membership.indices, minlength=groups.membership.shape[1])
    return {
        "groups": int(groups.membership.shape[1]),
        "mean_size": round(float(sizes.mean()), 2),
        "pairs": int(pairs.nnz),
        "pairs_of_labels_in_several_groups": int(pairs[:, several].nnz),
        "share": round(hit.nnz / pairs.nnz, 5),
        "share_several": round(hit.tocsr()[:, several].nnz / max(1, pairs[:, several].nnz), 5),
        "precision": round(right.nnz / Y.nnz, 5),
        "recall": round(right.nnz / truth.nnz, 5),
    }


def xr_linear(train: Any, test: Any, seed: int, workers: int) -> dict[str, float]:
    """Return P@1, P@3 and P@5 of PECOS's XR-Linear with defaults: PIFA, hierarchical 2-means of labels, beam 10."""
    import numpy as np
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear import XLinearModel

    X, Y = train.X, train.Y
    features = LabelEmbeddingFactory.create(Y, X, method="pifa")
    tree = Indexer.gen(features, indexer_type="hierarchicalkmeans", seed=seed, threads=workers)
    weighted = {}
    if train.weights is not None:
        weighted = {"R": train.weights, "rel_norm": "no-norm", "rel_mode": "ranker-only"}
    model = XLinearModel.train(X, Y, C=tree, threads=workers, **weighted)
    predictions = model.predict(test.X, threads=workers, **TREE).tocsr()
    rows = np.repeat(np.arange(test.rows), np.diff(predictions.indptr))
    order = np.lexsort((predictions.indices, -predictions.data, rows))
    rank = np.arange(predictions.nnz) - predictions.indptr[rows]
    true = np.asarray(test.Y[rows, predictions.indices[order]]).ravel() > 0
    return {f"P@{k}": round(float(true[rank < k].sum()) / k / test.rows, 6) for k in (1, 3, 5)}


if __name__ == "__main__":
    main()
