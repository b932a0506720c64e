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
    """Whether some x gives exactly the `active` labels; `candidates`: only these labels count, others are off."""
    chosen = range(len(W)) if candidates is None else sorted({int(label) for label in candidates})
    wanted = {int(label) for label in active}
    if not wanted <= set(chosen):
        return False
    return positive_point_or_weights(signed_rows(W, b, rule, wanted, chosen))[0] is not None


def signed_rows(
    W: np.ndarray, b: np.ndarray | None, rule: str, active: Iterable[int], candidates: Iterable[int] | None = None
) -> list[Integers]:
    """The rows of which a vector must have positive products with all, each scaled to whole numbers.

    One row for each candidate, s·(w, 1 for topk, b where there is a bias), and with a bias the row (0, …, 0, 1).
    """
    if rule not in ("sign", "topk"):
        raise ValueError(f"no rule is called {rule!r}")
    wanted = set(active)
    rows = []
    for label in range(len(W)) if candidates is None else candidates:
        numbers = [float(number) for number in W[label]]
        numbers += [1.0] if rule == "topk" else []
        numbers += [] if b is None else [float(b[label])]
        rows.append(whole([number if label in wanted else -number for number in numbers]))
    if b is not None:
        rows.append([0] * (W.shape[1] + (rule == "topk")) + [1])
    return rows


def whole(numbers: Sequence[float]) -> Integers:
    """`numbers` times the power of two that makes all of them whole."""
    ratios = [number.as_integer_ratio() for number in numbers]
    factor = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (factor // denominator) for numerator, denominator in ratios]


def positive_point_or_weights(rows: Sequence[Integers]) -> tuple[Integers | None, Integers | None]:
    """(v, None) with row·v > 0 for every row, or (None, λ) with λ ≥ 0, λ ≠ 0 and Σ λ_i row_i = 0 (Gordan).

    Phase one of the simplex for: Σ λ_i row_i = 0, Σ λ_i = 1, λ ≥ 0. It ends with λ, or with the multipliers of these
    equations, which are v.
    """
    if not rows:
        return [], None
    short = [_without_common_factor(row) for row in rows]
    basis, values, duals = _phase_one([[*column, 0] for column in zip(*short, strict=True)] + [[1] * len(rows) + [1]])
    if duals is not None:
        point = [-dual for dual in duals[:-1]]
        assert all(_dot(row, point) > 0 for row in rows)
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
    assert max(weights) > 0
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
