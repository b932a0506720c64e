"""Numbers and rows for the report beside the metrics: curves by label frequency, calibration, examples.

Everything here is a few hundred numbers and a few dozen rows, regardless of the size of the data, and is computed over
rows × (places of the ranking) and over the true pairs, never over rows × labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.components.metrics import inverse_propensity
from xmckit.context import Context
from xmckit.data.model import Dataset, as_csr
from xmckit.errors import shorten
from xmckit.records import TopK

FREQUENCY_EDGES = (0, 1, 2, 6, 21, 101, 1001)
DEEPEST = 20
BINS = 15
GROUPS = ("head", "torso", "tail")  # stored names of frequent, middle and rare labels; reports translate them
PER_KIND = 6
LONGEST_TEXT, LONGEST_LABEL, MOST_LABELS = 600, 200, 40
RIGHT, PARTLY, WRONG, SURELY = "all right", "partly right", "nothing right", "sure and wrong"


class Output(NamedTuple):
    """What one system predicts of the test rows; `probabilistic`: σ(score) is meant as a probability."""

    name: str
    role: str
    ranking: TopK
    sets: csr_matrix
    probabilistic: bool


def diagnose(
    outputs: Sequence[Output],
    dataset: Dataset,
    train_counts: np.ndarray,
    constants: tuple[float, float],
    k: int,
) -> dict[str, Any]:
    """Compute the numbers behind the report's charts, for each system; calibration only if it is probabilistic."""
    by_rank = np.sort(train_counts[train_counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, max(len(by_rank), 1), 200).astype(np.int64))[: len(by_rank)]
    truth = _Truth(dataset)
    weights = inverse_propensity(train_counts, dataset.train.rows, *constants)
    bounds = thirds(train_counts)
    # The group of each label: 0 frequent, 1 middle, 2 rare.
    third_of = np.where(train_counts >= bounds[0], 0, np.where(train_counts >= bounds[1], 1, 2)).astype(np.int8)
    bin_of = (np.searchsorted(FREQUENCY_EDGES, train_counts, side="right") - 1).astype(np.int8)
    deepest = max(k, DEEPEST)
    grouped = [
        _Grouped.by(group_of, groups, truth, weights, deepest)
        for group_of, groups in ((np.zeros_like(bin_of), 1), (third_of, len(GROUPS)), (bin_of, len(FREQUENCY_EDGES)))
    ]
    systems = []
    for output in outputs:
        ranked = truth.first_places(output.ranking, deepest)
        of_all, by_third, by_bin = (one.numbers(ranked, weights) for one in grouped)
        at_k = min(k, ranked.labels.shape[1]) - 1
        systems.append(
            {
                "name": output.name,
                "role": output.role,
                "all": {key: values[0, :DEEPEST].tolist() for key, values in of_all.items()},
                "thirds": {key: values[:, :DEEPEST].tolist() for key, values in by_third.items()},
                "bins": {key: values[:, at_k].tolist() for key, values in by_bin.items()},
                "calibration": calibration(ranked, k) if output.probabilistic else None,
            }
        )
    return {
        "frequency": {"rank": ranks.tolist(), "count": by_rank[ranks - 1].tolist()},
        "k": k,
        "rows": dataset.test.rows,
        "groups": [
            {
                "name": name,
                "labels": int((third_of == group).sum()),
                "least": [bounds[0], bounds[1], 0][group],
                "pairs": int((third_of[truth.labels] == group).sum()),
            }
            for group, name in enumerate(GROUPS)
        ],
        "edges": list(FREQUENCY_EDGES),
        "bin_labels": np.bincount(bin_of, minlength=len(FREQUENCY_EDGES)).tolist(),
        "bin_pairs": np.bincount(bin_of[truth.labels], minlength=len(FREQUENCY_EDGES)).tolist(),
        "systems": systems,
    }


def thirds(train_counts: np.ndarray) -> tuple[int, int]:
    """Return the fewest training rows of a frequent label and of a middle label.

    The most frequent labels that have a third of all label occurrences are frequent, those of the next third are
    middle, and the rest are rare. Labels of equal frequency are in the same group.
    """
    by_rank = np.sort(train_counts)[::-1]
    held = np.cumsum(by_rank)
    if not len(held) or not held[-1]:
        return 1, 1
    frequent, middle = (int(by_rank[np.searchsorted(held, share * held[-1] / 3)]) for share in (1, 2))
    return frequent, min(middle, frequent)


