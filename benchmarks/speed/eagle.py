"""Compare EAGLE's assignment with other ways to compute it, and measure time and memory at the size of Wiki-325K.

    python -m benchmarks.speed.eagle [--data DIR] [--seconds 20] [--scale 1/16,1/4,1] [--json]

The methods compute Algorithm 1 and 2 of the paper with T = 20 (no background removal, no leave-one-out), on two
threads:

    ours     the assignment of the plugin
    scipy    label by label with scipy's sparse products, one process
    direct   compiled and on as many threads, but with the paper's update: one embedding of all features per thread,
             and every row of the label scored again in every step

All three must give every label to the same rows. cve_libraries (from DIR or $XMCKIT_DATA; left out without it) has
random groups of 4; the synthetic set has 8,000 rows with 300 non-zeros each, also in groups of 4. All take turns, and
the best time of each counts.

The scale study generates data with the shape of Wiki-325K: 1.8 million rows with 60 of 1.6 million features and 3.2 of
325 thousand labels each, power laws for both, groups of 4; and shares of it. The label preprocessor gets them as from
a recipe; generating the data is not timed. The peak is the largest resident memory of the process during the
assignment, including the data.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, load_npz
from xmckit_eagle.assign.choice import assign
from xmckit_eagle.assign.normalise import idf_rows
from xmckit_eagle.assign.rows import add_row, dot_row

from benchmarks.common.memory import in_fresh_process, resident

THREADS = 2
STEPS, STEP = 20, 0.1
TIE = 1e-10
# targets of the speed-up over scipy and over direct
TARGETS = {"cve_libraries": (150, 3), "300 non-zeros a row": (25, 3)}
WIKI = {"rows": 1_800_000, "features": 1_600_000, "per_row": 60, "labels": 325_000, "labels_per_row": 3.2, "group": 4}
MOST_SECONDS, MOST_GIB = 360, 6
WAYS: dict[str, dict[str, Any]] = {
    "EAGLE, T = 20": {"paper": True, "normalise": "idf", "iterations": STEPS, "step": STEP},
    "default without refinement": {"refine": 0},
    "default": {},
}
REFINED = Fraction(1, 16)  # the largest share for the default with refinement, which takes hours above

GroupProblem = tuple[csr_matrix, csr_matrix, csr_matrix]


def group_rows(X: csr_matrix, Y: csr_matrix, size: int, rng: np.random.Generator) -> GroupProblem:
    """Put rows into random groups and return the labels of the groups."""
    rows = X.shape[0]
    group = np.empty(rows, dtype=np.int32)
    group[rng.permutation(rows)] = np.arange(rows) // size
    ones = np.ones(rows, dtype=np.float32)
    membership = csr_matrix((ones, group, np.arange(rows + 1)), shape=(rows, -(-rows // size)))
    return X, membership, csr_matrix(membership.T @ Y)


def power_law(count: int, size: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Draw `count` numbers from 0 … size − 1 with P(i) ∝ about (i+1)^−exponent, by inversion."""
    power = 1.0 - exponent
    u = rng.random(count, dtype=np.float32)
    drawn = ((size**power - 1.0) * u + 1.0) ** (1.0 / power) - 1.0
    return np.minimum(drawn.astype(np.int32), size - 1)


def synthetic(
    rows: int, features: int, per_row: int, labels: int, labels_per_row: float, group: int, seed: int = 0
) -> GroupProblem:
    """Generate rows of unit length with power laws for features and labels, in chunks."""
    rng = np.random.default_rng(seed)
    indices, data, lengths = [], [], []
    for start in range(0, rows, 1 << 17):
        count = min(1 << 17, rows - start)
        drawn = power_law(count * per_row, features, 0.8, rng).reshape(count, per_row)
        drawn.sort(axis=1)
        keep = np.ones(drawn.shape, dtype=bool)
        keep[:, 1:] = drawn[:, 1:] != drawn[:, :-1]
        values = rng.random(drawn.shape, dtype=np.float32) + np.float32(0.1)
        values *= np.log1p(drawn, dtype=np.float32) + 1
        values /= np.sqrt((values**2 * keep).sum(axis=1, keepdims=True))
        indices.append(drawn[keep])
        data.append(values[keep])
        lengths.append(keep.sum(axis=1))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    X = csr_matrix((np.concatenate(data), np.concatenate(indices), indptr), shape=(rows, features))
    del indices, data
    each = rng.poisson(labels_per_row - 1, rows) + 1
    names = power_law(int(each.sum()), labels, 0.7, rng)
    Y = csr_matrix(
        (np.ones(len(names), dtype=np.float32), names, np.concatenate([[0], np.cumsum(each)])), (rows, labels)
    )
    Y.sum_duplicates()
    Y.data[:] = 1
    return group_rows(X, Y, group, rng)


