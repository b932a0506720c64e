"""From logits, of all labels (dense) or of candidates (CSR), to rankings and label sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit.data.model import as_csr
from xmckit.records import TopK
from xmckit.sparse.topk import topk_csr, topk_dense


def best(scores: Any, k: int) -> TopK:
    """Return the best `k` labels of each row."""
    return topk_csr(scores, k) if issparse(scores) else topk_dense(scores, k)


def first(topk: TopK, counts: np.ndarray, labels: int) -> csr_matrix:
    """Return the first `counts` labels of each row as label sets."""
    chosen = (np.arange(topk.k) < counts[:, None]) & (topk.indices >= 0)
    rows, ranks = np.nonzero(chosen)
    values = np.ones(len(rows), dtype=np.float32)
    return as_csr(csr_matrix((values, (rows, topk.indices[rows, ranks])), shape=(topk.rows, labels)))


def above(scores: Any, threshold: float) -> csr_matrix:
    """Return the labels above the threshold as label sets."""
    if issparse(scores):
        return as_csr(csr_matrix((scores.data > np.float32(threshold), scores.indices, scores.indptr), scores.shape))
    return as_csr(scores > np.float32(threshold))


def join(blocks: list[TopK], k: int) -> TopK:
    """Join the rankings of blocks of rows."""
    if not blocks:
        return TopK(np.empty((0, k), dtype=np.int32), np.empty((0, k), dtype=np.float32))
    return TopK.of_blocks(blocks)


def stack_rows(blocks: list[csr_matrix], labels: int) -> csr_matrix:
    """Join the matrices of blocks of rows."""
    return csr_matrix(vstack(blocks, format="csr")) if blocks else csr_matrix((0, labels), dtype=np.float32)
