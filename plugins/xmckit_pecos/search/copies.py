"""Turn scores of pseudo-labels into scores of labels: a label in several leaves may be retrieved several times."""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix


def scores_of_labels(
    scores: csr_matrix, label_of: np.ndarray, labels: int, k: int | None = None, averaged: int | None = None
) -> csr_matrix:
    """Turn rows × copies into rows × labels, both best first. With `k`, keep only the best `k` labels of each row.

    A label has the mean score of its copies among the first `averaged` of a row (None: of all). A label without a copy
    among these, which cannot be better than any that has one, gets the score of its best copy. So the score of a label
    does not depend on `k`.
    """
    most = labels if k is None else min(k, labels)
    width = scores.shape[1] if averaged is None else averaged
    indptr = scores.indptr.astype(np.int64)
    ends, label, merged = _merge_copies(indptr, scores.indices, scores.data, label_of, labels, width, most)
    return csr_matrix((merged, label, ends), shape=(scores.shape[0], labels))


@njit(cache=True, nogil=True)
def _merge_copies(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    label_of: np.ndarray,
    labels: int,
    averaged: int,
    most: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = len(indptr) - 1
    ends = np.zeros(rows + 1, np.int64)
    bound = 0
    for row in range(rows):
        bound += min(indptr[row + 1] - indptr[row], most)
    chosen, scores = np.empty(bound, np.int32), np.empty(bound, np.float32)
    total, times, last_row = np.zeros(labels), np.zeros(labels, np.int32), np.full(labels, -1, np.int64)
    for row in range(rows):
        listed = np.empty(min(indptr[row + 1] - indptr[row], labels), np.int32)
        count = 0
        for place in range(indptr[row], indptr[row + 1]):
            label = label_of[indices[place]]
            if last_row[label] != row:
                last_row[label], total[label], times[label] = row, data[place], 1
                listed[count] = label
                count += 1
            elif place < indptr[row] + averaged:
                total[label] += data[place]
                times[label] += 1
        keys = np.empty(count, np.float32)
        for place in range(count):
            keys[place] = total[listed[place]] / times[listed[place]]
        kept, used = min(count, most), ends[row]
        _best_first(keys, listed[:count], kept)
        chosen[used : used + kept], scores[used : used + kept] = listed[:kept], keys[:kept]
        ends[row + 1] = used + kept
    return ends, chosen[: ends[rows]].copy(), scores[: ends[rows]].copy()


@njit(cache=True, nogil=True)
def _best_first(keys: np.ndarray, labels: np.ndarray, most: int) -> None:
    """Sort both by heap so that the `most` largest keys come first; of equal keys the lower label comes first."""
    size = len(keys)
    if not most:
        return
    for place in range(size // 2 - 1, -1, -1):
        _sift(keys, labels, place, size)
    for end in range(size - 1, size - 1 - most, -1):
        keys[0], keys[end] = keys[end], keys[0]
        labels[0], labels[end] = labels[end], labels[0]
        _sift(keys, labels, 0, end)
    keys[:], labels[:] = keys[::-1].copy(), labels[::-1].copy()


@njit(cache=True, nogil=True)
def _sift(keys: np.ndarray, labels: np.ndarray, place: int, size: int) -> None:
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(keys, labels, below + 1, below):
            below += 1
        if not _before(keys, labels, below, place):
            return
        keys[place], keys[below] = keys[below], keys[place]
        labels[place], labels[below] = labels[below], labels[place]
        place = below


@njit(cache=True, nogil=True)
def _before(keys: np.ndarray, labels: np.ndarray, one: int, other: int) -> bool:
    return keys[one] > keys[other] or (keys[one] == keys[other] and labels[one] < labels[other])
