"""Combine the rankings and the label sets of several models, the members of an ensemble, row by row.

The candidates of a row are all labels that at least one member lists. Each member gives a candidate a value:

- `average`: the probability σ(score), or 0 if the member does not list the label.
- `softmax`: the label's share in a softmax over the scores that the member lists, or 0 if it does not list the label.
- `rank`: the rank in the member's list, from 1. A label that the member does not list gets the rank after its last one,
  so that a short or empty list counts no more against the labels that it lacks than against its own last one.

Candidates are ordered by the mean over the members. Their scores are the logits of the mean, so that the average of one
member is that member; for `rank`, they are minus the mean rank. Among equal means, the label with the highest score by
any member comes first, then the lower label id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit.errors import DataError
from xmckit.records import Combining, TopK
from xmckit.sparse.topk import slots_for

BLOCK = 1 << 14  # rows that are combined at a time
_AVERAGE, _RANK, _SOFTMAX = range(3)
_CODES = dict(zip(get_args(Combining), (_AVERAGE, _RANK, _SOFTMAX), strict=True))
_LARGEST = 1e30  # limit of scores, so that differences with inf stay numbers
_TINY = float(np.finfo(np.float64).tiny)
# Columns of `facts` per candidate: highest score, sum of values, sum of their complements, members that list it.
_HIGHEST, _FOR, _AGAINST, _LISTS = range(4)


def combine_rankings(rankings: Sequence[TopK], k: int, rule: Combining = "average") -> TopK:
    """Return the best `k` labels of each row by all `rankings` together; lists may have different lengths."""
    rows = rankings[0].rows
    for ranking in rankings:
        if ranking.rows != rows:
            raise DataError(f"rankings of {rows} and of {ranking.rows} rows cannot be combined")
        if len(wrong := np.flatnonzero(np.isnan(ranking.scores).any(axis=1))):
            raise DataError("a predicted score is not a number (NaN)", row=int(wrong[0]))
    starts = np.cumsum([0, *(ranking.k for ranking in rankings)])
    indices, scores = np.full((rows, k), -1, dtype=np.int32), np.full((rows, k), -np.inf, dtype=np.float32)
    for start in range(0, rows, BLOCK):
        part = slice(start, start + BLOCK)
        labels = np.concatenate([ranking.indices[part] for ranking in rankings], axis=1)
        member_scores = np.concatenate([ranking.scores[part] for ranking in rankings], axis=1)
        _combine(labels, member_scores, starts, _CODES[rule], indices[part], scores[part])
    return TopK(indices, scores)


def combine_sets(sets: Sequence[csr_matrix]) -> csr_matrix:
    """Return the labels that more than half of the members output."""
    votes = csr_matrix(sum(one.astype(bool).astype(np.float32) for one in sets))
    votes.data = (votes.data > len(sets) / 2).astype(np.float32)
    votes.eliminate_zeros()
    return votes


@njit(cache=True, nogil=True)
def _combine(
    labels: np.ndarray,
    scores: np.ndarray,
    starts: np.ndarray,
    rule: int,
    out_labels: np.ndarray,
    out_scores: np.ndarray,
) -> None:
    """Fill `out_labels` and `out_scores`. Columns `starts[m]` to `starts[m + 1]` hold the list of member m."""
    rows, width = labels.shape
    members = len(starts) - 1
    listed, facts = np.empty(width, np.int64), np.empty((width, 4))
    means, heap = np.empty(width), np.empty(width, np.int64)
    table, places = np.zeros(slots_for(width), np.int64), np.empty(slots_for(width), np.int64)
    for row in range(rows):
        count = 0
        for member in range(members):
            here = slice(starts[member], starts[member + 1])
            count += _read_member(labels[row, here], scores[row, here], rule, listed[count:], facts[count:])
        after_last = count + members  # sum over the members of the rank after their last one
        candidates = _merge(listed[:count], facts[:count], row, table, places)
        for place in range(candidates):
            heap[place] = place
            if rule == _RANK:
                means[place] = -(facts[place, _FOR] + after_last) / members
            else:
                against = facts[place, _AGAINST] + (members - facts[place, _LISTS])
                means[place] = _log(facts[place, _FOR]) - _log(against)
        for place in range(candidates // 2 - 1, -1, -1):
            _sift(heap[:candidates], place, means, facts, listed)
        for place in range(min(candidates, out_labels.shape[1])):
            out_labels[row, place], out_scores[row, place] = listed[heap[0]], means[heap[0]]
            left = candidates - place - 1
            heap[0] = heap[left]
            _sift(heap[:left], 0, means, facts, listed)


@njit(cache=True, nogil=True)
def _read_member(labels: np.ndarray, scores: np.ndarray, rule: int, listed: np.ndarray, facts: np.ndarray) -> int:
    """Write the facts of each label in one member's list, and return the list's length.

    For `rank`, the value is the rank minus the rank after the last, so that a label outside the list has the value 0.
    """
    size = 0
    while size < len(labels) and labels[size] >= 0:
        size += 1
    rest = 0.0  # the softmax's sum without the first label, which counts 1
    for place in range(size):
        listed[place] = labels[place]
        facts[place, _HIGHEST] = min(max(np.float64(scores[place]), -_LARGEST), _LARGEST)
        facts[place, _LISTS] = 1
        if place:
            rest += np.exp(facts[place, _HIGHEST] - facts[0, _HIGHEST])
    for place in range(size):
        score = facts[place, _HIGHEST]
        if rule == _RANK:
            facts[place, _FOR], facts[place, _AGAINST] = place - size, 0
        elif rule == _SOFTMAX:
            share = np.exp(score - facts[0, _HIGHEST]) / (1 + rest)
            facts[place, _FOR], facts[place, _AGAINST] = share, 1 - share if place else rest / (1 + rest)
        else:
            small = np.exp(-abs(score))
            more, less = 1 / (1 + small), small / (1 + small)
            facts[place, _FOR], facts[place, _AGAINST] = (more, less) if score > 0 else (less, more)
    return size


@njit(cache=True, nogil=True)
def _merge(listed: np.ndarray, facts: np.ndarray, row: int, table: np.ndarray, places: np.ndarray) -> int:
    """Add up the facts of the same label in place, and return the number of different labels.

    `table` is a hash table of labels, and `places` holds the position of each label. An entry is (row + 1) · 2³² +
    label: entries of other rows count as empty, so the table need not be cleared.
    """
    mask, count = len(table) - 1, 0
    for place in range(len(listed)):
        label = listed[place]
        entry = (np.int64(row + 1) << 32) | label
        slot = ((label * 0x9E3779B1) >> 12) & mask
        while table[slot] >> 32 == row + 1 and table[slot] != entry:
            slot = (slot + 1) & mask
        if table[slot] == entry:
            first = places[slot]
            highest = max(facts[first, _HIGHEST], facts[place, _HIGHEST])
            facts[first] += facts[place]
            facts[first, _HIGHEST] = highest
        else:
            table[slot], places[slot] = entry, count
            listed[count], facts[count] = label, facts[place]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _sift(heap: np.ndarray, place: int, means: np.ndarray, facts: np.ndarray, listed: np.ndarray) -> None:
    """Restore the heap of candidates, with the best at its root, after a change at `place`."""
    while 2 * place + 1 < len(heap):
        child = 2 * place + 1
        if child + 1 < len(heap) and _before(heap[child + 1], heap[child], means, facts, listed):
            child += 1
        if not _before(heap[child], heap[place], means, facts, listed):
            return
        heap[place], heap[child] = heap[child], heap[place]
        place = child


@njit(cache=True, nogil=True)
def _before(one: int, other: int, means: np.ndarray, facts: np.ndarray, listed: np.ndarray) -> bool:
    if means[one] != means[other]:
        return means[one] > means[other]
    if facts[one, _HIGHEST] != facts[other, _HIGHEST]:
        return facts[one, _HIGHEST] > facts[other, _HIGHEST]
    return listed[one] < listed[other]


@njit(cache=True, nogil=True)
def _log(value: float) -> float:
    """Return the logarithm of a value, or of the smallest normal number if that is larger, so that it is finite."""
    return np.log(value if value > _TINY else _TINY)
