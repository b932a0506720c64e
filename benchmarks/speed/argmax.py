"""Compare the verifier with the paper's linear programme in HiGHS, on the same label sets, one thread each.

    python -m benchmarks.speed.argmax [--data DIR] [--sets 1024] [--baseline 96] [--dims 25 50 100 200] [--json]

Times are processor milliseconds per label set, without compilation, with the proofs of both kinds.

- ours: the active-set method, the scans over all labels, and the proofs (float64 with error bounds; exact arithmetic
  only if these fail), each separately and together with everything between them.
- baseline: scipy's `linprog(method="highs-ds")` on the Chebyshev programme of Grivas et al. (2024), without any proof,
  on the first of the same label sets: as many as fit in ten seconds, at least 12 and at most 96.

Weights are random, or those of a BSL head with biases, trained for a few epochs on a synthetic set with 8921 labels,
and on debian_depends if DIR holds it. Label sets are those of the test rows. Targets: 700, 600, 450 and 500 times as
fast at 25, 50, 100 and 200 dimensions; 10,000 label sets at 100 dimensions within 30 s on two processors. The last
table shows how the parts grow with the number of labels.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import csr_matrix
from threadpoolctl import threadpool_limits
from xmckit_argmax.records import Assignment
from xmckit_argmax.solver import Solver, SolverClock, SolverSettings
from xmckit_argmax.system import make_system
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Dataset, LinearDecision, Verdict, make_context
from xmckit.context import Context

LABELS = 8921
TARGETS = {25: 700, 50: 600, 100: 450, 200: 500}
MANY, MANY_DIM, MANY_SECONDS = 10_000, 100, 30.0
GROWTH = (8_921, 20_000, 100_000)
BOX = 1e4
BASELINE_SECONDS = 120.0
BASELINE_LEAST, BASELINE_BUDGET = 12, 10.0  # least label sets, and seconds after which no more are started


@dataclass(frozen=True)
class Layer:
    name: str
    W: np.ndarray
    b: np.ndarray | None


def dataset(folder: Path | None, context: Context) -> Dataset:
    if folder is None:
        sizes = {"rows": 12_000, "test_rows": MANY, "features": 8_000, "labels": LABELS, "topics": 200}
        return context.build("dataset", {"use": "synthetic", "labels_per_row": 6, **sizes}).read(context=context)
    data = context.build("dataset", {"use": "files", "path": folder / "debian_depends"}).read(context=context)
    features = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    features.fit(data.train, context=context)
    return replace(data, train=replace(data.train, X=features.transform(data.train, context=context)))


def trained_layer(data: Dataset, dim: int, context: Context) -> Layer:
    head = context.build("head", {"use": "bsl", "dim": dim, "epochs": 5, "patience": 5})
    head.fit(data.train, context=context)
    decision = head.decision()
    return Layer("trained", decision.W.astype(np.float64), decision.b.astype(np.float64))


def random_layer(labels: int, dim: int) -> Layer:
    return Layer("random", np.random.default_rng(dim).standard_normal((labels, dim)).astype(np.float32), None)


def draw_questions(sets: csr_matrix, count: int, rng: np.random.Generator) -> list[Assignment]:
    """Draw label sets with at least one label, without replacement."""
    rows = rng.permutation(np.flatnonzero(np.diff(sets.indptr)))[:count]
    return [Assignment(np.sort(sets.indices[sets.indptr[row] : sets.indptr[row + 1]]).astype(np.int64)) for row in rows]


def time_verifier(layer: Layer, label_sets: list[Assignment]) -> tuple[dict[str, Any], list[Verdict]]:
    begin = time.process_time()
    W = layer.W.astype(np.float64)
    solver = Solver(make_system(W, layer.b, "sign"), W, layer.b, SolverSettings())
    prepared = time.process_time() - begin
    solver.solve(label_sets[:3])  # compile, and warm the memory
    best: tuple[float, SolverClock, list[Verdict]] | None = None
    for _ in range(2):
        clock, begin = SolverClock(), time.process_time()
        answers = solver.solve(label_sets, clock)
        seconds = time.process_time() - begin
        if best is None or seconds < best[0]:
            best = seconds, clock, answers
    assert best is not None
    seconds, clock, answers = best
    per_set = 1e3 / len(label_sets)
    return {
        "milliseconds": seconds * per_set,
        "parts": {part: value * per_set for part, value in clock.seconds.items()},
        "prepare_milliseconds": 1e3 * prepared,
        "steps": clock.steps / len(label_sets),
        "scans": clock.scans / len(label_sets),
        "statuses": _counts([answer.status for answer in answers]),
        "proofs": _counts([answer.proof for answer in answers]),
    }, answers


def solve_chebyshev(layer: Layer, question: Assignment) -> tuple[float, str]:
    """Return (processor seconds, answer of the solver)."""
    n, d = layer.W.shape
    signs = np.full(n, -1.0)
    signs[question.active] = 1.0
    lengths = np.linalg.norm(layer.W, axis=1)
    begin = time.process_time()
    solution = linprog(
        np.r_[np.zeros(d), -1.0],
        A_ub=np.hstack([-signs[:, None] * layer.W, lengths[:, None]]),
        b_ub=np.zeros(n) if layer.b is None else signs * layer.b,
        bounds=[(-BOX, BOX)] * d + [(0, None)],
        method="highs-ds",
        options={"time_limit": BASELINE_SECONDS},
    )
    seconds = time.process_time() - begin
    if solution.status == 2:
        return seconds, "unargmaxable"
    if solution.status != 0:
        return seconds, f"no answer: {solution.message}"
    return seconds, "argmaxable" if solution.x[-1] > 1e-8 else "unargmaxable"


def compare(layer: Layer, label_sets: list[Assignment], baseline: int) -> dict[str, Any]:
    fast, answers = time_verifier(layer, label_sets)
    slow: list[tuple[float, str]] = []
    for question in label_sets[:baseline]:
        if len(slow) >= BASELINE_LEAST and sum(seconds for seconds, _ in slow) > BASELINE_BUDGET:
            break
        slow.append(solve_chebyshev(layer, question))
    mean = float(np.mean([seconds for seconds, _ in slow]))
    dim = int(layer.W.shape[1])
    return {
        "weights": layer.name,
        "dim": dim,
        "labels": len(layer.W),
        "sets": len(label_sets),
        **fast,
        "baseline_sets": len(slow),
        "baseline_milliseconds": 1e3 * mean,
        "agree": sum(answer.status == expected for answer, (_, expected) in zip(answers, slow, strict=False)),
        "ratio": 1e3 * mean / fast["milliseconds"],
        "target": TARGETS.get(dim),
    }


def verify_many(layer: Layer, sets: csr_matrix) -> dict[str, Any]:
    """Verify many label sets as a run does."""
    chosen = sets[np.arange(MANY) % sets.shape[0]]
    decision = LinearDecision(layer.W, layer.b)
    context = make_context(workers=2)
    begin = time.perf_counter()
    verdicts = ArgmaxVerifier().verify(decision, chosen, context=context)
    seconds = time.perf_counter() - begin
    return {
        "sets": MANY,
        "dim": int(layer.W.shape[1]),
        "workers": 2,
        "seconds": seconds,
        "target_at_most": MANY_SECONDS,
        "statuses": verdicts.counts(),
    }


def measure_growth(labels: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(labels)
    label_sets = [Assignment(np.sort(rng.choice(labels, 6, replace=False))) for _ in range(count)]
    return {"labels": labels, "dim": MANY_DIM, **time_verifier(random_layer(labels, MANY_DIM), label_sets)[0]}


def _counts(values: list[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder that holds debian_depends"
    )
    parser.add_argument("--sets", type=int, default=1024, help="label sets for the verifier (default: %(default)s)")
    parser.add_argument("--baseline", type=int, default=96, help="most label sets for HiGHS (default: %(default)s)")
    parser.add_argument("--dims", type=int, nargs="+", default=list(TARGETS), help="default: 25 50 100 200")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    context = make_context(workers=1)
    torch.set_num_threads(1)
    folders = [None, *([options.data] if options.data is not None else [])]
    comparisons = []
    with threadpool_limits(1):
        for folder in folders:
            data = dataset(folder, context)
            sets = csr_matrix(data.test.Y)
            label_sets = draw_questions(sets, options.sets, np.random.default_rng(0))
            for dim in options.dims:
                layers = random_layer(data.labels, dim), trained_layer(data, dim, context)
                torch.set_num_threads(1)
                comparisons += [{"data": data.name, **compare(layer, label_sets, options.baseline)} for layer in layers]
        result = {
            "benchmark": "argmax",
            "comparisons": comparisons,
            "growth": [measure_growth(labels, min(64, options.sets)) for labels in GROWTH],
            "many": {"data": data.name, **verify_many(trained_layer(data, MANY_DIM, context), sets)},
        }
    print(json.dumps(result, indent=2) if options.json else "\n".join(_lines(result)))


def _lines(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{'data':<16}{'weights':<9}{'d':>4}{'baseline ms':>13}{'ours ms':>9}{'ratio':>8}{'target':>8}   parts, ms"
    ]
    for entry in result["comparisons"]:
        lines.append(
            f"{entry['data']:<16}{entry['weights']:<9}{entry['dim']:>4}{entry['baseline_milliseconds']:>13.0f}"
            f"{entry['milliseconds']:>9.3f}{entry['ratio']:>7.0f}×{entry['target'] or 0:>7}×   {_parts(entry)}"
        )
    lines.append(f"\n{'labels':>8}{'ours ms':>9}   parts, ms (d = {MANY_DIM}, random weights)")
    lines += [f"{entry['labels']:>8}{entry['milliseconds']:>9.3f}   {_parts(entry)}" for entry in result["growth"]]
    many = result["many"]
    lines.append(
        f"\n{many['sets']:,} label sets at d = {many['dim']}, {many['workers']} workers: {many['seconds']:.1f} s "
        f"(at most {many['target_at_most']:.0f} s); {many['statuses']}"
    )
    return lines


def _parts(entry: dict[str, Any]) -> str:
    parts = ", ".join(f"{part} {value:.3f}" for part, value in entry["parts"].items() if value >= 5e-4)
    return f"{parts}; {entry['steps']:.0f} steps, {entry['scans']:.1f} scans; {entry['statuses']} {entry['proofs']}"


if __name__ == "__main__":
    main()
