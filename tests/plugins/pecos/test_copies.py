"""Scores of labels from those of their copies, and which labels are alike, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pecos_problems import problem
from scipy.sparse import csr_matrix
from xmckit_pecos.copies import scores_of_labels
from xmckit_pecos.neighbours import similarities


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["mean", "max"]))
def test_a_label_has_the_mean_or_best_score_of_its_copies(seed, copies):
    rng = np.random.default_rng(seed)
    label_of = rng.integers(0, 4, 9)
    dense = rng.integers(1, 5, (6, 9)) * (rng.random((6, 9)) < 0.4) / np.float32(4)
    found = scores_of_labels(csr_matrix(dense, dtype=np.float32), label_of, 5, copies)
    for row in range(6):
        expected = {}
        for label in range(5):
            scores = [dense[row, copy] for copy in np.flatnonzero(label_of == label) if dense[row, copy]]
            if scores:
                expected[label] = np.float32(max(scores) if copies == "max" else np.mean(scores))
        part = slice(found.indptr[row], found.indptr[row + 1])
        listed = list(zip(found.indices[part].tolist(), found.data[part].tolist(), strict=True))
        assert listed == sorted(expected.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.mark.parametrize("dense", [False, True])
def test_labels_are_near_when_their_rows_are(dense, monkeypatch):
    monkeypatch.setattr("xmckit_pecos.neighbours.LABELS_AT_ONCE", 7)
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