def by_scipy(X: csr_matrix, membership: csr_matrix, labels: csr_matrix) -> np.ndarray:
    """Return the chosen row for each stored entry of labels.T, label by label. No group may be empty."""
    members, by_label = csr_matrix(membership.T), csr_matrix(labels.T)
    X = X.astype(np.float64)
    chosen = []
    for label in range(by_label.shape[0]):
        groups = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        if not len(groups):
            continue
        inside = members[groups]
        rows, first = inside.indices, inside.indptr[:-1]
        sizes = np.diff(inside.indptr)
        own = X[rows]
        e = np.asarray(own.sum(axis=0)).ravel()
        e /= np.sqrt(e @ e)
        for _ in range(STEPS):
            e += STEP * np.asarray(own[_first_best(own @ e, first, sizes)].sum(axis=0)).ravel()
            e /= np.sqrt(e @ e)
        chosen.append(rows[_first_best(own @ e, first, sizes)])
    return np.concatenate(chosen)


def _first_best(scores: np.ndarray, first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the first row of each group with the best score up to rounding."""
    best = np.flatnonzero(scores >= np.repeat(np.maximum.reduceat(scores, first), sizes) - 2 * TIE)
    return best[np.searchsorted(best, first)]


def direct(X: csr_matrix, membership: csr_matrix, labels: csr_matrix) -> np.ndarray:
    """Return the chosen row for each stored entry of labels.T, by the paper's update in compiled code."""
    members, by_label = csr_matrix(membership.T), csr_matrix(labels.T)
    work = np.cumsum(np.diff(by_label.indptr))
    cuts = np.unique(np.concatenate([[0], np.searchsorted(work, np.arange(1, 128) * work[-1] / 128), [len(work)]]))
    chosen = np.empty(by_label.nnz, dtype=np.int32)
    memory = threading.local()

    def assign_part(part: int) -> None:
        if not hasattr(memory, "arrays"):
            memory.arrays = np.zeros(X.shape[1]), np.zeros(X.shape[1], dtype=np.bool_), np.empty(X.shape[1], np.int32)
        _direct(
            (X.indptr, X.indices, X.data), members.indptr, members.indices, by_label.indptr, by_label.indices,
            cuts[part], cuts[part + 1], *memory.arrays, chosen,
        )  # fmt: skip

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(assign_part, range(len(cuts) - 1)))
    return chosen


@njit(nogil=True)
def _direct(X, group_start, group_rows, label_start, label_groups, begin, end, e, seen, touched, chosen):
    _, indices, _ = X
    for label in range(begin, end):
        first, last = label_start[label], label_start[label + 1]
        if first == last:
            continue
        features = 0
        for group in label_groups[first:last]:
            for row in group_rows[group_start[group] : group_start[group + 1]]:
                add_row(X, row, 1.0, e)
                for place in range(X[0][row], X[0][row + 1]):
                    if not seen[indices[place]]:
                        seen[indices[place]] = True
                        touched[features] = indices[place]
                        features += 1
        _project(e, touched, features)
        for step in range(STEPS + 1):
            for place in range(first, last):
                group = label_groups[place]
                rows = group_rows[group_start[group] : group_start[group + 1]]
                scores = np.empty(len(rows))
                for i in range(len(rows)):
                    scores[i] = dot_row(X, rows[i], e)
                chosen[place] = rows[np.argmax(scores >= scores.max() - 2 * TIE)]
            if step < STEPS:
                for place in range(first, last):
                    add_row(X, chosen[place], STEP, e)
                _project(e, touched, features)
        for i in range(features):
            e[touched[i]] = 0.0
            seen[touched[i]] = False


@njit(nogil=True)
def _project(e, touched, features):
    squared = 0.0
    for i in range(features):
        squared += e[touched[i]] ** 2
    factor = 1.0 / np.sqrt(squared)
    for i in range(features):
        e[touched[i]] *= factor


def ours(X: csr_matrix, membership: csr_matrix, labels: csr_matrix) -> np.ndarray:
    return assign(X, membership, labels, iterations=STEPS, step=STEP, workers=THREADS).rows


