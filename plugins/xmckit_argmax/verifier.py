"""ArgmaxVerifier: for each label set whether the decision can ever output it, with the proof."""

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
from xmckit.context import Bar
from xmckit.nn.threads import threads
from xmckit.records import ARGMAXABLE, STATUSES, UNARGMAXABLE
from xmckit_argmax.answers import Answer, Question
from xmckit_argmax.paper.alternating import ideal_answers
from xmckit_argmax.paper.radius import radius_bound
from xmckit_argmax.paper.tolerance import AtEps, Tolerance
from xmckit_argmax.solver import Settings, Solver, slots_within
from xmckit_argmax.system import checked_sets, checked_weights, make_system

SETS_PER_SLOT = 2  # label sets of a block for each slot: more, and few sets would keep one worker busy alone
BLOCKS_PER_WORKER = 4  # between two advances of the progress bar
REPLAYED_AT_ONCE = 4096
SETTLED_TOGETHER = 32


class ArgmaxParams(Params):
    mode: Literal["proof", "chebyshev"] = Field(
        "proof", description='"chebyshev": the linear programme of the paper by HiGHS, far slower, for its radii.'
    )
    margin: Literal["any", "largest"] = Field(
        "any",
        description='"largest": the largest margin of each set, and without biases close bounds on the radius; an '
        "answer at eps that takes another witness then stays open.",
    )
    exact: bool = Field(True, description="Use exact arithmetic where floats leave a label set open.")
    seconds: float = Field(60.0, gt=0, description="Time limit for one label set, for search and exact proof each.")
    batch: int = Field(
        64,
        ge=1,
        le=1024,
        description="Label sets that are solved side by side; with others, a set may get another witness.",
    )
    memory: int = Field(1024, ge=1, description="MiB that a worker may use besides the weights; lowers `batch`.")
    replay: bool = Field(True, description="Run each witness through the head's own scorer.")
    box: float = Field(1e4, gt=0, le=1e100, description="Bound on the entries of x in the paper's linear programme.")
    eps: float = Field(1e-8, ge=0, le=1e100, description="Radius that the paper's linear programme asks for at least.")


