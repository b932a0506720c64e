"""Several models as one: their rankings and their label sets combined, row by row.

The candidates of a row are all labels that at least one member lists. What a member says about a candidate is, by rule:

- `average`: the probability σ(score); 0 where it does not list the label.
- `softmax`: the label's share in a softmax over the scores that the member lists; 0 where it does not list the label.
- `rank`: the place in the member's list, from 1; the place behind its last one where it does not list the label, so
  that a member with a short list, or none, does not say more about what it leaves out than about what it lists last.

Candidates are ordered by the mean over the members. Their scores are the logits of the mean, so that an average of one
member is that member, or for `rank` minus the mean place. Among equal means the label with the highest score that any
member gives it comes first, then the lower label id.
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

BLOCK = 1 << 14  # rows whose lists stand beside each other at a time
_AVERAGE, _RANK, _SOFTMAX = range(3)
_CODES = dict(zip(get_args(Combining), (_AVERAGE, _RANK, _SOFTMAX), strict=True))
_LARGEST = 1e30  # so that a score of inf, minus another, stays a number
_TINY = float(np.finfo(np.float64).tiny)
# What is known of a candidate: its highest score, what speaks for and against it, how many members list it.
_HIGHEST, _FOR, _AGAINST, _LISTS = range(4)


def combine_rankings(rankings: Sequence[TopK], k: int, rule: Combining = "average") -> TopK:
    """The best `k` labels of each row by all `rankings` together; lists may have different lengths."""
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
        said = np.concatenate([ranking.scores[part] for ranking in rankings], axis=1)
        _combine(labels, said, starts, _CODES[rule], indices[part], scores[part])
    return TopK(indices, scores)


def combine_sets(sets: Sequence[csr_matrix]) -> csr_matrix:
    """The labels that more than half of the members output."""
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
    """Fill the result. The list of member m is in the columns from `starts[m]` to `starts[m + 1]`."""
    rows, width = labels.shape
    members = len(starts) - 1
    listed, facts = np.empty(width, np.int64), np.empty((width, 4))
    means, heap = np.empty(width), np.empty(width, np.int64)
    table, places = np.zeros(slots_for(width), np.int64), np.empty(slots_for(width), np.int64)
    for row in range(rows):
        count = 0
        for member in range(members):
            here = slice(starts[member], starts[member + 1])
            count += _hear(labels[row, here], scores[row, here], rule, listed[count:], facts[count:])
        behind = count + members  # the places behind the last ones of all members, added up
        found = _merge(listed[:count], facts[:count], row, table, places)
        for place in range(found):
            heap[place] = place
            if rule == _RANK:
                means[place] = -(facts[place, _FOR] + behind) / members
            else:
                against = facts[place, _AGAINST] + (members - facts[place, _LISTS])
                means[place] = _log(facts[place, _FOR]) - _log(against)
        for place in range(found // 2 - 1, -1, -1):
            _sift(heap[:found], place, means, facts, listed)
        for place in range(min(found, out_labels.shape[1])):
            out_labels[row, place], out_scores[row, place] = listed[heap[0]], means[heap[0]]
            left = found - place - 1
            heap[0] = heap[left]
            _sift(heap[:left], 0, means, facts, listed)


@njit(cache=True, nogil=True)
def _hear(labels: np.ndarray, scores: np.ndarray, rule: int, listed: np.ndarray, facts: np.ndarray) -> int:
    """Write down what one member says about each label of its list; the list's length. By rank that is the place less
    the one behind the last, which is 0 for what the member does not list.
    """
    size = 0
    while size < len(labels) and labels[size] >= 0:
        size += 1
    rest = 0.0  # of the softmax's sum, in which the first label counts 1
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
    """Add up what was said about the same label, in place; the number of labels.

    `table` is a hash table of labels, and `places` says where each stands. An entry is (row + 1) · 2³² + label, so that
    those of other rows count as empty and nothing is cleared.
    """
    mask, found = len(table) - 1, 0
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
            table[slot], places[slot] = entry, found
            listed[found], facts[found] = label, facts[place]
            found += 1
    return found


@njit(cache=True, nogil=True)
def _sift(heap: np.ndarray, place: int, means: np.ndarray, facts: np.ndarray, listed: np.ndarray) -> None:
    """Restore a heap of candidates whose root is the best, except at `place`."""
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
    """Of 0 that of the smallest number, so that differences stay numbers."""
    return np.log(value if value > _TINY else _TINY)
