from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from exact_lp import exactly_argmaxable, positive_point_or_weights, strictly_argmaxable
from hypothesis import given, settings
from hypothesis import strategies as st


def count(W, b=None, rule="sign"):
    labels = range(len(W))
    sets = [active for size in range(len(W) + 1) for active in itertools.combinations(labels, size)]
    strictly = {active for active in sets if strictly_argmaxable(W, b, rule, active)}
    # in general position ties add only the sets of x = 0, which ties all labels unless there are biases
    by_zero = {active for active in sets if active == tuple(labels[: len(active)]) and (rule == "topk" or not active)}
    reached = {active for active in sets if exactly_argmaxable(W, b, rule, active)}
    assert reached == strictly | (by_zero if b is None else set())
    return len(strictly)


@pytest.mark.parametrize(("labels", "dim"), [(1, 1), (3, 2), (5, 1), (5, 3), (7, 4), (6, 6), (4, 6), (8, 3)])
def test_general_position_gives_covers_count(labels, dim):
    W = np.random.default_rng(labels).standard_normal((labels, dim))
    assert count(W) == 2 * sum(comb(labels - 1, order) for order in range(dim))


@pytest.mark.parametrize(("labels", "dim"), [(3, 2), (5, 1), (6, 3), (4, 0)])
def test_biases_give_the_regions_of_an_affine_arrangement(labels, dim):
    rng = np.random.default_rng(labels)
    W, b = rng.standard_normal((labels, dim)), rng.standard_normal(labels)
    assert count(W, b) == sum(comb(labels, order) for order in range(dim + 1))


@pytest.mark.parametrize(("labels", "dim"), [(4, 1), (5, 2), (6, 3)])
def test_ranking_gives_the_sets_that_an_affine_hyperplane_cuts_off(labels, dim):
    W = np.random.default_rng(labels).standard_normal((labels, dim))
    assert count(W, rule="topk") == 2 * sum(comb(labels - 1, order) for order in range(dim + 1))


def test_one_dimension_by_hand():
    W = np.array([[1.0], [2.0], [-0.5]])
    assert [active for size in range(4) for active in itertools.combinations(range(3), size)
            if exactly_argmaxable(W, None, "sign", active)] == [(), (2,), (0, 1)]  # fmt: skip
    assert exactly_argmaxable(W, None, "topk", [1])
    assert exactly_argmaxable(W, None, "topk", [0])  # x = 0
    assert not strictly_argmaxable(W, None, "topk", [0])
    assert not exactly_argmaxable(W[::-1], None, "topk", [2])


def test_a_logit_of_zero_is_off_and_the_lower_id_wins_a_tie():
    assert exactly_argmaxable(np.zeros((1, 2)), None, "sign", [])
    assert not exactly_argmaxable(np.zeros((1, 2)), None, "sign", [0])
    assert exactly_argmaxable(np.zeros((1, 2)), np.array([1.0]), "sign", [0])
    assert not exactly_argmaxable(np.zeros((1, 2)), np.array([1.0]), "sign", [])
    assert exactly_argmaxable(np.zeros((1, 2)), np.array([0.0]), "sign", [])
    assert not exactly_argmaxable(np.zeros((1, 2)), np.array([0.0]), "sign", [0])
    assert exactly_argmaxable(np.array([[1.0], [0.0]]), None, "sign", [0])
    twins = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert not exactly_argmaxable(twins, None, "sign", [0])
    assert exactly_argmaxable(twins, None, "topk", [0])
    assert not exactly_argmaxable(twins, None, "topk", [1])
    assert exactly_argmaxable(twins, np.array([0.0, 1.0]), "topk", [1])


def test_a_third_is_no_float_and_still_a_point():
    W, b = np.array([[3.0], [-3.0]]), np.array([-1.0, 1.0])
    assert exactly_argmaxable(W, b, "sign", [])
    assert not exactly_argmaxable(W, b, "sign", [0, 1])


def test_two_ties_together_can_be_impossible():
    """Labels 0 and 1 are equal, and 2 and 3. {0, 2} needs one threshold for both pairs, and then 1 is before 2."""
    W = np.array([[1.0], [1.0], [2.0], [2.0]])
    assert exactly_argmaxable(W[:2], None, "topk", [0])
    assert exactly_argmaxable(W[2:], None, "topk", [0])
    assert exactly_argmaxable(W, None, "topk", [0, 1])
    assert not exactly_argmaxable(W, None, "topk", [0, 2])


def test_a_difference_far_below_rounding_decides():
    thin = np.array([[1.0, 0.0], [-1.0, 1e-300]])
    assert exactly_argmaxable(thin, None, "sign", [0, 1])
    thin[1, 1] = 0.0
    assert not exactly_argmaxable(thin, None, "sign", [0, 1])


def test_candidates_leave_the_other_rows_out():
    W = np.array([[1.0], [2.0], [-0.5]])
    assert exactly_argmaxable(W, None, "sign", [0], candidates=[0, 2])
    assert not exactly_argmaxable(W, None, "sign", [0], candidates=[0, 1])
    assert not exactly_argmaxable(W, None, "sign", [0], candidates=[1, 2])
    assert exactly_argmaxable(W, None, "sign", [], candidates=[])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.integers(1, 12).flatmap(lambda n: st.integers(0, 4).map(lambda d: (n, d))), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_rows_of_small_integers_always_end_with_one_proof(shape, seed):
    rows = np.random.default_rng(seed).integers(-2, 3, size=shape).tolist()
    point, weights = positive_point_or_weights(rows)
    assert (point is None) != (weights is None)
