"""The checks of metrics."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.errors import XmckitError, counted
from xmckit.records import Evaluation, TopK
from xmckit.testing import common
from xmckit.testing.assertions import flat, require
from xmckit.testing.problems import small_problem
from xmckit.testing.subjects import Subject

K = 8
TOLERANCE = 1e-6  # some metrics sum in float32


def small_evaluation(*, rows: int = 40, labels: int = 11, k: int = K) -> Evaluation:
    """Return a ranking that is often right, sets, true labels (some rows have none), and filtered pairs."""
    rng = np.random.default_rng(4)
    truth = small_problem(rows=rows, labels=labels).Y.toarray()
    if rows > 1:
        truth[3::9] = 0
    scores = (truth + rng.normal(0, 0.6, truth.shape)).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)
    wide = k - order.shape[1]
    topk = TopK(
        np.pad(order, ((0, 0), (0, wide)), constant_values=-1),
        np.pad(np.take_along_axis(scores, order, 1), ((0, 0), (0, wide)), constant_values=-np.inf),
    )
    filtered = csr_matrix((rng.random(truth.shape) < 0.25).astype(np.float32))
    counts = truth.sum(axis=0).astype(np.int64)
    sets = csr_matrix((scores > 0.5).astype(np.float32))
    return Evaluation(topk, csr_matrix(truth), counts, rows, (0.55, 1.5), sets=sets, filtered=filtered)


class MetricSubject(Subject):
    """A metric with one evaluation."""

    @cached_property
    def evaluation(self) -> Evaluation:
        return small_evaluation()

    def inputs(self) -> dict[str, Any]:
        return {"evaluation": self.evaluation}

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return flat(ready.compute(replace(self.evaluation, workers=context.workers)), "")

    def values(self, evaluation: Evaluation) -> Mapping[str, float]:
        values = self.ready.compute(evaluation)
        require(isinstance(values, Mapping), f"compute() is a {type(values).__name__}, expected values by name")
        for name, value in values.items():
            require(isinstance(name, str), f"the name {name!r} is no text")
            sound = isinstance(value, (int, float, np.integer, np.floating)) and np.isfinite(value)
            require(sound, f"{name} is {value!r}, expected a finite number")
        return values


def values_are_finite(subject: MetricSubject) -> str:
    values = subject.values(subject.evaluation)
    require(bool(values), "no value for a head that ranks and outputs sets")
    return ", ".join(values)


def row_order_does_not_change_values(subject: MetricSubject) -> str:
    given, order = subject.evaluation, np.random.default_rng(0).permutation(subject.evaluation.truth.shape[0])
    topk = TopK(given.topk.indices[order], given.topk.scores[order])
    others = {name: getattr(given, name)[order] for name in ("truth", "sets", "filtered")}
    return _assert_same(subject, given, replace(given, topk=topk, **others), "rows in another order")


def padding_does_not_change_values(subject: MetricSubject) -> str:
    labels = subject.evaluation.truth.shape[1]
    return _assert_same(subject, small_evaluation(k=labels), small_evaluation(k=labels + 4), "k above the labels")


def filtered_pairs_do_not_count(subject: MetricSubject) -> str:
    """A filtered pair does not change the values, whether it is true and whether it is output."""
    given, detail = subject.evaluation, ""
    truth, sets, filtered = (getattr(given, name).toarray() for name in ("truth", "sets", "filtered"))
    # a row whose last true label changes may be left out as a whole
    hidden = (filtered != 0) & ((truth != 0) & (filtered == 0)).any(axis=1)[:, None]
    for true, output in itertools.product((np.float32(0), np.float32(1)), repeat=2):
        changed = {"truth": np.where(hidden, true, truth), "sets": np.where(hidden, output, sets)}
        other = replace(given, **{name: csr_matrix(matrix) for name, matrix in changed.items()})
        detail = _assert_same(subject, given, other, "filtered pairs")
    return detail


def accepts_missing_sets(subject: MetricSubject) -> str:
    return counted(len(subject.values(replace(subject.evaluation, sets=None, filtered=None))), "value")


def accepts_single_row(subject: MetricSubject) -> str:
    return counted(len(subject.values(small_evaluation(rows=1))), "value")


def accepts_single_label(subject: MetricSubject) -> str:
    return counted(len(subject.values(small_evaluation(labels=1))), "value")


def accepts_rows_without_labels(subject: MetricSubject) -> str:
    given = subject.evaluation
    nothing = csr_matrix(given.truth.shape, dtype=np.float32)
    try:
        return counted(len(subject.values(replace(given, truth=nothing))), "value")
    except XmckitError as error:
        return f"refused: {error}"


CHECKS = common.checks_in(globals())


def _assert_same(subject: MetricSubject, one: Evaluation, other: Evaluation, what: str) -> str:
    first, second = subject.values(one), subject.values(other)
    require(first.keys() == second.keys(), f"{what}: values {', '.join(first.keys() ^ second.keys())} come or go")
    moved = [name for name in first if not np.isclose(first[name], second[name], rtol=TOLERANCE, atol=TOLERANCE)]
    require(not moved, f"{what}: {', '.join(f'{name} {first[name]} becomes {second[name]}' for name in moved)}")
    return counted(len(first), "value")
