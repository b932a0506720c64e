"""Verdicts for blocks of assignments: working sets, scans over all labels as matrix products, and proofs.

Each assignment has a slot with a working set of rows, at first its active labels. Rounds alternate two steps. The
active-set method satisfies every working set or finds it infeasible. One product of all rows with the vectors of all
slots then shows which other rows are violated, and the worst of them join the working sets. A finished slot takes the
next assignment, so that the product always serves many slots. The results of the rounds become verdicts only when they
are proved: in float64 with error bounds, if that fails after a more careful search, and then in exact arithmetic.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from xmckit import Verdict
from xmckit.records import UNRESOLVED
from xmckit_argmax.proofs.float_bounds import all_products
from xmckit_argmax.proofs.multipliers import inverse
from xmckit_argmax.proofs.prover import Prover
from xmckit_argmax.records import Assignment, SearchResult
from xmckit_argmax.search import active_set
from xmckit_argmax.search.active_set import INFEASIBLE, SATISFIED, Slots
from xmckit_argmax.search.working_set import FamiliarRows, add_worst, begin
from xmckit_argmax.system import LinearSystem

FULLY_ENOUGH = 1 - 1e-6  # the product that rows outside the working set need in a careful search
NEAR = 0.5  # rows below this join a working set together with the violated ones
AWAY_FROM_ROUNDING = 1e-6


@dataclass(frozen=True)
class SolverSettings:
    """`seconds` limits one assignment, for search and exact proof each; `box` and `eps` are the paper's."""

    slots: int = 64
    seconds: float = 60.0
    largest: bool = False
    exact: bool = True
    box: float = 1e4
    eps: float = 1e-8
    add: int = 128