class ArgmaxVerifier(Configured):
    """Grivas et al. (2024), section 3, without their solver and with a proof of every answer."""

    Params: ClassVar[type[Params]] = ArgmaxParams

    def verify(
        self,
        decision: LinearDecision,
        assignments: csr_matrix,
        *,
        candidates: csr_matrix | None = None,
        context: Context,
    ) -> Verdicts:
        W, b = checked_weights(decision)
        wanted = checked_sets(assignments, len(W), "assignments")
        allowed = None if candidates is None else checked_sets(candidates, len(W), "candidates")
        if allowed is not None and allowed.shape[0] != wanted.shape[0]:
            raise DataError(f"there are {allowed.shape[0]} rows of candidates for {wanted.shape[0]} assignments")
        questions = [_question(wanted, allowed, row) for row in range(wanted.shape[0])]
        if self.params.mode == "chebyshev":
            verdicts = self._by_linear_programmes(decision, questions, context)
        else:
            verdicts = self._by_proofs(decision.rule, W, b, questions, context)
        ideal = ideal_answers(decision, wanted, allowed)
        verdicts = [replace(verdict, ideal=answer) for verdict, answer in zip(verdicts, ideal, strict=True)]
        return Verdicts(_with_replays(verdicts, decision, wanted, allowed) if self.params.replay else verdicts)

    def _by_linear_programmes(
        self, decision: LinearDecision, questions: list[Question], context: Context
    ) -> list[Verdict]:
        from xmckit_argmax.paper.chebyshev import chebyshev

        limits = {"box": self.params.box, "eps": self.params.eps, "time_limit": self.params.seconds}
        radius = decision.rule == "sign" and decision.b is None
        bare = replace(decision, replay=None)

        def solve(question: Question) -> Verdict:
            return chebyshev(bare, question.active, question.rows, **limits).verdict(paper_radius=radius)

        verdicts: list[Verdict] = []
        together = BLOCKS_PER_WORKER * max(1, context.workers)
        with context.progress("verifying by linear programmes", total=len(questions)) as bar:
            for start in range(0, len(questions), together):
                verdicts.extend(context.map(solve, questions[start : start + together]))
                _show(bar, len(questions[start : start + together]), verdicts)
        return verdicts

    def _by_proofs(
        self, rule: str, W: np.ndarray, b: np.ndarray | None, questions: list[Question], context: Context
    ) -> list[Verdict]:
        missed = [_missed(question) for question in questions]
        asked = [row for row, labels in enumerate(missed) if not labels]
        answers = self._answers(rule, W, b, [questions[row] for row in asked], context)
        verdicts = [Verdict(UNARGMAXABLE, "exact", eps=UNARGMAXABLE, missed=labels) for labels in missed]
        for row, answer in zip(asked, answers, strict=True):
            verdicts[row] = self._verdict(answer)
            if self.params.margin == "largest" and answer.x is not None and answer.radius is not None:
                verdicts[row] = self._with_radius(
                    verdicts[row], radius_bound(W, questions[row], answer.x, self.params.box)
                )
        if rule == "sign":
            left = {row: answer.x for row, answer in zip(asked, answers, strict=True) if answer.x is not None}
            left = {row: x for row, x in left.items() if verdicts[row].eps is None}
            again = [(questions[row], x) for row, x in left.items()]
            for row, found in zip(left, self._settled(W, b, again, context), strict=True):
                verdicts[row] = self._with_eps(verdicts[row], found)
        return verdicts

    def _answers(
        self, rule: str, W: np.ndarray, b: np.ndarray | None, questions: list[Question], context: Context
    ) -> list[Answer]:
        system = make_system(W, b, rule, plain_columns=self.params.margin == "largest")
        slots = min(self.params.batch, slots_within(self.params.memory << 20, system))
        settings = self._settings(slots, largest=self.params.margin == "largest")
        work = functools.partial(_solved, Solver(system, W, b, settings))
        size = slots * SETS_PER_SLOT
        blocks = [questions[start : start + size] for start in range(0, len(questions), size)]
        answers: list[Answer] = []
        together = BLOCKS_PER_WORKER * max(1, context.workers)
        # matrix products that torch spreads over threads of its own would not have the same bits everywhere
        with threads(1), context.progress("verifying", total=len(questions)) as bar:
            for start in range(0, len(blocks), together):
                for block in _mapped(work, blocks[start : start + together], context):
                    answers.extend(block)
                    _show(bar, len(block), answers)
        return answers

    def _settings(self, slots: int, *, largest: bool = False) -> Settings:
        return Settings(
            slots=slots, seconds=self.params.seconds, largest=largest, exact=self.params.exact, box=self.params.box
        )

    def _settled(
        self, W: np.ndarray, b: np.ndarray | None, asked: list[tuple[Question, np.ndarray]], context: Context
    ) -> list[AtEps]:
        """The answers at eps for label sets whose witness leaves them open."""
        settings = self._settings(min(self.params.batch, SETTLED_TOGETHER))
        work = functools.partial(_at_eps, Tolerance(W, b, self.params.eps, settings, self.params.memory << 20))
        parts = [asked[start : start + SETTLED_TOGETHER] for start in range(0, len(asked), SETTLED_TOGETHER)]
        found: list[AtEps] = []
        with threads(1), context.progress("verifying at eps", total=len(asked)) as bar:
            for start in range(0, len(parts), max(1, context.workers)):
                for part in _mapped(work, parts[start : start + max(1, context.workers)], context):
                    found.extend(part)
                    bar.advance(len(part))
        return found

    def _with_radius(self, verdict: Verdict, found: tuple[float, tuple[np.ndarray, np.ndarray]] | None) -> Verdict:
        """The bound on the radius that multipliers prove, where it says more; up to eps it is the answer there too."""
        if found is None or verdict.radius is None or found[0] >= verdict.radius[1]:
            return verdict
        bound, certificate = found
        eps = UNARGMAXABLE if verdict.eps is None and bound <= self.params.eps else verdict.eps
        return replace(verdict, radius=(verdict.radius[0], bound), certificate=certificate, eps=eps)

    def _with_eps(self, verdict: Verdict, found: AtEps) -> Verdict:
        """The x that shows the answer becomes the witness, unless the witness is there for its largest margin."""
        if found.certificate is not None:
            radius = None if verdict.radius is None else (verdict.radius[0], self.params.eps)
            return replace(verdict, eps=found.answer, certificate=found.certificate, radius=radius)
        if found.x is None or self.params.margin == "largest":
            return verdict
        return replace(verdict, eps=found.answer, witness=found.x, margin=found.margin)

    def _verdict(self, answer: Answer) -> Verdict:
        certificate = None
        if answer.support is not None and answer.multipliers is not None:
            certificate = (answer.support, answer.multipliers)
        return Verdict(
            answer.status,
            answer.proof,
            witness=answer.x,
            certificate=certificate,
            margin=answer.margin,
            radius=answer.radius,
            eps=self._at_eps(answer),
            seconds=answer.seconds,
        )

    def _at_eps(self, answer: Answer) -> str | None:
        """The answer of the paper's linear programme, where the witness shows it."""
        if answer.status == UNARGMAXABLE:
            return UNARGMAXABLE
        return ARGMAXABLE if answer.reached is not None and answer.reached > self.params.eps else None


