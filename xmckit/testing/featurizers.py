"""The checks of featurizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.errors import XmckitError
from xmckit.testing import common
from xmckit.testing.assertions import as_dense, assert_close, flat, require
from xmckit.testing.problems import small_problem, with_texts
from xmckit.testing.subjects import Subject


class FeaturizerSubject(Subject):
    """A featurizer for rows that have texts and a matrix."""

    kind = "featurizer"

    @cached_property
    def train(self) -> Split:
        return with_texts(small_problem())

    @cached_property
    def test(self) -> Split:
        return with_texts(small_problem(rows=30, seed=2, empty=True))

    def inputs(self) -> dict[str, Any]:
        return {"train": self.train, "test": self.test}

    def fit(self, train: Split, context: Context) -> Any:
        featurizer = self.component()
        featurizer.fit(train, context=context)
        return featurizer

    def make(self, context: Context) -> Any:
        return self.fit(self.train, context)

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        splits = {"train": self.train, "test": self.test}
        return flat({name: ready.transform(split, context=context) for name, split in splits.items()}, "")

    def transform(self, split: Split) -> Matrix:
        return _sound(self.ready.transform(split, context=self.context), split.rows)


def matrix_is_well_formed(subject: FeaturizerSubject) -> str:
    train, test = subject.transform(subject.train), subject.transform(subject.test)
    require(train.shape[1] == test.shape[1], f"{train.shape[1]} columns for train, {test.shape[1]} for test")
    require(issparse(train) == issparse(test), "one of train and test is sparse, the other is dense")
    return f"{train.shape[1]} columns"


def labels_are_not_used(subject: FeaturizerSubject) -> str:
    unknown = replace(subject.test, Y=csr_matrix((subject.test.rows, 0), dtype=np.float32))
    assert_close(subject.transform(subject.test), subject.transform(unknown), "rows without labels")
    return ""


def dense_matches_sparse(subject: FeaturizerSubject) -> str:
    with as_dense(subject.test.matrix) as rows:
        found = subject.transform(replace(subject.test, X=rows))
    assert_close(subject.transform(subject.test), found, "dense rows")
    return ""


def batches_do_not_change_results(subject: FeaturizerSubject) -> str:
    whole = subject.transform(subject.test)
    for size in (1, 7):
        starts = range(0, subject.test.rows, size)
        rows = [np.arange(start, min(start + size, subject.test.rows)) for start in starts]
        parts = [subject.transform(subject.test.take(part)) for part in rows]
        joined = csr_matrix(vstack(parts)) if issparse(whole) else np.vstack(parts)
        assert_close(whole, joined, f"{size} rows at a time")
    return ""


def accepts_no_rows(subject: FeaturizerSubject) -> str:
    subject.transform(subject.test.take(np.arange(0)))
    return ""


def accepts_rows_without_features(subject: FeaturizerSubject) -> str:
    train = with_texts(small_problem(empty=True))
    _sound(subject.fit(train, subject.context).transform(train, context=subject.context), train.rows)
    return ""


def accepts_single_row(subject: FeaturizerSubject) -> str:
    train = subject.train.take(np.arange(1))
    try:
        featurizer = subject.fit(train, subject.context)
    except XmckitError as error:
        return f"refused: {error}"
    _sound(featurizer.transform(train, context=subject.context), 1)
    return ""


CHECKS: tuple[Callable[[FeaturizerSubject], str], ...] = (
    *common.FIRST,
    matrix_is_well_formed,
    labels_are_not_used,
    dense_matches_sparse,
    batches_do_not_change_results,
    accepts_no_rows,
    accepts_rows_without_features,
    accepts_single_row,
    *common.ALWAYS,
    *common.STORED,
)


def _sound(X: Any, rows: int) -> Matrix:
    sound = isinstance(X, np.ndarray) or (issparse(X) and X.format == "csr")
    require(sound, f"transform() is a {type(X).__name__}, expected a CSR matrix or an array")
    require(X.dtype == np.float32, f"transform() is {X.dtype}, expected float32")
    require(X.shape[0] == rows, f"transform() has {X.shape[0]} rows, expected {rows}")
    require(np.isfinite(X.data if issparse(X) else X).all(), "transform() has a value that is not finite")
    return X
