"""The bound on the rounding of scorers, and the comparison of outputs with decisions, against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import xmckit
from xmckit.decisions import compare, contested_labels, float32_error, scores_and_bounds


def exact_score(w, x, b):
    return sum((Fraction(float(a)) * Fraction(float(c)) for a, c in zip(w, x, strict=True)), Fraction(float(b)))


def float32_score(w, x, b, rng):
    """One of the ways to add up a float32 product: in any order, starting with the bias or ending with it."""
    terms = (w * x).astype(np.float32)
    order = rng.permutation(len(terms))
    total = np.float32(b) if rng.random() < 0.5 else np.float32(0)
    started = total != 0
    for term in terms[order]:
        total = np.float32(total + term)
    return total if started else np.float32(total + np.float32(b))


def test_no_order_of_float32_additions_leaves_the_bound():
    rng = np.random.default_rng(0)
    closest = 0.0
    for trial in range(400):
        width = int(rng.integers(1, 40))
        scale = 10.0 ** rng.uniform(-6, 6, width)
        W = (rng.standard_normal((3, width)) * scale).astype(np.float32)
        x = (rng.standard_normal((1, width)) / (scale if trial % 2 else 1)).astype(np.float32)
        bias = (rng.standard_normal(3) * 10.0 ** rng.uniform(-3, 6)).astype(np.float32)
        threshold = float(np.float32(bias[0] * rng.uniform(0.999, 1.001)))
        decision = xmckit.LinearDecision(W, bias.astype(np.float64) - threshold, threshold=threshold)
        scores, bounds = scores_and_bounds(decision, x)
        for label in range(3):
            exact = exact_score(W[label], x[0], bias[label]) - Fraction(threshold)
            by_head = Fraction(float(float32_score(W[label], x[0], bias[label], rng))) - Fraction(threshold)
            assert abs(by_head - exact) <= bounds[0, label]
            assert abs(float(exact) - scores[0, label]) <= 1e-6 * bounds[0, label]
            closest = max(closest, float(abs(by_head - exact)) / bounds[0, label])
    assert closest > 0.02  # a bound that nothing comes near would excuse anything


def test_the_bound_knows_the_bias_that_the_threshold_hides():
    decision = xmckit.LinearDecision(np.ones((1, 1), np.float32), np.zeros(1), threshold=1e6)
    x = np.array([[1e-3]], np.float32)
    assert np.float32(np.float32(1e6) + x[0, 0]) == np.float32(1e6)  # the head does not output the label
    assert scores_and_bounds(decision, x)[0] > 0
    assert compare(decision, x, csr_matrix((1, 1))).first is None
    without = xmckit.LinearDecision(decision.W, decision.b)
    assert compare(without, x, csr_matrix((1, 1))).first.label == 0


def test_zero_products_are_exact_and_overflow_is_open():
    W = np.array([[0, 0], [1, 0], [3e38, 3e38]], np.float32)
    scores, bounds = scores_and_bounds(xmckit.LinearDecision(W, np.array([5.0, 5, 0])), np.array([[0.0, 2], [2, -2]]))
    assert bounds[0, :2].tolist() == [0, 0]
    assert bounds[1, 0] == 0 < bounds[1, 1] < 1e-5
    assert np.isinf(bounds[:, 2]).all()
    assert scores[0].tolist() == [5, 5, pytest.approx(6e38)]


def test_a_bound_of_its_own_replaces_that_of_a_product():
    W = np.array([[3.0, 4.0]])
    decision = xmckit.LinearDecision(W, np.array([1.0]), threshold=-2.0, rounding=1e-3)
    assert scores_and_bounds(decision, np.array([[0.0, 2.0]]))[1][0, 0] == pytest.approx(1e-3 * (5 * 2 + 1 + 2))


@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_differences_beyond_rounding_are_found_and_others_are_not(rule):
    rng = np.random.default_rng(1)
    W, x = rng.standard_normal((9, 4)).astype(np.float32), rng.standard_normal((50, 4)).astype(np.float32)
    decision = xmckit.LinearDecision(W, None, rule)
    scores = x.astype(np.float64) @ W.T.astype(np.float64)
    cut = 0 if rule == "sign" else np.sort(scores, axis=1)[:, [-3]]
    right = scores > cut if rule == "sign" else scores >= cut
    found = compare(decision, x, csr_matrix(right, dtype=np.float32))
    assert (found.first, len(found.rounded), found.entries, found.output) == (None, 0, 450, right.sum())
    row = int(np.flatnonzero(right.sum(axis=1) > 1)[0])
    best = int(scores[row].argmax())
    wrong, among = csr_matrix(right, dtype=np.float32), csr_matrix(np.ones_like(right), dtype=np.float32)
    for matrix in (wrong, among):
        matrix[row, best] = 0
        matrix.eliminate_zeros()
    found = compare(decision, x, wrong)
    assert (found.wrong.tolist(), found.first.row, found.first.label, found.first.output) == ([row], row, best, False)
    # the best label need not be output if it is no candidate, and must not be
    assert compare(decision, x, wrong, among).first is None
    found = compare(decision, x, csr_matrix(right, dtype=np.float32), among)
    assert (found.first.row, found.first.label, found.first.output) == (row, best, True)


def test_sets_left_to_rounding_are_counted():
    W = np.array([[1.0], [-1.0]], np.float32)
    decision = xmckit.LinearDecision(W, np.array([-1.0, 1.0]), "sign")
    x = np.array([[np.float32(1) + np.float32(2**-23)]])
    sets = csr_matrix(np.array([[0.0, 1.0]]))
    found = compare(decision, x, sets)
    assert (found.first, found.rounded.tolist()) == (None, [0])
    assert contested_labels(decision, x[0], np.array([1])).tolist() == [0, 1]
    assert contested_labels(decision, np.array([3.0]), np.array([0])).tolist() == []
    assert contested_labels(decision, np.array([3.0]), np.array([1])).tolist() == [0, 1]
    assert contested_labels(decision, np.array([3.0]), np.array([1]), np.array([1])).tolist() == [1]


def test_gamma_is_that_of_the_textbook():
    assert float32_error(1) == 2.0**-24 / (1 - 2.0**-24)
    assert float32_error(1000) == pytest.approx(1000 * 2.0**-24, rel=1e-3)
