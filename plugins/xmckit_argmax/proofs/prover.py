"""Prove what the search found: in float64 with error bounds first, and in exact arithmetic if that fails."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from xmckit import Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.exact_decision import ROWS_TO_ADD, ExactDecision
from xmckit_argmax.proofs.float_bounds import all_products, best_margin, check_products, error_per_length
from xmckit_argmax.proofs.multipliers import positive_multipliers
from xmckit_argmax.records import Assignment, SearchResult
from xmckit_argmax.system import LinearSystem, plain_rows, row_lengths, scaled_vectors

NUMBERS_AT_ONCE = 1 << 16  # entries of the combinations' matrices that are proved in one step
MOST_EXACT_ROWS = 2000
# Bounds on margins and radii keep this much distance, for the roundings in their computation.
SPARE = 1e-9
LARGE = 1e3  # thresholds above this times the length of x
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
        with np.errstate(over="ignore", invalid="ignore"):
            plain = np.ldexp(system.rows, -system.columns) if system.columns.any() else system.rows
            self._inverse_norms = _inverses(row_lengths(plain))
            self._threshold_slopes = plain[:, min(system.dim, plain.shape[1] - 1)] * self._inverse_norms
            self._inverse_slopes = _inverses(row_lengths(system.rows[:, : system.dim]))
        # scaling may have taken a row, its length, or that of its part in W, beyond the range of floats
        sloped = np.append(W.any(axis=1), False) if system.biased else W.any(axis=1)
        zero = ~system.rows.any(axis=1)
        self._knows_lengths = bool((system.lossless & (_usable(self._inverse_norms) | zero)).all())
        self._knows_slopes = bool((_usable(self._inverse_slopes) & system.lossless)[sloped].all())
        self.has_radius = system.rule == "sign" and not system.biased  # from the margin, and from the box

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
        if not len(zero):
            return zero
        logits = np.zeros(len(zero)) if self.b is None else self.b[zero]
        return zero[np.isin(zero, assignment.active) != (logits > 0)]

    def try_zero(self, assignment: Assignment) -> Verdict | None:
        """Return argmaxable if the zero vector outputs the assignment; without biases it ties all labels."""
        system, count = self.system, len(assignment.active)
        if system.biased or (system.rule == "sign" and count):
            return None
        first = np.arange(count) if assignment.candidates is None else assignment.candidates[:count]
        if not np.array_equal(assignment.active, first):
            return None
        radius = (0.0, self.box * system.dim**0.5) if self.has_radius else None
        return Verdict(ARGMAXABLE, "exact", witness=np.zeros(system.dim), margin=0.0, radius=radius)

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
        points = self.plain_vectors(np.asarray([result.v for result in results]), self.system.columns, self._typical)
        V, sound = scaled_vectors(points, self.system.columns)
        whole = [t for t, item in enumerate(results) if sound[t] and assignments[item.index].candidates is None]
        listed = [[t] for t, item in enumerate(results) if sound[t] and assignments[item.index].candidates is not None]
        verdicts = {}
        for block in [whole, *listed] if whole else listed:
            chosen = [assignments[results[t].index] for t in block]
            for t, verdict in zip(block, self.check_vectors(chosen, points[block], V[block]), strict=True):
                if verdict is not None:
                    verdicts[results[t].index] = verdict
        return verdicts

    def plain_vectors(self, v: np.ndarray, columns: np.ndarray, exponent: int = 0) -> np.ndarray:
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

    def check_vectors(
        self, assignments: Sequence[Assignment], plain: np.ndarray, V: np.ndarray
    ) -> list[Verdict | None]:
        """Return for each vector the verdict argmaxable if every row is proved positive, else None.

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
            if system.rule == "topk":
                margins = np.maximum(margins, self._best_margins(products, rows, active, V))
            sure = np.maximum(0.0, margins - CAUTION * errors / lengths) * (1 - SPARE)
            at_eps = self._statuses_at_eps(sure, plain, V, distance)
        verdicts: list[Verdict | None] = []
        for t, assignment in enumerate(assignments):
            ids = self._unproved_rows(rows, products[t], errors[t], failed[t])
            if self._are_positive(assignment, ids, V[t]):
                verdict = Verdict(
                    ARGMAXABLE,
                    "exact" if len(ids) else "float-certified",
                    witness=plain[t, : system.dim].copy(),
                    margin=float(margins[t]) if self._knows_lengths else None,
                    radius=(self.box * float(sure[t]), self.box * system.dim**0.5) if self.has_radius else None,
                    eps=at_eps[t],
                )
                verdicts.append(verdict)
            else:
                verdicts.append(None)
        return verdicts

    def margin(self, assignment: Assignment, x: np.ndarray) -> float | None:
        """Return the margin of a witness; None if no vector of floats with this x is positive on all rows."""
        system = self.system
        plain = np.zeros((1, system.rows.shape[1]))
        plain[0, : system.dim] = x
        if system.biased:
            plain[0, system.width - 1] = 1.0
        if system.rule == "topk":
            rows, (active,) = self._rows([assignment])
            ids = np.arange(len(system.rows))[rows][: None if not system.biased else -1]
            logits = plain_rows(self.W, self.b, system.rule, ids) @ plain[0, : system.width]
            plain[0, system.dim] = -(logits[active].min() / 2 + np.delete(logits, active).max() / 2)
        V, sound = scaled_vectors(plain, system.columns)
        verdict = self.check_vectors([assignment], plain, V)[0] if sound[0] else None
        return None if verdict is None else verdict.margin

    def _best_margins(
        self, products: np.ndarray, rows: slice | np.ndarray, active: list[np.ndarray], V: np.ndarray
    ) -> np.ndarray:
        """Return the margins of vectors of the rule "topk" for their best thresholds; `products` are signed."""
        system, labels = self.system, products.shape[1] - self.system.biased
        vectors, rests = np.ldexp(V, system.columns), V.copy()
        thresholds = vectors[:, system.dim].copy()
        rests[:, system.dim] = 0.0
        lengths = row_lengths(np.ldexp(rests, system.columns))
        inverses, slopes = self._inverse_norms[rows][:labels], self._threshold_slopes[rows][:labels]
        margins = np.zeros(len(V))
        for t, positions in enumerate(active):
            signs = np.full(labels, -1.0)
            signs[positions] = 1.0
            if abs(thresholds[t]) < LARGE * lengths[t]:
                values = products[t, :labels] * inverses - signs * slopes * thresholds[t]
            else:  # the logits would be lost in the rounding of the threshold
                values = signs * all_products(self.rows[rows][:labels], rests[t : t + 1])[0] * inverses
            margins[t] = best_margin(values, -signs * slopes, lengths[t])
        return margins

    def doubtful_rows(self, assignment: Assignment, plain: np.ndarray | None) -> np.ndarray:
        """Return the ids of the rows that are not proved positive at a vector that rounds to the floats `plain`.

        All rows are doubtful if there are no floats near the vector (None).
        """
        rows, (active,) = self._rows([assignment])
        ids = np.arange(len(self.system.rows))[rows]
        if plain is None:
            return ids
        V, sound = scaled_vectors(plain[None], self.system.columns)
        if not sound[0]:
            return ids
        products = all_products(self.rows[rows], V)[0]
        products = np.where(np.isin(np.arange(len(ids)), active) | (ids == self.system.labels), products, -products)
        # twice the bound: the entries of V were rounded once, before the products were
        return ids[self._unproved(rows, products, 2 * error_per_length(V)[0])]

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
        return np.arange(len(self.system.rows))[rows][self._unproved(rows, products, error)]

    def _unproved(self, rows: slice | np.ndarray, products: np.ndarray, error: float) -> np.ndarray:
        return np.asarray(~(products > error * self.system.norms[rows]) | ~self.system.lossless[rows])

    def _are_positive(self, assignment: Assignment, ids: np.ndarray, v: np.ndarray) -> bool:
        """Return whether the rows `ids` are positive in exact arithmetic; False if they are too many to tell."""
        if not 0 < len(ids) <= MOST_EXACT_ROWS:
            return not len(ids)
        numerators, _ = exact.integer_row(v[: self.system.width], self.system.columns)
        return all(exact.dot(row, numerators) > 0 for row, _ in self.signed_rows(assignment, ids))

    def _statuses_at_eps(
        self, margins: np.ndarray, plain: np.ndarray, V: np.ndarray, distances: np.ndarray
    ) -> list[str | None]:
        """Return argmaxable for each vector that proves a radius above eps; a bias fixes the scale of the vector."""
        system = self.system
        if system.rule != "sign" or not self._knows_slopes:
            return [None] * len(V)
        radii = self.box * margins
        if system.biased:
            t = system.width - 1
            one = np.ldexp(V[:, t], system.columns[t])
            inside = (np.abs(plain[:, : system.dim]).max(axis=1, initial=0.0) <= self.box) & (one > 0)
            radii = np.where(inside, distances / one * (1 - SPARE), -np.inf)
        return [ARGMAXABLE if radius > self.eps else None for radius in radii]

    def signed_rows(self, assignment: Assignment, ids: np.ndarray) -> list[tuple[list[int], int]]:
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
            refuted = self._unargmaxable(supports[where], multipliers[where], powers)
            for t, verdict in zip(where, refuted, strict=True):
                # the rows span the whole space, so that only the zero vector satisfies all inequalities
                verdicts[part[t].index] = self.try_zero(assignments[part[t].index]) or verdict
        for result in results:
            if result.index not in verdicts and result.support is not None and exact_seconds > 0:
                decision = ExactDecision(self, assignments[result.index], time.monotonic() + exact_seconds)
                with contextlib.suppress(exact.OutOfTime):
                    decided = decision.decide(result.support, if_infeasible=True)
                    if decided is not None:
                        verdicts[result.index] = decided
        return verdicts

    def _unargmaxable(self, supports: np.ndarray, multipliers: np.ndarray, powers: np.ndarray) -> list[Verdict]:
        """Return one verdict for each support: multipliers of scaled rows become multipliers of the rows of W."""
        order = np.argsort(supports, axis=1)
        supports, multipliers, powers = (
            np.take_along_axis(each, order, axis=1) for each in (supports, multipliers, powers)
        )
        weights = exact.times_powers(multipliers, powers - powers[:, :1])
        labels = (supports < self.system.labels).sum(axis=1)  # the row of t comes last, and is no label
        return [
            Verdict(UNARGMAXABLE, "float-certified", certificate=(support[:count], weight[:count]), eps=UNARGMAXABLE)
            for support, weight, count in zip(supports, weights, labels, strict=True)
        ]

    # Exact arithmetic from the start

    def decide_exactly(self, assignment: Assignment, result: SearchResult, seconds: float) -> Verdict:
        """Decide a growing set of rows exactly until the answer holds for all rows; unresolved when time is up."""
        began = time.monotonic()
        active_first = np.argsort(result.is_active == 0, kind="stable")[: 2 * self.system.width + ROWS_TO_ADD]
        verdict: Verdict | None = None
        with contextlib.suppress(exact.OutOfTime):
            decision = ExactDecision(self, assignment, began + seconds)
            verdict = decision.decide(result.rows[active_first].astype(np.int64))
        return replace(verdict or Verdict(UNRESOLVED), seconds=result.seconds + time.monotonic() - began)


def _usable(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(np.isfinite(numbers) & (numbers > 0))


def _inverses(lengths: np.ndarray) -> np.ndarray:
    """Return 1/length, and 0 for a length of 0."""
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