class _Truth:
    """The true pairs that count, sorted, with one number for each."""

    def __init__(self, dataset: Dataset):
        test = dataset.test
        self.width = dataset.labels
        Y = as_csr(test.Y)
        self.rows = np.repeat(np.arange(Y.shape[0], dtype=np.int64), np.diff(Y.indptr))
        self.labels = Y.indices.astype(np.int64)
        self.keys = self.rows * self.width + self.labels
        self.dropped = np.empty(0, dtype=np.int64)
        if test.filter is not None:
            left_out = as_csr(test.filter)
            rows = np.repeat(np.arange(left_out.shape[0], dtype=np.int64), np.diff(left_out.indptr))
            self.dropped = rows * self.width + left_out.indices
            kept = ~_is_among(self.keys, self.dropped)
            self.rows, self.labels, self.keys = self.rows[kept], self.labels[kept], self.keys[kept]

    def first_places(self, topk: TopK, deepest: int) -> _Ranked:
        """Return the first places of a ranking without filtered pairs; the labels behind them move up."""
        labels, scores = topk.indices, topk.scores
        if len(self.dropped):
            rows = np.arange(topk.rows, dtype=np.int64)[:, None]
            out = (labels >= 0) & _is_among(rows * self.width + labels, self.dropped)
            order = np.argsort(out, axis=1, kind="stable")
            labels = np.take_along_axis(np.where(out, -1, labels), order, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
        labels, scores = labels[:, :deepest], scores[:, :deepest]
        keys = np.arange(topk.rows, dtype=np.int64)[:, None] * self.width + labels
        return _Ranked(labels, scores, (labels >= 0) & _is_among(keys, self.keys))


class _Ranked(NamedTuple):
    """Labels, scores and whether they are right, rows × places."""

    labels: np.ndarray
    scores: np.ndarray
    hits: np.ndarray


def _is_among(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return which of `keys` are in the sorted `known`."""
    if not len(known):
        return np.zeros(keys.shape, dtype=bool)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[places] == keys)


class _Grouped(NamedTuple):
    """Labels in groups: the group of each label, and the largest possible numbers of each group at each depth."""

    of: np.ndarray
    groups: int
    possible: np.ndarray
    best_gain: np.ndarray

    @staticmethod
    def by(group_of: np.ndarray, groups: int, truth: _Truth, weights: np.ndarray, depth: int) -> _Grouped:
        """Group labels; the true labels of a row with the largest weights fill the first places of a group."""
        of_pair, worth = group_of[truth.labels].astype(np.int64), weights[truth.labels]
        order = np.lexsort((-worth, truth.rows * groups + of_pair))
        together, of_pair, worth = (truth.rows * groups + of_pair)[order], of_pair[order], worth[order]
        first = np.flatnonzero(np.concatenate([[True], together[1:] != together[:-1]])) if len(order) else order
        rank = np.arange(len(order)) - np.repeat(first, np.diff(np.concatenate([first, [len(order)]])))
        within = rank < depth
        cell = of_pair[within] * depth + rank[within]
        possible, best = (
            np.cumsum(np.bincount(cell, weights=each, minlength=groups * depth).reshape(groups, depth), axis=1)
            for each in (None, worth[within])
        )
        return _Grouped(group_of, groups, possible, best)

    def numbers(self, ranked: _Ranked, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Count, by group and depth, the places given to labels of a group, the right ones, and their weights.

        `possible` and `best_gain` are the largest possible values of `right` and `gain` in as many places.
        """
        depth = ranked.labels.shape[1]
        cell = self.of[ranked.labels].astype(np.int64) * depth + np.arange(depth)

        def total(chosen: np.ndarray, weighted: bool = False) -> np.ndarray:
            worth = weights[ranked.labels[chosen]] if weighted else None
            sums = np.bincount(cell[chosen], weights=worth, minlength=self.groups * depth)
            return np.cumsum(sums.reshape(self.groups, depth), axis=1)

        return {
            "predicted": total(ranked.labels >= 0),
            "right": total(ranked.hits),
            "possible": self.possible[:, :depth],
            "gain": total(ranked.hits, weighted=True),
            "best_gain": self.best_gain[:, :depth],
        }


def calibration(ranked: _Ranked, k: int) -> dict[str, Any] | None:
    """Compare σ(score) of the first `k` places with the share that is right, in bins of equal width.

    `ece` is the mean distance of the two over bins, weighted by their sizes. Return None if nothing is predicted.
    """
    listed = (ranked.labels[:, :k] >= 0) & np.isfinite(ranked.scores[:, :k])
    scores = ranked.scores[:, :k][listed].astype(np.float64)
    hits = ranked.hits[:, :k][listed]
    if not len(scores):
        return None
    small = np.exp(-np.abs(scores))
    probability = np.where(scores >= 0, 1 / (1 + small), small / (1 + small))
    bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
    sizes = np.bincount(bins, minlength=BINS)
    filled = np.flatnonzero(sizes)
    said = np.bincount(bins, weights=probability, minlength=BINS)[filled] / sizes[filled]
    true = np.bincount(bins, weights=hits, minlength=BINS)[filled] / sizes[filled]
    return {
        "k": k,
        "places": len(scores),
        "said": said.tolist(),
        "true": true.tolist(),
        "sizes": sizes[filled].tolist(),
        "mean_said": float(probability.mean()),
        "mean_true": float(hits.mean()),
        "ece": float(np.abs(said - true) @ sizes[filled] / len(scores)),
    }


def examples(topk: TopK, dataset: Dataset, k: int, context: Context) -> list[dict[str, Any]]:
    """Choose a few test rows of each kind: drawn by seed, except the wrong ones with the highest scores."""
    truth = _Truth(dataset)
    ranked = truth.first_places(topk, k)
    relevant = np.bincount(truth.rows, minlength=topk.rows)
    hits = ranked.hits.sum(axis=1)
    labelled = (relevant > 0) & (ranked.labels[:, 0] >= 0)
    kinds = {
        RIGHT: labelled & (hits == np.minimum(relevant, ranked.labels.shape[1])),
        PARTLY: labelled & (hits > 0) & (hits < np.minimum(relevant, ranked.labels.shape[1])),
        WRONG: labelled & (hits == 0),
    }
    chosen: dict[int, str] = {}
    wrong_first = np.flatnonzero(labelled & ~ranked.hits[:, 0])
    for row in wrong_first[np.argsort(-ranked.scores[wrong_first, 0], kind="stable")][:PER_KIND].tolist():
        chosen[row] = SURELY
    rng = context.rng("examples")
    for kind, mask in kinds.items():
        rows = np.flatnonzero(mask)
        for row in np.sort(rng.choice(rows, size=min(PER_KIND, len(rows)), replace=False)).tolist():
            chosen.setdefault(row, kind)
    order = [RIGHT, PARTLY, WRONG, SURELY]
    return [
        _example(row, kind, ranked, truth, dataset)
        for row, kind in sorted(chosen.items(), key=lambda item: (order.index(item[1]), item[0]))
    ]


def _example(row: int, kind: str, ranked: _Ranked, truth: _Truth, dataset: Dataset) -> dict[str, Any]:
    test = dataset.test
    start, end = np.searchsorted(truth.rows, [row, row + 1])
    own = truth.labels[start:end].tolist()
    places = zip(ranked.labels[row].tolist(), ranked.scores[row].tolist(), ranked.hits[row].tolist(), strict=True)
    return {
        "kind": kind,
        "row": row,
        "name": shorten(test.names[row], LONGEST_LABEL) if test.names is not None else None,
        "text": shorten(test.texts[row], LONGEST_TEXT) if test.texts is not None else None,
        "predicted": [
            {
                "label": shorten(dataset.label(label), LONGEST_LABEL),
                "score": score if np.isfinite(score) else None,
                "hit": hit,
            }
            for label, score, hit in places
            if label >= 0
        ],
        "truth": [
            {"label": shorten(dataset.label(label), LONGEST_LABEL), "found": label in ranked.labels[row]}
            for label in own[:MOST_LABELS]
        ],
        "true_labels": len(own),
    }
