"""Measure overlapping clusters (labels in several leaves) against trees, wider beams and other programs.

    python -m benchmarks.overlap.measure [--data DIR] [--only PART] [--minutes M] [--render]

A cell is one data set, as it is or with merged labels (Figure 2 of the paper), one system and one seed. Each finished
cell is stored in benchmarks/results/overlap.json and is not run again. docs/overlap.md and its pictures come from that
file; --render only writes them. DIR holds the data sets as npz folders; without it, only stdlib-calls and the planted
synthetic set run. --only runs the cells with a key that contains PART, such as "bibtex" or "/ XR-Linear / "; repeated
options must all match.

A *matched* system takes the beam that scores as many labels as another system scores; the cell of the other system
must come first.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "overlap.json"
SEEDS = (0, 1, 2)
PLANTED = "planted-bimodal"
SETS = ("stdlib-calls", "cve_libraries", "delicious", "bibtex", PLANTED, "reuters21578", "debian_depends")
SYNTHETIC = {
    "use": "synthetic", "rows": 20_000, "test_rows": 5_000, "features": 10_000, "labels": 2_000, "topics": 64,
    "labels_per_row": 4.0, "words_per_row": 20.0, "noise": 0.7, "bimodal": 400,
}  # fmt: skip
AFFORDABLE = tuple(data for data in SETS if data != "debian_depends")  # small enough for one-versus-all
BASE, PER_LABEL, TWO = "XR-Linear", "overlap per label", "overlap λ = 2"
WIDER, WIDER_TWO = f"{BASE}, matched to {PER_LABEL}", f"{BASE}, matched to {TWO}"
NARROWER, NARROWER_TWO = f"{PER_LABEL}, matched to {BASE}", f"{TWO}, matched to {BASE}"
RANDOM, CEILING, PAPER = "random copies", "one-versus-all", f"{TWO} without cap"
PECOS, PECOS_AS_IT_COMES = "PECOS", "PECOS as it comes"
NAPKIN, NAPKIN_AS_IT_COMES = "napkinXC", "napkinXC as it comes"
SAME = ", same matcher"  # the paper's "alternative update: no"
OVERLAPS: dict[str, dict[str, Any]] = {
    PER_LABEL: {},
    RANDOM: {"placement": "random"},
    PAPER: {"copies_per_label": 2, "cap": "none"},
    **{f"overlap λ = {copies}": {"copies_per_label": copies} for copies in range(1, 7)},
}
OVERLAPS |= {f"{name}{SAME}": {**OVERLAPS[name], "rounds": 0} for name in OVERLAPS if name != RANDOM}
OVERLAPS |= {NARROWER: {}, NARROWER_TWO: {"copies_per_label": 2}}
MATCHED = {
    WIDER: PER_LABEL,
    WIDER_TWO: TWO,
    NARROWER: BASE,
    NARROWER_TWO: BASE,
}  # matched system → system with the number of labels to match
ENTANGLED = [f"{difficulty} {size}" for size in (4, 2, 8) for difficulty in ("hard", "medium", "easy")]
ENTANGLED_SETS = ("stdlib-calls", "cve_libraries", "delicious")
TOP, MEASURED_ROWS = 5, 2000


class Cell(NamedTuple):
    data: str
    labels: str  # "as they are", or difficulty and size of the merge
    system: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data} / {self.labels} / {self.system} / seed {self.seed}"


def cells() -> Iterator[Cell]:
    """Yield the most informative cells first, for a study that is interrupted."""
    for seed in SEEDS:
        for data in SETS:
            for system in (BASE, PER_LABEL, WIDER, NARROWER, PECOS, NAPKIN, TWO, WIDER_TWO, NARROWER_TWO):
                yield Cell(data, "as they are", system, seed)
        for data in SETS:
            for system in (RANDOM, f"{PER_LABEL}{SAME}"):
                yield Cell(data, "as they are", system, seed)
        for data in AFFORDABLE:
            yield Cell(data, "as they are", CEILING, seed)
        for data in SETS:
            for system in (*OVERLAPS, PECOS_AS_IT_COMES, NAPKIN_AS_IT_COMES):
                yield Cell(data, "as they are", system, seed)  # cells that ran above are skipped
    for seed in SEEDS:
        for labels in ENTANGLED:
            for data in ENTANGLED_SETS:
                for system in (BASE, PER_LABEL, WIDER, TWO, WIDER_TWO):
                    yield Cell(data, labels, system, seed)


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="threads")
    options = parser.parse_args()
    if not options.render:
        warm_up(options.workers)
        peers = {"napkinxc": version("napkinxc")}
        study.run_cells(
            cells(), lambda cell: run_cell(cell, options.data, options.workers), RESULTS, options, peers=peers
        )
    from benchmarks.overlap import page

    page.write(json.loads(RESULTS.read_text("utf-8")))


class OverlapData(NamedTuple):
    """Hold rows with one feature matrix of unit rows, and the labels that training rows have."""

    train: Any
    test: Any
    weights: np.ndarray  # inverse propensities of all labels
    seen: np.ndarray  # the labels that training rows have

    @property
    def shape(self) -> tuple[int, int]:
        """Return (most labels of a leaf, beam): 64 leaves of 4 to 100 labels; with fewer leaves the beam is a sixth."""
        labels = self.train.labels
        leaf_size = min(100, max(4, math.ceil(labels / 64)))
        leaves = 1 << max(0, math.ceil(math.log2(labels / leaf_size)))
        return leaf_size, min(10, max(2, leaves // 6))


@lru_cache(maxsize=1)
def load(data: str, labels: str, folder: Path | None) -> OverlapData:
    from dataclasses import replace

    import xmckit
    from xmckit.components.metrics import inverse_propensity, propensity_constants

    context = xmckit.make_context()
    spec: dict[str, Any] = {"use": data} if data == "stdlib-calls" else {"use": "files", "path": f"{folder}/{data}"}
    spec = SYNTHETIC if data == PLANTED else spec
    if labels != "as they are":
        difficulty, size = labels.split()
        spec = {"use": "entangled", "of": spec, "difficulty": difficulty, "size": int(size)}
    dataset = context.build("dataset", spec).read(context=context)
    words = {"use": "tfidf"} if dataset.train.X is None else {"use": "blocks", "normalise": "l2"}
    features = context.build("featurizer", words)
    features.fit(dataset.train, context=context)
    train, test = (
        replace(split, X=features.transform(split, context=context), texts=None)
        for split in (dataset.train, dataset.test)
    )
    counts = np.bincount(train.Y.indices, minlength=train.labels)
    A, B = propensity_constants(dataset.propensity)
    return OverlapData(train, test, inverse_propensity(counts, train.rows, A, B), np.flatnonzero(counts))


def run_cell(cell: Cell, folder: Path | None, workers: int) -> dict[str, Any]:
    import xmckit

    data = load(cell.data, cell.labels, folder)
    context = xmckit.make_context(seed=cell.seed, workers=workers)
    if cell.system in (PECOS, PECOS_AS_IT_COMES):
        predictions, facts = run_pecos(data, cell.system == PECOS, context.seed_for("tree") % 2**31, workers)
    elif cell.system in (NAPKIN, NAPKIN_AS_IT_COMES):
        predictions, facts = run_napkin(data, cell.system == NAPKIN, cell.seed, workers)
    else:
        predictions, facts = run_xmckit(data, cell, context)
    return {**scores(predictions, data, workers), **facts, "labels_in_all": len(data.seen)}


def scores(predictions: Any, data: OverlapData, workers: int) -> dict[str, float]:
    from xmckit.components.metrics import rank_metrics

    values = rank_metrics(
        predictions, data.test.Y, inverse_propensity=data.weights, filtered=data.test.filter, workers=workers
    )
    return {f"{name}@{k}": round(values[f"{name}@{k}"], 6) for name in ("P", "PSP") for k in (1, 3, 5)}


def warm_up(workers: int) -> None:
    """Compile the functions that are compiled on their first use."""
    import xmckit

    context = xmckit.make_context(workers=workers)
    small = {"use": "synthetic", "rows": 200, "test_rows": 50, "features": 100, "labels": 40, "topics": 4}
    data = context.build("dataset", small).read(context=context)
    for system in (BASE, PER_LABEL, RANDOM, PAPER):
        counts = np.bincount(data.train.Y.indices, minlength=data.labels)
        whole = OverlapData(data.train, data.test, np.ones(data.labels), np.flatnonzero(counts))
        scores(run_xmckit(whole, Cell("", "", system, 0), context)[0], whole, workers)


# Systems of xmckit ----------------------------------------------------------------------------------------------------


def run_xmckit(data: OverlapData, cell: Cell, context: Any) -> tuple[Any, dict[str, Any]]:
    leaf_size, beam = data.shape
    options: dict[str, Any] = {"use": "tree", "leaf_size": leaf_size, "beam": beam}
    if cell.system == CEILING:
        options["leaf_size"] = data.train.labels  # one leaf: a label trains against all rows without it
    elif cell.system in OVERLAPS:
        options |= {"use": "overlap", **OVERLAPS[cell.system]}
    began = time.perf_counter()
    index = context.build("indexer", options).build(data.train, context=context)
    index_seconds = time.perf_counter() - began
    sizes = leaf_sizes(index)
    rows = data.test.X[:MEASURED_ROWS]
    if cell.system in MATCHED:
        matching = widest_beam if cell.system in OVERLAPS else narrowest_beam
        beam = matching(index, sizes, rows, scored_by(cell, MATCHED[cell.system]))
    began = time.perf_counter()
    head = context.build("head", {"use": "xrlinear", "beam": beam, "threshold": 0.0})
    head.fit(data.train, indexes=[index], context=context)
    head_seconds = time.perf_counter() - began
    predictions, predict_seconds = timed(lambda: head.predict(data.test.X, TOP))
    with tempfile.TemporaryDirectory() as folder:
        head.save(Path(folder))
        stored = folder_size(Path(folder))
    return predictions, {
        "beam": beam,
        "scored": round(scored(index, sizes, rows, beam), 2),
        "leaves": leaf_facts(sizes),
        "copies": round(float(sizes.sum() / len(data.seen)), 4),
        "train_seconds": round(index_seconds + head_seconds, 3),
        "index_seconds": round(index_seconds, 3),
        "predict_seconds": round(predict_seconds, 3),
        "bytes": stored,
    }


def leaf_sizes(index: Any) -> np.ndarray:
    """Count the labels of training rows in each leaf, including copies."""
    tree = index.tree
    return np.bincount(tree.leaf_of[index.counts[tree.label_of] > 0], minlength=tree.leaves)


def scored(index: Any, sizes: np.ndarray, X: Any, beam: int) -> float:
    """Return the mean number of labels, including copies, in the leaves that a row reaches."""
    reached = index.reached_leaves(X, beam)
    return float(sizes[reached.indices].sum() / X.shape[0])


def narrowest_beam(index: Any, sizes: np.ndarray, X: Any, target: float) -> int:
    """Return the narrowest beam that scores at least `target` labels per row, or all leaves."""
    return next((beam for beam in range(1, len(sizes)) if scored(index, sizes, X, beam) >= target), len(sizes))


def widest_beam(index: Any, sizes: np.ndarray, X: Any, target: float) -> int:
    """Return the widest beam that scores at most `target` labels per row, or 1."""
    beams = range(1, len(sizes) + 1)
    return max(1, next((beam for beam in beams if scored(index, sizes, X, beam) > target), len(sizes) + 1) - 1)


def scored_by(cell: Cell, system: str) -> float:
    """Return the labels per row that another system scored on the same data with the same seed."""
    stored = json.loads(RESULTS.read_text("utf-8"))["cells"] if RESULTS.exists() else {}
    key = cell._replace(system=system).key
    if key not in stored:
        raise SystemExit(f"run the cell '{key}' first: '{cell.key}' must score as many labels")
    return float(stored[key]["scored"])


def timed(work: Any) -> tuple[Any, float]:
    """Return the result of `work` and the less seconds of two calls: the first also loads the model."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


