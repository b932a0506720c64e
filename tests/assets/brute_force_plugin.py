"""A verifier that tries everything, in fractions: an oracle for small layers that shares no code with any other.

Signed rows s_i·a_i of the homogeneous form (see `homogeneous`) have v with s_i·a_i·v > 0 for all i, or some of them
have a positive combination that is zero (Gordan). A smallest one has at most rank + 1 rows, so all subsets up to that
size are tried. Without one, the cone of all v is full: the sum of its extreme rays is inside.
"""

from __future__ import annotations

import itertools
import os
import signal
from fractions import Fraction
from pathlib import Path

import numpy as np

import xmckit


def homogeneous(decision):
    """The rows as fractions: w, then a 1 for topk, then b."""
    rows = [[Fraction(float(value)) for value in row] for row in decision.W]
    if decision.rule == "topk":
        rows = [[*row, Fraction(1)] for row in rows]
    if decision.b is not None:
        rows = [[*row, Fraction(float(shift))] for row, shift in zip(rows, decision.b, strict=True)]
    return rows


def reduced(rows):
    """Row echelon form by Gauss and Jordan, and the pivot columns."""
    rows, pivots = [list(row) for row in rows], []
    for column in range(len(rows[0]) if rows else 0):
        found = next((place for place in range(len(pivots), len(rows)) if rows[place][column]), None)
        if found is None:
            continue
        line = len(pivots)
        rows[line], rows[found] = rows[found], rows[line]
        rows[line] = [value / rows[line][column] for value in rows[line]]
        for other in range(len(rows)):
            if other != line and rows[other][column]:
                factor = rows[other][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[line], strict=True)]
        pivots.append(column)
    return rows, pivots


def null_line(rows, width):
    """The vector that spans the null space of `rows` when that is one line, else None."""
    echelon, pivots = reduced(rows)
    if len(pivots) != width - 1:
        return None
    free = next(column for column in range(width) if column not in pivots)
    line = [Fraction(0)] * width
    line[free] = Fraction(1)
    for row, pivot in enumerate(pivots):
        line[pivot] = -echelon[row][free]
    return line


def dot(row, v):
    return sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0))


def zero_combination(rows):
    """Indices and multipliers of a smallest positive combination of the rows that is zero, or None."""
    if not rows:
        return None
    _, pivots = reduced(rows)
    for size in range(1, len(pivots) + 2):
        for chosen in itertools.combinations(range(len(rows)), size):
            line = null_line([list(column) for column in zip(*(rows[row] for row in chosen), strict=True)], size)
            if line is None:
                continue
            if all(value < 0 for value in line):
                line = [-value for value in line]
            if all(value > 0 for value in line):
                return list(chosen), line
    return None


def inside(rows):
    """v with row·v > 0 for every row, given that there is one."""
    width = len(rows[0])
    _, pivots = reduced(rows)
    narrow = [[row[pivot] for pivot in pivots] for row in rows]
    total = [Fraction(0)] * len(pivots)
    for chosen in itertools.combinations(range(len(rows)), len(pivots) - 1):
        line = null_line([narrow[row] for row in chosen], len(pivots))
        for ray in () if line is None else (line, [-value for value in line]):
            if all(dot(row, ray) >= 0 for row in narrow):
                size = max(map(abs, ray))
                total = [a + b / size for a, b in zip(total, ray, strict=True)]
    v = [Fraction(0)] * width
    for pivot, value in zip(pivots, total, strict=True):
        v[pivot] = value
    assert all(dot(row, v) > 0 for row in rows)
    return v


def judge(decision, active, asked):
    """Verdict on one label set, a set of label numbers, among the labels `asked`."""
    missed = tuple(sorted(set(active) - set(asked)))
    if missed:
        return xmckit.Verdict("unargmaxable", "exact", missed=missed)
    labels = sorted(asked)
    all_rows = homogeneous(decision)
    rows = [[value if label in active else -value for value in all_rows[label]] for label in labels]
    dim = decision.W.shape[1]
    if decision.rule == "topk" and len(set(active) & set(labels)) in (0, len(labels)):
        return xmckit.Verdict("argmaxable", "exact", witness=np.zeros(dim))
    if not rows:
        return xmckit.Verdict("argmaxable", "exact", witness=np.zeros(dim))
    if decision.b is not None:
        rows.append([Fraction(0)] * (len(rows[0]) - 1) + [Fraction(1)])
    found = zero_combination(rows)
    if found is not None:
        of_labels = [(labels[row], value) for row, value in zip(*found, strict=True) if row < len(labels)]
        certificate = (np.array([label for label, _ in of_labels]), np.array([float(value) for _, value in of_labels]))
        return xmckit.Verdict("unargmaxable", "exact", certificate=certificate)
    v = inside(rows)
    scale = v[-1] if decision.b is not None else Fraction(1)
    return xmckit.Verdict("argmaxable", "exact", witness=np.array([float(value / scale) for value in v[:dim]]))


class BruteForce(xmckit.Configured):
    """For up to about 10 labels and 4 dimensions. With `diary`, it notes the size of each block that it finishes there,
    and kills its own process when it is asked for one more than `blocks`."""

    class Params(xmckit.Params):
        diary: str = ""
        blocks: int = 1000

    def verify(self, decision, assignments, *, candidates=None, context):
        self._perhaps_die()
        everything = range(decision.W.shape[0])
        verdicts = [
            judge(
                decision,
                set(assignments[row].indices.tolist()),
                everything if candidates is None else set(candidates[row].indices.tolist()),
            )
            for row in range(assignments.shape[0])
        ]
        if self.params.diary:
            with open(self.params.diary, "a") as stream:
                stream.write(f"{len(verdicts)}\n")
        return xmckit.Verdicts(verdicts)

    def _perhaps_die(self):
        diary = Path(self.params.diary)
        if self.params.diary and diary.exists() and len(diary.read_text().splitlines()) == self.params.blocks:
            diary.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@xmckit.hookimpl
def xmckit_verifiers():
    yield xmckit.Component("brute-force", f"{__name__}:BruteForce", summary="Tries everything.")
