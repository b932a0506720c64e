"""Small learnable data for the checks: every label has features of its own, rows have noise features besides."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data.model import Split, as_csr

FEATURES_PER_LABEL = 3


def small_problem(*, rows: int = 80, labels: int = 11, empty: bool = False, seed: int = 0) -> Split:
    """Rows with one to three labels each; with `empty`, every fourth row has no feature and every fifth no label."""
    rng = np.random.default_rng(seed)
    Y = np.zeros((rows, labels), dtype=np.float32)
    for row in range(rows):
        # the first rows go through the labels in turn, so that none is without a row
        Y[row, row % labels] = 1
        Y[row, rng.integers(0, labels, size=rng.integers(0, 3))] = 1
    X = np.repeat(Y, FEATURES_PER_LABEL, axis=1) * (rng.random((rows, labels * FEATURES_PER_LABEL)) < 0.8)
    noise = (rng.random((rows, 10)) < 0.2).astype(np.float32)
    X = np.hstack([X, noise]) * rng.uniform(0.5, 1.0, (rows, X.shape[1] + 10))
    if empty:
        X[::4] = 0
        Y[::5] = 0
    return Split(as_csr(X.astype(np.float32)), csr_matrix(Y))
