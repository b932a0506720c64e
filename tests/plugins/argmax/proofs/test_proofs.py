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
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.float_bounds import all_products, check_products, error_per_length
from xmckit_argmax.proofs.multipliers import positive_multipliers

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


def inverses(norms: np.ndarray) -> np.ndarray:
    return np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def weighed(
    products: np.ndarray, active: list[np.ndarray], last_is_active: bool, errors: np.ndarray, norms: np.ndarray
):
    """(rows that are not proved, least products, least distances); `products` are signed in place."""
    failed, least, distance = (np.empty(len(products), dtype=kind) for kind in (np.int64, np.float64, np.float64))
    ends = np.cumsum([len(places) for places in active])
    check_products(
        products, np.concatenate(active), ends, last_is_active, errors, 4, norms, inverses(norms), inverses(norms),
        failed, least, distance,
    )  # fmt: skip
    return failed, least, distance


@given(
    n=st.sampled_from([1, 2, 30, 1023, 1024, 1025, 2100]),
    d=st.integers(1, 8),
    biased=st.booleans(),
    seed=st.integers(0, 10**6),
    tiny=st.integers(-60, -40),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_rows_that_are_not_doubtful_are_positive(n: int, d: int, biased: bool, seed: int, tiny: int) -> None:
    """The least products are those of all labels, in any block of rows."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((3, d))
    rows = rng.standard_normal((n, d))
    rows[:20] -= (rows[:20] @ V[0])[:, None] * V[0] / (V[0] @ V[0]) * (1 - 2.0**tiny)
    labels = n - biased
    active = [np.flatnonzero(rng.random(labels) < 0.5) for _ in V]
    signs = np.full((3, n), -1)
    for t, places in enumerate(active):
        signs[t, places] = 1
    signs[:, labels:] = 1
    products, errors, norms = all_products(torch.from_numpy(rows), V), error_per_length(V), np.linalg.norm(rows, axis=1)
    failed, least, distance = weighed(products, active, biased, errors, norms)
    for t, v in enumerate(V):
        truth = [sign * product > 0 for sign, product in zip(signs[t].tolist(), exact_products(rows, v), strict=True)]
        doubtful = np.flatnonzero(~(products[t] > errors[t] * norms))
        assert set(np.flatnonzero(~np.asarray(truth))) <= set(doubtful)
        assert failed[t] == len(doubtful)
        assert np.isclose(least[t], np.min(products[t, :labels] * inverses(norms)[:labels], initial=np.inf), rtol=1e-12)
        assert distance[t] <= least[t]


def test_a_product_that_is_not_a_number_proves_nothing() -> None:
    products = np.asarray([[np.nan, 1.0], [1.0, 1.0]])
    failed, _, _ = weighed(products, [np.asarray([0, 1])] * 2, False, np.full(2, 1e-15), np.ones(2))
    assert failed.tolist() == [1, 0]


def inverses_of(supports: np.ndarray) -> np.ndarray:
    """Of the transposed rows but the last; something else where there is none."""
    return np.linalg.pinv(supports[:, :-1].transpose(0, 2, 1))


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind not in ("zero rows", "scaled")]),
    d=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 10.0, np.inf, np.nan]),
    entry=st.sampled_from([None, None, np.nan, np.inf, -1e308, 5e-324, -0.0]),
)
@settings(deadline=None, max_examples=300, derandomize=True)
def test_multipliers_are_only_proved_when_they_exist(
    kind: str, d: int, seed: int, noise: float, entry: float | None
) -> None:
    """The proofs hold with any matrix as the inverse."""
    rng = np.random.default_rng(seed)
    supports = np.asarray([layer(kind, d + 1, d, rng) for _ in range(4)], dtype=np.float64)
    inverse = inverses_of(supports)
    with np.errstate(invalid="ignore"):
        inverse = inverse * (1 + noise * rng.standard_normal(inverse.shape)) if noise else inverse
    if entry is not None:
        inverse[:, rng.integers(d), rng.integers(d)] = entry
    proved, multipliers = positive_multipliers(supports, inverse)
    for support, claim, weights in zip(supports, proved, multipliers, strict=True):
        basis = null_space([[Fraction(float(value)) for value in row] for row in support])
        unique = len(basis) == 1
        truth = unique and (all(weight > 0 for weight in basis[0]) or all(weight < 0 for weight in basis[0]))
        assert truth or not claim
        if claim:
            # near-parallel rows leave few digits; that all are positive is what was proved
            expected = [float(weight / sum(basis[0])) for weight in basis[0]]
            np.testing.assert_allclose(weights / weights.sum(), expected, rtol=0.5)


@pytest.mark.parametrize("d", [1, 5, 40, 120])
def test_multipliers_of_ordinary_rows_are_proved(d: int) -> None:
    rng = np.random.default_rng(d)
    supports = rng.standard_normal((9, d + 1, d))
    supports[:, -1] = -np.einsum("ij,ijk->ik", rng.random((9, d)) + 0.01, supports[:, :-1])
    for inverse in inverses_of(supports), np.zeros((9, d, d)):  # the second serves for nothing, and another is made
        proved, multipliers = positive_multipliers(supports, inverse)
        assert proved.all()
        np.testing.assert_allclose(np.einsum("ij,ijk->ik", multipliers, supports), 0, atol=1e-9)


def test_a_small_residual_is_no_proof() -> None:
    """(1, 0) and (−1, 1e-14) nearly cancel, yet x = (1, 2e14) is positive on both."""
    rows = np.asarray([[1.0, 0.0], [-1.0, 1e-14], [0.0, 1.0]])
    proved, _ = positive_multipliers(rows[None], inverses_of(rows[None]))
    assert not proved.any()


def test_a_residual_that_underflows_is_no_proof() -> None:
    """The third variable's equation has a residual below the least float, and an inverse that makes much of it."""
    t, c = 2.0**-53, 2.0**-1023
    rows = np.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, c], [0.0, 1.0, 2 * c], [-1.0, -t, 0.0]])  # λ = (1, 2t, −t, 1)
    inverse = np.asarray([[1.0, 0.0, 0.0], [-1.5 * t, 2.0, -1 / c], [1.5 * t, -1.0, 1 / c]])
    proved, _ = positive_multipliers(rows[None], inverse[None])
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
    entering, leaving = exact._choose_entering, exact._choose_leaving
    monkeypatch.setattr(exact, "_choose_entering", lambda *arguments, greedy: entering(*arguments, greedy=False))
    monkeypatch.setattr(exact, "_choose_leaving", lambda *arguments, greedy: leaving(*arguments, greedy=False))
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
    whole, shift = exact.integer_row(np.asarray(numbers), powers)
    for number, value in zip(numbers, whole, strict=True):
        assert Fraction(number) * Fraction(2) ** power == Fraction(value) * Fraction(2) ** -shift


def test_fractions_beyond_the_floats_become_infinite() -> None:
    found = exact.nearest_floats([Fraction(1, 3), Fraction(10) ** 400, -(Fraction(10) ** 400)])
    assert found.tolist() == [1 / 3, np.inf, -np.inf]
