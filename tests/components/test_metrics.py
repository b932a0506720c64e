"""Metrics against pure Python sets (every rule of docs/metrics.md), against napkinXC, and against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.sparse import csr_matrix

from xmckit.components.metrics import (
    RankingMetrics,
    SetMetrics,
    inverse_propensity,
    propensity_constants,
    rank_metrics,
    set_metrics,
)
from xmckit.errors import DataError, UsageError
from xmckit.protocols import Metric
from xmckit.records import Evaluation, TopK

KS = [1, 2, 3, 5, 9]


def to_csr(rows, labels, dtype=np.float32):
    """A matrix with ones at the labels of each row."""
    indices = [label for row in rows for label in sorted(row)]
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    return csr_matrix((np.ones(len(indices), dtype), indices, indptr), shape=(len(rows), labels))


def to_topk(rankings, width=None):
    width = width or max([1, *(len(ranking) for ranking in rankings)])
    indices = np.full((len(rankings), width), -1, dtype=np.int32)
    scores = np.full((len(rankings), width), -np.inf, dtype=np.float32)
    for row, ranking in enumerate(rankings):
        indices[row, : len(ranking)] = ranking
        scores[row, : len(ranking)] = np.arange(len(ranking), 0, -1)
    return TopK(indices, scores)


def brute_force(rankings, truth, ks, weights, filtered):
    """The definitions, word by word."""
    truth = [set(row) - set(drop) for row, drop in zip(truth, filtered, strict=True)]
    rankings = [[label for label in row if label not in drop] for row, drop in zip(rankings, filtered, strict=True)]
    rows, occurring, scores = len(truth), set().union(*truth), {}
    for k in ks:
        precision = recall = ndcg = gain = best_gain = weighted = best_weighted = 0.0
        covered = set()
        for ranking, true in zip(rankings, truth, strict=True):
            hits = [(rank, label) for rank, label in enumerate(ranking[:k]) if label in true]
            precision += len(hits) / k
            covered |= {label for _, label in hits}
            gain += sum(weights[label] for _, label in hits)
            best = sorted((weights[label] for label in true), reverse=True)[:k]
            best_gain += sum(best)
            if true:
                ideal = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(true))))
                recall += len(hits) / len(true)
                ndcg += sum(1 / math.log2(rank + 2) for rank, _ in hits) / ideal
                weighted += sum(weights[label] / math.log2(rank + 2) for rank, label in hits) / ideal
                best_weighted += sum(weight / math.log2(rank + 2) for rank, weight in enumerate(best)) / ideal
        P, R = precision / rows, recall / rows
        scores |= {
            f"P@{k}": P,
            f"nDCG@{k}": ndcg / rows,
            f"R@{k}": R,
            f"F1@{k}": 2 * P * R / (P + R) if P + R else 0.0,
            f"PSP@{k}": gain / best_gain,
            f"PSnDCG@{k}": weighted / best_weighted,
            f"coverage@{k}": len(covered) / len(occurring),
        }
    return scores


def brute_force_sets(sets, truth, filtered):
    sets, truth = ([set(row) - set(drop) for row, drop in zip(m, filtered, strict=True)] for m in (sets, truth))
    pairs, true_pairs = ({(r, label) for r, row in enumerate(m) for label in row} for m in (sets, truth))
    per_label = []
    for label in set().union(*truth):
        predicted, true = ({r for r, row in enumerate(m) if label in row} for m in (sets, truth))
        per_label.append(2 * len(predicted & true) / (len(predicted) + len(true)))
    return {
        "micro-F1": 2 * len(pairs & true_pairs) / (len(pairs) + len(true_pairs)),
        "macro-F1": sum(per_label) / len(per_label),
    }


@st.composite
def problems(draw, labels=9):
    """(rankings, truth, filtered): rows may be empty, but some pair is left to score."""
    label_sets = st.sets(st.integers(0, labels - 1))
    rankings = st.lists(st.integers(0, labels - 1), unique=True)
    rows = draw(st.lists(st.tuples(rankings, label_sets, label_sets), min_size=1, max_size=6))
    rows.append((draw(rankings), {draw(st.integers(0, labels - 1))}, set()))
    return tuple(zip(*rows, strict=True))


def random_problem(seed, rows=60, labels=400, width=12, per_row=4):
    """Power-law labels; about half of the true ones are somewhere in the ranking."""
    rng = np.random.default_rng(seed)
    rankings, truth = [], []
    for _ in range(rows):
        true = {int(labels * u**3) for u in rng.random(rng.integers(0, 2 * per_row))}
        pool = [label for label in true if rng.random() < 0.5] + rng.permutation(labels)[:width].tolist()
        rankings.append(rng.permutation(list(dict.fromkeys(pool))[:width]).tolist())
        truth.append(true)
    return rankings, truth


@given(problems())
@settings(deadline=None, max_examples=150, derandomize=True)
def test_ranking_equals_brute_force(problem):
    rankings, truth, filtered = problem
    weights = 1 + np.arange(9) % 4 / 3
    got = rank_metrics(
        to_topk(rankings), to_csr(truth, 9), ks=KS, inverse_propensity=weights, filtered=to_csr(filtered, 9)
    )
    assert got == pytest.approx(brute_force(rankings, truth, KS, weights, filtered), abs=1e-12)


@given(problems())
@settings(deadline=None, max_examples=100, derandomize=True)
def test_csr_predictions_equal_topk(problem):
    rankings, truth, filtered = problem
    scores = csr_matrix(
        (
            # The last score of a row is a stored zero: still a prediction.
            [float(len(row) - 1 - rank) for row in rankings for rank in range(len(row))],
            [label for row in rankings for label in row],
            np.cumsum([0, *map(len, rankings)]),
        ),
        shape=(len(rankings), 9),
    )
    options = {"ks": [1, 3], "filtered": to_csr(filtered, 9)}
    assert rank_metrics(scores, to_csr(truth, 9), **options) == rank_metrics(
        to_topk(rankings), to_csr(truth, 9), **options
    )


@given(problems(), st.lists(st.sets(st.integers(0, 8)), min_size=7, max_size=7))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_sets_equal_brute_force(problem, sets):
    _, truth, filtered = problem
    sets = sets[: len(truth)]
    got = set_metrics(to_csr(sets, 9), to_csr(truth, 9), filtered=to_csr(filtered, 9))
    assert got == pytest.approx(brute_force_sets(sets, truth, filtered), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_ranking_equals_napkinxc(seed):
    napkin = pytest.importorskip("napkinxc.metrics")
    rankings, truth = random_problem(seed)
    deepest, lists = 15, [sorted(row) for row in truth]
    train = to_csr(random_problem(seed + 100, rows=80)[1], 400)
    weights = inverse_propensity(np.bincount(train.indices, minlength=400), 80, 0.55, 1.5)
    np.testing.assert_allclose(weights, napkin.Jain_et_al_inverse_propensity(train, A=0.55, B=1.5), rtol=1e-6)

    ks = list(range(1, deepest + 1))
    got = rank_metrics(to_topk(rankings), to_csr(truth, 400), ks=ks, inverse_propensity=weights)
    theirs = {
        "P": napkin.precision_at_k(lists, rankings, k=deepest),
        "R": napkin.recall_at_k(lists, rankings, k=deepest),
        "nDCG": napkin.ndcg_at_k(lists, rankings, k=deepest),
        "PSP": napkin.psprecision_at_k(lists, rankings, weights, k=deepest),
        "PSnDCG": napkin.psndcg_at_k(lists, rankings, weights, k=deepest),
        "coverage": napkin.coverage_at_k(lists, rankings, k=deepest),
    }
    for name, values in theirs.items():
        assert [got[f"{name}@{k}"] for k in ks] == pytest.approx(list(values), rel=1e-12), name


@pytest.mark.parametrize("seed", range(4))
def test_scores_without_ties_in_csr_equal_napkinxc(seed):
    napkin = pytest.importorskip("napkinxc.metrics")
    rng = np.random.default_rng(seed)
    scores = csr_matrix(rng.permutation(50 * 40).reshape(50, 40) * (rng.random((50, 40)) < 0.3), dtype=np.float32)
    truth = csr_matrix(rng.random((50, 40)) < 0.1, dtype=np.float32)
    got = rank_metrics(scores, truth, ks=range(1, 8))
    theirs = napkin.ndcg_at_k(truth, scores, k=7)
    assert [got[f"nDCG@{k}"] for k in range(1, 8)] == pytest.approx(list(theirs), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_sets_equal_napkinxc(seed):
    """napkinXC averages over the ids 0 … largest seen, we over labels that occur in the truth: the sums are equal."""
    napkin = pytest.importorskip("napkinxc.metrics")
    sets, truth = random_problem(seed)
    got = set_metrics(to_csr(sets, 400), to_csr(truth, 400))
    lists = [sorted(row) for row in truth]
    assert got["micro-F1"] == pytest.approx(napkin.f1_measure(lists, sets, average="micro"), rel=1e-12)
    ids = 1 + max(label for row in [*sets, *truth] for label in row)
    theirs = napkin.f1_measure(lists, sets, average="macro") * ids / len(set().union(*truth))
    assert got["macro-F1"] == pytest.approx(theirs, rel=1e-12)


def test_ratio_of_sums_is_not_the_mean_of_ratios():
    weights = np.array([1.0, 9.0])
    got = rank_metrics(to_topk([[0], [0]]), to_csr([{0}, {1}], 2), ks=[1], inverse_propensity=weights)
    assert got["PSP@1"] == pytest.approx(1 / 10)  # the mean of the rows' ratios would be 1/2


def test_the_best_ranking_scores_one():
    _, truth = random_problem(7)
    weights = inverse_propensity(np.arange(400), 1000, 0.6, 2.6)
    best = [sorted(row, key=lambda label: (-weights[label], label)) for row in truth]
    got = rank_metrics(to_topk(best), to_csr(truth, 400), ks=[1, 3, 100], inverse_propensity=weights)
    for name in ("PSP@1", "PSP@3", "PSP@100", "PSnDCG@1", "PSnDCG@3", "PSnDCG@100", "coverage@100"):
        assert got[name] == pytest.approx(1, rel=1e-12), name
    labelled = sum(bool(row) for row in truth) / len(truth)
    assert labelled < 1
    assert got["R@100"] == pytest.approx(labelled, rel=1e-12)
    assert got["nDCG@3"] == pytest.approx(labelled, rel=1e-12)


def test_k_beyond_the_ranking_and_the_labels():
    got = rank_metrics(to_topk([[1, 0]]), to_csr([{0, 1}], 3), ks=[10**9, 2])
    assert list(got)[:2] == ["P@2", "P@1000000000"]
    assert got["P@1000000000"] == 2e-9
    assert got["R@1000000000"] == got["nDCG@1000000000"] == 1


def test_dropped_predictions_let_the_following_move_up():
    got = rank_metrics(to_topk([[3, 2, 1]]), to_csr([{1, 3}], 4), ks=[1, 2], filtered=to_csr([{2, 3}], 4))
    assert got["P@1"] == got["R@1"] == got["nDCG@1"] == 1
    assert got["P@2"] == 0.5


def test_stored_zeros_and_doubled_entries_of_the_truth():
    truth = csr_matrix(([1.0, 0.0, 1.0, 1.0], [2, 1, 0, 0], [0, 4]), shape=(1, 3))
    assert rank_metrics(to_topk([[0, 1, 2]]), truth, ks=[3])["R@3"] == 1
    assert rank_metrics(to_topk([[0, 1, 2]]), truth, ks=[3])["P@3"] == pytest.approx(2 / 3)
    assert truth.nnz == 4


def test_wide_rankings():
    rng = np.random.default_rng(0)
    labels = 50_000
    rankings = [rng.permutation(labels)[:2000].tolist() for _ in range(4)]
    truth = [set(rng.permutation(labels)[:300].tolist()) | set(ranking[::37]) for ranking in rankings]
    weights = 1 + rng.random(labels)
    got = rank_metrics(to_topk(rankings), to_csr(truth, labels), ks=[5, 700, 2000], inverse_propensity=weights)
    assert got == pytest.approx(brute_force(rankings, truth, [5, 700, 2000], weights, [set()] * 4), rel=1e-10)
    rankings[2][1999] = rankings[2][0]
    assert rankings[2][0] in truth[2]
    with pytest.raises(DataError, match=rf"row 2: label {rankings[2][0]} is predicted twice"):
        rank_metrics(to_topk(rankings), to_csr(truth, labels))


def large_problem(rows=5000, labels=700, width=30):
    """Rows for several blocks of work; some rows are padded, without labels, or filtered."""
    rng = np.random.default_rng(5)
    indices = np.argsort(rng.random((rows, labels)), axis=1)[:, :width].astype(np.int32)
    filled = rng.integers(0, 2 * width, rows)
    indices[np.arange(width) >= filled[:, None]] = -1
    scores = -np.sort(rng.random((rows, width), dtype=np.float32), axis=1)
    truth, filtered = (csr_matrix(rng.random((rows, labels)) < share, dtype=np.float32) for share in (0.02, 0.005))
    return TopK(indices, scores), truth, filtered, 1 + rng.random(labels)


def test_blocks_of_rows_equal_brute_force_and_workers_do_not_change_a_bit():
    topk, truth, filtered, weights = large_problem()
    options = {"ks": [1, 5, 17, 30], "inverse_propensity": weights, "filtered": filtered}
    alone, *others = (rank_metrics(topk, truth, **options, workers=workers) for workers in (1, 2, 3))
    assert all(list(other.items()) == list(alone.items()) for other in others)
    rankings = [[label for label in row if label >= 0] for row in topk.indices.tolist()]
    true, dropped = ([row.tolist() for row in np.split(m.indices, m.indptr[1:-1])] for m in (truth, filtered))
    assert alone == pytest.approx(brute_force(rankings, true, [1, 5, 17, 30], weights, dropped), rel=1e-10)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_first_wrong_row_is_reported(workers):
    topk, truth, _, _ = large_problem()
    indices, scores = topk.indices.copy(), topk.scores.copy()
    again = truth[2000].indices[0]
    indices[[2000, 2010, 4500], :2] = [[again, again], [0, 700], [700, 0]]
    indices[2000, 2:] = indices[2010, 2:] = -1
    for row, message in [
        (2000, f"label {again} is predicted twice"),
        (2010, "label 700 is predicted"),
        (4500, "label 700 is"),
    ]:
        with pytest.raises(DataError, match=f"row {row}: {message}"):
            rank_metrics(TopK(indices, scores), truth, workers=workers)
        indices[row] = -1
    rank_metrics(TopK(indices, scores), truth, workers=workers)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 200])
def test_few_and_many_true_labels_are_found_alike(size):
    """Few are scanned for, many are searched among."""
    rng = np.random.default_rng(size)
    rankings = [rng.permutation(300)[:50].tolist() for _ in range(20)]
    truth = [set(rng.permutation(300)[:size].tolist()) for _ in rankings]
    weights = 1 + rng.random(300)
    got = rank_metrics(to_topk(rankings), to_csr(truth, 300), ks=[1, 7, 50], inverse_propensity=weights)
    assert got == pytest.approx(brute_force(rankings, truth, [1, 7, 50], weights, [set()] * 20), rel=1e-10)
    hit = next(iter(truth[3]))
    rankings[3] = [label for label in rankings[3] if label != hit][:48]
    rankings[3] = [hit, *rankings[3], hit]
    with pytest.raises(DataError, match=f"row 3: label {hit} is predicted twice"):
        rank_metrics(to_topk(rankings), to_csr(truth, 300))


def test_a_wrong_label_that_is_predicted_twice_is_two_misses():
    got = rank_metrics(to_topk([[4, 4, 1]]), to_csr([{1}], 5), ks=[2, 3])
    assert (got["P@2"], got["P@3"]) == (0, pytest.approx(1 / 3))


def test_hundreds_of_cutoffs():
    rng = np.random.default_rng(1)
    rankings = [rng.permutation(600)[:400].tolist() for _ in range(20)]
    truth = [set(rng.permutation(600)[: rng.integers(0, 40)].tolist()) for _ in rankings]
    weights, ks = 1 + rng.random(600), list(range(1, 401))
    got = rank_metrics(to_topk(rankings), to_csr(truth, 600), ks=ks, inverse_propensity=weights)
    assert got == pytest.approx(brute_force(rankings, truth, ks, weights, [set()] * 20), rel=1e-10)


def test_rankings_without_places():
    empty = TopK(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32))
    assert set(rank_metrics(empty, to_csr([{0, 1}, {2}], 3), ks=[1]).values()) == {0.0}


def test_propensity_of_jain_et_al():
    assert propensity_constants("Wikipedia") == (0.5, 0.4)
    assert propensity_constants("amazon") == (0.6, 2.6)
    assert propensity_constants("other") == propensity_constants(None) == (0.55, 1.5)
    assert propensity_constants([0.7, 2]) == (0.7, 2.0)
    # A label seen once: (n + B)^−A and (B + 1)^A cancel, which leaves ln N.
    assert inverse_propensity(np.array([1]), 1000, 0.6, 2.6) == pytest.approx([math.log(1000)])
    # A label never seen, B = 1: (1 + 1)^A is left of the two.
    assert inverse_propensity(np.array([0]), 3, 0.5, 1.0) == pytest.approx([1 + (math.log(3) - 1) * 2**0.5])


@pytest.mark.parametrize("family", ["amazn", (0.5,), (0.5, -1.0), (0.5, math.nan)])
def test_wrong_propensity_constants(family):
    with pytest.raises(UsageError, match="did you mean 'amazon'" if family == "amazn" else "two positive numbers"):
        propensity_constants(family)


@pytest.mark.parametrize("rows", [1, 2])
def test_too_few_rows_for_propensities_make_every_label_count_the_same(rows):
    np.testing.assert_array_equal(inverse_propensity(np.array([0, rows]), rows, 0.55, 1.5), [1.0, 1.0])


@pytest.mark.parametrize(
    ("counts", "rows", "message"), [([0], 0, "need training rows"), ([0, 4], 3, "label 1 has 4"), ([-1], 3, "0 has -1")]
)
def test_wrong_training_counts(counts, rows, message):
    with pytest.raises(DataError, match=message):
        inverse_propensity(np.array(counts), rows, 0.55, 1.5)


@pytest.mark.parametrize(
    ("indices", "scores", "message"),
    [
        ([[0, 1], [1, 1]], [[2, 1], [2, 1]], "row 1: label 1 is predicted twice"),
        ([[0, 1], [0, 4]], [[2, 1], [2, 1]], "row 1: label 4 is predicted, expected 0 to 3"),
        ([[0, 1], [0, -2]], [[2, 1], [2, 1]], "row 1: label -2 is predicted"),
        ([[0, 1], [-1, 2]], [[2, 1], [2, 1]], r"row 1: a label follows the padding \(−1\) at rank 1"),
        ([[0, 1], [0, 1]], [[2, 1], [2, math.nan]], r"row 1: a predicted score is not a number"),
        ([[0], [1]], [[2], [math.nan]], r"row 1: a predicted score is not a number"),
        ([[0, 1], [0, 1]], [[2, 1], [1, 2]], "row 1: the predicted scores are 1 at rank 1 and 2 at rank 2"),
        ([[0, 1]], [[2, 1]], "1 rows of predictions but 2 rows of truth"),
        ([[0, 1], [0, 1]], [[2], [1]], "expected rows × k"),
        ([[0, 2**40], [0, 1]], [[2, 1], [2, 1]], "32-bit"),
    ],
)
def test_wrong_rankings(indices, scores, message):
    indices = np.array(indices)
    topk = TopK(indices if indices.max() > 2**31 else indices.astype(np.int32), np.array(scores, dtype=np.float32))
    with pytest.raises(DataError, match=message):
        rank_metrics(topk, to_csr([{0}, {1}], 4))


def test_other_wrong_input():
    topk, truth = to_topk([[0, 1]]), to_csr([{0}], 2)
    bad = csr_matrix(([1.0], [0], [0, 1]), shape=(1, 2))
    bad.indices = np.array([7], dtype=np.int32)
    doubled = csr_matrix(([1.0, 2.0], [1, 1], [0, 2]), shape=(1, 2))
    for error, call in [
        ("no row of the truth", lambda: rank_metrics(topk, to_csr([set()], 2))),
        ("no row of the truth", lambda: rank_metrics(topk, truth, filtered=truth)),
        ("no row of the truth", lambda: set_metrics(truth, to_csr([set()], 2))),
        ("no rows to score", lambda: rank_metrics(to_topk([], 1), to_csr([], 2))),
        ("the truth is not a sound", lambda: rank_metrics(topk, bad)),
        ("the filter has 1 rows × 3", lambda: rank_metrics(topk, truth, filtered=to_csr([{0}], 3))),
        ("the matrix of label sets has", lambda: set_metrics(to_csr([{0}], 3), truth)),
        ("row 0: a label has two scores", lambda: rank_metrics(doubled, truth)),
        (r"row 0: a score is not a number", lambda: rank_metrics(_nan_scores(), truth)),
        ("2 positive numbers", lambda: rank_metrics(topk, truth, inverse_propensity=np.array([1.0, 0.0]))),
        ("2 positive numbers", lambda: rank_metrics(topk, truth, inverse_propensity=np.ones(3))),
    ]:
        with pytest.raises(DataError, match=error):
            call()
    for call in (
        lambda: rank_metrics(topk, truth, ks=[]),
        lambda: rank_metrics(topk, truth.tocsc()),
    ):
        with pytest.raises(UsageError):
            call()


def _nan_scores():
    return csr_matrix(([math.nan], [0], [0, 1]), shape=(1, 2))


def test_components():
    rankings, truth = random_problem(3)
    counts = np.arange(400)
    evaluation = Evaluation(
        topk=to_topk(rankings),
        truth=to_csr(truth, 400),
        train_counts=counts,
        train_rows=500,
        propensity=(0.6, 2.6),
        sets=to_csr(rankings, 400),
    )
    ranking, sets = RankingMetrics(k=[5, 1]), SetMetrics()
    assert isinstance(ranking, Metric)
    assert isinstance(sets, Metric)
    got = ranking.compute(evaluation)
    weights = inverse_propensity(counts, 500, 0.6, 2.6)
    expected = rank_metrics(evaluation.topk, evaluation.truth, ks=[1, 5], inverse_propensity=weights)
    assert got == expected == ranking.compute(replace(evaluation, workers=2))
    names = ["P", "nDCG", "R", "F1", "PSP", "PSnDCG", "coverage"]
    assert set(expected) == {f"{m}@{k}" for m in names for k in (1, 5)}
    assert sets.compute(evaluation) == set_metrics(evaluation.sets, evaluation.truth)
    without = Evaluation(evaluation.topk, evaluation.truth, counts, 500, (0.6, 2.6))
    assert sets.compute(without) == {}
    for wrong in ({"k": []}, {"k": [0]}, {"depth": 3}):
        with pytest.raises(ValidationError):
            RankingMetrics(**wrong)
