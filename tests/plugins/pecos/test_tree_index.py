"""Indexer `tree`: where labels stand, and the shortlists that follow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("pecos")

from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos_problems import every_label, problem
from pydantic import ValidationError
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.tree import TreeIndex, TreeIndexer, _smallest_leaves, build_tree

from xmckit import Context, DataError, Split, StorageError, UsageError


def build(train, **params):
    return TreeIndexer(**params).build(train, context=Context(seed=3))


def test_the_tree_is_that_of_pecos():
    train = every_label(labels=70)
    context = Context(seed=5)
    tree = build_tree(TrainingRows(train.matrix, train.Y), 4, 10, context)
    embeddings = LabelEmbeddingFactory.create(train.Y, train.matrix, method="pifa")
    seed = context.seed_for("tree") % 2**31
    expected = Indexer.gen(embeddings, nr_splits=4, max_leaf_size=10, seed=seed, threads=1)
    assert [tree.step(level).shape for level in range(tree.depth)] == [step.shape for step in expected]
    assert all((tree.step(level) != step).nnz == 0 for level, step in enumerate(expected))


def test_other_seeds_give_other_trees():
    train = problem()
    first, second = (build_tree(TrainingRows(train.matrix, train.Y), 4, 10, Context(seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.leaf_of, second.leaf_of)


def test_labels_of_a_kind_stand_together():
    rng = np.random.default_rng(0)
    kind = rng.permutation(64) % 2
    Y = np.eye(64, dtype=np.float32)[rng.permutation(640) % 64]
    X = np.eye(2)[kind[Y.argmax(1)]].repeat(4, axis=1) * rng.uniform(0.5, 1, (640, 8))
    tree = build_tree(TrainingRows(csr_matrix(X.astype(np.float32)), csr_matrix(Y)), 2, 32, Context())
    assert [set(kind[tree.members(leaf)].tolist()) for leaf in (0, 1)] in ([{0}, {1}], [{1}, {0}])


def test_labels_on_no_row_fill_the_leaves_evenly():
    train = every_label(labels=40)
    Y = csr_matrix(train.Y.toarray() * (np.arange(40) % 4 != 0))
    index = build(Split(train.X, Y), leaf_size=5, branching=4)
    assert (index.counts == 0).sum() == 10
    assert index.tree.leaf_sizes.sum() == 40
    assert index.tree.leaf_sizes.max() - index.tree.leaf_sizes.min() <= 1
    assert np.array_equal(index.tree.leaf_of, build(Split(train.X, Y), leaf_size=5, branching=4).tree.leaf_of)


@pytest.mark.parametrize("sizes", [[3, 3, 3], [1, 5, 2], [0, 0, 7, 1]])
def test_the_smallest_leaf_is_next(sizes):
    expected, now = [], list(sizes)
    for count in range(12):
        assert _smallest_leaves(np.asarray(sizes), count).tolist() == expected
        smallest = int(np.argmin(now))
        now[smallest] += 1
        expected.append(smallest)


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_hardly_any_label_on_a_row(seen):
    Y = np.zeros((20, 50), dtype=np.float32)
    Y[np.arange(20), np.arange(20) % seen] = 1
    index = build(Split(every_label().matrix[:20], csr_matrix(Y)), leaf_size=4)
    assert index.tree.leaf_sizes.sum() == 50
    assert index.shortlist(every_label().matrix[:3], 50).shape == (3, 50)


def test_no_label_at_all():
    with pytest.raises(DataError, match="no training row has a label"):
        build(Split(csr_matrix(np.eye(3, dtype=np.float32)), csr_matrix((3, 4), dtype=np.float32)))


def test_one_label_is_one_leaf():
    train = Split(csr_matrix(np.eye(3, dtype=np.float32)), csr_matrix(np.ones((3, 1), dtype=np.float32)))
    index = build(train)
    assert (index.tree.depth, index.tree.leaves, index.matcher) == (1, 1, None)
    assert index.shortlist(train.matrix, 5).toarray().tolist() == [[1], [1], [1]]


def test_labels_on_every_row_and_rows_without_anything():
    train = every_label()
    Y = train.Y.toarray()
    Y[:, 7] = 1
    X = train.matrix.toarray()
    X[::3] = 0
    Y[::5] = 0
    index = build(Split(csr_matrix(X), csr_matrix(Y)), leaf_size=5, branching=2)
    listed = index.shortlist(csr_matrix(X.shape, dtype=np.float32), 10)
    assert (np.diff(listed.indptr) == 10).all()


def test_dense_features_make_the_same_tree():
    train = every_label()
    dense = Split(train.matrix.toarray(), train.Y)
    assert np.array_equal(build(train, leaf_size=5).tree.leaf_of, build(dense, leaf_size=5).tree.leaf_of)


def brute_force(index: TreeIndex, Q, k: int):
    """The shortlists by their definition, one row after the other."""
    reached = index.reached_leaves(Q)
    rows = []
    for row in range(Q.shape[0]):
        part = slice(reached.indptr[row], reached.indptr[row + 1])
        scores: dict[int, float] = {}
        for leaf, value in zip(reached.indices[part].tolist(), reached.data[part].tolist(), strict=True):
            members = sorted(set(index.tree.members(leaf).tolist()), key=lambda label: (-index.counts[label], label))
            for label in members:
                if len(scores) < k:
                    scores.setdefault(label, value)
        rows.append(scores)
    return rows


@pytest.mark.parametrize("k", [1, 4, 7, 1000])
@pytest.mark.parametrize("copies", [False, True])
def test_shortlists_are_the_labels_of_the_best_leaves(k, copies):
    train = every_label()
    index = build(train, leaf_size=5, branching=2, beam=3)
    if copies:
        leaf_of = np.concatenate([index.tree.leaf_of, (index.tree.leaf_of[:10] + 3) % 8])
        tree = tree_of_leaves(leaf_of, 8, 2, np.concatenate([np.arange(40), np.arange(10)]), 40)
        index = TreeIndex(tree, index.matcher, index.counts, index._params, 1)
    listed = index.shortlist(train.matrix, k)
    assert listed.has_canonical_format
    assert (listed.data > 0).all()
    for row, expected in enumerate(brute_force(index, train.matrix, k)):
        part = slice(listed.indptr[row], listed.indptr[row + 1])
        assert dict(zip(listed.indices[part].tolist(), listed.data[part].tolist(), strict=True)) == expected


def test_a_beam_of_one_reaches_one_leaf():
    train = every_label()
    index = build(train, leaf_size=5, branching=2, beam=1)
    assert (np.diff(index.reached_leaves(train.matrix).indptr) == 1).all()
    assert (np.diff(index.reached_leaves(train.matrix, beam=4).indptr) == 4).all()


def test_shortlists_find_the_labels():
    train = every_label()
    listed = build(train, leaf_size=5, branching=2, beam=4).shortlist(train.matrix, 20)
    found = listed.multiply(train.Y).astype(bool).sum() / train.Y.nnz
    assert found > 0.9  # half the labels at random would find 0.5


def test_a_shortlist_of_nothing():
    with pytest.raises(UsageError, match="at least 1"):
        build(every_label(), leaf_size=5).shortlist(every_label().matrix, 0)


def test_saved_and_loaded(tmp_path):
    train = every_label()
    index = build(train, leaf_size=5, branching=2, beam=3)
    index.save(tmp_path)
    again = TreeIndexer.load(tmp_path, context=Context())
    assert (again.shortlist(train.matrix, 7) != index.shortlist(train.matrix, 7)).nnz == 0
    assert np.array_equal(again.clusters.toarray(), index.clusters.toarray())
    content = (tmp_path / "counts.npz").read_bytes()
    (tmp_path / "counts.npz").write_bytes(content[:40])
    with pytest.raises(StorageError, match=r"counts\.npz"):
        TreeIndexer.load(tmp_path, context=Context())


def test_a_tree_from_a_file(tmp_path):
    train = every_label(labels=6)
    path = tmp_path / "mine.txt"
    path.write_text("".join(f"{'even' if label % 2 == 0 else 'odd'}\tname {label}\n" for label in range(6)))
    context = Context(label_names=[f"name {label}" for label in range(6)])
    index = TreeIndexer(path=path).build(train, context=context)
    assert index.tree.leaf_of.tolist() == [0, 1, 0, 1, 0, 1]
    assert index.matcher is not None
    with pytest.raises(DataError, match="there is no label 'name 0'"):
        TreeIndexer(path=path).build(train, context=Context())


def test_a_top_node_that_holds_everything(tmp_path):
    train = every_label(labels=4)
    path = tmp_path / "mine.txt"
    path.write_text("all/a\t0\nall/a\t1\nall/b\t2\nall/b\t3\n")
    index = TreeIndexer(path=path).build(train, context=Context())
    assert index.tree.level_sizes == [1, 1, 2, 4]
    assert (np.diff(index.shortlist(train.matrix, 4).indptr) == 4).all()


@pytest.mark.parametrize("params", [{"branching": 12}, {"branching": 1}, {"leaf_size": 1}, {"beam": 0}, {"C": 0}])
def test_parameters_that_cannot_work(params):
    with pytest.raises(ValidationError):
        TreeIndexer(**params)
