"""Indexer `overlap`: labels in several leaves, from the tree to the head that uses it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

pytest.importorskip("pecos")

from pecos_problems import every_label, objectives, problem, random_problem
from pydantic import ValidationError
from xmckit_pecos import overlap
from xmckit_pecos.labels import assignment, auction
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear import bridge, isolation
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.options import TOLERANCE, TrainingOptions
from xmckit_pecos.overlap import STAYED, OverlapIndexer, OverlapParams, move_labels
from xmckit_pecos.tree import TreeIndexer
from xmckit_pecos.xrlinear import XRLinearHead

from xmckit import Context, DataError, Split
from xmckit.testing import Case, parametrize_with_checks

SMALL = {"leaf_size": 5, "branching": 4}
seeds = st.integers(0, 2**32 - 1)


def build(train, context=None, **params):
    return OverlapIndexer(**{**SMALL, **params}).build(train, context=context or Context(seed=3))


def clusters_of_labels(tree) -> np.ndarray:
    """Return labels × leaves, in any order of the pseudo-labels."""
    C = np.zeros((tree.labels, tree.leaves), dtype=int)
    np.add.at(C, (tree.label_of, tree.leaf_of), 1)
    return C


def two_meanings(rows_each: int = 12, seed: int = 0) -> Split:
    """32 labels with words of their own in 4 fields; label 0 is drawn with the words of labels 1 and 31."""
    rng = np.random.default_rng(seed)
    label = np.repeat(np.arange(32), rows_each)
    X = np.zeros((len(label), 36), dtype=np.float32)
    words = np.where(label == 0, np.where(np.arange(len(label)) % 2, 1, 31), label)
    X[np.arange(len(label)), words] = 1
    X[np.arange(len(label)), 32 + words // 8] = 1
    X += 0.05 * rng.random(X.shape, dtype=np.float32)
    return Split(csr_matrix(X), csr_matrix(np.eye(32, dtype=np.float32)[label]))


def test_the_label_with_two_meanings_has_two_copies():
    train = two_meanings()
    index = build(train, leaf_size=8, average=1.05, reach=1)
    assert len(index.tree.label_of) == 33
    assert index.tree.label_of[32] == 0
    first, second = (index.tree.members(leaf) for leaf in index.tree.leaf_of[[0, 32]])
    fields = {frozenset((np.setdiff1d(members, [0]) // 8).tolist()) for members in (first, second)}
    assert fields == {frozenset({0}), frozenset({3})}


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("reach", [1, 4])
def test_without_a_cap_labels_stand_where_most_of_their_rows_get(copies, reach):
    train = every_label()
    M = TreeIndexer(**SMALL).build(train, context=Context(seed=3)).reached_leaves(train.matrix, reach)
    index = build(train, copies_per_label=copies, cap="none", reach=reach, rounds=0)
    S = (train.Y.T @ (M > 0)).toarray()
    C = clusters_of_labels(index.tree)
    assert C.max() == 1
    assert (C.sum(axis=1) == np.minimum((S > 0).sum(axis=1), copies)).all()
    assert ((C * S).sum(axis=1) == np.sort(S, axis=1)[:, ::-1][:, :copies].sum(axis=1)).all()
    # the first copy is the one that most rows reach
    assert (S[np.arange(40), index.tree.leaf_of[:40]] == S.max(axis=1)).all()


def test_pseudo_labels_go_on_behind_the_labels():
    index = build(every_label(), copies_per_label=2, cap="none", reach=3)
    assert index.label_of[:40].tolist() == list(range(40))
    assert (np.diff(index.label_of[40:]) > 0).all()
    assert index.clusters.shape == (len(index.label_of), index.tree.leaves)
    assert (np.diff(index.clusters.indptr) == 1).all()


def test_no_rounds_leave_the_matcher_as_it_was(monkeypatch):
    monkeypatch.setattr(overlap, "ROUGH", TOLERANCE)  # the same leaves are reached, whatever comes after
    train = every_label()
    plain = TreeIndexer(**SMALL).build(train, context=Context(seed=3))
    none, one, two = (build(train, rounds=rounds, copies_per_label=2) for rounds in (0, 1, 2))
    leaves = [index.reached_leaves(train.matrix, 4) for index in (plain, none, one, two)]
    assert (leaves[0] != leaves[1]).nnz == 0
    assert (leaves[1] != leaves[2]).nnz > 0
    assert np.array_equal(none.tree.leaf_of, one.tree.leaf_of)
    assert not np.array_equal(one.tree.leaf_of, two.tree.leaf_of)


@pytest.mark.parametrize("rounds", [1, 2])
def test_only_matchers_that_are_not_kept_are_rough(rounds, monkeypatch):
    asked = []
    inner = isolation.train
    monkeypatch.setattr(
        isolation, "train", lambda *args, **more: (asked.append(args[2].tolerance), inner(*args, **more))[1]
    )
    train = every_label()
    index = build(train, rounds=rounds, copies_per_label=2)
    assert asked == [*[overlap.ROUGH] * rounds, TOLERANCE]
    rows, training = TrainingRows.from_split(train), TrainingOptions(beam=index._params.beam)
    exact = bridge.train(rows, index.tree, training, 1, to_leaves=True)
    assert all((one.W != other.W).nnz == 0 for one, other in zip(index.matcher.levels, exact.levels, strict=True))


@settings(deadline=None, max_examples=150)
@given(
    seeds,
    st.sampled_from(["auto", 1, 2, 3]),
    st.sampled_from([1.0, 1.5, "none"]),
    st.sampled_from([1.0, 1.3, 2.0]),
    st.integers(1, 3),
)
def test_never_below_the_starting_partition(seed, copies, cap, average, workers):
    """Theorem 3, with and without a cap, for the whole step; and the limits hold."""
    Y, M, start = random_problem(seed)
    params = OverlapParams(copies_per_label=copies, cap=cap, average=average)
    tree = tree_of_leaves(start, 6, 2, np.arange(9), 9)
    if not Y.nnz:
        return
    result, told = move_labels(tree, Y, M, params, Context(workers=workers))
    C, before = clusters_of_labels(result), np.eye(6, dtype=int)[start]
    seen = np.asarray(Y.sum(axis=0)).ravel() > 0
    assert objectives(Y, M, C)[0] >= objectives(Y, M, before)[0]
    assert told["pairs within reach"] == {"before": objectives(Y, M, before)[0], "after": objectives(Y, M, C)[0]}
    assert told["paths to labels"]["after"] == objectives(Y, M, C)[1]
    assert C.max() == 1
    assert C.sum(axis=1).min() >= 1
    assert (C[~seen] == before[~seen]).all()
    most = average * seen.sum() if copies == "auto" else copies * seen.sum()
    assert C[seen].sum() <= most
    if cap != "none":
        started = before[seen].sum(axis=0)
        assert (C[seen].sum(axis=0) <= np.maximum(started, np.ceil(cap * most / 6))).all()
    if cap == "none" and copies != "auto":
        rng = np.random.default_rng(seed)
        for _ in range(5):
            assert objectives(Y, M, C)[0] >= objectives(Y, M, np.eye(6, dtype=int)[rng.integers(0, 6, 9)])[0]
    again, _ = move_labels(tree, Y, M, params, Context(workers=1))
    assert np.array_equal(result.leaf_of, again.leaf_of)
    assert np.array_equal(result.label_of, again.label_of)


@pytest.mark.parametrize("copies", ["auto", 2])
def test_a_poor_assignment_falls_back_and_says_so(monkeypatch, copies):
    Y, M, _ = random_problem(1, beam=1)
    S = (Y.T @ M).toarray()
    tree = tree_of_leaves(S.argmax(axis=1).astype(np.int32), 6, 2, np.arange(9), 9)

    def poor(found, copies, room):
        label_of = np.flatnonzero(S.sum(axis=1)).astype(np.int32)
        return assignment.Placement(label_of, S[label_of].argmin(axis=1).astype(np.int32), 1.0)

    monkeypatch.setattr(auction, "auction", poor)
    params = OverlapParams(cap=9.0, copies_per_label=copies)
    result, told = move_labels(tree, Y, M, params, Context())
    assert told[STAYED]
    assert "stayed in their first leaves" in overlap._summary(told)
    assert (clusters_of_labels(result)[np.arange(9), tree.leaf_of] == 1).all()
    assert told["pairs within reach"]["after"] >= told["pairs within reach"]["before"]
    assert len(result.label_of) > 9


def test_random_copies_are_as_many_but_elsewhere():
    train = problem()
    matched, random = (
        build(train, copies_per_label=2, reach=3, rounds=0, placement=placement) for placement in ("matched", "random")
    )
    assert np.array_equal(matched.label_of, random.label_of)
    assert np.array_equal(matched.tree.leaf_of[:60], random.tree.leaf_of[:60])
    assert (matched.tree.leaf_of[60:] != random.tree.leaf_of[60:]).mean() > 0.5
    reach = [index.facts()["pairs within reach"]["after"] for index in (matched, random)]
    assert reach[0] > reach[1]
    again = build(train, copies_per_label=2, reach=3, rounds=0, placement="random")
    assert np.array_equal(again.tree.leaf_of, random.tree.leaf_of)


def test_workers_do_not_change_anything():
    train = problem()
    one, two = (build(train, Context(seed=1, workers=workers), reach=2) for workers in (1, 2))
    assert np.array_equal(one.tree.leaf_of, two.tree.leaf_of)
    assert np.array_equal(one.label_of, two.label_of)


def test_saved_and_loaded(tmp_path):
    train = problem()
    index = build(train, reach=2)
    index.save(tmp_path)
    again = OverlapIndexer.load(tmp_path, context=Context())
    assert again.facts() == index.facts() != {}
    assert (again.shortlist(train.matrix, 9) != index.shortlist(train.matrix, 9)).nnz == 0


def test_a_tree_of_ones_own(tmp_path):
    """Leaves keep their names, and one that is larger than the cap may stay as large."""
    train = every_label(labels=12)
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{'large' if label < 9 else f'small {label}'}\t{label}\n" for label in range(12)))
    index = build(train, path=path, cap=1.0, average=1.2)
    assert set(index.tree.leaf_names) == {"large", "small 9", "small 10", "small 11"}
    assert (index.tree.leaf_sizes <= [9, 4, 4, 4]).all()


def test_weights_are_kept():
    train = every_label()
    rng = np.random.default_rng(0)
    weights = csr_matrix((rng.uniform(0.5, 2, train.Y.nnz), train.Y.indices, train.Y.indptr), train.Y.shape)
    index = build(Split(train.X, train.Y, weights=weights.astype(np.float32)), copies_per_label=2, reach=2)
    assert index.tree.most_copies > 1


# Bad input


def test_labels_on_no_row_stay():
    train = every_label()
    Y = csr_matrix(train.Y.toarray() * (np.arange(40) % 4 != 0))
    plain = TreeIndexer(**SMALL).build(Split(train.X, Y), context=Context(seed=3))
    index = build(Split(train.X, Y), copies_per_label=2, reach=2)
    unseen = np.arange(0, 40, 4)
    assert np.array_equal(index.tree.leaf_of[unseen], plain.tree.leaf_of[unseen])
    assert not np.isin(index.label_of[40:], unseen).any()
    assert index.facts()["copies per label"] == len(index.label_of[np.isin(index.label_of, unseen, invert=True)]) / 30


def test_no_row_has_a_label(tmp_path):
    train = every_label(labels=12)
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"leaf {label % 3}\t{label}\n" for label in range(12)))
    nothing = Split(train.X, csr_matrix(train.Y.shape, dtype=np.float32))
    for params in ({}, {"path": path}):
        for indexer in (OverlapIndexer, TreeIndexer):
            with pytest.raises(DataError, match="no training row has a label"):
                indexer(**SMALL, **params).build(nothing, context=Context())


@pytest.mark.parametrize("X", [np.empty((160, 0), dtype=np.float32), csr_matrix((160, 0), dtype=np.float32)])
def test_rows_without_any_feature_column(X):
    train = Split(X, every_label().Y)
    with pytest.raises(DataError, match="no features at all"):
        build(train)
    with pytest.raises(DataError, match="no features at all"):
        XRLinearHead().fit(train, context=Context())


def test_a_label_on_every_row_and_rows_without_anything():
    train = every_label()
    Y, X = train.Y.toarray(), train.matrix.toarray()
    Y[:, 7] = 1
    X[::3] = 0
    Y[::5] = 0
    split = Split(csr_matrix(X), csr_matrix(Y))
    for copies in ("auto", 3):
        index = build(split, copies_per_label=copies, reach=2)
        head = XRLinearHead(threshold=0.0)
        head.fit(split, indexes=[index], context=Context())
        found = head.predict(csr_matrix(X), 5)
        assert (found.indices < 40).all()
        assert (found.indices == 7).any(axis=1).mean() > 0.9


def test_one_label_only():
    train = Split(csr_matrix(np.eye(3, dtype=np.float32)), csr_matrix(np.ones((3, 1), dtype=np.float32)))
    index = build(train, copies_per_label=3)
    assert (index.tree.leaves, index.tree.plain) == (1, True)
    [warning] = index.facts()["warnings"]
    assert "one leaf only" in warning
    assert index.shortlist(train.matrix, 1).toarray().tolist() == [[1], [1], [1]]


def test_more_copies_than_leaves_are_as_many_as_leaves():
    train = every_label()
    index = build(train, copies_per_label=100, reach=8)
    [warning] = index.facts()["warnings"]
    assert "copies_per_label = 100 is more than the 8 leaves" in warning
    assert "warnings" not in build(train, copies_per_label=8).facts()
    C = clusters_of_labels(index.tree)
    assert C.max() == 1
    assert C.sum() == 40 * 8


def test_a_beam_of_one():
    train = every_label()
    index = build(train, beam=1, reach=1, copies_per_label=2)
    head = XRLinearHead(threshold=0.0, beam=1)
    head.fit(train, indexes=[index], context=Context())
    assert (head.predict(train.matrix, 3).indices[:, 0] >= 0).all()
    assert (np.diff(index.reached_leaves(train.matrix).indptr) == 1).all()


def test_a_reach_beyond_the_leaves_reaches_all():
    index = build(every_label(), reach=1000, copies_per_label=1)
    pairs = index.facts()["pairs within reach"]
    assert pairs["before"] == pairs["after"] == every_label().Y.nnz


@pytest.mark.parametrize(
    "params",
    [
        {"copies_per_label": 0},
        {"copies_per_label": "two"},
        {"average": 0.9},
        {"average": float("nan")},
        {"cap": 0.5},
        {"cap": "all"},
        {"rounds": -1},
        {"reach": 0},
        {"placement": "best"},
    ],
)
def test_parameters_that_cannot_work(params):
    with pytest.raises(ValidationError):
        OverlapIndexer(**params)


# With the head


@pytest.mark.parametrize("copies", ["mean", "max"])
def test_copies_have_one_score_and_the_head_tells_about_them(copies, tmp_path):
    train = problem()
    index = build(train, copies_per_label=2, reach=3)
    head = XRLinearHead(threshold=0.0, copies=copies)
    head.fit(train, indexes=[index], context=Context())
    found = head.predict(train.matrix, 10)
    for row in found.indices:
        kept = row[row >= 0]
        assert len(np.unique(kept)) == len(kept)
        assert (kept < 60).all()
    assert head.facts(train.Y)["index"] == index.facts()
    every = head._model.predict(train.matrix, len(head._tree.label_of), 10, 1, "l3-hinge")
    row = 5
    best = found.indices[row, 0]
    scores = [every[row, copy] for copy in np.flatnonzero(head._tree.label_of == best) if every[row, copy]]
    merged = max(scores) if copies == "max" else np.mean(scores)
    assert 1 / (1 + np.exp(-found.scores[row, 0])) == pytest.approx(merged, rel=1e-4)


@parametrize_with_checks([Case("head", "xrlinear", {}, indexers=[{"use": "overlap", "leaf_size": 4, "branching": 2}])])
def test_conformance(check):
    check()
