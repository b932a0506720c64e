from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from exact_lp import exactly_argmaxable, strictly_argmaxable
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import largest_radius
from scipy.sparse import csr_matrix
from xmckit_argmax.paper import chebyshev as module
from xmckit_argmax.paper.highs import HighsSolution, maximise_last
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Context, LinearDecision, Verdict

CAN, CANNOT, OPEN = "argmaxable", "unargmaxable", "unresolved"

# the paper's six labels at multiples of 60°, the sine column scaled so that the numbers are exact
W63 = np.array([[1, 1, 0], [1, 0.5, 1], [1, -0.5, 1], [1, -1, 0], [1, -0.5, -1], [1, 0.5, -1]])


def chebyshev(decision: LinearDecision, active, candidates=None, **params) -> Verdict:
    def row(labels) -> csr_matrix:
        return csr_matrix(np.isin(np.arange(len(decision.W)), list(labels))[None].astype(np.float32))

    verifier = ArgmaxVerifier(mode="chebyshev", **params)
    allowed = None if candidates is None else row(candidates)
    return verifier.verify(decision, row(active), candidates=allowed, context=Context())[0]


def subsets(labels):
    return itertools.chain.from_iterable(itertools.combinations(range(labels), size) for size in range(labels + 1))


def logits(W, b, x):
    exact = [
        sum((Fraction(float(w)) * Fraction(float(c)) for w, c in zip(row, x, strict=True)), Fraction()) for row in W
    ]
    return exact if b is None else [z + Fraction(float(bias)) for z, bias in zip(exact, b, strict=True)]


def check_witness(W, b, rule, active, candidates, x):
    exact = dict(enumerate(logits(W, b, x)))
    ranked = sorted(candidates, key=lambda label: (-exact[label], label))
    found = ranked[: len(active)] if rule == "topk" else [label for label in candidates if exact[label] > 0]
    assert sorted(found) == sorted(active)


def check_certificate(W, b, rule, active, certificate):
    """The exact λ from the support alone, by elimination over fractions, is positive and unique.

    That it excludes ties too is for the independent checker to say.
    """
    labels, multipliers = certificate
    assert (multipliers > 0).all()
    signs = [1 if label in active else -1 for label in labels]
    rows = [
        [s * Fraction(float(w)) for w in W[label]] + ([Fraction(s)] if rule == "topk" else [])
        for s, label in zip(signs, labels, strict=True)
    ]
    biases = [s * Fraction(0 if b is None else float(b[label])) for s, label in zip(signs, labels, strict=True)]
    space = null_space(rows)
    if len(space) == 2:
        space = null_space([[*row, bias] for row, bias in zip(rows, biases, strict=True)])
    assert len(space) == 1
    weights = [weight / space[0][0] for weight in space[0]]
    assert all(weight > 0 for weight in weights)
    assert sum(weight * bias for weight, bias in zip(weights, biases, strict=True)) <= 0
    np.testing.assert_allclose([float(w) for w in weights], multipliers / multipliers[0], rtol=1e-12)


def null_space(rows):
    """Basis of all λ with Σ λ_i row_i = 0."""
    height = len(rows)
    table = [list(row) + [Fraction(int(i == j)) for j in range(height)] for i, row in enumerate(rows)]
    done = 0
    for column in range(len(rows[0])):
        pivot = next((i for i in range(done, height) if table[i][column]), None)
        if pivot is not None:
            table[done], table[pivot] = table[pivot], table[done]
            for i in range(done + 1, height):
                factor = table[i][column] / table[done][column]
                table[i] = [a - factor * p for a, p in zip(table[i], table[done], strict=True)]
            done += 1
    return [row[-height:] for row in table[done:]]


@st.composite
def questions(draw):
    labels, dim = draw(st.integers(1, 14)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["float64", "float32", "integer", "scaled", "twins"]))
    W = rng.standard_normal((labels, dim))
    if kind == "float32":
        W = W.astype(np.float32)
    elif kind == "integer":
        W = rng.integers(-2, 3, (labels, dim)).astype(np.float64)
    elif kind == "scaled":
        W *= 10.0 ** rng.uniform(-30, 30, (labels, 1))
    elif kind == "twins":
        W = W[rng.integers(0, labels, labels)]
    b = None
    if draw(st.booleans()):
        b = rng.integers(-2, 3, labels).astype(np.float64) if kind == "integer" else rng.standard_normal(labels)
    rule = draw(st.sampled_from(["sign", "topk"]))
    reachable = W @ rng.standard_normal(dim) + (0 if b is None else b) > 0
    on = reachable if draw(st.booleans()) else rng.random(labels) < 0.4
    candidates = sorted(rng.choice(labels, rng.integers(0, labels + 1), replace=False).tolist())
    # a column of ones beside weights of 1e-30 makes regions that are far below what a solver sees
    may_stay_open = kind == "scaled" and (rule == "topk" or b is not None)
    return W, b, rule, np.flatnonzero(on).tolist(), draw(st.sampled_from([None, candidates])), may_stay_open


@settings(deadline=None, max_examples=250, derandomize=True)
@given(questions())
def test_answers_equal_exact_ones_and_their_proofs_hold(question):
    W, b, rule, active, candidates, may_stay_open = question
    answer = chebyshev(LinearDecision(W, b, rule), active, candidates)
    labels = range(len(W)) if candidates is None else candidates
    expected = CAN if exactly_argmaxable(W, b, rule, active, candidates) else CANNOT
    kept = [label for label in labels if rule == "topk" or W[label].any() or (b is not None and b[label])]
    on = [place for place, label in enumerate(kept) if label in active]
    only_by_tie = expected == CAN and not strictly_argmaxable(W[kept], None if b is None else b[kept], rule, on)
    assert answer.status == expected or ((may_stay_open or only_by_tie) and answer.status == OPEN)
    assert not only_by_tie or answer.eps in (None, OPEN, CANNOT)
    assert answer.missed == tuple(sorted(set(active) - set(labels)))
    if answer.status == CAN:
        check_witness(W, b, rule, active, labels, answer.witness)
        biased_at_eps = b is not None and answer.eps == CANNOT
        assert answer.certificate is None or biased_at_eps or (b is None and rule == "sign")
    elif answer.status == CANNOT and not answer.missed:
        check_certificate(W, b, rule, active, answer.certificate)
        assert answer.eps == CANNOT


