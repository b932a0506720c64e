"""The checks of label preprocessors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import XmckitError
from xmckit.protocols import SupportsFacts
from xmckit.testing import common
from xmckit.testing.assertions import as_dense, assert_csr, differing, flat, require
from xmckit.testing.problems import small_problem, with_groups
from xmckit.testing.subjects import Subject, covers


class PreprocessorSubject(Subject):
    """A label preprocessor, given rows in groups."""

    kind = "label-preprocessor"
    loads = False  # what it saves is for commands

    @cached_property
    def train(self) -> Split:
        return with_groups(small_problem())

    def inputs(self) -> dict[str, Any]:
        return {"train": self.train}

    def make(self, context: Context) -> Any:
        stage = self.component()
        stage.apply(self.train, context=context)
        return stage

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return flat(self.apply(ready, self.train, context), "train")

    def apply(self, stage: Any, train: Split, context: Context | None = None) -> Split:
        changed = stage.apply(train, context=context or self.context)
        require(isinstance(changed, Split), f"apply() gave a {type(changed).__name__}, expected a Split")
        return changed


def rows_and_labels_are_kept(subject: PreprocessorSubject) -> str:
    return _assert_fitting(subject, subject.train)


def dense_matches_sparse(subject: PreprocessorSubject) -> str:
    sparse = subject.apply(subject.component(), subject.train)
    with as_dense(subject.train.matrix) as rows:
        other = subject.apply(subject.component(), replace(subject.train, X=rows))
    differ = abs(sparse.Y - other.Y).nnz
    require(differ == 0, f"dense rows: {differ} other labels")
    return f"{sparse.Y.nnz} labels"


def accepts_empty_rows(subject: PreprocessorSubject) -> str:
    return _assert_fitting(subject, with_groups(small_problem(empty=True)))


def accepts_single_label(subject: PreprocessorSubject) -> str:
    return _assert_fitting(subject, with_groups(small_problem(labels=1)))


def accepts_single_row(subject: PreprocessorSubject) -> str:
    try:
        return _assert_fitting(subject, with_groups(small_problem(rows=1)))
    except XmckitError as error:
        return f"refused: {error}"


facts_are_json = covers(SupportsFacts)(common.facts_are_json)


CHECKS: tuple[Callable[[PreprocessorSubject], str], ...] = (
    *common.FIRST,
    rows_and_labels_are_kept,
    dense_matches_sparse,
    accepts_empty_rows,
    accepts_single_label,
    accepts_single_row,
    facts_are_json,
    common.exhibits_can_be_stored,
    *common.ALWAYS,
    common.saved_without_pickle,
)


def _assert_fitting(subject: PreprocessorSubject, train: Split) -> str:
    changed = subject.apply(subject.component(), train)
    require(not differing(flat(train.X, "X"), flat(changed.X, "X")), "the features of the rows have changed")
    assert_csr(changed.Y, (train.rows, train.labels), "Y")
    changed.check("after apply")
    return f"{train.Y.nnz} labels before, {changed.Y.nnz} after"
