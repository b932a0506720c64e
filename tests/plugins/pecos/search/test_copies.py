"""Scores of labels from those of their copies, and which labels are alike, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pecos_problems import problem
from scipy.sparse import csr_matrix
from xmckit_pecos.labels.neighbours import similarities
from xmckit_pecos.search.copies import scores_of_labels


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5))
def test_a_label_has_the_mean_score_of_its_copies_in_front_or_that_of_its_best(seed, averaged, k):
    rng = np.random.default_rng(seed)
    label_of = rng.integers(0, 4, 9)
    dense = rng.integers(1, 5, (6, 9)) * (rng.random((6, 9)) < 0.4) / np.float32(4)
    orders = [sorted(np.flatnonzero(row), key=lambda copy, row=row: -row[copy]) for row in dense]
    rows, columns = np.repeat(np.arange(6), list(map(len, orders))), np.concatenate(orders).astype(int)
    best_first = csr_matrix((dense[rows, columns], columns, np.cumsum([0, *map(len, orders)])), shape=dense.shape)
    found = scores_of_labels(best_first, label_of, 5, k, averaged)
    for row, order in enumerate(orders):
        expected = {}
        for label in range(5):
            front = [dense[row, copy] for copy in order[:averaged] if label_of[copy] == label]
            behind = [dense[row, copy] for copy in order if label_of[copy] == label]
            if behind:
                expected[label] = np.float32(np.mean(front) if front else behind[0])
        part = slice(found.indptr[row], found.indptr[row + 1])
        listed = list(zip(found.indices[part].tolist(), found.data[part].tolist(), strict=True))
        assert listed == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("dense", [False, True])
def test_labels_are_near_when_their_rows_are(dense, monkeypatch):
    monkeypatch.setattr("xmckit_pecos.labels.neighbours.LABELS_AT_ONCE", 7)
    train = problem(rows=80, labels=30)
    X, Y = train.matrix.toarray(), train.Y.toarray() != 0
    weights = Y / np.sqrt(np.maximum(Y.sum(axis=1, keepdims=True), 1))
    sums = weights.T @ X
    norms = np.linalg.norm(sums, axis=1)
    unit = sums / np.where(norms, norms, 1)[:, None]
    found = similarities(X if dense else train.matrix, train.Y, 3)
    np.testing.assert_allclose(found, unit @ unit[3], atol=1e-5)
    assert found.argmax() == 3
    np.testing.assert_allclose(similarities(train.matrix, train.Y, 3, np.asarray([5, 1])), found[[5, 1]], atol=1e-5)
