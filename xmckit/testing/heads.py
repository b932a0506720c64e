"""What every head is held to besides the checks of all components."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.handover import named_index
from xmckit.protocols import TopK
from xmckit.testing import common
from xmckit.testing.assertions import (
    NotApplicable,
    assert_csr,
    assert_ranking,
    assert_same_ranking,
    counted,
    require,
    same_bits,
)
from xmckit.testing.problems import small_problem, with_weights
from xmckit.testing.subjects import Subject

K = 5
FLOAT32_UNIT = 2.0**-24


class HeadSubject(Subject):
    """A head, fitted on rows with weights; rows to rank are like those it knows, and rows of noise."""

    kind = "head"

    @cached_property
    def train(self) -> Split:
        return with_weights(small_problem())

    @cached_property
    def validation(self) -> Split:
        return small_problem(rows=30, seed=1)

    @cached_property
    def X(self) -> csr_matrix:
        known = small_problem(rows=30, seed=2).matrix
        rng = np.random.default_rng(5)
        noise = rng.standard_normal((10, known.shape[1])) * (rng.random((10, known.shape[1])) < 0.4)
        return csr_matrix(vstack([known, csr_matrix(noise.astype(np.float32))]))

    def inputs(self) -> dict[str, Any]:
        return {"train": self.train, "validation": self.validation, "X of predict": self.X}

    def fit(self, train: Split, context: Context) -> Any:
        """A new head, fitted on `train`; rows that fit its labels and features are there for validation."""
        if self.validation.labels == train.labels and self.validation.matrix.shape[1] == train.matrix.shape[1]:
            context = context.using(validation=self.validation)
        head = self.component()
        indexes = [
            named_index(context.build("indexer", spec).build(train, context=context), dict(spec)["use"])
            for spec in self.indexers
        ]
        head.fit(train, indexes=indexes, context=context)
        return head

    def made(self, context: Context) -> Any:
        return self.fit(self.train, context)

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        topk, sets, features = ready.predict(self.X, K), ready.labels(self.X).tocoo(), ready.features(self.X)
        order = np.lexsort((sets.col, sets.row))
        answers = {
            "indices": topk.indices,
            "scores": topk.scores,
            "label rows": sets.row[order].astype(np.int64),
            "label columns": sets.col[order].astype(np.int64),
        }
        return answers if features is None else {**answers, "features": features}


def ranks_in_proper_form(subject: HeadSubject) -> str:
    assert_ranking(subject.ready.predict(subject.X, K), rows=subject.X.shape[0], k=K, labels=subject.train.labels)
    return ""


def answers_the_same_in_one_pass(subject: HeadSubject) -> str:
    if not hasattr(subject.cls, "rank_and_label"):
        raise NotApplicable("it does not offer rank_and_label()")
    for k in (1, K, subject.train.labels + 4):
        ranking, sets = subject.ready.rank_and_label(subject.X, k)
        expected = subject.ready.predict(subject.X, k)
        for name in ("indices", "scores"):
            same = same_bits(getattr(ranking, name), getattr(expected, name))
            require(same, f"rank_and_label() gives other {name} than predict(), k = {k}")
        require((sets != subject.ready.labels(subject.X)).nnz == 0, "rank_and_label() gives other sets than labels()")
    return ""


def pads_when_k_exceeds_the_labels(subject: HeadSubject) -> str:
    labels = subject.train.labels
    topk = subject.ready.predict(subject.X, labels + 4)
    assert_ranking(topk, rows=subject.X.shape[0], k=labels + 4, labels=labels)
    require((topk.indices[:, labels:] == -1).all(), "more labels than there are")
    shorter = subject.ready.predict(subject.X, K)
    require(np.array_equal(shorter.indices, topk.indices[:, :K]), "the best labels change with k")
    return ""


def takes_dense_and_sparse_rows_alike(subject: HeadSubject) -> str:
    sparse, dense = subject.ready.predict(subject.X, K), subject.ready.predict(subject.X.toarray(), K)
    assert_same_ranking(sparse, dense, "dense rows")
    return ""


def does_not_care_how_rows_are_batched(subject: HeadSubject) -> str:
    X = subject.X
    whole = subject.ready.predict(X, K)
    for size in (1, 7):
        parts = [subject.ready.predict(X[start : start + size], K) for start in range(0, X.shape[0], size)]
        joined = TopK(np.concatenate([p.indices for p in parts]), np.concatenate([p.scores for p in parts]))
        assert_same_ranking(whole, joined, f"{size} rows at a time")
    return ""


def handles_no_rows_at_all(subject: HeadSubject) -> str:
    _assert_usable(subject.ready, subject.X[:0], subject.train.labels)
    return ""


def handles_rows_without_features_or_labels(subject: HeadSubject) -> str:
    train = small_problem(empty=True)
    head = subject.fit(train, subject.context)
    _assert_usable(head, train.matrix, train.labels)
    _assert_usable(head, csr_matrix(train.matrix.shape, dtype=np.float32), train.labels)
    return ""


def handles_a_single_label(subject: HeadSubject) -> str:
    train = small_problem(labels=1)
    _assert_usable(subject.fit(train, subject.context), train.matrix, 1)
    return ""


def handles_a_single_row(subject: HeadSubject) -> str:
    train = small_problem(rows=1)
    _assert_usable(subject.fit(train, subject.context), train.matrix, train.labels)
    return ""


def says_by_its_decision_what_its_labels_are(subject: HeadSubject) -> str:
    """W·x + b in float64, by its sign or its order, gives `labels`, but for what float32 rounding may decide."""
    decision, vectors = _decided(subject)
    said = subject.ready.labels(subject.X).toarray() != 0
    if _candidates(subject) is not None:
        return _compare_within(subject, decision, vectors, said)
    if decision.rule == "topk":
        return _compare_with_order(decision, vectors, said, "labels()")
    return _compare_with_margins(decision, vectors, said, "labels()")


def ranks_as_its_decision_says(subject: HeadSubject) -> str:
    """No label stands behind one, or is left out for one, that W·x + b puts clearly below it."""
    decision, vectors = _decided(subject)
    topk = subject.ready.predict(subject.X, K)
    labels = len(decision.W)
    margins, bound = _margins(decision, vectors, np.empty((topk.rows, labels)), "predict()")
    filled = topk.indices >= 0
    ranked = np.take_along_axis(margins, np.maximum(topk.indices, 0), 1)
    doubt = np.take_along_axis(bound, np.maximum(topk.indices, 0), 1)
    most, least = np.where(filled, ranked + doubt, np.inf), np.where(filled, ranked - doubt, -np.inf)
    wrong = (least[:, 1:] > np.minimum.accumulate(most, axis=1)[:, :-1]).any(axis=1)
    left_out = np.ones_like(margins, dtype=bool)
    np.put_along_axis(left_out, np.where(filled, topk.indices, topk.indices[:, :1]), False, axis=1)
    among = _candidates(subject)
    if among is not None:
        left_out &= among
    wrong |= filled[:, -1] & (np.where(left_out, margins - bound, -np.inf).max(axis=1) > most.min(axis=1))
    require(not wrong.any(), f"predict() does not rank by W·x + b in {wrong.sum()} of {len(wrong)} rows")
    return counted(len(wrong), "row")


def replays_vectors_through_its_own_scorer(subject: HeadSubject) -> str:
    decision = subject.ready.decision()
    if decision is None or decision.replay is None:
        raise NotApplicable("there is no replay")
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((25, decision.W.shape[1])).astype(np.float32)
    if decision.rule == "topk":
        counts = rng.integers(0, len(decision.W) + 1, len(vectors))
        sets = decision.replay(vectors, counts).toarray() != 0
        require(np.array_equal(sets.sum(axis=1), counts), "replay gives other numbers of labels than asked for")
        return _compare_with_order(decision, vectors, sets, "replay")
    return _compare_with_margins(decision, vectors, decision.replay(vectors).toarray() != 0, "replay")


class _Looked(Exception):
    """Training was stopped: its first batch is all that was wanted."""


def has_the_slopes_of_its_loss(subject: HeadSubject) -> str:
    """The gradient that training follows is the one of the loss that it reports (heads on `xmckit.nn.TorchHead`)."""
    if not _on_torch(subject.cls):
        raise NotApplicable("it is no xmckit.nn.TorchHead")
    from xmckit.testing.slopes import assert_slopes, doubled, shaken

    found: list[str] = []

    class Watched(subject.cls):  # type: ignore[name-defined]
        def batch_loss(self, network: Any, batch: Any, targets: Any, drop: Any, threads: Any) -> Any:
            network, batch, targets = shaken(doubled(network)), doubled(batch), doubled(targets)

            def loss() -> Any:
                return super(Watched, self).batch_loss(network, batch, targets, lambda vectors: vectors, threads)

            found.append(assert_slopes(loss, dict(network.named_parameters())))
            raise _Looked

    watched = HeadSubject(Watched, subject.params, subject.context, indexers=subject.indexers)
    try:
        watched.fit(with_weights(small_problem(rows=12)), subject.context)
    except _Looked:
        return found[0]
    raise AssertionError("fit never asked for the loss of a batch")


def _on_torch(cls: type) -> bool:
    """Whether it is a `TorchHead`, asked without importing torch for heads that do without."""
    return any(base.__module__ == "xmckit.nn.head" for base in cls.__mro__)


CHECKS: tuple[Callable[[HeadSubject], str], ...] = (
    *common.FIRST,
    ranks_in_proper_form,
    answers_the_same_in_one_pass,
    pads_when_k_exceeds_the_labels,
    takes_dense_and_sparse_rows_alike,
    does_not_care_how_rows_are_batched,
    handles_no_rows_at_all,
    handles_rows_without_features_or_labels,
    handles_a_single_label,
    handles_a_single_row,
    says_by_its_decision_what_its_labels_are,
    ranks_as_its_decision_says,
    replays_vectors_through_its_own_scorer,
    has_the_slopes_of_its_loss,
    *common.ALWAYS,
    *common.STORED,
)


def _assert_usable(head: Any, X: Matrix, labels: int) -> None:
    assert_ranking(head.predict(X, K), rows=X.shape[0], k=K, labels=labels)
    assert_csr(head.labels(X), (X.shape[0], labels), "labels()")


def _decided(subject: HeadSubject) -> tuple[Any, np.ndarray]:
    decision, vectors = subject.ready.decision(), subject.ready.features(subject.X)
    if decision is None:
        require(vectors is None, "features() gives vectors although decision() is None")
        raise NotApplicable("decision() is None: not verifiable")
    require(vectors is not None, "features() is None although there is a decision")
    return decision, vectors


def _candidates(subject: HeadSubject) -> np.ndarray | None:
    """The labels that a head behind an index may output; None for any."""
    asked = getattr(subject.ready, "candidates", None)
    found = asked(subject.X) if asked is not None else None
    return None if found is None else found.toarray() != 0


def _margins(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """W·x + b in float64, and how far a float32 scorer may be from it."""
    W, x = decision.W.astype(np.float64), vectors.astype(np.float64)
    b = np.zeros(len(W)) if decision.b is None else decision.b.astype(np.float64)
    margins = x @ W.T + b
    require(margins.shape == said.shape, f"the decision is about {margins.shape}, {what} about {said.shape}")
    terms = W.shape[1] + 2
    gamma = terms * FLOAT32_UNIT / (1 - terms * FLOAT32_UNIT)
    return margins, gamma * (np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(W, axis=1) + np.abs(b))


def _compare_with_order(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    """No label that is left out scores clearly more than one that is output."""
    margins, bound = _margins(decision, vectors, said, what)
    lowest = np.where(said, margins + bound, np.inf).min(axis=1)
    highest = np.where(said, -np.inf, margins - bound).max(axis=1)
    wrong = np.flatnonzero(highest > lowest)
    require(
        not len(wrong),
        f"{what} are not the labels that W·x + b ranks first in {len(wrong)} of {len(said)} rows, "
        f"first in row {wrong[0] if len(wrong) else 0}",
    )
    return f"{len(said)} rows, {said.sum()} labels output"


def _compare_with_margins(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    margins, bound = _margins(decision, vectors, said, what)
    differ = (margins > 0) != said
    clear = differ & (np.abs(margins) > bound)
    if clear.any():
        row, label = np.argwhere(clear)[0]
        raise AssertionError(
            f"W·x + b and {what} differ in {clear.sum()} of {said.size} entries, first at row {row}, label {label}: "
            f"margin {margins[row, label]:.4g}, rounding explains at most {bound[row, label]:.2g}"
        )
    return f"{said.size} entries, {said.sum()} of them output, {differ.sum()} left to rounding"


def _compare_within(subject: HeadSubject, decision: Any, vectors: np.ndarray, said: np.ndarray) -> str:
    """The same among the candidates; no other label is output."""
    among = _candidates(subject)
    assert among is not None
    require(not (said & ~among).any(), "labels() gives labels that are no candidates")
    margins, bound = _margins(decision, vectors, said, "labels()")
    if decision.rule == "topk":
        lowest = np.where(said, margins + bound, np.inf).min(axis=1)
        wrong = (np.where(among & ~said, margins - bound, -np.inf).max(axis=1) > lowest)[:, None]
    else:
        wrong = among & ((margins > 0) != said) & (np.abs(margins) > bound)
    require(not wrong.any(), f"W·x + b and labels() differ among the candidates in {wrong.any(axis=1).sum()} rows")
    return f"{among.sum()} candidates, {said.sum()} of them output"
