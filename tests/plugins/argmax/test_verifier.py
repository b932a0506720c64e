from __future__ import annotations

import copy
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pytest
from exact_lp import exactly_argmaxable
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import KINDS, all_sets, bias, check_proof, layer, some_sets
from scipy.sparse import csr_matrix
from xmckit_argmax.records import Assignment
from xmckit_argmax.solver import Solver, SolverSettings
from xmckit_argmax.system import make_system
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import Alternating, Context, DataError, LinearDecision, Verdicts, make_context
from xmckit.verification import blocks

INSTANCES = 100_000


def verify(decision: LinearDecision, sets: csr_matrix, candidates: csr_matrix | None = None, **params: Any) -> Verdicts:
    return ArgmaxVerifier(**params).verify(decision, sets, candidates=candidates, context=Context())


def rows_of(sets: csr_matrix) -> list[np.ndarray]:
    return np.split(sets.indices, sets.indptr[1:-1]) if sets.shape[0] else []


def check_all(
    decision: LinearDecision, sets: csr_matrix, verdicts: Verdicts, candidates: csr_matrix | None = None
) -> int:
    """Every proof is one, and every answer is the exact one; returns how many are unresolved."""
    allowed = [None] * sets.shape[0] if candidates is None else rows_of(candidates)
    assert len(verdicts) == sets.shape[0]
    for row, (active, labels) in enumerate(zip(rows_of(sets), allowed, strict=True)):
        verdict = verdicts[row]
        check_proof(decision, verdict, active, labels)
        truth = exactly_argmaxable(decision.W, decision.b, decision.rule, active, labels)
        assert verdict.status in ("unresolved", "argmaxable" if truth else "unargmaxable")
    return verdicts.counts()["unresolved"]


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_the_exact_one_and_proved(kind: str, rule: str) -> None:
    rng = np.random.default_rng([KINDS.index(kind), len(rule)])
    unresolved = 0
    for _ in range(4):
        n, d = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        decision = LinearDecision(layer(kind, n, d, rng), bias(kind, n, rng), rule)  # type: ignore[arg-type]
        sets = some_sets(n, 25, rng)
        unresolved += check_all(decision, sets, verify(decision, sets))
    # between rows that are parallel but for their last bits there may be no vector of floats
    assert unresolved <= (10 if kind == "near-parallel" else 0)


