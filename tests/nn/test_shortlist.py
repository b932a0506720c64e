"""Heads behind an index: the candidates of a batch, what they stand for, and what is learned and output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

import xmckit
from xmckit.data.model import as_csr
from xmckit.nn.shortlist import Indexes, _others, batch_candidates, pair_logits, rows_of
from xmckit.nn.threads import Threads
from xmckit.nn.thresholds import Histogram
from xmckit.testing.problems import small_problem

QUICK = {"epochs": 3, "learning_rate": 0.05, "encoder": {"use": "sparse-linear", "width": 40}}
HEADS = {
    "bsl": {"dim": 6}, "lml": {"dim": 6, "k": 2}, "softmax": {"dim": 6}, "topk-entropy": {"dim": 6, "k": 2},
    "dft": {"slack": 4}, "bsl, narrow": {"dim": 60},
}  # fmt: skip


class Listed:
    """The same labels for every row."""

    query_space = "input"

    def __init__(self, labels, chosen):
        self.labels, self.chosen, self.indexer = labels, list(chosen), "listed"

    def shortlist(self, Q, k):
        row = np.zeros(self.labels)
        row[self.chosen] = 1
        return csr_matrix(np.tile(row, (Q.shape[0], 1)))

    def save(self, folder):
        (folder / "chosen.txt").write_text(" ".join(map(str, [self.labels, *self.chosen])))


class Nearest:
    """Exact search in head space."""

    query_space, indexer = "head", "nearest"

    def __init__(self):
        self.vectors, self.built = None, 0

    def rebuild(self, label_vectors):
        self.vectors, self.built = label_vectors.copy(), self.built + 1

    def shortlist(self, Q, k):
        scores = Q @ self.vectors.T
        kept = np.argsort(-scores, axis=1)[:, :k]
        found = np.zeros(scores.shape, dtype=bool)
        np.put_along_axis(found, kept, True, axis=1)
        return csr_matrix(np.where(found, scores, 0))

    def save(self, folder):
        np.save(folder / "vectors.npy", self.vectors)


@pytest.fixture
def context(tmp_path):
    return xmckit.make_context(workers=2, folder=tmp_path).using(validation=small_problem(rows=30, seed=1))


def fitted(context, name, indexes, **params):
    head = context.build("head", {"use": name.partition(",")[0], **QUICK, **HEADS[name], **params})
    head.fit(small_problem(), indexes=indexes, context=context)
    return head


@given(st.lists(st.integers(0, 30), max_size=20, unique=True), st.data())
@settings(deadline=None, max_examples=60, derandomize=True)
def test_the_others_by_rank(sure, data):
    sure = np.asarray(sorted(sure), dtype=np.int64)
    others = [label for label in range(40) if label not in set(sure.tolist())]
    ranks = data.draw(st.lists(st.integers(0, len(others) - 1), max_size=8))
    assert _others(sure, np.asarray(ranks, dtype=np.int64)).tolist() == [others[rank] for rank in ranks]


@given(st.integers(1, 60), st.integers(0, 70), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_candidates_are_all_that_is_sure_and_some_of_the_rest(labels, uniform, seed):
    rng = np.random.default_rng(seed)
    true, hard = (as_csr(rng.random((4, labels)) < 0.1) for _ in range(2))
    ids, shift = batch_candidates(true, hard, uniform, rng)
    assert (np.diff(ids) > 0).all()
    sure = set(true.indices) | set(hard.indices)
    assert sure <= set(ids)
    assert len(ids) == min(labels, len(sure) + uniform)
    drawn = ~np.isin(ids, list(sure)) if len(ids) < labels else np.zeros(len(ids), dtype=bool)
    left = labels - len(sure)
    assert np.allclose(shift, np.where(drawn, np.log(left / max(uniform, 1)) if left else 0, 0))


def test_drawn_labels_stand_for_all_others():
    rng, labels = np.random.default_rng(0), 200
    z = rng.normal(size=labels)
    true, hard = csr_matrix(([1.0], ([0], [3])), (1, labels)), csr_matrix(([1.0], ([0], [7])), (1, labels))
    draws = [batch_candidates(true, hard, 20, rng) for _ in range(3000)]
    sums = [np.exp(z[ids] + shift).sum() for ids, shift in draws]
    assert np.mean(sums) == pytest.approx(np.exp(z).sum(), rel=0.02)


def test_gradients_of_some_rows():
    table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    places = torch.tensor([5, 0, 2])
    weights = torch.randn(3, 3, dtype=torch.float64)
    (rows_of(table, places) * weights).sum().backward()
    assert table.grad.is_sparse
    expected = torch.zeros(7, 3, dtype=torch.float64)
    expected[places] = weights
    torch.testing.assert_close(table.grad.to_dense(), expected)


def test_logits_of_pairs():
    rng = np.random.default_rng(0)
    vectors, W, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((600, 5), (9, 5), (9,)))
    pattern = as_csr(rng.random((600, 9)) < 0.4)
    logits = pair_logits(vectors, W, b, pattern, Threads())
    assert (logits.indices == pattern.indices).all()
    np.testing.assert_allclose(logits.toarray(), np.where(pattern.toarray(), vectors @ W.T + b, 0), atol=1e-5)


def test_thresholds_count_true_labels_that_no_index_finds():
    rng = np.random.default_rng(0)
    scores, truth = rng.standard_normal((50, 6)).astype(np.float32), as_csr(rng.random((50, 6)) < 0.3)
    seen = rng.random((50, 6)) < 0.7
    dense, listed = Histogram(), Histogram()
    dense.add(np.where(seen, scores, -99), truth)
    listed.add_listed(csr_matrix(np.where(seen, scores, 0)), truth)
    assert listed.best_threshold() == dense.best_threshold()


@pytest.mark.parametrize("name", HEADS)
def test_a_shortlist_of_all_labels_is_training_on_all_labels(context, name):
    """To the bit, but for the DFT's fast transform and the sums of products of pairs."""
    labels, X = small_problem().labels, small_problem(rows=20, seed=2).matrix
    full = fitted(context, name, [])
    among = fitted(context, name, [Listed(labels, range(labels))], candidates=labels)
    if name != "dft":
        assert [epoch.loss for epoch in among.history] == [epoch.loss for epoch in full.history]
    np.testing.assert_allclose(among.decision().W, full.decision().W, atol=2e-3 if name == "dft" else 0)
    np.testing.assert_allclose(among.predict(X, 3).scores, full.predict(X, 3).scores, atol=2e-2, rtol=1e-3)
    assert among.candidates(X).nnz == 20 * labels
    assert full.candidates(X) is None


