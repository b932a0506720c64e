"""Which label sets a layer can output, by a simplex over whole numbers: slow, short, and sure of its answer.

Shares no code with the verifier. Every answer comes with its proof (a point, or multipliers), and the proof is
multiplied out before the answer leaves this module: the simplex itself need not be believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

Integers = list[int]


def exactly_argmaxable(
    W: np.ndarray,
    b: np.ndarray | None,
    rule: str,
    active: Iterable[int],
    candidates: Iterable[int] | None = None,
) -> bool:
    """Whether some x gives exactly the `active` labels; `candidates`: only these labels count, others are off.

    Rule "sign": active logits are positive, the others are not. Rule "topk": an active label has a larger logit than
    any other label, or an equal one and a lower id.
    """
    chosen = range(len(W)) if candidates is None else sorted({int(label) for label in candidates})
    wanted = {int(label) for label in active}
    if not wanted <= set(chosen):
        return False
    rows, strict = required_rows(W, b, rule, wanted, chosen)
    return point_or_weights(rows, strict)[0] is not None


def strictly_argmaxable(W: np.ndarray, b: np.ndarray | None, rule: str, active: Iterable[int]) -> bool:
    """Whether some x gives exactly the `active` labels without any tie, as the paper defines it."""
    rows, _ = required_rows(W, b, rule, set(active), range(len(W)))
    return positive_point_or_weights(rows)[0] is not None


def required_rows(
    W: np.ndarray, b: np.ndarray | None, rule: str, active: set[int], candidates: Iterable[int]
) -> tuple[list[Integers], list[bool]]:
    """The rows with which a vector must have products of at least 0, and which of the products must be positive."""
    others = sorted(set(candidates) - active)

    def logit(label: int) -> list[Fraction]:
        shift = [] if b is None else [b[label]]
        return [Fraction(float(number)) for number in [*W[label], *shift]]

    if rule == "sign":
        pairs = [(logit(label), True) for label in sorted(active)]
        pairs += [([-number for number in logit(label)], False) for label in others]
    elif rule == "topk":
        pairs = [
            ([high - low for high, low in zip(logit(on), logit(off), strict=True)], off < on)
            for on in sorted(active)
            for off in others
        ]
    else:
        raise ValueError(f"no rule is called {rule!r}")
    if b is not None:
        pairs.append(([Fraction(0)] * W.shape[1] + [Fraction(1)], True))
    return [whole(row) for row, _ in pairs], [strict for _, strict in pairs]


def whole(numbers: Sequence[Fraction]) -> Integers:
    """`numbers` times the least number that makes all of them whole."""
    factor = math.lcm(*(number.denominator for number in numbers))
    return [number.numerator * (factor // number.denominator) for number in numbers]


def positive_point_or_weights(rows: Sequence[Integers]) -> tuple[Integers | None, Integers | None]:
    """(v, None) with row·v > 0 for every row, or (None, λ) with λ ≥ 0, λ ≠ 0 and Σ λ_i row_i = 0 (Gordan)."""
    return point_or_weights(rows, [True] * len(rows))


def point_or_weights(rows: Sequence[Integers], strict: Sequence[bool]) -> tuple[Integers | None, Integers | None]:
    """(v, None) with row·v ≥ 0 for every row, and > 0 for the strict ones, or (None, λ) that excludes it (Motzkin).

    λ ≥ 0, λ ≠ 0 on a strict row, Σ λ_i row_i = 0. Phase one of the simplex for these equations and Σ λ_i = 1 over the
    strict rows: it ends with λ, or with the multipliers of the equations, which are v.
    """
    if not any(strict):
        return [0] * len(rows[0]) if rows else [], None
    short = [_without_common_factor(row) for row in rows]
    equations = [[*column, 0] for column in zip(*short, strict=True)] + [[*map(int, strict), 1]]
    basis, values, duals = _phase_one(equations)
    if duals is not None:
        point = [-dual for dual in duals[:-1]]
        assert all(_dot(row, point) >= must for row, must in zip(rows, strict, strict=True))
        return point, None
    weights = [0] * len(rows)
    for column, value in zip(basis, values, strict=True):
        if column < len(rows):
            weights[column] = value
    # `short` rows are the rows divided by these factors
    factors = [_common_factor(row) for row in rows]
    scale = math.lcm(*factors)
    weights = [weight * (scale // factor) for weight, factor in zip(weights, factors, strict=True)]
    assert min(weights) >= 0
    assert any(weight and must for weight, must in zip(weights, strict, strict=True))
    assert all(_dot(column, weights) == 0 for column in zip(*rows, strict=True))
    return None, weights


def _phase_one(equations: list[Integers]) -> tuple[Integers, Integers, Integers | None]:
    """Non-negative z with Σ_j equation[j]·z_j = equation[-1] ≥ 0 for every equation, by Bland's rule (no cycles).

    Gives (basic columns, their values times a common denominator, None). Where there is no such z, the last of the
    three is y with y·column ≤ 0 for every column and y·(right-hand side) > 0. Later columns are artificial.
    """
    height, width = len(equations), len(equations[0]) - 1
    table = np.zeros((height + 1, width + height + 1), dtype=object)
    for line, equation in enumerate(equations):
        table[line, :width], table[line, -1] = equation[:-1], equation[-1]
        table[line, width + line] = 1
    # the last line holds the reduced costs of "minimise the sum of the artificial columns"
    table[-1] = -table[:-1].sum(axis=0)
    table[-1, width:-1] = 0
    basis, denominator = list(range(width, width + height)), 1
    while (entering := next((column for column in range(width) if table[-1, column] < 0), None)) is not None:
        ratios = [
            (Fraction(table[line, -1], table[line, entering]), basis[line], line)
            for line in range(height)
            if table[line, entering] > 0
        ]
        leaving = min(ratios)[-1]
        denominator = _pivot(table, leaving, entering, denominator)
        basis[leaving] = entering
    if table[-1, -1] == 0:
        return basis, list(table[:-1, -1]), None
    return basis, [], [int(denominator - cost) for cost in table[-1, width:-1]]


def _pivot(table: np.ndarray, line: int, column: int, denominator: int) -> int:
    """One step of elimination in place; entries stay whole because all share a denominator (Edmonds, Bareiss)."""
    pivot = table[line, column]
    for other in range(len(table)):
        if other != line:
            table[other] = (table[other] * pivot - table[line] * table[other, column]) // denominator
    return int(pivot)


def _common_factor(row: Sequence[int]) -> int:
    return math.gcd(*row) or 1


def _without_common_factor(row: Sequence[int]) -> Integers:
    factor = _common_factor(row)
    return [number // factor for number in row]


def _dot(left: Iterable[int], right: Iterable[int]) -> int:
    return sum(a * b for a, b in zip(left, right, strict=True))
