"""Head `xrlinear`: the predictions of PECOS behind the contract of a head."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("pecos")

from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear import XLinearModel
from pecos_problems import every_label, problem
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear.calibration import calibration_error, logits
from xmckit_pecos.tree import TreeIndex, TreeIndexer
from xmckit_pecos.xrlinear import XRLinearHead

from xmckit import Context, DataError, Split, StorageError, UsageError
from xmckit.data.model import carve_validation
from xmckit.testing import Case, parametrize_with_checks

CASES = [
    Case("head", "xrlinear", {"negatives": "tfn+man"}, indexers=[{"use": "tree", "leaf_size": 2, "branching": 2}]),
    Case("head", "xrlinear", {"leaf_size": 3, "calibration": "isotonic", "k": 2, "post_processor": "log-l3-hinge"}),
]


@parametrize_with_checks(CASES)
def test_conformance(check):
    check()


def fitted(train, *, validation=None, indexes=(), context=None, **params) -> XRLinearHead:
    head = XRLinearHead(**{"leaf_size": 5, "branching": 2, **params})
    head.fit(train, indexes=indexes, context=(context or Context(seed=3)).using(validation=validation))
    return head


@pytest.fixture(scope="module")
def parts():
    return carve_validation(problem(rows=500), 0.3, np.random.default_rng(0))


@pytest.mark.parametrize("post_processor", ["l3-hinge", "noop", "log-sigmoid"])
def test_predictions_are_those_of_pecos(post_processor):
    train = every_label()
    context = Context(seed=3)
    head = fitted(train, context=context, post_processor=post_processor, beam=3)
    embeddings = LabelEmbeddingFactory.create(train.Y, train.matrix, method="pifa")
    seed = context.seed_for("tree") % 2**31
    chain = Indexer.gen(embeddings, nr_splits=2, max_leaf_size=5, seed=seed, threads=1)
    model = XLinearModel.train(train.matrix, train.Y.tocsc(), C=chain, nr_splits=2, threads=1)
    expected = model.predict(train.matrix, beam_size=3, only_topk=6, post_processor=post_processor, threads=1)
    found = head.predict(train.matrix, 6)
    assert np.array_equal(found.indices, expected.indices.reshape(-1, 6))
    assert np.array_equal(found.scores, logits(expected.data, post_processor).reshape(-1, 6))


def test_an_index_with_its_matcher_is_as_good_as_no_index():
    train = every_label()
    index = TreeIndexer(leaf_size=5, branching=2).build(train, context=Context(seed=3))
    alone, on_index = fitted(train), fitted(train, indexes=[index])
    one, other = alone.predict(train.matrix, 5), on_index.predict(train.matrix, 5)
    assert np.array_equal(one.indices, other.indices)
    assert np.array_equal(one.scores, other.scores)


def test_any_index_with_clusters_will_do():
    train = every_label()
    own = TreeIndexer(leaf_size=5, branching=2).build(train, context=Context(seed=3))
    foreign = SimpleNamespace(clusters=own.clusters, label_of=own.label_of)
    expected = fitted(train, indexes=[own]).predict(train.matrix, 5)
    assert np.array_equal(fitted(train, indexes=[foreign]).predict(train.matrix, 5).indices, expected.indices)


def test_indexes_that_cannot_serve():
    train = every_label()
    index = TreeIndexer().build(train, context=Context())
    with pytest.raises(UsageError, match="one index, not 2"):
        fitted(train, indexes=[index, index])
    with pytest.raises(UsageError, match="with clusters"):
        fitted(train, indexes=[SimpleNamespace()])
    with pytest.raises(DataError, match="over 40 labels"):
        fitted(every_label(labels=39), indexes=[index])


@pytest.mark.parametrize("copies", ["mean", "max"])
def test_labels_in_several_leaves_come_out_once(copies):
    """All leaves are reached, so that both copies of a label are scored wherever they stand."""
    train = every_label(labels=12)
    leaf_of = np.concatenate([np.arange(12) % 3, [1, 2]])
    tree = tree_of_leaves(leaf_of, 3, 2, np.concatenate([np.arange(12), [0, 1]]), 12)
    index = TreeIndex(tree, None, np.ones(12, np.int64), TreeIndexer().params, 1)
    head = fitted(train, indexes=[index], copies=copies, beam=3)
    best = head.predict(train.matrix, 14)
    assert (np.sort(best.indices[:, :12], axis=1) == np.arange(12)).all()
    assert (best.indices[:, 12:] == -1).all()
    Y = csr_matrix(train.Y[:, tree.label_of])
    chain = [tree.step(level).tocsc() for level in range(tree.depth)]
    model = XLinearModel.train(train.matrix, Y.tocsc(), C=chain, min_codes=2, nr_splits=2, threads=1)
    dense = model.predict(train.matrix, beam_size=3, only_topk=14, threads=1).toarray()
    expected = dense[:, :12].copy()
    for copy, label in ((12, 0), (13, 1)):
        pair = np.stack([dense[:, label], dense[:, copy]])
        expected[:, label] = pair.max(axis=0) if copies == "max" else pair.mean(axis=0)
    found = np.empty_like(expected)
    np.put_along_axis(found, best.indices[:, :12].astype(int), best.scores[:, :12], axis=1)
    np.testing.assert_allclose(
        found, logits(expected.ravel(), "l3-hinge").reshape(expected.shape), rtol=1e-5, atol=1e-5
    )
    for k in (1, 3):
        fewer = head.predict(train.matrix, k)
        assert (fewer.indices == best.indices[:, :k]).all()
        assert (fewer.scores == best.scores[:, :k]).all()


def test_labels_are_those_above_the_threshold(parts):
    train, validation = parts
    head = fitted(train, validation=validation)
    everything = head.predict(validation.matrix, 60)
    above = (everything.scores > np.float32(head.threshold)) & (everything.indices >= 0)
    rows, places = np.nonzero(above)
    expected = csr_matrix((np.ones(len(rows)), (rows, everything.indices[rows, places])), validation.Y.shape)
    assert (head.labels(validation.matrix) != expected).nnz == 0
    # no other cut on the validation rows is better
    truth = validation.Y.toarray() != 0
    dense = np.full(truth.shape, -np.inf)
    listed = everything.indices >= 0
    dense[np.nonzero(listed)[0], everything.indices[listed]] = everything.scores[listed]

    def micro_f1(cut):
        return 2 * ((dense > cut) & truth).sum() / ((dense > cut).sum() + truth.sum())

    assert micro_f1(head.threshold) == pytest.approx(max(micro_f1(cut) for cut in np.unique(dense[np.isfinite(dense)])))
    assert head.facts(validation.Y)["threshold"]["validation micro-F1"] == pytest.approx(micro_f1(head.threshold))


def test_a_low_threshold_outputs_everything_reached():
    train = every_label(labels=300, rows_each=1)
    head = fitted(train, threshold=-10_000.0, leaf_size=20, beam=1 << 20)
    assert (np.diff(head.labels(train.matrix).indptr) == 300).all()  # more than are asked for at first
    assert fitted(train, threshold=10_000.0).labels(train.matrix).nnz == 0


def test_the_best_k_labels_on_request(parts):
    train, validation = parts
    head = fitted(train, k=3)
    sets, best = head.labels(validation.matrix), head.predict(validation.matrix, 3)
    assert (np.diff(sets.indptr) == 3).all()
    assert np.array_equal(sets.indices.reshape(-1, 3), np.sort(best.indices, axis=1))


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_probabilities_come_true_on_rows_nobody_saw(method, parts):
    train, validation = parts
    unseen = problem(rows=2000, seed=0)  # the same words and labels, mostly other rows
    plain = fitted(train, validation=validation)
    head = fitted(train, validation=validation, calibration=method)
    assert np.array_equal(head.predict(unseen.matrix, 5).indices, plain.predict(unseen.matrix, 5).indices)

    def error(of):
        best = of.probabilities(unseen.matrix, 5)
        hits = np.take_along_axis(unseen.Y.toarray() != 0, best.indices.astype(int), axis=1)
        return calibration_error(best.scores.ravel(), hits.ravel())

    assert error(head) < error(plain)
    errors = head.facts(validation.Y)["expected calibration error of the best 5 labels"]
    assert errors["after, on rows left out"] < errors["before"]


def test_calibration_without_validation_rows_warns():
    head = fitted(every_label(), calibration="platt")
    assert "not calibrated" in head.facts(every_label().Y)["warnings"][0]


def test_facts_are_what_the_tree_and_the_beam_say():
    train = every_label()
    head = fitted(train, beam=2, validation=train)
    facts = head.facts(train.Y)
    assert facts["tree"]["leaves"] == 8
    assert facts["tree"]["leaf sizes"] == {"smallest": 5, "median": 5.0, "largest": 5, "empty": 0}
    assert facts["labels scored per row"] == 10
    assert facts["model bytes"] > 8 * facts["weights"] > 0


def test_a_beam_of_one_follows_one_path():
    train = every_label()
    best = fitted(train, beam=1).predict(train.matrix, 20)
    assert ((best.indices >= 0).sum(axis=1) == 5).all()


def test_weights_that_are_all_dropped_leave_a_model(tmp_path):
    """Every label then has the same score, and the first labels of the first leaves are best."""
    train = every_label()
    head = fitted(train, prune=1e6, beam=3)
    assert head.facts(train.Y)["weights"] == 0
    head.save(tmp_path)
    again = XRLinearHead.load(tmp_path, context=Context())
    best = again.predict(train.matrix, 15)
    assert np.array_equal(best.indices, head.predict(train.matrix, 15).indices)
    assert len(np.unique(best.scores)) == 1


def test_weights_count():
    train = every_label()
    ones = csr_matrix((np.ones(train.Y.nnz, np.float32), train.Y.indices, train.Y.indptr), shape=train.Y.shape)
    plain = fitted(train).predict(train.matrix, 5)
    same = fitted(replace(train, weights=ones)).predict(train.matrix, 5)
    assert np.array_equal(plain.scores, same.scores)
    heavier = fitted(replace(train, weights=ones * np.float32(4))).predict(train.matrix, 5)
    assert heavier.scores[:, 0].mean() > plain.scores[:, 0].mean()


@pytest.mark.parametrize("with_index", [False, True])
def test_labels_on_no_row_are_never_output(with_index):
    train = every_label()
    rare = Split(train.X, csr_matrix(train.Y.toarray() * (np.arange(40) % 4 != 0)))
    indexes = [TreeIndexer(leaf_size=5, branching=2).build(rare, context=Context(seed=3))] if with_index else []
    head = fitted(rare, beam=8, indexes=indexes)
    best = head.predict(train.matrix, 40)
    assert (np.sort(best.indices[:, :30], axis=1) == np.flatnonzero(np.arange(40) % 4)).all()
    assert (best.indices[:, 30:] == -1).all()
    assert head.facts(rare.Y)["tree"]["labels on no training row, left out"] == 10


def test_leaving_them_out_changes_nothing_for_the_others():
    """The models of the other labels are trained without regard to them."""
    train = every_label()
    wider = Split(train.X, csr_matrix(np.hstack([train.Y.toarray(), np.zeros((train.rows, 3), np.float32)])))
    index = TreeIndexer(leaf_size=5, branching=2).build(train, context=Context(seed=3))
    tree = tree_of_leaves(np.append(index.tree.leaf_of, [0, 3, 3]), 8, 2, np.arange(43), 43)
    foreign = SimpleNamespace(clusters=tree.clusters, label_of=tree.label_of)
    expected, found = fitted(train, indexes=[index]), fitted(wider, indexes=[foreign])
    assert np.array_equal(expected.predict(train.matrix, 9).scores, found.predict(train.matrix, 9).scores)
    assert np.array_equal(expected.predict(train.matrix, 9).indices, found.predict(train.matrix, 9).indices)


def test_nothing_to_learn_from():
    with pytest.raises(DataError, match="no training row has a label"):
        fitted(Split(every_label().X, csr_matrix((160, 3), dtype=np.float32)))


def test_calls_that_cannot_work():
    with pytest.raises(UsageError, match="has not been fitted"):
        XRLinearHead().predict(every_label().matrix, 1)
    head = fitted(every_label())
    with pytest.raises(UsageError, match="at least 1"):
        head.predict(every_label().matrix, 0)
    for call in (lambda X: head.predict(X, 1), head.labels):
        with pytest.raises(DataError, match="31 features"):
            call(np.zeros((0, 31), dtype=np.float32))


def test_saved_with_its_calibration(tmp_path, parts):
    train, validation = parts
    head = fitted(train, validation=validation, calibration="isotonic")
    head.save(tmp_path)
    again = XRLinearHead.load(tmp_path, context=Context())
    assert np.array_equal(again.predict(validation.matrix, 9).scores, head.predict(validation.matrix, 9).scores)
    assert again.facts(train.Y) == head.facts(train.Y)
    assert (again.labels(validation.matrix) != head.labels(validation.matrix)).nnz == 0


@pytest.mark.parametrize(
    "content",
    ['{"threshold": "0"}', f'{{"threshold": {10**400}, "facts": {{}}}}', '{"threshold": 0, "facts": {}}', "[]", "{}"],
)
def test_a_state_that_is_not_ours(tmp_path, content):
    fitted(every_label()).save(tmp_path)
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(StorageError, match=r"state\.json"):
        XRLinearHead.load(tmp_path, context=Context())


def test_a_model_of_another_tree(tmp_path):
    fitted(every_label()).save(tmp_path)
    tree_of_leaves(np.arange(40) % 4, 4, 2, np.arange(40), 40).save(tmp_path)
    with pytest.raises(StorageError, match="another tree"):
        XRLinearHead.load(tmp_path, context=Context())
