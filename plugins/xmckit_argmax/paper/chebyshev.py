"""The paper's linear program (Grivas et al. 2024, equations 3 and 36), solved by HiGHS, with every claim checked.

    maximise ε   subject to   s_i a_i·v ≥ ε‖a_i‖ for every label i,   −box ≤ v_j ≤ box,   ε ≥ 0

where s_i = +1 for active and −1 for inactive labels. For the rule "sign" without bias a_i is the row w_i and ε the
paper's Chebyshev radius. The rule "topk" adds a column of ones (a free threshold). A bias adds the column b and the row
(0, …, 0, 1) of a variable t that must be positive. ε is then the radius in that wider space and does not settle eps:
with a bias, a second program for x itself does; for "topk" no answer at eps exists.

The paper requires ε > eps inside the program. The tolerance of a solver lets v = 0 pass such a bound, so the bound here
is 0, and the optimum is compared with eps. The output of HiGHS is never an answer by itself:

- *argmaxable*: its point, divided by t, has the right signs, proved with error bounds or in exact arithmetic;
- *unargmaxable*: the labels with a multiplier have an exact positive combination that is zero (Gordan), and it ties
  labels that must not be tied. The programme does not know ties: a set that only a tie outputs has eps unargmaxable,
  and its status stays unresolved, unless x = 0 outputs it;
- the radius lies between the bound from its point and the bound from its multipliers (weak duality): for λ ≥ 0,
  ε ≤ box·‖Σ λ_i s_i a_i‖₁ ÷ Σ λ_i‖a_i‖.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from flint import fmpz_mat

from xmckit import Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.paper.highs import maximise_last
from xmckit_argmax.paper.tolerance import radius_is_at_most
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.prover import Prover
from xmckit_argmax.records import Assignment, Certificate, Proof
from xmckit_argmax.solver import SolverSettings
from xmckit_argmax.system import LinearSystem, plain_rows

SPARE = 1e-9  # bounds keep this distance, for the program that checks them
# A multiplier below this share of the largest counts as zero; several are tried, since only the exact check decides.
SUPPORTS = (1e-12, 1e-9, 1e-6, 1e-3)
# More than underflow can take from a sum of a million products of numbers up to 1e17.
TINY = 1e-290


class ChebyshevSolver:
    """Solve and check the program for assignments of one decision; a verdict keeps only what is proved."""

    def __init__(self, system: LinearSystem, W: np.ndarray, b: np.ndarray | None, settings: SolverSettings):
        self.W, self.b, self.rule, self.settings = W, b, system.rule, settings
        self._prover = Prover(system, W, b, settings.box, settings.eps)

    def solve(self, assignments: Sequence[Assignment]) -> list[Verdict]:
        """Return one verdict for each assignment, in order."""
        return [self._solve_one(assignment) for assignment in assignments]

    def _solve_one(self, assignment: Assignment) -> Verdict:
        start = time.perf_counter()
        verdict = self._prover.prove_trivial(assignment) or self._by_program(assignment)
        return replace(verdict, seconds=time.perf_counter() - start)

    def _by_program(self, assignment: Assignment) -> Verdict:
        verdict = _by_program(self._problem(assignment), self.settings)
        if verdict.status == UNARGMAXABLE:
            return self._by_rule(assignment, verdict)
        if verdict.witness is None:
            return verdict
        return replace(verdict, margin=self._prover.margin(assignment, verdict.witness))

    def _by_rule(self, assignment: Assignment, verdict: Verdict) -> Verdict:
        """Return the verdict if its combination, which excludes strict inequalities, excludes ties too.

        If it does not, only the answer at eps stays: the programme does not know ties.
        """
        assert verdict.certificate is not None
        system, (labels, weights) = self._prover.system, verdict.certificate
        rows = fmpz_mat([row for row, _ in self._prover.signed_rows(assignment, labels)])
        by_tie = self._prover.try_zero(assignment)
        if rows.rank() == len(labels):  # zero but for the bias, so that t would be 0
            return verdict
        if rows.rank() == system.width:  # only the zero vector satisfies all inequalities
            if by_tie is None:
                return verdict
        elif system.clash(labels.tolist(), set(assignment.active.tolist())):
            return verdict
        else:
            by_tie = Verdict(UNRESOLVED)
        if system.rule == "topk":
            return by_tie
        signs = system.signs(labels, assignment.active)
        shifts = np.zeros(len(labels)) if self.b is None else self.b[labels] * signs
        eps, box = self.settings.eps, self.settings.box
        if radius_is_at_most(eps, self.W[labels] * signs[:, None], shifts, weights, box):
            return replace(by_tie, eps=UNARGMAXABLE, certificate=verdict.certificate)
        return replace(by_tie, eps=UNRESOLVED)

    def _problem(self, assignment: Assignment) -> _ChebyshevProblem:
        labels = np.arange(len(self.W)) if assignment.candidates is None else assignment.candidates
        signs = np.where(np.isin(labels, assignment.active), 1.0, -1.0)
        b = None if self.b is None else self.b[labels]
        return _ChebyshevProblem(labels, self.W[labels], b, signs, self.rule)


@dataclass(frozen=True)
class _ChebyshevProblem:
    """The rows and biases of the candidates, and the sign that each logit must have."""

    labels: np.ndarray
    W: np.ndarray
    b: np.ndarray | None
    signs: np.ndarray
    rule: str

    def homogeneous_rows(self) -> np.ndarray:
        """Return the rows s·(w, 1 for topk, b), and with a bias the row (0, …, 0, 1)."""
        signs = self.signs if self.b is None else np.append(self.signs, 1.0)
        return plain_rows(self.W, self.b, self.rule, np.arange(len(signs))) * signs[:, None]


def _by_program(problem: _ChebyshevProblem, settings: SolverSettings) -> Verdict:
    rows, powers = _near_one(problem.homogeneous_rows())
    norms = np.sqrt((rows * rows).sum(axis=1))
    v, multipliers = _solve(rows / norms[:, None], np.zeros(len(rows)), 0.0, settings)
    verdict, radius = Verdict(UNRESOLVED, eps=UNRESOLVED), None
    if v is None:
        return verdict
    if problem.rule == "sign" and problem.b is None:
        low, high = radius_at_least(rows, v), radius_at_most(rows, multipliers / norms, settings.box)
        radius = (low, high) if math.isfinite(high) else None
        status = ARGMAXABLE if low > settings.eps else UNARGMAXABLE if high <= settings.eps else UNRESOLVED
        dual = _positive_multipliers(problem.labels, np.ldexp(multipliers / norms, -powers))
        verdict = replace(verdict, eps=status, certificate=dual)
    x = _divide_by_t(problem, v)
    proof = _prove_witness(problem, x)
    if proof != "none":
        verdict = replace(verdict, status=ARGMAXABLE, proof=proof, witness=x, radius=radius)
        return _with_eps(problem, verdict, settings)
    certificate = _certificate(problem, multipliers[: len(problem.W)])
    if certificate is not None:
        return Verdict(UNARGMAXABLE, "exact", certificate=certificate, eps=UNARGMAXABLE)
    return verdict if verdict.eps == UNARGMAXABLE else replace(verdict, certificate=None)


def _with_eps(problem: _ChebyshevProblem, verdict: Verdict, settings: SolverSettings) -> Verdict:
    """Add the answer at eps; with a bias, by the paper's program for x itself, s_i (w_i·x + b_i) ≥ ε‖w_i‖."""
    if problem.rule == "topk":
        return replace(verdict, eps=None)
    if problem.b is None:
        return verdict
    rows, shifts = problem.W * problem.signs[:, None], problem.b * problem.signs
    norms = np.linalg.norm(rows, axis=1)
    sloped = np.flatnonzero(norms > 0)
    rows, shifts, norms = rows[sloped], shifts[sloped], norms[sloped]
    if not np.isfinite(norms).all() or not len(sloped):
        return replace(verdict, eps=UNRESOLVED if len(sloped) else ARGMAXABLE)
    x, multipliers = _solve(rows / norms[:, None], shifts / norms, -math.inf, settings)
    if x is None:
        return replace(verdict, eps=UNRESOLVED)
    wrong_by = _gamma(4 * (len(x) + 8)) * (np.abs(rows) @ np.abs(x) + np.abs(shifts)) + TINY
    if ((rows @ x + shifts - wrong_by) / norms * (1 - _gamma(4 * (len(x) + 8)))).min() > settings.eps:
        return replace(verdict, eps=ARGMAXABLE, witness=x, proof=_prove_witness(problem, x))
    multipliers = multipliers / norms
    used = np.flatnonzero(multipliers)
    if len(used) and radius_is_at_most(settings.eps, rows[used], shifts[used], multipliers[used], settings.box):
        certificate = _positive_multipliers(problem.labels[sloped], multipliers)
        return replace(verdict, eps=UNARGMAXABLE, certificate=certificate)
    return replace(verdict, eps=UNRESOLVED)


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
    unit_rows: np.ndarray, shifts: np.ndarray, least: float, settings: SolverSettings
) -> tuple[np.ndarray | None, np.ndarray]:
    """Maximise ε ≥ `least` subject to unit row·v + shift ≥ ε and v in the box; return v and the rows' multipliers.

    v is None if HiGHS gave no finite numbers, and all multipliers are zero if it gave no optimum.
    """
    count, width = unit_rows.shape
    box = np.full(width, settings.box)
    A, lower, upper = np.hstack([-unit_rows, np.ones((count, 1))]), np.append(-box, least), np.append(box, math.inf)
    solution = maximise_last(A, shifts, lower, upper, settings.seconds)
    is_optimal = solution.status == 0 and len(solution.marginals) == count
    multipliers = np.maximum(0.0, -solution.marginals) if is_optimal else np.zeros(count)
    finite = len(solution.x) > 0 and bool(np.isfinite(solution.x).all())
    return (np.clip(solution.x[:-1], -settings.box, settings.box) if finite else None), multipliers


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


