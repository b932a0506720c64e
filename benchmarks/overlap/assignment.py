"""Measure the assignment step of indexer `overlap` at the size of Amazon-670K: seconds of each phase, peak memory.

    python -m benchmarks.overlap.assignment [--rows 490000] [--labels 670000] [--reach 3] [--threads 2]

Rows, labels and the leaves that rows reach are drawn so that they resemble those of a trained matcher: the labels of a
row come from a few leaves, frequent labels from everywhere, and a row reaches the leaves of its labels and some
others. The prices of the auction bound the largest possible Σ C∘(YᵀM). HiGHS also solves a problem of a few hundred
labels, and both gaps are shown. No model is trained. Results are stored in benchmarks/results/overlap_assignment.json,
and the next `python -m benchmarks.overlap.measure --render` shows them in docs/overlap.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, eye, kron
from xmckit_pecos.labels import assignment, auction, meanings
from xmckit_pecos.labels.assignment import Placement, Reachability
from xmckit_pecos.labels.tree import LabelTree, tree_of_leaves
from xmckit_pecos.overlap import OverlapParams, move_labels

from benchmarks.common import paths, study
from xmckit import Context
from xmckit.runs.resources import Measured

RESULTS = paths.RESULTS / "overlap_assignment.json"
SECONDS, GIB = 60, 6
LABELS_PER_ROW = 5.45
PHASES: dict[str, Any] = {  # functions, and where they are
    "candidate_leaves": assignment, "best_leaves": assignment, "auction": auction, "place_remaining": auction,
    "add_meanings": meanings, "fill_up": meanings, "evaluate": assignment, "best_first": Placement,
}  # fmt: skip


def problem(rows: int, labels: int, leaves: int, reach: int, seed: int = 0) -> tuple[LabelTree, csr_matrix, csr_matrix]:
    """Return (tree, Y, M): labels in leaves of equal size, the labels of rows, and the leaves that rows reach."""
    rng = np.random.default_rng(seed)
    leaf_of = rng.permutation(labels) * leaves // labels
    members = np.argsort(leaf_of, kind="stable")
    starts = np.searchsorted(leaf_of[members], np.arange(leaves + 1))
    sizes = 1 + rng.poisson(LABELS_PER_ROW - 1, rows)
    row_of = np.repeat(np.arange(rows), sizes)
    home = rng.integers(0, leaves, rows)[row_of]
    away = rng.random(len(row_of))
    # most labels of a row come from its home leaf, some from a nearby leaf, some from any leaf
    leaf = np.where(away < 0.7, home, (home + rng.integers(1, 16, len(home))) % leaves)
    leaf = np.where(away > 0.9, rng.integers(0, leaves, len(home)), leaf)
    within = rng.random(len(leaf)) ** 2 * (starts[leaf + 1] - starts[leaf])
    label = members[starts[leaf] + within.astype(np.int64)]
    Y = csr_matrix((np.ones(len(label), np.float32), (row_of, label)), shape=(rows, labels))
    Y.data[:] = 1
    reached = _draw_reached(rng, Y, leaf_of, leaves, reach)
    return tree_of_leaves(leaf_of, leaves, 16, np.arange(labels), labels), Y, reached


def _draw_reached(rng: np.random.Generator, Y: csr_matrix, leaf_of: np.ndarray, leaves: int, reach: int) -> csr_matrix:
    """Draw `reach` leaves per row: leaves of its labels come early, leaves nearby and other leaves late."""
    rows = Y.shape[0]
    own = np.repeat(np.arange(rows), np.diff(Y.indptr))
    near = np.repeat(np.arange(rows), 2 * reach)
    base = np.repeat(leaf_of[Y.indices[Y.indptr[:-1]]], 2 * reach)
    steps, anywhere = rng.integers(1, 16, len(near)), rng.integers(0, leaves, len(near))
    other = np.where(rng.random(len(near)) < 0.7, base + steps, anywhere)
    row = np.concatenate([own, near])
    leaf = np.concatenate([leaf_of[Y.indices], other % leaves])
    lot = np.concatenate([rng.random(len(own)) / 2, rng.random(len(near))])
    pairs, first = np.unique(row * leaves + leaf, return_index=True)
    row, leaf, lot = pairs // leaves, pairs % leaves, lot[first]
    order = np.lexsort((lot, row))
    row, leaf = row[order], leaf[order]
    kept = np.arange(len(row)) - np.searchsorted(row, row) < reach
    return csr_matrix((np.ones(kept.sum(), np.float32), (row[kept], leaf[kept])), shape=(rows, leaves))


def with_clock(seconds: dict[str, float], name: str) -> Callable[..., Any]:
    function = getattr(PHASES[name], name)

    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments)
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
        return result

    return call


def measure(tree: LabelTree, Y: csr_matrix, M: csr_matrix, threads: int, **params: Any) -> dict[str, Any]:
    options = OverlapParams(**params)
    phases: dict[str, float] = {}
    originals = {name: getattr(owner, name) for name, owner in PHASES.items()}
    try:
        for name, owner in PHASES.items():
            setattr(owner, name, with_clock(phases, name))
        with Measured() as cost:
            _, facts = move_labels(tree, Y, M, options, Context(workers=threads))
    finally:
        for name, function in originals.items():
            setattr(PHASES[name], name, function)
    assigned_paths = facts["paths to labels"]
    return {
        "params": params,
        "seconds": cost.seconds,
        "peak_gib": cost.peak_bytes / 2**30,
        "phases": phases,
        "gap_at_most": 1 - assigned_paths["after"] / assigned_paths["at most"] if "at most" in assigned_paths else None,
        "facts": facts,
    }


def gap_to_optimum(copies: int) -> dict[str, float]:
    """Return the gap of the auction to the optimum of HiGHS on a small problem, and the bound by its prices."""
    tree, Y, M = problem(2000, 400, 16, 3, seed=1)
    S = (Y.T @ M).toarray()
    room = np.full(16, int(1.1 * copies * 400 / 16))
    original = auction.SMALL
    try:
        auction.SMALL = 0  # use the method for large problems
        candidates = assignment.candidate_leaves(Reachability.from_matrices(Y, M), tree.leaf_of, 16, 1)
        placement = auction.auction(candidates, copies, room)
    finally:
        auction.SMALL = original
    sums = [kron(eye(400), np.ones((1, 16))), kron(np.ones((1, 400)), eye(16))]
    limits = [LinearConstraint(sums[0], ub=copies), LinearConstraint(sums[1], ub=room)]
    best = -milp(-S.ravel(), constraints=limits, bounds=Bounds(0, 1), integrality=np.ones(S.size)).fun
    reached = float(S[placement.label_of, placement.leaf_of].sum())
    return {"copies": copies, "optimum": best, "gap": 1 - reached / best, "gap_at_most": 1 - reached / placement.bound}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=490_000, help="training rows (default: %(default)s)")
    parser.add_argument("--labels", type=int, default=670_000, help="labels (default: %(default)s)")
    parser.add_argument("--leaves", type=int, default=8192, help="leaves of the tree (default: %(default)s)")
    parser.add_argument(
        "--reach", type=int, default=OverlapParams().reach, help="leaves per row (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads (default: %(default)s)")
    options = parser.parse_args()
    warm = problem(2000, 500, 16, 3)
    for params in ({}, {"copies_per_label": 2}, {"copies_per_label": 2, "cap": "none"}):
        measure(*warm, options.threads, **params)  # compile
    tree, Y, M = problem(options.rows, options.labels, options.leaves, options.reach)
    results = [
        measure(tree, Y, M, options.threads, **params)
        for params in ({}, {"copies_per_label": 2}, {"copies_per_label": 2, "cap": "none"})
    ]
    small = [gap_to_optimum(copies) for copies in (1, 2)]
    facts = {
        "rows": Y.shape[0], "labels": Y.shape[1], "leaves": M.shape[1], "threads": options.threads,
        "results": results, "small": small, "targets": {"seconds": SECONDS, "gib": GIB},
    }  # fmt: skip
    study.write_results(RESULTS, facts)
    print(f"{Y.shape[0]:,} rows, {Y.shape[1]:,} labels, {Y.nnz:,} pairs, {M.shape[1]:,} leaves, {M.nnz:,} reached")
    print(f"{'':44} seconds (target {SECONDS})   peak GiB (target {GIB})")
    for one in results:
        what = ", ".join(f"{name} = {value}" for name, value in one["params"].items()) or "copies per label"
        print(f"{what:44} {one['seconds']:19.1f}   {one['peak_gib']:19.2f}")
        print("    " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in one["phases"].items()))
        facts = one["facts"]
        pairs = facts["pairs within reach"]
        print(f"    {facts['copies per label']:.3f} copies per label, pairs within reach {pairs}", end="")
        print(f", at most {one['gap_at_most']:.2%} below the optimum" if one["gap_at_most"] is not None else "")
    for one in small:
        print(
            f"400 labels, {one['copies']} copies: {one['gap']:.3%} below the optimum of HiGHS, by its prices at most "
            f"{one['gap_at_most']:.3%}"
        )


if __name__ == "__main__":
    main()
