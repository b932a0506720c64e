"""Answers for blocks of label sets: working sets, scans over all labels as matrix products, and the proofs.

Each label set has a slot with a working set of rows, at first its active labels. Rounds alternate: the active-set
method satisfies every working set or finds it infeasible; one product of the rows with all slots' vectors then shows
which other rows are violated, and the worst of them join. A slot that is done takes the next label set, so that the
product always serves many. What the rounds find is only believed once it is proved: in float64 with error bounds, or
where that fails once more with care, and then in exact arithmetic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from xmckit_argmax.answers import Answer, Found, Question
from xmckit_argmax.proofs.float_bounds import all_products
from xmckit_argmax.proofs.multipliers import inverse
from xmckit_argmax.proofs.prover import Judge
from xmckit_argmax.search.active_set import (
    CAREFULLY_DEPENDENT,
    DEPENDENT,
    ENOUGH,
    FULLY,
    INFEASIBLE,
    SATISFIED,
    Slots,
)
from xmckit_argmax.search.working_set import Familiar, add_worst, begin, make_room
from xmckit_argmax.system import System

FULLY_ENOUGH = 1 - 1e-6  # of rows outside the working set
NEAR = 0.5  # rows below this join a working set together with those that are violated
AWAY_FROM_ROUNDING = 1e-6


@dataclass(frozen=True)
class Settings:
    slots: int = 64
    seconds: float = 60.0
    largest: bool = False
    exact: bool = True
    box: float = 1e4  # the paper's bound on the entries of x
    add: int = 128


@dataclass
class Clock:
    """Processor seconds of this thread by part, for benchmarks."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    scans: int = 0

    def add(self, part: str, since: float) -> float:
        now = time.thread_time()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - since
        return now


class Workspace(Slots):
    """Slots, whom they serve, and room for the scans."""

    def __init__(self, slots: int, room: int, system: System):
        count, padded = system.rows.shape
        super().__init__(slots, room, count, system.width, padded)
        self.owner = np.full(slots, -1)
        self.seconds = np.zeros(slots)
        self.begins = np.zeros(slots, dtype=np.int64)
        self.ends = np.zeros(slots, dtype=np.int64)
        self.made_room = np.zeros(slots, dtype=np.int64)  # after how many steps, the last time
        self.scanned = np.zeros(slots, dtype=bool)  # a list of candidates is the working set from the start
        self.products = torch.empty((slots, count), dtype=torch.float32)
        self.vectors = torch.empty((slots, system.width), dtype=torch.float32)


