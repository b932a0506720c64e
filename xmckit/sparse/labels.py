"""Relations between labels: co-occurrence counts, and the centroids of their rows (PIFA)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.errors import DataError, UsageError
from xmckit.sparse.csr import Pattern, canonical_pattern, map_row_blocks, row_pointers, sorted_csr
from xmckit.sparse.normalise import weigh_rows
from xmckit.sparse.product import Entries, multiply, transpose
from xmckit.sparse.topk import offer, pour


def cooccurrence(Y: csr_matrix, k: int, *, workers: int = 1) -> csr_matrix:
    """Return labels × labels: the `k` others that share most rows with each label, and their counts; best first.

    Ties are broken by the lower label id. YᵀY itself is never built.
    """
    if k < 1:
        raise UsageError(f"co-occurrence needs k of at least 1, not {k}")
    pairs = canonical_pattern(Y, "the label matrix")
    labels, by_label = transpose(Entries(*pairs, np.ones(len(pairs.indices), np.bool_)), Y.shape[1])

    def count(block: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _cooccurring(labels, by_label, pairs, Y.shape[1], k, block)

    parts = map_row_blocks(count, len(labels), workers)
    sizes = np.zeros(Y.shape[1], np.int64)
    sizes[labels] = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
    indices = np.concatenate([np.zeros(0, np.int32), *(part[1] for part in parts)])
    values = np.concatenate([np.zeros(0, np.float32), *(part[2] for part in parts)])
    return csr_matrix((values, indices, row_pointers(sizes)), shape=(Y.shape[1], Y.shape[1]))


def label_centroids(X: Any, Y: csr_matrix, *, projection: Any = None, workers: int = 1) -> Any:
    """Return the positive-instance feature aggregation: the sum of the rows of each label, scaled to length 1.

    A row with c labels counts 1/√c, as in PECOS. A label without rows, or with rows of zeros, gets zeros.

    Dense rows, and sparse rows with a `projection` (features × d, from `random_projection` or `hashed_projection`),
    give a dense labels × d; rows are projected before the sum, so that no labels × features matrix is built. Sparse
    rows without projection give a sparse matrix.
    """
    indptr, labels = canonical_pattern(Y, "the label matrix")
    if issparse(X):
        store.check_matrix(X, "the feature matrix")
        X = csr_matrix(X)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"centroids need as many rows of features as of labels, found {X.shape[0]} and {Y.shape[0]}")
    if projection is not None and projection.shape[0] != X.shape[1]:
        raise UsageError(f"the projection is for {projection.shape[0]} features, the rows have {X.shape[1]}")
    shares = np.repeat(1 / np.sqrt(np.maximum(np.diff(indptr), 1)), np.diff(indptr)).astype(np.float32)
    if issparse(X) and projection is None:
        centroids = (sorted_csr(shares, labels, indptr, Y.shape[1]).T @ csr_matrix(X, dtype=np.float32)).tocsr()
        centroids.sort_indices()
        weigh_rows(centroids, workers=workers)
        return centroids
    vectors = _project(X, projection, workers)
    _, by_label = transpose(Entries(indptr, labels, shares), Y.shape[1])
    pointers = np.concatenate([[0], np.cumsum(np.bincount(labels, minlength=Y.shape[1]))])
    sums = _product(by_label._replace(pointers=pointers), vectors, workers)
    lengths = np.sqrt(np.einsum("ij,ij->i", sums, sums, dtype=np.float64))
    sums /= np.where(lengths > 0, lengths, 1)[:, None].astype(np.float32)
    return sums


def random_projection(features: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Return features × width of ±1/√width; it keeps inner products up to an error that falls with √width."""
    signs = rng.integers(0, 2, (features, width), dtype=np.int8)
    return (2 * signs - 1).astype(np.float32) / np.float32(np.sqrt(width))


def hashed_projection(features: int, width: int, rng: np.random.Generator, *, each: int = 4) -> csr_matrix:
    """Return a sparse projection for very many features: each feature goes to `each` columns only."""
    each = min(each, width)
    step = width // each
    # One column in each of `each` parts of the columns, so that the columns of a feature differ.
    columns = (rng.integers(0, step, (features, each)) + step * np.arange(each)).astype(np.int32)
    values = (rng.integers(0, 2, features * each) * 2 - 1).astype(np.float32) / np.float32(np.sqrt(each))
    return sorted_csr(values, columns.ravel(), row_pointers(np.full(features, each)), width)


def _project(X: Any, projection: Any, workers: int) -> np.ndarray:
    if projection is None:
        return np.ascontiguousarray(X, dtype=np.float32)
    if not issparse(X) or issparse(projection):
        product = X @ projection
        return np.ascontiguousarray(product.toarray() if issparse(product) else product, dtype=np.float32)
    rows = csr_matrix(X, dtype=np.float32)
    table = np.ascontiguousarray(projection, dtype=np.float32)
    return _product(Entries(rows.indptr.astype(np.int64), rows.indices.astype(np.int64), rows.data), table, workers)


def _product(entries: Entries, dense: np.ndarray, workers: int) -> np.ndarray:
    out = np.empty((len(entries.pointers) - 1, dense.shape[1]), np.float32)
    map_row_blocks(lambda block: multiply(entries, dense, out, block), len(out), workers)
    return out


@njit(cache=True, nogil=True)
def _cooccurring(
    columns: np.ndarray, by_column: Entries, pairs: Pattern, label_count: int, k: int, block: slice
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (entries, labels, counts) of the labels in a block of `columns`."""
    pointers, rows, _ = by_column
    indptr, labels = pairs
    start, stop = block.start, block.stop
    counts, touched = np.zeros(label_count, np.int32), np.empty(label_count, np.int32)
    k = min(k, label_count)
    kept, kept_counts = np.empty(k, np.int32), np.empty(k)
    sizes = np.zeros(stop - start, np.int64)
    out_labels, out_counts = np.empty((stop - start) * k, np.int32), np.empty((stop - start) * k, np.float32)
    size = 0
    for nth in range(start, stop):
        seen = 0
        for slot in range(pointers[nth], pointers[nth + 1]):
            row = rows[slot]
            for place in range(indptr[row], indptr[row + 1]):
                other = labels[place]
                if counts[other] == 0:
                    touched[seen] = other
                    seen += 1
                counts[other] += 1
        count = 0
        for place in range(seen):
            other = touched[place]
            if other != columns[nth]:
                count = offer(kept_counts, kept, count, counts[other], other)
            counts[other] = 0
        pour(kept_counts, kept, count, out_labels[size : size + count], out_counts[size : size + count])
        sizes[nth - start] = count
        size += count
    return sizes, out_labels[:size].copy(), out_counts[:size].copy()