@pytest.mark.parametrize("name", HEADS)
def test_only_candidates_are_output(context, name):
    X, labels = small_problem(rows=20, seed=2).matrix, small_problem().labels
    head = fitted(context, name, [Listed(labels, [1, 4]), Listed(labels, [4, 5])], uniform=2)
    assert set(head.candidates(X).indices) == {1, 4, 5}
    topk = head.predict(X, labels)
    assert set(np.unique(topk.indices)) == {-1, 1, 4, 5}
    assert set(head.labels(X).indices) <= {1, 4, 5}
    dense = head.features(X) @ head.decision().W.T + head.decision().b + np.float32(head.threshold)
    assert np.allclose(topk.scores[:, 0], dense[:, [1, 4, 5]].max(axis=1), atol=1e-4)


def test_an_index_in_head_space_is_built_anew(context):
    index = Nearest()
    head = fitted(context, "bsl", [index], epochs=5, patience=9, refresh=2, candidates=4, hard=2, uniform=2)
    assert index.built == 3 + 1  # epochs 1, 3 and 5, and what was learned last
    W, b = head.decision().W, head.decision().b + np.float32(head.threshold)
    np.testing.assert_allclose(index.vectors, np.concatenate([W, b[:, None]], axis=1), atol=1e-6)
    X = small_problem(rows=20, seed=2).matrix
    assert (np.diff(head.candidates(X).indptr) == 4).all()
    full = np.argsort(-(head.features(X) @ W.T + b), axis=1)[:, :3]
    assert (head.predict(X, 3).indices == full).all()


def test_the_same_whatever_the_number_of_workers(context):
    X, labels = small_problem(rows=20, seed=2).matrix, small_problem().labels
    predictions = [
        fitted(context.using(workers=workers), "bsl", [Listed(labels, range(3))], uniform=2).predict(X, 3)
        for workers in (1, 3)
    ]
    assert (predictions[0].scores == predictions[1].scores).all()


def test_a_head_keeps_its_index(context, tmp_path):
    tree = context.build("indexer", {"use": "tree", "leaf_size": 2}).build(small_problem(), context=context)
    tree.indexer = "tree"
    X = small_problem(rows=20, seed=2).matrix
    head = fitted(context, "bsl", [tree], candidates=3)
    (tmp_path / "head").mkdir()
    head.save(tmp_path / "head")
    again = context.load("head", "bsl", tmp_path / "head")
    assert (again.candidates(X) != head.candidates(X)).nnz == 0
    assert (again.predict(X, 3).scores == head.predict(X, 3).scores).all()
    assert (again.labels(X) != head.labels(X)).nnz == 0


def test_what_cannot_work_is_said(context, tmp_path):
    labels = small_problem().labels
    with pytest.raises(xmckit.UsageError, match='angles = "fixed"'):
        fitted(context, "dft", [Listed(labels, [0])], angles="learned")
    head = fitted(context, "bsl", [Listed(labels, [0])])
    head._indexes.all[0].indexer = None
    with pytest.raises(xmckit.UsageError, match="which component loads it"):
        head.save(tmp_path)
    with pytest.raises(xmckit.PluginError, match="shortlists of size"):
        fitted(context, "bsl", [Listed(labels + 1, [0])])
    nearest = Nearest()
    nearest.rebuild = None
    with pytest.raises(xmckit.PluginError, match="lacks rebuild"):
        Indexes([nearest], labels)


def test_rows_that_no_index_finds_anything_for(context):
    labels = small_problem().labels
    head = fitted(context, "lml", [Listed(labels, [])])
    X = small_problem(rows=4, seed=2).matrix
    assert (head.predict(X, 2).indices == -1).all()
    assert head.labels(X).nnz == 0


def test_weights_of_labels_reach_the_loss(context):
    train = small_problem()
    weights = train.Y.copy()
    weights.data[:] = 0.5
    labels = train.labels
    heads = []
    for indexes in ([], [Listed(labels, range(labels))]):
        head = context.build("head", {"use": "bsl", **QUICK, "dim": 6})
        head.fit(replace(train, weights=weights), indexes=indexes, context=context)
        heads.append(head)
    assert heads[0].history[-1].loss == heads[1].history[-1].loss
