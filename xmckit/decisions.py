"""Compare what a head outputs with its decision, up to the rounding of the head's own scorer.

A `LinearDecision` is about W·x + b in exact arithmetic; a head computes it in float32. This module is the one place
that bounds the difference. With the unit roundoff u = 2⁻²⁴ and γ_n = n·u / (1 − n·u), the error of n roundings in any
order (Higham 2002, lemma 3.1), a score is within

    γ_{d+2} · (Σ_j |w_j|·|x_j| + |b| + |threshold|)      float32 product of d columns, in any order, with or without FMA
    rounding · (‖w‖·‖x‖ + |b| + |threshold|)             any other scorer, by the factor `rounding` that its head gives

of the exact one. Of the two roundings beyond d, one is that of adding the bias and one is that of a `b` that was stored
in float32. A zero product is exact, so a label with a zero row has no error. The bound is infinite where float32 may
overflow. For a layer of two matrices (classifier and projection), W is the product that the scorer itself multiplies x
with; the rounding of making it is no part of the score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.records import LinearDecision

UNIT = 2.0**-24
SMALLEST = 2.0**-126  # what a product may lose to underflow, also where denormal numbers are flushed to zero
LARGEST = 2.0**127
NOISE = 2.0**-20  # of a bound: more than the rounding of float64
LARGEST_ROUNDING = 2.0**-8
MOST_ROUNDED = 0.1  # of ordinary rows
FEW_ROWS = 10
NUMBERS_AT_ONCE = 1 << 22  # scores, in float64
LABELS_AT_ONCE = 1 << 14  # rows of W that are turned into float64


def float32_error(roundings: int) -> float:
    """Return γ_n: the relative error of a float32 sum of products in which n roundings follow each other."""
    return roundings * UNIT / (1 - roundings * UNIT)


def scores_and_bounds(decision: LinearDecision, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return W·x + b in float64, rows × labels, and how far the head's own scorer may be from it."""
    x = np.asarray(vectors, dtype=np.float64)
    labels, width = decision.W.shape
    scores, bounds = np.empty((len(x), labels)), np.empty((len(x), labels))
    lengths = np.linalg.norm(x, axis=1)[:, None]
    for part in _slices(labels, LABELS_AT_ONCE):
        W = decision.W[part].astype(np.float64)
        b = np.zeros(len(W)) if decision.b is None else decision.b[part].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # such entries get an infinite bound
            scores[:, part] = x @ W.T + b
            sizes = np.abs(x) @ np.abs(W).T if decision.rounding is None else lengths * np.linalg.norm(W, axis=1)
        factor = float32_error(width + 2) if decision.rounding is None else decision.rounding
        shifts = np.abs(b) + abs(decision.threshold)
        bounds[:, part] = np.where(sizes > 0, factor * (sizes + shifts) + (width + 2) * SMALLEST, 0.0)
        bounds[:, part][sizes + shifts > LARGEST] = np.inf
    return scores, bounds


@dataclass(frozen=True)
class Difference:
    """A label whose output contradicts the decision, by more than rounding."""

    row: int
    label: int
    output: bool
    score: float
    bound: float
    rule: str

    def __str__(self) -> str:
        found = "is output" if self.output else "is not output"
        rival = ", more than that of a label that is output" if self.rule == "topk" else ""
        return (
            f"row {self.row}, label {self.label}: it {found}, and W·x + b is {self.score:.4g}{rival} (rule "
            f"'{self.rule}'; rounding explains at most {self.bound:.2g})"
        )


@dataclass(frozen=True)
class Comparison:
    """How outputs compare with a decision: `entries` were compared, of which `output` were output.

    `rounded` are the rows whose set differs from that of W·x + b, by no more than rounding explains, `wrong` those that
    differ by more, `first` the first such label.
    """

    entries: int
    output: int
    rounded: np.ndarray
    wrong: np.ndarray
    first: Difference | None


