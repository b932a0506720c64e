"""Decide one label set in exact arithmetic, ties included, for a working set of rows that grows until it suffices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from xmckit import Verdict
from xmckit.records import ARGMAXABLE, UNARGMAXABLE
from xmckit_argmax.proofs import exact
from xmckit_argmax.proofs.exact import Integers, Weights
from xmckit_argmax.proofs.tied_rows import TiedRows
from xmckit_argmax.records import Assignment
from xmckit_argmax.search.active_set import CAREFULLY_DEPENDENT, FULLY, SATISFIED, Slots
from xmckit_argmax.system import plain_rows, scaled_rows, scaled_vectors, unit_rows

if TYPE_CHECKING:
    from xmckit_argmax.proofs.prover import Prover

ROWS_TO_ADD = 40
ROWS_AT_ONCE = 256  # between two looks at the clock
SCALES_TO_TRY = 33
SMALL = 2.0**-1000  # smaller floats may have fewer than 53 bits once they are scaled
LARGEST = float(np.finfo(np.float64).max)


class ExactDecision:
    """Decide one assignment; raise OutOfTime after the deadline."""

    def __init__(self, prover: Prover, assignment: Assignment, deadline: float):
        self.prover, self.system, self.assignment, self.deadline = prover, prover.system, assignment, deadline
        self._active = frozenset(assignment.active.tolist())
        self._rows: dict[int, Integers] = {}
        self._powers: dict[int, int] = {}

    def decide(self, ids: np.ndarray, *, if_infeasible: bool = False) -> Verdict | None:
        """Return the verdict, starting with the rows `ids`.

        With `if_infeasible`, give up and return None if some vector is positive on all of these rows.
        """
        tied = TiedRows(self.system.width)
        working = [*ids.tolist(), *([self.system.labels] if self.system.biased else [])]
        working = list(dict.fromkeys(working))
        while True:
            self._load(working)
            short = {index: tied.restrict(self._rows[index]) for index in working}
            vanished = [index for index in working if not any(short[index])]
            clash = self.system.clash([*tied.rows, *vanished], self._active)
            if clash:
                return self._refute(tied, clash)
            working = [index for index in working if any(short[index])]
            outcome = exact.decide([short[index] for index in working], self.deadline)
            if isinstance(outcome, exact.Combination):
                weights = {working[place]: part for place, part in zip(outcome.rows, outcome.multipliers, strict=True)}
                if not tied.rows and self.system.clash(weights, self._active):
                    return self._unargmaxable(weights)  # it has no row too many
                tied.add({index: self._rows[index] for index in weights}, weights)
                working = [index for index in working if index not in weights]
                continue
            if if_infeasible and not tied.rows:
                return None
            point = tied.lift(outcome)
            new = self._rows_to_add(point, {*working, *vanished, *tied.rows}, strictly=not tied.rows)
            if not new:
                return self._argmaxable(point, None if tied.rows else np.asarray(working))
            working += [*vanished, *new]

    def _load(self, ids: Sequence[int]) -> None:
        """Make sure that the rows are there as integers, with the signs of the assignment and their powers of two."""
        new = [index for index in ids if index not in self._rows]
        for index, (row, power) in zip(
            new, self.prover.signed_rows(self.assignment, np.asarray(new, dtype=np.int64)), strict=True
        ):
            self._rows[index], self._powers[index] = row, power

    # The label set cannot be output

    def _refute(self, tied: TiedRows, clash: Sequence[int]) -> Verdict:
        """Return unargmaxable, with a combination that ties the rows that must not be tied."""
        extra = {index: self._rows[index] for index in clash if index not in tied.rows}
        weights = tied.combine(extra, dict.fromkeys(extra, Fraction(1)))
        for kept in [[index] for index in clash] + [list(clash)]:
            fewer = exact.smaller_combination(self._rows, weights, kept)
            if self.system.clash(fewer, self._active):
                break
        return self._unargmaxable(fewer, kept)

    def _unargmaxable(self, weights: Weights, kept: Sequence[int] = ()) -> Verdict:
        """Return the verdict with multipliers of the rows of W; they follow from those of `kept`, which come last."""
        largest = max(weights.values())
        labels = sorted((index for index in weights if index < self.system.labels), key=lambda i: (i in kept, i))
        powers = np.asarray([self._powers[index] for index in labels], dtype=np.int64)
        relative = np.asarray([float(weights[index] / largest) for index in labels])
        certificate = np.asarray(labels, dtype=np.int64), exact.times_powers(relative, powers - powers[:1])
        return Verdict(UNARGMAXABLE, "exact", certificate=certificate, eps=UNARGMAXABLE)

    # The label set can be output

    def _rows_to_add(self, point: Integers, known: set[int], *, strictly: bool) -> list[int]:
        """Return rows that the point violates and that are not `known`; with `strictly`, rows that are 0 count too."""
        zero, negative = self._not_positive(point)
        wrong = [*negative, *self.system.clash(zero, self._active), *(zero if strictly else [])]
        return [index for index in dict.fromkeys(wrong) if index not in known][:ROWS_TO_ADD]

    def _not_positive(self, point: Integers) -> tuple[list[int], list[int]]:
        """Return the rows that are 0 and those that are negative at the point; floats sort out the clear cases."""
        floats = self._as_floats(point)
        underflow = any(
            number and abs(rounded) < SMALL for number, rounded in zip(point, floats.tolist(), strict=False)
        )
        doubtful = self.prover.doubtful_rows(self.assignment, None if underflow else floats).tolist()
        zero, negative = [], []
        for count, index in enumerate(doubtful):
            if count % ROWS_AT_ONCE == 0:
                exact.check_time(self.deadline)
                self._load(doubtful[count : count + ROWS_AT_ONCE])
            product = exact.dot(self._rows[index], point)
            if product == 0:
                zero.append(index)
            elif product < 0:
                negative.append(index)
        return zero, negative

    def _as_floats(self, point: Integers) -> np.ndarray:
        """Return the point with its largest entry between 1/2 and 1, each entry rounded, and padded like the rows."""
        scale = 1 << max((abs(number).bit_length() for number in point), default=0)
        return exact.nearest_floats([Fraction(number, scale) for number in self._padded(point)])

    def _padded(self, point: Integers) -> Integers:
        return [*point, *[0] * (self.system.rows.shape[1] - len(point))]

    def _argmaxable(self, point: Integers, working: np.ndarray | None) -> Verdict:
        """Return the verdict for a point that outputs the set; `working`: it is positive on all rows, on these by far.

        A float vector that is positive on all rows is the best witness. Otherwise the point is: as floats, if they
        hold it exactly, else as integers, with the nearest floats beside them.
        """
        if working is not None:
            verdict = self._find_float_witness(working, point)
            if verdict is not None:
                return verdict
        system = self.system
        if system.biased:
            numerators, denominator = point[: system.dim], point[-1]
        else:
            numerators = point[: system.dim]
            denominator = 1 << max((abs(number).bit_length() for number in numerators), default=0)
        x = [Fraction(number, denominator) for number in numerators]
        floats = np.clip(exact.nearest_floats(x), -LARGEST, LARGEST)
        is_exact = [Fraction(number) for number in floats.tolist()] == x
        return Verdict(
            ARGMAXABLE,
            "exact",
            witness=floats,
            exact_witness=None if is_exact else (*numerators, denominator),
            margin=0.0 if is_exact and working is None else None,
            radius=(0.0, self.prover.box * system.dim**0.5) if self.prover.has_radius else None,
        )

    def _find_float_witness(self, working: np.ndarray, point: Integers) -> Verdict | None:
        """Look for a float vector near the point that is positive on all rows."""
        for plain in itertools.chain(self._roundings(point), self._inner_points(working, point)):
            V, sound = scaled_vectors(plain[None], self.system.columns)
            if sound[0]:
                verdict = self.prover.check_vectors([self.assignment], plain[None], V)[0]
                if verdict is not None:
                    return verdict
        return None

    def _roundings(self, point: Integers) -> Iterator[np.ndarray]:
        """Round the point to floats, at several scales if the system has no bias."""
        if self.system.biased:
            yield exact.nearest_floats([Fraction(number, point[-1]) for number in self._padded(point)])
            return
        largest = max(map(abs, point), default=0) or 1
        for scale in range(1, SCALES_TO_TRY, 2):
            yield exact.nearest_floats([Fraction(number * scale, largest) for number in self._padded(point)])

    def _inner_points(self, working: np.ndarray, point: Integers) -> Iterator[np.ndarray]:
        """Find a point away from the boundary: the largest margin, each column scaled by the point's own entry."""
        system, numbers = self.system, self._as_floats(point)
        powers = np.where(numbers == 0, 0, np.frexp(numbers)[1])
        plain = np.zeros((len(working), len(powers)))
        plain[:, : system.width] = plain_rows(self.prover.W, self.prover.b, system.rule, working)
        rows, _, _ = scaled_rows(plain, powers)
        slots = Slots(1, len(working), len(working), system.width, len(powers))
        slots.start(0, np.arange(len(working)), system.signs(working, self.assignment.active))
        norms, first = np.linalg.norm(rows, axis=1), np.zeros(1, dtype=np.int64)
        slots.solve(rows, norms, unit_rows(rows, norms), first, FULLY, CAREFULLY_DEPENDENT, closely=True)
        if slots.outcome[0] == SATISFIED:
            yield self.prover.plain_vectors(slots.v, powers)[0]
