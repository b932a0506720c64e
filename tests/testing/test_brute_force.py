"""The oracle that verifiers are held to, against counting and against sampling."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import comb

import numpy as np
import pytest

from xmckit import LinearDecision
from xmckit.testing.brute_force import outputs, possible_sets
from xmckit.testing.verifiers import tiny_decision


@pytest.mark.parametrize(("labels", "width"), [(3, 1), (5, 2), (6, 3), (4, 4)])
def test_it_finds_as_many_cells_as_there_are(labels, width):
    # Cover (1965): the cells of hyperplanes in general position through the origin
    expected = 2 * sum(comb(labels - 1, k) for k in range(width))
    W = np.random.default_rng(labels).standard_normal((labels, width))
    possible = possible_sets(LinearDecision(W, None))
    empty = (False,) * labels  # the output of x = 0
    opposite = tuple(not on for on in empty)
    assert len(possible - {empty}) == expected - (opposite in possible)
    assert empty in possible


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("bias", [False, True])
def test_what_vectors_give_is_what_it_finds(rule, bias):
    decision = tiny_decision(5, 2, rule=rule, bias=bias, seed=9)
    possible = possible_sets(decision)
    rng, everything = np.random.default_rng(0), np.arange(5)
    scores = (rng.standard_normal((4000, 2)) * 20) @ decision.W.T.astype(float) + (
        0 if decision.b is None else decision.b
    )
    if rule == "sign":
        found = {tuple(row) for row in (scores > 0).tolist()}
    else:
        ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
        found = {tuple(row) for count in range(6) for row in (ranks < count).tolist()}
    assert found <= possible
    assert len(found) > len(possible) / 2
    x = np.array([0.93, -2.11])
    given = decision.W @ x + (0 if decision.b is None else decision.b) > 0
    if rule == "sign":
        assert outputs(decision, x, given, everything)
        assert not outputs(decision, x, ~given, everything)


def test_ties_decide_as_the_rules_say():
    decision = LinearDecision(np.array([[1.0], [0.0]]), None)
    assert possible_sets(decision) == {(False, False), (True, False)}
    assert outputs(decision, np.array([1.0]), np.array([True, False]), np.arange(2))
    twins = LinearDecision(np.array([[1.0], [1.0]]), None, "topk")
    assert possible_sets(twins) == {(False, False), (True, False), (True, True)}
    assert not outputs(twins, np.array([1.0]), np.array([False, True]), np.arange(2))
    third = LinearDecision(np.array([[3.0], [-3.0]]), np.array([-1.0, 1.0]))
    assert (False, False) in possible_sets(third)
    assert outputs(third, [Fraction(1, 3)], np.array([False, False]), np.arange(2))
    assert not outputs(third, np.array([1 / 3]), np.array([False, False]), np.arange(2))


def test_all_rules_at_once_against_points_of_a_grid():
    """Whole numbers from −1 to 1 in two dimensions: every face of their arrangement has a point with entries to 4."""
    grid = np.array(list(product(range(-4, 5), repeat=2)))
    rng = np.random.default_rng(3)
    for _ in range(20):
        W = rng.integers(-1, 2, (5, 2)).astype(np.float64)
        logits = grid @ W.T
        assert possible_sets(LinearDecision(W, None)) == {tuple(row) for row in (logits > 0).tolist()}
        ranks = np.argsort(np.argsort(-logits, axis=1, kind="stable"), axis=1)
        found = {tuple(row) for count in range(6) for row in (ranks < count).tolist()}
        assert possible_sets(LinearDecision(W, None, "topk")) == found


def test_too_many_functions_are_refused():
    with pytest.raises(ValueError, match="too many"):
        possible_sets(LinearDecision(np.ones((9, 1)), None, "topk"))