def leaf_facts(sizes: np.ndarray) -> dict[str, Any]:
    return {
        "count": len(sizes),
        "smallest": int(sizes.min()),
        "median": float(np.median(sizes)),
        "largest": int(sizes.max()),
        "empty": int((sizes == 0).sum()),
    }


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# Other programs -------------------------------------------------------------------------------------------------------


def run_pecos(data: OverlapData, same_tree: bool, seed: int, workers: int) -> tuple[Any, dict[str, Any]]:
    """Call PECOS directly, with the tree and the beam of XR-Linear or with its own defaults."""
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear import XLinearModel

    X, Y = data.train.X, data.train.Y[:, data.seen]
    leaf_size, beam = data.shape if same_tree else (100, 10)
    began = time.perf_counter()
    embeddings = LabelEmbeddingFactory.create(Y, X, method="pifa", threads=workers)
    chain = Indexer.gen(embeddings, nr_splits=16, max_leaf_size=leaf_size, seed=seed, threads=workers)
    model = XLinearModel.train(X, Y.tocsc(), C=chain, nr_splits=16, beam_size=beam, threads=workers)
    train_seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        stored = folder_size(Path(folder))
        loaded = XLinearModel.load(folder, is_predict_only=True)
    options = {"beam_size": beam, "post_processor": "l3-hinge", "threads": workers}
    predictions, predict_seconds = timed(lambda: loaded.predict(data.test.X, only_topk=TOP, **options))
    everything = loaded.predict(data.test.X[:MEASURED_ROWS], only_topk=len(data.seen), **options)
    sizes = np.diff(chain[-1].tocsc().indptr)
    return with_all_labels(predictions, data), {
        "beam": beam,
        "scored": round(everything.nnz / everything.shape[0], 2),
        "leaves": leaf_facts(sizes),
        "train_seconds": round(train_seconds, 3),
        "predict_seconds": round(predict_seconds, 3),
        "bytes": stored,
    }