def _divide_by_t(problem: _ChebyshevProblem, v: np.ndarray) -> np.ndarray | None:
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
    W, active = problem.W, problem.signs > 0
    b = np.zeros(len(W)) if problem.b is None else problem.b
    with np.errstate(over="ignore", invalid="ignore"):
        logits = W @ x + b
        sizes = np.abs(W) @ np.abs(x) + np.abs(b)
        wrong_by = _gamma(len(x) + 3) * sizes + TINY
        low, high = logits - wrong_by, logits + wrong_by
        if problem.rule == "sign":
            open_active, open_others = active & ~(low > 0), ~active & ~(high < 0)
        else:
            open_active, open_others = active & ~(low > high[~active].max()), ~active & ~(high < low[active].min())
    if not (open_active.any() or open_others.any()):
        return "float-certified"
    above, below = _exact_logits(W[open_active], b[open_active], x), _exact_logits(W[open_others], b[open_others], x)
    if problem.rule == "sign":
        right = all(logit > 0 for logit in above) and all(logit < 0 for logit in below)
    else:
        right = not above or not below or min(above) > max(below)
    return "exact" if right else "none"


def _exact_logits(W: np.ndarray, b: np.ndarray, x: np.ndarray) -> list[Fraction]:
    point = [Fraction(number) for number in x.tolist()]
    return [
        sum((Fraction(a) * c for a, c in zip(row, point, strict=True)), Fraction(shift))
        for row, shift in zip(W.tolist(), b.tolist(), strict=True)
    ]


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
                largest = max(weights)
                relative = np.array([float(weight / largest) for weight in weights])
                kept = np.array([weight > 0 for weight in weights])
                # a weight that is too small for a float stays positive
                return problem.labels[support[kept]], np.maximum(relative[kept], np.finfo(np.float64).tiny)
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
    return [weight * Fraction(2) ** power for weight, (_, power) in zip(weights, signed, strict=True)]


def _null_vector(rows: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Return one λ ≠ 0 with Σ λ_i row_i = 0, if it exists, and the dimension of all such λ, exactly."""
    equations = [list(column) for column in zip(*rows, strict=True)] or [[0] * len(rows)]
    basis, freedom = fmpz_mat(equations).nullspace()
    return [int(basis[row, 0]) for row in range(len(rows))], int(freedom)
