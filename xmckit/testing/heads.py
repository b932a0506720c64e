"""The checks of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit import protocols
from xmckit.components.indexes import named_index
from xmckit.context import Context
from xmckit.data.model import Matrix, Split
from xmckit.errors import UsageError, counted
from xmckit.records import TopK
from xmckit.testing import common
from xmckit.testing.assertions import (
    NotApplicable,
    as_topk,
    assert_close,
    assert_csr,
    assert_ranking,
    assert_same_ranking,
    require,
    same_bits,
    skip_unless,
)
from xmckit.testing.brute_force import can_output
from xmckit.testing.decisions import assert_outputs, margins_of, refuse_thresholds
from xmckit.testing.problems import small_problem, with_weights
from xmckit.testing.rows import BY_ROW, LEARNING, LearningSubject, RowSubject
from xmckit.testing.subjects import covers

K = 5
HALVINGS = 20
FLAGS = (*protocols.IndexOptionalHead.__annotations__, *protocols.ProbabilisticHead.__annotations__)


class HeadSubject(RowSubject, LearningSubject):
    """A head, fitted on rows with weights. It ranks rows like those of training, and rows of noise."""

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
        """Return a new head, fitted on `train`, with validation rows if they have its labels and features."""
        if self.validation.labels == train.labels and self.validation.matrix.shape[1] == train.matrix.shape[1]:
            context = context.using(validation=self.validation)
        head = self.component()
        head.fit(train, indexes=self.indexes(train, context), context=context)
        return head

    def indexes(self, train: Split, context: Context) -> list[Any]:
        return [
            named_index(context.build("indexer", spec).build(train, context=context), dict(spec)["use"])
            for spec in self.indexers
        ]

    def make(self, context: Context) -> Any:
        return self.fit(self.train, context)

    def facts(self) -> Any:
        return self.ready.facts(small_problem(rows=30, seed=2).Y)

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        topk, sets, features = _ranking(ready, self.X), _label_sets(ready, self.X).tocoo(), ready.features(self.X)
        order = np.lexsort((sets.col, sets.row))
        answers = {
            "indices": topk.indices,
            "scores": topk.scores,
            "label rows": sets.row[order].astype(np.int64),
            "label columns": sets.col[order].astype(np.int64),
        }
        return answers if features is None else {**answers, "features": features}

    def assert_well_formed(self, ready: Any, X: Matrix) -> None:
        _assert_usable(ready, X, self.train.labels)

    def assert_accepts(self, train: Split) -> None:
        head = self.fit(train, self.context)
        _assert_usable(head, train.matrix, train.labels)
        _assert_usable(head, csr_matrix(train.matrix.shape, dtype=np.float32), train.labels)

    def assert_same_answers(self, parts: Sequence[Matrix], what: str) -> None:
        head, X = self.ready, self.X
        assert_same_ranking(_ranking(head, X), TopK.of_blocks([_ranking(head, part) for part in parts]), what)
        others = _label_sets(head, X) != csr_matrix(vstack([_label_sets(head, part) for part in parts]))
        few = others.shape[0] * others.shape[1] // 100  # labels that rounding decides
        require(others.nnz <= few, f"{what}: labels() differs in {others.nnz} places")
        vectors = head.features(X)
        if vectors is not None:
            assert_close(vectors, np.concatenate([head.features(part) for part in parts]), f"{what}: features()")


def ranking_is_well_formed(subject: HeadSubject) -> None:
    topk = subject.ready.predict(subject.X, K)
    assert_ranking(topk, rows=subject.X.shape[0], k=K, labels=subject.train.labels)
    require((topk.indices >= 0).any(), "no row has any label")


@covers(protocols.OnePassHead)
def one_pass_matches_two(subject: HeadSubject) -> None:
    for k in (1, K, subject.train.labels + 4):
        ranking, sets = subject.ready.rank_and_label(subject.X, k)
        expected = subject.ready.predict(subject.X, k)
        for name in ("indices", "scores"):
            same = same_bits(getattr(ranking, name), getattr(expected, name))
            require(same, f"rank_and_label() gives other {name} than predict(), k = {k}")
        require((sets != subject.ready.labels(subject.X)).nnz == 0, "rank_and_label() gives other sets than labels()")


@covers(protocols.RefittableHead)
def refit_uses_all_rows(subject: HeadSubject) -> None:
    """`refit` learns from the rows that it gets, not only from those of `fit`."""
    train = subject.train
    head = subject.fit(train.take(np.arange(0, train.rows, 2)), subject.context)
    before = _ranking(head, subject.X)
    head.refit(train, indexes=subject.indexes(train, subject.context), context=subject.context)
    _assert_usable(head, subject.X, train.labels)
    require(
        not same_bits(before.scores, _ranking(head, subject.X).scores), "refit() on twice the rows changed no score"
    )


@covers(protocols.ShortlistHead)
def outputs_are_candidates(subject: HeadSubject) -> str:
    head, X = subject.ready, subject.X
    candidates = head.candidates(X)
    skip_unless(candidates is not None, "candidates() is None: a row can get any label")
    assert_csr(candidates, (X.shape[0], subject.train.labels), "candidates()")
    listed = _entries(candidates)
    topk = _ranking(head, X)
    ranked = topk.indices >= 0
    among = np.take_along_axis(listed, np.maximum(topk.indices, 0), 1)
    require(among[ranked].all(), "predict() gives labels that are not candidates")
    require(not (_entries(_label_sets(head, X)) & ~listed).any(), "labels() gives labels that are not candidates")
    return counted(int(listed.sum()), "candidate")


@covers(protocols.ExtensibleHead)
def added_labels_are_ranked(subject: HeadSubject) -> str:
    """A head with two more labels knows all labels; one that cannot take them says so by a UsageError."""
    train, new = subject.train, small_problem(rows=6, labels=2, seed=4).Y
    X = subject.X[: new.shape[0]]
    head = subject.fit(train, subject.context)
    indexed = protocols.offers(head, protocols.IndexedHead) and len(head.index_labels()) > 0
    try:
        head.add_labels(X, new, train)
    except UsageError as error:
        return f"refused: {error}"
    labels = train.labels + new.shape[1]
    _assert_usable(head, subject.X, labels)
    ranked = np.unique(head.predict(subject.X, labels).indices)
    missing = sorted(set(range(labels)) - set(ranked.tolist()))
    require(indexed or not missing, f"predict() never gives {', '.join(map(str, missing))} of {labels} labels")
    return counted(labels, "label")


@covers(protocols.IndexedHead)
def index_labels_counts_labels(subject: HeadSubject) -> str:
    """One (name, number of labels) for each index that the head was given."""
    pairs = list(subject.ready.index_labels())
    require(len(pairs) == len(subject.indexers), f"{len(pairs)} indexes of {len(subject.indexers)}")
    for name, known in pairs:
        sound = isinstance(name, str) and isinstance(known, int) and 0 <= known <= subject.train.labels
        require(sound, f"({name!r}, {known!r}), expected a name and a number of labels up to {subject.train.labels}")
    return counted(len(pairs), "index", "indexes")


@covers(protocols.HeadWithHistory)
def history_is_json(subject: HeadSubject) -> str:
    """The report plots the fields of `protocols.TrainingEpoch`."""
    epochs = [epoch._asdict() for epoch in subject.ready.history]
    fields = list(protocols.TrainingEpoch.__annotations__)
    for epoch in epochs:
        require(list(epoch) == fields, f"an epoch has {', '.join(epoch)}, expected {', '.join(fields)}")
    common.assert_json(epochs, "history")
    return counted(len(epochs), "epoch")


@covers(protocols.IndexOptionalHead, protocols.ProbabilisticHead)
def flags_are_booleans(subject: HeadSubject) -> str:
    flags = {name: getattr(subject.ready, name) for name in FLAGS if hasattr(subject.ready, name)}
    for name, value in flags.items():
        require(isinstance(value, bool), f"`{name}` is {value!r}, expected True or False")
    return ", ".join(flags)


def large_k_is_padded(subject: HeadSubject) -> None:
    labels = subject.train.labels
    topk = subject.ready.predict(subject.X, labels + 4)
    assert_ranking(topk, rows=subject.X.shape[0], k=labels + 4, labels=labels)
    require((topk.indices[:, labels:] == -1).all(), "more labels than there are")
    best = TopK(topk.indices[:, :K], topk.scores[:, :K])
    assert_same_ranking(subject.ready.predict(subject.X, K), best, "with k above the number of labels")


def decision_matches_labels(subject: HeadSubject) -> str:
    """The sign or the order of W·x + b in float64 gives `labels`, up to float32 rounding."""
    head = subject.ready
    decision = _decision_and_features(head, subject.X)[0]
    X = csr_matrix(vstack([subject.X, _edges(head, subject.X)]))
    vectors, said = head.features(X), _label_sets(head, X).toarray() != 0
    among = _candidates(head, X)
    if among is None and decision.rule == "topk":
        refuse_thresholds(decision, vectors, said)
    return assert_outputs(decision, vectors, said, "labels()", among)


def decision_matches_ranking(subject: HeadSubject) -> str:
    """No label that W·x + b puts clearly higher is ranked lower or left out."""
    decision, vectors = _decision_and_features(subject.ready, subject.X)
    topk = _ranking(subject.ready, subject.X)
    labels = len(decision.W)
    margins, bound = margins_of(decision, vectors, np.empty((topk.rows, labels)), "predict()")
    filled = topk.indices >= 0
    ranked = np.take_along_axis(margins, np.maximum(topk.indices, 0), 1)
    doubt = np.take_along_axis(bound, np.maximum(topk.indices, 0), 1)
    most, least = np.where(filled, ranked + doubt, np.inf), np.where(filled, ranked - doubt, -np.inf)
    wrong = (least[:, 1:] > np.minimum.accumulate(most, axis=1)[:, :-1]).any(axis=1)
    left_out = np.ones_like(margins, dtype=bool)
    np.put_along_axis(left_out, np.where(filled, topk.indices, topk.indices[:, :1]), False, axis=1)
    among = _candidates(subject.ready, subject.X)
    if among is not None:
        left_out &= among
    wrong |= filled[:, -1] & (np.where(left_out, margins - bound, -np.inf).max(axis=1) > most.min(axis=1))
    require(not wrong.any(), f"predict() does not rank by W·x + b in {wrong.sum()} of {len(wrong)} rows")
    return counted(len(wrong), "row")


def replay_matches_decision(subject: HeadSubject) -> str:
    decision = subject.ready.decision()
    skip_unless(decision is not None and decision.replay is not None, "there is no replay")
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((25, decision.W.shape[1])).astype(np.float32)
    if decision.rule == "topk":
        counts = rng.integers(0, len(decision.W) + 1, len(vectors))
        sets = decision.replay(vectors, counts).toarray() != 0
        require(np.array_equal(sets.sum(axis=1), counts), "replay gives other numbers of labels than requested")
    else:
        sets = decision.replay(vectors).toarray() != 0
    return assert_outputs(decision, vectors, sets, "replay")


def structure_matches_decision(subject: HeadSubject) -> str:
    """Sets of few arcs can be output for any bias; without slack columns, sets of more arcs cannot."""
    decision = subject.ready.decision()
    skip_unless(decision is not None and decision.structure is not None, "there is no structure")
    structure, labels = decision.structure, len(decision.W)
    order = np.asarray(structure.order)
    require(sorted(order.tolist()) == list(range(labels)), "its order does not name every position once")
    width, expected = decision.W.shape[1], 2 * structure.degree + 1 + structure.slack
    require(width == expected, f"W has {width} columns, expected 2·degree + 1 + slack = {expected}")
    exact = structure.slack == 0 and (decision.b is None or np.ptp(decision.b) == 0)
    most = labels // 2 if exact else min(structure.degree, labels // 2)
    rng = np.random.default_rng(6)
    for arcs in np.repeat(np.arange(1, most + 1), 4):
        ends = np.sort(rng.choice(labels, 2 * arcs, replace=False))
        active = (np.searchsorted(ends, order, side="right") % 2).astype(bool)
        claimed, verb = (True, "can") if arcs <= structure.degree else (False, "cannot")
        message = f"by its structure {np.flatnonzero(active).tolist()} {verb} be output, by W·x + b not so"
        require(claimed == can_output(decision, active), message)
    return counted(4 * most, "label set")


class _FirstBatchSeen(Exception):
    """Stops training after its first batch; the message is the detail of the check."""


def loss_gradient_is_correct(subject: HeadSubject) -> str:
    """Training follows the gradient of the loss that it reports (heads on `xmckit.nn.TorchHead`)."""
    # the module's name is compared, because torch may not be installed
    on_torch = any(base.__module__ == "xmckit.nn.head" for base in subject.cls.__mro__)
    skip_unless(on_torch, "it is not an xmckit.nn.TorchHead")
    from xmckit.testing.gradients import assert_gradient, in_float64, perturb

    class Watched(subject.cls):  # type: ignore[name-defined]
        def batch_loss(self, network: Any, batch: Any, targets: Any, drop: Any, threads: Any) -> Any:
            network, batch, targets = perturb(in_float64(network)), in_float64(batch), in_float64(targets)

            def loss() -> Any:
                return super(Watched, self).batch_loss(network, batch, targets, lambda vectors: vectors, threads)

            raise _FirstBatchSeen(assert_gradient(loss, dict(network.named_parameters())))

    try:
        replace(subject, cls=Watched).fit(with_weights(small_problem(rows=12)), subject.context)
    except _FirstBatchSeen as seen:
        return str(seen)
    raise AssertionError("fit never computed the loss of a batch")


CHECKS = common.checks_in(globals(), *common.REPORTED, *BY_ROW, *LEARNING) + common.STORED


def _assert_usable(head: Any, X: Matrix, labels: int) -> None:
    assert_ranking(head.predict(X, K), rows=X.shape[0], k=K, labels=labels)
    assert_csr(head.labels(X), (X.shape[0], labels), "labels()")


def _ranking(head: Any, X: Matrix) -> TopK:
    return as_topk(head.predict(X, K))


def _label_sets(head: Any, X: Matrix) -> csr_matrix:
    sets: csr_matrix = head.labels(X)
    require(issparse(sets), f"labels() is a {type(sets).__name__}, expected a CSR matrix")
    return sets


def _edges(head: Any, X: csr_matrix) -> csr_matrix:
    """Return rows, between neighbouring rows of X, just before and just after a label changes, found by halving."""
    outputs = _label_sets(head, X).toarray() != 0
    differ = outputs[:-1] != outputs[1:]
    pairs = np.flatnonzero(differ.any(axis=1))
    labels = (differ[pairs] * np.random.default_rng(7).random((len(pairs), outputs.shape[1]))).argmax(axis=1)
    before, after = X[pairs].toarray(), X[pairs + 1].toarray()
    for _ in range(HALVINGS if len(pairs) else 0):
        middle = (before + after) / 2
        on = _label_sets(head, csr_matrix(middle)).toarray()[np.arange(len(pairs)), labels] != 0
        early = on == outputs[pairs, labels]
        before[early], after[~early] = middle[early], middle[~early]
    return csr_matrix(np.vstack([before, after]))


def _decision_and_features(head: Any, X: csr_matrix) -> tuple[Any, np.ndarray]:
    decision, vectors = head.decision(), head.features(X)
    if decision is None:
        require(vectors is None, "features() gives vectors although decision() is None")
        raise NotApplicable("decision() is None: not verifiable")
    require(vectors is not None, "features() is None although there is a decision")
    known = decision.inputs in (None, X.shape[1])
    require(known, f"`inputs` of the decision is {decision.inputs}, and rows have {X.shape[1]} features")
    return decision, vectors


def _candidates(head: Any, X: csr_matrix) -> np.ndarray | None:
    """Return the labels that a head behind an index may output; None for any."""
    candidates = head.candidates(X) if protocols.offers(head, protocols.ShortlistHead) else None
    return None if candidates is None else candidates.toarray() != 0


def _entries(matrix: csr_matrix) -> np.ndarray:
    """Return where `matrix` has an entry, also one of value 0."""
    return csr_matrix((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape).toarray() != 0