@dataclass
class SolverClock:
    """Processor seconds of this thread by part, for benchmarks."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    scans: int = 0

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - start


class Workspace(Slots):
    """Slots, the assignments that they serve, and the arrays of the scans."""

    def __init__(self, slots: int, room: int, system: LinearSystem):
        count, padded = system.rows.shape
        super().__init__(slots, room, count, system.width, padded)
        self.owner = np.full(slots, -1)
        self.seconds = np.zeros(slots)
        self.begins = np.zeros(slots, dtype=np.int64)
        self.ends = np.zeros(slots, dtype=np.int64)
        self.shrunk_at = np.zeros(slots, dtype=np.int64)  # the step at which the working set last shrank
        self.scanned = np.zeros(slots, dtype=bool)  # False: the candidates are the working set from the start
        self.products = torch.empty((slots, count), dtype=torch.float32)
        self.vectors = torch.empty((slots, system.width), dtype=torch.float32)


def slots_within(memory: int, system: LinearSystem) -> int:
    """Return how many slots fit into `memory` bytes besides the system, at least one."""
    width, (count, padded), room = max(1, system.width), system.rows.shape, _room(system)
    # the matrices of the combination that is being proved, and the working set that is being searched
    shared = 56 * width * padded + 4 * min(room, count) * padded
    # Q, R, and the inverses of two combinations: one waits for its proof while the slot computes the next
    each = 32 * width * padded + 17 * room + 32 * count + 64 * padded
    return max(1, (memory - shared) // each)


def _room(system: LinearSystem) -> int:
    return 10 * system.width + 512


class Solver:
    """Find verdicts about one system. Safe to use from several threads; each call works in its own arrays."""

    def __init__(self, system: LinearSystem, W: np.ndarray, b: np.ndarray | None, settings: SolverSettings):
        self.system, self.W, self.b, self.settings = system, W, b, settings
        self._prover = Prover(system, W, b, settings.box, settings.eps)
        self._units32 = torch.from_numpy(system.units32[:, : system.width])  # without the padding
        self._idle: list[Workspace] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Solver, (self.system, self.W, self.b, self.settings)

    def solve(self, assignments: Sequence[Assignment], clock: SolverClock | None = None) -> list[Verdict]:
        """Return one verdict for each assignment, in order; equal calls give equal verdicts, bit for bit."""
        clock = clock or SolverClock()
        verdicts = [self._prover.prove_trivial(assignment) for assignment in assignments]
        left = self._attempt(assignments, verdicts, clock, careful=self.settings.largest)
        if left and not self.settings.largest:
            left = self._attempt(assignments, verdicts, clock, careful=True)
        if self.settings.exact:
            with clock.measure("exact"):
                for index, result in left.items():
                    verdicts[index] = self._prover.decide_exactly(assignments[index], result, self.settings.seconds)
        return [verdict or Verdict(UNRESOLVED, seconds=left[index].seconds) for index, verdict in enumerate(verdicts)]

    # The rounds

    def _attempt(
        self, assignments: Sequence[Assignment], verdicts: list[Verdict | None], clock: SolverClock, *, careful: bool
    ) -> dict[int, SearchResult]:
        """Search and prove; fill `verdicts` and return the results without a proof."""
        todo = [index for index, verdict in enumerate(verdicts) if verdict is None]
        left: dict[int, SearchResult] = {}
        results = self._search(assignments, todo, clock, careful=careful)
        while batch := list(itertools.islice(results, self.settings.slots)):
            with clock.measure("proof"):
                proved = self._prover.prove(assignments, batch, self.settings.seconds if self.settings.exact else 0.0)
            for result in batch:
                if result.index in proved:
                    verdicts[result.index] = proved[result.index]
                else:
                    left[result.index] = replace(result, inverse=None)  # it is large and no longer needed
        return left

    def _search(
        self, assignments: Sequence[Assignment], todo: list[int], clock: SolverClock, *, careful: bool
    ) -> Iterator[SearchResult]:
        slots = self._borrow_workspace(assignments, todo)
        pending, familiar = list(reversed(todo)), FamiliarRows(self.system.labels)
        active = np.concatenate([np.empty(0, dtype=np.int64), *(assignments[index].active for index in todo)])
        begins = dict(zip(todo, np.cumsum([0, *(len(assignments[index].active) for index in todo)]), strict=False))
        try:
            while True:
                for slot in np.flatnonzero(slots.owner < 0)[: len(pending)]:
                    index = pending.pop()
                    self._start_slot(slots, slot, assignments[index], familiar)
                    slots.owner[slot], slots.seconds[slot], slots.begins[slot] = index, 0.0, begins[index]
                    slots.ends[slot] = begins[index] + len(assignments[index].active)
                    slots.scanned[slot], slots.shrunk_at[slot] = assignments[index].candidates is None, -1
                live = np.flatnonzero(slots.owner >= 0)
                if not len(live):
                    return
                began = time.perf_counter()
                complete = self._run_round(slots, live, active, clock, careful=careful)
                slots.seconds[live] += (time.perf_counter() - began) / len(live)
                late = live[slots.seconds[live] > self.settings.seconds]
                with clock.measure("proof"):
                    results = [
                        self._release_slot(slots, slot, in_time=slot in complete)
                        for slot in sorted(complete | set(late.tolist()))
                    ]
                if results:
                    familiar.learn([result.rows[result.is_active] for result in results])
                yield from results
        finally:
            slots.owner[:] = -1
            with self._lock:
                self._idle.append(slots)

    def _run_round(
        self, slots: Workspace, live: np.ndarray, active: np.ndarray, clock: SolverClock, *, careful: bool
    ) -> set[int]:
        """Satisfy the working sets and extend them by a scan; return the slots that are complete."""
        steps = slots.state[live, 1].sum()
        enough, dependent = active_set.ENOUGH, active_set.DEPENDENT
        if careful:
            enough, dependent = active_set.FULLY, active_set.CAREFULLY_DEPENDENT
        # assignments that a first attempt left open deserve more time
        closely = careful and not self.settings.largest
        with clock.measure("active set"):
            slots.solve(self.system.rows, self.system.norms, self.system.units32, live, enough, dependent, closely)
        clock.steps += int(slots.state[live, 1].sum() - steps)
        to_scan = live[slots.scanned[live] & (slots.outcome[live] == SATISFIED)]
        with clock.measure("scan"):
            unfinished = to_scan[self._scan(slots, to_scan, active, careful=careful)] if len(to_scan) else to_scan
        clock.scans += len(to_scan)
        return set(live.tolist()) - set(unfinished.tolist())

    def _borrow_workspace(self, assignments: Sequence[Assignment], todo: list[int]) -> Workspace:
        """Take an idle workspace, or make one, with room for the longest list of candidates."""
        candidates = [assignments[index].candidates for index in todo]
        room = max([_room(self.system), *(len(ids) + 1 for ids in candidates if ids is not None)])
        with self._lock:
            for idle in self._idle:
                if idle.ids.shape[1] >= room:
                    self._idle.remove(idle)
                    return idle
        return Workspace(self.settings.slots, room, self.system)

    def _start_slot(self, slots: Workspace, slot: int, assignment: Assignment, familiar: FamiliarRows) -> None:
        """Start with all candidates, if there are any, or with some active labels and the familiar rows."""
        last = self.system.labels if self.system.biased else -1
        ids = assignment.candidates
        if ids is None:
            begin(
                slot, assignment.active, 2 * self.system.width + 64, familiar.rows, last, slots.ids, slots.signs,
                slots.counts, slots.in_set, slots.v, slots.is_active, slots.state,
            )  # fmt: skip
            return
        ids = np.append(ids, last) if self.system.biased else ids
        slots.start(slot, ids, self.system.signs(ids, assignment.active))

    def _scan(self, slots: Workspace, to_scan: np.ndarray, active: np.ndarray, *, careful: bool) -> np.ndarray:
        """Add violated rows to the working sets; return for each slot whether the search can go on."""
        full, steps = slots.counts[to_scan] + 2 * self.settings.add > slots.ids.shape[1], slots.state[to_scan, 1]
        # no step since the set last shrank: the scan finds the same rows violated again and again
        in_circles = full & (slots.shrunk_at[to_scan] == steps)
        slots.shrunk_at[to_scan[full]] = steps[full]
        for slot in to_scan[full]:
            slots.drop_inactive_rows(slot)
        if careful:
            products = all_products(self._prover.rows, slots.v[to_scan])
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

    def _release_slot(self, slots: Workspace, slot: int, *, in_time: bool) -> SearchResult:
        count = slots.counts[slot]
        rows, is_active = slots.ids[slot, :count].copy(), slots.is_active[slot, :count].astype(bool)
        result = SearchResult(int(slots.owner[slot]), float(slots.seconds[slot]), rows, is_active)
        q = int(slots.state[slot, 0])
        if in_time and slots.outcome[slot] == SATISFIED:
            result.v = slots.v[slot].copy()
        elif in_time and slots.outcome[slot] == INFEASIBLE:
            result.support = slots.ids[slot, slots.active[slot, : q + 1]].astype(np.int64)
            if q == self.system.width:
                result.inverse = inverse(slots.R[slot], slots.Q[slot])
        slots.owner[slot] = -1
        return result
