from __future__ import annotations

import math
import time

import numpy as np
import pytest
from exact_lp import exactly_argmaxable
from instances import all_sets, layer
from xmckit_argmax.proofs.multipliers import inverse, positive_multipliers
from xmckit_argmax.records import Assignment
from xmckit_argmax.search.active_set import FULLY, INFEASIBLE, SATISFIED, Slots
from xmckit_argmax.search.working_set import FIRST_LESSON, FamiliarRows, begin
from xmckit_argmax.solver import Solver, SolverClock, SolverSettings, Workspace, slots_within
from xmckit_argmax.system import make_system, unit_rows

from xmckit import Verdict


def solve(
    W: np.ndarray, b: np.ndarray | None, rule: str, assignments: list[Assignment], **changes: object
) -> list[Verdict]:
    return Solver(make_system(W, b, rule), W, b, SolverSettings(**changes)).solve(assignments)  # type: ignore[arg-type]


def every_set(n: int) -> list[Assignment]:
    sets = all_sets(n)
    return [Assignment(active.astype(np.int64)) for active in np.split(sets.indices, sets.indptr[1:-1])]


def reached(verdicts: list[Verdict]) -> int:
    """The sets that are output without ties."""
    assert all(verdict.status != "unresolved" for verdict in verdicts)
    return sum(verdict.status == "argmaxable" and verdict.margin != 0 for verdict in verdicts)


def cover(n: int, d: int) -> int:
    """The regions into which n hyperplanes through the origin cut d dimensions (Cover 1965)."""
    return 2 * sum(math.comb(n - 1, i) for i in range(d))


SMALL = [(n, d) for n in range(1, 8) for d in range(1, 5)] + [(9, 2), (9, 5), (9, 6)]
LARGE = [(n, d) for n in (10, 11, 12, 13) for d in range(1, 7)]


@pytest.mark.parametrize(("n", "d"), SMALL)
def test_counts_are_cover_s(n: int, d: int) -> None:
    W = np.random.default_rng([n, d]).standard_normal((n, d))
    assert reached(solve(W, None, "sign", every_set(n))) == cover(n, d)


