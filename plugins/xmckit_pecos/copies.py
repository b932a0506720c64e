"""From scores of pseudo-labels to scores of labels: a label in several leaves may be retrieved several times."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix

Copies = Literal["mean", "max"]


def scores_of_labels(found: csr_matrix, label_of: np.ndarray, labels: int, copies: Copies) -> csr_matrix:
    """Rows × labels, best first: the mean (or largest) score of the copies of a label that were retrieved."""
    rows = np.repeat(np.arange(found.shape[0]), np.diff(found.indptr))
    label = label_of[found.indices]
    order = np.lexsort((label, rows))
    rows, label, scores = rows[order], label[order], found.data[order].astype(np.float64)
    first = np.ones(len(rows), dtype=bool)
    first[1:] = (rows[1:] != rows[:-1]) | (label[1:] != label[:-1])
    starts = np.flatnonzero(first)
    if len(starts):
        if copies == "max":
            scores = np.maximum.reduceat(scores, starts)
        else:
            scores = np.add.reduceat(scores, starts) / np.diff(np.append(starts, len(rows)))
        rows, label = rows[starts], label[starts]
        best_first = np.lexsort((label, -scores, rows))
        rows, label, scores = rows[best_first], label[best_first], scores[best_first]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=found.shape[0]))])
    return csr_matrix((scores.astype(np.float32), label.astype(np.int32), indptr), shape=(found.shape[0], labels))