def _question(wanted: csr_matrix, allowed: csr_matrix | None, row: int) -> Question:
    def labels(sets: csr_matrix) -> np.ndarray:
        return sets.indices[sets.indptr[row] : sets.indptr[row + 1]].astype(np.int64)

    return Question(labels(wanted), None if allowed is None else labels(allowed))


def _missed(question: Question) -> tuple[int, ...]:
    """Active labels that are not among the candidates."""
    if question.rows is None:
        return ()
    return tuple(np.setdiff1d(question.active, question.rows).tolist())


def _mapped(work: Callable[[Any], list[Any]], parts: Sequence[Any], context: Context) -> list[list[Any]]:
    try:
        return context.map(work, parts)
    except BrokenExecutor as error:
        context.log(f"a worker died ({error}); its label sets are verified again in this process")
        return [work(part) for part in parts]


def _solved(solver: Solver, questions: Sequence[Question]) -> list[Answer]:
    # MKL keeps its number of threads per thread
    torch.set_num_threads(1)
    return solver.solve(questions)


def _at_eps(tolerance: Tolerance, asked: Sequence[tuple[Question, np.ndarray]]) -> list[AtEps]:
    torch.set_num_threads(1)
    return tolerance.settle([question for question, _ in asked], [witness for _, witness in asked])


def _show(bar: Bar, done: int, answers: Sequence[Answer | Verdict]) -> None:
    bar.advance(done, **{status: sum(answer.status == status for answer in answers) for status in STATUSES})


def _with_replays(
    verdicts: list[Verdict], decision: LinearDecision, wanted: csr_matrix, allowed: csr_matrix | None
) -> list[Verdict]:
    """Verdicts that say whether the head's own scorer gives the label set for the witness.

    A scorer that ranks all labels says nothing about the ranking of some of them.
    """
    if decision.replay is None or (allowed is not None and decision.rule == "topk"):
        return verdicts
    found = np.asarray([row for row, verdict in enumerate(verdicts) if verdict.witness is not None], dtype=np.int64)
    verdicts = list(verdicts)
    for start in range(0, len(found), REPLAYED_AT_ONCE):
        rows = found[start : start + REPLAYED_AT_ONCE]
        vectors = np.asarray([verdicts[row].witness for row in rows]).reshape(len(rows), -1)
        counts = [np.diff(wanted.indptr)[rows]] if decision.rule == "topk" else []
        with np.errstate(over="ignore"):
            output = decision.replay(vectors, *counts)
        same = _same_sets(output, wanted[rows], None if allowed is None else allowed[rows])
        for row, equal in zip(rows, same, strict=True):
            verdicts[row] = replace(verdicts[row], replayed=bool(equal))
    return verdicts


def _same_sets(left: csr_matrix, right: csr_matrix, among: csr_matrix | None) -> np.ndarray:
    """For each row whether the two sets are equal, as far as the labels in `among` go."""
    left, right = _ones(left), _ones(right)
    if among is not None:
        left = left.multiply(_ones(among)).tocsr()
    difference = csr_matrix(left - right)
    difference.eliminate_zeros()
    return np.diff(difference.indptr) == 0


def _ones(sets: csr_matrix) -> csr_matrix:
    sets = checked_sets(sets, sets.shape[1], "sets").astype(np.int8)
    sets.data[:] = 1
    return sets
