"""Exact arithmetic for what floats cannot settle: rational numbers by python-flint.

Floats are whole numbers times powers of two, so that rows of W become rows of whole numbers, each by a power of two of
its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpz, fmpz_mat

Integers = list[int]


class OutOfTime(Exception):
    """Exact arithmetic took longer than it may."""


@dataclass(frozen=True)
class Combination:
    """Positive multipliers of some of the rows, summing to zero; unique up to scale."""

    rows: list[int]
    multipliers: list[Fraction]


def whole_row(numbers: np.ndarray, powers: np.ndarray | None = None) -> tuple[Integers, int]:
    """(whole numbers, p): `numbers`, each times two to its own of `powers`, are the whole numbers times 2^−p."""
    ratios = [number.as_integer_ratio() for number in numbers.tolist()]
    exponents = [0] * len(ratios) if powers is None else [int(power) for power in powers[: len(ratios)]]
    twos = [power - (denominator.bit_length() - 1) for (_, denominator), power in zip(ratios, exponents, strict=True)]
    least = min(twos, default=0)
    return [numerator << (two - least) for (numerator, _), two in zip(ratios, twos, strict=True)], -least


def all_positive(rows: Sequence[Integers], v: Integers) -> np.ndarray:
    """For each row whether row·v > 0, exactly."""
    return np.asarray([sum(a * b for a, b in zip(row, v, strict=True) if a) > 0 for row in rows], dtype=bool)


def decide(rows: Sequence[Integers], deadline: float) -> Combination | list[Fraction]:
    """A non-negative combination of the rows that is zero, or v with row·v > 0 for every row (one of the two exists).

    The simplex method for max Σλ over Σ λ_i row_i = 0, λ ≥ 0. A basis of the rows' span has λ = 0 and defines v by
    row·v = 1 on its rows. A row outside is Σ y_i·(basis row i); its product with v is Σ y_i. If that is below 1 it
    enters, for some basis row with y_i > 0; without one, it and the basis rows with y_i < 0 are the combination, whose
    support is minimal because basis rows are independent. Earlier rows are preferred for the first basis.
    """
    if not rows:
        return []
    table, denominator, basis = _reduced(rows)
    patience = 20 * len(basis) + 100
    while True:
        if time.monotonic() > deadline:
            raise OutOfTime
        totals = table.sum(axis=0) if len(basis) else np.zeros(len(rows), dtype=object)
        if all(total > 0 for total in totals):
            return _dual_point([rows[index] for index in basis])
        patience -= 1
        entering = _entering(totals, denominator, greedy=patience > 0)
        column = table[:, entering]
        leaving = _leaving(column, basis, greedy=patience > 0)
        if leaving is None:
            members = [line for line in range(len(basis)) if column[line] < 0]
            return Combination(
                [*(basis[line] for line in members), entering],
                [*(Fraction(int(-column[line]), int(denominator)) for line in members), Fraction(1)],
            )
        denominator = _pivot(table, leaving, entering, denominator)
        basis[leaving] = entering


def _reduced(rows: Sequence[Integers]) -> tuple[Any, Any, list[int]]:
    """(table, denominator, basis): column j of table/denominator holds the coordinates of row j in the basis."""
    width = len(rows[0])
    if width == 0:
        return np.zeros((0, len(rows)), dtype=object), fmpz(1), []
    echelon, denominator, rank = fmpz_mat([list(column) for column in zip(*rows, strict=True)]).rref()
    sign = -1 if denominator < 0 else 1
    table = np.empty((rank, len(rows)), dtype=object)
    lines = echelon.table()
    basis = []
    for line in range(rank):
        table[line] = [sign * value for value in lines[line]]
        basis.append(next(index for index, value in enumerate(lines[line]) if value != 0))
    return table, sign * denominator, basis


def _entering(totals: Any, denominator: Any, *, greedy: bool) -> int:
    """The row with the least product, or by Bland's rule, which cannot cycle, the first one below 1."""
    if greedy:
        return int(np.argmin(totals))
    return next(index for index, total in enumerate(totals) if total < denominator)


def _leaving(column: Any, basis: list[int], *, greedy: bool) -> int | None:
    positive = [line for line in range(len(basis)) if column[line] > 0]
    if not positive:
        return None
    return max(positive, key=lambda line: column[line]) if greedy else min(positive, key=lambda line: basis[line])


def _pivot(table: Any, line: int, entering: int, denominator: Any) -> Any:
    """Exchange in place; numbers stay whole over a common denominator (Edmonds)."""
    pivot = table[line, entering]
    for other in range(len(table)):
        if other != line:
            table[other] = (table[other] * pivot - table[line] * table[other, entering]) // denominator
    return pivot


def _dual_point(basis_rows: list[Integers]) -> list[Fraction]:
    """v with row·v = 1 for independent rows; entries that are not needed are 0."""
    width = len(basis_rows[0])
    echelon, denominator, rank = fmpz_mat([[*row, 1] for row in basis_rows]).rref()
    v = [Fraction(0)] * width
    lines = echelon.table()
    for line in range(rank):
        pivot = next(index for index, value in enumerate(lines[line]) if value != 0)
        v[pivot] = Fraction(int(lines[line][-1]), int(denominator))
    return v


def nearest_floats(numbers: Sequence[Fraction]) -> np.ndarray:
    """Each as the nearest float64; inf where there is none."""
    found = np.empty(len(numbers))
    for index, number in enumerate(numbers):
        try:
            found[index] = float(number)
        except OverflowError:
            found[index] = math.inf if number > 0 else -math.inf
    return found
