"""Facial reduction in exact arithmetic: which rows are 0 for every vector that satisfies all inequalities?

A positive combination of signed rows that is zero makes each of these rows 0 at every v with row·v ≥ 0 for all rows.
If the decision's rule forbids that these rows are 0 together, the combination proves that no v outputs the label set
(Motzkin's theorem; Gordan's, if every row must be positive). Otherwise the search for v goes on in the space where
these rows are 0, and a combination that is zero there becomes one of all rows: the missing part is a combination of the
tied rows, and a large multiple of their own positive combination makes its multipliers positive.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from fractions import Fraction

from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.exact import Integers, Rows, Weights


class TiedRows:
    """Rows that are 0 for every solution, a positive combination of them that is zero, and the space that is left."""

    def __init__(self, width: int):
        self.rows: dict[int, Integers] = {}
        self.weights: Weights = {}
        self._basis = [[int(i == j) for j in range(width)] for i in range(width)]
        self._width = width

    def add(self, rows: Rows, weights: Mapping[int, Fraction]) -> None:
        """Add rows of which this positive combination is zero in the space that is left."""
        self.weights = self.combine(rows, weights)
        self.rows.update(rows)
        self._basis = exact.null_basis(list(self.rows.values()), self._width)

    def restrict(self, row: Integers) -> Integers:
        """Return the row as a function of the coordinates in the space that is left; zero if the row is tied too."""
        return [exact.dot(row, direction) for direction in self._basis] if self.rows else row

    def lift(self, point: Iterable[Fraction]) -> Integers:
        """Return the vector with these coordinates, or a multiple of it; without coordinates, the zero vector."""
        total = [Fraction(0)] * self._width
        for part, direction in zip(point, self._basis, strict=False):
            total = [number + part * entry for number, entry in zip(total, direction, strict=True)]
        return exact.primitive(total)

    def combine(self, rows: Rows, weights: Mapping[int, Fraction]) -> Weights:
        """Extend a combination that is zero in the space that is left to a positive one that is zero everywhere."""
        if not self.rows or not weights:
            return {**self.weights, **weights}
        common = math.lcm(*(weight.denominator for weight in weights.values()))
        whole = [int(weights[index] * common) for index in rows]
        rest = [-sum(map(operator.mul, whole, column)) for column in zip(*rows.values(), strict=True)]
        missing = exact.coordinates([self.rows[index] for index in self.weights], rest)
        parts = {index: part / common for index, part in zip(self.weights, missing, strict=True)}
        times = 1 + max([Fraction(0), *(-part / self.weights[index] for index, part in parts.items())])
        return {**{index: part + times * self.weights[index] for index, part in parts.items()}, **weights}
