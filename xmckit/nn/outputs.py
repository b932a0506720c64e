"""From logits, of all labels (dense) or of candidates (CSR), to rankings and label sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit.data.model import as_csr
from xmckit.records import TopK
from xmckit.sparse.topk import topk_csr, topk_dense


def first(topk: TopK, counts: np.ndarray, labels: int) -> csr_matrix:
    """The first `counts` labels of each row."""
    chosen = (np.arange(topk.k) < counts[:, None]) & (topk.indices >= 0)
    rows, places = np.nonzero(chosen)
    values = np.ones(len(rows), dtype=np.float32)
    return as_csr(csr_matrix((values, (rows, topk.indices[rows, places])), shape=(topk.rows, labels)))


def best(scores: Any, k: int) -> TopK:
    return topk_csr(scores, k) if issparse(scores) else topk_dense(scores, k)


def above(scores: Any, threshold: float) -> csr_matrix:
    if issparse(scores):
        return as_csr(csr_matrix((scores.data > np.float32(threshold), scores.indices, scores.indptr), scores.shape))
    return as_csr(scores > np.float32(threshold))


def joined(blocks: list[TopK], k: int) -> TopK:
    if not blocks:
        return TopK(np.empty((0, k), dtype=np.int32), np.empty((0, k), dtype=np.float32))
    return TopK.of_blocks(blocks)


def stacked(blocks: list[csr_matrix], labels: int) -> csr_matrix:
    return csr_matrix(vstack(blocks, format="csr")) if blocks else csr_matrix((0, labels), dtype=np.float32)
