"""A plugin of every stage that the core leaves to others, small enough to see through."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

import xmckit
from xmckit import Component, store


class Drop(xmckit.Configured):
    """Labels with fewer than `least` rows lose them; all others get weight 1."""

    class Params(xmckit.Params):
        least: int = 2

    def apply(self, train, *, context):
        from dataclasses import replace

        counts = np.bincount(train.Y.indices, minlength=train.labels)
        kept = train.Y.copy()
        kept.data = (counts[kept.indices] >= self.params.least).astype(np.float32)
        kept.eliminate_zeros()
        self.dropped = int(train.Y.nnz - kept.nnz)
        return replace(train, Y=kept, weights=kept.copy())

    def facts(self):
        return {"dropped": self.dropped, "warnings": ["rare labels are lost"]}


class FrequentIndex:
    query_space = "input"

    def __init__(self, order):
        self.order = order

    def shortlist(self, Q, k):
        rows, labels = Q.shape[0], self.order[:k]
        dense = np.zeros((rows, len(self.order)), dtype=np.float32)
        dense[:, labels] = np.arange(len(labels), 0, -1)
        return csr_matrix(dense)

    def save(self, folder):
        store.write_arrays(folder / "order.npz", {"order": self.order})


class Frequent(xmckit.Configured):
    """Shortlists the most frequent labels for every row."""

    provides = frozenset({"shortlist"})

    def build(self, train, *, context):
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        return FrequentIndex(np.argsort(-counts, kind="stable"))

    @classmethod
    def load(cls, folder, *, context):
        return FrequentIndex(store.read_arrays(folder / "order.npz", "order")["order"])


class Shortlisted(xmckit.Configured):
    """A linear head of one feature, the row's sum, that only looks at its index's candidates."""

    needs = frozenset({"shortlist"})

    def fit(self, train, *, indexes=(), context):
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        self.W = np.log1p(counts).astype(np.float32)[:, None]
        self.index = indexes[0]
        assert context.validation is not None

    def features(self, X):
        return np.asarray(X.sum(axis=1), dtype=np.float32).reshape(-1, 1)

    def _scores(self, X):
        scores = self.features(X) @ self.W.T
        scores[self.candidates(X).toarray() == 0] = -np.inf
        return scores

    def candidates(self, X):
        return self.index.shortlist(X, 10)

    def predict(self, X, k, *, groups=None):
        from xmckit.sparse.topk import topk_csr

        scores = self._scores(X)
        return topk_csr(csr_matrix(np.where(np.isfinite(scores), scores, 0).astype(np.float32)), k)

    def labels(self, X):
        return csr_matrix((self._scores(X) > 0).astype(np.float32))

    def decision(self):
        return xmckit.LinearDecision(self.W, None)

    def save(self, folder):
        super().save(folder)
        store.write_arrays(folder / "w.npz", {"W": self.W, "order": self.index.order})

    @classmethod
    def load(cls, folder, *, context):
        head = super().load(folder, context=context)
        arrays = store.read_arrays(folder / "w.npz", "W", "order")
        head.W, head.index = arrays["W"], FrequentIndex(arrays["order"])
        return head


class OneDimension(xmckit.Configured):
    """Exact for decisions of one column without bias: active labels on one side of zero, all others on the other."""

    def verify(self, decision, assignments, *, candidates=None, context):
        weights = decision.W[:, 0]
        verdicts = []
        for row in range(assignments.shape[0]):
            active = np.zeros(len(weights), dtype=bool)
            active[assignments[row].indices] = True
            asked = np.ones(len(weights), dtype=bool) if candidates is None else candidates[row].toarray()[0] != 0
            missed = tuple(np.flatnonzero(active & ~asked).tolist())
            can = [bool(((sign * weights > 0) == active)[asked].all()) for sign in (1, -1)]
            witness = np.array([1.0 if can[0] else -1.0]) if any(can) and not missed else None
            verdicts.append(
                xmckit.Verdict(
                    status="unargmaxable" if witness is None else "argmaxable",
                    proof="exact",
                    witness=witness,
                    certificate=None if witness is not None else (np.flatnonzero(asked)[:2], np.ones(2)),
                    missed=missed,
                )
            )
        return xmckit.Verdicts(verdicts)


@xmckit.hookimpl
def xmckit_label_preprocessors():
    yield Component("drop", f"{__name__}:Drop", summary="Drops rare labels.")


@xmckit.hookimpl
def xmckit_indexers():
    yield Component("frequent", f"{__name__}:Frequent", summary="Frequent labels.")


@xmckit.hookimpl
def xmckit_heads():
    yield Component("shortlisted", f"{__name__}:Shortlisted", summary="One feature.")


@xmckit.hookimpl
def xmckit_verifiers():
    yield Component("one-dimension", f"{__name__}:OneDimension", summary="Decisions of one column.")
