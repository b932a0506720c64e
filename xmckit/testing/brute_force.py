"""Enumerate the label sets that a tiny layer of whole numbers can output: all cells of its arrangement.

The rows of a matrix cut the space into cells, in each of which every row has one sign. Where the rows are in general
position, D − 1 of them meet in a line, and around either half of that line all signs of these D − 1 occur while the
others keep theirs; every cell touches such a half-line. So the half-lines give all cells, in exact arithmetic.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from xmckit.records import LinearDecision

FractionRows = list[list[Fraction]]


def possible_sets(decision: LinearDecision, among: np.ndarray | None = None) -> set[tuple[bool, ...]]:
    """Return the label sets, one truth value per label, that the decision outputs for some vector.

    With `among`, only these labels can be output, and only their rows count.
    """
    labels = len(decision.W)
    chosen = np.arange(labels) if among is None else among
    rows = [[Fraction(float(value)) for value in decision.W[label]] for label in chosen]
    if decision.rule == "topk":  # a free threshold
        rows = [[*row, Fraction(1)] for row in rows]
    if decision.b is not None:  # a variable of its own, which is positive
        rows = [[*row, Fraction(float(decision.b[label]))] for row, label in zip(rows, chosen, strict=True)]
        rows.append([*[Fraction(0)] * (len(rows[0]) - 1), Fraction(1)])
    cells = _cells(rows)
    if decision.b is not None:
        cells = {cell[:-1] for cell in cells if cell[-1]}
    known = [dict(zip(chosen.tolist(), cell, strict=True)) for cell in cells]
    return {tuple(signs.get(label, False) for label in range(labels)) for signs in known}


def outputs(decision: LinearDecision, x: np.ndarray, active: np.ndarray, chosen: np.ndarray) -> bool:
    """Return whether the decision outputs, for x and in exact arithmetic, the active ones of the `chosen` labels."""
    vector = [Fraction(float(value)) for value in x]
    scores = {}
    for label in chosen:
        bias = Fraction(0) if decision.b is None else Fraction(float(decision.b[label]))
        scores[label] = bias + sum(Fraction(float(w)) * v for w, v in zip(decision.W[label], vector, strict=True))
    on, off = ([scores[label] for label in chosen if active[label] == state] for state in (True, False))
    if decision.rule == "topk":
        return not on or not off or min(on) > max(off)
    return all(score > 0 for score in on) and all(score < 0 for score in off)


def can_output(decision: LinearDecision, active: np.ndarray) -> bool:
    """Return whether the decision outputs exactly the active labels for some vector, by a linear program."""
    from scipy.optimize import linprog

    W, b = decision.W.astype(np.float64), 0.0 if decision.b is None else decision.b.astype(np.float64)
    if decision.rule == "topk":  # a free threshold
        W = np.hstack([W, np.ones((len(W), 1))])
    signs = np.where(active, 1.0, -1.0)
    found = linprog(np.zeros(W.shape[1]), A_ub=-signs[:, None] * W, b_ub=signs * b - 1.0, bounds=(None, None))
    if found.status not in (0, 2):
        raise AssertionError(f"the linear program was not solved: {found.message}")
    return bool(found.status == 0)


def _cells(rows: FractionRows) -> set[tuple[bool, ...]]:
    width = len(rows[0])
    if len(rows) < width:
        raise ValueError(f"{len(rows)} rows in {width} dimensions: general position needs at least as many rows")
    cells = set()
    for meeting in itertools.combinations(range(len(rows)), width - 1):
        line = _orthogonal([rows[row] for row in meeting], width)
        values = [sum(a * b for a, b in zip(row, line, strict=True)) for row in rows]
        if any(value == 0 for place, value in enumerate(values) if place not in meeting):
            raise ValueError("these rows are not in general position")
        for half in (1, -1):
            for signs in itertools.product([False, True], repeat=width - 1):
                near = dict(zip(meeting, signs, strict=True))
                cells.add(tuple(near.get(place, half * value > 0) for place, value in enumerate(values)))
    return cells


def _orthogonal(rows: FractionRows, width: int) -> list[Fraction]:
    """Return the vector of minors, which is orthogonal to D − 1 rows."""
    return [
        (-1) ** left_out * _determinant([[row[c] for c in range(width) if c != left_out] for row in rows])
        for left_out in range(width)
    ]


def _determinant(matrix: FractionRows) -> Fraction:
    if not matrix:
        return Fraction(1)
    return sum(
        ((-1) ** column * first * _determinant([[*row[:column], *row[column + 1 :]] for row in matrix[1:]]))
        for column, first in enumerate(matrix[0])
    ) or Fraction(0)
