"""Compare the verifier with an exact enumeration of all outputs of small layers, ties included.

    python -m benchmarks.reliability.verdicts [--instances 1000000] [--workers 2] [--minutes 60]

An instance is a label set of a layer, for one rule, with or without biases and candidates; all label sets of a layer
are verified. Layers have ties (small whole numbers, rows of zeros, equal and opposite rows, equal biases) or are hard
on arithmetic (rows that differ in their last bit, entries of 1e±300). `xmckit.testing.brute_force` knows the right
answer without any linear program, and the independent checker must accept every proof. Figures are printed as JSON and
stored in benchmarks/results/reliability_verdicts.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from xmckit_argmax.checker.evidence import Evidence, Rejection, read_layer
from xmckit_argmax.checker.proofs import prove
from xmckit_argmax.verifier import ArgmaxVerifier

from benchmarks.common import paths, study
from xmckit import Context, LinearDecision, Verdict
from xmckit.testing.brute_force import possible_sets

RESULTS = paths.RESULTS / "reliability_verdicts.json"
KINDS = (
    "whole numbers", "rows of zeros", "equal and opposite rows", "one ulp apart", "rows times 1e±300",
    "entries times 1e±300", "float32", "float32, tied",
)  # fmt: skip
MOST_LABELS, MOST_DIM = {"sign": 8, "topk": 6}, {"sign": 4, "topk": 3}
SECONDS = 10.0  # the verifier's time limit for one label set
MOST_SHOWN = 5


class Instance(NamedTuple):
    """A layer, and the labels that can be output (None: all)."""

    kind: str
    decision: LinearDecision
    among: np.ndarray | None


def draw_instance(rng: np.random.Generator) -> Instance:
    kind, rule = KINDS[rng.integers(len(KINDS))], ("sign", "topk")[rng.integers(2)]
    labels, dim = int(rng.integers(MOST_LABELS[rule] + 1)), int(rng.integers(MOST_DIM[rule] + 1))
    W = _weights(kind, labels, dim, rng)
    b = None
    if rng.random() < 0.5:
        b = rng.integers(-1, 2, labels).astype(np.float64)
        if rng.random() < 0.3:
            b = np.full(labels, rng.standard_normal())  # equal biases
        elif "300" in kind:
            b = b * 10.0 ** rng.choice([-300, 0, 300])
        b = b.astype(W.dtype)
    among = np.flatnonzero(rng.random(labels) < 0.7) if rng.random() < 0.3 else None
    return Instance(kind, LinearDecision(W, b, rule), among)  # type: ignore[arg-type]


def _weights(kind: str, labels: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    W = rng.integers(-2, 3, (labels, dim)).astype(np.float64)
    if kind == "rows of zeros":
        return np.where(rng.random((labels, 1)) < 0.4, 0.0, W)
    if kind == "equal and opposite rows":
        return W[rng.integers(0, max(1, labels // 2), labels)] * rng.choice([-1.0, 1.0, 2.0], (labels, 1))
    if kind == "one ulp apart":
        W = rng.choice([-1.0, 1.0], (labels, 1)) * rng.standard_normal((1, dim))
        return np.where(rng.random(W.shape) < 0.5, np.nextafter(W, np.inf), W)
    if kind == "rows times 1e±300":
        return W * 10.0 ** rng.choice([-300, 0, 300], (labels, 1))
    if kind == "entries times 1e±300":
        return rng.standard_normal(W.shape) * 10.0 ** rng.choice([-300, -10, 0, 10, 300], W.shape)
    if kind.startswith("float32"):
        W = rng.standard_normal(W.shape).astype(np.float32)
        return W[rng.integers(0, labels, labels)] if "tied" in kind and labels else W
    return W


def all_sets(labels: int) -> np.ndarray:
    return np.array(list(itertools.product([False, True], repeat=labels)), dtype=bool).reshape(2**labels, labels)


class Outcome(NamedTuple):
    """How many verdicts there were of each kind of layer, what they said, and the first mistakes in words."""

    layers: int
    counts: dict[str, Counter[str]]
    mistakes: list[str]


def attack(instances: int, seed: Sequence[int], minutes: float = float("inf")) -> Outcome:
    """Verify all label sets of random layers until there are so many, or the time is over."""
    rng, verifier, context = np.random.default_rng(seed), ArgmaxVerifier(seconds=SECONDS), Context()
    outcome, layers, began = Outcome(0, {kind: Counter() for kind in KINDS}, []), 0, time.monotonic()
    while sum(counted["instances"] for counted in outcome.counts.values()) < instances:
        if time.monotonic() - began > 60 * minutes:
            break
        instance = draw_instance(rng)
        decision, layers = instance.decision, layers + 1
        sets = all_sets(len(decision.W))
        candidates = None
        if instance.among is not None:
            candidates = csr_matrix(np.tile(np.isin(np.arange(len(decision.W)), instance.among), (len(sets), 1)))
        verdicts = verifier.verify(decision, csr_matrix(sets), candidates=candidates, context=context).verdicts
        errors = _judge(instance, sets, verdicts, outcome.counts[instance.kind])
        for active, error in zip(sets, errors, strict=True):
            if error and len(outcome.mistakes) < MOST_SHOWN:
                outcome.mistakes.append(f"{error}: {instance}, label set {np.flatnonzero(active).tolist()}")
    return outcome._replace(layers=layers)


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of several attacks together."""
    kinds = {kind: sum((outcome.counts[kind] for outcome in outcomes), Counter[str]()) for kind in KINDS}
    total = sum(kinds.values(), Counter[str]())
    return {
        "instances": total["instances"],
        "layers": sum(outcome.layers for outcome in outcomes),
        "wrong": total["wrong"],
        "rejected_by_the_checker": total["rejected"],
        "unresolved": total["unresolved"],
        "unresolved_share": total["unresolved"] / max(1, total["instances"]),
        "argmaxable": total["argmaxable"],
        "argmaxable_by_ties_only": total["by ties only"],
        "witnesses_beyond_float64": total["beyond float64"],
        "kinds": {kind: dict(sorted(counted.items())) for kind, counted in kinds.items()},
        "mistakes": [mistake for outcome in outcomes for mistake in outcome.mistakes],
    }


