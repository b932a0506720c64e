"""The answer at the paper's tolerance: is there an x in the box with a ball of radius eps around it in the region?

    s_i (w_i·x + b_i) > eps‖w_i‖ for every label i,   −box ≤ x_j ≤ box        (Grivas et al. 2024, equation 3)

With a fixed radius r this is again a problem of signs, for the rows (w_i, b_i − s_i·r‖w_i‖) and the rows (∓e_j, box)
that hold x in the box. The solver gets a few labels at first; labels that its x violates join. The result is proved for
eps itself: x by its products with error bounds, and the absence of any x by weak duality in exact arithmetic,

    ε·Σ λ_i‖w_i‖ ≤ box·‖Σ λ_i s_i w_i‖₁ + Σ λ_i s_i b_i   for every λ ≥ 0.

Radii that are too close to eps for rounded multipliers stay open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from xmckit import Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.float_bounds import gamma
from xmckit_argmax.records import Assignment, Certificate
from xmckit_argmax.solver import Solver, SolverSettings, slots_within
from xmckit_argmax.system import make_system, row_lengths

ADD = 64  # violated labels that join a working set
MOST_ROUNDS = 200
# Floats distinguish radii that differ by this share of eps, and of the box.
RELATIVE, OF_BOX = 1e-6, 1e-14

WitnessedAssignment = tuple[Assignment, np.ndarray | None]  # None: without a witness


class ToleranceSolver:
    """Find the answers at eps for one decision of the rule "sign".

    An answer is a verdict at eps: argmaxable with a witness in the box, unargmaxable with multipliers, or unresolved.
    """

    def __init__(self, W: np.ndarray, b: np.ndarray | None, settings: SolverSettings, memory: int = 1 << 30):
        self.W, self.b, self.settings = W, np.zeros(len(W)) if b is None else b, settings
        self.memory, self.biased = memory, b is not None
        with np.errstate(over="ignore"):
            self.norms = row_lengths(W)
            self.lengths = np.hypot(self.norms, self.b)

    def solve(self, pairs: Sequence[WitnessedAssignment]) -> list[Verdict]:
        """Return one answer for each assignment, in order; the labels that its witness violates are tried first."""
        if not np.isfinite(self.lengths).all():
            return [Verdict(UNRESOLVED) for _ in pairs]
        spare = max(RELATIVE * self.settings.eps, OF_BOX * self.settings.box)
        with np.errstate(all="ignore"):  # nan proves nothing
            settled = self._solve_at(self.settings.eps - spare, dict(enumerate(pairs)))
            between = {index: pairs[index] for index in sorted(settled) if settled[index].status == UNRESOLVED}
            settled.update(self._solve_at(self.settings.eps + spare, between))
        return [settled.get(index, Verdict(UNRESOLVED)) for index in range(len(pairs))]

    def _solve_at(self, radius: float, pairs: Mapping[int, WitnessedAssignment]) -> dict[int, Verdict]:
        """Return what `radius` proves about eps; assignments that the solver leaves open are left out."""
        assignments = {index: assignment for index, (assignment, _) in pairs.items()}
        working = {index: one.active[: 2 * self.W.shape[1] + ADD] for index, one in assignments.items()}
        witnesses = {index: witness for index, (_, witness) in pairs.items() if witness is not None}
        working |= self._extend(radius, assignments, working, witnesses)[0]
        settled: dict[int, Verdict] = {}
        for _ in range(MOST_ROUNDS):
            if not working:
                break
            vectors = {}
            for index, verdict in self._solve_working_sets(radius, assignments, working).items():
                if verdict.status == UNARGMAXABLE:
                    settled[index] = self._prove_unargmaxable(assignments[index], verdict.certificate)
                elif verdict.witness is not None:
                    vectors[index] = verdict.witness
            working, proved = self._extend(radius, assignments, working, vectors)
            settled |= proved
        return settled

    def _solve_working_sets(
        self, radius: float, assignments: Mapping[int, Assignment], working: Mapping[int, np.ndarray]
    ) -> dict[int, Verdict]:
        """Return the solver's verdicts on the working sets; certificates leave out the rows of the box."""
        # a label has one row where it is active and another where it is not
        codes = {index: np.sort(2 * ids + np.isin(ids, assignments[index].active)) for index, ids in working.items()}
        used = np.unique(np.concatenate(list(codes.values())))
        labels, signs, dim = used // 2, 2.0 * (used % 2) - 1, self.W.shape[1]
        W = np.concatenate([self.W[labels], -np.eye(dim), np.eye(dim)])
        b = np.concatenate([self.b[labels] - signs * radius * self.norms[labels], np.full(2 * dim, self.settings.box)])
        sides = np.arange(len(used), len(W))
        to_solve = []
        for own in codes.values():
            rows = np.searchsorted(used, own)
            to_solve.append(Assignment(np.append(rows[own % 2 == 1], sides), np.append(rows, sides)))
        system = make_system(W, b, "sign")
        slots = min(self.settings.slots, len(to_solve), slots_within(self.memory, system))
        verdicts = Solver(system, W, b, replace(self.settings, slots=slots)).solve(to_solve)
        for position, verdict in enumerate(verdicts):
            if verdict.certificate is not None:
                support, multipliers = verdict.certificate
                inside = support < len(used)
                verdicts[position] = replace(verdict, certificate=(labels[support[inside]], multipliers[inside]))
        return dict(zip(codes, verdicts, strict=True))

    def _extend(
        self, radius: float, assignments: Mapping[int, Assignment], working: Mapping[int, np.ndarray],
        vectors: Mapping[int, np.ndarray],
    ) -> tuple[dict[int, np.ndarray], dict[int, Verdict]]:  # fmt: skip
        """Return the working sets with the labels that their x violates, and verdicts where x violates none."""
        extended: dict[int, np.ndarray] = {}
        settled: dict[int, Verdict] = {}
        if not vectors:
            return extended, settled
        X = np.asarray(list(vectors.values()))
        logits = X @ self.W.T + self.b
        everything = np.arange(len(self.W))
        for index, x, row in zip(vectors, X, logits, strict=True):
            candidates = assignments[index].candidates
            ids = everything if candidates is None else candidates
            signed = np.where(np.isin(ids, assignments[index].active), row[ids], -row[ids])
            norms = self.norms[ids]
            # only the sign of a row without slope counts, and the verdict's status covers it
            short = np.where(norms > 0, signed - radius * norms, np.inf) / np.where(norms > 0, norms, 1.0)
            violated = np.flatnonzero(short <= 0)
            violated = violated[np.argsort(short[violated], kind="stable")[:ADD]]
            new = np.setdiff1d(ids[violated], working[index])
            if len(new):
                extended[index] = np.concatenate([working[index], new])
            else:
                settled[index] = self._prove_argmaxable(x, signed, norms, self.lengths[ids])
        return extended, settled

    def _prove_argmaxable(self, x: np.ndarray, signed: np.ndarray, norms: np.ndarray, lengths: np.ndarray) -> Verdict:
        """Return argmaxable if the ball around x is proved to be inside the region."""
        if np.abs(x).max(initial=0.0) > self.settings.box:
            return Verdict(UNRESOLVED)
        length = float(np.linalg.norm(x))
        rounding = gamma(4 * (len(x) + 8))  # so that a second program with coarser bounds agrees
        error = rounding * (norms * length + lengths)
        inside = (signed - error > self.settings.eps * norms * (1 + rounding)) | (norms == 0)
        if not inside.all():
            return Verdict(UNRESOLVED)
        whole = float(np.hypot(length, 1.0)) if self.biased else length
        margin = float((signed / lengths).min()) / whole
        return Verdict(ARGMAXABLE, witness=x, margin=margin if np.isfinite(margin) else None)

    def _prove_unargmaxable(self, assignment: Assignment, certificate: Certificate | None) -> Verdict:
        """Return unargmaxable if the multipliers bound the radius by eps."""
        if certificate is None or not len(certificate[0]):
            return Verdict(UNRESOLVED)
        labels, weights = certificate
        signs = np.where(np.isin(labels, assignment.active), 1.0, -1.0)
        rows, shifts = self.W[labels] * signs[:, None], self.b[labels] * signs
        if not radius_is_at_most(self.settings.eps, rows, shifts, weights, self.settings.box):
            return Verdict(UNRESOLVED)
        order = np.argsort(labels)
        return Verdict(UNARGMAXABLE, certificate=(labels[order], weights[order]))


def radius_is_at_most(radius: float, rows: np.ndarray, shifts: np.ndarray, multipliers: np.ndarray, box: float) -> bool:
    """Check that multipliers ≥ 0 of signed rows prove the bound, by weak duality; exact but for the rows' lengths."""
    count, dim = rows.shape
    flat, power = exact.integer_row(rows.ravel())
    weights, _ = exact.integer_row(multipliers)
    sums = [sum(weights[i] * flat[i * dim + j] for i in range(count)) for j in range(dim)]
    shift = sum((Fraction(weight) * Fraction(number) for weight, number in zip(weights, shifts.tolist(), strict=True)))
    lengths = row_lengths(rows) * (1 - gamma(dim + 8))
    scale = sum((Fraction(weight) * Fraction(number) for weight, number in zip(weights, lengths.tolist(), strict=True)))
    total = Fraction(sum(map(abs, sums)))
    total = total / (1 << power) if power >= 0 else total * (1 << -power)
    return Fraction(box) * total + shift <= Fraction(radius) * scale
