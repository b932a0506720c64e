"""The answer at the paper's tolerance, against HiGHS on the paper's programme; bounds on radii."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import largest_radius
from scipy.sparse import csr_matrix
from xmckit_argmax.paper.radius import radius_bound
from xmckit_argmax.paper.tolerance import ToleranceSolver, radius_is_at_most
from xmckit_argmax.records import Assignment
from xmckit_argmax.solver import SolverSettings
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Context, LinearDecision


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shortlisted", [False, True])
def test_answers_are_those_of_the_linear_programme(biased: bool, shortlisted: bool) -> None:
    rng = np.random.default_rng([biased, shortlisted])
    W = rng.standard_normal((40, 4)).astype(np.float32).astype(np.float64)
    b = 2 * rng.standard_normal(40) if biased else None
    pairs, radii = [], []
    for _ in range(60):
        x = rng.uniform(-3, 3, 4)
        rows = np.sort(rng.choice(40, 15, replace=False)) if shortlisted else np.arange(40)
        active = np.intersect1d(np.flatnonzero(W @ x + (0 if b is None else b) > 0), rows)
        pairs.append((Assignment(active, rows if shortlisted else None), None))
        radii.append(largest_radius(W, b, active, rows, 2.0))
    for eps in (1e-8, float(np.median(radii))):
        verdicts = ToleranceSolver(W, b, SolverSettings(box=2.0, eps=eps)).solve(pairs)
        expected = ["argmaxable" if radius > eps else "unargmaxable" for radius in radii]
        assert min(abs(radius - eps) for radius in radii) > 1e-9
        assert [one.status for one in verdicts] == expected
        assert eps == 1e-8 or expected.count("argmaxable") == 30
        for one in verdicts:
            assert (one.witness is None) != (one.certificate is None)
            assert one.witness is None or np.abs(one.witness).max() <= 2.0


@given(
    labels=st.integers(1, 9),
    dim=st.integers(1, 3),
    eps=st.sampled_from([0.0, 1e-8, 0.5, 1.0]),
    box=st.sampled_from([1.0, 1e4]),
    biased=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_whole_numbers_and_ties(labels: int, dim: int, eps: float, box: float, biased: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    W = rng.integers(-2, 3, (labels, dim)).astype(np.float64)
    b = rng.integers(-2, 3, labels).astype(np.float64) if biased else None
    sets = csr_matrix((rng.random((6, labels)) < 0.5).astype(np.float32))
    verdicts = ArgmaxVerifier(eps=eps, box=box).verify(LinearDecision(W, b), sets, context=Context())
    for row, verdict in enumerate(verdicts.verdicts):
        if verdict.status == "argmaxable":
            rows = np.flatnonzero(np.linalg.norm(W, axis=1) > 0)
            radius = largest_radius(W, b, sets[row].indices, rows, box) if len(rows) else np.inf
            # whole numbers make radii that are eps itself, and these may stay open
            if radius > eps + 1e-6:
                assert verdict.eps == "argmaxable"
            elif radius < eps - 1e-6:
                assert verdict.eps == "unargmaxable"
            else:
                assert verdict.eps in (None, "unargmaxable")


def test_a_region_outside_the_box() -> None:
    decision = LinearDecision(np.asarray([[1.0], [1.0]]), np.asarray([-5.0, -7.0]))
    sets = csr_matrix([[1, 0], [1, 1]])
    for box, expected in (
        (4.0, ["unargmaxable"] * 2),
        (6.5, ["argmaxable", "unargmaxable"]),
        (8.0, ["argmaxable"] * 2),
    ):
        verdicts = ArgmaxVerifier(box=box).verify(decision, sets, context=Context())
        assert [v.status for v in verdicts.verdicts] == ["argmaxable"] * 2
        assert [v.eps for v in verdicts.verdicts] == expected


def test_workers_change_nothing_at_eps() -> None:
    from xmckit import make_context

    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((80, 5)), rng.standard_normal(80)
    sets = csr_matrix((rng.standard_normal((100, 5)) * 3 @ W.T + b > 0).astype(np.float32))
    found: list[Any] = [
        ArgmaxVerifier(eps=0.05, batch=8).verify(LinearDecision(W, b), sets, context=make_context(workers=workers))
        for workers in (1, 3)
    ]
    bits = [
        [
            (v.eps, v.witness.tobytes(), None if v.certificate is None else v.certificate[1].tobytes())
            for v in one.verdicts
        ]
        for one in found
    ]
    assert bits[0] == bits[1]
    assert {v.eps for v in found[0].verdicts} == {"argmaxable", "unargmaxable"}


def test_bounds_of_the_largest_margin_enclose_the_radius() -> None:
    rng = np.random.default_rng(5)
    W = rng.standard_normal((50, 6)) * 10.0 ** rng.integers(-3, 4, (50, 1))
    sets = csr_matrix((rng.standard_normal((25, 6)) @ W.T > 0).astype(np.float32))
    verdicts = ArgmaxVerifier(margin="largest", box=1.0).verify(LinearDecision(W, None), sets, context=Context())
    for row, verdict in enumerate(verdicts.verdicts):
        radius = largest_radius(W, None, sets[row].indices, np.arange(50), 1.0)
        assert verdict.radius is not None
        low, high = verdict.radius
        assert low <= radius * (1 + 1e-7)
        assert radius <= high * (1 + 1e-7)
        # the largest ball by cosine and the largest one in the box differ by no more than the box's corners
        assert high <= low * 6**0.5 * (1 + 1e-5)
        assert verdict.certificate is not None


def test_multipliers_prove_a_radius_or_not() -> None:
    """x1 ≥ r and −x1 + x2 ≥ √2·r in the unit box: the largest r is 1/(1 + √2)."""
    rows, best = np.asarray([[1.0, 0.0], [-1.0, 1.0]]), 1 / (1 + 2**0.5)
    assert radius_is_at_most(best * (1 + 1e-12), rows, np.zeros(2), np.ones(2), 1.0)
    assert not radius_is_at_most(best * (1 - 1e-12), rows, np.zeros(2), np.ones(2), 1.0)
    assert not radius_is_at_most(best * (1 + 1e-12), rows, np.zeros(2), np.asarray([1.0, 2.0]), 1.0)
    # a bias of 1 for both moves the second label's line away
    assert not radius_is_at_most(best * (1 + 1e-12), rows, np.ones(2), np.ones(2), 1.0)
    found = radius_bound(rows, Assignment(np.arange(2)), np.asarray([1.0, 1 + 2**0.5]), 1.0)
    assert found is not None
    assert found[0] >= best
