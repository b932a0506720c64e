"""Look for a label set that a head outputs and that the verifier calls unargmaxable.

python -m benchmarks.reliability.heads [--seeds 5] [--rows 200]

Every registered head is trained on small problems, with several thresholds, with and without an index. Its weights are
then edited so that logits tie: zero rows, duplicate rows, opposite rows, equal biases, biases equal to the threshold,
whole numbers. It labels real rows, random rows, and rows on both sides of where a label changes; the verifier judges
all label sets that came out. A set that W·x + b gives in exact arithmetic and that is called unargmaxable is a
contradiction. A set that is unargmaxable and was output within the rounding of the scorer is counted as one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack

from benchmarks.common import paths
from benchmarks.common.study import write_results
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.decisions import compare
from xmckit.errors import VerificationError
from xmckit.protocols import needs_index
from xmckit.registry import make_context
from xmckit.testing.problems import small_problem
from xmckit.verification.outputs import RealRows, candidates_of, label_sets
from xmckit.verification.verify import verify

RESULTS = paths.RESULTS / "reliability_heads.json"
VERIFIER = {"use": "argmax", "seconds": 5.0}
HALVINGS = 40
CONTRADICTIONS, MISMATCHES = "contradictions", "decisions that are not what is output"
Edit = Callable[[Any, float, np.random.Generator], None]


# Edits of the learned rows and biases of a layer; `threshold` is what its logits are compared with.


def _layer(head: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the learned rows and the biases of a head's classifier, to be edited in place."""
    classifier = head.network.classifier
    return getattr(classifier, "W", getattr(classifier, "S", None)), classifier.b


