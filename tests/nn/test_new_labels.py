"""Rows for labels that a linear layer was not trained on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from xmckit import Split, UsageError, make_context
from xmckit.nn.new_labels import new_rows

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
    found, bias = new_rows(W, b, rows, Y, rows[order[:5]], own)
    logits = rows @ found[0] + bias[0]
    assert logits[order[5:25]].mean() > logits[order[25:]].mean() + logits.std()
    assert np.linalg.norm(W, axis=1).min() <= np.linalg.norm(found[0]) <= np.linalg.norm(W, axis=1).max()


def test_examples_like_the_average_row_give_finite_numbers():
    W, b, rows, Y = layer()
    own = csr_matrix(np.ones((1, 1), np.float32))
    for vectors, example in ((rows, rows.mean(axis=0)), (np.zeros_like(rows), np.zeros(6, np.float32))):
        found, bias = new_rows(W, b, vectors, csr_matrix(Y.shape), example[None], own)
        assert np.isfinite(found).all()
        assert np.isfinite(bias).all()


def fitted(use: str, **params: object) -> tuple[object, Split]:
    rng = np.random.default_rng(0)
    X = csr_matrix((rng.random((60, 20)) < 0.2).astype(np.float32))
    train = Split(X, csr_matrix((rng.random((60, 12)) < 0.2).astype(np.float32)))
    head = CONTEXT.build("head", {"use": use, "epochs": 2, **params})
    head.fit(train, context=CONTEXT)
    return head, train


def test_a_head_keeps_what_it_knows_and_stores_what_is_new(tmp_path):
    for dim in (8, 40):  # the second is wider than the encoder, whose matrices are then folded
        head, train = fitted("bsl", dim=dim, encoder={"use": "sparse-linear", "width": 16})
        before = head.decision()
        head.add_labels(train.matrix[:3], csr_matrix(np.eye(3, 2, dtype=np.float32)), train)
        after = head.decision()
        assert after.W.shape[0] == 14
        np.testing.assert_allclose(after.W[:12], before.W, rtol=1e-6)
        folder = tmp_path / str(dim)
        folder.mkdir()
        head.save(folder)
        again = CONTEXT.load("head", "bsl", folder)
        np.testing.assert_array_equal(again.predict(train.matrix, 14).indices, head.predict(train.matrix, 14).indices)
        assert head.predict(train.matrix, 14).indices.max() == 13


def test_a_head_without_rows_of_its_own_says_so():
    head, train = fitted("dft")
    with pytest.raises(UsageError, match="DFTHead have no rows of their own"):
        head.add_labels(train.matrix[:1], csr_matrix(np.ones((1, 1), np.float32)), train)
