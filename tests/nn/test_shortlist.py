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
from xmckit.nn import head as torch_head
from xmckit.nn import prediction
from xmckit.nn.shortlist import Indexes, _others, batch_candidates, pair_logits, rows_of
from xmckit.nn.threads import Threads
from xmckit.nn.validation import LogitHistogram
from xmckit.pipeline.stages.index import IndexStage
from xmckit.recipe import Section
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


class Given:
    """What a test says, for every row: labels and scores, in this order."""

    query_space, indexer = "input", "given"

    def __init__(self, labels, ids, scores=None):
        self.labels, self.ids = labels, np.asarray(ids, dtype=np.int32)
        self.scores = np.ones(len(ids), dtype=np.float32) if scores is None else np.asarray(scores)
        self.asked = []

    def shortlist(self, Q, k):
        self.asked.append((Q.shape[0], k))
        rows, size = Q.shape[0], len(self.ids)
        found = csr_matrix((rows, self.labels), dtype=self.scores.dtype)
        found.data, found.indices = np.tile(self.scores, rows), np.tile(self.ids, rows)
        found.indptr = np.arange(rows + 1, dtype=np.int32) * size
        return found


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
    dense, listed = LogitHistogram(), LogitHistogram()
    dense.add(np.where(seen, scores, -99), truth)
    listed.add(csr_matrix(np.where(seen, scores, 0)), truth)
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


def test_an_index_in_head_space_is_rebuilt(context):
    index = Nearest()
    head = fitted(context, "bsl", [index], epochs=5, patience=9, refresh=2, candidates=4, hard=2, uniform=2)
    assert index.built == 3 + 1  # epochs 1, 3 and 5, and what was learned last
    W, b = head.decision().W, head.decision().b + np.float32(head.threshold)
    np.testing.assert_allclose(index.vectors, np.concatenate([W, b[:, None]], axis=1), atol=1e-6)
    X = small_problem(rows=20, seed=2).matrix
    assert (np.diff(head.candidates(X).indptr) == 4).all()
    full = np.argsort(-(head.features(X) @ W.T + b), axis=1)[:, :3]
    assert (head.predict(X, 3).indices == full).all()


def test_workers_do_not_change_results(context):
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


def test_settings_that_cannot_work_are_errors(context, tmp_path):
    labels = small_problem().labels
    with pytest.raises(xmckit.UsageError, match='angles = "fixed"'):
        fitted(context, "dft", [Listed(labels, [0])], angles="learned")
    head = fitted(context, "bsl", [Listed(labels, [0])])
    head._indexes.all[0].indexer = None
    with pytest.raises(xmckit.UsageError, match="the component that loads it"):
        head.save(tmp_path)
    with pytest.raises(xmckit.PluginError, match="shortlists of size"):
        fitted(context, "bsl", [Listed(labels + 1, [0])])

    class Fixed(Nearest):
        rebuild = None

    with pytest.raises(xmckit.PluginError, match="lacks rebuild"):
        Indexes([Fixed()], labels)


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


@pytest.mark.parametrize(
    ("ids", "scores", "expected"),
    [
        ([5, 1, 5], [1.0, 2.0, 3.0], {1, 5}),
        ([5, 1], [0.0, 0.0], {1, 5}),
        ([1, 5], [-3.0, -2.0], {1, 5}),
        ([1, 5], [-np.inf, -2.0], {5}),
        ([5, 1], np.array([3, 2]), {1, 5}),
        ([5, 1], np.array([True, False]), {1, 5}),
    ],
)
def test_any_order_and_any_scores_make_candidates(ids, scores, expected):
    X = small_problem(rows=4).matrix
    found = Indexes([Given(9, ids, scores)], 9).find(X, lambda: None, 3)
    assert set(found.indices) == expected
    assert found.nnz == 4 * len(expected)
    assert (found.data == 1).all()
    assert found.has_canonical_format


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (Given(9, [1_000_000]), "not a sound CSR matrix"),
        (Given(9, [-4]), "not a sound CSR matrix"),
        (Given(9, [1], [np.nan]), "not a number"),
    ],
)
def test_a_shortlist_that_is_none(index, message):
    with pytest.raises(xmckit.PluginError, match=f"the index Given gave .*{message}"):
        Indexes([index], 9).find(small_problem(rows=4).matrix, lambda: None, 3)


