"""Rows for labels that a linear layer was not trained on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from xmckit import DataError, Split, StorageError, UsageError, make_context, store
from xmckit.nn import TorchHead
from xmckit.nn.new_labels import new_label_rows

CONTEXT = make_context(workers=1)


def layer(labels: int = 30, width: int = 6, rows: int = 500) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    W, b = rng.normal(size=(labels, width)).astype(np.float32), np.full(labels, -2, np.float32)
    vectors = rng.normal(size=(rows, width)).astype(np.float32)
    return W, b, vectors, csr_matrix((vectors @ W.T + b > 0).astype(np.float32))


def test_a_new_label_ranks_its_own_rows_above_others():
    W, b, rows, Y = layer()
    truth = np.random.default_rng(1).normal(size=W.shape[1])
    order = np.argsort(-(rows @ truth))
    own = csr_matrix(np.ones((5, 1), np.float32))
    found, bias = new_label_rows(W, b, rows, Y, rows[order[:5]], own)
    logits = rows @ found[0] + bias[0]
    assert logits[order[5:25]].mean() > logits[order[25:]].mean() + logits.std()
    assert np.linalg.norm(W, axis=1).min() <= np.linalg.norm(found[0]) <= np.linalg.norm(W, axis=1).max()


def test_examples_like_the_average_row_give_finite_numbers():
    W, b, rows, Y = layer()
    own = csr_matrix(np.ones((1, 1), np.float32))
    for vectors, example in ((rows, rows.mean(axis=0)), (np.zeros_like(rows), np.zeros(6, np.float32))):
        found, bias = new_label_rows(W, b, vectors, csr_matrix(Y.shape), example[None], own)
        assert np.isfinite(found).all()
        assert np.isfinite(bias).all()


def test_one_row_of_training_is_enough():
    """Nothing is known then of how rows vary: the direction is that from the row to the example."""
    W, b, rows, Y = layer(rows=1)
    found, bias = new_label_rows(W, b, rows, Y, rows + 2 * np.eye(1, 6), csr_matrix(np.ones((1, 1), np.float32)))
    np.testing.assert_allclose(found[0] / np.linalg.norm(found[0]), [1, 0, 0, 0, 0, 0], atol=1e-6)
    assert np.isfinite(bias).all()


def fitted(use: str, **params: object) -> tuple[object, Split]:
    rng = np.random.default_rng(0)
    X = csr_matrix((rng.random((60, 20)) < 0.2).astype(np.float32))
    train = Split(X, csr_matrix((rng.random((60, 12)) < 0.2).astype(np.float32)))
    head = CONTEXT.build("head", {"use": use, "epochs": 2, **params})
    head.fit(train, context=CONTEXT)
    return head, train


NARROW = {"encoder": {"use": "sparse-linear", "width": 16}}


# where the classifier is wider than the encoder, the matrices of both are folded
@pytest.mark.parametrize(
    ("use", "params"),
    [("bsl", {"dim": 8}), ("bsl", {"dim": 40, **NARROW}), ("dft", {}), ("dft", {"slack": 40, **NARROW})],
)
def test_a_head_keeps_what_it_knows_and_stores_what_is_new(use, params, tmp_path):
    head, train = fitted(use, **params)
    before, logits = head.decision(), head.predict(train.matrix, 12)
    for count in (2, 1):
        more = csr_matrix(np.eye(3, count, dtype=np.float32))
        head.add_labels(train.matrix[:3], more, train)
    after = head.decision()
    assert after.W.shape[0] == 15
    assert head.added == 3
    np.testing.assert_allclose(after.W[:12], before.W, rtol=1e-6)
    found = head.predict(train.matrix, 15)
    for row in range(60):
        old = found.indices[row] < 12
        np.testing.assert_array_equal(found.indices[row][old], logits.indices[row])
        np.testing.assert_allclose(found.scores[row][old], logits.scores[row], rtol=1e-4, atol=1e-5)
    own = head.features(train.matrix) @ after.W.T + after.b + np.float32(head.threshold)
    np.testing.assert_allclose(np.take_along_axis(own, found.indices, 1), found.scores, rtol=1e-4, atol=1e-4)
    head.save(tmp_path)
    again = CONTEXT.load("head", use, tmp_path)
    np.testing.assert_array_equal(again.predict(train.matrix, 15).indices, found.indices)
    assert (again.labels(train.matrix) != head.labels(train.matrix)).nnz == 0


def test_added_labels_are_not_in_the_guarantee_of_the_layer():
    head, train = fitted("dft")
    assert head.decision().structure is not None
    head.add_labels(train.matrix[:1], csr_matrix(np.ones((1, 1), np.float32)), train)
    assert head.decision().structure is None
    assert "guarantee is lost" in head.warnings()[0]
    truth = csr_matrix((train.Y.data, train.Y.indices, train.Y.indptr), (60, 13))
    assert head.facts(truth)["guarantee"] == "lost: see above"


def test_some_rows_of_a_layer_with_added_labels():
    head, train = fitted("dft")
    head.add_labels(train.matrix[:2], csr_matrix(np.eye(2, dtype=np.float32)), train)
    classifier, labels = head._network.classifier, torch.tensor([13, 0, 12, 7])
    with torch.no_grad():
        for part, whole in zip(classifier.rows(labels), classifier.matrix(), strict=True):
            np.testing.assert_allclose(part, whole[labels], rtol=1e-6)


class Bent(torch.nn.Module):
    """No linear layer."""

    width = 8

    def __init__(self):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(12, 8))

    def start(self, train, generator):
        self.W.data.normal_(generator=generator)

    def forward(self, x, threads):
        return torch.tanh(x @ self.W.T)


class BentHead(TorchHead):
    def make_classifier(self, sizes):
        return Bent()

    def loss(self, classifier, x, targets, threads):
        return classifier(x, threads).square().mean()


def test_a_head_without_label_rows_cannot_add_labels():
    _, train = fitted("bsl")
    head = BentHead(epochs=1, dim=8)
    head.fit(train, context=CONTEXT)
    with pytest.raises(UsageError, match="BentHead has no weights of single labels"):
        head.add_labels(train.matrix[:1], csr_matrix(np.ones((1, 1), np.float32)), train)


def test_rows_of_another_width_change_nothing():
    head, train = fitted("bsl")
    with pytest.raises(DataError, match="7 features, this head was fitted on 20"):
        head.add_labels(train.matrix[:1, :7], csr_matrix(np.ones((1, 1), np.float32)), train)
    assert head.predict(train.matrix, 20).indices.max() == 11


def test_stored_sizes_that_cannot_be_are_named(tmp_path):
    head, train = fitted("dft")
    head.add_labels(train.matrix[:2], csr_matrix(np.eye(2, dtype=np.float32)), train)
    head.save(tmp_path)
    state = store.read_json(tmp_path / "state.json")
    for added, why in ((14, "fewer added labels"), (3, "expected"), (0, "expected the tensors")):
        store.write_json(tmp_path / "state.json", {**state, "sizes": {**state["sizes"], "added": added}})
        with pytest.raises(StorageError, match=why):
            CONTEXT.load("head", "dft", tmp_path)
