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
from xmckit.decisions import dense_pattern, scores_and_bounds
from xmckit.errors import UsageError, counted, one_line
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
from xmckit.testing.decisions import assert_outputs, refuse_thresholds
from xmckit.testing.problems import small_problem, with_weights
from xmckit.testing.results import CheckResult
from xmckit.testing.rows import BY_ROW, LEARNING, LearningSubject, RowSubject
from xmckit.testing.subjects import CheckFunction, covers

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
    listed = dense_pattern(candidates)
    topk = _ranking(head, X)
    ranked = topk.indices >= 0
    among = np.take_along_axis(listed, np.maximum(topk.indices, 0), 1)
    require(among[ranked].all(), "predict() gives labels that are not candidates")
    require(not (dense_pattern(_label_sets(head, X)) & ~listed).any(), "labels() gives labels that are not candidates")
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
    """The sign or the order of W·x + b in float64 gives `labels`, up to the rounding of the scorer.

    It does so for rows like those of training, in one batch with the rows of training, for rows of noise, for rows on
    both sides of where a label changes, and for sums and multiples of rows, which have more features and labels.
    """
    head, ordinary = subject.ready, subject.X
    decision = _decision_and_features(head, ordinary)[0]
    X = csr_matrix(vstack([ordinary, subject.train.matrix, _edges(head, ordinary), _extremes(ordinary)]))
    vectors, output = head.features(X), _label_sets(head, X)
    among = _candidates(head, X)
    if among is None and decision.rule == "topk":
        refuse_thresholds(decision, vectors, output)
    return assert_outputs(decision, vectors, output, "labels()", among, ordinary=ordinary.shape[0])


def decision_matches_ranking(subject: HeadSubject) -> str:
    """No label that W·x + b puts clearly higher is ranked lower or left out."""
    decision, vectors = _decision_and_features(subject.ready, subject.X)
    topk = _ranking(subject.ready, subject.X)
    margins, bound = scores_and_bounds(decision, vectors)
    require(margins.shape[0] == topk.rows, f"features() gives {margins.shape[0]} vectors for {topk.rows} rows")
    filled = topk.indices >= 0
    ranked = np.take_along_axis(margins, np.maximum(topk.indices, 0), 1)
    doubt = np.take_along_axis(bound, np.maximum(topk.indices, 0), 1)
    most, least = np.where(filled, ranked + doubt, np.inf), np.where(filled, ranked - doubt, -np.inf)
    wrong = (least[:, 1:] > np.minimum.accumulate(most, axis=1)[:, :-1]).any(axis=1)
    left_out = np.ones_like(margins, dtype=bool)
    np.put_along_axis(left_out, np.where(filled, topk.indices, topk.indices[:, :1]), False, axis=1)
    among = _candidates(subject.ready, subject.X)
    if among is not None:
        left_out &= dense_pattern(among)
    wrong |= filled[:, -1] & (np.where(left_out, margins - bound, -np.inf).max(axis=1) > most.min(axis=1))
    rows = np.flatnonzero(wrong)
    first = f", first in row {rows[0]}" if len(rows) else ""
    require(not len(rows), f"predict() does not rank by W·x + b in {len(rows)} of {len(wrong)} rows{first}")
    return counted(len(wrong), "row")


def replay_matches_decision(subject: HeadSubject) -> str:
    """`replay` follows W·x + b for any vectors: of random directions, and of lengths from 10⁻³ to 10³."""
    decision = _replayable(subject.ready)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((25, decision.W.shape[1]))
    vectors = np.concatenate([vectors, 1e3 * vectors, 1e-3 * vectors]).astype(np.float32)
    counts = rng.integers(0, len(decision.W) + 1, len(vectors))
    return assert_outputs(decision, vectors, _replay(decision, vectors, counts), "replay", ordinary=len(vectors))


def replay_matches_labels(subject: HeadSubject) -> str:
    """For the vectors of rows, `replay` gives what `labels` gives, up to rounding, among all labels or candidates."""
    head, X = subject.ready, csr_matrix(vstack([subject.X, _extremes(subject.X)]))
    decision = _replayable(head)
    vectors, output = head.features(X), _label_sets(head, X)
    replayed = _replay(decision, vectors, np.diff(output.indptr))
    assert_outputs(decision, vectors, output, "labels()", _candidates(head, X))
    return assert_outputs(decision, vectors, replayed, "replay of the rows' vectors", ordinary=subject.X.shape[0])


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


DECISION_CHECKS: tuple[CheckFunction, ...] = (
    decision_matches_labels,
    decision_matches_ranking,
    replay_matches_decision,
    replay_matches_labels,
    structure_matches_decision,
)


class TrainedHead(HeadSubject):
    """A head that was trained elsewhere, with rows that it can label."""

    def __init__(self, head: Any, X: csr_matrix, train: Split, context: Context):
        super().__init__("head", type(head), {}, context)
        vars(self).update(ready=head, X=X, train=train)


def check_decision(head: Any, X: csr_matrix, train: Split, context: Context) -> list[CheckResult]:
    """Run the checks of decisions on a trained head, with rows that it can label and some rows of its training."""
    subject, results = TrainedHead(head, X, train, context), []
    for check in DECISION_CHECKS:
        try:
            results.append(CheckResult(check.__name__, "passed", check(subject) or ""))
        except NotApplicable as why:
            results.append(CheckResult(check.__name__, "skipped", str(why)))
        except Exception as error:  # noqa: BLE001  # any error of a component is a result
            detail = str(error) if isinstance(error, AssertionError) else one_line(error)
            results.append(CheckResult(check.__name__, "failed", detail, error))
    return results


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
    expected = (X.shape[0], decision.W.shape[1])
    require(vectors.shape == expected, f"features() is {vectors.shape}, expected {expected}, the rows and columns of W")
    return decision, vectors


def _replayable(head: Any) -> Any:
    decision = head.decision()
    skip_unless(decision is not None and decision.replay is not None, "there is no replay")
    return decision


def _replay(decision: Any, vectors: np.ndarray, counts: np.ndarray) -> csr_matrix:
    """Return the sets that `replay` gives; under `topk`, those of `counts` labels."""
    if decision.rule != "topk":
        return decision.replay(vectors)
    output = decision.replay(vectors, counts)
    sizes = (output != 0).sum(axis=1)
    require(np.array_equal(np.ravel(sizes), counts), "replay gives other numbers of labels than requested")
    return output


def _extremes(X: csr_matrix) -> csr_matrix:
    """Return sums of neighbouring rows, multiples of rows, and a row without features."""
    sums = X + X[np.roll(np.arange(X.shape[0]), 1)]
    return csr_matrix(vstack([sums, 100 * X, X / 100, 0 * X[:1]]), dtype=np.float32)


def _candidates(head: Any, X: csr_matrix) -> csr_matrix | None:
    """Return the labels that a head behind an index may output; None for any."""
    return head.candidates(X) if protocols.offers(head, protocols.ShortlistHead) else None
