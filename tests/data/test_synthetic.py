from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data import synthetic
from xmckit.data.synthetic import Synthetic

SMALL = {"rows": 300, "test_rows": 80, "features": 200, "labels": 40, "topics": 5}


def read(seed: int = 0, **params):
    dataset = Synthetic(**{**SMALL, **params}).read(context=Context(seed=seed))
    dataset.check()
    return dataset


def topics_of(label_name: str) -> set[int]:
    return {int(number) for number in re.findall(r"topic(\d+)", label_name)}


def equal(a, b) -> bool:
    return a.shape == b.shape and all(
        np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices", "data")
    )


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    rows=st.integers(1, 60),
    features=st.integers(2, 50),
    labels=st.integers(1, 30),
    topics=st.integers(1, 30),
    labels_per_row=st.floats(1, 6),
    words_per_row=st.floats(1, 20),
    exponent=st.floats(0, 10),
    noise=st.floats(0, 1),
    bimodal=st.integers(0, 30),
    group_size=st.integers(0, 7),
)
def test_any_size_is_well_formed_or_refused(**params):
    possible = params["topics"] <= params["labels"] >= params["bimodal"] and (
        params["topics"] > 1 or params["bimodal"] == 0
    )
    if not possible:
        with pytest.raises(ValidationError):
            Synthetic(test_rows=3, **params)
        return
    dataset = Synthetic(test_rows=3, **params).read(context=Context())
    dataset.check()
    for split in (dataset.train, dataset.test):
        assert split.X.shape == (split.rows, params["features"])
        assert split.Y.shape == (split.rows, params["labels"])
        for matrix in (split.X, split.Y):
            unbelieved = csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
            unbelieved.check_format(full_check=True)
            assert unbelieved.has_canonical_format
            assert matrix.dtype == np.float32
            assert np.diff(matrix.indptr).min() >= 1
        assert (split.Y.data == 1).all()
        assert (split.X.data >= 1).all()
    assert len(dataset.info["bimodal_labels"]) == params["bimodal"]


def test_same_seed_same_data_and_other_seed_other_data():
    first, again, other = read(seed=1), read(seed=1), read(seed=2)
    assert equal(first.train.X, again.train.X)
    assert equal(first.test.Y, again.test.Y)
    assert first.label_names == again.label_names
    assert not equal(first.train.X, other.train.X)
    assert not equal(first.train.X[:80], first.test.X)
    print_of = Synthetic(**SMALL).fingerprint
    assert print_of(context=Context(seed=1)) == print_of(context=Context(seed=1))
    assert print_of(context=Context(seed=1)) != print_of(context=Context(seed=2))


def test_blocks_do_not_depend_on_each_other(monkeypatch):
    monkeypatch.setattr(synthetic, "ROWS_PER_BLOCK", 64)
    short, long = read(rows=128), read(rows=300)
    assert equal(long.train.X[:128], short.train.X)
    assert equal(long.train.Y[:128], short.train.Y)
    assert not equal(long.train.Y[:64], long.train.Y[64:128])


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.4])
def test_labels_follow_the_power_law(exponent):
    dataset = read(rows=30_000, labels=2_000, features=300, topics=20, words_per_row=2, exponent=exponent)
    counts = np.sort(np.asarray(dataset.train.Y.sum(axis=0)).ravel())[::-1]
    ranks = np.unique(np.geomspace(3, 200, 30).astype(int))
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.12)


@pytest.mark.parametrize("labels_per_row", [1, 2.5, 6])
@pytest.mark.parametrize("topics", [2, 100])
def test_labels_per_row_are_met_although_repeats_count_once(labels_per_row, topics):
    dataset = read(rows=20_000, labels=3_000, topics=topics, words_per_row=2, labels_per_row=labels_per_row)
    assert dataset.train.Y.nnz / dataset.train.rows == pytest.approx(labels_per_row, rel=0.03)
    assert dataset.info["labels_per_row"] == dataset.train.Y.nnz / dataset.train.rows


def test_words_per_row():
    dataset = read(rows=5_000, words_per_row=12.5)
    assert dataset.train.X.sum() / dataset.train.rows == pytest.approx(12.5, rel=0.03)


def test_labels_of_a_row_share_a_topic():
    dataset = read(bimodal=6, labels_per_row=4)
    for row in range(dataset.train.rows):
        topics = [topics_of(dataset.label(label)) for label in dataset.train.Y[row].indices]
        topical = [topic for topic in topics if topic]
        assert not topical or set.intersection(*topical)


