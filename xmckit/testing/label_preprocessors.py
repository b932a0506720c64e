"""The checks of label preprocessors."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import XmckitError
from xmckit.testing import common
from xmckit.testing.assertions import as_dense, assert_csr, differing, flat, require
from xmckit.testing.problems import small_problem, with_groups
from xmckit.testing.rows import LEARNING, LearningSubject


class PreprocessorSubject(LearningSubject):
    """A label preprocessor, given rows in groups."""

    refusals = (XmckitError,)
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

    def assert_accepts(self, train: Split) -> str:
        train = with_groups(train)
        changed = self.apply(self.component(), train)
        require(not differing(flat(train.X, "X"), flat(changed.X, "X")), "the features of the rows have changed")
        assert_csr(changed.Y, (train.rows, train.labels), "Y")
        changed.check("after apply")
        return f"{train.Y.nnz} labels before, {changed.Y.nnz} after"


def rows_and_labels_are_kept(subject: PreprocessorSubject) -> str:
    return subject.assert_accepts(small_problem())


def dense_matches_sparse(subject: PreprocessorSubject) -> str:
    sparse = subject.apply(subject.component(), subject.train)
    with as_dense(subject.train.matrix) as rows:
        other = subject.apply(subject.component(), replace(subject.train, X=rows))
    differ = abs(sparse.Y - other.Y).nnz
    require(differ == 0, f"dense rows: {differ} other labels")
    return f"{sparse.Y.nnz} labels"


CHECKS = (*common.checks_in(globals(), *LEARNING, *common.REPORTED), common.saved_without_pickle)
