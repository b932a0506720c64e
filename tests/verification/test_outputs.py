"""Outputs against decisions: heads that are refused, sets that only rounding gives, verdicts that deny an output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import xmckit
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import VerificationError
from xmckit.verification import outputs
from xmckit.verification.outputs import RealRows, sample_rows
from xmckit.verification.verify import verify


class LinearHead:
    """A float32 head over its features, of a rule and its k; `dropped` rows lose their best label."""

    def __init__(self, W, b=None, rule="sign", k=2, dropped=(), among=None):
        self.W, self.b = np.asarray(W, np.float32), None if b is None else np.asarray(b, np.float32)
        self.rule, self.k, self.dropped, self.among = rule, k, dropped, among

    def features(self, X):
        return np.asarray(X.toarray(), np.float32)

    def scores(self, X):
        return self.features(X) @ self.W.T + (np.float32(0) if self.b is None else self.b)

    def labels(self, X):
        scores = self.scores(X)
        if self.among is not None:
            scores = np.where(self.among[: len(scores)], scores, -np.inf)
        on = scores > 0
        if self.rule == "topk":
            on = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) < self.k
        for row in self.dropped:
            on[row, scores[row].argmax()] = False
        return csr_matrix(on.astype(np.float32))

    def decision(self):
        return xmckit.LinearDecision(self.W, self.b, self.rule)


class Shortlisted(LinearHead):
    def candidates(self, X):
        return csr_matrix(self.among[: X.shape[0]].astype(np.float32))


class Says:
    """A verifier that says the same of every label set."""

    def __init__(self, status, **more):
        self.status, self.more = status, more

    def verify(self, decision, assignments, *, candidates=None, context):
        return xmckit.Verdicts([xmckit.Verdict(self.status, **self.more)] * assignments.shape[0])


def problem(rows=40, labels=6, width=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((labels, width)), csr_matrix(rng.standard_normal((rows, width)).astype(np.float32))


def verified(tmp_path, head, X, Y=None, verifier=None, **options):
    sets = head.labels(X) if Y is None else Y
    real = RealRows("test", np.arange(X.shape[0]), {"mine": X})
    return verify(
        tmp_path, verifier or Says("unresolved"), [("mine", head)], Split(X=X, Y=sets), real=real, most=99,
        context=Context(), **options,
    )["results"]  # fmt: skip


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("cls", [LinearHead, Shortlisted])
def test_a_head_that_drops_a_label_in_one_row_is_refused(tmp_path, rule, cls):
    W, X = problem()
    among = np.random.default_rng(1).random((40, 6)) < 0.8 if cls is Shortlisted else None
    honest = verified(tmp_path, cls(W, rule=rule, among=among), X)
    assert {result["verifiable"] for result in honest} == {True}
    assert {result["checked"] for result in honest} == {40}
    assert len(honest) == (2 if cls is Shortlisted else 1)
    # the row with the largest score, of which the best label is dropped
    head = cls(W, rule=rule, among=among, dropped=[17])
    (result,) = verified(tmp_path, head, X, Y=cls(W, rule=rule, among=among).labels(X))
    if rule == "topk" and result["verifiable"]:
        pytest.fail("the label that was dropped is the lower of the two: choose another row")
    assert result["why"].startswith(
        "its decision is not what it outputs: labels() differs from W·x + b in 1 of 40 test"
    )
    assert (result["mismatch"]["check"], result["mismatch"]["row"]) == ("labels", 17)
    dropped = set(cls(W, rule=rule, among=among).labels(X)[17].indices) - set(head.labels(X)[17].indices)
    assert result["mismatch"]["label"] in dropped
    assert "verdicts" not in result


@pytest.mark.parametrize("excuse", [{"rounding": 1.0}, {"rounding": np.nan}, {"threshold": np.inf}, {"threshold": 1e9}])
def test_a_head_that_blames_rounding_is_refused(tmp_path, excuse):
    class Blames(LinearHead):
        def decision(self):
            return replace(super().decision(), **excuse)

    W, X = problem()
    (result,) = verified(tmp_path, Blames(W, dropped=range(0, 40, 4)), X)
    assert (result["verifiable"], result["mismatch"]["check"]) == (False, "rounding")


def test_a_refused_head_leaves_no_files(tmp_path):
    W, X = problem()
    heads = [("good", LinearHead(W)), ("bad", LinearHead(W, dropped=[3]))]
    real = RealRows("test", np.arange(40), {"good": X, "bad": X})
    split = Split(X=X, Y=heads[0][1].labels(X))
    summary = verify(tmp_path, Says("unresolved"), heads, split, real=real, most=99, context=Context())
    assert [result["verifiable"] for result in summary["results"]] == [True, False]
    assert set(summary["files"]) == {"assignments.npz", "decision-good.npz", "certificates.npz"}


def test_a_replay_that_differs_for_the_vectors_of_rows_is_refused(tmp_path):
    class Replays(LinearHead):
        def decision(self):
            scorer = LinearHead(-self.W)
            return replace(super().decision(), replay=lambda vectors: scorer.labels(csr_matrix(vectors)))

    W, X = problem()
    (result,) = verified(tmp_path, Replays(W), X)
    assert result["mismatch"]["check"] == "replay"


def test_a_replay_that_differs_for_witnesses_is_refused(tmp_path):
    class Replays(LinearHead):
        def decision(self):
            scorer = LinearHead(self.W)

            def replay(vectors):
                long = np.abs(vectors).max(axis=1, keepdims=True) > 100
                return scorer.labels(csr_matrix(np.where(long, -vectors, vectors)))

            return replace(super().decision(), replay=replay)

    W, X = problem()
    lost = Says("argmaxable", witness=np.full(4, 1e3), replayed=False)
    (result,) = verified(tmp_path, Replays(W), X, verifier=lost)
    assert (result["mismatch"]["check"], "in 40 of 40 witnesses" in result["why"]) == ("replay", True)
    # a witness that float32 cannot hold is lost to rounding, and proves nothing against the head
    lost = Says("argmaxable", witness=np.full(4, 1e60), replayed=False)
    (result,) = verified(tmp_path, Replays(W), X, verifier=lost)
    assert result["replayed"] == {"yes": 0, "no": 40, "not tried": 0}


def test_a_decision_without_vectors_is_refused(tmp_path):
    class Silent(LinearHead):
        def features(self, X):
            return None if self.hidden else super().features(X)

    W, X = problem()
    head = Silent(W)
    head.hidden = False
    sets = head.labels(X)
    head.hidden, head.labels = True, lambda X: sets[: X.shape[0]]
    (result,) = verified(tmp_path, head, X, Y=sets)
    assert result["mismatch"]["check"] == "features"


class AddsInTwoOrders(LinearHead):
    """Two labels of one row and one bias: the first adds from the left and the second from the right, in float32."""

    def scores(self, X):
        x = self.features(X)
        totals = []
        for terms in (x * self.W[0], (x * self.W[0])[:, ::-1]):
            total = np.zeros(len(x), np.float32)
            for column in range(terms.shape[1]):
                total = total + terms[:, column]
            totals.append(total)
        return np.stack(totals, axis=1)


ROUNDED = csr_matrix(np.array([[1e8, 1, -1e8], [1, 1, 1]], np.float32))  # 1e8 + 1 is 1e8 in float32


def test_a_set_that_only_rounding_gives_is_named(tmp_path):
    head = AddsInTwoOrders(np.ones((2, 3)))
    assert head.labels(ROUNDED).toarray().tolist() == [[0, 0], [1, 1]]
    head = AddsInTwoOrders([[1, 1, -1], [1, 1, -1]])
    X = csr_matrix(np.array([[1, 1e8, 1e8], [1, 1, 1]], np.float32))
    assert head.labels(X).toarray().tolist() == [[0, 1], [1, 1]]

    class ByRow:
        def verify(self, decision, assignments, *, candidates=None, context):
            equal = [assignments[row].nnz != 1 for row in range(assignments.shape[0])]
            return xmckit.Verdicts([xmckit.Verdict("argmaxable" if can else "unargmaxable") for can in equal])

    for options in ({}, {"predicted": True}):
        (result,) = verified(tmp_path, head, X, verifier=ByRow(), **options)
        assert (result["outputs"], result["by_rounding"]) == (2, 1)
        assert [verdict["by_rounding"] for verdict in result["verdicts"]] == [True, False]
    # the same set, of a row for which the head outputs another one, is just unargmaxable
    other = csr_matrix(np.array([[0, 1], [0, 1]], np.float32))
    (result,) = verified(tmp_path, head, X, Y=other, verifier=ByRow())
    assert (result["counts"]["unargmaxable"], result["outputs"], result["by_rounding"]) == (2, 1, 1)


@pytest.mark.parametrize("rule", ["sign", "topk"])
@pytest.mark.parametrize("cls", [LinearHead, Shortlisted])
def test_a_verdict_that_denies_an_output_is_an_error(tmp_path, rule, cls):
    W, X = problem()
    among = np.random.default_rng(1).random((40, 6)) < 0.8 if cls is Shortlisted else None
    head = cls(W, rule=rule, among=among)
    with pytest.raises(VerificationError, match=r"head mine and verifier Says .* on row 0 the head outputs the labels"):
        verified(tmp_path, head, X, verifier=Says("unargmaxable"))
    assert not (tmp_path / "verdicts.json").exists()


def test_exact_ties_count_as_outputs(tmp_path):
    """A logit of exactly 0 is off, and of equal logits the lower label wins: a verdict that denies it is wrong."""
    X = csr_matrix(np.array([[1.0, 2.0]], np.float32))
    for head in (LinearHead([[1, 0], [0, 0]]), LinearHead([[1, 1], [1, 1], [0, 0]], rule="topk", k=1)):
        assert head.labels(X).indices.tolist() == [0]
        with pytest.raises(VerificationError, match=r"outputs the labels \[0\]"):
            verified(tmp_path, head, X, verifier=Says("unargmaxable"))


def test_the_sample_is_spread_and_bounded(monkeypatch):
    assert sample_rows(0).tolist() == []
    assert sample_rows(3).tolist() == [0, 1, 2]
    many = sample_rows(100_000)
    assert (len(many), many[0], many[-1]) == (outputs.ROWS, 0, 99_999)
    real = RealRows("test", many, {})
    decision = xmckit.LinearDecision(np.zeros((4, 4)), None)
    assert len(many[real.affordable(decision)]) == len(many)
    monkeypatch.setattr(outputs, "PRODUCTS", 16 * 20)
    assert 16 <= len(many[real.affordable(decision)]) <= 20