@pytest.mark.parametrize("answer", [None, np.ones((4, 9))])
def test_a_shortlist_that_is_no_csr_matrix(answer):
    index = Given(9, [1])
    index.shortlist = lambda Q, k: answer
    with pytest.raises(xmckit.PluginError, match="expected shortlists as a CSR matrix"):
        Indexes([index], 9).find(small_problem(rows=4).matrix, lambda: None, 3)


def test_no_index_is_asked_for_no_labels(context):
    index = Given(small_problem().labels, [0, 1])
    fitted(context, "bsl", [index], hard=0)
    assert min(k for _, k in index.asked) == min(200, small_problem().labels)


def test_what_training_does_not_change_is_found_once(context, monkeypatch):
    index = Given(small_problem().labels, [0, 1, 4])
    head = fitted(context, "bsl", [index], hard=2)
    assert index.asked == [(30, 11), (small_problem().rows, 2)]
    monkeypatch.setattr(torch_head, "LISTED_AT_ONCE", 0)
    again = fitted(context, "bsl", [index], hard=2)
    assert index.asked[2:] == [(small_problem().rows, 2)] + 4 * [(30, 11)]  # three epochs, then the threshold
    assert [epoch[:3] for epoch in again.history] == [epoch[:3] for epoch in head.history]
    assert again.threshold == head.threshold


@pytest.mark.parametrize("make_index", [None, lambda: Given(small_problem().labels, [1, 4, 5]), Nearest])
@pytest.mark.parametrize("name", HEADS)
def test_ranking_and_sets_at_once(context, name, make_index):
    X = small_problem(rows=20, seed=2).matrix
    head = fitted(context, name, [] if make_index is None else [make_index()], uniform=2, candidates=4)
    for k in (1, 3, 30):
        topk, sets = head.rank_and_label(X, k)
        assert (topk.indices == head.predict(X, k).indices).all()
        assert (topk.scores == head.predict(X, k).scores).all()
        assert (sets != head.labels(X)).nnz == 0
    assert head.rank_and_label(X[:0], 3)[1].shape == (0, small_problem().labels)
    with pytest.raises(xmckit.UsageError, match="k of at least 1"):
        head.rank_and_label(X, 0)


def test_a_head_with_a_rule_of_its_own_keeps_it_when_both_are_asked_for(context):
    class Silent(type(context.build("head", {"use": "bsl"}))):
        def labels(self, X):
            return csr_matrix((X.shape[0], self.sizes["labels"]), dtype=np.float32)

    head = Silent(**QUICK)
    head.fit(small_problem(), context=context)
    assert head.rank_and_label(small_problem(rows=20, seed=2).matrix, 3)[1].nnz == 0


@pytest.mark.parametrize("make_index", [lambda: Given(small_problem().labels, [1, 4, 5]), Nearest])
@pytest.mark.parametrize("name", HEADS)
def test_candidates_labels_and_replay_agree(context, monkeypatch, name, make_index):
    X = small_problem(rows=20, seed=2).matrix
    head = fitted(context, name, [make_index()], uniform=2, candidates=4)
    candidates, sets, topk = head.candidates(X), head.labels(X), head.predict(X, 4)
    decision = head.decision()
    if decision.rule == "sign":
        assert (decision.replay(head.features(X)).multiply(candidates) != sets).nnz == 0
    else:
        logits = np.where(candidates.toarray() > 0, head.features(X) @ decision.W.T + decision.b, -np.inf)
        first = np.argsort(-logits, axis=1, kind="stable")[:, : head.sizes["output"]]
        assert (np.sort(sets.indices.reshape(20, -1)) == np.sort(first, axis=1)).all()
    assert (topk.indices[:, 0] >= 0).all()
    monkeypatch.setattr(prediction, "ROWS_AT_ONCE", 7)
    assert (head.candidates(X) != candidates).nnz == 0
    np.testing.assert_allclose(head.predict(X, 4).scores, topk.scores, rtol=1e-5, atol=1e-5)


