"""Rows of a linear output layer for labels that it was not trained on, from a few examples each.

The encoder does not change. A label's row has the direction (Σ + λI)⁻¹ (c − μ), with c the mean of its examples, and μ
and Σ the mean and covariance of training rows. Its length is the median of the nearest labels' rows. Two goals set the
bias. First, the mean logit of the examples should equal the typical logit that the nearest labels get on their own
rows; alone, this lets a new label displace others. Second, the logit that one training row in a hundred exceeds should
be as high as for the nearest labels; alone, this hides the new label. If the first bias is the larger one, the result
is half-way between the two.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

NEAREST = 20
RIDGE = 0.1  # λ, as a share of the mean variance
HIGH = 0.99  # quantile of a label's logits over the training rows


def new_label_rows(
    W: np.ndarray, b: np.ndarray, rows: np.ndarray, Y: csr_matrix, examples: np.ndarray, example_labels: csr_matrix
) -> tuple[np.ndarray, np.ndarray]:
    """Return (W, b) of the new labels.

    `rows` are training vectors with labels `Y`, `example_labels` is examples × new labels.
    """
    centre = rows.mean(axis=0, dtype=np.float64)
    variation = np.zeros((len(centre), len(centre)))
    if len(rows) > 1:
        variation += np.cov(rows, rowvar=False, dtype=np.float64)
    ridge = RIDGE * max(np.trace(variation) / len(centre), np.finfo(np.float32).tiny)
    has_label = example_labels != 0
    counts = np.maximum(np.asarray(has_label.sum(axis=0)).ravel(), 1)
    means = (has_label.T @ examples) / counts[:, None]
    directions = np.linalg.solve(variation + ridge * np.eye(len(centre)), (means - centre).T).T
    lengths, typical = np.linalg.norm(W, axis=1), _typical_logits(W, b, rows, Y)
    new_W, new_b = np.zeros_like(directions), np.zeros(len(directions))
    for label, direction in enumerate(directions):
        length = np.linalg.norm(direction)
        unit = direction / length if length else direction
        near = np.argsort(-(W @ unit) / np.where(lengths, lengths, 1), kind="stable")[:NEAREST]
        known = near[np.isfinite(typical[near])]
        wanted = typical[known] if len(known) else typical[np.isfinite(typical)]
        new_W[label] = unit * np.median(lengths[near])
        by_examples = (np.median(wanted) if len(wanted) else 0.0) - new_W[label] @ means[label]
        high = np.median(np.quantile(rows @ W[near].T + b[near], HIGH, axis=0))
        by_others = high - np.quantile(rows @ new_W[label], HIGH)
        new_b[label] = min(by_examples, (by_examples + by_others) / 2)
    return new_W.astype(np.float32), new_b.astype(np.float32)


def _typical_logits(W: np.ndarray, b: np.ndarray, rows: np.ndarray, Y: csr_matrix) -> np.ndarray:
    """Return the mean logit of each label on the rows that have it; NaN for a label without rows."""
    Y = csr_matrix(Y)
    row_of = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    logits = np.einsum("ij,ij->i", rows[row_of], W[Y.indices]) + b[Y.indices]
    sums, counts = np.zeros(len(W)), np.zeros(len(W))
    np.add.at(sums, Y.indices, logits)
    np.add.at(counts, Y.indices, 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
