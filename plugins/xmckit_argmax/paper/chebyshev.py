"""The paper's linear program (Grivas et al. 2024, equations 3 and 36), solved by HiGHS, with every claim checked.

    maximise ε   subject to   s_i a_i·v ≥ ε‖a_i‖ for every label i,   −box ≤ v_j ≤ box,   ε ≥ 0

where s_i = +1 for active and −1 for inactive labels. For the rule "sign" without bias a_i is the row w_i and ε the
paper's Chebyshev radius. The rule "topk" adds a column of ones (a free threshold). A bias adds the column b and the row
(0, …, 0, 1) of a variable t that must be positive. ε is then the radius in that wider space and does not settle eps:
with a bias, a second program for x itself does; for "topk" no answer at eps exists.

The paper requires ε > eps inside the program. The tolerance of a solver lets v = 0 pass such a bound, so the bound here
is 0, and the optimum is compared with eps. The output of HiGHS is never an answer by itself:

- *argmaxable*: its point, divided by t, has the right signs, proved with error bounds or in exact arithmetic;
- *unargmaxable*: the labels with a multiplier have an exact positive combination that is zero (Gordan);
- the radius lies between the bound from its point and the bound from its multipliers (weak duality): for λ ≥ 0,
  ε ≤ box·‖Σ λ_i s_i a_i‖₁ ÷ Σ λ_i‖a_i‖.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from xmckit import DataError, LinearDecision, Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.paper.highs import HighsSolution, maximise_last
from xmckit_argmax.paper.tolerance import radius_is_at_most
from xmckit_argmax.proofs import exact
from xmckit_argmax.records import Certificate, Proof
from xmckit_argmax.system import plain_rows

BOX, EPS = 1e4, 1e-8
TIME_LIMIT = 60.0
SPARE = 1e-9  # bounds keep this distance, for the program that checks them
# A multiplier below this share of the largest counts as zero; several are tried, since only the exact check decides.
SUPPORTS = (1e-12, 1e-9, 1e-6, 1e-3)
# More than underflow can take from a sum of a million products of numbers up to 1e17.
TINY = 1e-290


@dataclass(frozen=True)
class ChebyshevResult:
    """The output of the program, and its proved part.

    `status` is about the stored matrix, `eps` about the paper's tolerance: is the radius above it? `radius` is
    the optimum of HiGHS (None if it gave none or was not called), `bounds` are proved. `x` is its point in the space of
    the decision; `certificate` is as in `xmckit.Verdict`.
    """

    status: str
    eps: str | None
    proof: Proof = "none"
    radius: float | None = None
    bounds: tuple[float, float] = (0.0, math.inf)
    x: np.ndarray | None = None
    certificate: Certificate | None = None
    margin: float | None = None
    missed: tuple[int, ...] = ()
    message: str = ""
    seconds: float = 0.0

    def verdict(self, *, paper_radius: bool) -> Verdict:
        """Convert to a verdict; `paper_radius`: the rule is "sign" without bias, so that ε is the paper's radius."""
        argmaxable = self.status == ARGMAXABLE
        return Verdict(
            self.status,
            self.proof,
            witness=self.x if argmaxable else None,
            certificate=self.certificate,
            margin=self.margin if argmaxable else None,
            radius=self.bounds if paper_radius and argmaxable and math.isfinite(self.bounds[1]) else None,
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
) -> ChebyshevResult:
    """Solve and check the program for one assignment; with `candidates`, only these labels count."""
    start = time.perf_counter()
    problem = _problem(decision, active, candidates)
    result = _without_program(problem) or _by_program(problem, box, eps, time_limit)
    return replace(result, missed=problem.missed, seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class _ChebyshevProblem:
    """The rows and biases of the candidates as float64, and the sign that each logit must have."""

    labels: np.ndarray
    W: np.ndarray
    b: np.ndarray | None
    signs: np.ndarray
    rule: str
    missed: tuple[int, ...]

    def homogeneous_rows(self) -> np.ndarray:
        """Return the rows s·(w, 1 for topk, b), and with a bias the row (0, …, 0, 1)."""
        signs = self.signs if self.b is None else np.append(self.signs, 1.0)
        return plain_rows(self.W, self.b, self.rule, np.arange(len(signs))) * signs[:, None]


def _problem(decision: LinearDecision, active: Iterable[int], candidates: Iterable[int] | None) -> _ChebyshevProblem:
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
    return _ChebyshevProblem(labels, W, b, signs, decision.rule, missed)


def _label_ids(labels: Iterable[int], count: int, what: str) -> np.ndarray:
    ids = np.unique(np.asarray(list(labels), dtype=np.int64))
    if len(ids) and (ids[0] < 0 or ids[-1] >= count):
        wrong = ids[0] if ids[0] < 0 else ids[-1]
        raise DataError(f"{what} {wrong} is no row of W, expected 0 to {count - 1}")
    return ids


def _without_program(problem: _ChebyshevProblem) -> ChebyshevResult | None:
    """Return the result if it needs no optimum: for a missed label, a row of zeros, or no constraint."""
    if problem.missed:
        return ChebyshevResult(UNARGMAXABLE, UNARGMAXABLE, "exact", bounds=(0.0, 0.0))
    one_sided = len(set(problem.signs.tolist())) < 2
    if len(problem.W) == 0 or (problem.rule == "topk" and one_sided):
        eps = ARGMAXABLE if problem.rule == "sign" else None
        return ChebyshevResult(ARGMAXABLE, eps, "exact", x=np.zeros(problem.W.shape[1]))
    if problem.rule == "sign":
        biases = np.zeros(len(problem.W)) if problem.b is None else problem.b * problem.signs
        dead = np.flatnonzero(~problem.W.any(axis=1) & (biases <= 0))
        if len(dead):
            certificate = (problem.labels[dead[:1]], np.ones(1))
            return ChebyshevResult(UNARGMAXABLE, UNARGMAXABLE, "exact", bounds=(0.0, 0.0), certificate=certificate)
    return None


def _by_program(problem: _ChebyshevProblem, box: float, eps: float, time_limit: float | None) -> ChebyshevResult:
    rows, powers = _near_one(problem.homogeneous_rows())
    norms = np.sqrt((rows * rows).sum(axis=1))
    solution = _solve(rows / norms[:, None], np.zeros(len(rows)), box, 0.0, time_limit)
    result = ChebyshevResult(UNRESOLVED, UNRESOLVED, message=solution.message)
    if not len(solution.x) or not np.isfinite(solution.x).all():
        return result
    v = np.clip(solution.x[:-1], -box, box)
    multipliers = _multipliers(solution, len(rows))
    result = replace(
        result,
        radius=abs(float(solution.x[-1])),
        bounds=(radius_at_least(rows, v), radius_at_most(rows, multipliers / norms, box)),
        x=_point(problem, v),
    )
    if problem.rule == "sign" and problem.b is None:
        low, high = result.bounds
        status = ARGMAXABLE if low > eps else UNARGMAXABLE if high <= eps else UNRESOLVED
        dual = _positive_multipliers(problem.labels, np.ldexp(multipliers / norms, -powers))
        result = replace(result, eps=status, certificate=dual)
    proof = _prove_witness(problem, result.x)
    if proof != "none":
        length = float(np.linalg.norm(v))
        margin = float((rows @ v / norms)[: len(problem.W)].min() / length) if length else 0.0
        result = replace(result, status=ARGMAXABLE, proof=proof, margin=margin)
        return _with_eps(problem, result, box, eps, time_limit)
    certificate = _certificate(problem, multipliers[: len(problem.W)])
    if certificate is not None:
        return replace(
            result, status=UNARGMAXABLE, eps=UNARGMAXABLE, proof="exact", bounds=(0.0, 0.0), certificate=certificate
        )
    return result if result.eps == UNARGMAXABLE else replace(result, certificate=None)


def _with_eps(
    problem: _ChebyshevProblem, result: ChebyshevResult, box: float, eps: float, time_limit: float | None
) -> ChebyshevResult:
    """Add the answer at eps; with a bias, by the paper's program for x itself, s_i (w_i·x + b_i) ≥ ε‖w_i‖."""
    if problem.rule == "topk":
        return replace(result, eps=None)
    if problem.b is None:
        return result
    rows, shifts = problem.W * problem.signs[:, None], problem.b * problem.signs
    norms = np.linalg.norm(rows, axis=1)
    sloped = np.flatnonzero(norms > 0)
    rows, shifts, norms = rows[sloped], shifts[sloped], norms[sloped]
    if not np.isfinite(norms).all() or not len(sloped):
        return replace(result, eps=UNRESOLVED if len(sloped) else ARGMAXABLE)
    solution = _solve(rows / norms[:, None], shifts / norms, box, -math.inf, time_limit)
    if not len(solution.x) or not np.isfinite(solution.x).all():
        return replace(result, eps=UNRESOLVED)
    x = np.clip(solution.x[:-1], -box, box)
    wrong_by = _gamma(4 * (len(x) + 8)) * (np.abs(rows) @ np.abs(x) + np.abs(shifts)) + TINY
    if ((rows @ x + shifts - wrong_by) / norms * (1 - _gamma(4 * (len(x) + 8)))).min() > eps:
        lengths = np.hypot(norms, shifts) * math.hypot(float(np.linalg.norm(x)), 1.0)
        margin = float(((rows @ x + shifts) / lengths).min())
        return replace(result, eps=ARGMAXABLE, x=x, margin=margin, proof=_prove_witness(problem, x))
    multipliers = _multipliers(solution, len(rows)) / norms
    used = np.flatnonzero(multipliers)
    if len(used) and radius_is_at_most(eps, rows[used], shifts[used], multipliers[used], box):
        certificate = _positive_multipliers(problem.labels[sloped], multipliers)
        return replace(result, eps=UNARGMAXABLE, certificate=certificate)
    return replace(result, eps=UNRESOLVED)


def _multipliers(solution: HighsSolution, count: int) -> np.ndarray:
    """Return the multipliers of the rows; all zero without an optimum."""
    if solution.status != 0 or len(solution.marginals) != count:
        return np.zeros(count)
    return np.maximum(0.0, -solution.marginals)


def _positive_multipliers(labels: np.ndarray, multipliers: np.ndarray) -> Certificate | None:
    used = np.flatnonzero(multipliers[: len(labels)] > 0)
    return (labels[used], multipliers[used]) if len(used) else None


def _near_one(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale each row by a power of two, so that its largest entry is near 1; return the rows and the exponents removed.

    Only entries that underflow are rounded.
    """
    exponents = np.frexp(np.abs(rows).max(axis=1))[1]
    return np.ldexp(rows, -exponents[:, None]), exponents


def _solve(
    unit_rows: np.ndarray, shifts: np.ndarray, box: float, least: float, time_limit: float | None
) -> HighsSolution:
    """Maximise ε ≥ `least` subject to unit row·v + shift ≥ ε and v in the box."""
    count, width = unit_rows.shape
    lower, upper = np.append(np.full(width, -box), least), np.append(np.full(width, box), math.inf)
    return maximise_last(np.hstack([-unit_rows, np.ones((count, 1))]), shifts, lower, upper, time_limit)


def radius_at_least(rows: np.ndarray, v: np.ndarray) -> float:
    """Return a proved lower bound on ε from a point inside the box; rows must have their largest entry near 1."""
    width = len(v)
    products = rows @ v
    # leaves room for a second program with coarser bounds
    wrong_by = _gamma(4 * (width + 8)) * (np.abs(rows) @ np.abs(v)) + TINY
    norms = np.sqrt((rows * rows).sum(axis=1)) * (1 + _gamma(width + 6))
    return max(0.0, float(((products - wrong_by) / norms).min()) * (1 - SPARE))


def radius_at_most(rows: np.ndarray, weights: np.ndarray, box: float) -> float:
    """Return a proved upper bound on ε from weights ≥ 0 of the rows, by weak duality; infinite without a proof."""
    used = weights > 0
    if not used.any():
        return math.inf
    rows, weights = rows[used], weights[used]
    count, width = rows.shape
    sums = np.abs(weights @ rows) + _gamma(count + 2) * (weights @ np.abs(rows)) + TINY * (1 + weights.sum())
    norms = np.sqrt((rows * rows).sum(axis=1))
    return float(box * sums.sum() / (weights @ norms)) * (1 + _gamma(2 * (count + 2 * width) + 20)) * (1 + SPARE)


def _gamma(operations: int) -> float:
    """Bound the relative error of this many roundings in a row, with room for the roundings of the bound."""
    unit = 2.0**-53
    return 1.01 * operations * unit / (1 - operations * unit)


def _point(problem: _ChebyshevProblem, v: np.ndarray) -> np.ndarray | None:
    """Return x in the space of the decision, scaled to t = 1; None if that is impossible."""
    x = v[: problem.W.shape[1]]
    if problem.b is None:
        return x.copy()
    if v[-1] <= 0:
        return None
    with np.errstate(over="ignore"):
        x = x / v[-1]
    return x if np.isfinite(x).all() else None


def _prove_witness(problem: _ChebyshevProblem, x: np.ndarray | None) -> Proof:
    """Return how it is proved that x outputs the assignment, "none" if it does not."""
    if x is None:
        return "none"
    W, b, active = problem.W, problem.b, problem.signs > 0
    with np.errstate(over="ignore", invalid="ignore"):
        logits = W @ x if b is None else W @ x + b
        sizes = np.abs(W) @ np.abs(x) if b is None else np.abs(W) @ np.abs(x) + np.abs(b)
        wrong_by = _gamma(len(x) + 3) * sizes + TINY
        low, high = logits - wrong_by, logits + wrong_by
        if problem.rule == "sign":
            open_active, open_others = active & ~(low > 0), ~active & ~(high < 0)
        else:
            open_active, open_others = active & ~(low > high[~active].max()), ~active & ~(high < low[active].min())
    if not (open_active.any() or open_others.any()):
        return "float-certified"
    above, below = _exact_logits(problem, x, open_active), _exact_logits(problem, x, open_others)
    if problem.rule == "sign":
        right = all(logit > 0 for logit in above) and all(logit < 0 for logit in below)
    else:
        right = not above or not below or min(above) > max(below)
    return "exact" if right else "none"


def _exact_logits(problem: _ChebyshevProblem, x: np.ndarray, chosen: np.ndarray) -> list[Fraction]:
    point, point_power = exact.integer_row(x)
    logits = []
    for row in np.flatnonzero(chosen):
        weights, power = exact.integer_row(problem.W[row])
        product = Fraction(sum(a * b for a, b in zip(weights, point, strict=True)), 1 << (point_power + power))
        logits.append(product if problem.b is None else product + Fraction(float(problem.b[row])))
    return logits


def _certificate(problem: _ChebyshevProblem, multipliers: np.ndarray) -> Certificate | None:
    """Return an exact Gordan combination of the labels with a multiplier that is not negligible."""
    most = float(multipliers.max(initial=0.0))
    columns = problem.W.shape[1] + (problem.rule == "topk") + (problem.b is not None)
    tried: set[bytes] = set()
    for share in SUPPORTS if most > 0 else ():
        support = np.flatnonzero(multipliers > share * most)
        # more labels than this have several combinations
        if len(support) <= columns + 1 and support.tobytes() not in tried:
            tried.add(support.tobytes())
            weights = _positive_combination(problem, support)
            if weights is not None:
                kept = np.array([weight > 0 for weight in weights])
                return problem.labels[support[kept]], _as_floats([weight for weight in weights if weight > 0])
    return None


def _positive_combination(problem: _ChebyshevProblem, support: np.ndarray) -> list[Fraction] | None:
    """Return the λ ≥ 0 with Σ λ s w = 0, for topk Σ λ s = 0, with a bias Σ λ s b ≤ 0, if it is unique up to scale."""
    signed = [exact.integer_row(row) for row in problem.homogeneous_rows()[support]]
    rows = [row for row, _ in signed]
    weights, freedom = _null_vector(rows if problem.b is None else [row[:-1] for row in rows])
    if freedom == 2 and problem.b is not None:
        weights, freedom = _null_vector(rows)
    if freedom != 1 or not (min(weights) >= 0 or max(weights) <= 0):
        return None
    weights = [abs(weight) for weight in weights]
    if problem.b is not None and sum(weight * row[-1] for weight, row in zip(weights, rows, strict=True)) > 0:
        return None
    return [Fraction(weight << power) for weight, (_, power) in zip(weights, signed, strict=True)]


def _null_vector(rows: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Return one λ ≠ 0 with Σ λ_i row_i = 0, if it exists, and the dimension of all such λ, exactly."""
    from flint import fmpz_mat

    if not rows[0]:
        return [1] + [0] * (len(rows) - 1), len(rows)
    basis, freedom = fmpz_mat([list(column) for column in zip(*rows, strict=True)]).nullspace()
    return [int(basis[row, 0]) for row in range(len(rows))], int(freedom)


def _as_floats(weights: Sequence[Fraction]) -> np.ndarray:
    """Return the weights relative to the largest; a weight that is too small for a float stays positive."""
    largest = max(weights)
    return np.maximum([float(weight / largest) for weight in weights], np.finfo(np.float64).tiny)
