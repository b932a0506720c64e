"""Small problems with a known answer."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import Split, make_context

CONTEXT = make_context(workers=1)


def planted(rows: int = 400, labels: int = 60, features: int = 90, seed: int = 0) -> Split:
    """Every label has words of its own; a row has the words of its two labels. The last label is on no row."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, features, (labels, 6))
    chosen = np.array([rng.permutation(labels - 1)[:2] for _ in range(rows)])
    X, Y = np.zeros((rows, features), np.float32), np.zeros((rows, labels), np.float32)
    for row, pair in enumerate(chosen):
        X[row, words[pair].ravel()] = 1
        Y[row, pair] = 1
    return Split(csr_matrix(X), csr_matrix(Y))


def exact(embeddings: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    """The best labels by brute force, in double precision; the lower label among equal ones."""
    scores = queries.astype(np.float64) @ embeddings.astype(np.float64).T
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]
