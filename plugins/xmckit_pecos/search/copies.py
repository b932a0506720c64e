"""Turn scores of pseudo-labels into scores of labels: a label in several leaves may be retrieved several times."""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit_pecos.search.ranking import keep_best, key_place, key_score, rank_key


def scores_of_labels(scores: csr_matrix, label_of: np.ndarray, labels: int, k: int, averaged: int) -> csr_matrix:
    """Turn rows × copies into rows × labels, both best first, and keep the best `k` labels of each row.

    A label has the mean score of its copies among the first `averaged` of a row. A label without a copy among these,
    which cannot be better than any that has one, gets the score of its best copy. So the score of a label does not
    depend on `k`.
    """
    indptr, most = scores.indptr.astype(np.int64), min(k, labels)
    ends, label, merged = _merge_copies(indptr, scores.indices, scores.data, label_of, labels, averaged, most)
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
        keys = np.empty(count, np.uint64)
        for i in range(count):
            keys[i] = rank_key(np.float32(total[listed[i]] / times[listed[i]]), listed[i])
        if count > most:
            count = keep_best(keys, count, most)
        keys[:count].sort()
        for i in range(count):
            key = keys[count - 1 - i]
            chosen[ends[row] + i], scores[ends[row] + i] = key_place(key), key_score(key)
        ends[row + 1] = ends[row] + count
    return ends, chosen[: ends[rows]].copy(), scores[: ends[rows]].copy()
