"""The paper's linear program (Grivas et al. 2024, equations 3 and 36) by HiGHS, with every claim checked.

    maximise ε   subject to   s_i a_i·v ≥ ε‖a_i‖ for every label i,   −box ≤ v_j ≤ box,   ε ≥ 0

where s_i = +1 for active and −1 for inactive labels. For the rule "sign" without bias a_i is the row w_i and ε the
paper's Chebyshev radius. The rule "topk" adds a column of ones (a free threshold), a bias the column b and the row
(0, …, 0, 1) of a variable t that must be positive; ε then is the radius in that wider space and says nothing about
eps: with a bias a second program, for x itself, does; for "topk" there is no such answer.

The paper asks for ε > eps inside the program. A solver's tolerance lets v = 0 pass such a bound, so the bound here is 0
and the optimum is judged. What HiGHS says is never an answer by itself:

- *argmaxable*: its point, divided by t, has the right signs, proved with rounding errors or in whole numbers;
- *unargmaxable*: the labels with a multiplier have an exact positive combination that is zero (Gordan);
- the radius lies between what its point proves and what its multipliers prove (weak duality): for λ ≥ 0,
  ε ≤ box·‖Σ λ_i s_i a_i‖₁ ÷ Σ λ_i‖a_i‖.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from xmckit import DataError, LinearDecision, Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.paper.highs import Solution, maximise_last
from xmckit_argmax.paper.tolerance import radius_is_at_most

BOX, EPS = 1e4, 1e-8
TIME_LIMIT = 60.0
SPARE = 1e-9  # of bounds, for whoever checks them
# A multiplier below this share of the largest is taken for zero; several, since only the exact check decides.
SUPPORTS = (1e-12, 1e-9, 1e-6, 1e-3)
# More than what underflow can take from a sum of a million products of numbers up to 1e17.
TINY = 1e-290

Certificate = tuple[np.ndarray, np.ndarray]
Proof = Literal["float-certified", "exact", "none"]


@dataclass(frozen=True)
class ChebyshevAnswer:
    """What the program gave, and what of it is proved.

    `status` is about the stored matrix, `eps` about the paper's tolerance: is the radius above it? `radius` is
    HiGHS's optimum (None when it gave none or was not asked), `bounds` are proved. `x` is its point in the decision's
    space; `multipliers` belong to `labels`; `certificate` is as in `xmckit.Verdict`.
    """

    status: str
    eps: str | None
    proof: Proof = "none"
    radius: float | None = None
    bounds: tuple[float, float] = (0.0, math.inf)
    x: np.ndarray | None = None
    labels: np.ndarray | None = None
    multipliers: np.ndarray | None = None
    certificate: Certificate | None = None
    margin: float | None = None
    missed: tuple[int, ...] = ()
    message: str = ""
    seconds: float = 0.0

    def verdict(self, *, paper_radius: bool) -> Verdict:
        """As a verifier hands it out; `paper_radius`: the rule is "sign" without bias, so that ε is the paper's."""
        can = self.status == ARGMAXABLE
        return Verdict(
            status=self.status,
            proof=self.proof,
            witness=self.x if can else None,
            certificate=self.certificate,
            margin=self.margin if can else None,
            radius=self.bounds if paper_radius and can and math.isfinite(self.bounds[1]) else None,
            eps=self.eps,
            missed=self.missed,
            seconds=self.seconds,
        )


