"""Metrics of rankings and of label sets. `docs/metrics.md` has the definitions and the rules for special rows.

All values are shares between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import params
from xmckit.data.model import as_csr
from xmckit.errors import DataError, UsageError, nearest
from xmckit.records import Evaluation, TopK
from xmckit.sparse import scoring
from xmckit.sparse.csr import Pattern, csr_pattern
from xmckit.sparse.topk import topk_csr

# (A, B) of Jain et al. 2016 by family of data sets.
PROPENSITY_FAMILIES: dict[str, tuple[float, float]] = {
    "wikipedia": (0.5, 0.4),
    "amazon": (0.6, 2.6),
    "other": (0.55, 1.5),
}


class RankingMetrics(params.Configured):
    """P, nDCG, R, F1, PSP, PSnDCG and coverage at each k."""

    class Params(params.Params):
        k: list[Annotated[int, Field(ge=1)]] = Field(
            [1, 3, 5], min_length=1, description="Numbers of top labels to score, such as [1, 3, 5]."
        )

    def compute(self, evaluation: Evaluation) -> Mapping[str, float]:
        A, B = evaluation.propensity
        return rank_metrics(
            evaluation.topk,
            evaluation.truth,
            ks=self.params.k,
            inverse_propensity=inverse_propensity(evaluation.train_counts, evaluation.train_rows, A, B),
            filtered=evaluation.filtered,
            workers=evaluation.workers,
        )


class SetMetrics(params.Configured):
    """Micro and macro F1 of the label sets; none for a head that outputs no sets."""

    def compute(self, evaluation: Evaluation) -> Mapping[str, float]:
        if evaluation.sets is None:
            return {}
        return set_metrics(evaluation.sets, evaluation.truth, filtered=evaluation.filtered)


def propensity_constants(family: str | Sequence[float] | None) -> tuple[float, float]:
    """Return (A, B) for a family ("wikipedia", "amazon", "other"), for a pair of numbers, or for None ("other")."""
    family = "other" if family is None else family
    if isinstance(family, str):
        if family.lower() not in PROPENSITY_FAMILIES:
            raise UsageError(
                f"no propensity constants for '{family}', expected {', '.join(PROPENSITY_FAMILIES)} "
                f"or a pair of numbers (A, B){nearest(family.lower(), PROPENSITY_FAMILIES)}"
            )
        return PROPENSITY_FAMILIES[family.lower()]
    pair = tuple(float(value) for value in family)
    if len(pair) != 2 or not all(np.isfinite(value) and value > 0 for value in pair):
        raise UsageError(f"propensity constants are two positive numbers (A, B), not {family!r}")
    return pair


def inverse_propensity(train_counts: np.ndarray, train_rows: int, A: float, B: float) -> np.ndarray:
    """Return 1 + C(n + B)^−A with C = (ln N − 1)(B + 1)^A, for labels with n of N training rows (Jain et al. 2016).

    Below 3 rows, ln N − 1 is negative and the model has no meaning: every label then counts the same.
    """
    counts = np.asarray(train_counts, dtype=np.float64)
    if train_rows < 1:
        raise DataError(f"propensities need training rows, found {train_rows}")
    if counts.size and not (counts.min() >= 0 and counts.max() <= train_rows):
        label = int(np.flatnonzero(~((counts >= 0) & (counts <= train_rows)))[0])
        raise DataError(f"label {label} has {counts[label]:g} training rows, expected 0 to {train_rows}")
    C = max(np.log(train_rows) - 1, 0.0) * (B + 1) ** A
    return 1 + C * (counts + B) ** -A


def rank_metrics(
    predictions: TopK | csr_matrix,
    truth: csr_matrix,
    *,
    ks: Sequence[int] = (1, 3, 5),
    inverse_propensity: np.ndarray | None = None,
    filtered: csr_matrix | None = None,
    workers: int = 1,
) -> dict[str, float]:
    """Return metrics by name ("P@1", "nDCG@3", …) of rankings, or of a CSR matrix with scores as values.

    PSP and PSnDCG need `inverse_propensity` (one number per label). `filtered` pairs do not count. `workers` threads
    share the work; the bits of the results do not depend on their number.
    """
    ks = _cutoffs(ks)
    weights = _label_weights(inverse_propensity, truth.shape[1])
    ranked = _rank_truth(predictions, truth, filtered, deepest=ks[-1], workers=workers)
    if not len(ranked.labels):
        raise DataError("no row of the truth has a label to score")
    # No rank lies beyond the widest row, so a huge k costs nothing.
    deepest = max(ranked.width, int(np.diff(ranked.indptr).max()))
    true = Pattern(ranked.indptr, ranked.labels)
    sums = scoring.ranking_sums(true, ranked.ranks, weights, np.minimum(ks, deepest), workers)
    precision, recall = sums.hits / (ranked.rows * np.asarray(ks)), sums.recall / ranked.rows
    columns = {
        "P": precision,
        "nDCG": sums.ndcg / ranked.rows,
        "R": recall,
        "F1": _ratio(2 * precision * recall, precision + recall),
    }
    if inverse_propensity is not None:
        columns |= {"PSP": sums.gain / sums.best_gain, "PSnDCG": sums.weighted_ndcg / sums.best_weighted_ndcg}
    columns["coverage"] = sums.covered / sums.occurring
    return {
        f"{name}@{k}": float(value) for name, values in columns.items() for k, value in zip(ks, values, strict=True)
    }


def set_metrics(sets: csr_matrix, truth: csr_matrix, *, filtered: csr_matrix | None = None) -> dict[str, float]:
    """Return micro-F1 over all pairs and macro-F1 over the labels in `truth`; values other than 0 count the same."""
    _check_shape(sets, truth, "the matrix of label sets")
    dropped = _filter_pattern(filtered, truth)
    output, expected = _remaining(sets, dropped, "the matrix of label sets"), _remaining(truth, dropped, "the truth")
    predicted, true, wrong = (
        np.bincount(pattern.indices, minlength=truth.shape[1])
        for pattern in (output, expected, scoring.without_pairs(output, expected))
    )
    shared = predicted - wrong
    occurs = true > 0
    if not occurs.any():
        raise DataError("no row of the truth has a label to score")
    return {
        "micro-F1": float(2 * shared.sum() / (predicted.sum() + true.sum())),
        "macro-F1": float(np.mean(2 * shared[occurs] / (predicted[occurs] + true[occurs]))),
    }


class RowScores(NamedTuple):
    """The share of every row in P, nDCG and PSP at each k.

    `parts` and `norms` are rows × names; a metric is the sum of its column of `parts` divided by that of `norms`.
    `norms` depend on the truth only.
    """

    names: tuple[str, ...]
    parts: np.ndarray
    norms: np.ndarray

    @property
    def totals(self) -> dict[str, float]:
        values = _ratio(self.parts.sum(axis=0), self.norms.sum(axis=0))
        return dict(zip(self.names, values.tolist(), strict=True))


def row_scores(
    predictions: TopK | csr_matrix,
    truth: csr_matrix,
    inverse_propensity: np.ndarray,
    *,
    ks: Sequence[int] = (1, 3, 5),
    filtered: csr_matrix | None = None,
) -> RowScores:
    """Return the scores of every row, for paired comparisons of models by P, nDCG and PSP."""
    ks = _cutoffs(ks)
    weights = _label_weights(inverse_propensity, truth.shape[1])
    ranked = _rank_truth(predictions, truth, filtered, deepest=ks[-1])
    sizes = np.diff(ranked.indptr)
    row_of = np.repeat(np.arange(ranked.rows), sizes)
    weight = weights[ranked.labels]
    heaviest = np.lexsort((-weight, row_of))  # row by row, the heaviest labels of each first
    position = np.arange(len(row_of)) - np.repeat(ranked.indptr[:-1], sizes)
    gained = 1 / np.log2(np.minimum(ranked.ranks, ks[-1]) + 2.0)
    ideal = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, min(ks[-1], sizes.max(initial=0)) + 2))))

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(row_of, weights=values, minlength=ranked.rows)

    columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    always = np.ones(ranked.rows)
    for k in ks:
        columns[f"P@{k}"] = sums(ranked.ranks < k) / k, always
    for k in ks:
        best = ideal[np.minimum(sizes, k).clip(max=len(ideal) - 1)]
        columns[f"nDCG@{k}"] = _ratio(sums(gained * (ranked.ranks < k)), best), always
    for k in ks:
        columns[f"PSP@{k}"] = sums(weight * (ranked.ranks < k)), sums(weight[heaviest] * (position < k))
    parts, norms = (np.stack(column, axis=1) for column in zip(*columns.values(), strict=True))
    return RowScores(tuple(columns), parts, norms)


class _RankedTruth(NamedTuple):
    """The true pairs (CSR) that count, and the rank of each pair among `width` predictions."""

    indptr: np.ndarray
    labels: np.ndarray
    ranks: np.ndarray
    width: int

    @property
    def rows(self) -> int:
        return len(self.indptr) - 1


def _rank_truth(
    predictions: TopK | csr_matrix, truth: csr_matrix, filtered: csr_matrix | None, *, deepest: int, workers: int = 1
) -> _RankedTruth:
    """Find the ranks of the true labels; raise DataError if a ranking is wrong."""
    dropped = _filter_pattern(filtered, truth)
    topk = _as_topk(predictions, truth, deepest + int(np.diff(dropped.indptr).max(initial=0)))
    true = _remaining(truth, dropped, "the truth")
    predicted = _label_ids(topk.indices)
    ranks, wrong, row = scoring.ranks_of_truth(
        predicted, np.ascontiguousarray(topk.scores), true, dropped, truth.shape[1], workers
    )
    if wrong != scoring.SOUND:
        raise _wrong_ranking(wrong, predicted[row], topk.scores[row], row, truth.shape[1])
    return _RankedTruth(*true, ranks, topk.k)


def _wrong_ranking(wrong: int, predicted: np.ndarray, scores: np.ndarray, row: int, labels: int) -> DataError:
    if wrong == scoring.OUT_OF_RANGE:
        label = predicted[(predicted < -1) | (predicted >= labels)][0]
        message = f"label {label} is predicted, expected 0 to {labels - 1}, or −1 as padding"
    elif wrong == scoring.AFTER_PADDING:
        rank = int(np.argmin(predicted)) + 1
        message = f"a label follows the padding (−1) at rank {rank}, expected padding only at the end"
    elif wrong == scoring.REPEATED:
        values, counts = np.unique(predicted[predicted >= 0], return_counts=True)
        message = f"label {values[counts > 1][0]} is predicted twice"
    elif np.isnan(scores[predicted >= 0]).any():
        message = "a predicted score is not a number (NaN)"
    else:
        rank = int(np.argmax(np.diff(scores) > 0)) + 1
        pair = f"{scores[rank - 1]:g} at rank {rank} and {scores[rank]:g} at rank {rank + 1}"
        message = f"the predicted scores are {pair}, expected the best label first"
    return DataError(message, row=row)


def _as_topk(predictions: TopK | csr_matrix, truth: csr_matrix, deepest: int) -> TopK:
    if truth.shape[0] == 0:
        raise DataError("there are no rows to score")
    if not isinstance(predictions, TopK):
        _check_shape(predictions, truth, "the predictions")
        longest = int(np.diff(predictions.indptr).max())
        return topk_csr(predictions, max(1, min(deepest, longest)))
    if predictions.indices.ndim != 2 or predictions.indices.shape != predictions.scores.shape:
        raise DataError(
            f"rankings have labels of size {predictions.indices.shape} and scores of size {predictions.scores.shape}, "
            "expected rows × k for both"
        )
    if predictions.rows != truth.shape[0]:
        raise DataError(f"{predictions.rows} rows of predictions but {truth.shape[0]} rows of truth")
    return predictions


def _label_ids(indices: np.ndarray) -> np.ndarray:
    if indices.dtype.kind in "iu":
        ids = np.ascontiguousarray(indices, dtype=np.int32)
        if indices.dtype == np.int32 or np.array_equal(ids, indices):
            return ids
    raise DataError(f"predicted labels have to be 32-bit integers, not {indices.dtype}")


def _filter_pattern(filtered: csr_matrix | None, truth: csr_matrix) -> Pattern:
    """Return the pattern of the filter, which is empty without one."""
    if filtered is None:
        return Pattern(np.zeros(truth.shape[0] + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    _check_shape(filtered, truth, "the filter")
    return _sorted_pattern(filtered, "the filter")


def _remaining(matrix: csr_matrix, dropped: Pattern, what: str) -> Pattern:
    pattern = _sorted_pattern(matrix, what)
    return scoring.without_pairs(pattern, dropped) if len(dropped.indices) else pattern


def _sorted_pattern(matrix: csr_matrix, what: str) -> Pattern:
    pattern = csr_pattern(matrix, what)  # scipy's code must not run on a broken matrix
    if scoring.rises_in_rows(pattern) and matrix.data.all():
        return pattern
    return csr_pattern(as_csr(matrix), what)


def _check_shape(matrix: csr_matrix, truth: csr_matrix, what: str) -> None:
    if matrix.shape != truth.shape:
        raise DataError(
            f"{what} has {matrix.shape[0]} rows × {matrix.shape[1]} labels "
            f"but the truth has {truth.shape[0]} × {truth.shape[1]}"
        )


def _label_weights(weights: np.ndarray | None, labels: int) -> np.ndarray:
    if weights is None:
        return np.ones(labels)
    weights = np.ascontiguousarray(weights, dtype=np.float64)
    if weights.shape != (labels,) or not (weights.min(initial=1) > 0 and weights.max(initial=1) < np.inf):
        raise DataError(f"inverse propensities have to be {labels} positive numbers, one per label")
    return weights


def _cutoffs(ks: Sequence[int]) -> list[int]:
    if not len(ks) or any(k < 1 for k in ks):
        raise UsageError(f"k has to be at least 1: {list(ks)}")
    return sorted({int(k) for k in ks})


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole != 0)
