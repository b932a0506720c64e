"""A verifier that tries everything, in fractions: an oracle for small layers that shares no code with any other.

Signed rows s_i·a_i of the homogeneous form (see `homogeneous`) have v with s_i·a_i·v > 0 for all i, or some of them
have a positive combination that is zero (Gordan), and are 0 for every v that makes no row negative. A smallest
combination has at most rank + 1 rows, so all subsets up to that size are tried. If the rule forbids that all these rows
are 0, there is no v. Otherwise the cone of all v is full in the space where they are 0: the sum of its extreme rays is
inside.
"""

from __future__ import annotations

import itertools
import math
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


def zero_combinations(rows):
    """Yield the indices and multipliers of each smallest positive combination of the rows that is zero."""
    _, pivots = reduced(rows)
    for size in range(1, len(pivots) + 2):
        for chosen in itertools.combinations(range(len(rows)), size):
            columns = [list(column) for column in zip(*(rows[row] for row in chosen), strict=True)]
            line = null_line(columns, size)
            if line is None:
                continue
            if all(value < 0 for value in line):
                line = [-value for value in line]
            if all(value > 0 for value in line):
                yield list(chosen), line


def null_space(rows, width):
    """A basis of the v with row·v = 0 for every row."""
    echelon, pivots = reduced(rows)
    basis = []
    for free in (column for column in range(width) if column not in pivots):
        line = [Fraction(int(column == free)) for column in range(width)]
        for row, pivot in enumerate(pivots):
            line[pivot] = -echelon[row][free]
        basis.append(line)
    return basis


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
    found = list(zero_combinations(rows))
    tied = sorted({row for chosen, _ in found for row in chosen})
    if clash(decision.rule, tied, labels, active):
        return refuted(decision.rule, found, labels, active)
    v = solution(rows, tied)
    scale = v[-1] if decision.b is not None else Fraction(1)
    x = [value / scale for value in v[:dim]]
    witness = np.array([float(value) for value in x])
    common, integers = math.lcm(*(value.denominator for value in x)), None
    if tied and [Fraction(value) for value in witness.tolist()] != x:
        integers = (*(int(value * common) for value in x), common)
    return xmckit.Verdict("argmaxable", "exact", witness=witness, exact_witness=integers)


def clash(rule, tied, labels, active):
    """Whether these rows must not all be 0: the row of t, an active one, or, for topk, one above a lower id."""
    on = [labels[row] for row in tied if row < len(labels) and labels[row] in active]
    off = [labels[row] for row in tied if row < len(labels) and labels[row] not in active]
    if len(labels) in tied:
        return True
    return bool(on) if rule == "sign" else bool(on and off) and max(on) > min(off)


def refuted(rule, found, labels, active):
    """The first combination that no rule allows, or the first two together; their last labels determine the others."""
    for one, other in [(single, single) for single in found] + list(itertools.combinations(found, 2)):
        parts = dict.fromkeys([*one[0], *other[0]], Fraction(0))
        for chosen, values in (one, other):
            for row, value in zip(chosen, values, strict=True):
                parts[row] += value
        if clash(rule, list(parts), labels, active):
            first, second = set(one[0]) - set(other[0]), set(other[0]) - set(one[0])
            last = [max(first), max(second)] if first else []
            rows = [row for row in [*(row for row in parts if row not in last), *last] if row < len(labels)]
            certificate = np.array([labels[row] for row in rows]), np.array([float(parts[row]) for row in rows])
            return xmckit.Verdict("unargmaxable", "exact", certificate=certificate)
    raise AssertionError("no two combinations tie what all of them tie")


def solution(rows, tied):
    """v with row·v = 0 for the tied rows and > 0 for all other rows that are not 0 together with them."""
    width = len(rows[0])
    basis = null_space([rows[row] for row in tied] or [[Fraction(0)] * width], width)
    short = [[dot(row, line) for line in basis] for row in rows]
    free = [row for row in short if any(row)]
    v = inside(free) if free else []
    return [
        sum((part * line[place] for part, line in zip(v, basis, strict=False)), Fraction(0)) for place in range(width)
    ]


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
