"""Rows of a linear output layer for labels that it was not trained on, from a few examples each.

The encoder stays as it is. A label's row is the direction in which its examples differ from other rows, seen by how
these vary: (Σ + λI)⁻¹ (c − μ), with c the mean of its examples, μ and Σ of training rows; it is as long as the rows of
the labels nearest to it. Two things are asked of the bias. The examples should get, on average, the logit that rows of
the nearest labels get for these: alone, this makes a new label push others aside. And the label should stand out among
training rows no more than the nearest labels do, by the logit that one row in a hundred passes: alone, this hides it.
Where the first asks for more, the bias is half-way between the two.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

NEAREST = 20
RIDGE = 0.1  # λ, as a share of the mean variance
HIGH = 0.99  # share of the rows that are below a label's high logits


def new_label_rows(
    W: np.ndarray, b: np.ndarray, rows: np.ndarray, Y: csr_matrix, examples: np.ndarray, of: csr_matrix
) -> tuple[np.ndarray, np.ndarray]:
    """(W, b) of the new labels. `rows` are training vectors with labels `Y`; `of` says which examples a label has."""
    centre = rows.mean(axis=0, dtype=np.float64)
    variation = np.zeros((len(centre), len(centre)))
    if len(rows) > 1:
        variation += np.cov(rows, rowvar=False, dtype=np.float64)
    ridge = RIDGE * max(np.trace(variation) / len(centre), np.finfo(np.float32).tiny)
    counts = np.maximum(np.asarray((of != 0).sum(axis=0)).ravel(), 1)
    means = ((of != 0).T @ examples) / counts[:, None]
    directions = np.linalg.solve(variation + ridge * np.eye(len(centre)), (means - centre).T).T
    lengths, typical = np.linalg.norm(W, axis=1), _typical_logits(W, b, rows, Y)
    found_W, found_b = np.zeros_like(directions), np.zeros(len(directions))
    for label, direction in enumerate(directions):
        length = np.linalg.norm(direction)
        unit = direction / length if length else direction
        near = np.argsort(-(W @ unit) / np.where(lengths, lengths, 1), kind="stable")[:NEAREST]
        known = near[np.isfinite(typical[near])]
        wanted = typical[known] if len(known) else typical[np.isfinite(typical)]
        found_W[label] = unit * np.median(lengths[near])
        by_examples = (np.median(wanted) if len(wanted) else 0.0) - found_W[label] @ means[label]
        high = np.median(np.quantile(rows @ W[near].T + b[near], HIGH, axis=0))
        by_others = high - np.quantile(rows @ found_W[label], HIGH)
        found_b[label] = min(by_examples, (by_examples + by_others) / 2)
    return found_W.astype(np.float32), found_b.astype(np.float32)


def _typical_logits(W: np.ndarray, b: np.ndarray, rows: np.ndarray, Y: csr_matrix) -> np.ndarray:
    """The mean logit that each label gets on the rows that have it; NaN for one that none has."""
    Y = csr_matrix(Y)
    row_of = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))
    logits = np.einsum("ij,ij->i", rows[row_of], W[Y.indices]) + b[Y.indices]
    sums, counts = np.zeros(len(W)), np.zeros(len(W))
    np.add.at(sums, Y.indices, logits)
    np.add.at(counts, Y.indices, 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