def test_few_rows_are_scored_from_a_few_rows_of_the_layer(context, monkeypatch):
    X = small_problem(rows=20, seed=2).matrix
    head = fitted(context, "dft", [Given(small_problem().labels, [1, 4, 5])])
    together = head.predict(X, 3)
    monkeypatch.setattr(prediction.Predictor, "layer", None)
    alone = [head.predict(X[row], 3) for row in range(20)]
    assert (np.concatenate([each.indices for each in alone]) == together.indices).all()
    np.testing.assert_allclose(np.concatenate([each.scores for each in alone]), together.scores, rtol=1e-5, atol=1e-5)


def test_rows_behind_an_index_need_no_room_for_all_labels(context, monkeypatch):
    X = small_problem(rows=20, seed=2).matrix
    head = fitted(context, "bsl", [Given(small_problem().labels, [1, 4, 5])])
    monkeypatch.setattr(prediction, "LOGITS_AT_ONCE", 20 * 6)  # dim is 6, and there are more labels than that
    sizes = []
    head._network.encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    head.predict(X, 3)
    assert sizes == [20]
    head._indexes = None
    head.predict(X, 3)
    assert max(sizes[1:]) == 20 * 6 // small_problem().labels


def test_labels_that_no_step_touches_stay_where_they_began(context):
    train = small_problem()
    Y = train.Y.toarray()
    Y[:, 7] = 0
    W = []
    for epochs in (1, 3):
        head = context.build("head", {"use": "bsl", **QUICK, "dim": 6, "uniform": 0, "epochs": epochs, "patience": 9})
        head.params = head.params.model_copy(update={"weight_decay": 0.1})
        head.fit(replace(train, Y=as_csr(Y)), indexes=[Listed(train.labels, [0, 1])], context=xmckit.make_context())
        W.append(np.column_stack([head.decision().W, head.decision().b]))
    assert (W[0][7] == W[1][7]).all()
    assert (W[0][0] != W[1][0]).all()


def test_new_labels_need_an_index_that_has_them(context):
    head = fitted(context, "bsl", [Listed(small_problem().labels, [0])])
    X = small_problem(rows=6, seed=2).matrix
    with pytest.raises(xmckit.UsageError, match="only labels that its index lists"):
        head.add_labels(X, csr_matrix(np.ones((6, 1), dtype=np.float32)), small_problem())


class Growing(Listed):
    """Labels that come later are listed too."""

    def add_labels(self, X, Y):
        self.chosen += range(self.labels, self.labels + Y.shape[1])
        self.labels += Y.shape[1]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("make_index", [lambda: Growing(small_problem().labels, [5]), Nearest, None])
def test_new_labels_are_listed_by_the_indexes_that_can(context, name, make_index):
    train, X = small_problem(), small_problem(rows=6, seed=2).matrix
    old = Listed(train.labels, [0, 3])
    alone = Growing(train.labels, [])
    head = fitted(context, name, [old] + ([] if make_index is None else [make_index()]))

    def listed_by():
        alone.add_labels(X, csr_matrix((6, 2)))
        return alone

    before = head.candidates(X).toarray()
    head.add_labels(X, csr_matrix(np.eye(6, 2, dtype=np.float32)), train, listed_by=listed_by)
    after = head.candidates(X).toarray()
    assert after.shape[1] == train.labels + 2
    assert after[:, train.labels :].all()
    if make_index is not Nearest:  # which lists the nearest of all labels, new ones among them
        assert (after[:, : train.labels] == before).all()
    (first, known), *others = head.index_labels()
    assert (first, known) == ("listed", train.labels)
    assert {labels for _, labels in others} == {train.labels + 2}
    assert len(others) == 1
    told = head.facts(csr_matrix((6, train.labels + 2), dtype=np.float32))["labels that an index knows"]
    assert told.startswith(f"listed {train.labels}, ")
    logits = head.features(X) @ head.decision().W.T + head.decision().b + np.float32(head.threshold)
    found = head.predict(X, 30)
    assert ((found.indices >= 0).sum(axis=1) == (after > 0).sum(axis=1)).all()
    kept = found.indices >= 0
    np.testing.assert_allclose(
        np.take_along_axis(logits, np.maximum(found.indices, 0), 1)[kept], found.scores[kept], rtol=1e-4, atol=1e-4
    )


