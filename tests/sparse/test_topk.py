"""Top-k selection against a full sort, with ties, padding, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_matrix

from xmckit.errors import DataError, UsageError
from xmckit.sparse.topk import topk_csr, topk_dense


def sorted_rows(rows, k):
    """(labels, scores) by a full sort of (label, score) pairs: best score first, then the lower label."""
    labels, scores = np.full((len(rows), k), -1), np.full((len(rows), k), -np.inf, dtype=np.float32)
    for row, pairs in enumerate(rows):
        best = sorted((pair for pair in pairs if pair[1] > -np.inf), key=lambda pair: (-pair[1], pair[0]))[:k]
        for rank, (label, score) in enumerate(best):
            labels[row, rank], scores[row, rank] = label, score
    return labels, scores


def check(topk, rows, k):
    labels, scores = sorted_rows(rows, k)
    assert topk.indices.dtype == np.int32
    assert topk.scores.dtype == np.float32
    np.testing.assert_array_equal(topk.indices, labels)
    np.testing.assert_array_equal(topk.scores, scores)


few_values = st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 2.0**-100, 1.0, np.inf])


@given(arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 300)), elements=few_values), st.integers(1, 310))
@settings(deadline=None, max_examples=80, derandomize=True)
def test_dense_with_many_ties(scores, k):
    check(topk_dense(scores, k), [list(enumerate(row)) for row in scores.tolist()], k)


@pytest.mark.parametrize("k", [1, 5, 100, 3000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_random(k, dtype):
    scores = np.random.default_rng(k).standard_normal((5, 2000)).astype(dtype)
    scores[0], scores[1] = np.sort(scores[0]), -np.sort(scores[1])
    check(topk_dense(scores, k), [list(enumerate(row)) for row in scores.tolist()], k)
    check(topk_dense(np.asfortranarray(scores), k), [list(enumerate(row)) for row in scores.tolist()], k)


@given(
    st.lists(st.dictionaries(st.integers(0, 40), few_values), min_size=1, max_size=5),
    st.integers(1, 45),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_csr_in_any_order(rows, k, random):
    rows = [list(row.items()) for row in rows]
    for row in rows:
        random.shuffle(row)
    check(topk_csr(as_matrix(rows, 41), k), rows, k)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(0, 200)), elements=few_values),
    st.integers(1, 70),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=120, derandomize=True)
def test_csr_rows_longer_than_what_is_compared_at_once(scores, k, dtype, seed):
    labels = np.random.default_rng(seed).permutation(scores.shape[1])
    rows = [list(zip(labels.tolist(), row, strict=True)) for row in scores.tolist()]
    check(topk_csr(as_matrix(rows, max(1, scores.shape[1])).astype(dtype), k), rows, k)


@pytest.mark.parametrize("k", [1, 5, 16, 17, 32, 33, 64, 100, 600])
@pytest.mark.parametrize("length", [15, 16, 31, 32, 33, 64, 100, 500])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_csr_random(length, k, dtype):
    rng = np.random.default_rng(length * k)
    scores = rng.standard_normal((6, length)).astype(dtype)
    scores[0], scores[1] = np.sort(scores[0]), -np.sort(scores[1])
    # rounding makes ties at any rank, and one value all over more candidates than are ranked by counting
    scores[2], scores[3] = scores[2].round(), 1.0
    matrix = csr_matrix((scores.ravel(), np.tile(np.arange(length), 6), np.arange(7) * length), shape=(6, length))
    check(topk_csr(matrix, k), [list(enumerate(row)) for row in scores.tolist()], k)


@pytest.mark.parametrize("place", [0, 31, 32, 63, 64, 65])
@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("rest", [-np.inf, 1.0, np.inf])
def test_nan_in_csr_rows(place, k, rest):
    scores = np.full((3, 66), rest, dtype=np.float32)
    scores[1, place] = np.nan
    matrix = csr_matrix((scores.ravel(), np.tile(np.arange(66), 3), np.arange(4) * 66), shape=(3, 66))
    with pytest.raises(DataError, match="row 1: a score is not a number"):
        topk_csr(matrix, k)


def test_csr_scores_with_gaps_in_memory():
    matrix = as_matrix([[(label, float(label)) for label in range(50)]], 50)
    matrix.data = np.repeat(matrix.data, 2)[::2]
    assert topk_csr(matrix, 2).indices.tolist() == [[49, 48]]


def as_matrix(rows, labels):
    pairs = [pair for row in rows for pair in row]
    return csr_matrix(
        ([score for _, score in pairs], [label for label, _ in pairs], np.cumsum([0, *map(len, rows)])),
        shape=(len(rows), labels),
        dtype=np.float32,
    )


def test_double_precision_decides_before_rounding():
    scores = np.array([[1.0, 1.0 + 1e-12]])
    assert topk_dense(scores, 1).indices.tolist() == [[1]]
    assert topk_csr(csr_matrix(scores), 1).indices.tolist() == [[1]]


def test_integer_scores():
    assert topk_dense(np.array([[3, 9, 9]]), 2).indices.tolist() == [[1, 2]]


@pytest.mark.parametrize("place", [0, 3, 127, 128, 299])
def test_nan_is_found_anywhere(place):
    scores = np.zeros((3, 300), dtype=np.float32)
    scores[:, 0] = 5
    scores[2, place] = np.nan
    with pytest.raises(DataError, match="row 2: a score is not a number"):
        topk_dense(scores, 1)
    with pytest.raises(DataError, match="row 2: a score is not a number"):
        topk_csr(csr_matrix(scores), 1)


def test_a_label_with_two_scores():
    with pytest.raises(DataError, match="row 1: a label has two scores"):
        topk_csr(as_matrix([[(3, 1.0), (1, 2.0)], [(3, 1.0), (1, 2.0), (3, 3.0)]], 5), 2)


def test_wrong_arguments():
    with pytest.raises(UsageError, match="k of at least 1"):
        topk_dense(np.zeros((1, 2), dtype=np.float32), 0)
    with pytest.raises(UsageError, match="1 dimensions"):
        topk_dense(np.zeros(2, dtype=np.float32), 1)
    broken = as_matrix([[(0, 1.0)]], 2)
    broken.indices = np.array([-4], dtype=np.int32)
    with pytest.raises(DataError, match="not a sound CSR matrix"):
        topk_csr(broken, 1)
