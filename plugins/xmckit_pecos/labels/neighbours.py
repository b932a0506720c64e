"""Compare labels by their training rows, and find the rows that reach each copy of a label."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import Matrix

LABELS_AT_ONCE = 4096


def similarities(
    X: Matrix, Y: csr_matrix, label: int, among: np.ndarray | None = None, rows: np.ndarray | None = None
) -> np.ndarray:
    """Return the cosine of `label` with each label (or each of `among`), between sums of their rows as in PIFA.

    With `rows`, only these rows count for `label`. A label on no row has no direction and gets 0. Memory does not grow
    with labels × features.
    """
    Y = csr_matrix(Y, dtype=np.float32)
    counts = np.maximum(np.diff(Y.indptr), 1)
    scaled = csr_matrix((np.repeat(1 / np.sqrt(counts), np.diff(Y.indptr)), Y.indices, Y.indptr), shape=Y.shape).tocsc()
    labels = np.arange(Y.shape[1]) if among is None else np.asarray(among)
    chosen = slice(None) if rows is None else rows
    wanted = _unit_rows(scaled[:, [label]][chosen].T @ X[chosen])
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


def visitors(reached: csr_matrix, leaves: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Return, for each of `leaves`, the rows of `reached` (rows × all leaves) that get there, and how many are its own.

    Its own rows reach it better than the others of `leaves`. They come first, largest lead first.
    """
    columns = np.asarray(reached[:, leaves].toarray(), dtype=np.float64)
    result = []
    for i in range(len(leaves)):
        others = np.delete(columns, i, axis=1).max(axis=1, initial=0)
        lead = columns[:, i] - others
        rows = np.flatnonzero(columns[:, i])
        # a row that reaches two leaves equally well belongs to the first
        own = (lead > 0) | ((lead == 0) & (columns[:, :i].max(axis=1, initial=0) < columns[:, i]))
        order = np.lexsort((rows, -lead[rows], ~own[rows]))
        result.append((rows[order], int(own[rows].sum())))
    return result