def test_bimodal_labels_have_rows_in_both_of_their_topics():
    dataset = read(rows=6_000, labels=200, topics=8, bimodal=10, labels_per_row=4)
    planted = dict(zip(dataset.info["bimodal_labels"], dataset.info["bimodal_topics"], strict=True))
    assert len(planted) == 10
    two_topics = {label for label, name in enumerate(dataset.label_names) if len(topics_of(name)) == 2}
    assert two_topics == set(planted)
    Y = dataset.train.Y
    for label, topics in planted.items():
        assert set(topics) == topics_of(dataset.label(label))
        # the topic of a row is known from its labels that live in one topic only
        votes = [
            next(iter(topics_of(dataset.label(other))))
            for row in Y[:, label].nonzero()[0]
            for other in Y[row].indices
            if len(topics_of(dataset.label(other))) == 1
        ]
        share = np.mean(np.array(votes) == topics[0])
        assert set(votes) == set(topics)
        assert 0.2 < share < 0.8


def test_bimodal_meanings_have_different_words():
    dataset = read(rows=4_000, features=2_000, labels=100, topics=4, bimodal=5, labels_per_row=1, noise=0)
    for label, (first, second) in zip(dataset.info["bimodal_labels"], dataset.info["bimodal_topics"], strict=True):
        rows = dataset.train.Y[:, label].nonzero()[0]
        words = dataset.train.X[rows].toarray()
        unit = words / np.linalg.norm(words, axis=1, keepdims=True)
        # two meanings without noise: every row is close to one of two directions
        similar = unit @ unit[0] > 0.3
        assert 0.2 < similar.mean() < 0.8
        assert (unit[similar] @ unit[~similar].T).mean() < 0.1
        assert first != second


def test_groups_hold_the_counts_of_their_rows():
    dataset = read(group_size=4, labels_per_row=3)
    for split in (dataset.train, dataset.test):
        membership = split.groups.membership.toarray()
        assert (membership.sum(axis=1) == 1).all()
        assert set(membership.sum(axis=0)) == {4}
        np.testing.assert_array_equal(split.groups.labels.toarray(), membership.T @ split.Y.toarray())
    assert dataset.train.groups.labels.max() > 1
    assert equal(dataset.train.Y, read(labels_per_row=3).train.Y)
    assert read(rows=9, group_size=4).train.groups.membership.sum(axis=0).tolist() == [[4, 4, 1]]


def test_a_linear_model_beats_popularity_by_far():
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import normalize

    dataset = read(rows=2_000, test_rows=500, features=800, labels=100, topics=10)
    X, X_test = normalize(dataset.train.X).toarray(), normalize(dataset.test.X).toarray()
    scores = Ridge(alpha=0.5).fit(X, dataset.train.Y.toarray()).predict(X_test)
    popularity = np.asarray(dataset.train.Y.sum(axis=0)).ravel()
    truth = dataset.test.Y.toarray()

    def precision(scores, k):
        best = np.argsort(-np.broadcast_to(scores, truth.shape), axis=1)[:, :k]
        return np.take_along_axis(truth, best, axis=1).mean()

    assert precision(scores, 1) > 0.9
    assert precision(scores, 1) > 2 * precision(popularity, 1)
    assert precision(scores, 3) > 2 * precision(popularity, 3)

    shuffled = Ridge(alpha=0.5).fit(X, dataset.train.Y.toarray()[::-1]).predict(X_test)
    assert precision(shuffled, 1) < 0.6


def test_pure_noise_cannot_be_learnt():
    from sklearn.linear_model import Ridge

    dataset = read(rows=1_500, test_rows=500, noise=1)
    scores = (
        Ridge(alpha=5.0).fit(dataset.train.X.toarray(), dataset.train.Y.toarray()).predict(dataset.test.X.toarray())
    )
    truth = dataset.test.Y.toarray()
    popular = int(dataset.train.Y.sum(axis=0).argmax())
    assert truth[np.arange(500), scores.argmax(axis=1)].mean() < truth[:, popular].mean() + 0.05


def test_info_counts_unseen_and_general_labels():
    dataset = read(labels=200)
    unseen = np.flatnonzero(np.asarray(dataset.train.Y.sum(axis=0)).ravel() == 0)
    assert dataset.info["labels_without_training_rows"] == len(unseen)
    assert dataset.info["general_labels"] == sum(name.startswith("general/") for name in dataset.label_names)
    assert len(set(dataset.label_names)) == 200
    assert dataset.propensity == "other"


def test_more_labels_than_fit_a_dense_matrix():
    dataset = read(rows=2_000, test_rows=100, features=100_000, labels=670_000, topics=1_000)
    assert dataset.train.Y.shape == (2_000, 670_000)
    assert dataset.train.X.indices.max() < 100_000


@pytest.mark.parametrize("name", ["labels_per_row", "words_per_row", "features", "labels"])
def test_sizes_that_cannot_be_drawn_are_refused(name):
    with pytest.raises(ValidationError, match=f"{name}\n.* less than or equal to"):
        Synthetic(**{name: 2**40})
