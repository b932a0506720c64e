"""The answer at the paper's tolerance: does some x of the box have a ball of radius eps around it in the region?

    s_i (w_i·x + b_i) > eps‖w_i‖ for every label i,   −box ≤ x_j ≤ box        (Grivas et al. 2024, equation 3)

With the radius r fixed this is a question about signs again, of rows (w_i, b_i − s_i·r‖w_i‖) and of rows (∓e_j, box)
that hold x in the box. It is put to the solver for a few labels at first; those that the answer's x violates join. What
comes out is proved for eps itself: x by its products with error bounds, and that there is none by weak duality,

    ε·Σ λ_i‖w_i‖ ≤ box·‖Σ λ_i s_i w_i‖₁ + Σ λ_i s_i b_i   for every λ ≥ 0,

in whole numbers. Radii so close to eps that rounded multipliers do not tell them apart stay open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from xmckit.records import ARGMAXABLE, UNARGMAXABLE
from xmckit_argmax.answers import Answer, Question
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.float_bounds import gamma
from xmckit_argmax.solver import Settings, Solver, slots_within
from xmckit_argmax.system import make_system, row_lengths

ADD = 64  # violated labels that join a working set
MOST_ROUNDS = 200
# Floats tell radii apart that differ by this share of eps, and of the box.
RELATIVE, OF_BOX = 1e-6, 1e-14


@dataclass(frozen=True)
class AtEps:
    """The answer, None where it is open; x in the box that shows it, or multipliers of labels that refute it."""

    answer: str | None = None
    x: np.ndarray | None = None
    margin: float | None = None
    certificate: tuple[np.ndarray, np.ndarray] | None = None


class Tolerance:
    """Answers at eps about one decision of the rule "sign"."""

    def __init__(self, W: np.ndarray, b: np.ndarray | None, eps: float, settings: Settings, memory: int = 1 << 30):
        self.W, self.b, self.eps, self.settings = W, np.zeros(len(W)) if b is None else b, eps, settings
        self.memory = memory
        self.biased = b is not None
        with np.errstate(over="ignore"):
            self.norms = row_lengths(W)
            self.lengths = np.hypot(self.norms, self.b)

    def settle(self, questions: Sequence[Question], witnesses: Sequence[np.ndarray] = ()) -> list[AtEps]:
        """One answer for each question, in order; what its witness violates is looked at first."""
        if not np.isfinite(self.lengths).all():
            return [AtEps() for _ in questions]
        spare = max(RELATIVE * self.eps, OF_BOX * self.settings.box)
        starts = dict(enumerate(witnesses))
        with np.errstate(all="ignore"):  # what is no number proves nothing
            found = self._at(self.eps - spare, questions, range(len(questions)), starts)
            between = [index for index in sorted(found) if found[index].answer is None]
            found.update(self._at(self.eps + spare, questions, between, starts))
        return [found.get(index, AtEps()) for index in range(len(questions))]

    def _at(
        self, radius: float, questions: Sequence[Question], asked: Sequence[int], starts: Mapping[int, np.ndarray]
    ) -> dict[int, AtEps]:
        """What asking for `radius` proves about eps; without those that the solver leaves open."""
        working = {index: questions[index].active[: 2 * self.W.shape[1] + ADD] for index in asked}
        settled: dict[int, AtEps] = {}
        working |= self._extended(questions, working, {i: starts[i] for i in asked if i in starts}, radius, {})
        for _ in range(MOST_ROUNDS):
            if not working:
                break
            vectors = {}
            for index, answer in self._solve(radius, questions, working).items():
                if answer.status == UNARGMAXABLE:
                    settled[index] = self._refuted(questions[index], answer)
                elif answer.x is not None:
                    vectors[index] = answer.x
            working = self._extended(questions, working, vectors, radius, settled)
        return settled

    def _solve(
        self, radius: float, questions: Sequence[Question], working: Mapping[int, np.ndarray]
    ) -> dict[int, Answer]:
        """The solver's answers for the labels in the working sets; supports are label numbers, without the box."""
        # a label is one row where it is active and another where it is not
        codes = {index: np.sort(2 * ids + np.isin(ids, questions[index].active)) for index, ids in working.items()}
        used = np.unique(np.concatenate(list(codes.values())))
        labels, signs, dim = used // 2, 2.0 * (used % 2) - 1, self.W.shape[1]
        W = np.concatenate([self.W[labels], -np.eye(dim), np.eye(dim)])
        b = np.concatenate([self.b[labels] - signs * radius * self.norms[labels], np.full(2 * dim, self.settings.box)])
        sides = np.arange(len(used), len(W))
        asked = []
        for own in codes.values():
            rows = np.searchsorted(used, own)
            asked.append(Question(np.append(rows[own % 2 == 1], sides), np.append(rows, sides)))
        system = make_system(W, b, "sign")
        slots = min(self.settings.slots, len(asked), slots_within(self.memory, system))
        answers = Solver(system, W, b, replace(self.settings, slots=slots)).solve(asked)
        for answer in answers:
            if answer.support is not None and answer.multipliers is not None:
                inside = answer.support < len(used)
                answer.support, answer.multipliers = labels[answer.support[inside]], answer.multipliers[inside]
        return dict(zip(codes, answers, strict=True))

    def _extended(
        self,
        questions: Sequence[Question],
        working: Mapping[int, np.ndarray],
        vectors: Mapping[int, np.ndarray],
        radius: float,
        settled: dict[int, AtEps],
    ) -> dict[int, np.ndarray]:
        """Working sets with the labels that their x violates; those without any are settled."""
        if not vectors:
            return {}
        X = np.asarray(list(vectors.values()))
        logits = X @ self.W.T + self.b
        going_on = {}
        everything = np.arange(len(self.W))
        for index, x, row in zip(vectors, X, logits, strict=True):
            rows = questions[index].rows
            ids = everything if rows is None else rows
            signed = np.where(np.isin(ids, questions[index].active), row[ids], -row[ids])
            norms = self.norms[ids]
            # of rows without slope only the sign counts, and the status has that
            short = np.where(norms > 0, signed - radius * norms, np.inf) / np.where(norms > 0, norms, 1.0)
            violated = np.flatnonzero(short <= 0)
            violated = violated[np.argsort(short[violated], kind="stable")[:ADD]]
            new = np.setdiff1d(ids[violated], working[index])
            if len(new):
                going_on[index] = np.concatenate([working[index], new])
            else:
                settled[index] = self._reached(x, signed, norms, self.lengths[ids])
        return going_on

    def _reached(self, x: np.ndarray, signed: np.ndarray, norms: np.ndarray, lengths: np.ndarray) -> AtEps:
        """argmaxable at eps, if the ball around x is proved to be inside."""
        if np.abs(x).max(initial=0.0) > self.settings.box:
            return AtEps()
        length = float(np.linalg.norm(x))
        rounding = gamma(4 * (len(x) + 8))  # so that a second program with coarser bounds agrees
        error = rounding * (norms * length + lengths)
        inside = (signed - error > self.eps * norms * (1 + rounding)) | (norms == 0)
        if not inside.all():
            return AtEps()
        whole = float(np.hypot(length, 1.0)) if self.biased else length
        margin = float((signed / lengths).min()) / whole
        return AtEps(ARGMAXABLE, x=x, margin=margin if np.isfinite(margin) else None)

    def _refuted(self, question: Question, answer: Answer) -> AtEps:
        """unargmaxable at eps, if the multipliers bound the radius by it."""
        if answer.support is None or answer.multipliers is None or not len(answer.support):
            return AtEps()
        labels, weights = answer.support, answer.multipliers
        signs = np.where(np.isin(labels, question.active), 1.0, -1.0)
        if not radius_is_at_most(
            self.eps, self.W[labels] * signs[:, None], self.b[labels] * signs, weights, self.settings.box
        ):
            return AtEps()
        order = np.argsort(labels)
        return AtEps(UNARGMAXABLE, certificate=(labels[order], weights[order]))


def radius_is_at_most(radius: float, rows: np.ndarray, shifts: np.ndarray, multipliers: np.ndarray, box: float) -> bool:
    """Whether multipliers ≥ 0 of signed rows prove it, by weak duality; whole numbers, but for the rows' lengths."""
    count, dim = rows.shape
    flat, power = exact.whole_row(rows.ravel())
    weights, _ = exact.whole_row(multipliers)
    sums = [sum(weights[i] * flat[i * dim + j] for i in range(count)) for j in range(dim)]
    shift = sum((Fraction(weight) * Fraction(number) for weight, number in zip(weights, shifts.tolist(), strict=True)))
    lengths = row_lengths(rows) * (1 - gamma(dim + 8))
    scale = sum((Fraction(weight) * Fraction(number) for weight, number in zip(weights, lengths.tolist(), strict=True)))
    total = Fraction(sum(map(abs, sums)))
    total = total / (1 << power) if power >= 0 else total * (1 << -power)
    return Fraction(box) * total + shift <= Fraction(radius) * scale
