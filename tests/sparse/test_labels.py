"""Co-occurrence and centroids of labels against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, issparse
from scipy.sparse import random as random_csr
from sklearn.preprocessing import normalize

from xmckit.errors import DataError, UsageError
from xmckit.sparse import cooccurrence, hashed_projection, label_centroids, random_projection


def label_matrix(rows, labels, density, seed):
    Y = random_csr(rows, labels, density=density, format="csr", dtype=np.float32, random_state=seed)
    Y.data[:] = 1
    Y.sort_indices()
    return Y


def problem(rows=60, labels=20, features=30, seed=0):
    X = random_csr(rows, features, density=0.2, format="csr", dtype=np.float32, random_state=seed + 1)
    Y = label_matrix(rows, labels, 0.1, seed).toarray()
    Y[:, 3] = 0
    return X, csr_matrix(Y)


def pifa(X, Y):
    return normalize(normalize(Y).T @ X)


@given(st.integers(0, 30), st.integers(1, 25), st.sampled_from([0.05, 0.3, 1.0]), st.integers(1, 30), st.integers(0, 5))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_labels_that_share_most_rows(rows, labels, density, k, seed):
    Y = label_matrix(rows, labels, density, seed)
    shared = (Y.T @ Y).toarray()
    found = cooccurrence(Y, k)
    found.check_format(full_check=True)
    for label in range(labels):
        others = [other for other in range(labels) if other != label and shared[label, other]]
        best = sorted(others, key=lambda other: (-shared[label, other], other))[:k]
        here = slice(found.indptr[label], found.indptr[label + 1])
        assert found.indices[here].tolist() == best
        assert found.data[here].tolist() == [shared[label, other] for other in best]


def test_workers_do_not_change_cooccurrence():
    Y = label_matrix(4000, 3000, 0.002, 0)
    one, three = (cooccurrence(Y, 5, workers=workers) for workers in (1, 3))
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(one, part), getattr(three, part))


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 30), st.integers(0, 9))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_centroids_of_sparse_and_dense_rows(rows, labels, features, seed):
    X = random_csr(rows, features, density=0.3, format="csr", dtype=np.float32, random_state=seed)
    Y = label_matrix(rows, labels, 0.2, seed + 1)
    expected = pifa(X, Y).toarray()
    sparse, dense = label_centroids(X, Y), label_centroids(X.toarray(), Y)
    np.testing.assert_allclose(sparse.toarray(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dense, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [random_projection, hashed_projection])
@pytest.mark.parametrize("dense", [False, True])
def test_projected_centroids_are_projections_of_sums(make, dense):
    X, Y = problem()
    R = make(30, 18, np.random.default_rng(0))
    expected = normalize((normalize(Y).T @ X).toarray() @ (R.toarray() if issparse(R) else R))
    found = label_centroids(X.toarray() if dense else X, Y, projection=R)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not found[3].any()  # a label without rows


@pytest.mark.parametrize("make", [random_projection, hashed_projection])
def test_projections_keep_inner_products(make):
    rng = np.random.default_rng(0)
    X = normalize(random_csr(40, 5000, density=0.01, format="csr", dtype=np.float32, random_state=1))
    Z = X @ make(5000, 2048, rng)
    Z = Z.toarray() if issparse(Z) else Z
    errors = Z @ Z.T - (X @ X.T).toarray()
    assert np.sqrt(np.mean(errors**2)) < 3 / np.sqrt(2048)


def test_workers_do_not_change_centroids():
    # more rows and more labels than one worker takes at once
    X, Y = problem(rows=2500, labels=3000, features=300)
    R = random_projection(300, 40, np.random.default_rng(0))
    one, three = (label_centroids(X, Y, projection=R, workers=workers) for workers in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_wrong_arguments():
    X, Y = problem()
    with pytest.raises(UsageError, match="k of at least 1"):
        cooccurrence(Y, 0)
    with pytest.raises(DataError, match="found 59 and 60"):
        label_centroids(X[:59], Y)
    with pytest.raises(UsageError, match="for 7 features, the rows have 30"):
        label_centroids(X, Y, projection=np.zeros((7, 2), np.float32))
    assert label_centroids(csr_matrix((0, 4), dtype=np.float32), csr_matrix((0, 3), dtype=np.float32)).shape == (3, 4)


def test_stored_zeros_and_repeats_are_no_further_labels():
    Y = csr_matrix(np.array([[1, 1, 0], [1, 0, 1]], dtype=np.float32))
    odd = csr_matrix(
        (np.array([1, 1, 1, 0, 1, 1], np.float32), np.array([1, 0, 0, 2, 2, 0]), np.array([0, 4, 6])), shape=(2, 3)
    )
    X = np.array([[1, 2], [3, 4]], dtype=np.float32)
    assert (cooccurrence(odd, 2) != cooccurrence(Y, 2)).nnz == 0
    for rows in (X, csr_matrix(X)):
        assert abs(label_centroids(rows, odd) - label_centroids(rows, Y)).max() == 0


def test_features_beyond_the_last_column():
    X, Y = csr_matrix(np.eye(3, 5, dtype=np.float32)), csr_matrix(np.eye(3, dtype=np.float32))
    X.indices[0] = 10_000_000
    for projection in (None, random_projection(5, 4, np.random.default_rng(0))):
        with pytest.raises(DataError, match="feature matrix is not a sound CSR matrix"):
            label_centroids(X, Y, projection=projection)
