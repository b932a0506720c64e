"""The popularity head against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random

from xmckit import store
from xmckit.components.popularity import PopularityHead
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import StorageError, UsageError
from xmckit.protocols import Head

LABELS = [{0, 4}, {4}, {2, 4}, {0, 2, 4}, {4, 5}]  # counts 2 0 2 0 5 1 of 5 rows


def train_split():
    indicator = np.array([[float(label in row) for label in range(6)] for row in LABELS])
    Y = csr_matrix(indicator, dtype=np.float32)
    return Split(X=csr_matrix(np.ones((5, 3), dtype=np.float32)), Y=Y, weights=Y * 7)


@pytest.fixture
def head():
    head = PopularityHead()
    head.fit(train_split(), context=Context())
    return head


def test_same_ranking_for_every_row(head):
    topk = head.predict(np.zeros((3, 3), dtype=np.float32), 8)
    assert topk.indices.tolist() == [[4, 0, 2, 5, 1, 3, -1, -1]] * 3
    odds = [5.5 / 0.5, 2.5 / 3.5, 2.5 / 3.5, 1.5 / 4.5, 0.5 / 5.5, 0.5 / 5.5, 0, 0]
    np.testing.assert_allclose(np.exp(topk.scores), [odds] * 3, rtol=1e-6)
    assert (topk.indices.dtype, topk.scores.dtype) == (np.int32, np.float32)


def test_label_sets_are_the_positive_scores(head):
    X = csr_matrix((4, 3), dtype=np.float32)
    assert head.labels(X).toarray().tolist() == [[0, 0, 0, 0, 1, 0]] * 4
    topk = head.predict(X, 6)
    assert head.labels(X).indices.tolist() == topk.indices[topk.scores > 0].tolist()


def test_exactly_half_is_not_output():
    head = PopularityHead()
    head.fit(Split(X=np.zeros((2, 1)), Y=csr_matrix([[1.0], [0.0]])), context=Context())
    assert head.predict(np.zeros((1, 1)), 1).scores.tolist() == [[0.0]]
    assert head.labels(np.zeros((1, 1))).nnz == 0


def test_constant_output_has_nothing_to_verify(head):
    assert isinstance(head, Head)
    assert head.decision() is None
    assert head.features(np.zeros((1, 3))) is None
    assert head.needs == frozenset()


def test_order_is_the_counts_not_their_rounded_scores():
    rows = 40_000
    Y = random(rows, 300, density=0.01, format="csr", random_state=0, dtype=np.float32)
    head = PopularityHead()
    head.fit(Split(X=csr_matrix((rows, 1)), Y=Y), context=Context())
    counts = np.bincount(Y.indices, minlength=300)
    expected = sorted(range(300), key=lambda label: (-counts[label], label))
    assert head.predict(np.zeros((1, 1)), 300).indices[0].tolist() == expected


def test_no_rows(head):
    X = np.zeros((0, 3), dtype=np.float32)
    assert head.predict(X, 2).indices.shape == (0, 2)
    assert head.labels(X).shape == (0, 6)


def test_save_and_load(head, tmp_path):
    head.save(tmp_path)
    again = PopularityHead.load(tmp_path, context=Context())
    X = np.zeros((2, 3), dtype=np.float32)
    np.testing.assert_array_equal(again.predict(X, 4).scores, head.predict(X, 4).scores)
    np.testing.assert_array_equal(again.predict(X, 4).indices, head.predict(X, 4).indices)
    assert (again.labels(X) != head.labels(X)).nnz == 0


@pytest.mark.parametrize(
    "arrays",
    [
        {"counts": np.array([1, 9]), "rows": np.asarray(5)},
        {"counts": np.array([-1]), "rows": np.asarray(5)},
        {"counts": np.array([[1]]), "rows": np.asarray(5)},
        {"counts": np.array([0.5]), "rows": np.asarray(5)},
        {"counts": np.array([1])},
    ],
)
def test_damaged_files_name_themselves(head, tmp_path, arrays):
    head.save(tmp_path)
    store.write_arrays(tmp_path / "counts.npz", arrays)
    with pytest.raises(StorageError, match=r"counts\.npz"):
        PopularityHead.load(tmp_path, context=Context())


def test_not_fitted():
    with pytest.raises(UsageError, match="has not been fitted"):
        PopularityHead().predict(np.zeros((1, 1)), 1)
    with pytest.raises(UsageError, match="at least 1"):
        PopularityHead().predict(np.zeros((1, 1)), 0)
