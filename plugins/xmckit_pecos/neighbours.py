"""Which labels are alike: by the training rows that have them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import Matrix

LABELS_AT_ONCE = 4096


def similarities(X: Matrix, Y: csr_matrix, label: int, among: np.ndarray | None = None) -> np.ndarray:
    """The cosine of `label` with each label (or each of `among`), between sums of their rows as in PIFA.

    A label on no row has no direction: 0. Memory does not grow with labels × features.
    """
    Y = csr_matrix(Y, dtype=np.float32)
    counts = np.maximum(np.diff(Y.indptr), 1)
    scaled = csr_matrix((np.repeat(1 / np.sqrt(counts), np.diff(Y.indptr)), Y.indices, Y.indptr), shape=Y.shape).tocsc()
    labels = np.arange(Y.shape[1]) if among is None else np.asarray(among)
    wanted = _unit_rows(scaled[:, [label]].T @ X)
    result = np.zeros(len(labels))
    for start in range(0, len(labels), LABELS_AT_ONCE):
        block = labels[start : start + LABELS_AT_ONCE]
        product = _unit_rows(scaled[:, block].T @ X) @ wanted.T
        result[start : start + len(block)] = (product.toarray() if issparse(product) else np.asarray(product)).ravel()
    return result


def _unit_rows(rows: Matrix) -> Matrix:
    if not issparse(rows):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms, norms, 1)
    rows = csr_matrix(rows)
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    scaled = rows.data / np.repeat(np.where(norms, norms, 1), np.diff(rows.indptr))
    return csr_matrix((scaled, rows.indices, rows.indptr), shape=rows.shape)
