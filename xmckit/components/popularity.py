"""The popularity baseline: it predicts the most frequent labels for every row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.data.model import Groups, Matrix, Split, as_csr
from xmckit.errors import UsageError
from xmckit.params import Configured
from xmckit.protocols import LabelIndex
from xmckit.records import LinearDecision, TopK

if TYPE_CHECKING:
    from xmckit.context import Context

_FILE = "counts.npz"


class PopularityHead(Configured):
    """Score a label by the log-odds of its frequency, log((n + ½) / (N − n + ½)) for n of N training rows.

    The output does not depend on the features, so there is nothing to verify. Weights of training labels are ignored.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    _counts: np.ndarray | None = None
    _rows = 0

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        self._counts = np.bincount(as_csr(train.Y).indices, minlength=train.labels)
        self._rows = train.rows

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        counts = self._fitted_counts()
        best = np.argsort(-counts, kind="stable")[:k]
        indices, scores = np.full(k, -1, dtype=np.int32), np.full(k, -np.inf, dtype=np.float32)
        log_odds = np.log((counts[best] + 0.5) / (self._rows - counts[best] + 0.5))
        indices[: len(best)], scores[: len(best)] = best, log_odds
        return TopK(np.tile(indices, (X.shape[0], 1)), np.tile(scores, (X.shape[0], 1)))

    def features(self, X: Matrix) -> None:
        return None

    def labels(self, X: Matrix) -> csr_matrix:
        """Return the labels of more than half of the training rows, which are those with a positive score."""
        counts, rows = self._fitted_counts(), X.shape[0]
        frequent = np.flatnonzero(2 * counts > self._rows).astype(np.int32)
        indptr = np.arange(rows + 1) * len(frequent)
        values = np.ones(rows * len(frequent), dtype=np.float32)
        return csr_matrix((values, np.tile(frequent, rows), indptr), shape=(rows, len(counts)))

    def decision(self) -> LinearDecision | None:
        return None

    def save(self, folder: Path) -> None:
        super().save(folder)
        store.write_arrays(folder / _FILE, {"counts": self._fitted_counts(), "rows": np.asarray(self._rows)})

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> PopularityHead:
        head = super().load(folder, context=context)
        rows = int(store.read_array(folder / _FILE, "rows", "i", (), low=0))
        head._counts, head._rows = store.read_array(folder / _FILE, "counts", "i", (None,), low=0, high=rows), rows
        return head

    def _fitted_counts(self) -> np.ndarray:
        if self._counts is None:
            raise UsageError("the popularity head has not been fitted: call fit or load first")
        return self._counts
