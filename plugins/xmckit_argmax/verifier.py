"""The verifier `argmax`: tells for each label set whether a decision can ever output it, with a proof."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import Configured, Context, DataError, LinearDecision, Params, Verdict, Verdicts
from xmckit.nn import use_threads
from xmckit.records import UNARGMAXABLE
from xmckit_argmax.paper.alternating import ideal_statuses
from xmckit_argmax.paper.chebyshev import ChebyshevSolver
from xmckit_argmax.paper.radius import radius_bound
from xmckit_argmax.paper.tolerance import ToleranceSolver
from xmckit_argmax.records import Assignment
from xmckit_argmax.solver import Solver, SolverSettings, slots_within
from xmckit_argmax.system import check_sets, check_weights, make_system, zero_rows

SETS_PER_SLOT = 2  # assignments of a block for each slot; with more, one worker would get all of a few assignments
BLOCKS_PER_WORKER = 4  # between two advances of the progress bar
REPLAYED_AT_ONCE = 4096
BLOCK_AT_EPS = 32

AnySolver = Solver | ToleranceSolver | ChebyshevSolver


class ArgmaxParams(Params):
    mode: Literal["proof", "chebyshev"] = Field(
        "proof",
        description='"chebyshev": solve the paper\'s linear programme by HiGHS, far slower, for its radii. It knows no '
        "ties: sets that only ties output stay unresolved.",
    )
    margin: Literal["any", "largest"] = Field(
        "any",
        description='"largest": find the largest margin of each set, and without biases close bounds on the radius; an '
        "answer at eps that needs another witness then stays open.",
    )
    exact: bool = Field(True, description="Use exact arithmetic for label sets that floats leave open.")
    seconds: float = Field(60.0, gt=0, description="Time limit per label set, for search and exact proof each.")
    batch: int = Field(
        64, ge=1, le=1024, description="Label sets solved side by side; another number may give a set another witness."
    )
    memory: int = Field(1024, ge=1, description="MiB that a worker may use besides the weights; may lower `batch`.")
    replay: bool = Field(True, description="Run each witness through the head's own scorer.")
    box: float = Field(1e4, gt=0, le=1e100, description="Bound on the entries of x in the paper's linear programme.")
    eps: float = Field(
        1e-8, ge=0, le=1e100, description="Least radius that the paper's linear programme accepts; ties have none."
    )


class ArgmaxVerifier(Configured):
    """Verify label sets as in Grivas et al. (2024), section 3, with another solver and a proof of every verdict.

    A set that a tie outputs, by the rule of the decision, is argmaxable too; the paper's answers at eps leave ties out.
    """

    Params: ClassVar[type[Params]] = ArgmaxParams

    def verify(
        self,
        decision: LinearDecision,
        assignments: csr_matrix,
        *,
        candidates: csr_matrix | None = None,
        context: Context,
    ) -> Verdicts:
        W, b = check_weights(decision)
        sets = check_sets(assignments, len(W), "assignments")
        allowed = None if candidates is None else check_sets(candidates, len(W), "candidates")
        if allowed is not None and allowed.shape[0] != sets.shape[0]:
            raise DataError(f"there are {allowed.shape[0]} rows of candidates for {sets.shape[0]} assignments")
        to_verify = [_assignment(sets, allowed, row) for row in range(sets.shape[0])]
        missed = [_missed_labels(assignment) for assignment in to_verify]
        verdicts = [Verdict(UNARGMAXABLE, "exact", eps=UNARGMAXABLE, missed=labels) for labels in missed]
        rows = [row for row, labels in enumerate(missed) if not labels]
        solved = self._solve(decision.rule, W, b, [to_verify[row] for row in rows], context)
        for row, verdict in zip(rows, solved, strict=True):
            verdicts[row] = verdict
        ideal = ideal_statuses(decision, sets, allowed)
        verdicts = [replace(verdict, ideal=status) for verdict, status in zip(verdicts, ideal, strict=True)]
        return Verdicts(_with_replays(verdicts, decision, sets, allowed) if self.params.replay else verdicts)

    def _solve(
        self, rule: str, W: np.ndarray, b: np.ndarray | None, assignments: list[Assignment], context: Context
    ) -> list[Verdict]:
        zero = zero_rows(W, b, rule)
        if zero.any():
            return self._solve_without(zero, rule, W, b, assignments, context)
        largest = self.params.margin == "largest"
        system = make_system(W, b, rule, plain_columns=largest)
        if self.params.mode == "chebyshev":
            programs = ChebyshevSolver(system, W, b, self._settings(1))
            return _map_blocks("verifying by linear programmes", programs, assignments, 1, context)
        slots = min(self.params.batch, slots_within(self.params.memory << 20, system))
        solver = Solver(system, W, b, self._settings(slots, largest=largest))
        verdicts = _map_blocks("verifying", solver, assignments, slots * SETS_PER_SLOT, context)
        verdicts = [
            self._with_close_radius(verdict, W, one) for verdict, one in zip(verdicts, assignments, strict=True)
        ]
        if rule == "sign":
            rows = [row for row, verdict in enumerate(verdicts) if verdict.witness is not None and verdict.eps is None]
            left_open = [(assignments[row], verdicts[row].witness) for row in rows]
            settings = self._settings(min(self.params.batch, BLOCK_AT_EPS))
            at_eps = ToleranceSolver(W, b, settings, self.params.memory << 20)
            answers = _map_blocks("verifying at eps", at_eps, left_open, BLOCK_AT_EPS, context)
            for row, answer in zip(rows, answers, strict=True):
                verdicts[row] = self._with_eps(verdicts[row], answer)
        return verdicts

    def _solve_without(
        self, zero: np.ndarray, rule: str, W: np.ndarray, b: np.ndarray | None, assignments: list[Assignment],
        context: Context,
    ) -> list[Verdict]:  # fmt: skip
        """Solve without the labels whose logit is 0 for every x: they are off, so that a set with one is impossible."""
        kept, places = np.flatnonzero(~zero), np.cumsum(~zero) - 1
        possible = [row for row, one in enumerate(assignments) if not zero[one.active].any()]
        rest = []
        for one in (assignments[row] for row in possible):
            listed = None if one.candidates is None else places[one.candidates[~zero[one.candidates]]]
            rest.append(Assignment(places[one.active], listed))
        solved = self._solve(rule, W[kept], None if b is None else b[kept], rest, context)
        verdicts = [_never_on(one.active[zero[one.active]]) for one in assignments]
        for row, verdict in zip(possible, solved, strict=True):
            if verdict.certificate is not None:
                verdict = replace(verdict, certificate=(kept[verdict.certificate[0]], verdict.certificate[1]))
            verdicts[row] = verdict
        return verdicts

    def _settings(self, slots: int, *, largest: bool = False) -> SolverSettings:
        params = self.params
        return SolverSettings(slots, params.seconds, largest, params.exact, params.box, params.eps)

    def _with_close_radius(self, verdict: Verdict, W: np.ndarray, assignment: Assignment) -> Verdict:
        """Add the bound on the radius that multipliers prove, if it is closer; a bound up to eps settles eps too."""
        if self.params.margin != "largest" or verdict.witness is None or verdict.radius is None:
            return verdict
        close = radius_bound(W, assignment, verdict.witness, self.params.box)
        if close is None or close[0] >= verdict.radius[1]:
            return verdict
        bound, certificate = close
        eps = UNARGMAXABLE if verdict.eps is None and bound <= self.params.eps else verdict.eps
        return replace(verdict, radius=(verdict.radius[0], bound), certificate=certificate, eps=eps)

    def _with_eps(self, verdict: Verdict, at_eps: Verdict) -> Verdict:
        """Add the answer at eps. Its x becomes the witness, unless the witness must have the largest margin."""
        if at_eps.certificate is not None:
            radius = None if verdict.radius is None else (verdict.radius[0], self.params.eps)
            return replace(verdict, eps=at_eps.status, certificate=at_eps.certificate, radius=radius)
        if at_eps.witness is None or self.params.margin == "largest":
            return verdict
        return replace(verdict, eps=at_eps.status, witness=at_eps.witness, exact_witness=None, margin=at_eps.margin)


def _never_on(labels: np.ndarray) -> Verdict:
    """Return unargmaxable, because of active labels whose logit is 0 for every x."""
    return Verdict(UNARGMAXABLE, "exact", certificate=(labels[:1], np.ones(len(labels[:1]))), eps=UNARGMAXABLE)


def _assignment(sets: csr_matrix, allowed: csr_matrix | None, row: int) -> Assignment:
    def labels(matrix: csr_matrix) -> np.ndarray:
        return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)

    return Assignment(labels(sets), None if allowed is None else labels(allowed))


def _missed_labels(assignment: Assignment) -> tuple[int, ...]:
    """Return the active labels that are not among the candidates."""
    if assignment.candidates is None:
        return ()
    return tuple(np.setdiff1d(assignment.active, assignment.candidates).tolist())


def _map_blocks(task: str, solver: AnySolver, items: Sequence[Any], size: int, context: Context) -> list[Verdict]:
    """Solve blocks of items on the workers, with a progress bar; return the verdicts on all items."""
    blocks = [items[start : start + size] for start in range(0, len(items), size)]
    verdicts: list[Verdict] = []
    together = BLOCKS_PER_WORKER * max(1, context.workers)
    # if torch spread matrix products over its own threads, their bits would depend on the machine
    with use_threads(1), context.progress(task, total=len(items)) as bar:
        for start in range(0, len(blocks), together):
            for block in _map(functools.partial(_solve_block, solver), blocks[start : start + together], context):
                verdicts.extend(block)
                bar.advance(len(block), **Verdicts(verdicts).counts())
    return verdicts


def _map(work: Callable[[Any], list[Verdict]], blocks: Sequence[Any], context: Context) -> list[list[Verdict]]:
    try:
        return context.map(work, blocks)
    except BrokenExecutor as error:
        context.log(f"a worker died ({error}); this process verifies its label sets again")
        return [work(block) for block in blocks]


def _solve_block(solver: AnySolver, block: Sequence[Any]) -> list[Verdict]:
    torch.set_num_threads(1)  # MKL keeps its number of threads per thread
    return solver.solve(block)


def _with_replays(
    verdicts: list[Verdict], decision: LinearDecision, sets: csr_matrix, allowed: csr_matrix | None
) -> list[Verdict]:
    """Add to each verdict whether the head's own scorer outputs the label set for the witness.

    A scorer that ranks all labels cannot replay a ranking of the candidates alone.
    """
    if decision.replay is None or (allowed is not None and decision.rule == "topk"):
        return verdicts
    proved = np.asarray([row for row, verdict in enumerate(verdicts) if verdict.witness is not None], dtype=np.int64)
    for start in range(0, len(proved), REPLAYED_AT_ONCE):
        rows = proved[start : start + REPLAYED_AT_ONCE]
        vectors = np.asarray([verdicts[row].witness for row in rows]).reshape(len(rows), -1)
        counts = [np.diff(sets.indptr)[rows]] if decision.rule == "topk" else []
        with np.errstate(over="ignore"):
            output = check_sets(decision.replay(vectors, *counts), len(decision.W), "replayed sets").astype(bool)
        if allowed is not None:
            output = output.multiply(allowed[rows].astype(bool))
        differences = (output != sets[rows].astype(bool)).getnnz(axis=1)
        for row, count in zip(rows, differences, strict=True):
            verdicts[row] = replace(verdicts[row], replayed=bool(count == 0))
    return verdicts
