from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from xmckit_eagle.assign.candidates import CandidateRows
from xmckit_eagle.assign.choice import assign
from xmckit_eagle.assign.coverage import cover
from xmckit_eagle.assign.refine import refine
from xmckit_eagle.grouping import group_labels, membership_matrix
from xmckit_eagle.preprocessor import Eagle

import xmckit


def planted(seed=0, groups=60, size=4, labels=8, shared=3.0):
    """One weak feature per label below strong ones that all rows may have and that say nothing."""
    rng = np.random.default_rng(seed)
    rows = groups * size
    truth = np.zeros((rows, labels), dtype=np.float32)
    truth[np.arange(rows), rng.integers(labels, size=rows)] = 1
    truth[np.arange(rows), rng.integers(labels, size=rows)] = 1
    X = np.concatenate([truth, shared * (rng.random((rows, 20)) < 0.5)], axis=1).astype(np.float32)
    membership = membership_matrix(np.arange(rows) // size)
    Y = csr_matrix(truth)
    return xmckit.Split(csr_matrix(X), Y, groups=xmckit.Groups(membership, group_labels(membership, Y)))


def ranked(train, **params):
    everything = assign(
        train.X, train.groups.membership, train.groups.labels, iterations=0, background=True, leave_one_out=True,
        capacity=10**9, **params,
    )  # fmt: skip
    return CandidateRows.from_ranking(everything, train.groups.labels)


def precision(train, candidates, chosen):
    picked = candidates.choice(chosen)
    return float(np.asarray(train.Y[picked.rows, picked.labels]).mean())


def test_candidates_are_all_rows_of_each_pair():
    train = planted(groups=7)
    candidates = ranked(train)
    given = train.groups.labels.tocoo()
    assert len(candidates.times) == given.nnz
    assert dict(zip(zip(candidates.groups, candidates.labels, strict=True), candidates.times, strict=True)) == {
        (group, label): times for group, label, times in zip(given.row, given.col, given.data, strict=True)
    }
    for pair, group in enumerate(candidates.groups):
        rows = candidates.rows[candidates.start[pair] : candidates.start[pair + 1]]
        assert set(rows) == set(range(4 * group, 4 * group + 4))


def test_the_best_of_the_ranking_are_what_the_kernel_chooses():
    train = planted(1)
    candidates = ranked(train)
    direct = assign(
        train.X, train.groups.membership, train.groups.labels, iterations=0, background=True, leave_one_out=True,
        capacity="count",
    )  # fmt: skip
    mine = candidates.choice(candidates.best(candidates.times))
    assert np.array_equal(mine.rows, direct.rows)
    assert np.array_equal(mine.labels, direct.labels)
    assert np.allclose(mine.margins, direct.margins, atol=1e-6)


def test_standardised_scores():
    candidates = ranked(planted(2))
    scores = candidates.standardise(candidates.scores)
    for label in range(8):
        pairs = slice(candidates.label_start[label], candidates.label_start[label + 1])
        places = slice(candidates.start[pairs.start], candidates.start[pairs.stop])
        assert np.mean(scores[places] ** 2) == pytest.approx(1)
    assert np.abs(np.add.reduceat(scores, candidates.start[:-1])).max() < 1e-9
    assert np.all(candidates.standardise(np.ones(len(candidates.rows))) == 0)


def test_classifiers_find_the_features_that_distinguish_rows():
    train = planted(3)
    candidates = ranked(train)
    refined = refine(train.X, candidates, train.groups.membership, rounds=2)
    before, after = (precision(train, one, one.best(one.times)) for one in (candidates, refined.candidates))
    assert after > before + 0.05
    assert 1 <= refined.rounds <= 2
    kept = refined.recognised[: refined.rounds + 1]
    assert kept == sorted(kept)


def test_workers_dense_rows_and_seeds():
    train = planted(4, groups=30)
    candidates = ranked(train)
    one = refine(train.X, candidates, train.groups.membership, rounds=1, seed=5)
    three = refine(train.X, candidates, train.groups.membership, rounds=1, seed=5, workers=3)
    assert np.array_equal(one.candidates.scores, three.candidates.scores)
    assert one.recognised == three.recognised
    dense = refine(train.X.toarray(), candidates, train.groups.membership, rounds=1, seed=5)
    assert np.allclose(one.candidates.scores, dense.candidates.scores, atol=1e-5)
    other = refine(train.X, candidates, train.groups.membership, rounds=1, seed=6)
    assert not np.array_equal(one.candidates.scores, other.candidates.scores)


def test_a_round_that_recognises_held_out_groups_less_often_is_dropped(monkeypatch):
    from xmckit_eagle.assign import refine as refinement

    train = planted(5, groups=20)
    candidates = ranked(train)
    real, wins = refinement._train, iter([80.0, 90.0, 85.0])
    monkeypatch.setattr(refinement, "_train", lambda *args: (real(*args)[0], next(wins), 100))
    two = refine(train.X, candidates, train.groups.membership, rounds=1)
    monkeypatch.setattr(refinement, "_train", lambda *args: (real(*args)[0], next(wins), 100))
    wins = iter([80.0, 90.0, 85.0])
    three = refine(train.X, candidates, train.groups.membership, rounds=2)
    assert three.recognised == [0.8, 0.9, 0.85]
    assert three.rounds == 1
    assert np.array_equal(three.candidates.scores, two.candidates.scores)


def test_labels_of_one_group_keep_eagles_order():
    Y = csr_matrix(np.array([[1, 0], [0, 1], [1, 0], [1, 0]], dtype=np.float32))
    X = csr_matrix(np.array([[1, 0.1], [0, 1], [1, 0.2], [0.9, 0]], dtype=np.float32))
    membership = membership_matrix(np.array([0, 0, 1, 1]))
    train = xmckit.Split(X, Y, groups=xmckit.Groups(membership, group_labels(membership, Y)))
    candidates = ranked(train)
    refined = refine(X, candidates, membership, rounds=1)
    alone = np.repeat(candidates.single_group, np.diff(candidates.start))
    assert alone.sum() == 2
    assert np.isnan(refined.margins[alone]).all()
    assert np.array_equal(refined.candidates.scores[alone], candidates.standardise(candidates.scores)[alone])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), groups=st.integers(1, 12), size=st.integers(1, 5), labels=st.integers(1, 9))
