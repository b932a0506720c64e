"""A small honest head, and heads whose decision is not what they output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix, issparse

import xmckit
from xmckit import Component, store
from xmckit.sparse.topk import topk_dense


class Honest(xmckit.Configured):
    """A linear head of two features, the sums of the even and of the odd columns."""

    needs = frozenset()

    def fit(self, train, *, indexes=(), context):
        self.W = np.random.default_rng(context.seed).integers(-4, 5, (train.labels, 2)).astype(np.float32)

    def features(self, X):
        dense = np.asarray(X.toarray() if issparse(X) else X, dtype=np.float32)
        return np.stack([dense[:, ::2].sum(axis=1), dense[:, 1::2].sum(axis=1)], axis=1)

    def scores(self, X):
        return self.features(X) @ self.W.T

    def predict(self, X, k, *, groups=None):
        return topk_dense(self.scores(X), k)

    def labels(self, X):
        return csr_matrix(self.scores(X) > 0, dtype=np.float32)

    def decision(self):
        def replay(vectors):
            return csr_matrix(np.asarray(vectors, np.float32) @ self.W.T > 0, dtype=np.float32)

        return xmckit.LinearDecision(self.W, None, replay=replay)

    def save(self, folder):
        super().save(folder)
        store.write_arrays(folder / "w.npz", {"W": self.W})

    @classmethod
    def load(cls, folder, *, context):
        head = super().load(folder, context=context)
        head.W = store.read_arrays(folder / "w.npz", "W")["W"]
        return head


class Dropping(Honest):
    """labels() drops the best label of every fifth row."""

    def labels(self, X):
        scores = self.scores(X)
        scores[::5][np.arange(len(scores[::5])), scores[::5].argmax(axis=1)] = -1
        return csr_matrix(scores > 0, dtype=np.float32)


class Misreplaying(Honest):
    """Its replay takes the wrong vector."""

    def decision(self):
        decision = super().decision()
        return replace(decision, replay=lambda vectors: decision.replay(-np.asarray(vectors)))


@xmckit.hookimpl
def xmckit_heads():
    for cls in (Honest, Dropping, Misreplaying):
        yield Component(cls.__name__.lower(), f"{__name__}:{cls.__name__}", summary=cls.__doc__)
