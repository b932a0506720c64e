"""The checks of featurizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.errors import XmckitError
from xmckit.testing import common
from xmckit.testing.assertions import assert_close, flat, require
from xmckit.testing.problems import small_problem, with_texts
from xmckit.testing.rows import BY_ROW, LearningSubject, RowSubject, accepts_single_row


class FeaturizerSubject(RowSubject, LearningSubject):
    """A featurizer for rows that have texts and a matrix."""

    refusals = (XmckitError,)

    @cached_property
    def train(self) -> Split:
        return with_texts(small_problem())

    @cached_property
    def test(self) -> Split:
        return with_texts(small_problem(rows=30, seed=2, empty=True))

    @property
    def X(self) -> csr_matrix:
        return self.test.matrix

    def inputs(self) -> dict[str, Any]:
        return {"train": self.train, "test": self.test}

    def fit(self, train: Split, context: Context) -> Any:
        featurizer = self.component()
        featurizer.fit(train, context=context)
        return featurizer

    def make(self, context: Context) -> Any:
        return self.fit(self.train, context)

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return flat({name: ready.transform(split, context=context) for name, split in self.inputs().items()}, "")

    def transform(self, split: Split, featurizer: Any = None) -> Matrix:
        """Return the features of a split, after checking their form."""
        X = (featurizer or self.ready).transform(split, context=self.context)
        sound = isinstance(X, np.ndarray) or (issparse(X) and X.format == "csr")
        require(sound, f"transform() is a {type(X).__name__}, expected a CSR matrix or an array")
        require(X.dtype == np.float32, f"transform() is {X.dtype}, expected float32")
        require(X.shape[0] == split.rows, f"transform() has {X.shape[0]} rows, expected {split.rows}")
        require(np.isfinite(X.data if issparse(X) else X).all(), "transform() has a value that is not finite")
        return X

    def assert_well_formed(self, ready: Any, X: Matrix) -> None:
        self.transform(self.test.take(np.arange(X.shape[0])), ready)

    def assert_accepts(self, train: Split) -> None:
        train = with_texts(train)
        self.transform(train, self.fit(train, self.context))

    def assert_same_answers(self, parts: Sequence[Matrix], what: str) -> None:
        whole, start = self.transform(self.test), 0
        found: list[Any] = []
        for part in parts:
            rows = self.test.take(np.arange(start, start + part.shape[0]))
            found.append(self.transform(replace(rows, X=part)))
            start += part.shape[0]
        # dense rows may give a dense matrix, and sparse rows a sparse one
        assert_close(whole, np.vstack([X.toarray() if issparse(X) else X for X in found]), what)


def matrix_is_well_formed(subject: FeaturizerSubject) -> str:
    train, test = subject.transform(subject.train), subject.transform(subject.test)
    require(train.shape[1] == test.shape[1], f"{train.shape[1]} columns for train, {test.shape[1]} for test")
    require(issparse(train) == issparse(test), "one of train and test is sparse, the other is dense")
    return f"{train.shape[1]} columns"


def labels_are_not_used(subject: FeaturizerSubject) -> None:
    unknown = replace(subject.test, Y=csr_matrix((subject.test.rows, 0), dtype=np.float32))
    assert_close(subject.transform(subject.test), subject.transform(unknown), "rows without labels")


def accepts_rows_without_features(subject: FeaturizerSubject) -> None:
    subject.assert_accepts(small_problem(empty=True))


CHECKS = common.checks_in(globals(), *BY_ROW, accepts_single_row) + common.STORED