def compare(name: str, problem: GroupProblem, budget: float) -> dict[str, Any]:
    """Time each way, and check that they agree."""
    X, membership, labels = problem
    few = labels[:, : min(8, labels.shape[1])]
    for method in (ours, direct):
        method(X, membership, csr_matrix(few))
    start, best, chosen = time.perf_counter(), {}, {}
    while time.perf_counter() - start < budget or not best:
        for method, turns in ((ours, 3), (direct, 2), (by_scipy, 1)):
            if method is by_scipy and "by_scipy" in best and time.perf_counter() - start > budget / 2:
                continue
            for _ in range(turns):
                began = time.perf_counter()
                chosen[method.__name__] = method(X, membership, labels)
                spent = time.perf_counter() - began
                best[method.__name__] = min(best.get(method.__name__, np.inf), spent)
    for other in ("direct", "by_scipy"):
        if not np.array_equal(chosen["ours"], chosen[other]):
            raise SystemExit(f"{name}: {other} gives {(chosen['ours'] != chosen[other]).sum()} labels to other rows")
    targets = TARGETS[name]
    return {
        "data": name,
        "rows": X.shape[0],
        "non_zeros": X.nnz,
        "group_labels": labels.nnz,
        "seconds": {"ours": best["ours"], "direct": best["direct"], "scipy": best["by_scipy"]},
        "times_faster_than_scipy": best["by_scipy"] / best["ours"],
        "times_faster_than_direct": best["direct"] / best["ours"],
        "targets": {"scipy": targets[0], "direct": targets[1]},
    }


def measure_share(share: Fraction, way: str, sender: Any) -> None:
    """Measure seconds and peak memory for a share of Wiki-325K."""
    from xmckit_eagle import preprocessor

    import xmckit

    sizes = {name: int(WIKI[name] * share) for name in ("rows", "features", "labels")}
    rest = {name: WIKI[name] for name in ("per_row", "labels_per_row", "group")}
    X, membership, labels = synthetic(**sizes, **rest)
    no_labels = csr_matrix((X.shape[0], labels.shape[1]), dtype=np.float32)
    rows = xmckit.Split(X, no_labels, groups=xmckit.Groups(membership, labels))
    eagle = preprocessor.Eagle(**WAYS[way])
    few = slice(0, 64)
    eagle.apply(
        xmckit.Split(X[few], no_labels[few], groups=xmckit.Groups(membership[few], labels)),
        context=xmckit.make_context(),
    )
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    eagle.apply(rows, context=xmckit.make_context(workers=THREADS))
    seconds = time.perf_counter() - start
    sender.send(
        {
            "share": str(share), "way": way, **sizes, "non_zeros": X.nnz, "group_labels": labels.nnz,
            "seconds": seconds, "peak_gib": resident("VmHWM") / 1024,
            "data_gib": sum(map(size_in_bytes, (X, membership, labels))) / 2**30,
        }
    )  # fmt: skip


def size_in_bytes(matrix: csr_matrix) -> int:
    return sum(array.nbytes for array in (matrix.data, matrix.indices, matrix.indptr))


def run_all(data: Path | None, budget: float, shares: list[Fraction]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    ratios = []
    if data is not None:
        X, Y = (load_npz(data / "cve_libraries" / f"{part}.trn.npz").tocsr() for part in "XY")
        ratios.append(compare("cve_libraries", group_rows(idf_rows(X), Y, 4, rng), budget))
    ratios.append(compare("300 non-zeros a row", synthetic(8_000, 30_000, 300, 2_000, 3.0, 4), budget))
    return {
        "threads": THREADS,
        "iterations": STEPS,
        "ratios": ratios,
        "scale": [
            in_fresh_process(measure_share, share, way)
            for share in shares
            for way in WAYS
            if way != "default" or share <= REFINED
        ],
        "scale_targets": {"seconds": MOST_SECONDS, "gib": MOST_GIB},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds per data set for the ratios (default: %(default)s)"
    )
    parser.add_argument(
        "--scale", default="1/16,1/4,1", help="shares of the size of Wiki-325K, such as 1/16,1/4,1; empty for none"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    data = None if options.data is None else Path(options.data)
    results = run_all(data, options.seconds, [Fraction(share) for share in options.scale.split(",") if share])
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for entry in results["ratios"]:
        spent = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in entry["seconds"].items())
        print(
            f"{entry['data']}: {entry['times_faster_than_scipy']:.0f} × scipy ({entry['targets']['scipy']}), "
            f"{entry['times_faster_than_direct']:.1f} × direct ({entry['targets']['direct']}); {spent}"
        )
    for entry in results["scale"]:
        print(
            f"{entry['share']:>5} of Wiki-325K, {entry['way']}: {entry['seconds']:.1f} s, "
            f"{entry['peak_gib']:.2f} GiB (data {entry['data_gib']:.2f})"
        )


if __name__ == "__main__":
    main()