def chebyshev(
    decision: LinearDecision,
    active: Iterable[int],
    candidates: Iterable[int] | None = None,
    *,
    box: float = BOX,
    eps: float = EPS,
    time_limit: float | None = TIME_LIMIT,
) -> ChebyshevAnswer:
    """Solve and check the program for one assignment; `candidates`: only these labels count, the others are off."""
    start = time.perf_counter()
    question = _question(decision, active, candidates)
    answer = _without_program(question) or _by_program(question, box, eps, time_limit)
    return replace(answer, labels=question.labels, missed=question.missed, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class _Question:
    """The candidates' rows and biases as float64, and the sign that each logit is to have."""

    labels: np.ndarray
    W: np.ndarray
    b: np.ndarray | None
    signs: np.ndarray
    rule: str
    missed: tuple[int, ...]

    def homogeneous(self) -> np.ndarray:
        """The rows s·(w, 1 for topk, b), and (0, …, 0, 1) where there is a bias."""
        columns = [self.W]
        if self.rule == "topk":
            columns.append(np.ones((len(self.W), 1)))
        if self.b is not None:
            columns.append(self.b[:, None])
        rows = np.concatenate(columns, axis=1) * self.signs[:, None]
        if self.b is None:
            return rows
        return np.concatenate([rows, np.eye(1, rows.shape[1], rows.shape[1] - 1)])


def _question(decision: LinearDecision, active: Iterable[int], candidates: Iterable[int] | None) -> _Question:
    count = len(decision.W)
    wanted = _label_ids(active, count, "active label")
    labels = np.arange(count) if candidates is None else _label_ids(candidates, count, "candidate")
    W = np.asarray(decision.W, dtype=np.float64)[labels]
    b = None if decision.b is None else np.asarray(decision.b, dtype=np.float64)[labels]
    for name, array in (("W", W), ("b", b)):
        if array is not None and not np.isfinite(array).all():
            row = int(np.argmin(np.isfinite(array.reshape(len(array), -1)).all(axis=1)))
            raise DataError(f"{name} has a number that is not finite, expected finite weights", row=int(labels[row]))
    signs = np.where(np.isin(labels, wanted), 1.0, -1.0)
    missed = tuple(np.setdiff1d(wanted, labels).tolist())
    return _Question(labels, W, b, signs, decision.rule, missed)


def _label_ids(given: Iterable[int], count: int, what: str) -> np.ndarray:
    ids = np.unique(np.asarray(list(given), dtype=np.int64))
    if len(ids) and (ids[0] < 0 or ids[-1] >= count):
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise DataError(f"{what} {wrong} is no row of W, expected 0 to {count - 1}")
    return ids


def _without_program(question: _Question) -> ChebyshevAnswer | None:
    """The answers that need no optimum: a missed label, a row of zeros, nothing to ask."""
    if question.missed:
        return ChebyshevAnswer(UNARGMAXABLE, UNARGMAXABLE, "exact", bounds=(0.0, 0.0))
    one_sided = len(set(question.signs.tolist())) < 2
    if len(question.W) == 0 or (question.rule == "topk" and one_sided):
        eps = ARGMAXABLE if question.rule == "sign" else None
        return ChebyshevAnswer(ARGMAXABLE, eps, "exact", x=np.zeros(question.W.shape[1]))
    if question.rule == "sign":
        biases = np.zeros(len(question.W)) if question.b is None else question.b * question.signs
        dead = np.flatnonzero(~question.W.any(axis=1) & (biases <= 0))
        if len(dead):
            certificate = (question.labels[dead[:1]], np.ones(1))
            return ChebyshevAnswer(UNARGMAXABLE, UNARGMAXABLE, "exact", bounds=(0.0, 0.0), certificate=certificate)
    return None


def _by_program(question: _Question, box: float, eps: float, time_limit: float | None) -> ChebyshevAnswer:
    rows, powers = _near_one(question.homogeneous())
    norms = np.sqrt((rows * rows).sum(axis=1))
    result = _solve(rows / norms[:, None], np.zeros(len(rows)), box, 0.0, time_limit)
    found = ChebyshevAnswer(UNRESOLVED, UNRESOLVED, message=result.message)
    if not len(result.x) or not np.isfinite(result.x).all():
        return found
    v = np.clip(result.x[:-1], -box, box)
    multipliers = _multipliers(result, len(rows))
    found = replace(
        found,
        radius=abs(float(result.x[-1])),
        bounds=(radius_at_least(rows, v), radius_at_most(rows, multipliers / norms, box)),
        x=_point(question, v),
        multipliers=multipliers[: len(question.W)],
    )
    if question.rule == "sign" and question.b is None:
        low, high = found.bounds
        found = replace(found, eps=ARGMAXABLE if low > eps else UNARGMAXABLE if high <= eps else UNRESOLVED)
        found = replace(found, certificate=_of_labels(question.labels, np.ldexp(multipliers / norms, -powers)))
    proof = _produces(question, found.x)
    if proof != "none":
        length = float(np.linalg.norm(v))
        margin = float((rows @ v / norms)[: len(question.W)].min() / length) if length else 0.0
        return _in_the_box(
            question, replace(found, status=ARGMAXABLE, proof=proof, margin=margin), box, eps, time_limit
        )
    certificate = _certificate(question, multipliers[: len(question.W)])
    if certificate is not None:
        return replace(
            found, status=UNARGMAXABLE, eps=UNARGMAXABLE, proof="exact", bounds=(0.0, 0.0), certificate=certificate
        )
    return found if found.eps == UNARGMAXABLE else replace(found, certificate=None)


def _in_the_box(
    question: _Question, found: ChebyshevAnswer, box: float, eps: float, time_limit: float | None
) -> ChebyshevAnswer:
    """The answer at eps where there is a bias: by the paper's program for x itself, s_i (w_i·x + b_i) ≥ ε‖w_i‖."""
    if question.rule == "topk":
        return replace(found, eps=None)
    if question.b is None:
        return found
    rows, shifts = question.W * question.signs[:, None], question.b * question.signs
    norms = np.linalg.norm(rows, axis=1)
    sloped = np.flatnonzero(norms > 0)
    rows, shifts, norms = rows[sloped], shifts[sloped], norms[sloped]
    if not np.isfinite(norms).all() or not len(sloped):
        return replace(found, eps=UNRESOLVED if len(sloped) else ARGMAXABLE)
    result = _solve(rows / norms[:, None], shifts / norms, box, -math.inf, time_limit)
    if not len(result.x) or not np.isfinite(result.x).all():
        return replace(found, eps=UNRESOLVED)
    x = np.clip(result.x[:-1], -box, box)
    wrong_by = _gamma(4 * (len(x) + 8)) * (np.abs(rows) @ np.abs(x) + np.abs(shifts)) + TINY
    if ((rows @ x + shifts - wrong_by) / norms * (1 - _gamma(4 * (len(x) + 8)))).min() > eps:
        lengths = np.hypot(norms, shifts) * math.hypot(float(np.linalg.norm(x)), 1.0)
        margin = float(((rows @ x + shifts) / lengths).min())
        return replace(found, eps=ARGMAXABLE, x=x, margin=margin, proof=_produces(question, x))
    multipliers = _multipliers(result, len(rows)) / norms
    used = np.flatnonzero(multipliers)
    if len(used) and radius_is_at_most(eps, rows[used], shifts[used], multipliers[used], box):
        return replace(found, eps=UNARGMAXABLE, certificate=_of_labels(question.labels[sloped], multipliers))
    return replace(found, eps=UNRESOLVED)


def _multipliers(result: Solution, count: int) -> np.ndarray:
    """Of the rows; zero where there is no optimum to prove."""
    if result.status != 0 or len(result.marginals) != count:
        return np.zeros(count)
    return np.maximum(0.0, -result.marginals)


def _of_labels(labels: np.ndarray, multipliers: np.ndarray) -> Certificate | None:
    used = np.flatnonzero(multipliers[: len(labels)] > 0)
    return (labels[used], multipliers[used]) if len(used) else None


def _near_one(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Each row times the power of two that brings its largest entry near 1, these powers' negated exponents).

    Nothing is rounded but what underflows.
    """
    exponents = np.frexp(np.abs(rows).max(axis=1))[1]
    return np.ldexp(rows, -exponents[:, None]), exponents


def _solve(unit_rows: np.ndarray, shifts: np.ndarray, box: float, least: float, time_limit: float | None) -> Solution:
    """Maximise ε ≥ `least` subject to unit row·v + shift ≥ ε and v in the box."""
    count, width = unit_rows.shape
    return maximise_last(
        np.hstack([-unit_rows, np.ones((count, 1))]),
        shifts,
        np.append(np.full(width, -box), least),
        np.append(np.full(width, box), math.inf),
        time_limit,
    )


def radius_at_least(rows: np.ndarray, v: np.ndarray) -> float:
    """A proved lower bound on ε from a point inside the box; rows have their largest entry near 1."""
    width = len(v)
    products = rows @ v
    # with room for a second program that has coarser bounds
    wrong_by = _gamma(4 * (width + 8)) * (np.abs(rows) @ np.abs(v)) + TINY
    norms = np.sqrt((rows * rows).sum(axis=1)) * (1 + _gamma(width + 6))
    return max(0.0, float(((products - wrong_by) / norms).min()) * (1 - SPARE))


def radius_at_most(rows: np.ndarray, weights: np.ndarray, box: float) -> float:
    """A proved upper bound on ε from weights ≥ 0 of the rows, by weak duality; infinite when they prove nothing."""
    used = weights > 0
    if not used.any():
        return math.inf
    rows, weights = rows[used], weights[used]
    count, width = rows.shape
    sums = np.abs(weights @ rows) + _gamma(count + 2) * (weights @ np.abs(rows)) + TINY * (1 + weights.sum())
    norms = np.sqrt((rows * rows).sum(axis=1))
    return float(box * sums.sum() / (weights @ norms)) * (1 + _gamma(2 * (count + 2 * width) + 20)) * (1 + SPARE)


def _gamma(operations: int) -> float:
    """Bound on the relative error of so many roundings in a row, with room for the bound's own."""
    unit = 2.0**-53
    return 1.01 * operations * unit / (1 - operations * unit)


def _point(question: _Question, v: np.ndarray) -> np.ndarray | None:
    """x of the decision's space, scaled so that the bias counts once."""
    x = v[: question.W.shape[1]]
    if question.b is None:
        return x.copy()
    if v[-1] <= 0:
        return None
    with np.errstate(over="ignore"):
        x = x / v[-1]
    return x if np.isfinite(x).all() else None


def _produces(question: _Question, x: np.ndarray | None) -> Proof:
    """How it is proved that x gives the assignment, "none" when it does not."""
    if x is None:
        return "none"
    W, b, active = question.W, question.b, question.signs > 0
    with np.errstate(over="ignore", invalid="ignore"):
        logits = W @ x if b is None else W @ x + b
        sizes = np.abs(W) @ np.abs(x) if b is None else np.abs(W) @ np.abs(x) + np.abs(b)
        wrong_by = _gamma(len(x) + 3) * sizes + TINY
        low, high = logits - wrong_by, logits + wrong_by
        if question.rule == "sign":
            open_active, open_others = active & ~(low > 0), ~active & ~(high < 0)
        else:
            open_active, open_others = active & ~(low > high[~active].max()), ~active & ~(high < low[active].min())
    if not (open_active.any() or open_others.any()):
        return "float-certified"
    above, below = _exact_logits(question, x, open_active), _exact_logits(question, x, open_others)
    if question.rule == "sign":
        right = all(logit > 0 for logit in above) and all(logit < 0 for logit in below)
    else:
        right = not above or not below or min(above) > max(below)
    return "exact" if right else "none"


def _exact_logits(question: _Question, x: np.ndarray, chosen: np.ndarray) -> list[Fraction]:
    whole, factor = _whole(x.tolist())
    logits = []
    for row in np.flatnonzero(chosen):
        weights, row_factor = _whole(question.W[row].tolist())
        product = Fraction(sum(a * b for a, b in zip(weights, whole, strict=True)), factor * row_factor)
        logits.append(product if question.b is None else product + Fraction(float(question.b[row])))
    return logits


def _certificate(question: _Question, multipliers: np.ndarray) -> Certificate | None:
    """An exact Gordan combination of the labels whose multiplier is not negligible."""
    most = float(multipliers.max(initial=0.0))
    columns = question.W.shape[1] + (question.rule == "topk") + (question.b is not None)
    tried: set[bytes] = set()
    for share in SUPPORTS if most > 0 else ():
        support = np.flatnonzero(multipliers > share * most)
        # more labels than this have several combinations, and the one that is meant is not known
        if len(support) <= columns + 1 and support.tobytes() not in tried:
            tried.add(support.tobytes())
            weights = _positive_combination(question, support)
            if weights is not None:
                kept = np.array([weight > 0 for weight in weights])
                return question.labels[support[kept]], _as_floats([weight for weight in weights if weight > 0])
    return None


def _positive_combination(question: _Question, support: np.ndarray) -> list[Fraction] | None:
    """λ ≥ 0 with Σ λ s w = 0, for topk Σ λ s = 0, with a bias Σ λ s b ≤ 0, where the support allows one up to scale."""
    scaled, factors = [], []
    for row in support:
        numbers = [*question.W[row].tolist(), *([1.0] if question.rule == "topk" else [])]
        numbers += [] if question.b is None else [float(question.b[row])]
        whole, factor = _whole([float(question.signs[row]) * number for number in numbers])
        scaled.append(whole)
        factors.append(factor)
    without_bias = scaled if question.b is None else [row[:-1] for row in scaled]
    weights, freedom = _null_vector(without_bias)
    if freedom == 2 and question.b is not None:
        weights, freedom = _null_vector(scaled)
    if freedom != 1 or not (min(weights) >= 0 or max(weights) <= 0):
        return None
    weights = [abs(weight) for weight in weights]
    if question.b is not None and sum(weight * row[-1] for weight, row in zip(weights, scaled, strict=True)) > 0:
        return None
    return [Fraction(weight * factor) for weight, factor in zip(weights, factors, strict=True)]


def _null_vector(rows: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """(one λ ≠ 0 with Σ λ_i row_i = 0 where there is one, the dimension of all such λ), exactly."""
    from flint import fmpz_mat

    if not rows[0]:
        return [1] + [0] * (len(rows) - 1), len(rows)
    basis, freedom = fmpz_mat([list(column) for column in zip(*rows, strict=True)]).nullspace()
    return [int(basis[row, 0]) for row in range(len(rows))], int(freedom)


def _whole(numbers: Sequence[float]) -> tuple[list[int], int]:
    """`numbers` times a power of two that makes all of them whole, and that power."""
    ratios = [number.as_integer_ratio() for number in numbers]
    factor = max((denominator for _, denominator in ratios), default=1)
    return [numerator * (factor // denominator) for numerator, denominator in ratios], factor


def _as_floats(weights: Sequence[Fraction]) -> np.ndarray:
    """Relative to the largest; one that is too small for a float stays positive."""
    largest = max(weights)
    return np.maximum([float(weight / largest) for weight in weights], np.finfo(np.float64).tiny)