@given(
    kind=st.sampled_from(KINDS),
    rule=st.sampled_from(["sign", "topk"]),
    n=st.integers(0, 12),
    d=st.integers(0, 5),
    seed=st.integers(0, 10**6),
    margin=st.sampled_from(["any", "largest"]),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_candidates(kind: str, rule: Any, n: int, d: int, seed: int, margin: str) -> None:
    rng = np.random.default_rng(seed)
    decision = LinearDecision(layer(kind, n, d, rng), bias(kind, n, rng), rule)
    candidates = some_sets(n, 6, rng)
    sets = csr_matrix(some_sets(n, 6, rng).multiply(candidates))
    assert check_all(decision, sets, verify(decision, sets, candidates, margin=margin), candidates) <= 1


def test_a_label_outside_the_candidates_is_missed() -> None:
    decision = LinearDecision(np.eye(4), None)
    sets = csr_matrix([[1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 1]])
    candidates = csr_matrix([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    verdicts = verify(decision, sets, candidates)
    assert [verdict.missed for verdict in verdicts.verdicts] == [(0,), (), (1, 3)]
    assert [verdict.status for verdict in verdicts.verdicts] == ["unargmaxable", "argmaxable", "unargmaxable"]
    assert {verdict.proof for verdict in verdicts.verdicts if verdict.missed} == {"exact"}


def test_a_shortlist_can_do_what_the_layer_cannot() -> None:
    W = np.asarray([[1.0], [2.0]])
    sets = csr_matrix([[1, 0]])
    assert verify(LinearDecision(W, None), sets)[0].status == "unargmaxable"
    assert verify(LinearDecision(W, None), sets, csr_matrix([[1, 0]]))[0].status == "argmaxable"


def same_bits(left: Verdicts, right: Verdicts) -> bool:
    def parts(verdicts: Verdicts) -> list[Any]:
        return [
            (
                verdict.status,
                verdict.proof,
                None if verdict.witness is None else verdict.witness.tobytes(),
                None if verdict.certificate is None else [part.tobytes() for part in verdict.certificate],
                verdict.margin,
                verdict.radius,
            )
            for verdict in verdicts.verdicts
        ]

    return parts(left) == parts(right)


def test_workers_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    decision = LinearDecision(rng.standard_normal((700, 12)).astype(np.float32), rng.standard_normal(700) - 2)
    likely = 2 * rng.standard_normal((150, 12)) @ decision.W.T + decision.b > 0
    sets = csr_matrix(np.concatenate([likely, rng.random((150, 700)) < 0.004]))
    verifier = ArgmaxVerifier(batch=8)
    alone = verifier.verify(decision, sets, context=make_context(workers=1))
    together = verifier.verify(decision, sets, context=make_context(workers=3))
    assert min(alone.counts()["argmaxable"], alone.counts()["unargmaxable"]) > 5
    assert same_bits(alone, together)


def test_answers_come_in_the_order_of_the_assignments() -> None:
    rng = np.random.default_rng(1)
    decision = LinearDecision(rng.standard_normal((9, 4)), None)
    sets, order = all_sets(9), rng.permutation(512)
    plain = [verdict.status for verdict in verify(decision, sets).verdicts]
    shuffled = [verdict.status for verdict in verify(decision, sets[order], batch=5).verdicts]
    assert shuffled == [plain[row] for row in order]


class CountingWorkers:
    """An executor that counts what there is to share."""

    def __init__(self) -> None:
        self.parts = 0

    def map(self, function: Any, items: Any, *, workers: int) -> list[Any]:
        self.parts += len(items)
        return [function(item) for item in items]


def test_what_is_verified_at_a_time_is_enough_for_several_workers() -> None:
    executor = CountingWorkers()
    sets = csr_matrix(np.random.default_rng(4).random((blocks.BLOCK, 9)) < 0.5)
    ArgmaxVerifier().verify(LinearDecision(np.eye(9), None), sets, context=Context(executor=executor, workers=4))
    assert executor.parts >= 4


class DyingWorkers:
    """An executor whose second call loses a worker."""

    def __init__(self) -> None:
        self.calls = 0

    def map(self, function: Any, items: Any, *, workers: int) -> list[Any]:
        self.calls += 1
        if self.calls == 2:
            raise BrokenProcessPool("a worker was killed")
        return [function(item) for item in items]


def test_a_worker_that_dies_costs_no_verdict() -> None:
    rng = np.random.default_rng(2)
    decision, sets = LinearDecision(rng.standard_normal((8, 3)), None), all_sets(8)
    messages: list[str] = []
    context = Context(executor=DyingWorkers(), log=messages.append)
    verdicts = ArgmaxVerifier(batch=1).verify(decision, sets, context=context)
    assert same_bits(verdicts, verify(decision, sets, batch=1))
    assert "a worker was killed" in messages[0]


def test_a_copied_solver_gives_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    W, b = rng.standard_normal((8, 3)), rng.standard_normal(8)
    solver = Solver(make_system(W, b, "sign"), W, b, SolverSettings())
    assignments = [Assignment(active.astype(np.int64)) for active in rows_of(all_sets(8))]
    for here, there in zip(solver.solve(assignments), copy.deepcopy(solver).solve(assignments), strict=True):
        assert here.status == there.status
        assert here.witness is None or here.witness.tobytes() == there.witness.tobytes()  # type: ignore[union-attr]


# Replay


def scorer(decision: LinearDecision) -> Any:
    def replay(vectors: np.ndarray, counts: np.ndarray | None = None) -> csr_matrix:
        scores = vectors @ decision.W.T + (0 if decision.b is None else decision.b)
        if counts is None:
            return csr_matrix(scores > 0)
        places = np.argsort(np.argsort(-scores, axis=1), axis=1)
        return csr_matrix(places < np.asarray(counts)[:, None])

    return replay


@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_witnesses_are_replayed(rule: Any) -> None:
    rng = np.random.default_rng(4)
    plain = LinearDecision(rng.standard_normal((7, 3)), rng.standard_normal(7), rule)
    decision = LinearDecision(plain.W, plain.b, rule, replay=scorer(plain))
    verdicts = verify(decision, all_sets(7))
    assert {v.replayed for v in verdicts.verdicts if v.status == "argmaxable"} == {True}
    assert {v.replayed for v in verdicts.verdicts if v.status == "unargmaxable"} == {None}
    wrong = LinearDecision(plain.W, plain.b, rule, replay=scorer(LinearDecision(-plain.W, plain.b, rule)))
    assert False in {v.replayed for v in verify(wrong, all_sets(7)).verdicts}


def test_a_replay_with_candidates_looks_at_the_candidates_only() -> None:
    plain = LinearDecision(np.asarray([[1.0], [2.0]]), None)
    decision = LinearDecision(plain.W, None, replay=scorer(plain))
    verdict = verify(decision, csr_matrix([[1, 0]]), csr_matrix([[1, 0]]))[0]
    assert (verdict.status, verdict.replayed) == ("argmaxable", True)


# Margins, radii, tolerance


def test_largest_margins_in_the_plane_are_half_angles() -> None:
    rng = np.random.default_rng(5)
    angles = rng.random(7) * 2 * np.pi
    W = np.stack([np.cos(angles), np.sin(angles)], axis=1) * 10.0 ** rng.integers(-3, 4, (7, 1))
    verdicts = verify(LinearDecision(W, None), all_sets(7), margin="largest")
    # the lines of the rows cut the plane into cones; a cone's largest margin is the sine of half its angle
    lines = np.sort((angles + np.pi / 2) % np.pi)
    widths = np.diff(np.concatenate([lines, lines[:1] + np.pi]))
    found = sorted(v.margin for v in verdicts.verdicts if v.margin)
    np.testing.assert_allclose(found, np.sort(np.sin(np.repeat(widths, 2) / 2)), rtol=1e-6)


@pytest.mark.parametrize("margin", ["any", "largest"])
def test_bounds_hold_the_radius_of_the_linear_programme(margin: str) -> None:
    from scipy.optimize import linprog

    rng = np.random.default_rng(6)
    W = rng.standard_normal((30, 5))
    sets = csr_matrix(np.sign(rng.standard_normal((12, 5)) @ W.T) > 0)
    verdicts = verify(LinearDecision(W, None), sets, margin=margin)
    lengths = np.linalg.norm(W, axis=1)
    for row, active in enumerate(rows_of(sets)):
        signs = np.full(30, -1.0)
        signs[active] = 1.0
        best = linprog(
            [0.0] * 5 + [-1.0],
            A_ub=np.hstack([-signs[:, None] * W, lengths[:, None]]),
            b_ub=np.zeros(30),
            bounds=[(-1e4, 1e4)] * 5 + [(0, None)],
            method="highs-ds",
        )
        radius = verdicts[row].radius
        assert radius is not None
        low, high = radius
        assert low <= -best.fun * (1 + 1e-6)
        assert -best.fun <= high * (1 + 1e-6)
        assert margin == "any" or high <= low * 5**0.5 * (1 + 1e-5)
        assert verdicts[row].eps == "argmaxable"


def test_the_answer_at_a_tolerance_differs_from_the_answer() -> None:
    W = np.asarray([[1.0, 0.0], [-1.0, 1e-14]])
    verdict = verify(LinearDecision(W, None), csr_matrix([[1, 1]]), margin="largest")[0]
    assert (verdict.status, verdict.eps) == ("argmaxable", "unargmaxable")


def test_the_tolerance_with_a_bias() -> None:
    sets = csr_matrix([[1]])
    near = verify(LinearDecision(np.asarray([[1.0]]), np.asarray([-1.0])), sets)[0]
    far = verify(LinearDecision(np.asarray([[1.0]]), np.asarray([-1e6])), sets)[0]
    assert (near.status, near.eps) == ("argmaxable", "argmaxable")
    # it takes an x above 1e6, and the box ends at 1e4
    assert (far.status, far.eps) == ("argmaxable", "unargmaxable")


def test_linear_programmes_agree() -> None:
    rng = np.random.default_rng(7)
    decision, sets = LinearDecision(rng.standard_normal((6, 3)), None), all_sets(6)
    by_programme = verify(decision, sets, mode="chebyshev")
    assert (
        by_programme.counts()
        == verify(decision, sets).counts()
        == {"argmaxable": 32, "unargmaxable": 32, "unresolved": 0}
    )


# The paper's example and other structures


def test_the_papers_dft_example() -> None:
    """W(6, 3): every set of at most one run of active labels, and no other, can be output: 32 of 64."""
    angles = 2 * np.pi * np.arange(6) / 6
    W = np.stack([np.ones(6), np.cos(angles), np.sin(angles)], axis=1)
    decision = LinearDecision(W, None, structure=Alternating(1, 0, np.arange(6)))
    verdicts = verify(decision, all_sets(6))
    assert sum(v.ideal == "argmaxable" for v in verdicts.verdicts) == 32
    assert check_all(decision, all_sets(6), verdicts) == 0
    singles = verify(decision, csr_matrix(np.eye(6)))
    assert singles.counts()["argmaxable"] == 6


# Ties


def statuses(W: Any, b: Any, rule: Any, sets: Any) -> list[str]:
    b = None if b is None else np.asarray(b, dtype=np.float64)
    decision = LinearDecision(np.asarray(W, dtype=np.float64), b, rule)
    verdicts = verify(decision, csr_matrix(np.asarray(sets, dtype=np.float32)))
    assert check_all(decision, csr_matrix(np.asarray(sets, dtype=np.float32)), verdicts) == 0
    return [verdict.status for verdict in verdicts.verdicts]


CAN, CANNOT = "argmaxable", "unargmaxable"


@pytest.mark.parametrize(
    ("W", "b", "rule", "expected"),
    [
        ([[1], [0]], None, "sign", [CAN, CANNOT, CAN, CANNOT]),  # a row of zeros is off
        ([[0], [0]], None, "sign", [CAN, CANNOT, CANNOT, CANNOT]),
        ([[1], [1]], None, "sign", [CAN, CANNOT, CANNOT, CAN]),
        ([[1], [-1]], None, "sign", [CAN, CAN, CAN, CANNOT]),  # x = 0 puts out nothing
        ([[0], [0]], [0, 1], "sign", [CANNOT, CAN, CANNOT, CANNOT]),
        ([[3], [-3]], [-1, 1], "sign", [CAN, CAN, CAN, CANNOT]),  # x = 1/3 puts out nothing
        ([[1], [1]], None, "topk", [CAN, CANNOT, CAN, CAN]),  # the lower id wins
        ([[0], [0]], None, "topk", [CAN, CANNOT, CAN, CAN]),
        ([[1], [1]], [0, 1], "topk", [CAN, CAN, CANNOT, CAN]),
        ([[], []], None, "sign", [CAN, CANNOT, CANNOT, CANNOT]),
        ([[], []], [2, 2], "topk", [CAN, CANNOT, CAN, CAN]),
    ],
)
def test_ties_are_decided_by_the_rule(W: Any, b: Any, rule: str, expected: list[str]) -> None:
    assert statuses(W, b, rule, [[0, 0], [0, 1], [1, 0], [1, 1]]) == expected


def test_a_tie_has_no_margin_and_no_ball_around_it() -> None:
    decision = LinearDecision(np.asarray([[1.0], [-1.0]]), None)
    empty = verify(decision, csr_matrix((1, 2), dtype=np.float32))[0]
    assert (empty.status, empty.margin, empty.eps) == (CAN, 0.0, CANNOT)
    assert not empty.witness.any()  # type: ignore[union-attr]
    third = LinearDecision(np.asarray([[3.0], [-3.0]]), np.asarray([-1.0, 1.0]))
    verdict = verify(third, csr_matrix((1, 2), dtype=np.float32))[0]
    assert (verdict.status, verdict.exact_witness, verdict.margin, verdict.eps) == (CAN, (1, 3), None, CANNOT)
    assert verdict.witness is not None
    assert verdict.witness.tolist() == [1 / 3]


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("biased", [False, True])
def test_what_a_layer_outputs_is_argmaxable(rule: Any, biased: bool) -> None:
    """Rows of zeros, equal rows and opposite rows among many others; whole numbers, so that the logits are exact."""
    rng = np.random.default_rng(20)
    W = rng.integers(-2, 3, (60, 4)).astype(np.float64)
    W[::7], W[1::9], W[2::11] = 0, W[3], -W[4]
    b = rng.integers(-1, 2, 60).astype(np.float64) if biased else None
    logits = rng.integers(-2, 3, (80, 4)) @ W.T + (0 if b is None else b)
    ranks = np.argsort(np.argsort(-logits, axis=1, kind="stable"), axis=1)
    sets = csr_matrix((logits > 0 if rule == "sign" else ranks < 7).astype(np.float32))
    decision = LinearDecision(W, b, rule)
    verdicts = verify(decision, sets)
    assert verdicts.counts()["argmaxable"] == 80
    assert check_all(decision, sets, verdicts) == 0


def test_a_witness_of_integers_survives_an_interrupted_run(tmp_path: Any) -> None:
    decision = LinearDecision(np.asarray([[3.0], [-3.0]]), np.asarray([-1.0, 1.0]))
    verdicts = verify(decision, all_sets(2)).verdicts
    blocks._save_block(tmp_path / "block.npz", verdicts, 1)
    loaded = blocks._load_block(tmp_path / "block.npz")
    assert [verdict.exact_witness for verdict in loaded] == [(1, 3), None, None, None]
    assert same_bits(Verdicts(loaded), Verdicts([*verdicts]))


# Bad and odd input


def test_weights_that_are_no_numbers_are_named() -> None:
    W = np.ones((3, 2))
    W[1, 0] = np.nan
    with pytest.raises(DataError, match=r"row 1: W holds nan"):
        verify(LinearDecision(W, None), csr_matrix((1, 3)))
    with pytest.raises(DataError, match=r"row 2: b holds inf"):
        verify(LinearDecision(np.ones((3, 2)), np.asarray([0, 0, np.inf])), csr_matrix((1, 3)))
    with pytest.raises(DataError, match="one float64 for each of 3 labels"):
        verify(LinearDecision(np.ones((3, 2)), np.zeros(2)), csr_matrix((1, 3)))
    with pytest.raises(DataError, match="float64 holds exactly, labels × d"):
        verify(LinearDecision(np.ones(3), None), csr_matrix((1, 3)))


def test_sets_that_do_not_fit_are_refused() -> None:
    decision = LinearDecision(np.ones((3, 2)), None)
    with pytest.raises(DataError, match="over 5 labels, but W has 3 rows"):
        verify(decision, csr_matrix((1, 5)))
    with pytest.raises(DataError, match="2 rows of candidates for 1 assignments"):
        verify(decision, csr_matrix((1, 3)), csr_matrix((2, 3)))


def test_no_assignments() -> None:
    assert len(verify(LinearDecision(np.ones((3, 2)), None), csr_matrix((0, 3)))) == 0


@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_no_columns(rule: Any) -> None:
    for b in (None, np.asarray([1.0, -1.0, 0.5])):
        decision = LinearDecision(np.empty((3, 0)), b, rule)
        assert check_all(decision, all_sets(3), verify(decision, all_sets(3))) == 0


def test_as_many_columns_as_labels_reach_everything() -> None:
    rng = np.random.default_rng(8)
    assert verify(LinearDecision(rng.standard_normal((5, 5)), None), all_sets(5)).counts()["argmaxable"] == 32


def test_a_zero_row_is_a_certificate_by_itself() -> None:
    W = np.asarray([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    verdict = verify(LinearDecision(W, None), csr_matrix([[1, 1, 0]]))[0]
    assert verdict.status == "unargmaxable"
    assert verdict.certificate is not None
    assert verdict.certificate[0].tolist() == [1]
    b = np.asarray([0.0, -2.0, 0.0])
    statuses = [v.status for v in verify(LinearDecision(W, b), csr_matrix([[1, 1, 0], [1, 0, 0]])).verdicts]
    assert statuses == ["unargmaxable", "argmaxable"]


@pytest.mark.parametrize("scale", [1e-300, 1e-38, 1e30, 1e300])
def test_scale_is_no_obstacle(scale: float) -> None:
    rng = np.random.default_rng(9)
    W = rng.standard_normal((7, 3))
    plain = [v.status for v in verify(LinearDecision(W, None), all_sets(7)).verdicts]
    assert [v.status for v in verify(LinearDecision(W * scale, None), all_sets(7)).verdicts] == plain


def test_a_row_whose_entries_are_too_far_apart_for_scaling() -> None:
    W = np.asarray([[1e300, 1e-300], [-1e300, 0.0]])
    decision = LinearDecision(W, None)
    assert check_all(decision, all_sets(2), verify(decision, all_sets(2))) <= 2


def test_without_exact_arithmetic_nothing_is_wrong() -> None:
    rng = np.random.default_rng(10)
    decision = LinearDecision(layer("integer", 8, 3, rng), None)
    verdicts = verify(decision, all_sets(8), exact=False)
    assert check_all(decision, all_sets(8), verdicts) > 0
    assert {v.proof for v in verdicts.verdicts if v.certificate is None and v.status == "unargmaxable"} <= {"exact"}


def test_little_memory_changes_no_answer() -> None:
    rng = np.random.default_rng(11)
    decision = LinearDecision(rng.standard_normal((3000, 10)), None)
    sets = csr_matrix(rng.random((40, 3000)) < 0.002)
    assert verify(decision, sets, memory=1).counts() == verify(decision, sets).counts()


@pytest.mark.slow
def test_a_hundred_thousand_hard_instances() -> None:
    rng = np.random.default_rng(12)
    unresolved = done = 0
    while done < INSTANCES:
        kind, rule = KINDS[rng.integers(len(KINDS))], ["sign", "topk"][rng.integers(2)]
        n, d = int(rng.integers(1, 41)), int(rng.integers(1, 7))
        decision = LinearDecision(layer(kind, n, d, rng), bias(kind, n, rng), rule)  # type: ignore[arg-type]
        sets = some_sets(n, 100, rng)
        if decision.rule == "sign" and rng.random() < 0.5:
            x = rng.standard_normal((100, d))
            sets = csr_matrix(x @ decision.W.T + (0 if decision.b is None else decision.b) > 0)
        unresolved += check_all(decision, sets, verify(decision, sets))
        done += 100
    assert unresolved <= INSTANCES // 500
