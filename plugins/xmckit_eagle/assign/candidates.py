"""All rows that a label could go to, group by group, with scores that may change before the choice is made."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit_eagle.assign.choice import Choice


@dataclass(frozen=True)
class CandidateRows:
    """The rows that each label of each group could go to.

    A pair is a label of a group; its candidates are the group's rows that have features. Pairs are in the order of
    labels, then groups: those of label l are `label_start[l]` to `label_start[l + 1]`, and the candidates of pair p are
    `start[p]` to `start[p + 1]`. `times` says how often the group has the label. `scores` are comparable within a pair
    only.
    """

    label_start: np.ndarray
    groups: np.ndarray
    times: np.ndarray
    start: np.ndarray
    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def from_ranking(cls, ranking: Choice, labels: csr_matrix) -> CandidateRows:
        """Read a ranking of all rows of each pair; `labels` (groups × labels) says how often a group has a label."""
        first = np.ones(len(ranking), dtype=bool)
        first[1:] = (np.diff(ranking.labels) != 0) | (np.diff(ranking.groups) != 0)
        begins = np.flatnonzero(first)
        pair_groups, pair_labels = ranking.groups[begins], ranking.labels[begins]
        times = np.asarray(labels[pair_groups, pair_labels]).ravel() if len(begins) else np.empty(0)
        return cls(
            label_start=np.searchsorted(pair_labels, np.arange(labels.shape[1] + 1)).astype(np.int64),
            groups=pair_groups.astype(np.int64),
            times=np.maximum(np.rint(times), 1).astype(np.int64),
            start=np.concatenate([begins, [len(ranking)]]).astype(np.int64),
            rows=ranking.rows.astype(np.int32),
            scores=ranking.scores.astype(np.float64),
        )

    @property
    def labels(self) -> np.ndarray:
        """Return the label of each pair."""
        return np.repeat(np.arange(len(self.label_start) - 1), np.diff(self.label_start))

    @property
    def pairs(self) -> np.ndarray:
        """Return the pair of each candidate."""
        return np.repeat(np.arange(len(self.times)), np.diff(self.start))

    @property
    def single_group(self) -> np.ndarray:
        """Mark the pairs of labels that only one group has: nothing can be learned about such a label."""
        number = np.diff(self.label_start)
        return np.repeat(number == 1, number)

    def with_scores(self, scores: np.ndarray) -> CandidateRows:
        return replace(self, scores=scores)

    def best(self, take: np.ndarray) -> np.ndarray:
        """Mark the `take` best candidates of each pair; of equal ones the first."""
        chosen = np.zeros(len(self.rows), dtype=np.bool_)
        _mark_best(self.start, self.scores, take, chosen)
        return chosen

    def choice(self, chosen: np.ndarray) -> Choice:
        """Return the marked candidates; a margin is the distance to the best candidate of the pair without a mark."""
        pairs = self.pairs
        rest = np.full(len(self.times), -np.inf)
        np.maximum.at(rest, pairs[~chosen], self.scores[~chosen])
        marked = np.flatnonzero(chosen)
        marked = marked[np.lexsort((-self.scores[marked], pairs[marked]))]
        pairs, scores = pairs[marked], self.scores[marked]
        return Choice(
            self.groups[pairs].astype(np.int64),
            self.labels[pairs],
            self.rows[marked].astype(np.int64),
            scores.astype(np.float32),
            (scores - rest[pairs]).astype(np.float32),
        )

    def standardise(self, scores: np.ndarray) -> np.ndarray:
        """Scale scores to mean 0 in each pair and mean square 1 over the pairs of a label; 0 if all are equal."""
        sizes = np.diff(self.start)
        if not len(sizes):
            return scores.astype(np.float64)
        centred = scores - (np.add.reduceat(scores, self.start[:-1]) / sizes)[self.pairs]
        label_start = self.start[self.label_start]
        running = np.concatenate([[0.0], np.cumsum(centred**2)])
        number = np.maximum(np.diff(label_start), 1)
        spread = np.sqrt(np.maximum(np.diff(running[label_start]), 0.0) / number)
        spread = np.where(spread > 1e-9 * (np.abs(scores).max(initial=0.0) + 1e-300), spread, np.inf)
        return np.asarray(centred / np.repeat(spread, np.diff(label_start)))


@njit(cache=True, nogil=True)
def _mark_best(start: np.ndarray, scores: np.ndarray, take: np.ndarray, chosen: np.ndarray) -> None:
    for pair in range(len(take)):
        if take[pair]:
            begin, end = start[pair], start[pair + 1]
            for place in np.argsort(-scores[begin:end], kind="mergesort")[: take[pair]]:
                chosen[begin + place] = True
