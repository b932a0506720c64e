"""A small correct head, and heads that each break one rule of the contract."""

from __future__ import annotations

import pickle
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix, issparse

import xmckit
from xmckit import nn, store
from xmckit.sparse.topk import topk_dense


class ToyParams(xmckit.Params):
    threshold: float = Field(0.1, description="Cosine above which a label is output.")


class CentroidHead(xmckit.Configured):
    """Scores a label by the cosine of a row with the label's mean row, in float32."""

    Params = ToyParams
    needs = frozenset()

    def fit(self, train, *, indexes=(), context):
        sums = np.asarray((train.Y.T @ train.matrix).todense(), dtype=np.float32)
        self.W = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), np.float32(1e-9))

    def features(self, X):
        dense = np.asarray(X.toarray() if issparse(X) else X, dtype=np.float32)
        return dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), np.float32(1e-9))

    def scores(self, X):
        return self.features(X) @ self.W.T

    def predict(self, X, k, *, groups=None):
        return topk_dense(self.scores(X), k)

    def labels(self, X):
        return csr_matrix(self.scores(X) > np.float32(self.params.threshold), dtype=np.float32)

    def decision(self):
        def replay(vectors):
            return csr_matrix(vectors @ self.W.T > np.float32(self.params.threshold), dtype=np.float32)

        return xmckit.LinearDecision(self.W, np.full(len(self.W), -self.params.threshold, np.float32), replay=replay)

    def save(self, folder):
        super().save(folder)
        store.write_arrays(folder / "W.npz", {"W": self.W})

    @classmethod
    def load(cls, folder, *, context):
        head = super().load(folder, context=context)
        head.W = store.read_arrays(folder / "W.npz", "W")["W"]
        return head


class HasNoNeeds(CentroidHead):
    needs = None


class TakesAnyParameter(CentroidHead):
    def __init__(self, **params):
        super().__init__(**{name: value for name, value in params.items() if name == "threshold"})


class WantsNoGroups(CentroidHead):
    def predict(self, X, k):
        return super().predict(X, k)


class RanksNothing(CentroidHead):
    def predict(self, X, k, *, groups=None):
        return topk_dense(np.empty((X.shape[0], 0), np.float32), k)