def test_an_index_lists_only_the_labels_it_knows():
    X = small_problem(rows=6, seed=2).matrix
    narrow, wide = Listed(4, [1]), Listed(6, [1, 5])
    found = Indexes([narrow, wide], 6, [4, 6]).find(X, lambda: X, 3)
    assert (found.toarray() == np.tile([0, 1, 0, 0, 0, 1], (6, 1))).all()
    for indexes in (Indexes([narrow, wide], 6), Indexes([wide, wide], 6, [4, 6]), Indexes([narrow], 6, [5])):
        with pytest.raises(xmckit.PluginError, match="gave shortlists of size"):
            indexes.find(X, lambda: X, 3)


def test_what_an_index_knows_is_stored(context, tmp_path):
    train = small_problem()
    tree = context.build("indexer", {"use": "tree", "leaf_size": 2}).build(train, context=context)
    tree.indexer = "tree"
    head = fitted(context, "bsl", [tree], candidates=3)
    head.save(tmp_path)
    state = xmckit.store.read_json(tmp_path / "state.json")
    assert state["known"] == [train.labels]
    for damage in (None, [], [0], [train.labels + 1], ["1"], [train.labels] * 2):
        xmckit.store.write_json(tmp_path / "state.json", {**state, "known": damage})
        with pytest.raises(xmckit.StorageError, match="the number of labels that each index knows"):
            context.load("head", "bsl", tmp_path)
    del state["known"]  # as heads were stored whose indexes know all labels
    xmckit.store.write_json(tmp_path / "state.json", state)
    assert context.load("head", "bsl", tmp_path).index_labels() == [("tree", train.labels)]


def test_the_names_of_indexes_that_are_stored(context, tmp_path):
    tree = context.build("indexer", {"use": "tree", "leaf_size": 2}).build(small_problem(), context=context)
    tree.indexer = "tree"
    head = fitted(context, "bsl", [tree], candidates=3)
    head.save(tmp_path)
    assert context.load("head", "bsl", tmp_path).candidates(small_problem(rows=3).matrix) is not None
    state = xmckit.store.read_json(tmp_path / "state.json")
    for damage in (None, {}, [1]):
        xmckit.store.write_json(tmp_path / "state.json", {**state, "indexes": damage})
        with pytest.raises(xmckit.StorageError, match="the names of indexers"):
            context.load("head", "bsl", tmp_path)
    del state["indexes"], state["known"]
    xmckit.store.write_json(tmp_path / "state.json", state)
    assert context.load("head", "bsl", tmp_path).candidates(small_problem(rows=3).matrix) is None


def test_an_index_over_a_heads_vectors_is_not_shared(tmp_path):
    class Restored(IndexStage):
        folder = tmp_path

        def __init__(self, space):
            self.space = space
            self.section, self.use = Section("indexer", "given", "given", {}), "given"

        def restore(self, folder):
            index = Given(3, [0])
            index.query_space = self.space
            return index

    of_heads, of_inputs = Restored("head"), Restored("input")
    assert of_heads.index_for_head() is not of_heads.index_for_head()
    assert of_inputs.index_for_head() is of_inputs.index_for_head()


def test_counting_logits_of_candidates_in_any_order():
    truth = csr_matrix(np.array([[1, 0, 1], [0, 1, 0]], dtype=np.float32))
    scores = csr_matrix((np.array([3, 1, -1], dtype=np.float32), np.array([2, 0, 0]), np.array([0, 2, 3])), (2, 3))
    ordered, unordered, empty = LogitHistogram(), LogitHistogram(), LogitHistogram()
    unordered.add(scores, truth)
    ordered.add(scores.sorted_indices(), truth)
    assert unordered.best_threshold() == ordered.best_threshold() == (63 / 64, 0.8)
    empty.add(csr_matrix((2, 3), dtype=np.float32), truth)
    assert empty.best_threshold()[1] == 0
