"""Facts about data sets against counts made by hand and by brute force."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from test_npz_folder import everything

from xmckit.data.describe import describe
from xmckit.data.model import Dataset, Groups, Split


def csr(rows):
    return csr_matrix(np.array(rows, dtype=np.float32))


def test_counts_made_by_hand():
    train_Y = csr([[1, 0, 0, 0]] * 6 + [[0, 1, 0, 0], [0, 0, 0, 0]])
    train_X = csr([[1, 0]] * 5 + [[0, 0], [0, 2], [3, 3]])
    membership = csr([[1, 0], [1, 0], [1, 1], [0, 0], [0, 1], [0, 1], [0, 1], [0, 1]])
    train = Split(X=train_X, Y=train_Y, groups=Groups(membership, csr_matrix(membership.T @ train_Y)))
    test = Split(X=csr([[1, 0], [0, 0], [5, 5], [0, 2]]), Y=csr([[1, 1, 0, 0], [0, 0, 1, 0], [0] * 4, [1, 0, 0, 0]]))
    facts = describe(Dataset("d", train, test, info={"licence": "free"}))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["labels"] == {
        "count": 4, "named": False, "features": None,
        "train_rows_per_label": {"mean": 7 / 4, "median": 0.5, "max": 6},
        "without_train_row": 2, "without_train_row_but_in_test": 1,
        "tail_means_train_rows_at_most": 5, "tail_share": 0.75, "test_occurrences_on_tail": 0.5,
    }  # fmt: skip
    assert facts["train"] == {
        "rows": 8, "features": {"X": {"columns": 2, "sparse": True, "nonzeros_per_row": 1.0}}, "texts": False,
        "labels_per_row": {"mean": 7 / 8, "max": 1}, "rows_without_labels": 1, "rows_without_features": 1,
        "filtered_pairs": 0,
        "groups": {
            "count": 2, "rows_per_group": {"mean": 4.0, "max": 5}, "labels_per_group": {"mean": 1.5, "max": 2},
            "rows_in_no_group": 1, "rows_in_several_groups": 1,
        },
    }  # fmt: skip
    assert facts["test"]["rows_without_labels"] == 1
    assert facts["duplicates"] == {
        "compared_by": "features", "train_rows_seen_before_in_train": 4, "test_rows_seen_in_train": 2,
    }  # fmt: skip


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["sparse", "dense", "blocks", "texts"]))
def test_duplicates_by_brute_force(seed, kind):
    rng = np.random.default_rng(seed)
    splits, rows = [], []
    for size in (30, 20):
        X = rng.integers(-1, 2, (size, 3)).astype(np.float32) * (rng.random((size, 1)) < 0.8)
        rows.append([tuple(row) for row in X.tolist()])
        features = {"sparse": csr_matrix(X), "dense": X, "blocks": {"a": csr_matrix(X[:, :1]), "b": X[:, 1:]}}
        texts = [" ".join(map(str, row)) if any(row) else " " for row in X.tolist()] if kind == "texts" else None
        splits.append(Split(X=features.get(kind), Y=csr_matrix(np.ones((size, 1), dtype=np.float32)), texts=texts))
    train, test = ([row for row in part if any(row)] for part in rows)
    facts = describe(Dataset("d", *splits))
    assert facts["duplicates"]["train_rows_seen_before_in_train"] == len(train) - len(set(train))
    assert facts["duplicates"]["test_rows_seen_in_train"] == sum(row in set(train) for row in test)
    assert facts["train"]["rows_without_features"] == 30 - len(train)


def test_long_dense_blocks_are_hashed_like_sparse_ones(monkeypatch):
    monkeypatch.setattr("xmckit.data.describe._DENSE_ROWS", 7)
    X = np.random.default_rng(0).integers(0, 3, (40, 3)).astype(np.float32)
    Y = csr_matrix(np.ones((40, 1), dtype=np.float32))
    dense, sparse = (describe(Dataset("d", Split(X=x, Y=Y), Split(X=x, Y=Y))) for x in (X, csr_matrix(X)))
    assert dense["duplicates"] == sparse["duplicates"]
    assert sparse["duplicates"]["train_rows_seen_before_in_train"] > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_everything_is_json(seed):
    facts = describe(everything(seed))
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts["train"]["features"]) == {"X", "words", "dense"}