def with_all_labels(predictions: Any, data: OverlapData) -> Any:
    from scipy.sparse import csr_matrix

    shape = (predictions.shape[0], data.train.labels)
    return csr_matrix((predictions.data, data.seen[predictions.indices], predictions.indptr), shape=shape)


def run_napkin(data: OverlapData, same_tree: bool, seed: int, workers: int) -> tuple[Any, dict[str, Any]]:
    """Call napkinXC's probabilistic label tree, with leaves and beam of the others or with its own defaults.

    The exact search of the defaults does not report how many labels it scores.
    """
    from napkinxc.models import PLT

    Y = data.train.Y
    lists = [Y.indices[start:end].tolist() for start, end in zip(Y.indptr[:-1], Y.indptr[1:], strict=True)]
    leaf_size, beam = data.shape
    options = {"max_leaves": leaf_size, "tree_search_type": "beam", "beam_search_width": beam} if same_tree else {}
    with tempfile.TemporaryDirectory() as folder:
        model = PLT(folder, seed=seed, threads=workers, **options)
        began = time.perf_counter()
        model.fit(data.train.X, lists)
        train_seconds = time.perf_counter() - began
        stored = folder_size(Path(folder))
        model.predict_proba(data.test.X[:10], top_k=TOP)  # loads the model
        seconds, sizes, best = 0.0, [], []
        for start in range(0, data.test.rows, MEASURED_ROWS):
            began = time.perf_counter()
            predictions = model.predict_proba(data.test.X[start : start + MEASURED_ROWS], top_k=TOP)
            seconds += time.perf_counter() - began
            sizes += [len(row) for row in predictions]  # a beam returns all labels that it scored, not only top_k
            best += [row[:TOP] for row in predictions]
        model.unload()
    facts = {"train_seconds": round(train_seconds, 3), "predict_seconds": round(seconds, 3), "bytes": stored}
    if same_tree:
        facts |= {"beam": beam, "scored": round(float(np.mean(sizes)), 2)}
    return ranking(best), facts


def ranking(best: list[list[tuple[int, float]]]) -> Any:
    import xmckit

    indices = np.full((len(best), TOP), -1, dtype=np.int32)
    values = np.full((len(best), TOP), -np.inf, dtype=np.float32)
    for row, predictions in enumerate(best):
        for place, (label, value) in enumerate(predictions):
            indices[row, place], values[row, place] = label, value
    return xmckit.TopK(indices, values)


if __name__ == "__main__":
    main()