def slots_within(memory: int, system: System) -> int:
    """How many slots a solver may have that takes so many bytes besides the system: one at least."""
    width, (count, padded), room = max(1, system.width), system.rows.shape, _room(system)
    # the matrices of the combination that is being proved, and the working set that is being searched
    shared = 56 * width * padded + 4 * min(room, count) * padded
    # Q, R, and the inverses of two combinations: one waits for its proof, and the slot has come to the next
    each = 32 * width * padded + 17 * room + 32 * count + 64 * padded
    return max(1, (memory - shared) // each)


def _room(system: System) -> int:
    return 10 * system.width + 512


class Solver:
    """Answers questions about one system. Safe to use from several threads; each call works in arrays of its own."""

    def __init__(self, system: System, W: np.ndarray, b: np.ndarray | None, settings: Settings):
        self.system, self.W, self.b, self.settings = system, W, b, settings
        self._judge = Judge(system, W, b, settings.box)
        self._rows = torch.from_numpy(system.rows[:, : system.width])  # without the padding
        self._units32 = torch.from_numpy(system.units32[:, : system.width])
        self._idle: list[Workspace] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("system", "W", "b", "settings")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def solve(self, questions: Sequence[Question], clock: Clock | None = None) -> list[Answer]:
        """One answer for each question, in order; equal questions in equal order have equal answers, bit for bit."""
        clock = clock or Clock()
        answers: list[Answer | None] = [self._judge.at_once(question) for question in questions]
        left = self._attempt(questions, answers, clock, careful=self.settings.largest)
        if left and not self.settings.largest:
            left = self._attempt(questions, answers, clock, careful=True)
        if self.settings.exact:
            start = time.thread_time()
            for index, found in left.items():
                answers[index] = self._judge.settle(questions[index], found, self.settings.seconds)
            clock.add("exact", start)
        return [answer or Answer(seconds=left[index].seconds) for index, answer in enumerate(answers)]

    # The rounds

    def _attempt(
        self, questions: Sequence[Question], answers: list[Answer | None], clock: Clock, *, careful: bool
    ) -> dict[int, Found]:
        """Search and prove; fills `answers` and returns what is left open."""
        todo = [index for index, answer in enumerate(answers) if answer is None]
        left: dict[int, Found] = {}
        waiting: list[Found] = []

        def prove() -> None:
            start = time.thread_time()
            seconds = self.settings.seconds if self.settings.exact else 0.0
            proved = self._judge.prove(questions, waiting, seconds)
            for found in waiting:
                if found.index in proved:
                    answers[found.index] = proved[found.index]
                else:
                    left[found.index] = replace(found, inverse=None)  # it has served, and it is large
            waiting.clear()
            clock.add("proof", start)

        for found in self._search(questions, todo, clock, careful=careful):
            waiting.append(found)
            if len(waiting) >= self.settings.slots:
                prove()
        if waiting:
            prove()
        return left

    def _search(
        self, questions: Sequence[Question], todo: list[int], clock: Clock, *, careful: bool
    ) -> Iterator[Found]:
        slots = self._borrow(questions, todo)
        pending, familiar = list(reversed(todo)), Familiar(self.system.labels)
        active = np.concatenate([np.empty(0, dtype=np.int64), *(questions[index].active for index in todo)])
        begins = dict(zip(todo, np.cumsum([0, *(len(questions[index].active) for index in todo)]), strict=False))
        try:
            while True:
                for slot in np.flatnonzero(slots.owner < 0)[: len(pending)]:
                    index = pending.pop()
                    self._begin(slots, slot, questions[index], familiar)
                    slots.owner[slot], slots.seconds[slot], slots.begins[slot] = index, 0.0, begins[index]
                    slots.ends[slot] = begins[index] + len(questions[index].active)
                    slots.scanned[slot], slots.made_room[slot] = questions[index].rows is None, -1
                live = np.flatnonzero(slots.owner >= 0)
                if not len(live):
                    return
                began = time.perf_counter()
                complete = self._round(slots, live, active, clock, careful=careful)
                slots.seconds[live] += (time.perf_counter() - began) / len(live)
                late = live[slots.seconds[live] > self.settings.seconds]
                start = time.thread_time()
                left = [
                    self._leave(slots, slot, in_time=slot in complete) for slot in sorted(complete | set(late.tolist()))
                ]
                clock.add("proof", start)
                if left:
                    familiar.learn([found.rows[found.is_active] for found in left])
                yield from left
        finally:
            slots.owner[:] = -1
            with self._lock:
                self._idle.append(slots)

    def _round(
        self, slots: Workspace, live: np.ndarray, active: np.ndarray, clock: Clock, *, careful: bool
    ) -> set[int]:
        """Satisfy the working sets and extend them by a scan; the slots that are complete."""
        start, steps = time.thread_time(), slots.state[live, 1].sum()
        # what a first attempt left open deserves more time
        again = careful and not self.settings.largest
        accuracy = (FULLY, CAREFULLY_DEPENDENT, again) if careful else (ENOUGH, DEPENDENT, False)
        slots.solve(self.system.rows, self.system.norms, self.system.units32, live, *accuracy)
        clock.steps += int(slots.state[live, 1].sum() - steps)
        start = clock.add("active set", start)
        to_scan = live[slots.scanned[live] & (slots.outcome[live] == SATISFIED)]
        going_on = to_scan[self._scan(slots, to_scan, active, careful=careful)] if len(to_scan) else to_scan
        clock.scans += len(to_scan)
        clock.add("scan", start)
        return set(live.tolist()) - set(going_on.tolist())

    def _borrow(self, questions: Sequence[Question], todo: list[int]) -> Workspace:
        """Slots with room for the longest list of candidates."""
        longest = max((len(questions[index].rows) for index in todo if questions[index].rows is not None), default=0)  # type: ignore[arg-type]
        room = max(_room(self.system), longest + 1)
        with self._lock:
            for idle in self._idle:
                if idle.ids.shape[1] >= room:
                    self._idle.remove(idle)
                    return idle
        return Workspace(self.settings.slots, room, self.system)

    def _begin(self, slots: Workspace, slot: int, question: Question, familiar: Familiar) -> None:
        """All candidates where they are listed; otherwise a bounded number of active labels, and familiar rows."""
        last = self.system.labels if self.system.biased else -1
        if question.rows is None:
            begin(
                slot, question.active, 2 * self.system.width + 64, familiar.rows, last, slots.ids, slots.signs,
                slots.counts, slots.in_set, slots.v, slots.is_active, slots.state,
            )  # fmt: skip
            return
        ids = question.rows
        signs = np.where(np.isin(ids, question.active), 1.0, -1.0)
        if self.system.biased:
            ids, signs = np.append(ids, last), np.append(signs, 1.0)
        slots.start(slot, ids, signs)

    def _scan(self, slots: Workspace, to_scan: np.ndarray, active: np.ndarray, *, careful: bool) -> np.ndarray:
        """Let violated rows join; for each slot whether any did, and whether that may lead anywhere."""
        full, steps = slots.counts[to_scan] + 2 * self.settings.add > slots.ids.shape[1], slots.state[to_scan, 1]
        # no step since then: all rows that a scan by itself finds violated come and go
        in_circles = full & (slots.made_room[to_scan] == steps)
        slots.made_room[to_scan[full]] = steps[full]
        for slot in to_scan[full]:
            make_room(
                slot, slots.ids, slots.signs, slots.counts, slots.in_set, slots.active, slots.state[slot, 0],
                slots.is_active,
            )  # fmt: skip
        if careful:
            products = all_products(self._rows, slots.v[to_scan])
            products = (products / np.where(self.system.norms > 0, self.system.norms, 1.0)).astype(np.float32)
            clear, near = np.full(len(to_scan), FULLY_ENOUGH), 1.0
        else:
            vectors = slots.vectors[: len(to_scan)]
            vectors.numpy()[:] = slots.v[to_scan, : self.system.width]
            products = torch.mm(vectors, self._units32.T, out=slots.products[: len(to_scan)]).numpy()
            clear, near = AWAY_FROM_ROUNDING * np.sqrt((slots.v[to_scan] ** 2).sum(axis=1)), NEAR
        added = np.empty(len(to_scan), dtype=np.int64)
        add_worst(
            products, to_scan, slots.begins, slots.ends, active, self.system.biased, clear, near, self.settings.add,
            slots.ids, slots.signs, slots.counts, slots.in_set, added,
        )  # fmt: skip
        return (added > 0) & ~in_circles

    def _leave(self, slots: Workspace, slot: int, *, in_time: bool) -> Found:
        count = slots.counts[slot]
        rows, is_active = slots.ids[slot, :count].copy(), slots.is_active[slot, :count].astype(bool)
        found = Found(int(slots.owner[slot]), float(slots.seconds[slot]), rows, is_active)
        q = int(slots.state[slot, 0])
        if in_time and slots.outcome[slot] == SATISFIED:
            found.v = slots.v[slot].copy()
        elif in_time and slots.outcome[slot] == INFEASIBLE:
            found.support = slots.ids[slot, slots.active[slot, : q + 1]].astype(np.int64)
            if q == self.system.width:
                found.inverse = inverse(slots.R[slot], slots.Q[slot])
        slots.owner[slot] = -1
        return found
