"""The checks of components that answer row by row, and of those that learn from rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from scipy.sparse import issparse

from xmckit.data.model import Matrix, Split
from xmckit.testing.assertions import as_dense, skip_unless
from xmckit.testing.problems import small_problem
from xmckit.testing.subjects import CheckFunction, Subject


class RowSubject(Subject):
    """A component whose answer to a row depends on no other row."""

    @property
    @abstractmethod
    def X(self) -> Matrix:
        """Return the rows to answer."""

    @abstractmethod
    def assert_well_formed(self, ready: Any, X: Matrix) -> str | None:
        """Check the form of the answers to rows."""

    @abstractmethod
    def assert_same_answers(self, parts: Sequence[Matrix], what: str) -> None:
        """Check that the rows of `X`, in parts, get the same answers as all of them together, up to rounding."""


class LearningSubject(Subject):
    """A component that learns from training rows."""

    refusals: ClassVar[tuple[type[Exception], ...]] = ()  # errors by which it may refuse a single row

    @abstractmethod
    def assert_accepts(self, train: Split) -> str | None:
        """Check that the component learns from `train` and then gives answers that are well formed."""


def dense_matches_sparse(subject: RowSubject) -> None:
    skip_unless(issparse(subject.X), "its queries are dense vectors only")
    with as_dense(subject.X) as rows:
        subject.assert_same_answers([rows], "dense rows")


def batches_do_not_change_results(subject: RowSubject) -> None:
    for size in (1, 7):
        parts = [subject.X[start : start + size] for start in range(0, subject.X.shape[0], size)]
        subject.assert_same_answers(parts, f"{size} rows at a time")


def accepts_no_rows(subject: RowSubject) -> str | None:
    return subject.assert_well_formed(subject.ready, subject.X[:0])


def accepts_empty_rows(subject: LearningSubject) -> str | None:
    return subject.assert_accepts(small_problem(empty=True))


def accepts_single_label(subject: LearningSubject) -> str | None:
    return subject.assert_accepts(small_problem(labels=1))


def accepts_single_row(subject: LearningSubject) -> str | None:
    try:
        return subject.assert_accepts(small_problem(rows=1))
    except subject.refusals as error:
        return f"refused: {error}"


BY_ROW: tuple[CheckFunction, ...] = (dense_matches_sparse, batches_do_not_change_results, accepts_no_rows)
LEARNING: tuple[CheckFunction, ...] = (accepts_empty_rows, accepts_single_label, accepts_single_row)