def test_the_papers_example_has_half_of_all_sets():
    answers = {active: chebyshev(LinearDecision(W63, None), active) for active in subsets(6)}
    assert sum(answer.status == CAN for answer in answers.values()) == 32
    assert sum(answer.eps == CAN for answer in answers.values()) == 32
    for active, answer in answers.items():
        assert (answer.radius is not None) == (answer.status == CAN)
        if answer.radius is not None:
            radius = largest_radius(W63, None, np.asarray(active), np.arange(6), 1e4)
            assert answer.radius[0] <= radius * (1 + 1e-9)
            assert radius <= answer.radius[1] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("rows", "radius"),
    [
        ([[1.0, 0.0], [0.0, 3.0]], 1e4),
        ([[1.0, 1.0]], 1e4 * 2**0.5),
        ([[3.0, 4.0]], 1e4 * 7 / 5),
        ([[1.0, 0.0], [-1.0, 1.0]], 1e4 / (1 + 2**0.5)),  # x at the top of the box, y − x = √2·x
    ],
)
def test_radii_by_hand(rows, radius):
    W = np.array(rows)
    answer = chebyshev(LinearDecision(W, None), range(len(W)))
    low, high = answer.radius
    assert low <= radius * (1 + 1e-12)
    assert radius * (1 - 1e-12) <= high
    assert high - low < 1e-6 * radius
    assert chebyshev(LinearDecision(W, np.zeros(len(W))), range(len(W))).radius is None  # not the paper's program


def test_the_radius_scales_with_the_box_and_bounds_the_margin():
    rng = np.random.default_rng(5)
    W = rng.standard_normal((30, 4))
    active = np.flatnonzero(W @ rng.standard_normal(4) > 0)
    wide, narrow = (chebyshev(LinearDecision(W, None), active, box=box) for box in (1e4, 1.0))
    assert wide.radius == pytest.approx([1e4 * bound for bound in narrow.radius], rel=1e-6)
    # a witness of margin ρ, scaled to the box, is inside by at least box·ρ and at most box·√d·ρ
    assert wide.margin * 1e4 <= wide.radius[1]
    assert wide.radius[0] <= wide.margin * 1e4 * 2 * (1 + 1e-9)


def test_a_region_below_the_tolerance_differs_from_no_region():
    thin = np.array([[1.0, 0.0], [-1.0, 1e-14]])  # radius about 5e-11
    answer = chebyshev(LinearDecision(thin, None), [0, 1])
    assert answer.status in (CAN, OPEN)
    assert answer.eps == CANNOT
    flat = chebyshev(LinearDecision(np.array([[1.0, 0.0], [-1.0, 0.0]]), None), [0, 1])
    assert (flat.status, flat.proof, flat.radius) == (CANNOT, "exact", None)
    narrow = chebyshev(LinearDecision(np.array([[1.0, 0.0], [-1.0, 1e-5]]), None), [0, 1])
    assert (narrow.status, narrow.eps) == (CAN, CAN)
    assert chebyshev(LinearDecision(np.array([[1.0, 0.0], [-1.0, 1e-5]]), None), [0, 1], eps=1.0).eps == CANNOT


def test_certificates_of_trained_sizes_are_exact():
    rng = np.random.default_rng(0)
    W = rng.standard_normal((300, 12)).astype(np.float32)
    active = [3, 50, 222]
    answer = chebyshev(LinearDecision(W, None), active)
    assert (answer.status, answer.proof) == (CANNOT, "exact")
    check_certificate(W, None, "sign", active, answer.certificate)


def lying(x, marginals, status=0):
    x, marginals = (np.asarray(array, dtype=np.float64) for array in (x, marginals))
    return lambda *program: HighsSolution(x, marginals, status, "trust me")


@pytest.mark.parametrize(
    "result",
    [
        lying([0, 0, 5.0], [0, 0]),  # "optimal, radius 5" at the origin
        lying([0, 0, 0.0], [-1, -1]),  # "zero, and here is why", which is not why
        lying([0, 0, 0.0], [-1, 0]),
        lying([np.nan, 0, 1], [0, 0]),
        lying([], [], status=2),
        lying([-1, 1, 1.0], [1, 1], status=4),
    ],
)
def test_what_the_solver_says_is_not_believed(monkeypatch, result):
    monkeypatch.setattr(module, "maximise_last", result)
    answer = chebyshev(LinearDecision(np.eye(2), None), [0, 1])
    assert (answer.status, answer.proof, answer.certificate) == (OPEN, "none", None)
    assert (answer.eps, answer.radius) == (OPEN, None)


def test_a_call_ends_at_its_time_limit():
    rng = np.random.default_rng(1)
    W = rng.standard_normal((2000, 40))
    assert chebyshev(LinearDecision(W, None), [1, 2, 3], seconds=1e-9).status == OPEN
    A, bound = np.hstack([-W, np.ones((2000, 1))]), np.full(41, 1e4)
    assert "time limit" in maximise_last(A, np.zeros(2000), -bound, bound, 0.0).message.lower()