class RanksInLists(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        return xmckit.TopK(topk.indices.tolist(), topk.scores.tolist())


class RanksInFloat64(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        return xmckit.TopK(topk.indices, topk.scores.astype(np.float64))


class RanksWorstFirst(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        return xmckit.TopK(topk.indices[:, ::-1], topk.scores[:, ::-1])


class RepeatsLabels(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        topk.indices[:, 1:2], topk.scores[:, 1:2] = topk.indices[:, :1], topk.scores[:, :1]
        return topk


class LabelsAnotherWayInOnePass(CentroidHead):
    def rank_and_label(self, X, k):
        return self.predict(X, k), csr_matrix(self.scores(X) > 0, dtype=np.float32)


class RanksAnotherWayInOnePass(CentroidHead):
    def rank_and_label(self, X, k):
        return topk_dense(2 * self.scores(X), k), self.labels(X)


class KeepsWhatItLearned(CentroidHead):
    def refit(self, train, *, indexes=(), context):
        """As if all was said."""


class ForgetsItsWeights(CentroidHead):
    def refit(self, train, *, indexes=(), context):
        self.W = self.W[:0]


class OutputsMoreThanItsCandidates(CentroidHead):
    def candidates(self, X):
        return csr_matrix((X.shape[0], len(self.W)), dtype=np.float32)


class KeepsTheOldLabels(CentroidHead):
    def add_labels(self, X, Y, train, *, listed_by=None):
        """As if there were none."""


class CountsTooManyLabels(CentroidHead):
    def index_labels(self):
        return [("tree", len(self.W) + 1)]


class KeepsLossesOnly(CentroidHead):
    history = [0.3, 0.2]


class IsPerhapsProbabilistic(CentroidHead):
    probabilistic = "perhaps"


class TellsArraysOfTheTest(CentroidHead):
    def facts(self, truth):
        return {"labels": truth.indices}


class ShowsNumbers(CentroidHead):
    def exhibits(self):
        return [3]


class CutsOffAtTheLabels(CentroidHead):
    def predict(self, X, k, *, groups=None):
        return super().predict(X, min(k, len(self.W)))


class RanksDifferentlyForLargeK(CentroidHead):
    def predict(self, X, k, *, groups=None):
        return topk_dense(-self.scores(X) if k > 10 else self.scores(X), k)


class UsesItsOwnSeed(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        super().fit(train, context=context)
        self.W = self.W + np.random.default_rng().normal(0, 1e-3, self.W.shape).astype(np.float32)


class DependsOnWorkers(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        super().fit(train, context=context)
        self.W = self.W * np.float32(1 + context.workers * 1e-6)


class NormalisesInPlace(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        train.matrix.data *= 0.5
        super().fit(train, context=context)


class ChangesRowsOfPredict(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        if issparse(X) and X.nnz:
            X.data[0] += 1
        return topk


class DrawsFromTheSharedGenerator(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        np.random.rand()  # the break itself
        super().fit(train, indexes=indexes, context=context)


class DrawsFromTorchsGenerator(CentroidHead):
    def predict(self, X, k, *, groups=None):
        import torch

        torch.rand(1)
        return super().predict(X, k)


class GivesLabelsAsPairs(CentroidHead):
    def labels(self, X):
        return super().labels(X).tocoo()


class WantsSparseRows(CentroidHead):
    def features(self, X):
        return super().features(X.tocsr())


class ChangesDenseRows(CentroidHead):
    def predict(self, X, k, *, groups=None):
        topk = super().predict(X, k)
        if not issparse(X):
            X *= 2
        return topk


class LabelsSparseRowsOnly(CentroidHead):
    def labels(self, X):
        return super().labels(X).multiply(issparse(X)).tocsr()


class LabelsAboveTheMean(CentroidHead):
    def labels(self, X):
        return csr_matrix(self.scores(X) > self.scores(X).mean(), dtype=np.float32)


class CentresEachBatch(CentroidHead):
    def features(self, X):
        vectors = super().features(X)
        return vectors - vectors.mean(axis=0) if len(vectors) else vectors


class NeedsARow(CentroidHead):
    def predict(self, X, k, *, groups=None):
        parts = [super(NeedsARow, self).predict(X[row : row + 1], k) for row in range(X.shape[0])]
        return xmckit.TopK(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("indices", "scores")))


class DividesByTheNorm(CentroidHead):
    def features(self, X):
        dense = np.asarray(X.toarray() if issparse(X) else X, dtype=np.float32)
        with np.errstate(invalid="ignore"):
            return dense / np.linalg.norm(dense, axis=1, keepdims=True)


class NeedsTwoLabels(CentroidHead):
    def predict(self, X, k, *, groups=None):
        np.partition(self.W, 1, axis=0)
        return super().predict(X, k)


class NeedsTwoRows(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        first, second = train.matrix[0], train.matrix[1]
        assert first.shape == second.shape
        super().fit(train, context=context)


class ForgetsItsThreshold(CentroidHead):
    def decision(self):
        decision = super().decision()
        return xmckit.LinearDecision(decision.W, None, replay=decision.replay)


class OutputsTheBestTwo(CentroidHead):
    """A correct head of the other rule."""

    def labels(self, X):
        best = self.predict(X, 2).indices
        rows, places = np.nonzero(best >= 0)
        values = np.ones(len(rows), np.float32)
        return csr_matrix((values, (rows, best[rows, places])), (X.shape[0], len(self.W)))

    def decision(self):
        return xmckit.LinearDecision(self.W, None, "topk")


class RanksByAnotherMatrix(OutputsTheBestTwo):
    def decision(self):
        return xmckit.LinearDecision(self.W[::-1].copy(), None, "topk")


class CallsThresholdsARanking(CentroidHead):
    def decision(self):
        return xmckit.LinearDecision(self.W, None, "topk")


class RoundsItsDecision(CentroidHead):
    def decision(self):
        decision = super().decision()
        return xmckit.LinearDecision(decision.W, decision.b * np.float32(1.001))


class MiscountsItsInputs(CentroidHead):
    def decision(self):
        decision = super().decision()
        return xmckit.LinearDecision(decision.W, decision.b, inputs=3)


class ClaimsAStructure(CentroidHead):
    def decision(self):
        W, b = super().decision().W[:, :3], np.zeros(len(self.W), np.float32)
        return xmckit.LinearDecision(W, b, structure=xmckit.Alternating(1, 0, np.arange(len(W))))


class RanksByItself(CentroidHead):
    """Its sets are those of the decision, its ranking is not."""

    def predict(self, X, k, *, groups=None):
        return topk_dense(-self.scores(X), k)


class FollowsAnotherSlope(nn.TorchHead):
    def loss(self, classifier, x, targets, threads):
        logits = self.logits(classifier, x, threads)
        return (2 * logits - logits.detach()).square().mean()


class HasFeaturesWithoutDecision(CentroidHead):
    def decision(self):
        return None


class ReplaysSomethingElse(CentroidHead):
    def decision(self):
        decision = super().decision()
        return xmckit.LinearDecision(decision.W, decision.b, replay=lambda vectors: decision.replay(-vectors))


class ReplaysUnitVectorsOtherwise(CentroidHead):
    """Its replay follows the decision for any vector but those of rows."""

    def decision(self):
        decision = super().decision()

        def replay(vectors):
            unit = np.abs(np.linalg.norm(vectors, axis=1) - 1) < 1e-3
            return decision.replay(np.where(unit, -1, 1)[:, None] * vectors)

        return xmckit.LinearDecision(decision.W, decision.b, replay=replay)


class DropsALabel(CentroidHead):
    """Neither its decision nor its replay says that labels() drops a label."""

    def dropped(self, X):
        return np.arange(X.shape[0])

    def labels(self, X):
        sets = super().labels(X).tolil()
        for row in self.dropped(X):
            sets[row, sets.rows[row][:1]] = 0
        return sets.tocsr()


class DropsALabelOfLongRows(DropsALabel):
    def dropped(self, X):
        return np.flatnonzero(np.diff(csr_matrix(X).indptr) > 12)


class DropsALabelInLargeBatches(DropsALabel):
    def dropped(self, X):
        return np.arange(100, X.shape[0])


class BlamesRounding(DropsALabel):
    def decision(self):
        return replace(super().decision(), rounding=1.0)


class BlamesItsThreshold(DropsALabel):
    def decision(self):
        return replace(super().decision(), threshold=1e9)


class RoundsWhenSaved(CentroidHead):
    def save(self, folder):
        xmckit.Configured.save(self, folder)
        store.write_arrays(folder / "W.npz", {"W": self.W.astype(np.float16).astype(np.float32)})


class ForgetsItsParameters(CentroidHead):
    def save(self, folder):
        super().save(folder)
        store.write_json(folder / "params.json", {})


class Pickles(CentroidHead):
    def save(self, folder):
        super().save(folder)
        np.save(folder / "more.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


class KeepsItsPath(CentroidHead):
    def save(self, folder):
        super().save(folder)
        store.write_json(folder / "place.json", str(folder / "W.npz"))

    @classmethod
    def load(cls, folder, *, context):
        head = super().load(folder, context=context)
        head.W = store.read_arrays(Path(store.read_json(folder / "place.json")), "W")["W"]
        return head


class SavesBeside(CentroidHead):
    def save(self, folder):
        super().save(folder)
        store.write_arrays(folder.parent / "W.npz", {"W": self.W})


class PicklesInside(CentroidHead):
    def save(self, folder):
        super().save(folder)
        store.write_json(folder / "more.json", pickle.dumps(self.W, protocol=0).decode("latin-1"))

    @classmethod
    def load(cls, folder, *, context):
        head = super().load(folder, context=context)
        head.W = pickle.loads(store.read_json(folder / "more.json").encode("latin-1"))  # noqa: S301  # the break itself
        return head


class Leaves(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        raise SystemExit(0)


class StartsPrograms(CentroidHead):
    def fit(self, train, *, indexes=(), context):
        subprocess.run(["true"], check=True)
        super().fit(train, context=context)


class BreaksTies(CentroidHead):
    """Correct: which of several labels with the same score come first depends on k."""

    def scores(self, X):
        return np.round(super().features(X) @ self.W.T, 1)

    def predict(self, X, k, *, groups=None):
        scores = self.scores(X)
        if k < scores.shape[1]:
            return super().predict(X, k)
        found = topk_dense(scores[:, ::-1], k)
        return xmckit.TopK(np.where(found.indices < 0, -1, scores.shape[1] - 1 - found.indices), found.scores)

    def features(self, X):
        return None

    def decision(self):
        return None


class IgnoresDamage(CentroidHead):
    @classmethod
    def load(cls, folder, *, context):
        try:
            return super().load(folder, context=context)
        except xmckit.StorageError:
            head = cls()
            head.W = np.zeros((11, 43), dtype=np.float32)
            return head
