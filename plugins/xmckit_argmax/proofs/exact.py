"""Decide in exact arithmetic, by python-flint, what floats cannot decide.

A float is an integer times a power of two, so each row of W becomes a row of integers with its own power of two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpz_mat

Integers = list[int]
Rows = Mapping[int, Integers]
Weights = dict[int, Fraction]


class OutOfTime(Exception):
    """Exact arithmetic exceeded its deadline."""


def check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise OutOfTime


@dataclass(frozen=True)
class Combination:
    """Positive multipliers for which the combination of `rows` is zero; they are unique up to scale."""

    rows: list[int]
    multipliers: list[Fraction]


def integer_row(numbers: np.ndarray, powers: np.ndarray | None = None) -> tuple[Integers, int]:
    """Return integers and p with numbers[i]·2^powers[i] = integers[i]·2^−p; `powers` are 0 by default."""
    ratios = [number.as_integer_ratio() for number in numbers.tolist()]
    exponents = [0] * len(ratios) if powers is None else [int(power) for power in powers[: len(ratios)]]
    twos = [power - (denominator.bit_length() - 1) for (_, denominator), power in zip(ratios, exponents, strict=True)]
    least = min(twos, default=0)
    integers = [numerator << (two - least) for (numerator, _), two in zip(ratios, twos, strict=True)]
    common = math.gcd(*integers)
    shift = (common & -common).bit_length() - 1 if common else 0
    return [integer >> shift for integer in integers], -least - shift


def dot(row: Integers, v: Integers) -> int:
    return sum(a * b for a, b in zip(row, v, strict=True) if a)


def primitive(numbers: Sequence[Fraction]) -> Integers:
    """Return the shortest vector of integers in the direction of the numbers."""
    common = math.lcm(*(number.denominator for number in numbers))
    integers = [number.numerator * (common // number.denominator) for number in numbers]
    factor = math.gcd(*integers) or 1
    return [integer // factor for integer in integers]


def null_basis(rows: Sequence[Integers], width: int) -> list[Integers]:
    """Return a basis of the vectors v with row·v = 0 for every row."""
    table, dimension = fmpz_mat([*rows] or [[0] * width]).nullspace()
    columns = [[int(table[line, column]) for line in range(width)] for column in range(dimension)]
    return [[number // (math.gcd(*column) or 1) for number in column] for column in columns]


def coordinates(rows: Sequence[Integers], target: Integers) -> list[Fraction]:
    """Return c with Σ c_i rows_i = target, for a target in the span of the rows."""
    equations = [list(column) for column in zip(*rows, target, strict=True)]
    echelon, denominator, rank = fmpz_mat(equations).rref()
    solution = [Fraction(0)] * len(rows)
    for line in echelon.table()[:rank]:
        solution[_first_nonzero(line)] = Fraction(int(line[-1]), int(denominator))
    return solution


def smaller_combination(rows: Rows, weights: Weights, kept: Sequence[int]) -> Weights:
    """Drop rows from a positive combination that is zero, but none of `kept`, until the rest is independent of them.

    Each step moves along a combination without the rows `kept` until a weight becomes 0 (Carathéodory).
    """
    weights = dict(weights)
    while True:
        ids = list(weights)
        fixed = [[int(index == row) for index in ids] for row in kept]
        equations = [list(column) for column in zip(*(rows[index] for index in ids), strict=True)]
        directions = null_basis([*equations, *fixed], len(ids))
        if not directions:
            return weights
        direction = directions[0] if max(directions[0]) > 0 else [-number for number in directions[0]]
        steps = [weights[index] / part for index, part in zip(ids, direction, strict=True) if part > 0]
        step = min(steps)
        moved = {index: weights[index] - step * part for index, part in zip(ids, direction, strict=True)}
        weights = {index: weight for index, weight in moved.items() if weight}


def decide(rows: Sequence[Integers], deadline: float) -> Combination | list[Fraction]:
    """Return a non-negative combination of the rows that is zero, or v with row·v > 0 for every row (Gordan).

    This is the simplex method for max Σλ over Σ λ_i row_i = 0, λ ≥ 0. A basis of the rows' span has λ = 0 and defines v
    by row·v = 1 on its rows. A row outside the basis is Σ y_i·(basis row i), and its product with v is Σ y_i. If that
    product is below 1, the row enters in place of a basis row with y_i > 0. If all y_i ≤ 0, the row and the basis rows
    with y_i < 0 are the combination; its support is minimal, because basis rows are independent. The first basis
    prefers earlier rows.
    """
    if not rows:
        return []
    table, denominator, basis = _initial_table(rows)
    patience = 20 * len(basis) + 100
    while True:
        check_time(deadline)
        totals = table.sum(axis=0)
        if all(total > 0 for total in totals):
            return _dual_point([rows[index] for index in basis])
        patience -= 1
        entering = _choose_entering(totals, denominator, greedy=patience > 0)
        column = table[:, entering]
        leaving = _choose_leaving(column, basis, greedy=patience > 0)
        if leaving is None:
            members = [line for line in range(len(basis)) if column[line] < 0]
            return Combination(
                [*(basis[line] for line in members), entering],
                [*(Fraction(int(-column[line]), int(denominator)) for line in members), Fraction(1)],
            )
        denominator = _pivot(table, leaving, entering, denominator)
        basis[leaving] = entering


def _initial_table(rows: Sequence[Integers]) -> tuple[Any, Any, list[int]]:
    """Return (table, denominator, basis): column j of table/denominator holds the coordinates of row j in the basis."""
    equations = [list(column) for column in zip(*rows, strict=True)] or [[0] * len(rows)]
    echelon, denominator, rank = fmpz_mat(equations).rref()
    lines, sign = echelon.table()[:rank], -1 if denominator < 0 else 1
    table = np.array(lines, dtype=object).reshape(rank, len(rows)) * sign
    return table, sign * denominator, [_first_nonzero(line) for line in lines]


def _first_nonzero(line: Sequence[Any]) -> int:
    return next(index for index, value in enumerate(line) if value != 0)


def _choose_entering(totals: Any, denominator: Any, *, greedy: bool) -> int:
    """Choose the row with the least product, or by Bland's rule, which cannot cycle, the first one below 1."""
    if greedy:
        return int(np.argmin(totals))
    return next(index for index, total in enumerate(totals) if total < denominator)


