"""The numbers behind the report's pictures, against counting one pair at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit.components.metrics import inverse_propensity, rank_metrics
from xmckit.context import Context
from xmckit.data.model import Dataset, Split
from xmckit.pipeline.diagnostics import BINS, FREQUENCY_EDGES, GROUPS, Output, diagnose, examples, thirds
from xmckit.records import TopK
from xmckit.registry import Registry

CONSTANTS = (0.55, 1.5)


def sparse(rng: np.random.Generator, rows: int, labels: int, share: float) -> csr_matrix:
    return csr_matrix((rng.random((rows, labels)) < share).astype(np.float32))


def problem(seed: int, filtered: bool) -> tuple[Dataset, TopK, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows, labels, depth = 17, 23, 8
    # frequencies that differ: label j is on a share of rows that falls with j
    train = csr_matrix((rng.random((200, labels)) < 0.5 / (1 + np.arange(labels))).astype(np.float32))
    left_out = sparse(rng, rows, labels, 0.1) if filtered else None
    test = Split(X=csr_matrix((rows, 2), dtype=np.float32), Y=sparse(rng, rows, labels, 0.2), filter=left_out)
    indices = np.array([rng.permutation(labels)[:depth] for _ in range(rows)], dtype=np.int32)
    scores = -np.sort(-rng.normal(size=(rows, depth)).astype(np.float32), axis=1)
    for row in range(0, rows, 5):  # some lists are short
        indices[row, 4:], scores[row, 4:] = -1, -np.inf
    dataset = Dataset("toy", Split(X=csr_matrix((200, 2), dtype=np.float32), Y=train), test)
    return dataset, TopK(indices, scores), np.bincount(train.indices, minlength=labels)


def counted(dataset: Dataset, topk: TopK, weights: np.ndarray, members: set[int]) -> dict[str, list[float]]:
    """Of the labels in `members`, at each depth, pair by pair."""
    Y, out = dataset.test.Y.toarray(), dataset.test.filter
    dropped = np.zeros_like(Y) if out is None else out.toarray()
    found: dict[str, list[float]] = {
        key: [0.0] * topk.k for key in ("predicted", "right", "possible", "gain", "best_gain")
    }
    for row in range(topk.rows):
        truth = {label for label in np.flatnonzero(Y[row]) if not dropped[row, label]}
        ranking = [label for label in topk.indices[row] if label >= 0 and not dropped[row, label]]
        for depth in range(topk.k):
            listed = [label for label in ranking[: depth + 1] if label in members]
            found["predicted"][depth] += len(listed)
            found["right"][depth] += sum(label in truth for label in listed)
            found["gain"][depth] += sum(weights[label] for label in listed if label in truth)
            best = sorted((weights[label] for label in truth & members), reverse=True)[: depth + 1]
            found["possible"][depth] += len(best)
            found["best_gain"][depth] += sum(best)
    return found


def output(topk: TopK, *, probabilistic: bool = True) -> Output:
    return Output("a", "head", topk, csr_matrix((topk.rows, 1)), probabilistic)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_groups_are_as_counted_by_hand(seed: int, filtered: bool) -> None:
    dataset, topk, counts = problem(seed, filtered)
    numbers = diagnose([output(topk)], dataset, counts, CONSTANTS, 3)
    weights = inverse_propensity(counts, dataset.train.rows, *CONSTANTS)
    (system,) = numbers["systems"]
    least = [group["least"] for group in numbers["groups"]]
    of = [
        {label for label, count in enumerate(counts) if count >= least[0]},
        {label for label, count in enumerate(counts) if least[1] <= count < least[0]},
        {label for label, count in enumerate(counts) if count < least[1]},
    ]
    assert [len(group) for group in of] == [group["labels"] for group in numbers["groups"]]
    for place, members in enumerate(of):
        for key, values in counted(dataset, topk, weights, members).items():
            assert system["thirds"][key][place] == pytest.approx(values), (GROUPS[place], key)
    for key, values in counted(dataset, topk, weights, set(range(dataset.labels))).items():
        assert system["all"][key] == pytest.approx(values), key
    edges = [*FREQUENCY_EDGES, math.inf]
    for place in range(len(FREQUENCY_EDGES)):
        members = {label for label, count in enumerate(counts) if edges[place] <= count < edges[place + 1]}
        for key, values in counted(dataset, topk, weights, members).items():
            assert system["bins"][key][place] == pytest.approx(values[2]), (place, key)


@pytest.mark.parametrize("filtered", [False, True])
def test_all_labels_together_are_the_metrics(filtered: bool) -> None:
    dataset, topk, counts = problem(7, filtered)
    numbers = diagnose([output(topk)], dataset, counts, CONSTANTS, 3)
    weights = inverse_propensity(counts, dataset.train.rows, *CONSTANTS)
    metrics = rank_metrics(topk, dataset.test.Y, ks=[1, 3], inverse_propensity=weights, filtered=dataset.test.filter)
    of_all = numbers["systems"][0]["all"]
    for k in (1, 3):
        assert of_all["right"][k - 1] / (topk.rows * k) == pytest.approx(metrics[f"P@{k}"])
        assert of_all["gain"][k - 1] / of_all["best_gain"][k - 1] == pytest.approx(metrics[f"PSP@{k}"])


@pytest.mark.parametrize("seed", range(3))
def test_calibration_is_as_counted_by_hand(seed: int) -> None:
    dataset, topk, counts = problem(seed, filtered=False)
    told: dict[str, Any] = diagnose([output(topk)], dataset, counts, CONSTANTS, 3)["systems"][0]
    Y = dataset.test.Y.toarray()
    pairs = [
        (1 / (1 + math.exp(-float(topk.scores[row, place]))), bool(Y[row, topk.indices[row, place]]))
        for row in range(topk.rows)
        for place in range(3)
    ]
    error = 0.0
    for low in range(BINS):
        here = [pair for pair in pairs if low <= pair[0] * BINS < low + 1]
        if here:
            said, true = (sum(column) / len(here) for column in zip(*here, strict=True))
            error += abs(said - true) * len(here) / len(pairs)
    assert told["calibration"]["ece"] == pytest.approx(error, abs=1e-6)
    assert told["calibration"]["places"] == len(pairs)


def test_scores_that_are_no_logits_are_not_called_calibrated() -> None:
    dataset, topk, counts = problem(0, filtered=False)
    outputs = [output(topk, probabilistic=False), output(topk)]
    numbers = diagnose(outputs, dataset, counts, CONSTANTS, 3)
    assert [system["calibration"] is None for system in numbers["systems"]] == [True, False]


@pytest.mark.parametrize(
    ("name", "params", "meant"),
    [
        ("bsl", {}, True),
        ("lml", {}, False),
        ("softmax", {}, False),
        ("topk-entropy", {}, False),
        ("dft", {"loss": "bce"}, True),
        ("dft", {"loss": "lml"}, False),
        ("miml", {"loss": "softmax"}, False),
        ("xrlinear", {}, True),
        ("xrlinear", {"post_processor": "noop"}, False),
        ("popularity", {}, True),
    ],
)
def test_heads_say_whether_their_scores_are_meant_as_probabilities(name: str, params: Any, meant: bool) -> None:
    registry = Registry()
    if name not in registry.names("head"):
        pytest.skip(f"there is no head {name}")
    assert getattr(registry.resolve("head", name)(**params), "probabilistic", True) is meant


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_thirds_hold_about_a_third_each(counts: list[int]) -> None:
    head, torso = thirds(np.array(counts))
    assert head >= torso >= 1 or not any(counts) or torso == 0
    total = sum(counts)
    assert sum(count for count in counts if count >= head) >= total / 3
    assert sum(count for count in counts if count >= torso) >= 2 * total / 3
    # the head is no larger than it needs to be: without its rarest labels it holds less than a third
    assert sum(count for count in counts if count > head) < max(total / 3, 1)


@pytest.mark.parametrize("filtered", [False, True])
def test_examples_are_what_they_are_called(filtered: bool) -> None:
    dataset, topk, _ = problem(3, filtered)
    found = examples(topk, dataset, 5, Context(seed=4))
    assert found == examples(topk, dataset, 5, Context(seed=4))
    assert len({example["row"] for example in found}) == len(found)
    Y, out = dataset.test.Y.toarray(), dataset.test.filter
    for example in found:
        row = example["row"]
        dropped = set() if out is None else set(out[row].indices.tolist())
        truth = {str(label) for label in np.flatnonzero(Y[row]) if label not in dropped}
        assert {item["label"] for item in example["truth"]} == truth
        assert all(item["hit"] == (item["label"] in truth) for item in example["predicted"])
        listed = {item["label"] for item in example["predicted"]}
        assert all(item["found"] == (item["label"] in listed) for item in example["truth"])
        assert not dropped & {int(label) for label in listed}


def test_rows_without_labels_or_predictions_are_no_examples() -> None:
    Y = csr_matrix(np.array([[1, 0], [0, 0], [0, 1]], dtype=np.float32))
    split = Split(X=csr_matrix((3, 1), dtype=np.float32), Y=Y)
    topk = TopK(np.array([[0], [0], [-1]], dtype=np.int32), np.array([[1.0], [1.0], [-np.inf]], dtype=np.float32))
    found = examples(topk, Dataset("toy", split, split), 1, Context())
    assert [(example["row"], example["kind"]) for example in found] == [(0, "all right")]