@pytest.mark.parametrize(("n", "d"), [(n, d) for n, d in SMALL if n < 9])
def test_counts_with_a_bias_are_those_of_hyperplanes_anywhere(n: int, d: int) -> None:
    rng = np.random.default_rng([n, d, 1])
    W, b = rng.standard_normal((n, d)), rng.standard_normal(n)
    assert reached(solve(W, b, "sign", every_set(n))) == sum(math.comb(n, i) for i in range(d + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d"), LARGE)
def test_counts_of_larger_layers_are_cover_s(n: int, d: int) -> None:
    W = np.random.default_rng([n, d]).standard_normal((n, d))
    assert reached(solve(W, None, "sign", every_set(n))) == cover(n, d)


@pytest.mark.parametrize("kind", ["plain", "integer", "duplicated", "dependent", "zero rows"])
@pytest.mark.parametrize("rule", ["sign", "topk"])
def test_all_sets_of_degenerate_layers_match_enumeration(kind: str, rule: str) -> None:
    rng = np.random.default_rng([len(kind), len(rule)])
    W = np.asarray(layer(kind, 7, 3, rng), dtype=np.float64)
    assignments = every_set(7)
    expected = [exactly_argmaxable(W, None, rule, assignment.active) for assignment in assignments]
    assert [verdict.status == "argmaxable" for verdict in solve(W, None, rule, assignments)] == expected


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("biased", [False, True])
def test_generated_rows_give_the_answers_of_all_rows(rule: str, biased: bool) -> None:
    """Listed rows are all in the working set from the start; otherwise scans bring them in, a few at a time."""
    rng = np.random.default_rng(3)
    n, d = 2500, 9
    W = rng.standard_normal((n, d))
    b = rng.standard_normal(n) if biased else None
    logits = rng.standard_normal((30, d)) @ W.T * 3 + (0 if b is None else b)
    sets = [np.argsort(-row)[:8] if rule == "topk" else np.flatnonzero(row > 0) for row in logits]
    sets += [rng.choice(n, 4, replace=False) for _ in range(30)]
    generated = solve(W, b, rule, [Assignment(np.sort(active)) for active in sets], add=8, slots=5)
    listed = solve(W, b, rule, [Assignment(np.sort(active), np.arange(n)) for active in sets])
    assert [verdict.status for verdict in generated] == [verdict.status for verdict in listed]
    assert {verdict.status for verdict in generated} == {"argmaxable", "unargmaxable"}


def test_a_full_working_set_makes_room() -> None:
    """Many more rows pass through than there is room for."""
    rng = np.random.default_rng(4)
    W = rng.standard_normal((30_000, 4))
    x = rng.standard_normal((3, 4))
    assignments = [Assignment(np.flatnonzero(row > 0)) for row in x @ W.T]
    verdicts = solve(W, None, "sign", assignments, add=200, largest=True)
    assert [verdict.status for verdict in verdicts] == ["argmaxable"] * 3


def test_scans_that_bring_back_what_was_forgotten_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that finds rows violated where the active-set method finds none, as rounding may make it."""
    W = np.random.default_rng(4).standard_normal((3000, 4))
    monkeypatch.setattr(Slots, "solve", lambda *_: None)
    clock = SolverClock()
    solver = Solver(make_system(W, None, "sign"), W, None, SolverSettings(seconds=2, exact=False))
    assert [verdict.status for verdict in solver.solve([Assignment(np.arange(9))], clock)] == ["unresolved"]
    assert clock.scans < 50


def test_small_margins_survive_float32_scans() -> None:
    """Regions far narrower than the rounding of a scan."""
    rng = np.random.default_rng(5)
    W = rng.standard_normal((4000, 3))
    x = rng.standard_normal((20, 3))
    W -= np.outer(W @ x[0], x[0]) / (x[0] @ x[0]) * (1 - 1e-7)
    assignments = [Assignment(np.flatnonzero(row > 0)) for row in x[:1] @ W.T]
    verdicts = solve(W, None, "sign", assignments)
    assert verdicts[0].status == "argmaxable"
    assert verdicts[0].margin is not None
    assert verdicts[0].margin < 1e-8


def test_as_many_slots_as_fit_into_the_memory() -> None:
    W = np.random.default_rng(6).standard_normal((300, 100))
    system, memory = make_system(W, None, "sign"), 8 << 20
    slots = slots_within(memory, system)
    workspace = Workspace(slots, 10 * 100 + 512, system)
    arrays = sum(getattr(array, "nbytes", 0) for array in vars(workspace).values())
    inverses = 2 * slots * workspace.Q[0].nbytes
    assert 0.5 * memory < arrays + inverses < memory
    assert slots_within(1, system) == 1


def test_what_is_left_open_keeps_no_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    W = np.random.default_rng(6).standard_normal((200, 5))
    solver = Solver(make_system(W, None, "sign"), W, None, SolverSettings())
    seen: list[np.ndarray | None] = []
    monkeypatch.setattr(
        solver._prover, "prove", lambda _, results, __: seen.extend(item.inverse for item in results) or {}
    )
    left = solver._attempt([Assignment(np.arange(5))] * 3, [None] * 3, SolverClock(), careful=False)
    assert len(left) == len(seen) == 3
    assert all(item is not None and not isinstance(item.base, np.ndarray) for item in seen)  # no part of a larger array
    assert all(result.inverse is None for result in left.values())


def test_time_limits_leave_sets_unresolved() -> None:
    rng = np.random.default_rng(6)
    W = rng.standard_normal((500, 20))
    verdicts = solve(W, None, "sign", [Assignment(np.arange(5))], seconds=1e-9)
    assert [verdict.status for verdict in verdicts] == ["unresolved"]


def test_steps_scans_and_seconds_are_counted() -> None:
    rng = np.random.default_rng(7)
    W = rng.standard_normal((400, 6))
    clock = SolverClock()
    begin = time.perf_counter()
    verdicts = Solver(make_system(W, None, "sign"), W, None, SolverSettings()).solve(
        [Assignment(np.arange(3))] * 4, clock
    )
    took = time.perf_counter() - begin
    assert clock.steps >= 4
    assert clock.scans >= 4
    assert set(clock.seconds) == {"active set", "scan", "proof", "exact"}
    assert 0 < sum(verdict.seconds for verdict in verdicts) <= took


# The active-set method by itself


def alone(rows: np.ndarray, *, closely: bool = False) -> Slots:
    count, d = rows.shape
    padded = np.zeros((count, -(-d // 8) * 8))
    padded[:, :d] = rows
    slots = Slots(1, count, count, d, padded.shape[1])
    for array in (slots.Q, slots.R, slots.multipliers):
        array[:] = np.nan  # what an earlier label set left
    slots.start(0, np.arange(count), np.ones(count))
    norms = np.linalg.norm(rows, axis=1)
    slots.solve(padded, norms, unit_rows(padded, norms), np.zeros(1, dtype=np.int64), FULLY, 1e-22, closely)
    return slots


def test_it_finds_the_shortest_vector() -> None:
    """min ‖v‖ with rows·v ≥ ‖row‖, against projected gradient steps on the dual."""
    rng = np.random.default_rng(8)
    centre = rng.standard_normal(5)
    rows = rng.standard_normal((40, 5)) + 2 * centre
    slots = alone(rows)
    assert slots.outcome[0] == SATISFIED
    lengths = np.linalg.norm(rows, axis=1)
    u, step = np.zeros(40), 1 / np.linalg.norm(rows @ rows.T, 2)
    for _ in range(200_000 // 10):
        u = np.maximum(0, u - step * (rows @ (rows.T @ u) - lengths))
    np.testing.assert_allclose(slots.v[0, :5], rows.T @ u, rtol=1e-4, atol=1e-6)


def test_it_satisfies_rows_by_a_vector_beyond_single_precision() -> None:
    """Each variable has to be more than a thousand times the one before it."""
    rows = np.eye(20) / 1024 - np.eye(20, k=-1)
    slots = alone(rows)
    assert slots.outcome[0] == SATISFIED
    v = slots.v[0, :20]
    assert v[-1] > 1e50
    assert (v[1:] > 1000 * v[:-1]).all()


def test_the_worst_row_is_found_beyond_single_precision() -> None:
    """The row nearest to minus the first one, which comes last, leaves nothing to do for the others."""
    angles = np.arange(30, 0, -1) * 1e-5
    rows = np.concatenate([[[1.0, 0.0]], np.stack([-np.cos(angles), np.sin(angles)], axis=1)])
    slots = alone(rows, closely=True)
    assert slots.outcome[0] == SATISFIED
    assert slots.state[0].tolist() == [2, 2]
    assert slots.active[0, :2].tolist() == [0, 30]


def test_it_combines_rows_that_cannot_all_be_positive() -> None:
    rows = np.random.default_rng(9).standard_normal((30, 5))
    slots = alone(rows)
    assert slots.outcome[0] == INFEASIBLE
    assert slots.state[0, 0] == 5
    used = slots.ids[0, slots.active[0]]
    proved, weights = positive_multipliers(rows[used][None], inverse(slots.R[0], slots.Q[0])[None])
    assert proved.all()
    np.testing.assert_allclose(weights[0] @ rows[used], 0, atol=1e-9)


@pytest.mark.parametrize(("d", "seed"), [(9, 0), (17, 1), (40, 2)])
def test_the_active_rows_stay_factorised_when_some_are_dropped(d: int, seed: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((8 * d, d))
    slots = alone(rows)
    q, steps = slots.state[0].tolist()
    assert steps > q + 1  # each step that adds no row drops one
    R, Q = slots.R[0, :q], slots.Q[0, :q, :d]
    np.testing.assert_allclose(Q @ Q.T, np.eye(q), atol=1e-9)
    assert not np.triu(R, 1).any()
    np.testing.assert_allclose(R[:, :q] @ Q, rows[slots.ids[0, slots.active[0, :q]]], atol=1e-9)


def test_familiar_rows_are_those_that_answers_turned_on_often() -> None:
    familiar = FamiliarRows(1000)
    for index in range(FIRST_LESSON):
        assert familiar.rows.tolist() == []
        familiar.learn([np.asarray([7, 100 + index, *([3] if index < 4 else []), 1000])])  # 1000 is no label
    assert familiar.rows.tolist() == [7, 3]


@pytest.mark.parametrize(
    ("labels", "most", "last", "rows", "wanted"),
    [
        ([7, 9], 8, -1, [7, 9, 3], [1, 1, -1]),
        ([9], 8, 10, [9, 7, 3, 10], [1, -1, -1, 1]),
        ([2, 7, 9], 1, -1, [2, 3], [1, -1]),  # a familiar row that is active does not join as one that is not
        ([], 8, -1, [7, 3], [-1, -1]),
    ],
)
def test_a_slot_begins_with_active_labels_and_familiar_rows(labels, most, last, rows, wanted) -> None:
    slots = Slots(2, 20, 11, 4, 8)
    for array in (slots.in_set, slots.v, slots.is_active, slots.state):
        array[:] = 1  # what an earlier label set left
    begin(
        1, np.asarray(labels, dtype=np.int64), most, np.asarray([7, 3]), last, slots.ids, slots.signs, slots.counts,
        slots.in_set, slots.v, slots.is_active, slots.state,
    )  # fmt: skip
    assert slots.ids[1, : slots.counts[1]].tolist() == rows
    assert slots.signs[1, : slots.counts[1]].tolist() == wanted
    assert np.flatnonzero(slots.in_set[1]).tolist() == sorted(rows)
    assert not slots.v[1].any()
    assert not slots.is_active[1].any()
    assert not slots.state[1].any()
    assert slots.in_set[0].all()


def test_no_row_is_familiar_where_all_are_turned_on_alike() -> None:
    familiar = FamiliarRows(10)
    for _ in range(FIRST_LESSON):
        familiar.learn([np.arange(10)])
    assert familiar.rows.tolist() == []
