"""Prove what the search found: in float64 with error bounds first, and in exact arithmetic if that fails."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch

from xmckit import Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.float_bounds import all_products, check_products, error_per_length
from xmckit_argmax.proofs.multipliers import positive_multipliers
from xmckit_argmax.records import Assignment, Proof, SearchResult
from xmckit_argmax.search.active_set import CAREFULLY_DEPENDENT, FULLY, SATISFIED, Slots
from xmckit_argmax.system import LinearSystem, plain_rows, row_lengths, scaled_rows, scaled_vectors, unit_rows

ROWS_TO_ADD = 40
NUMBERS_AT_ONCE = 1 << 16  # entries of the combinations' matrices that are proved in one step
SCALES_TO_TRY = 33
NEIGHBOURS = 100
MOST_EXACT_ROWS = 2000
# Bounds on margins and radii keep this much distance, for the roundings in their computation.
SPARE = 1e-9
CAUTION = 4  # times the error bound, so that a second program with coarser bounds agrees


class Prover:
    """Turn search results about one system into verdicts.

    A verdict's `eps` is set where the proof also settles it: for every unargmaxable assignment, and for a witness that
    has a ball of more than radius `eps` around it in the box.
    """

    def __init__(self, system: LinearSystem, W: np.ndarray, b: np.ndarray | None, box: float, eps: float):
        self.system, self.W, self.b, self.box, self.eps = system, W, b, box, eps
        self.rows = torch.from_numpy(system.rows[:, : system.width])  # without the padding
        self._constant = np.flatnonzero(~W.any(axis=1))
        self._typical = int(np.median(system.exponents)) if len(system.exponents) else 0
        self._lossy = np.flatnonzero(~system.lossless)
        with np.errstate(over="ignore"):
            plain = np.ldexp(system.rows, -system.columns) if system.columns.any() else system.rows
            self._inverse_norms = _inverses(row_lengths(plain))
        self._inverse_slopes = _inverses(np.linalg.norm(system.rows[:, : system.dim], axis=1))

    def prove_trivial(self, assignment: Assignment) -> Verdict | None:
        """Return the verdict if there is no constraint, or if a label has the same wrong logit for every x."""
        system = self.system
        counted = system.labels if assignment.candidates is None else len(assignment.candidates)
        if not counted or (system.rule == "topk" and len(assignment.active) in (0, counted)):
            eps = ARGMAXABLE if system.rule == "sign" else None
            return Verdict(ARGMAXABLE, "exact", witness=np.zeros(system.dim), eps=eps)
        wrong = self._constant_wrong_labels(assignment)
        if len(wrong):
            return Verdict(UNARGMAXABLE, "exact", certificate=(wrong[:1], np.ones(1)), eps=UNARGMAXABLE)
        return None

    def _constant_wrong_labels(self, assignment: Assignment) -> np.ndarray:
        """Return the labels with a zero row of W and a bias that the assignment does not allow."""
        zero = self._constant if self.system.rule == "sign" else self._constant[:0]
        if assignment.candidates is not None:
            zero = np.intersect1d(zero, assignment.candidates)
        if self.b is None or not len(zero):
            return zero
        return zero[self.system.signs(zero, assignment.active) * self.b[zero] <= 0]

    def prove(
        self, assignments: Sequence[Assignment], results: list[SearchResult], exact_seconds: float
    ) -> dict[int, Verdict]:
        """Return the verdicts that can be proved, by the index of the assignment."""
        began = time.perf_counter()
        proved = self._prove_witnesses(assignments, [result for result in results if result.v is not None])
        with_support = [result for result in results if result.support is not None]
        proved.update(self._prove_combinations(assignments, with_support, exact_seconds))
        share = (time.perf_counter() - began) / max(1, len(results))
        seconds = {result.index: result.seconds + share for result in results}
        return {index: replace(verdict, seconds=seconds[index]) for index, verdict in proved.items()}

    # Witnesses

    def _prove_witnesses(self, assignments: Sequence[Assignment], results: list[SearchResult]) -> dict[int, Verdict]:
        if not results:
            return {}
        points = self._plain(np.asarray([result.v for result in results]), self.system.columns, self._typical)
        V, sound = scaled_vectors(points, self.system.columns)
        whole = [t for t, item in enumerate(results) if sound[t] and assignments[item.index].candidates is None]
        listed = [[t] for t, item in enumerate(results) if sound[t] and assignments[item.index].candidates is not None]
        verdicts = {}
        for block in [whole, *listed] if whole else listed:
            chosen = [assignments[results[t].index] for t in block]
            for t, (verdict, _) in zip(block, self._check_vectors(chosen, points[block], V[block]), strict=True):
                if verdict is not None:
                    verdicts[results[t].index] = verdict
        return verdicts

    def _plain(self, v: np.ndarray, columns: np.ndarray, exponent: int = 0) -> np.ndarray:
        """Convert solutions of a system with scaled columns to (x, threshold, t) of the decision.

        With a bias they are divided by t, and those with t ≤ 0 become nan; without one, by 2^exponent.
        """
        with np.errstate(all="ignore"):
            plain = np.ldexp(v, columns)
            if not self.system.biased:
                return np.asarray(np.ldexp(plain, -exponent))
            t = self.system.width - 1
            negative = ~(plain[:, t] > 0)
            plain = plain / plain[:, t : t + 1]
        plain[:, t] = 1.0
        plain[negative] = np.nan
        return plain

    def _check_vectors(
        self, assignments: Sequence[Assignment], plain: np.ndarray, V: np.ndarray
    ) -> list[tuple[Verdict | None, np.ndarray]]:
        """Return for each vector the verdict argmaxable if every row is proved positive, and the rows that fail.

        All assignments must have the same rows: one with candidates comes alone.
        """
        system = self.system
        rows, active = self._rows(assignments)
        norms, errors = system.norms[rows], error_per_length(V)
        products = all_products(self.rows[rows], V)
        ends = np.cumsum([len(positions) for positions in active])
        failed, least, distance = np.empty(len(V), dtype=np.int64), np.empty(len(V)), np.empty(len(V))
        check_products(
            products, np.concatenate(active), ends, system.biased, errors, CAUTION, norms, self._inverse_norms[rows],
            self._inverse_slopes[rows], failed, least, distance,
        )  # fmt: skip
        with np.errstate(all="ignore"):  # vectors that fail
            lengths = row_lengths(np.ldexp(V, system.columns))  # ‖(x, threshold, t)‖, at the scale of V
            margins = np.maximum(0.0, least / lengths)
            sure = np.maximum(0.0, margins - CAUTION * errors / lengths) * (1 - SPARE)
            at_eps = self._statuses_at_eps(sure, plain, V, distance)
        has_radius = system.rule == "sign" and not system.biased  # from the margin, and from the box
        outcomes: list[tuple[Verdict | None, np.ndarray]] = []
        for t, assignment in enumerate(assignments):
            ids = self._unproved_rows(rows, products[t], errors[t], failed[t])
            violated = self._violated_rows(assignment, ids, V[t])
            verdict = None
            if not len(violated):
                verdict = Verdict(
                    ARGMAXABLE,
                    "exact" if len(ids) else "float-certified",
                    witness=plain[t, : system.dim].copy(),
                    margin=float(margins[t]),
                    radius=(self.box * float(sure[t]), self.box * system.dim**0.5) if has_radius else None,
                    eps=at_eps[t],
                )
            outcomes.append((verdict, violated))
        return outcomes

    def _rows(self, assignments: Sequence[Assignment]) -> tuple[slice | np.ndarray, list[np.ndarray]]:
        """Return the rows that count, and the positions of each assignment's active labels among them."""
        candidates = assignments[0].candidates
        if candidates is None:
            return slice(None), [assignment.active for assignment in assignments]
        active = np.flatnonzero(np.isin(candidates, assignments[0].active))
        return (np.append(candidates, self.system.labels) if self.system.biased else candidates), [active]

    def _unproved_rows(self, rows: slice | np.ndarray, products: np.ndarray, error: float, failed: int) -> np.ndarray:
        """Return the ids of the rows that are not proved positive, or that lost a bit when they were scaled."""
        if not failed and not len(self._lossy):
            return self._lossy
        doubtful = ~(products > error * self.system.norms[rows]) | ~self.system.lossless[rows]
        return np.arange(len(self.system.rows))[rows][doubtful]

    def _violated_rows(self, assignment: Assignment, ids: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return those of the rows `ids` that are not positive in exact arithmetic; all, if they are too many."""
        if not 0 < len(ids) <= MOST_EXACT_ROWS:
            return ids
        numerators, _ = exact.integer_row(v[: self.system.width], self.system.columns)
        return ids[~exact.are_positive([row for row, _ in self._signed_rows(assignment, ids)], numerators)]

    def _statuses_at_eps(
        self, margins: np.ndarray, plain: np.ndarray, V: np.ndarray, distances: np.ndarray
    ) -> list[str | None]:
        """Return argmaxable for each vector that proves a radius above eps; a bias fixes the scale of the vector."""
        system = self.system
        if system.rule != "sign":
            return [None] * len(V)
        radii = self.box * margins
        if system.biased:
            t = system.width - 1
            one = np.ldexp(V[:, t], system.columns[t])
            inside = (np.abs(plain[:, : system.dim]).max(axis=1, initial=0.0) <= self.box) & (one > 0)
            radii = np.where(inside, distances / one * (1 - SPARE), -np.inf)
        return [ARGMAXABLE if radius > self.eps else None for radius in radii]

    def _signed_rows(self, assignment: Assignment, ids: np.ndarray) -> list[tuple[list[int], int]]:
        """Return rows of integers with the signs of the assignment, and the powers of two that scaled them."""
        rows = plain_rows(self.W, self.b, self.system.rule, ids)
        return [exact.integer_row(row) for row in rows * self.system.signs(ids, assignment.active)[:, None]]

    # Combinations

    def _prove_combinations(
        self, assignments: Sequence[Assignment], results: list[SearchResult], exact_seconds: float
    ) -> dict[int, Verdict]:
        width = self.system.width
        verdicts: dict[int, Verdict] = {}
        with_inverse = [result for result in results if result.inverse is not None]
        at_once = max(1, NUMBERS_AT_ONCE // max(1, width) ** 2)
        for start in range(0, len(with_inverse), at_once):
            part = with_inverse[start : start + at_once]
            supports = np.asarray([result.support for result in part])
            active = [assignments[result.index].active for result in part]
            signs = np.asarray([self.system.signs(*pair) for pair in zip(supports, active, strict=True)])
            matrices = self.system.rows[supports, :width] * signs[:, :, None]
            proved, multipliers = positive_multipliers(matrices, np.asarray([result.inverse for result in part]))
            proved &= self.system.lossless[supports].all(axis=1)
            where = np.flatnonzero(proved)
            powers = -self.system.exponents[supports[where]]
            refuted = self._unargmaxable(supports[where], multipliers[where], powers, "float-certified")
            verdicts.update(zip([part[t].index for t in where], refuted, strict=True))
        for result in results:
            if result.index not in verdicts and result.support is not None and exact_seconds > 0:
                deadline = time.monotonic() + exact_seconds
                with contextlib.suppress(exact.OutOfTime):
                    outcome = self._decide_rows(assignments[result.index], result.support, deadline)
                    if isinstance(outcome, Verdict):
                        verdicts[result.index] = outcome
        return verdicts

    def _decide_rows(self, assignment: Assignment, ids: np.ndarray, deadline: float) -> Verdict | list[Fraction]:
        """Decide the rows `ids` exactly: return unargmaxable, or a point that solves them."""
        rows = self._signed_rows(assignment, ids)
        outcome = exact.decide([row for row, _ in rows], deadline)
        if not isinstance(outcome, exact.Combination):
            return outcome
        largest = max(outcome.multipliers)
        relative = np.asarray([float(multiplier / largest) for multiplier in outcome.multipliers])
        powers = np.asarray([rows[position][1] for position in outcome.rows])
        return self._unargmaxable(ids[None, outcome.rows], relative[None], powers[None], "exact")[0]

    def _unargmaxable(
        self, supports: np.ndarray, multipliers: np.ndarray, powers: np.ndarray, proof: Proof
    ) -> list[Verdict]:
        """Return one verdict for each support: multipliers of scaled rows become multipliers of the rows of W."""
        order = np.argsort(supports, axis=1)
        supports, multipliers, powers = (
            np.take_along_axis(each, order, axis=1) for each in (supports, multipliers, powers)
        )
        weights = _times_powers(multipliers, powers - powers[:, :1])
        labels = (supports < self.system.labels).sum(axis=1)  # the row of t comes last, and is no label
        return [
            Verdict(UNARGMAXABLE, proof, certificate=(support[:count], weight[:count]), eps=UNARGMAXABLE)
            for support, weight, count in zip(supports, weights, labels, strict=True)
        ]

    # Exact arithmetic from the start

    def decide_exactly(self, assignment: Assignment, result: SearchResult, seconds: float) -> Verdict:
        """Decide a growing set of rows exactly until the answer holds for all rows; unresolved when time is up."""
        began = time.monotonic()
        active_first = np.argsort(result.is_active == 0, kind="stable")[: 2 * self.system.width + ROWS_TO_ADD]
        ids = result.rows[active_first].astype(np.int64)
        if self.system.biased:
            ids = np.append(ids[ids != self.system.labels], self.system.labels)
        verdict = Verdict(UNRESOLVED)
        with contextlib.suppress(exact.OutOfTime):
            verdict = self._decide_growing_set(assignment, ids, began + seconds)
        return replace(verdict, seconds=result.seconds + time.monotonic() - began)

    def _decide_growing_set(self, assignment: Assignment, ids: np.ndarray, deadline: float) -> Verdict:
        while True:
            outcome = self._decide_rows(assignment, ids, deadline)
            if isinstance(outcome, Verdict):
                return outcome
            verdict, violated = self._find_float_witness(assignment, ids, outcome)
            if verdict is not None:
                return verdict
            new = np.setdiff1d(violated, ids)[:ROWS_TO_ADD]
            if not len(new):
                # the assignment is argmaxable, but no float vector near this point proves it
                return Verdict(UNRESOLVED)
            ids = np.concatenate([ids, new])

    def _find_float_witness(
        self, assignment: Assignment, ids: np.ndarray, point: list[Fraction]
    ) -> tuple[Verdict | None, np.ndarray]:
        """Look for a witness near an exact solution for the rows `ids`; without one, return the violated rows."""
        violated = np.empty(0, dtype=np.int64)
        near = [*self._roundings(point), *self._inner_points(assignment, ids, point)]
        for plain in itertools.chain(near, self._neighbours(near[:1] + near[-1:])):
            V, sound = scaled_vectors(plain[None], self.system.columns)
            if sound[0]:
                verdict, violated = self._check_vectors([assignment], plain[None], V)[0]
                if verdict is not None or len(np.setdiff1d(violated, ids)):
                    return verdict, violated
        return None, violated

    def _roundings(self, point: list[Fraction]) -> Iterator[np.ndarray]:
        """Round the point to floats, at several scales if the system has no bias."""
        padding = [Fraction(0)] * (self.system.rows.shape[1] - len(point))
        if self.system.biased:
            yield exact.nearest_floats([number / point[-1] for number in point] + padding)
            return
        largest = max((abs(number) for number in point), default=Fraction(0)) or Fraction(1)
        for scale in range(1, SCALES_TO_TRY, 2):
            yield exact.nearest_floats([number * scale / largest for number in point] + padding)

    def _neighbours(self, points: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Move points by a few units in the last place: if the solutions are that thin, some points hit them."""
        rng = np.random.default_rng(0)
        for _ in range(NEIGHBOURS):
            for point in points:
                plain = point + np.spacing(point) * rng.integers(-2, 3, len(point)) * (point != 0)
                if self.system.biased:
                    plain[self.system.width - 1] = 1.0
                yield plain

    def _inner_points(self, assignment: Assignment, ids: np.ndarray, point: list[Fraction]) -> Iterator[np.ndarray]:
        """Find a point away from the boundary: the largest margin, each column scaled by the point's own entry."""
        numbers = exact.nearest_floats([number / max(map(abs, point)) for number in point])
        powers = np.zeros(self.system.rows.shape[1], dtype=np.int64)
        powers[: len(numbers)] = np.where(numbers == 0, 0, np.frexp(numbers)[1])
        plain = np.zeros((len(ids), len(powers)))
        plain[:, : self.system.width] = plain_rows(self.W, self.b, self.system.rule, ids)
        rows, _, _ = scaled_rows(plain, powers)
        slots = Slots(1, len(ids), len(ids), self.system.width, len(powers))
        slots.start(0, np.arange(len(ids)), self.system.signs(ids, assignment.active))
        norms, first = np.linalg.norm(rows, axis=1), np.zeros(1, dtype=np.int64)
        slots.solve(rows, norms, unit_rows(rows, norms), first, FULLY, CAREFULLY_DEPENDENT, closely=True)
        if slots.outcome[0] == SATISFIED:
            yield self._plain(slots.v, powers)[0]


def _times_powers(numbers: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Multiply positive numbers by powers of two, and keep them positive and finite."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(numbers, np.clip(powers, -2000, 2000))
    return np.clip(scaled, np.finfo(np.float64).smallest_subnormal, np.finfo(np.float64).max)


def _inverses(lengths: np.ndarray) -> np.ndarray:
    """Return 1/length, and 0 for a length of 0."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
