from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from exact_lp import exactly_argmaxable
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from xmckit_argmax.paper.alternating import cyclic_arcs, ideal_statuses

import xmckit
from xmckit import Alternating, LinearDecision

CAN, CANNOT = "argmaxable", "unargmaxable"


def all_sets(labels):
    """Every subset as a row, with its label ids."""
    Y = np.array(list(itertools.product([0, 1], repeat=labels)), dtype=np.float32).reshape(2**labels, labels)
    return csr_matrix(Y), [np.flatnonzero(row) for row in Y]


def moment_curve(labels, degree):
    """Rows (1, t, …, t^2k) at whole t: a polynomial of degree 2k has 2k zeros, anywhere. Whole numbers, so exact."""
    return np.vander(np.arange(labels) - labels // 2, 2 * degree + 1, increasing=True).astype(np.float64)


def rational_circle(labels, degree):
    """The DFT's rows at the angles 2·arctan(m), m whole, times (1 + m²)^k: whole numbers, the same signs.

    exp(2i·arctan(m)) = (1 + im)² ÷ (1 + m²), so cos jt and sin jt times (1 + m²)^k are parts of a Gaussian integer.
    """
    rows = []
    for m in range(-(labels // 2), labels - labels // 2):
        real, imaginary, row = 1, 0, [(1 + m * m) ** degree]
        for j in range(1, degree + 1):
            real, imaginary = real * (1 - m * m) - imaginary * 2 * m, real * 2 * m + imaginary * (1 - m * m)
            row += [real * (1 + m * m) ** (degree - j), imaginary * (1 + m * m) ** (degree - j)]
        rows.append(row)
    return np.array(rows, dtype=np.float64)


def dft(labels, degree, angles=None):
    angles = 2 * np.pi * np.arange(labels) / labels if angles is None else angles
    waves = [wave(j * angles) for j in range(1, degree + 1) for wave in (np.cos, np.sin)]
    return np.stack([np.ones(labels), *waves], axis=1)


def shuffled(W, seed):
    """The same rows under other label ids, and the places that say so."""
    places = np.random.default_rng(seed).permutation(len(W))
    return W[places], places


def both_answers(W, degree, order, *, b=None, rule="sign"):
    Y, sets = all_sets(len(W))
    decision = LinearDecision(W, b, rule, Alternating(degree, 0, order))
    exact = [CAN if exactly_argmaxable(W, b, rule, active) else CANNOT for active in sets]
    return ideal_statuses(decision, Y), exact


@pytest.mark.parametrize("curve", [moment_curve, rational_circle])
@pytest.mark.parametrize(
    ("labels", "degree"), [(1, 0), (3, 0), (3, 1), (6, 1), (7, 2), (8, 2), (7, 3), (9, 1), (10, 2)]
)
def test_runs_decide_exactly_where_rows_are_whole_numbers(curve, labels, degree):
    W, order = shuffled(curve(labels, degree), seed=labels)
    ideal, exact = both_answers(W, degree, order)
    assert ideal == exact


@pytest.mark.parametrize(("labels", "degree"), [(5, 1), (7, 2)])
@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("bias", [None, 0.75])
def test_rankings_and_equal_biases_have_the_same_answers(labels, degree, rule, bias):
    W, order = shuffled(moment_curve(labels, degree), seed=1)
    ideal, exact = both_answers(W, degree, order, b=None if bias is None else np.full(labels, bias), rule=rule)
    assert ideal == exact


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("labels", "degree"), [(8, 1), (8, 3), (7, 2)])
def test_the_stored_matrix_of_few_labels_agrees(dtype, labels, degree):
    ideal, exact = both_answers(dft(labels, degree).astype(dtype), degree, np.arange(labels))
    assert ideal == exact


def test_increasing_angles_need_not_be_equally_spaced():
    angles = np.sort(np.random.default_rng(3).uniform(0, 2 * np.pi, 8))
    ideal, exact = both_answers(dft(8, 2, angles), 2, np.arange(8))
    assert ideal == exact


def test_the_papers_six_labels_in_three_dimensions():
    """Half of the 64 sets; of those with one label all, of those with two the six pairs of neighbours."""
    # a column times a constant changes nothing: with sin·2/√3 every entry is a multiple of ½
    W = dft(6, 1) * [1, 1, 2 / np.sqrt(3)]
    W = np.round(2 * W) / 2
    ideal, exact = both_answers(W, 1, np.arange(6))
    assert ideal == exact
    sizes = np.array([len(active) for active in all_sets(6)[1]])
    can = np.array(ideal) == CAN
    assert can.sum() == 32
    assert np.bincount(sizes[can]).tolist() == [1, 6, 6, 6, 6, 6, 1]


def test_slack_and_unequal_biases_leave_many_runs_open():
    Y, sets = all_sets(8)
    S = np.random.default_rng(0).standard_normal((8, 2))
    W = np.concatenate([moment_curve(8, 1), S], axis=1)
    ideal = ideal_statuses(LinearDecision(W, None, "sign", Alternating(1, 2, np.arange(8))), Y)
    assert set(ideal) == {CAN, None}
    reached = [exactly_argmaxable(W, None, "sign", active) for active in sets]
    assert all(can for can, answer in zip(reached, ideal, strict=True) if answer == CAN)
    assert 0 < sum(can for can, answer in zip(reached, ideal, strict=True) if answer is None) < ideal.count(None)

    b = np.array([3.0, -2, 3, -2, 3, -2, 3, -2])
    for rule in ("sign", "topk"):
        W = moment_curve(8, 1)
        ideal = ideal_statuses(LinearDecision(W, b, rule, Alternating(1, 0, np.arange(8))), Y)
        reached = [exactly_argmaxable(W, b, rule, active) for active in sets]
        assert all(can for can, answer in zip(reached, ideal, strict=True) if answer == CAN)
        assert any(can for can, answer in zip(reached, ideal, strict=True) if answer is None)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 6), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_runs_equal_those_seen_on_the_circle_and_those_of_the_complement(rows, labels, seed):
    rng = np.random.default_rng(seed)
    Y, places = rng.integers(0, 2, (rows, labels)), rng.permutation(labels)
    circle = np.zeros_like(Y)
    circle[:, places] = Y
    starts = (circle == 1) & (np.roll(circle, 1, axis=1) == 0)
    np.testing.assert_array_equal(cyclic_arcs(csr_matrix(Y), places), starts.sum(axis=1))
    np.testing.assert_array_equal(cyclic_arcs(csr_matrix(1 - Y), places), starts.sum(axis=1))


@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_candidates_are_an_alternating_layer_of_their_own(rule):
    rng = np.random.default_rng(2)
    W, order = shuffled(moment_curve(9, 1), seed=4)
    Y = rng.random((150, 9)) < rng.uniform(0.1, 0.6, (150, 1))
    shortlist = rng.random((150, 9)) < 0.7
    shortlist[:110] |= Y[:110]
    shortlist[:3] = Y[:3] = False
    decision = LinearDecision(W, None, rule, Alternating(1, 0, order))
    ideal = ideal_statuses(decision, csr_matrix(Y), csr_matrix(shortlist))
    exact = [
        CAN if exactly_argmaxable(W, None, rule, np.flatnonzero(y), np.flatnonzero(c)) else CANNOT
        for y, c in zip(Y, shortlist, strict=True)
    ]
    assert ideal == exact
    assert ideal[:110] != ideal_statuses(decision, csr_matrix(Y))[:110]


def test_all_labels_as_candidates_change_nothing():
    Y, _ = all_sets(7)
    decision = LinearDecision(moment_curve(7, 1), None, "sign", Alternating(1, 0, np.array([3, 0, 6, 1, 2, 5, 4])))
    everything = csr_matrix(np.ones(Y.shape))
    assert ideal_statuses(decision, Y, everything) == ideal_statuses(decision, Y)


def test_stored_zeros_and_repeated_labels_count_once():
    Y = csr_matrix((np.array([1.0, 0, 1, 1]), np.array([3, 1, 3, 0]), np.array([0, 4])), shape=(1, 5))
    assert cyclic_arcs(Y, np.arange(5)).tolist() == [2]


def test_a_layer_without_structure_has_no_ideal_answer():
    assert ideal_statuses(LinearDecision(np.ones((3, 1)), None), csr_matrix((2, 3))) == [None, None]


@pytest.mark.parametrize(
    ("structure", "words"),
    [
        (Alternating(1, 0, np.array([0, 1, 1, 3])), "labels 1 and 2 both have place 1"),
        (Alternating(1, 0, np.array([0, 1, 4, 3])), "label 2 has place 4"),
        (Alternating(1, 0, np.array([0, -1, 2, 3])), "label 1 has place -1"),
        (Alternating(1, 0, np.arange(5)), "shape (5,)"),
        (Alternating(1, 0, np.arange(4.0)), "float64"),
        (Alternating(1, 1, np.arange(4)), "= 4 columns, but W has 3"),
        (Alternating(2, 0, np.arange(4)), "= 5 columns, but W has 3"),
        (Alternating(2, -2, np.arange(4)), "slack -2"),
    ],
)
def test_a_structure_that_cannot_be_is_an_error(structure, words):
    decision = LinearDecision(moment_curve(4, 1), None, "sign", structure)
    with pytest.raises(xmckit.DataError, match=re.escape(words)):
        ideal_statuses(decision, csr_matrix((1, 4)))
