"""All rows that a label could be given to, group by group, with scores that may change before the choice is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit_eagle.assign.choice import Choice

SORTED = 16  # more candidates of a pair than this are found by sorting, fewer one by one


@dataclass(frozen=True)
class Candidates:
    """A pair is a label of a group; its candidates are the group's rows that have features.

    Pairs are in the order of labels, then groups: those of label l are `of_label[l]` to `of_label[l + 1]`, and the
    candidates of pair p are `start[p]` to `start[p + 1]`. `times`: how often the group has the label. `scores` are
    comparable within a pair only.
    """

    of_label: np.ndarray
    groups: np.ndarray
    times: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    scores: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """The label of each pair."""
        return np.repeat(np.arange(len(self.of_label) - 1), np.diff(self.of_label))

    @property
    def alone(self) -> np.ndarray:
        """Which pairs belong to a label that no other group has: nothing can be learned about it."""
        number = np.diff(self.of_label)
        return np.repeat(number == 1, number)

    def with_scores(self, scores: np.ndarray) -> Candidates:
        return replace(self, scores=scores)

    def best(self, take: np.ndarray) -> np.ndarray:
        """Which candidates are among the `take` best of their pair; of equal ones the first."""
        chosen = np.zeros(len(self.rows), dtype=np.bool_)
        _mark_best(self.start, self.scores, np.asarray(take, dtype=np.int64), chosen)
        return chosen

    def choice(self, chosen: np.ndarray) -> Choice:
        """The marked candidates; a margin is the distance to the best candidate of the pair that is not marked."""
        pairs = np.repeat(np.arange(len(self.times)), np.diff(self.start))
        rest = np.full(len(self.times), -np.inf)
        np.maximum.at(rest, pairs[~chosen], self.scores[~chosen])
        places = np.flatnonzero(chosen)
        places = places[np.lexsort((-self.scores[places], pairs[places]))]
        of, scores = pairs[places], self.scores[places]
        return Choice(
            self.groups[of].astype(np.int64),
            self.labels[of],
            self.rows[places].astype(np.int64),
            scores.astype(np.float32),
            (scores - rest[of]).astype(np.float32),
        )


def candidates(ranking: Choice, labels: csr_matrix) -> Candidates:
    """From a ranking of all rows of each pair; `labels` (groups × labels) says how often a group has a label."""
    first = np.ones(len(ranking), dtype=bool)
    first[1:] = (np.diff(ranking.labels) != 0) | (np.diff(ranking.groups) != 0)
    begins = np.flatnonzero(first)
    groups, of = ranking.groups[begins], ranking.labels[begins]
    times = np.asarray(labels[groups, of]).ravel() if len(begins) else np.empty(0)
    return Candidates(
        of_label=np.searchsorted(of, np.arange(labels.shape[1] + 1)).astype(np.int64),
        groups=groups.astype(np.int64),
        times=np.maximum(np.rint(times), 1).astype(np.int64),
        start=np.concatenate([begins, [len(ranking)]]).astype(np.int64),
        rows=ranking.rows.astype(np.int32),
        scores=ranking.scores.astype(np.float64),
    )


def standardised(these: Candidates, scores: np.ndarray) -> np.ndarray:
    """Scores with mean 0 within each pair and, over the pairs of a label, mean square 1 (0 where all are equal)."""
    sizes = np.diff(these.start)
    if not len(sizes):
        return scores.astype(np.float64)
    pairs = np.repeat(np.arange(len(sizes)), sizes)
    centred = scores - (np.add.reduceat(scores, these.start[:-1]) / sizes)[pairs]
    of_label = these.start[these.of_label]
    running = np.concatenate([[0.0], np.cumsum(centred**2)])
    number = np.maximum(np.diff(of_label), 1)
    spread = np.sqrt(np.maximum(np.diff(running[of_label]), 0.0) / number)
    spread = np.where(spread > 1e-9 * (np.abs(scores).max(initial=0.0) + 1e-300), spread, np.inf)
    return np.asarray(centred / np.repeat(spread, np.diff(of_label)))


@njit(cache=True, nogil=True)
def _mark_best(start: np.ndarray, scores: np.ndarray, take: np.ndarray, chosen: np.ndarray) -> None:
    for pair in range(len(take)):
        begin, end = start[pair], start[pair + 1]
        if take[pair] > SORTED:
            for place in np.argsort(-scores[begin:end], kind="mergesort")[: take[pair]]:
                chosen[begin + place] = True
            continue
        for _ in range(min(take[pair], end - begin)):
            top = -1
            for place in range(begin, end):
                if not chosen[place] and (top < 0 or scores[place] > scores[top]):
                    top = place
            chosen[top] = True