def _judge(instance: Instance, sets: np.ndarray, verdicts: Any, counts: Counter[str]) -> list[str]:
    """Count what the verdicts say; return for each of them what is wrong with it, or nothing."""
    decision, possible = instance.decision, possible_sets(instance.decision, instance.among)
    arrays = {"W": decision.W, "rule": np.asarray(decision.rule)}
    layer = read_layer(arrays if decision.b is None else {**arrays, "b": decision.b})
    counted = np.arange(len(decision.W)) if instance.among is None else instance.among
    errors = []
    for active, verdict in zip(sets, verdicts, strict=True):
        can = tuple(active.tolist()) in possible
        wrong = verdict.status != "unresolved" and (verdict.status == "argmaxable") != can
        reason = _rejection(layer, np.flatnonzero(active), counted, verdict)
        errors.append("wrong" if wrong else reason)
        counts["instances"] += 1
        counts[verdict.status] += 1
        counts["wrong"] += wrong
        counts["rejected"] += bool(reason)
        counts["by ties only"] += verdict.margin == 0
        counts["beyond float64"] += verdict.exact_witness is not None
    return errors


def _rejection(layer: Any, active: np.ndarray, counted: np.ndarray, verdict: Verdict) -> str:
    """Return why the independent checker rejects the verdict, or nothing."""
    certificate = verdict.certificate or (np.empty(0, dtype=np.int64), np.empty(0))
    exact = None if verdict.exact_witness is None else list(verdict.exact_witness)
    evidence = Evidence.gather(layer, active, counted, verdict.witness, certificate, exact)
    try:
        prove(verdict.status, evidence)
    except Rejection as reason:
        return f"rejected: {reason}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1_000_000, help="at least so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no layer after this (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    options = parser.parse_args()
    share, began = -(-options.instances // options.workers), time.monotonic()
    with ProcessPoolExecutor(options.workers) as pool:
        started = [
            pool.submit(attack, share, (options.seed, worker), options.minutes) for worker in range(options.workers)
        ]
        found = figures([one.result() for one in started])
    found |= {"seed": options.seed, "workers": options.workers, "seconds": round(time.monotonic() - began, 1)}
    study.write_results(RESULTS, found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
