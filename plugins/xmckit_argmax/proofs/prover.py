"""From what a search found to what is proved: float64 with error bounds first, exact arithmetic where that fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from xmckit_argmax.answers import Answer, Found, Proof, Question
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.float_bounds import all_products, error_per_length, weigh
from xmckit_argmax.proofs.multipliers import positive_multipliers
from xmckit_argmax.search.active_set import CAREFULLY_DEPENDENT, FULLY, SATISFIED, Slots
from xmckit_argmax.system import System, plain_rows, row_lengths, scaled_rows, units

ROWS_TO_ADD = 40
NUMBERS_AT_ONCE = 1 << 16  # of the matrices of combinations
SCALES_TO_TRY = 33
NEIGHBOURS = 100
MOST_EXACT_ROWS = 2000
# Bounds on margins and radii are told with this much to spare for the roundings that went into them.
SPARE = 1e-9
CAUTION = 4  # times the error bound, so that a second program with coarser bounds agrees


class Judge:
    def __init__(self, system: System, W: np.ndarray, b: np.ndarray | None, box: float):
        self.system, self.W, self.b, self.box = system, W, b, box
        self.rows = torch.from_numpy(system.rows[:, : system.width])  # without the padding
        self._constant = np.flatnonzero(~W.any(axis=1))
        self._typical = int(np.median(system.exponents)) if len(system.exponents) else 0
        self._lossy = np.flatnonzero(~system.lossless)
        with np.errstate(over="ignore"):
            plain = np.ldexp(system.rows, -system.columns) if system.columns.any() else system.rows
            self._inverse_norms = _inverses(row_lengths(plain))
        self._inverse_slopes = _inverses(np.linalg.norm(system.rows[:, : system.dim], axis=1))

    def at_once(self, question: Question) -> Answer | None:
        """The answer where nothing is asked, or where a label's logit is the same for every x."""
        system = self.system
        counted = system.labels if question.rows is None else len(question.rows)
        if not counted or (system.rule == "topk" and len(question.active) in (0, counted)):
            reached = np.inf if system.rule == "sign" else None
            return Answer("argmaxable", "exact", x=np.zeros(system.dim), reached=reached)
        hopeless = self._hopeless(question)
        if len(hopeless):
            return Answer("unargmaxable", "exact", support=hopeless[:1], multipliers=np.ones(1))
        return None

    def _hopeless(self, question: Question) -> np.ndarray:
        """Labels with a zero row of W whose bias is not what the label set asks for."""
        zero = self._constant if self.system.rule == "sign" else self._constant[:0]
        if question.rows is not None:
            zero = np.intersect1d(zero, question.rows)
        if self.b is None or not len(zero):
            return zero
        signs = np.where(np.isin(zero, question.active), 1.0, -1.0)
        return zero[signs * self.b[zero] <= 0]

    def prove(self, questions: Sequence[Question], found: list[Found], exact_seconds: float) -> dict[int, Answer]:
        """Answers, by the index of the question, for what can be proved."""
        began = time.perf_counter()
        proved = self._witnesses(questions, [item for item in found if item.v is not None])
        proved.update(
            self._combinations(questions, [item for item in found if item.support is not None], exact_seconds)
        )
        share = (time.perf_counter() - began) / max(1, len(found))
        for item in found:
            if item.index in proved:
                proved[item.index].seconds = item.seconds + share
        return proved

    # Witnesses

    def _witnesses(self, questions: Sequence[Question], found: list[Found]) -> dict[int, Answer]:
        if not found:
            return {}
        points = self._plain(np.asarray([item.v for item in found]))
        V, sound = self._scaled(points)
        whole = [t for t, item in enumerate(found) if sound[t] and questions[item.index].rows is None]
        listed = [[t] for t, item in enumerate(found) if sound[t] and questions[item.index].rows is not None]
        answers = {}
        for block in [whole, *listed] if whole else listed:
            asked = [questions[found[t].index] for t in block]
            for t, (answer, _) in zip(block, self._weighed(asked, points[block], V[block]), strict=True):
                if answer is not None:
                    answers[found[t].index] = answer
        return answers

    def _plain(self, v: np.ndarray) -> np.ndarray:
        """Solutions of the scaled system as (x, threshold, t) of the decision, with t = 1 where there is a bias."""
        system = self.system
        with np.errstate(all="ignore"):
            plain = np.ldexp(v, system.columns)
            return self._with_unit_t(plain) if system.biased else np.ldexp(plain, -self._typical)

    def _with_unit_t(self, plain: np.ndarray) -> np.ndarray:
        """Divided by t where there is a bias; not a number where t is not positive."""
        if not self.system.biased:
            return plain
        t = self.system.width - 1
        negative = ~(plain[:, t] > 0)
        plain = plain / plain[:, t : t + 1]
        plain[:, t] = 1.0
        plain[negative] = np.nan
        return plain

    def _scaled(self, plain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(v of the scaled system with a largest entry of about 1, whether that is `plain` to the last bit)."""
        columns = self.system.columns
        sound = np.isfinite(plain).all(axis=1)
        plain = np.where(sound[:, None], plain, 0.0)
        mantissas, powers = np.frexp(plain)
        powers = np.where(plain == 0, -(1 << 20), powers - columns)
        largest = powers.max(axis=1)
        shifts = np.where(plain == 0, 0, np.maximum(powers - largest[:, None], -2000))
        V = np.ldexp(mantissas, shifts)
        sound &= (np.ldexp(V, -shifts) == mantissas).all(axis=1) & (V != 0).any(axis=1)
        return V, sound

    def _weighed(
        self, asked: Sequence[Question], plain: np.ndarray, V: np.ndarray
    ) -> list[tuple[Answer | None, np.ndarray]]:
        """For each vector: argmaxable if every row is proved positive; the rows for which that failed.

        The questions are about the same rows: one with a list of candidates comes alone.
        """
        system = self.system
        rows, actives = self._rows(asked)
        norms, errors = system.norms[rows], error_per_length(V)
        products = all_products(self.rows[rows], V)
        ends = np.cumsum([len(active) for active in actives])
        failed, least, distance = np.empty(len(V), dtype=np.int64), np.empty(len(V)), np.empty(len(V))
        weigh(
            products, np.concatenate(actives), ends, system.biased, errors, CAUTION, norms, self._inverse_norms[rows],
            self._inverse_slopes[rows], failed, least, distance,
        )  # fmt: skip
        with np.errstate(all="ignore"):  # of what is not proved
            lengths = self._plain_lengths(V)
            margins = np.maximum(0.0, least / lengths)
            sure = np.maximum(0.0, margins - CAUTION * errors / lengths) * (1 - SPARE)
            reached = self._reached(sure, plain, V, distance)
        outcome = []
        for t, question in enumerate(asked):
            ids = self._unproved(rows, products[t], errors[t], failed[t])
            violated = self._violated(question, ids, V[t])
            answer = None
            if not len(violated):
                answer = Answer(
                    "argmaxable",
                    "exact" if len(ids) else "float-certified",
                    x=plain[t, : system.dim].copy(),
                    margin=float(margins[t]),
                    radius=self._radius(float(sure[t])),
                    reached=reached[t],
                )
            outcome.append((answer, violated))
        return outcome

    def _violated(self, question: Question, ids: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Those of the rows `ids` that are not positive in exact arithmetic; all of them where they are too many."""
        if not 0 < len(ids) <= MOST_EXACT_ROWS:
            return ids
        return ids[~self._exactly_positive(question, ids, v)]

    def _unproved(self, rows: slice | np.ndarray, products: np.ndarray, error: float, failed: int) -> np.ndarray:
        """Ids of rows that are not proved positive, or that lost a bit when they were scaled."""
        if not failed and not len(self._lossy):
            return self._lossy
        doubtful = np.flatnonzero(~(products > error * self.system.norms[rows]))
        if isinstance(rows, slice):
            return np.union1d(doubtful, self._lossy)
        lost = np.flatnonzero(~self.system.lossless[rows])
        return np.asarray(rows[np.union1d(doubtful, lost)])

    def _plain_lengths(self, V: np.ndarray) -> np.ndarray:
        """‖(x, threshold, t)‖, at the scale of V."""
        return row_lengths(np.ldexp(V, self.system.columns))

    def _rows(self, asked: Sequence[Question]) -> tuple[slice | np.ndarray, list[np.ndarray]]:
        """(the rows that count, the places of each question's active labels among them)."""
        listed = asked[0].rows
        if listed is None:
            return slice(None), [question.active for question in asked]
        active = np.flatnonzero(np.isin(listed, asked[0].active))
        return (np.append(listed, self.system.labels) if self.system.biased else listed), [active]

    def _radius(self, at_least: float) -> tuple[float, float] | None:
        """Bounds on the radius of the paper's LP: from a margin, and what no x of the box exceeds (no bias)."""
        if self.system.rule != "sign" or self.system.biased:
            return None
        return self.box * at_least, self.box * self.system.dim**0.5

    def _reached(
        self, margins: np.ndarray, plain: np.ndarray, V: np.ndarray, distances: np.ndarray
    ) -> Sequence[float | None]:
        """Radii that some x in the box has: of the witness itself, where a bias fixes its scale."""
        system = self.system
        if system.rule != "sign":
            return [None] * len(V)
        if not system.biased:
            return [float(radius) for radius in self.box * margins]
        t = system.width - 1
        one = np.ldexp(V[:, t], system.columns[t])
        inside = (np.abs(plain[:, : system.dim]).max(axis=1, initial=0.0) <= self.box) & (one > 0)
        radii = distances / one * (1 - SPARE)
        return [float(radius) if known else None for radius, known in zip(radii, inside, strict=True)]

    def _exactly_positive(self, question: Question, ids: np.ndarray, v: np.ndarray) -> np.ndarray:
        numerators, _ = exact.whole_row(v[: self.system.width], self.system.columns)
        return exact.all_positive([row for row, _ in self._signed_rows(question, ids)], numerators)

    def _signed_rows(self, question: Question, ids: np.ndarray) -> list[tuple[list[int], int]]:
        """Rows of whole numbers with the sign that the label set asks for, and the powers of two they were made by."""
        found = []
        active = np.isin(ids, question.active) | (ids == self.system.labels)
        for row, positive in zip(ids.tolist(), active.tolist(), strict=True):
            numbers, power = exact.whole_row(plain_rows(self.W, self.b, self.system.rule, [row])[0])
            found.append((numbers if positive else [-number for number in numbers], power))
        return found

    # Combinations

    def _combinations(
        self, questions: Sequence[Question], found: list[Found], exact_seconds: float
    ) -> dict[int, Answer]:
        width = self.system.width
        answers: dict[int, Answer] = {}
        with_inverse = [item for item in found if item.inverse is not None]
        at_once = max(1, NUMBERS_AT_ONCE // max(1, width) ** 2)
        for start in range(0, len(with_inverse), at_once):
            part = with_inverse[start : start + at_once]
            supports = np.asarray([item.support for item in part])
            signs = self._signs_of_all([questions[item.index] for item in part], supports)
            matrices = self.system.rows[supports, :width] * signs[:, :, None]
            proved, multipliers = positive_multipliers(matrices, np.asarray([item.inverse for item in part]))
            proved &= self.system.lossless[supports].all(axis=1)
            where = np.flatnonzero(proved)
            powers = -self.system.exponents[supports[where]]
            refuted = self._refuted(supports[where], multipliers[where], powers, "float-certified")
            answers.update(zip([part[t].index for t in where], refuted, strict=True))
        for item in found:
            if item.index not in answers and item.support is not None and exact_seconds > 0:
                answer = self._exact_combination(questions[item.index], item.support, exact_seconds)
                if answer is not None:
                    answers[item.index] = answer
        return answers

    def _signs_of_all(self, questions: Sequence[Question], supports: np.ndarray) -> np.ndarray:
        """The sign that each question asks for, for the rows of its support."""
        wanted = np.full(len(self.system.rows), -1.0)
        wanted[self.system.labels :] = 1.0
        signs = np.empty(supports.shape)
        for t, question in enumerate(questions):
            wanted[question.active] = 1.0
            signs[t] = wanted[supports[t]]
            wanted[question.active] = -1.0
        return signs

    def _exact_combination(self, question: Question, support: np.ndarray, seconds: float) -> Answer | None:
        """unargmaxable, if the rows that floats found are infeasible in truth."""
        rows = self._signed_rows(question, support)
        try:
            outcome = exact.decide([row for row, _ in rows], time.monotonic() + seconds)
        except exact.OutOfTime:
            return None
        return self._from_combination(outcome, support, rows) if isinstance(outcome, exact.Combination) else None

    def _from_combination(
        self, combination: exact.Combination, ids: np.ndarray, rows: list[tuple[list[int], int]]
    ) -> Answer:
        largest = max(combination.multipliers)
        relative = np.asarray([float(multiplier / largest) for multiplier in combination.multipliers])
        powers = np.asarray([rows[place][1] for place in combination.rows])
        return self._refuted(ids[None, combination.rows], relative[None], powers[None], "exact")[0]

    def _refuted(self, supports: np.ndarray, multipliers: np.ndarray, powers: np.ndarray, proof: Proof) -> list[Answer]:
        """One answer a row: multipliers of scaled rows become those of the rows of W; the row of t is no label."""
        order = np.argsort(supports, axis=1)
        supports, multipliers, powers = (
            np.take_along_axis(each, order, axis=1) for each in (supports, multipliers, powers)
        )
        weights = _times_powers(multipliers, powers - powers[:, :1])
        labels = (supports < self.system.labels).sum(axis=1)  # the row of t comes last
        return [
            Answer("unargmaxable", proof, support=support[:count], multipliers=weight[:count])
            for support, weight, count in zip(supports, weights, labels, strict=True)
        ]

    # Exact arithmetic from the start

    def settle(self, question: Question, found: Found, seconds: float) -> Answer:
        """Decide a growing set of rows exactly, until their answer is one for all rows; unresolved out of time."""
        began = time.monotonic()
        ids = found.working_set()[: 2 * self.system.width + ROWS_TO_ADD]
        if self.system.biased:
            ids = np.append(ids[ids != self.system.labels], self.system.labels)
        try:
            answer = self._settled(question, ids, began + seconds)
        except exact.OutOfTime:
            answer = Answer()
        return replace(answer, seconds=found.seconds + time.monotonic() - began)

    def _settled(self, question: Question, ids: np.ndarray, deadline: float) -> Answer:
        while True:
            rows = self._signed_rows(question, ids)
            outcome = exact.decide([row for row, _ in rows], deadline)
            if isinstance(outcome, exact.Combination):
                return self._from_combination(outcome, ids, rows)
            answer, violated = self._as_floats(question, ids, outcome)
            if answer is not None:
                return answer
            new = np.setdiff1d(violated, ids)[:ROWS_TO_ADD]
            if not len(new):
                # it can be output, but no vector of floats near this one shows it
                return Answer()
            ids = np.concatenate([ids, new])

    def _as_floats(
        self, question: Question, ids: np.ndarray, point: list[Fraction]
    ) -> tuple[Answer | None, np.ndarray]:
        """A witness near an exact solution for the rows `ids`, or the rows that keep it from being one."""
        violated = np.empty(0, dtype=np.int64)
        near = [*self._roundings(point), *self._inner_points(question, ids, point)]
        for plain in itertools.chain(near, self._neighbours(near[:1] + near[-1:])):
            V, sound = self._scaled(plain[None])
            if sound[0]:
                answer, violated = self._weighed([question], plain[None], V)[0]
                if answer is not None or len(np.setdiff1d(violated, ids)):
                    return answer, violated
        return None, violated

    def _roundings(self, point: list[Fraction]) -> Iterator[np.ndarray]:
        padding = [Fraction(0)] * (self.system.rows.shape[1] - len(point))
        if self.system.biased:
            yield exact.nearest_floats([number / point[-1] for number in point] + padding)
            return
        largest = max((abs(number) for number in point), default=Fraction(0)) or Fraction(1)
        for scale in range(1, SCALES_TO_TRY, 2):
            yield exact.nearest_floats([number * scale / largest for number in point] + padding)

    def _neighbours(self, points: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Points a few units in the last place away: where the solutions are that thin, some hit and some miss."""
        rng = np.random.default_rng(0)
        for _ in range(NEIGHBOURS):
            for point in points:
                plain = point + np.spacing(point) * rng.integers(-2, 3, len(point)) * (point != 0)
                if self.system.biased:
                    plain[self.system.width - 1] = 1.0
                yield plain

    def _inner_points(self, question: Question, ids: np.ndarray, point: list[Fraction]) -> Iterator[np.ndarray]:
        """Away from the boundary: the largest margin once every column is scaled by the entry that it multiplies."""
        numbers = exact.nearest_floats([number / max(map(abs, point)) for number in point])
        powers = np.zeros(self.system.rows.shape[1], dtype=np.int64)
        powers[: len(numbers)] = np.where(numbers == 0, 0, np.frexp(numbers)[1])
        plain = np.zeros((len(ids), len(powers)))
        labels = ids < self.system.labels
        plain[:, : self.system.width] = plain_rows(self.W, self.b, self.system.rule, ids)
        rows, _, _ = scaled_rows(plain, powers)
        slots = Slots(1, len(ids), len(ids), self.system.width, len(powers))
        signs = np.where(np.isin(ids, question.active) | ~labels, 1.0, -1.0)
        slots.start(0, np.arange(len(ids)), signs)
        norms = np.linalg.norm(rows, axis=1)
        slots.solve(
            rows, norms, units(rows, norms), np.zeros(1, dtype=np.int64), FULLY, CAREFULLY_DEPENDENT, closely=True
        )
        if slots.outcome[0] == SATISFIED:
            with np.errstate(all="ignore"):
                yield self._with_unit_t(np.ldexp(slots.v, powers))[0]


def _times_powers(numbers: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Positive numbers times powers of two, kept positive and finite."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(numbers, np.clip(powers, -2000, 2000))
    return np.clip(scaled, np.finfo(np.float64).smallest_subnormal, np.finfo(np.float64).max)


def _inverses(lengths: np.ndarray) -> np.ndarray:
    """1/length, and 0 where that is not a number."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
