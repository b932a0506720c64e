"""Enumerate the label sets that a tiny layer can output, in exact arithmetic.

The signs (+, 0, −) of some linear functions at a vector x are a covector. The covectors of vectors on as many zeros as
possible, short of all, are the cocircuits: each follows from a few of the functions, by a vector of minors. Moving from
x a little towards y keeps the signs that are not 0 at x and takes the others from y; in this way the cocircuits compose
all covectors (Björner et al. 1999, "Oriented Matroids", section 3.7). So no linear program is solved, and zeros, which
decide ties, are seen as they are. The functions are w_i·x + b_i for the rule `sign`, and all differences of two of them
for `topk`; with a bias one more variable t takes its place, and is positive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from xmckit.records import LinearDecision

MOST_FUNCTIONS = 31  # the signs of a covector are packed into one number of 64 bits, two bits each
SMALL = 2**62  # products below this fit 64 bits


def possible_sets(decision: LinearDecision, among: np.ndarray | None = None) -> set[tuple[bool, ...]]:
    """Return the label sets, one truth value per label, that the decision outputs for some vector.

    With `among`, only these labels can be output, and only their rows count.
    """
    labels = len(decision.W)
    chosen = np.arange(labels) if among is None else np.asarray(among)
    sets = np.zeros((0, labels), dtype=bool)
    if len(chosen):
        found = _outputs(_whole_rows(decision, chosen), decision.rule, biased=decision.b is not None)
        sets = np.zeros((len(found), labels), dtype=bool)
        sets[:, chosen] = found
    return {tuple(row) for row in sets.tolist()} or {(False,) * labels}


def outputs(
    decision: LinearDecision, x: np.ndarray | Sequence[Fraction], active: np.ndarray, chosen: np.ndarray
) -> bool:
    """Return whether the decision outputs, for x and in exact arithmetic, the active ones of the `chosen` labels."""
    vector = [Fraction(value) if isinstance(value, Fraction) else Fraction(float(value)) for value in x]
    scores = {}
    for label in np.sort(chosen).tolist():
        bias = Fraction(0) if decision.b is None else Fraction(float(decision.b[label]))
        scores[label] = bias + sum(Fraction(float(w)) * v for w, v in zip(decision.W[label], vector, strict=True))
    on = {label for label in scores if active[label]}
    if decision.rule == "topk":
        return set(sorted(scores, key=lambda label: (-scores[label], label))[: len(on)]) == on
    return {label for label, score in scores.items() if score > 0} == on


def can_output(decision: LinearDecision, active: np.ndarray) -> bool:
    """Return whether some vector outputs exactly the active labels, without any tie, by a linear program."""
    from scipy.optimize import linprog

    W, b = decision.W.astype(np.float64), 0.0 if decision.b is None else decision.b.astype(np.float64)
    if decision.rule == "topk":  # a free threshold
        W = np.hstack([W, np.ones((len(W), 1))])
    signs = np.where(active, 1.0, -1.0)
    found = linprog(np.zeros(W.shape[1]), A_ub=-signs[:, None] * W, b_ub=signs * b - 1.0, bounds=(None, None))
    if found.status not in (0, 2):
        raise AssertionError(f"the linear program was not solved: {found.message}")
    return bool(found.status == 0)


def _whole_rows(decision: LinearDecision, chosen: np.ndarray) -> np.ndarray:
    """Return the rows (w, b) of the chosen labels as Python integers, all times the same number."""
    W = np.asarray(decision.W)[chosen]
    rows = W if decision.b is None else np.concatenate([W, np.asarray(decision.b)[chosen, None]], axis=1)
    ratios = [[float(value).as_integer_ratio() for value in row] for row in rows.tolist()]
    common = max((below for row in ratios for _, below in row), default=1)
    whole = [[above * (common // below) for above, below in row] for row in ratios]
    return np.array(whole, dtype=object).reshape(rows.shape)


def _outputs(rows: np.ndarray, rule: str, *, biased: bool) -> np.ndarray:
    """Return the sets, as rows of truth values, that the rows (w, b) of some labels output."""
    labels = len(rows)
    first, second = (np.arange(labels), None) if rule == "sign" else np.triu_indices(labels, 1)
    functions = rows[first] if second is None else rows[first] - rows[second]
    if biased:
        functions = np.concatenate([functions, [[0] * (rows.shape[1] - 1) + [1]]])
    signs = _covectors(functions)
    if biased:
        signs = signs[signs[:, -1] > 0, :-1]
    if second is None:
        return np.unique(signs > 0, axis=0)
    # of two labels with equal logits, the first one is ranked higher
    worse = np.zeros((len(signs), labels), dtype=np.int64)  # how many labels are ranked above a label
    for pair, (one, other) in enumerate(zip(first, second, strict=True)):
        worse[:, other] += signs[:, pair] >= 0
        worse[:, one] += signs[:, pair] < 0
    return np.unique(np.concatenate([worse < count for count in range(labels + 1)]), axis=0)


def _covectors(functions: np.ndarray) -> np.ndarray:
    """Return the signs of the functions, rows of a matrix of integers, for all vectors: one row for each covector."""
    count = len(functions)
    if count > MOST_FUNCTIONS:
        raise ValueError(f"{count} functions are too many to enumerate their signs, expected at most {MOST_FUNCTIONS}")
    own = _pack(_cocircuits(functions))
    everything = frontier = np.zeros(1, dtype=np.uint64)
    while len(frontier):
        taken = (frontier | (frontier >> np.uint64(32)) | (frontier << np.uint64(32)))[:, None]
        composed = np.unique(frontier[:, None] | (own & ~taken))
        frontier = np.setdiff1d(composed, everything, assume_unique=True)
        everything = np.union1d(everything, frontier)
    bits = np.uint64(1) << np.arange(count, dtype=np.uint64)
    positive, negative = everything >> np.uint64(32), everything & np.uint64(2**32 - 1)
    return ((positive[:, None] & bits) > 0).astype(np.int8) - ((negative[:, None] & bits) > 0)


def _pack(signs: np.ndarray) -> np.ndarray:
    """Pack rows of signs into numbers: one bit for each positive sign, and 32 bits below one for each negative one."""
    bits = np.uint64(1) << np.arange(signs.shape[1], dtype=np.uint64)
    positive, negative = ((side * bits).sum(axis=1, dtype=np.uint64) for side in (signs > 0, signs < 0))
    return np.unique(positive << np.uint64(32) | negative)


def _cocircuits(functions: np.ndarray) -> np.ndarray:
    """Return the signs of the functions at all vectors on which as many functions as possible, but not all, are 0."""
    columns = _independent_columns(functions)
    rank = len(columns)
    if not rank:
        return np.zeros((0, len(functions)), dtype=np.int8)
    short = np.array([_without_factor(row) for row in functions[:, columns].tolist()], dtype=object)
    largest = max(abs(number) for row in short for number in row)
    if math.factorial(rank + 1) * largest ** (rank + 1) < SMALL:
        short = short.astype(np.int64)
    different = np.array(sorted({max(tuple(row), tuple(-row)) for row in short if row.any()}), dtype=short.dtype)
    subsets = list(itertools.combinations(range(len(different)), rank - 1))
    meeting = different[np.array(subsets, dtype=np.int64).reshape(len(subsets), rank - 1)]
    minors = [_determinants(np.delete(meeting, column, axis=2)) * (-1) ** column for column in range(rank)]
    values = np.stack(minors, axis=1) @ short.T
    signs = (values > 0).astype(np.int8) - (values < 0)
    signs = signs[signs.any(axis=1)]  # dependent functions have no minors
    return np.concatenate([signs, -signs])


def _without_factor(row: list[int]) -> list[int]:
    factor = math.gcd(*row) or 1
    return [number // factor for number in row]


def _independent_columns(matrix: np.ndarray) -> list[int]:
    """Return columns that are a basis of the space of all columns, by elimination in fractions."""
    chosen: list[int] = []
    rest = [[Fraction(number) for number in row] for row in matrix.tolist()]
    for column in range(matrix.shape[1]):
        place = next((place for place, row in enumerate(rest) if row[column]), None)
        if place is None:
            continue
        pivot = rest.pop(place)
        rest = [[a - row[column] / pivot[column] * b for a, b in zip(row, pivot, strict=True)] for row in rest]
        chosen.append(column)
    return chosen


def _determinants(matrices: np.ndarray) -> np.ndarray:
    """Return the determinant of each of a stack of matrices of integers."""
    size = matrices.shape[1]
    if size == 0:
        return np.ones(len(matrices), dtype=matrices.dtype)
    return sum(
        (-1) ** column * matrices[:, 0, column] * _determinants(np.delete(matrices[:, 1:], column, axis=2))
        for column in range(size)
    )
