"""Data that the tests of trees and XR-Linear share."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import Split, make_context


def problem(*, rows: int = 300, labels: int = 60, topics: int = 6, seed: int = 0, **more: Any) -> Split:
    """Training rows of a synthetic set, in which labels have words of their own and live in topics."""
    spec = {"use": "synthetic", "rows": rows, "test_rows": 1, "features": 200, "labels": labels, "topics": topics}
    context = make_context(seed=seed, workers=1)
    return context.build("dataset", {**spec, **more}).read(context=context).train


def every_label(labels: int = 40, features: int = 30, rows_each: int = 4, seed: int = 0) -> Split:
    """Dense little data without rare cases: every label is on some rows, every row has features and labels."""
    rng = np.random.default_rng(seed)
    Y = np.zeros((labels * rows_each, labels), dtype=np.float32)
    Y[np.arange(len(Y)), np.arange(len(Y)) % labels] = 1
    Y[np.arange(len(Y)), rng.integers(0, labels, len(Y))] = 1
    directions = rng.standard_normal((labels, features)) * (rng.random((labels, features)) < 0.3)
    X = (Y @ directions + 0.2 * rng.standard_normal((len(Y), features))).astype(np.float32)
    return Split(csr_matrix(X), csr_matrix(Y))


def random_problem(seed: int, *, rows: int = 25, labels: int = 9, leaves: int = 6, beam: int | None = None):
    """Return (Y, M, a partition): M has `beam` ones a row; some labels are on no row, and some rows have no label."""
    rng = np.random.default_rng(seed)
    beam = beam or int(rng.integers(1, leaves + 1))
    popular = rng.random(leaves) ** 3
    M = np.argsort(rng.random((rows, leaves)) * popular, axis=1).argsort(axis=1) >= leaves - beam
    Y = rng.random((rows, labels)) < rng.random(labels) ** 2
    return csr_matrix(Y, dtype=np.float32), csr_matrix(M, dtype=np.float32), rng.integers(0, leaves, labels, np.int32)


def objectives(Y, M, C) -> tuple[int, int]:
    """Return (Tr(YᵀBinary(MCᵀ)), Σ C∘(YᵀM)), computed by the formulas."""
    Y, M = Y.toarray(), M.toarray()
    return int(np.trace(Y.T @ (M @ C.T > 0))), int((C * (Y.T @ M)).sum())
