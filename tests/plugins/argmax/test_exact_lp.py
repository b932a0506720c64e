from __future__ import annotations

import itertools
from math import comb

import numpy as np
import pytest
from exact_lp import exactly_argmaxable, positive_point_or_weights
from hypothesis import given, settings
from hypothesis import strategies as st


def count(W, b=None, rule="sign"):
    labels = range(len(W))
    return sum(
        exactly_argmaxable(W, b, rule, active)
        for size in range(len(W) + 1)
        for active in itertools.combinations(labels, size)
    )


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
            if exactly_argmaxable(W, None, "sign", active)] == [(2,), (0, 1)]  # fmt: skip
    assert exactly_argmaxable(W, None, "topk", [1])
    assert not exactly_argmaxable(W, None, "topk", [0])


def test_ties_and_zero_rows_are_never_strict():
    assert not exactly_argmaxable(np.zeros((1, 2)), None, "sign", [])
    assert exactly_argmaxable(np.zeros((1, 2)), np.array([1.0]), "sign", [0])
    assert not exactly_argmaxable(np.zeros((1, 2)), np.array([1.0]), "sign", [])
    assert not exactly_argmaxable(np.zeros((1, 2)), np.array([0.0]), "sign", [])
    twins = np.array([[1.0, 2.0], [1.0, 2.0]])
    assert not exactly_argmaxable(twins, None, "sign", [0])
    assert not exactly_argmaxable(twins, None, "topk", [0])
    assert exactly_argmaxable(twins, np.array([1.0, 0.0]), "topk", [0])


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
