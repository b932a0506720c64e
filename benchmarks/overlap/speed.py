"""Measure the costs of overlapping clusters: training and prediction as ratios to the same head on a plain tree.

    python -m benchmarks.overlap.speed [--data DIR] [--sets cve_libraries bibtex] [--turns 3] [--threads 2]

Systems take turns, and the best turn of each counts, by wall time on `threads` threads. Targets: training takes at
most 2.0 × the time of the plain tree with copies per label ("auto") and at most 3.0 × with two copies of every label;
prediction takes at most 1.3 × when both score as many labels. For that, the beam of the overlapping tree is narrowed
until it scores no more labels than the plain tree. The last lines show the phases of training. Results are stored in
benchmarks/results/overlap_speed.json, and the next `python -m benchmarks.overlap.measure --render` shows them in
docs/overlap.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xmckit
from benchmarks.common import paths, study
from benchmarks.overlap import measure as overlap

RESULTS = paths.RESULTS / "overlap_speed.json"
SYSTEMS: dict[str, dict[str, Any]] = {
    "tree": {"use": "tree"},
    "auto": {"use": "overlap"},
    "λ = 2": {"use": "overlap", "copies_per_label": 2},
}
TARGETS = {"auto": 2.0, "λ = 2": 3.0}
PREDICTION = 1.3


def compare(name: str, folder: Path | None, turns: int, threads: int) -> dict[str, Any]:
    data = overlap.load(name, "as they are", folder)
    best: dict[str, dict[str, Any]] = {}
    most_scored = 0.0
    for _ in range(turns):
        for system, options in SYSTEMS.items():
            turn = measure(data, options, most_scored, threads)
            if system == "tree":
                most_scored = turn["scored"]
            kept = best.setdefault(system, turn)
            for what in ("train", "predict"):
                if turn[what] < kept[what]:
                    kept[what] = turn[what]
                    if what == "train":
                        kept["phases"] = turn["phases"]
    base = best["tree"]
    return {
        "data": name,
        "systems": best,
        "train_ratio": {system: best[system]["train"] / base["train"] for system in TARGETS},
        "predict_ratio": {system: best[system]["predict"] / base["predict"] for system in TARGETS},
        "targets": {"train": TARGETS, "predict": PREDICTION},
    }


def measure(data: overlap.OverlapData, options: dict[str, Any], most_scored: float, threads: int) -> dict[str, Any]:
    """Return the seconds of training, by phase, and of prediction with at most `most_scored` labels per row."""
    leaf_size, beam = data.shape
    phases: dict[str, float] = {}

    @contextlib.contextmanager
    def progress(what: str, total: float | None = None) -> Iterator[Any]:
        with xmckit.context.silent(what, total) as bar:
            began = time.perf_counter()
            yield bar
            phases[what] = phases.get(what, 0.0) + time.perf_counter() - began

    context = xmckit.make_context(workers=threads).using(progress=progress)
    began = time.perf_counter()
    index = context.build("indexer", {"leaf_size": leaf_size, "beam": beam, **options}).build(
        data.train, context=context
    )
    built = time.perf_counter() - began
    sizes, rows = overlap.leaf_sizes(index), data.test.X[: overlap.MEASURED_ROWS]
    if most_scored:
        beam = overlap.widest_beam(index, sizes, rows, most_scored)
    head = context.build("head", {"use": "xrlinear", "beam": beam, "threshold": 0.0})
    began = time.perf_counter()
    head.fit(data.train, indexes=[index], context=context)
    trained = built + time.perf_counter() - began
    predictions, predicted = overlap.timed(lambda: head.predict(data.test.X, overlap.TOP))
    return {
        "P@5": overlap.scores(predictions, data, threads)["P@5"],
        "train": trained,
        "predict": predicted,
        "beam": beam,
        "scored": overlap.scored(index, sizes, rows, beam),
        "copies": float(sizes.sum() / len(data.seen)),
        "phases": phases,
    }


def run_sets(folder: Path | None, sets: list[str], turns: int, threads: int) -> dict[str, Any]:
    overlap.warm_up(threads)
    return {"threads": threads, "sets": [compare(name, folder, turns, threads) for name in sets]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    parser.add_argument(
        "--sets", nargs="+", default=["stdlib-calls", overlap.PLANTED], help="default: the built-in sets"
    )
    parser.add_argument("--turns", type=int, default=3, help="turns of each system (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    options = parser.parse_args()
    results = run_sets(
        None if options.data is None else Path(options.data), options.sets, options.turns, options.threads
    )
    study.write_results(RESULTS, results)
    for entry in results["sets"]:
        print(entry["data"])
        for system, one in entry["systems"].items():
            ratios = ""
            if system in TARGETS:
                ratios = (
                    f"{entry['train_ratio'][system]:>6.2f} × (at most {TARGETS[system]:.1f}) training,"
                    f"{entry['predict_ratio'][system]:>5.2f} × (at most {PREDICTION}) prediction"
                )
            print(
                f"  {system:<6} train {one['train']:>7.2f} s, predict {one['predict']:>6.2f} s, beam {one['beam']}, "
                f"{one['scored']:.0f} labels scored, {one['copies']:.2f} copies{ratios}"
            )
            print("         " + ", ".join(f"{what} {seconds:.2f}" for what, seconds in one["phases"].items()))


if __name__ == "__main__":
    main()
