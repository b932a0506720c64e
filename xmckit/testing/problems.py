"""Small learnable data for the checks: every label has features of its own, rows have noise features besides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data.model import Dataset, Groups, Split, as_csr

FEATURES_PER_LABEL = 3


def small_problem(*, rows: int = 80, labels: int = 11, empty: bool = False, seed: int = 0) -> Split:
    """Return rows with one to three labels; with `empty`, every fourth row has no feature and every fifth no label."""
    rng = np.random.default_rng(seed)
    Y = np.zeros((rows, labels), dtype=np.float32)
    for row in range(rows):
        # the first rows take the labels in turn, so that every label has a row
        Y[row, row % labels] = 1
        Y[row, rng.integers(0, labels, size=rng.integers(0, 3))] = 1
    X = np.repeat(Y, FEATURES_PER_LABEL, axis=1) * (rng.random((rows, labels * FEATURES_PER_LABEL)) < 0.8)
    noise = (rng.random((rows, 10)) < 0.2).astype(np.float32)
    X = np.hstack([X, noise]) * rng.uniform(0.5, 1.0, (rows, X.shape[1] + 10))
    if empty:
        X[::4] = 0
        Y[::5] = 0
    return Split(as_csr(X.astype(np.float32)), csr_matrix(Y))


def with_groups(train: Split, *, size: int = 4) -> Split:
    """Put neighbouring rows into groups, which hide the row that a label belongs to."""
    rows = np.arange(train.rows)
    membership = csr_matrix((np.ones(len(rows), np.float32), (rows, rows // size)))
    given = as_csr(membership.T @ train.Y)
    ones = csr_matrix((np.ones(given.nnz, np.float32), given.indices, given.indptr), given.shape)
    return replace(train, Y=as_csr(membership @ ones), groups=Groups(membership, given))


def with_weights(train: Split) -> Split:
    """Give every label of every row the weight 0.5."""
    weights = np.full(train.Y.nnz, 0.5, dtype=np.float32)
    return replace(train, weights=csr_matrix((weights, train.Y.indices, train.Y.indptr), train.Y.shape))


def with_texts(split: Split) -> Split:
    """Add a text to each row, with one word for each of its features."""
    X = as_csr(split.matrix)
    ends = zip(X.indptr, X.indptr[1:], strict=False)
    texts = [" ".join(f"word{column}" for column in X.indices[start:end]) for start, end in ends]
    return replace(split, texts=texts)


def small_dataset(*, texts: bool = False) -> Dataset:
    """Return train and test rows with a feature matrix, or with texts instead; one test row has no label."""
    train, test = small_problem(rows=24), small_problem(rows=10, seed=3)
    unlabelled = test.Y.toarray()
    unlabelled[1] = 0
    test = replace(test, Y=csr_matrix(unlabelled))
    if texts:
        train, test = (replace(with_texts(split), X=None) for split in (train, test))
    return Dataset("small", train, test, label_names=[f"label {n}" for n in range(train.labels)])
