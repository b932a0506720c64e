from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, random
from xmckit_eagle.grouping import Aggregate, cluster_groups, membership_matrix, random_groups, swap_groups

import xmckit


def labelled(seed=0, rows=37, features=12, labels=9):
    rng = np.random.default_rng(seed)
    X = random(rows, features, 0.4, "csr", dtype=np.float32, random_state=rng)
    Y = csr_matrix((rng.random((rows, labels)) < 0.25).astype(np.float32))
    return xmckit.Split(X=X, Y=Y)


def aggregated(train, seed=0, **params):
    return Aggregate(**params).apply(train, context=xmckit.make_context(seed=seed))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), size=st.integers(1, 9), noise=st.floats(0, 1), seed=st.integers(0, 99))
def test_every_row_is_in_one_group_and_sizes_are_as_asked(rows, size, noise, seed):
    rng = np.random.default_rng(seed)
    group_of = swap_groups(random_groups(rows, size, rng), noise, rng)
    assert group_of.shape == (rows,)
    sizes = np.bincount(group_of)
    assert np.all(sizes[:-1] == size)
    assert 1 <= sizes[-1] <= size


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 70), depth=st.integers(0, 5), dense=st.booleans(), seed=st.integers(0, 99))
def test_clusters_are_as_many_as_asked_and_of_equal_size(rows, depth, dense, seed):
    X = random(rows, 8, 0.5, "csr", dtype=np.float32, random_state=np.random.default_rng(seed))
    if 2**depth > rows:
        with pytest.raises(xmckit.UsageError, match="only"):
            cluster_groups(X, depth, seed=seed)
        return
    group_of = cluster_groups(X.toarray() if dense else X, depth, seed=seed)
    sizes = np.bincount(group_of, minlength=2**depth)
    assert len(sizes) == 2**depth
    assert sizes.max() - sizes.min() <= 1
    assert sizes.sum() == rows
    assert np.array_equal(group_of, cluster_groups(X, depth, seed=seed))


@pytest.mark.parametrize("merge", ["list", "set"])
@pytest.mark.parametrize("params", [{"size": 4}, {"method": "clusters", "depth": 3}, {"size": 5, "noise": 0.5}])
def test_groups_have_the_labels_of_their_rows_and_rows_those_of_their_groups(params, merge):
    train = labelled(3)
    after = aggregated(train, merge=merge, **params)
    after.check()
    group_of = after.groups.membership.indices
    truth = train.Y.toarray()
    for group in range(after.groups.membership.shape[1]):
        total = truth[group_of == group].sum(axis=0)
        expected = total if merge == "list" else np.minimum(total, 1)
        assert np.array_equal(after.groups.labels[group].toarray().ravel(), expected)
    for row in range(train.rows):
        assert np.array_equal(after.Y[row].toarray().ravel() > 0, truth[group_of == group_of[row]].any(axis=0))


def test_a_split_is_a_fixed_point_of_balanced_two_means():
    rng = np.random.default_rng(0)
    X = rng.random((40, 6)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    group_of = cluster_groups(X, 1, seed=0)
    axis = X[group_of == 0].mean(axis=0) - X[group_of == 1].mean(axis=0)
    assert (X[group_of == 0] @ axis).min() >= (X[group_of == 1] @ axis).max()


def test_clusters_find_what_is_planted_and_noise_blurs_it():
    rng = np.random.default_rng(1)
    kind = np.repeat(np.arange(4), 16)
    X = (np.eye(4)[kind] * 5 + rng.random((64, 4))).astype(np.float32)[:, rng.permutation(4)]
    group_of = cluster_groups(X, 2, seed=0)

    def purity(groups):
        return sum(np.bincount(kind[groups == group]).max() for group in range(4)) / 64

    assert purity(group_of) == 1
    blurred = [purity(swap_groups(group_of, noise, np.random.default_rng(0))) for noise in (0, 0.5, 1)]
    assert blurred[0] > blurred[1] > blurred[2]


def test_one_seed_one_grouping():
    train = labelled()
    one, same, other = (aggregated(train, seed=seed) for seed in (0, 0, 1))
    assert (one.groups.membership != same.groups.membership).nnz == 0
    assert (one.groups.membership != other.groups.membership).nnz > 0


def test_given_groups_are_kept_and_rows_in_no_group_keep_their_labels():
    train = labelled(2, rows=6)
    membership = csr_matrix(np.array([[1, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1]], dtype=np.float32))
    wrong = csr_matrix((2, train.labels), dtype=np.float32)
    after = aggregated(xmckit.Split(train.X, train.Y, groups=xmckit.Groups(membership, wrong)), method="given")
    truth = train.Y.toarray()
    assert np.array_equal(after.groups.labels.toarray(), membership.toarray().T @ truth)
    assert np.array_equal(after.Y[4].toarray(), train.Y[4].toarray())
    assert np.array_equal(after.Y[3].toarray().ravel() > 0, truth[[0, 1, 2, 3, 5]].any(axis=0))


def test_mistakes_are_reported():
    with pytest.raises(xmckit.UsageError, match="have no groups"):
        aggregated(labelled(), method="given")
    groups = xmckit.Groups(membership_matrix(np.zeros(37, dtype=np.int64)), csr_matrix((1, 9), dtype=np.float32))
    with pytest.raises(xmckit.UsageError, match="noise"):
        aggregated(xmckit.Split(labelled().X, labelled().Y, groups=groups), method="given", noise=0.5)