def _pairs(labels: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    order = rng.permutation(labels)
    return order[: labels // 2], order[labels // 2 : 2 * (labels // 2)]


def zero_rows(head: Any, threshold: float, rng: np.random.Generator) -> None:
    W, b = _layer(head)
    W[_pairs(len(W), rng)[0]] = 0
    b[_pairs(len(W), rng)[0]] = threshold


def duplicate_rows(head: Any, threshold: float, rng: np.random.Generator) -> None:
    W, b = _layer(head)
    one, other = _pairs(len(W), rng)
    W[one], b[one] = W[other], b[other]


def opposite_rows(head: Any, threshold: float, rng: np.random.Generator) -> None:
    W, b = _layer(head)
    one, other = _pairs(len(W), rng)
    W[one], b[one] = -W[other], 2 * threshold - b[other]


def equal_biases(head: Any, threshold: float, rng: np.random.Generator) -> None:
    _layer(head)[1][:] = 0.3


def biases_at_the_threshold(head: Any, threshold: float, rng: np.random.Generator) -> None:
    _layer(head)[1][:] = threshold


def whole_numbers(head: Any, threshold: float, rng: np.random.Generator) -> None:
    W, b = _layer(head)
    W[:] = torch.from_numpy(rng.integers(-1, 2, tuple(W.shape)).astype(np.float32))
    b[:] = threshold + torch.from_numpy(rng.integers(-1, 2, len(b)).astype(np.float32))


def nothing_learned(head: Any, threshold: float, rng: np.random.Generator) -> None:
    W, b = _layer(head)
    W[:], b[:] = 0, threshold


EDITS: dict[str, Edit | None] = {
    "as trained": None,
    "zero rows": zero_rows,
    "duplicate rows": duplicate_rows,
    "opposite rows": opposite_rows,
    "equal biases": equal_biases,
    "biases at the threshold": biases_at_the_threshold,
    "whole numbers": whole_numbers,
    "nothing learned": nothing_learned,
}


@dataclass(frozen=True)
class Setting:
    """A head with parameters, and the indexer that lists its candidates, if any."""

    head: str
    params: dict[str, Any]
    indexer: str = ""
    labels: int = 11


def settings(context: Context) -> Iterator[Setting]:
    """Yield every registered head, in small sizes, with both kinds of thresholds, without and with an index."""
    # The second is narrower than W, so that prediction uses W·P.
    encoders = [{"use": "sparse-linear", "width": 24}, {"use": "sparse-linear", "width": 2}]
    for name in context.names("head"):
        cls = context.resolve("head", name)
        known, wanted = cls.Params.model_fields, {"dim": 3, "slack": 2, "epochs": 3, "candidates": 5, "alone": True}
        params = {key: value for key, value in wanted.items() if key in known}
        listed = [one for one in context.names("indexer") if cls.needs <= context.resolve("indexer", one).provides]
        if needs_index(cls) or "encoder" not in known:
            yield Setting(name, params, listed[0] if needs_index(cls) else "")
            continue
        thresholds = ["validation", 0.1, 0.0] if "threshold" in known else [None]
        for threshold in thresholds:
            chosen = {} if threshold is None else {"threshold": threshold}
            for encoder in encoders:
                yield Setting(name, {**params, **chosen, "encoder": encoder})
            if listed:
                yield Setting(name, {**params, **chosen, "encoder": encoders[0]}, listed[0])
        if "active" in known:  # a ranking of DFT logits, and a degree for which its transform uses rotations
            yield Setting(name, {**params, "loss": "softmax", "encoder": encoders[0]})
            yield Setting(name, {**params, "active": 14, "encoder": {"use": "sparse-linear", "width": 40}}, labels=40)


def train(setting: Setting, seed: int, context: Context) -> Any:
    split = small_problem(labels=setting.labels, seed=seed)
    validation = small_problem(rows=30, labels=setting.labels, seed=seed + 1000)
    context = context.using(seed=seed, validation=validation)
    indexes = []
    if setting.indexer:
        indexes = [context.build("indexer", {"use": setting.indexer}).build(split, context=context)]
    head = context.resolve("head", setting.head)(**setting.params)
    head.fit(split, indexes=indexes, context=context)
    return head


def edit_weights(head: Any, edit: Edit, rng: np.random.Generator) -> None:
    """Edit the layer of a trained head, and do what follows training."""
    with torch.no_grad():
        edit(head, float(np.float32(head.threshold)), rng)
    head.network.fold()


def inputs(head: Any, rows: int, labels: int, seed: int) -> csr_matrix:
    """Return real rows, random ones, one without features, and rows where a label is about to change."""
    rng = np.random.default_rng(seed)
    known = small_problem(rows=rows // 4, labels=labels, seed=seed + 1).matrix
    noise = rng.standard_normal((rows // 4, known.shape[1])) * (rng.random((rows // 4, known.shape[1])) < 0.4)
    whole = rng.integers(-2, 3, (rows // 8, known.shape[1])) * (rng.random((rows // 8, known.shape[1])) < 0.2)
    X = csr_matrix(vstack([known, noise, whole, 1e4 * noise[:3], 1e-4 * noise[:3], 0 * noise[:1]]), dtype=np.float32)
    return csr_matrix(vstack([X, _edges(head, X, rows - X.shape[0], rng)]), dtype=np.float32)


def _edges(head: Any, X: csr_matrix, count: int, rng: np.random.Generator) -> csr_matrix:
    """Halve the way between two rows with different sets until float32 can no longer; return both ends."""
    pairs = max(1, count // 2)
    one, other = (X[rng.integers(0, X.shape[0], pairs)].toarray() for _ in range(2))
    first = head.labels(csr_matrix(one)).toarray() != 0
    for _ in range(HALVINGS):
        middle = ((one + other) / 2).astype(np.float32)
        same = ((head.labels(csr_matrix(middle)).toarray() != 0) == first).all(axis=1)
        one[same], other[~same] = middle[same], middle[~same]
    return csr_matrix(np.vstack([one, other]))


def attack_outputs(name: str, head: Any, X: csr_matrix, context: Context) -> dict[str, int]:
    """Verify all label sets that a head outputs for rows; return counts, of which `contradictions` must be 0."""
    labels = int(head.labels(X[:1]).shape[1])
    output = label_sets(name, head, X, labels)
    split, ordinary = Split(X=None, Y=output), X.shape[0] // 2  # the rows at the edge of a decision come last
    real = RealRows("attack", np.arange(ordinary), {name: X[:ordinary]})
    verifier = context.build("verifier", VERIFIER)
    counts = Counter({"outputs": X.shape[0], CONTRADICTIONS: 0, MISMATCHES: 0})
    try:
        with tempfile.TemporaryDirectory() as folder:
            summary = verify(
                Path(folder), verifier, [(name, head)], split,
                X={name: X}, real=real, predicted=True, most=X.shape[0], context=context,
            )  # fmt: skip
    except VerificationError as error:
        print(f"{name}: {error}")
        counts[CONTRADICTIONS] += 1
        return dict(counts)
    result = summary["results"][-1]  # behind a shortlist, that of the rows' candidates
    if "mismatch" in result:
        print(f"{name}: {result['why']}")
        counts[MISMATCHES] += 1
    else:
        decision, vectors = head.decision(), head.features(X)
        found = compare(decision, vectors, output, candidates_of(name, head, X, labels))
        counts["outputs within rounding of another set"] += len(found.rounded)
        counts["outputs by rounding only"] += result["by_rounding"]
        counts["unresolved"] += result["counts"]["unresolved"]
    return dict(counts)


def attack(seeds: int, rows: int, *, only: Callable[[Setting], bool] = lambda setting: True) -> dict[str, Any]:
    """Attack every head with every edit; return the counts of each edit, and of all together."""
    context = make_context(workers=1)
    by_edit: dict[str, Counter[str]] = {edit: Counter() for edit in EDITS}
    trained: Counter[str] = Counter()
    without_decision: set[str] = set()
    for seed, setting in itertools.product(range(seeds), filter(only, settings(context))):
        if setting.head in without_decision:
            continue
        head = train(setting, seed, context)
        if head.decision() is None:
            without_decision.add(setting.head)
            continue
        trained[setting.head] += 1
        state = head.network.state_dict() if hasattr(head, "network") else {}
        kept = {name: value.clone() for name, value in state.items()}
        for edit, function in EDITS.items() if kept else [("as trained", None)]:
            if function is not None:
                head.network.load_state_dict(kept)
                edit_weights(head, function, np.random.default_rng([seed, len(edit)]))
            X = inputs(head, rows, setting.labels, seed)
            by_edit[edit].update(attack_outputs(setting.head, head, X, context))
    total: Counter[str] = Counter()
    for counts in by_edit.values():
        total.update(counts)
    return {
        "seeds": seeds,
        "rows": rows,
        "trained heads": dict(trained),
        "heads without a decision": sorted(without_decision),
        "all": dict(total),
        "by edit": {edit: dict(counts) for edit, counts in by_edit.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="problems (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=200, help="rows for each head and edit (default: %(default)s)")
    options = parser.parse_args()
    begin = time.perf_counter()
    results = attack(options.seeds, options.rows)
    print(json.dumps(results, indent=1))
    write_results(RESULTS, {**results, "seconds": round(time.perf_counter() - begin, 1)})


if __name__ == "__main__":
    main()
