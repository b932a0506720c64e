from __future__ import annotations

import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from exact_lp import positive_point_or_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import KINDS, layer, null_space
from xmckit_argmax import exact
from xmckit_argmax.proofs import all_products, error_per_length, positive_multipliers, prove_positive

HOUR = 3600.0


def exact_products(rows: np.ndarray, v: np.ndarray) -> list[Fraction]:
    return [sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(row, v, strict=True)) for row in rows]


@given(n=st.integers(1, 20), d=st.integers(1, 60), seed=st.integers(0, 10**6), tiny=st.integers(-60, 0))
@settings(deadline=None, max_examples=80, derandomize=True)
def test_the_error_bound_holds(n: int, d: int, seed: int, tiny: int) -> None:
    """Also when the products are what rounding leaves of terms that cancel."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    v = rng.standard_normal(d)
    rows -= (rows @ v)[:, None] * v / (v @ v) * (1 - 2.0**tiny)
    products = all_products(torch.from_numpy(rows), v[None])[0]
    bound = error_per_length(v[None])[0] * np.linalg.norm(rows, axis=1)
    for product, truth, most in zip(products, exact_products(rows, v), bound, strict=True):
        assert abs(Fraction(float(product)) - truth) <= Fraction(float(most))


@given(n=st.integers(1, 30), d=st.integers(1, 8), seed=st.integers(0, 10**6), tiny=st.integers(-60, -40))
@settings(deadline=None, max_examples=80, derandomize=True)
def test_rows_that_are_not_doubtful_are_positive(n: int, d: int, seed: int, tiny: int) -> None:
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(d)
    rows = rng.standard_normal((n, d))
    rows -= (rows @ v)[:, None] * v / (v @ v) * (1 - 2.0**tiny)
    active = np.flatnonzero(rng.random(n) < 0.5)
    signs = np.full(n, -1)
    signs[active] = 1
    doubtful = np.empty(n + 1, dtype=np.int64)
    products = all_products(torch.from_numpy(rows), v[None])[0]
    error = float(error_per_length(v[None])[0])
    count = prove_positive(products, np.linalg.norm(rows, axis=1), error, active, False, doubtful)
    truth = [sign * product > 0 for sign, product in zip(signs.tolist(), exact_products(rows, v), strict=True)]
    assert {row for row, positive in enumerate(truth) if not positive} <= set(doubtful[:count].tolist())


def test_a_product_that_is_not_a_number_proves_nothing() -> None:
    doubtful = np.empty(3, dtype=np.int64)
    products = np.asarray([np.nan, 1.0])
    assert prove_positive(products, np.ones(2), 1e-15, np.asarray([0, 1]), False, doubtful) == 1


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind not in ("zero rows", "scaled")]),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=150, derandomize=True)
def test_multipliers_are_only_proved_when_they_exist(kind: str, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    supports = np.asarray([layer(kind, d + 1, d, rng) for _ in range(4)], dtype=np.float64)
    proved, multipliers = positive_multipliers(supports)
    for support, claim, weights in zip(supports, proved, multipliers, strict=True):
        basis = null_space([[Fraction(float(value)) for value in row] for row in support])
        unique = len(basis) == 1
        truth = unique and (all(weight > 0 for weight in basis[0]) or all(weight < 0 for weight in basis[0]))
        assert truth or not claim
        if claim:
            total = sum(basis[0])
            # near-parallel rows leave few digits; that all are positive is what was proved
            np.testing.assert_allclose(weights, [float(weight / total) for weight in basis[0]], rtol=0.5)


@pytest.mark.parametrize("d", [1, 5, 40, 120])
def test_multipliers_of_ordinary_rows_are_proved(d: int) -> None:
    rng = np.random.default_rng(d)
    supports = rng.standard_normal((9, d + 1, d))
    supports[:, -1] = -np.einsum("ij,ijk->ik", rng.random((9, d)) + 0.01, supports[:, :-1])
    proved, multipliers = positive_multipliers(supports)
    assert proved.all()
    np.testing.assert_allclose(np.einsum("ij,ijk->ik", multipliers, supports), 0, atol=1e-9)


def test_a_small_residual_is_no_proof() -> None:
    """(1, 0) and (−1, 1e-14) nearly cancel, yet x = (1, 2e14) is positive on both."""
    rows = np.asarray([[1.0, 0.0], [-1.0, 1e-14], [0.0, 1.0]])
    proved, _ = positive_multipliers(rows[None])
    assert not proved.any()


# Exact arithmetic


@given(n=st.integers(1, 12), d=st.integers(0, 5), seed=st.integers(0, 10**6), most=st.integers(1, 4))
@settings(deadline=None, max_examples=200, derandomize=True)
def test_exact_decisions_multiply_out_and_agree_with_another_simplex(n: int, d: int, seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-most, most + 1, (n, d)).tolist()
    outcome = exact.decide(rows, time.monotonic() + HOUR)
    feasible = positive_point_or_weights(rows)[0] is not None
    if isinstance(outcome, exact.Combination):
        assert not feasible
        assert min(outcome.multipliers) > 0
        used = [rows[index] for index in outcome.rows]
        for column in zip(*used, strict=True):
            assert sum(weight * value for weight, value in zip(outcome.multipliers, column, strict=True)) == 0
        if d:
            assert len(null_space([[Fraction(value) for value in row] for row in used])) == 1
    else:
        assert feasible
        assert all(sum(a * b for a, b in zip(row, outcome, strict=True)) > 0 for row in rows)


def test_bland_s_rule_alone_decides_too(monkeypatch: pytest.MonkeyPatch) -> None:
    entering, leaving = exact._entering, exact._leaving
    monkeypatch.setattr(exact, "_entering", lambda *arguments, greedy: entering(*arguments, greedy=False))
    monkeypatch.setattr(exact, "_leaving", lambda *arguments, greedy: leaving(*arguments, greedy=False))
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = rng.integers(-2, 3, (10, 4)).tolist()
        outcome = exact.decide(rows, time.monotonic() + HOUR)
        assert isinstance(outcome, exact.Combination) == (positive_point_or_weights(rows)[0] is None)


def test_exact_arithmetic_keeps_its_time() -> None:
    rows = np.random.default_rng(1).integers(-9, 10, (60, 20)).tolist()
    with pytest.raises(exact.OutOfTime):
        exact.decide(rows, time.monotonic() - 1)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), st.integers(-50, 50))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_whole_rows_are_the_floats(numbers: list[float], power: int) -> None:
    powers = np.full(len(numbers), power)
    whole, shift = exact.whole_row(np.asarray(numbers), powers)
    for number, value in zip(numbers, whole, strict=True):
        assert Fraction(number) * Fraction(2) ** power == Fraction(value) * Fraction(2) ** -shift


def test_fractions_beyond_the_floats_become_infinite() -> None:
    found = exact.nearest_floats([Fraction(1, 3), Fraction(10) ** 400, -(Fraction(10) ** 400)])
    assert found.tolist() == [1 / 3, np.inf, -np.inf]
