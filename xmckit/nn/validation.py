"""Validation rows: they score the epochs of training and choose the threshold on logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit.components.metrics import rank_metrics
from xmckit.nn import outputs

LOWEST, HIGHEST, BINS_PER_UNIT = -32, 32, 64
# Bin 0 holds logits that are above no cut; bin j > 0 those above LOWEST + (j − 1)/64 and not above the next cut.
_BINS = (HIGHEST - LOWEST) * BINS_PER_UNIT + 1


@dataclass(frozen=True)
class Validation:
    """Measure a head on validation rows. `blocks` yields logits, of all labels or of candidates, and true labels."""

    blocks: Callable[[], Iterable[tuple[Any, csr_matrix]]]
    labels: int

    def ndcg(self) -> float:
        """Return nDCG@5."""
        blocks = [(outputs.best(scores, 5), truth) for scores, truth in self.blocks()]
        truth = outputs.stack_rows([truth for _, truth in blocks], self.labels)
        return rank_metrics(outputs.join([best for best, _ in blocks], 5), truth, ks=(5,))["nDCG@5"]

    def best_threshold(self) -> tuple[float, float]:
        """Return the threshold with the highest micro-F1, and that F1."""
        histogram = LogitHistogram()
        for scores, truth in self.blocks():
            histogram.add(scores, truth)
        return histogram.best_threshold()


class LogitHistogram:
    """Counts of all logits and of the true labels' logits in bins of 1/64, which are exact for every cut at an edge.

    Its memory does not grow with rows × labels.
    """

    def __init__(self) -> None:
        self._all = np.zeros(_BINS, dtype=np.int64)
        self._true = np.zeros(_BINS, dtype=np.int64)

    def add(self, scores: np.ndarray | csr_matrix, truth: csr_matrix) -> None:
        """Count a block of rows × labels, or CSR of candidates; the true labels are those stored in `truth`."""
        if issparse(scores):
            self._add_candidates(scores, truth)
            return
        rows = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
        self._all += np.bincount(_bin(scores).ravel(), minlength=_BINS)
        self._true += np.bincount(_bin(scores[rows, truth.indices]), minlength=_BINS)

    def _add_candidates(self, scores: csr_matrix, truth: csr_matrix) -> None:
        """Count the logits of candidates; a true label that is no candidate is never output."""
        self._all += np.bincount(_bin(scores.data), minlength=_BINS)
        if not scores.has_sorted_indices:
            scores = scores.sorted_indices()
        candidates, true = _pairs(scores), _pairs(truth)
        places = np.minimum(np.searchsorted(candidates, true), len(candidates) - 1)
        hits = scores.data[places[candidates[places] == true]] if len(candidates) else scores.data
        self._true += np.bincount(_bin(hits), minlength=_BINS)
        self._true[0] += truth.nnz - len(hits)

    def best_threshold(self) -> tuple[float, float]:
        """Return the cut with the highest micro-F1 of the labels above it, and that F1; the highest of equal cuts."""
        output, right = (np.cumsum(counts[:0:-1])[::-1] for counts in (self._all, self._true))
        f1 = 2 * right / np.maximum(output + self._true.sum(), 1)
        best = len(f1) - 1 - int(np.argmax(f1[::-1]))
        return LOWEST + best / BINS_PER_UNIT, float(f1[best])


def _pairs(matrix: csr_matrix) -> np.ndarray:
    """Return each stored (row, label) pair as one number."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    return rows * matrix.shape[1] + matrix.indices


def _bin(scores: np.ndarray) -> np.ndarray:
    # A product with a power of two is exact, and so is a sum of whole numbers: a logit just above a cut stays above it.
    cuts_from_0 = np.ceil(np.clip(scores, LOWEST, HIGHEST) * np.float32(BINS_PER_UNIT))
    return (cuts_from_0 - LOWEST * BINS_PER_UNIT).astype(np.int32)
