"""Compare head `xrlinear` with direct calls of PECOS, with the same parameters, seed and threads.

    python -m benchmarks.speed.xrlinear [--data DIR …] [--turns 7] [--threads 2] [--cpu] [--json]

Both build the tree, train all levels and rank 100 labels for every test row. PECOS runs in its fastest way: PIFA,
hierarchical k-means, `XLinearModel.train`, save, load for prediction, predict. The head does the same and also counts
labels scored per row; its threshold is given, so it needs no validation rows. Labels on no training row are left out
for both, because the head never outputs them.

After a warm-up turn they take turns, and the first to run changes from turn to turn. The ratio is that of the best
times; the ratio of the medians is beside it: a large difference between the two means that the machine was busy. --cpu
counts processor time, which a busy machine disturbs less (use one thread: threads that wait count too).

--data names folders that `xmckit data info` can read; without it a synthetic set is used and, with XMCKIT_DATA set to
a folder of data sets, its cve_libraries and delicious.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear import XLinearModel
from scipy.sparse import csr_matrix
from xmckit_pecos.linear.calibration import logits
from xmckit_pecos.xrlinear import XRLinearHead

from xmckit import Context, Split, make_context
from xmckit.data.model import as_csr

TOP, BEAM, BRANCHING, LEAF_SIZE, POST_PROCESSOR = 100, 10, 16, 100, "l3-hinge"
TARGET = 1.05
REAL = ("cve_libraries", "delicious")
SYNTHETIC = {"use": "synthetic", "rows": 20_000, "test_rows": 5_000, "features": 20_000, "labels": 4_000, "topics": 100}


def problem(path: Path | None, context: Context) -> tuple[str, Split, csr_matrix]:
    """Return (name, training rows, test features), with unit rows of features and only labels of training rows."""
    spec = SYNTHETIC if path is None else {"use": "files", "path": path}
    data = context.build("dataset", spec).read(context=context)
    scale = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    scale.fit(data.train, context=context)
    X, X_test = (as_csr(scale.transform(split, context=context)) for split in (data.train, data.test))
    Y = as_csr(data.train.Y)
    seen = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]))
    return data.name, Split(X, as_csr(Y[:, seen])), X_test


def run_head(train: Split, X_test: csr_matrix, context: Context) -> tuple[dict[str, float], Any]:
    clock = LapClock()
    head = XRLinearHead(threshold=0.0, beam=BEAM, branching=BRANCHING, leaf_size=LEAF_SIZE)
    head.fit(train, context=context)
    clock.lap("train")
    predictions = head.predict(X_test, TOP)
    clock.lap("predict")
    return clock.laps, predictions


def run_pecos(train: Split, X_test: csr_matrix, context: Context) -> tuple[dict[str, float], csr_matrix]:
    clock, threads = LapClock(), context.workers
    X, Y = train.matrix, train.Y.tocsc()
    embeddings = LabelEmbeddingFactory.create(train.Y, X, method="pifa", threads=threads)
    seed = context.seed_for("tree") % 2**31
    chain = Indexer.gen(embeddings, nr_splits=BRANCHING, max_leaf_size=LEAF_SIZE, seed=seed, threads=threads)
    model = XLinearModel.train(X, Y, C=chain, nr_splits=BRANCHING, beam_size=BEAM, threads=threads)
    clock.lap("train")
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        loaded = XLinearModel.load(folder, is_predict_only=True)
    clock.lap("load")
    predictions = loaded.predict(X_test, beam_size=BEAM, only_topk=TOP, post_processor=POST_PROCESSOR, threads=threads)
    clock.lap("predict")
    return clock.laps, predictions


class LapClock:
    now = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._start = self.now()

    def lap(self, name: str) -> None:
        now = self.now()
        self.laps[name], self._start = now - self._start, now


def identical(predictions: Any, expected: csr_matrix) -> bool:
    rows = np.repeat(np.arange(expected.shape[0]), np.diff(expected.indptr))
    places = np.arange(expected.nnz) - np.repeat(expected.indptr[:-1], np.diff(expected.indptr))
    scores = logits(expected.data, POST_PROCESSOR)
    return bool(
        (predictions.indices[rows, places] == expected.indices).all()
        and (predictions.scores[rows, places] == scores).all()
        and (predictions.indices >= 0).sum() == expected.nnz
    )


def over_turns(laps: list[dict[str, float]], reduce: Callable[[list[float]], float]) -> dict[str, float]:
    """Return the best or the median time of each part, and of a whole turn."""
    parts = {name: reduce([lap[name] for lap in laps]) for name in laps[0]}
    return {**parts, "whole": reduce([sum(lap.values()) for lap in laps])}


def measure(path: Path | None, turns: int, context: Context) -> dict[str, Any]:
    name, train, X_test = problem(path, context)
    contenders: dict[str, Callable[..., Any]] = {"xmckit": run_head, "pecos": run_pecos}
    laps: dict[str, list[dict[str, float]]] = {who: [] for who in contenders}
    results = {who: contender(train, X_test, context)[1] for who, contender in contenders.items()}
    for turn in range(turns):
        for who in list(contenders)[:: 1 if turn % 2 else -1]:
            gc.collect()
            laps[who].append(contenders[who](train, X_test, context)[0])
    best, median = (
        {who: over_turns(spent, reduce) for who, spent in laps.items()} for reduce in (min, statistics.median)
    )
    return {
        "data": name,
        "rows": train.rows,
        "test_rows": int(X_test.shape[0]),
        "labels": train.labels,
        "seconds": best,
        "ratio": best["xmckit"]["whole"] / best["pecos"]["whole"],
        "ratio_of_medians": median["xmckit"]["whole"] / median["pecos"]["whole"],
        "ratio_train": best["xmckit"]["train"] / best["pecos"]["train"],
        "identical": identical(results["xmckit"], results["pecos"]),
        "target": TARGET,
    }


def data_folders(paths: list[Path] | None) -> list[Path | None]:
    if paths:
        return list(paths)
    root = os.environ.get("XMCKIT_DATA")
    return [None, *(Path(root, name) for name in REAL if root)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, action="append", metavar="DIR", help="a folder with data; may repeat")
    parser.add_argument("--turns", type=int, default=7, help="turns of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="count processor time instead of wall time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.cpu:
        LapClock.now = staticmethod(time.process_time)
    context = make_context(workers=options.threads)
    results = [measure(path, options.turns, context) for path in data_folders(options.data)]
    report = {"threads": options.threads, "turns": options.turns, "cpu": options.cpu, "results": results}
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{'data':20} {'labels':>7}  xmckit ÷ PECOS (target), of medians, train alone, predictions")
    for entry in results:
        same = "identical" if entry["identical"] else "DIFFERENT"
        print(
            f"{entry['data']:20} {entry['labels']:7,}  {entry['ratio']:.3f} ({entry['target']}), "
            f"{entry['ratio_of_medians']:.3f}, {entry['ratio_train']:.3f}, {same}; seconds {entry['seconds']}"
        )


if __name__ == "__main__":
    main()