def compare(
    decision: LinearDecision, vectors: np.ndarray, output: csr_matrix, among: csr_matrix | None = None
) -> Comparison:
    """Compare the sets that were output for vectors with the decision; `among` lists the candidates of each row.

    Under `topk` the size of a set is the head's own choice. No label that is left out may then score clearly more than
    one that is output.
    """
    entries, labels, first = 0, 0, None
    rounded, wrong = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in _slices(len(vectors), max(1, NUMBERS_AT_ONCE // max(1, output.shape[1]))):
        on = output[rows].toarray() != 0
        listed = np.ones_like(on) if among is None else dense_pattern(among[rows])
        scores, bounds = scores_and_bounds(decision, vectors[rows])
        differs, clear = (_differences(decision.rule, scores, part, on, listed) for part in (NOISE * bounds, bounds))
        entries, labels = entries + int(listed.sum()), labels + int(on.sum())
        wrong.append(rows.start + np.flatnonzero(clear.any(axis=1)))
        rounded.append(rows.start + np.flatnonzero(differs.any(axis=1) & ~clear.any(axis=1)))
        if first is None and clear.any():
            row, label = np.argwhere(clear)[0].tolist()
            score, bound = float(scores[row, label]), float(bounds[row, label])
            first = Difference(rows.start + row, label, bool(on[row, label]), score, bound, decision.rule)
    return Comparison(entries, labels, np.concatenate(rounded), np.concatenate(wrong), first)


def _differences(rule: str, scores: np.ndarray, bounds: np.ndarray, on: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Return where outputs differ from the rule for these scores, by more than the bounds; or are no candidates."""
    off = listed & ~on
    if rule == "topk":
        lowest = np.where(on, scores + bounds, np.inf).min(axis=1, initial=np.inf)[:, None]
        return (off & (scores - bounds > lowest)) | (on & ~listed)
    return (on & (scores + bounds <= 0)) | (off & (scores - bounds > 0)) | (on & ~listed)


def excess_of_bounds(decision: LinearDecision, found: Comparison, rows: int) -> str:
    """Say why the bounds on the rounding cannot be right, or nothing: they must not explain every output of a head.

    The first `rows` that were compared are ordinary ones, which are rarely within rounding of another set.
    """
    if not np.isfinite(decision.threshold):
        return f"`threshold` is {decision.threshold}, expected a finite number"
    if decision.rounding is not None and not 0 <= decision.rounding <= LARGEST_ROUNDING:
        return f"`rounding` is {decision.rounding}, expected None or a number from 0 to {LARGEST_ROUNDING}"
    rounded = int(np.count_nonzero(found.rounded < rows))
    if rows >= FEW_ROWS and rounded > MOST_ROUNDED * rows:
        return f"its outputs differ from W·x + b in {rounded} of {rows} ordinary rows, and only rounding explains them"
    return ""


def contested_labels(
    decision: LinearDecision, vector: np.ndarray, active: np.ndarray, among: np.ndarray | None = None
) -> np.ndarray:
    """Return the labels that decide whether a vector gives a set: those whose scores do not clear the bounds.

    `active` are the labels of the set and `among` the candidates, as label ids. For all other labels, W·x + b agrees
    with the set in exact arithmetic.
    """
    scores, bounds = (array[0] for array in scores_and_bounds(decision, vector[None]))
    on, listed = np.zeros(len(scores), dtype=bool), np.full(len(scores), among is None)
    on[active] = True
    listed[slice(0) if among is None else among] = True
    off = listed & ~on
    if decision.rule == "topk":
        lowest = (scores - bounds)[on].min(initial=np.inf)
        highest = (scores + bounds)[off].max(initial=-np.inf)
        return np.flatnonzero((on & (scores - bounds <= highest)) | (off & (scores + bounds >= lowest)))
    return np.flatnonzero((on & (scores - bounds <= 0)) | (off & (scores + bounds > 0)))


def dense_pattern(matrix: csr_matrix) -> np.ndarray:
    """Return where a matrix has an entry, also one of value 0: a candidate may have the score 0."""
    return csr_matrix((np.ones(matrix.nnz, dtype=bool), matrix.indices, matrix.indptr), matrix.shape).toarray()


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
