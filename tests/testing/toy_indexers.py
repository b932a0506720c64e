"""A small correct indexer, and indexers that each break one rule of the contract."""

from __future__ import annotations

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix, issparse, vstack

import xmckit
from xmckit import store
from xmckit.sparse.topk import topk_dense


class CentroidIndex:
    query_space = "input"

    def __init__(self, centroids):
        self.centroids = centroids

    def scores(self, Q):
        return np.asarray(Q @ self.centroids.T, dtype=np.float32)

    def shortlist(self, Q, k):
        best = topk_dense(self.scores(Q), min(k, len(self.centroids)))
        rows, places = np.nonzero(best.indices >= 0)
        found = (best.scores[rows, places], (rows, best.indices[rows, places]))
        return csr_matrix(found, shape=(Q.shape[0], len(self.centroids)))

    def save(self, folder):
        store.write_arrays(folder / "centroids.npz", {"centroids": self.centroids})


class CentroidIndexer(xmckit.Configured):
    """Labels stand at the mean of their rows."""

    provides = frozenset({"shortlist"})
    index = CentroidIndex

    class Params(xmckit.Params):
        scale: float = Field(1.0, gt=0, description="A factor of all scores.")

    def build(self, train, *, context):
        counts = np.maximum(np.asarray(train.Y.sum(axis=0)).ravel(), 1)
        sums = np.asarray((train.Y.T @ train.matrix).todense(), dtype=np.float32)
        return self.index(sums / counts[:, None].astype(np.float32) * np.float32(self.params.scale))

    @classmethod
    def load(cls, folder, *, context):
        return cls.index(store.read_arrays(folder / "centroids.npz", "centroids")["centroids"])


class PromisesClusters(CentroidIndexer):
    provides = frozenset({"shortlist", "clusters"})


class _InOneCluster(CentroidIndex):
    label_of = np.zeros(3, dtype=int)
    clusters = csr_matrix(np.ones((3, 1)))


class LeavesLabelsOut(CentroidIndexer):
    provides = frozenset({"shortlist", "clusters"})
    index = _InOneCluster


class _Stubborn(CentroidIndex):
    query_space = "head"

    def scores(self, Q):
        return np.asarray(Q @ self.centroids[:, : Q.shape[1]].T, dtype=np.float32)

    def rebuild(self, label_vectors):
        """As if nothing had moved."""


class KeepsItsVectors(CentroidIndexer):
    provides = frozenset({"shortlist", "rebuild"})
    index = _Stubborn


class _Closed(CentroidIndex):
    def add_labels(self, X, Y):
        """As if there were none."""


class ListsNoNewLabels(CentroidIndexer):
    index = _Closed


class _Telling(CentroidIndex):
    def facts(self):
        return {"centroids": self.centroids}

    def exhibits(self):
        return "a picture"


class TellsCentroids(CentroidIndexer):
    index = _Telling


class HasNoProvides(CentroidIndexer):
    provides = ["shortlist"]


class _Nothing(CentroidIndex):
    def shortlist(self, Q, k):
        return csr_matrix((Q.shape[0], len(self.centroids)), dtype=np.float32)


class ListsNothing(CentroidIndexer):
    index = _Nothing


class _TooMany(CentroidIndex):
    def shortlist(self, Q, k):
        return super().shortlist(Q, k + 1)


class ListsTooMany(CentroidIndexer):
    index = _TooMany


class _Wide(CentroidIndex):
    def shortlist(self, Q, k):
        found = super().shortlist(Q, k)
        wide = max(k, found.shape[1])
        return csr_matrix((found.data, found.indices, found.indptr), shape=(found.shape[0], wide))


class WidensForLargeK(CentroidIndexer):
    index = _Wide


class _Sparse(CentroidIndex):
    def scores(self, Q):
        return super().scores(Q if issparse(Q) else 2 * Q)


class ScoresDenseRowsOtherwise(CentroidIndexer):
    index = _Sparse


class _Centred(CentroidIndex):
    def scores(self, Q):
        scores = super().scores(Q)
        return scores - scores.mean(axis=0) if len(scores) > 1 else scores


class CentresScores(CentroidIndexer):
    index = _Centred


class _ByRow(CentroidIndex):
    def shortlist(self, Q, k):
        return csr_matrix(vstack([CentroidIndex.shortlist(self, Q[row : row + 1], k) for row in range(Q.shape[0])]))


class IndexNeedsARow(CentroidIndexer):
    index = _ByRow


class _Cosine(CentroidIndex):
    def scores(self, Q):
        lengths = np.sqrt(np.asarray(Q.multiply(Q).sum(axis=1) if issparse(Q) else (Q * Q).sum(axis=1)).ravel())
        with np.errstate(divide="ignore", invalid="ignore"):
            return (super().scores(Q) / lengths[:, None]).astype(np.float32)


class IndexDividesByTheNorm(CentroidIndexer):
    index = _Cosine


class IndexNeedsTwoLabels(CentroidIndexer):
    def build(self, train, *, context):
        train.Y[:, 1]
        return super().build(train, context=context)


class IndexNeedsTwoRows(CentroidIndexer):
    def build(self, train, *, context):
        train.Y[1]
        return super().build(train, context=context)
