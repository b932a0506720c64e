"""The leaves of labels, given a matcher: against brute force, an LP solver and the paper's theorem."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pecos_problems import objectives, random_problem
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, kron
from scipy.sparse import eye as identity
from xmckit_pecos.labels import assignment, auction, meanings
from xmckit_pecos.labels.assignment import Placement, Reachability
from xmckit_pecos.labels.meanings import MeaningRule

seeds = st.integers(0, 2**32 - 1)


def of_partition(leaf_of) -> Placement:
    return Placement(np.arange(len(leaf_of), dtype=np.int32), np.asarray(leaf_of, dtype=np.int32))


def clusters(placed: Placement, labels: int, leaves: int) -> np.ndarray:
    C = np.zeros((labels, leaves), dtype=int)
    np.add.at(C, (placed.label_of, placed.leaf_of), 1)
    assert C.max(initial=0) <= 1, "a label stands in a leaf twice"
    return C


def optimum(S: np.ndarray, copies: int, room: np.ndarray) -> float:
    """The largest Σ C∘S, by HiGHS."""
    labels, leaves = S.shape
    rows = LinearConstraint(kron(identity(labels), np.ones((1, leaves))), ub=copies)
    columns = LinearConstraint(kron(np.ones((1, labels)), identity(leaves)), ub=room)
    found = milp(-S.ravel(), constraints=[rows, columns], bounds=Bounds(0, 1), integrality=np.ones(S.size))
    assert found.success
    return -found.fun


@settings(deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 7))
def test_candidates_are_the_best_entries(seed, workers, most):
    Y, M, start = random_problem(seed)
    S = (Y.T @ M).toarray().astype(int)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, most, workers)
    for label, counts in enumerate(S):
        part = slice(found.starts[label], found.starts[label + 1])
        best = sorted(np.flatnonzero(counts).tolist(), key=lambda leaf: (-counts[leaf], leaf))
        expected = best[:most]
        if counts[start[label]] and start[label] not in expected:
            expected[-1] = int(start[label])
        assert found.leaves[part].tolist() == expected
        assert found.counts[part].tolist() == counts[expected].tolist()
        left_out = [counts[leaf] for leaf in best if leaf not in expected]
        assert found.cut[label] == max(left_out, default=0)


@settings(deadline=None)
@given(seeds, st.integers(1, 3), st.integers(1, 4))
def test_worth_is_that_of_the_formulas(seed, copies, workers):
    Y, M, start = random_problem(seed)
    reached = Reachability.from_matrices(Y, M)
    placed = assignment.best_leaves(assignment.candidate_leaves(reached, start, 6, 1), copies)
    for one in (placed, of_partition(start)):
        C = clusters(one, 9, 6)
        found = assignment.evaluate(reached, one, workers)
        assert (found.covered, found.paths) == objectives(Y, M, C)
        assert found.rows.tolist() == [(Y.T @ M)[pair] for pair in zip(one.label_of, one.leaf_of, strict=True)]


@settings(deadline=None)
@given(seeds, st.integers(1, 4))
def test_without_a_cap_it_is_the_projection(seed, copies):
    Y, M, start = random_problem(seed)
    S = (Y.T @ M).toarray()
    placed = assignment.best_leaves(assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 6, 1), copies)
    C = clusters(placed, 9, 6)
    assert (C * S).sum() == np.sort(S, axis=1)[:, ::-1][:, :copies].sum() == placed.bound
    assert (C.sum(axis=1) == np.minimum((S > 0).sum(axis=1), copies)).all()


@settings(deadline=None, max_examples=200)
@given(seeds, st.integers(1, 4))
def test_theorem_3(seed, copies):
    """No partition covers more pairs, whichever it is; C* leaves out labels on no row, which cover nothing."""
    Y, M, start = random_problem(seed)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 6, 1)
    covered, _ = objectives(Y, M, clusters(assignment.best_leaves(found, copies), 9, 6))
    rng = np.random.default_rng(seed + 1)
    best = np.eye(6, dtype=int)[(Y.T @ M).toarray().argmax(axis=1)]
    for C in (best, *(np.eye(6, dtype=int)[rng.integers(0, 6, 9)] for _ in range(20))):
        assert covered >= objectives(Y, M, C)[0]


@settings(deadline=None, max_examples=150)
@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_the_auction_finds_the_optimum(seed, copies, places):
    Y, M, start = random_problem(seed)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 6, 1)
    room = np.random.default_rng(seed).integers(1, places + 1, 6)
    placed = auction.auction(found, copies, room)
    C = clusters(placed, 9, 6)
    S = (Y.T @ M).toarray()
    assert (C.sum(axis=0) <= room).all()
    assert (C.sum(axis=1) <= copies).all()
    best = optimum(S, copies, room)
    assert (C * S).sum() == pytest.approx(best)
    assert best - 1e-6 <= placed.bound <= best + 1


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_larger_auction_is_as_near_as_it_says(copies, monkeypatch):
    """With many copies the steps are coarser than what proves the optimum."""
    monkeypatch.setattr(auction, "SMALL", 0)
    Y, M, start = random_problem(3, rows=600, labels=150, leaves=16, beam=3)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 16, 1)
    room = np.full(16, int(1.2 * copies * 150 / 16))
    placed = auction.auction(found, copies, room)
    S = (Y.T @ M).toarray()
    reached, best = (clusters(placed, 150, 16) * S).sum(), optimum(S, copies, room)
    assert 0.999 * best <= reached <= best <= placed.bound + 1e-6
    assert placed.bound <= 1.001 * best


def test_an_auction_that_takes_too_long_takes_larger_steps(monkeypatch):
    Y, M, start = random_problem(5, rows=300, labels=80, leaves=8, beam=2)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 8, 1)
    room = np.full(8, 12)
    monkeypatch.setattr(auction, "PATIENCE", 1)
    monkeypatch.setattr(auction, "LEAST_PATIENCE", 1)
    placed = auction.auction(found, 1, room)
    S = (Y.T @ M).toarray()
    best = optimum(S, 1, room)
    assert 0.9 * best <= (clusters(placed, 80, 8) * S).sum() <= best <= placed.bound + 1e-6


def test_a_bound_that_knows_what_was_cut():
    Y, M, start = random_problem(7, rows=200, labels=40, leaves=12, beam=6)
    S = (Y.T @ M).toarray()
    room = np.full(12, 5)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 3, 1)
    assert found.cut.any()
    assert auction.auction(found, 2, room).bound >= optimum(S, 2, room) - 1e-6


@settings(deadline=None)
@given(seeds)
def test_every_label_has_a_place_and_no_leaf_too_many(seed):
    Y, M, start = random_problem(seed)
    seen = np.asarray(Y.sum(axis=0)).ravel() > 0
    room = np.maximum(np.bincount(start[seen], minlength=6), 2)
    found = assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 6, 1)
    placed = auction.place_remaining(auction.auction(found, 1, room), start, seen, room)
    assert placed.label_of.tolist() == np.flatnonzero(seen).tolist()
    assert (np.bincount(placed.leaf_of, minlength=6) <= room).all()


def test_a_label_that_stays_out_stands_next_to_where_it_was():
    nobody = Placement(np.empty(0, np.int32), np.empty(0, np.int32))
    start, wanted = np.asarray([2, 2, 2, 0]), np.asarray([True, True, True, False])
    placed = auction.place_remaining(nobody, start, wanted, np.asarray([5, 1, 1, 0]))
    assert placed.leaf_of.tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="not enough room"):
        auction.place_remaining(nobody, start, wanted, np.asarray([1, 0, 1, 0]))


# Further meanings


@settings(deadline=None)
@given(seeds, st.integers(0, 8), st.integers(1, 3), st.sampled_from([0.0, 0.3]))
def test_further_copies_win_rows(seed, budget, workers, share):
    Y, M, start = random_problem(seed, beam=2)
    seen = np.asarray(Y.sum(axis=0)).ravel() > 0
    reached, room = Reachability.from_matrices(Y, M), np.full(6, 3) + np.bincount(start, minlength=6)
    first = Placement(np.flatnonzero(seen).astype(np.int32), start[seen])
    rule = MeaningRule(rows=2, share=share, most=3)
    placed = meanings.add_meanings(reached, first, room, budget, rule, workers)
    again = meanings.add_meanings(reached, first, room, budget, rule, 1)
    assert np.array_equal(placed.label_of, again.label_of)
    assert np.array_equal(placed.leaf_of, again.leaf_of)
    C = clusters(placed, 9, 6)
    assert (C[np.flatnonzero(seen), start[seen]] == 1).all()
    assert len(placed.label_of) - len(first.label_of) <= budget
    assert (C.sum(axis=0) <= room).all()
    assert C.sum(axis=1).max(initial=0) <= 3
    covered = [objectives(Y, M, clusters(one, 9, 6))[0] for one in (first, placed)]
    assert covered[1] - covered[0] >= 2 * (len(placed.label_of) - len(first.label_of))


def test_the_copies_with_most_to_win_come_first():
    """Label 0: 4 rows in leaf 0 and 4 in leaf 1. Label 1: 6 in leaf 0, 2 in leaf 1. Label 2: 8 in leaf 0."""
    M = np.zeros((24, 3), dtype=np.float32)
    M[np.arange(24), [0] * 4 + [1] * 4 + [0] * 6 + [1] * 2 + [0] * 8] = 1
    Y = np.eye(3, dtype=np.float32)[np.arange(24) // 8]
    reached, room = Reachability.from_matrices(csr_matrix(Y), csr_matrix(M)), np.full(3, 9)
    first = of_partition([0, 0, 0])
    for budget, expected in ((0, []), (1, [0]), (2, [0, 1]), (9, [0, 1])):
        placed = meanings.add_meanings(reached, first, room, budget, MeaningRule(rows=2, share=0.1), 1)
        assert placed.label_of[placed.leaf_of == 1].tolist() == expected
    strict = meanings.add_meanings(reached, first, room, 9, MeaningRule(rows=2, share=0.3), 1)
    assert strict.label_of[strict.leaf_of == 1].tolist() == [0]


def test_a_full_leaf_makes_a_label_look_for_another():
    """Both labels would win rows in leaf 1 and fewer in leaf 2; there is one place in leaf 1."""
    M = np.zeros((20, 3), dtype=np.float32)
    Y = np.eye(2, dtype=np.float32)[np.arange(20) // 10]
    M[:, 1] = M[:, 2] = 1
    M[[0, 10, 11], 2] = 0
    M[11, :] = [1, 0, 0]
    reached = Reachability.from_matrices(csr_matrix(Y), csr_matrix(M))
    placed = meanings.add_meanings(reached, of_partition([0, 0]), np.asarray([2, 1, 2]), 2, MeaningRule(), 1)
    assert list(zip(placed.label_of.tolist(), placed.leaf_of.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 2)]


@settings(deadline=None)
@given(seeds, st.integers(1, 4))
def test_filling_up_takes_the_largest_first(seed, copies):
    Y, M, start = random_problem(seed)
    reached = Reachability.from_matrices(Y, M)
    found = assignment.candidate_leaves(reached, start, 6, 1)
    first = of_partition(start)
    room = np.bincount(start, minlength=6) + 2
    C = clusters(meanings.fill_up(found, first, copies, room), 9, 6)
    S = (Y.T @ M).toarray()
    expected = clusters(first, 9, 6)
    for label, leaf in sorted(np.ndindex(9, 6), key=lambda pair: (-S[pair], pair)):
        if S[label, leaf] and expected[label].sum() < copies and expected[:, leaf].sum() < room[leaf]:
            expected[label, leaf] = 1
    assert np.array_equal(C, expected)


@settings(deadline=None)
@given(seeds)
def test_copies_elsewhere_are_as_many_in_other_leaves(seed):
    Y, M, start = random_problem(seed)
    placed = assignment.best_leaves(assignment.candidate_leaves(Reachability.from_matrices(Y, M), start, 6, 1), 2)
    moved = meanings.scatter_copies(placed, np.full(6, 9), np.random.default_rng(0))
    C = clusters(moved, 9, 6)
    assert C.sum(axis=1).tolist() == clusters(placed, 9, 6).sum(axis=1).tolist()
    first = np.unique(placed.label_of, return_index=True)[1]
    assert (C[placed.label_of[first], placed.leaf_of[first]] == 1).all()
    tight = meanings.scatter_copies(placed, np.bincount(placed.leaf_of, minlength=6), np.random.default_rng(1))
    assert (np.bincount(tight.leaf_of, minlength=6) <= np.bincount(placed.leaf_of, minlength=6)).all()