def test_cover_loses_no_label_and_leaves_no_row_out_that_it_could_fill(seed, groups, size, labels):
    train = planted(seed, groups, size, labels)
    candidates = ranked(train)
    chosen = candidates.best(candidates.times)
    after, moved = cover(candidates, chosen, train.rows)

    def per_pair(marks):
        return np.add.reduceat(marks.astype(int), candidates.start[:-1])

    assert np.array_equal(per_pair(after), per_pair(chosen))
    held = np.bincount(candidates.rows[after], minlength=train.rows)
    for group in range(groups):
        members = np.arange(size * group, size * group + size)
        if (held[members] == 0).any():  # then no row of the group can give a label away
            assert held[members].max() <= 1
    assert moved >= 0


def test_lonely_labels_go_together_to_the_row_with_the_fewest_labels():
    # Label 0 is in groups {0, 1, 2} and {3, 4}, labels 1 and 2 in the first alone; row 2 has no label otherwise.
    candidates = CandidateRows(
        label_start=np.array([0, 2, 3, 4]),
        groups=np.array([0, 1, 0, 0]),
        times=np.array([2, 2, 1, 1]),
        start=np.array([0, 3, 5, 8, 11]),
        rows=np.array([0, 1, 2, 3, 4, 0, 1, 2, 1, 0, 2], dtype=np.int32),
        scores=np.array([3.0, 2, 1, 2, 1, 9, 8, 7, 9, 8, 7]),
    )
    chosen, moved = cover(candidates, candidates.best(candidates.times), 5)
    picked = candidates.choice(chosen)
    assert list(zip(picked.labels, picked.rows, strict=True)) == [(0, 0), (0, 1), (0, 3), (0, 4), (1, 2), (2, 2)]
    assert moved == 0


def test_a_row_without_labels_takes_the_one_that_costs_least():
    # One group of rows 0 and 1 has labels 0 and 1, which another group, of row 2, has too; row 0 is ahead in both.
    candidates = CandidateRows(
        label_start=np.array([0, 2, 4]),
        groups=np.array([0, 1, 0, 1]),
        times=np.ones(4, dtype=np.int64),
        start=np.array([0, 2, 3, 5, 6]),
        rows=np.array([0, 1, 2, 0, 1, 2], dtype=np.int32),
        scores=np.array([5.0, 1, 0, 3, 2, 0]),
    )
    chosen, moved = cover(candidates, candidates.best(candidates.times), 3)
    assert moved == 1
    assert chosen.tolist() == [True, False, True, False, True, True]
    assert candidates.choice(chosen).margins.tolist()[2] == -1  # the row was not the best for the label


def test_without_repetitions_several_rows_may_still_get_a_label():
    train = planted(6)
    as_set = xmckit.Groups(train.groups.membership, (train.groups.labels > 0).astype(np.float32))
    eagle = Eagle()
    after = eagle.apply(xmckit.Split(train.X, train.Y, groups=as_set), context=xmckit.make_context())
    one = Eagle(capacity="one").apply(xmckit.Split(train.X, train.Y, groups=as_set), context=xmckit.make_context())
    assert eagle.facts()["capacity"] == "margin"
    assert after.Y.multiply(train.Y).nnz > one.Y.multiply(train.Y).nnz
    counted = Eagle()
    counted.apply(train, context=xmckit.make_context())
    assert counted.facts()["capacity"] == "count"