def _choose_leaving(column: Any, basis: list[int], *, greedy: bool) -> int | None:
    positive = [line for line in range(len(basis)) if column[line] > 0]
    if not positive:
        return None
    return max(positive, key=lambda line: column[line]) if greedy else min(positive, key=lambda line: basis[line])


def _pivot(table: Any, line: int, entering: int, denominator: Any) -> Any:
    """Exchange in place; all entries stay integers over a common denominator (Edmonds)."""
    pivot = table[line, entering]
    for other in range(len(table)):
        if other != line:
            table[other] = (table[other] * pivot - table[line] * table[other, entering]) // denominator
    return pivot


def _dual_point(basis_rows: list[Integers]) -> list[Fraction]:
    """Return v with row·v = 1 for independent rows; free entries are 0."""
    v = [Fraction(0)] * len(basis_rows[0])
    echelon, denominator, rank = fmpz_mat([[*row, 1] for row in basis_rows]).rref()
    for line in echelon.table()[:rank]:
        v[_first_nonzero(line)] = Fraction(int(line[-1]), int(denominator))
    return v


def nearest_floats(numbers: Sequence[Fraction]) -> np.ndarray:
    """Return the nearest float64 of each number; numbers beyond the largest float become infinite."""
    floats = np.empty(len(numbers))
    for index, number in enumerate(numbers):
        try:
            floats[index] = float(number)
        except OverflowError:
            floats[index] = math.inf if number > 0 else -math.inf
    return floats


def times_powers(numbers: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Multiply positive numbers by powers of two, and keep them positive and finite."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(numbers, np.clip(powers, -2000, 2000))
    return np.clip(scaled, np.finfo(np.float64).smallest_subnormal, np.finfo(np.float64).max)
