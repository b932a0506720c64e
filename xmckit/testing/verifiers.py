"""The checks of verifiers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.errors import counted
from xmckit.protocols import SupportsParams
from xmckit.records import ARGMAXABLE, STATUSES, UNARGMAXABLE, UNRESOLVED, LinearDecision, Verdicts
from xmckit.testing import common
from xmckit.testing.assertions import expect_error, flat, require
from xmckit.testing.brute_force import can_output, outputs, possible_sets
from xmckit.testing.subjects import Subject, covers

RESIDUAL = 1e-9  # of a combination that should vanish, relative to its terms
PROOFS = ("float-certified", "exact", "none")


def tiny_decision(
    labels: int, width: int, *, rule: Any = "sign", bias: bool = False, seed: int = 0, largest: int = 9
) -> LinearDecision:
    """Return a decision of whole numbers as float32, with a `replay`; the smaller the numbers, the more labels tie."""
    rng = np.random.default_rng(seed)
    W = rng.integers(-largest, largest + 1, (labels, width)).astype(np.float32)
    b = rng.integers(-largest, largest + 1, labels).astype(np.float32) if bias else None
    decision = LinearDecision(W, b, rule)
    return replace(decision, replay=_scorer(decision))


def tied_decision(rule: Any) -> LinearDecision:
    """Return a decision with a row of zeros, two equal rows and two opposite ones, so that some sets need ties."""
    W = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1]], dtype=np.float32)
    decision = LinearDecision(W, None, rule)
    return replace(decision, replay=_scorer(decision))


def all_sets(labels: int) -> csr_matrix:
    return csr_matrix(np.array(list(itertools.product([0, 1], repeat=labels)), dtype=np.float32))


def _scorer(decision: LinearDecision) -> Callable[..., csr_matrix]:
    def replay(vectors: np.ndarray, counts: np.ndarray | None = None) -> csr_matrix:
        scores = np.asarray(vectors, dtype=np.float64) @ decision.W.astype(np.float64).T
        scores = scores if decision.b is None else scores + decision.b
        if counts is None:
            return csr_matrix((scores > 0).astype(np.float32))
        ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        return csr_matrix((ranks < np.asarray(counts)[:, None]).astype(np.float32))

    return replay


class VerifierSubject(Subject):
    """A verifier, for every label set of layers so small that brute force knows the answers."""

    @cached_property
    def decisions(self) -> dict[str, LinearDecision]:
        return {
            "sign, 6 labels in 2 dimensions": tiny_decision(6, 2),
            "sign with a bias, 5 labels in 2 dimensions": tiny_decision(5, 2, bias=True, seed=1),
            "topk, 6 labels in 2 dimensions": tiny_decision(6, 2, rule="topk", seed=2),
            "topk with a bias, 5 labels in 1 dimension": tiny_decision(5, 1, rule="topk", bias=True, seed=3),
            "sign, with rows that tie": tied_decision("sign"),
            "sign with a bias, with rows that tie": tiny_decision(5, 2, bias=True, seed=4, largest=1),
            "topk, with rows that tie": tied_decision("topk"),
        }

    def inputs(self) -> dict[str, Any]:
        return {name: (decision.W, decision.b) for name, decision in self.decisions.items()}

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        by_decision = {}
        for name, decision in self.decisions.items():
            verdicts = ready.verify(decision, all_sets(len(decision.W)), context=context)
            by_decision[name] = [replace(verdict, seconds=0.0) for verdict in verdicts.verdicts]
        return flat(by_decision, "")

    def verify(
        self, decision: LinearDecision, assignments: csr_matrix, candidates: csr_matrix | None = None
    ) -> Verdicts:
        verdicts = self.ready.verify(decision, assignments, candidates=candidates, context=self.context)
        require(isinstance(verdicts, Verdicts), f"verify() is a {type(verdicts).__name__}, expected Verdicts")
        expected = assignments.shape[0]
        require(len(verdicts) == expected, f"{len(verdicts)} verdicts for {expected} label sets")
        wrong = {verdict.status for verdict in verdicts.verdicts} - set(STATUSES)
        require(not wrong, f"the status {', '.join(map(repr, wrong))}, expected {', '.join(STATUSES)}")
        return verdicts

    @cached_property
    def verdicts(self) -> dict[str, Verdicts]:
        return {name: self.verify(decision, all_sets(len(decision.W))) for name, decision in self.decisions.items()}


def verdicts_match_brute_force(subject: VerifierSubject) -> str:
    decided = total = 0
    for name, decision in subject.decisions.items():
        possible = possible_sets(decision)
        for active, verdict in _by_set(decision, subject.verdicts[name]):
            total += 1
            decided += verdict.status != UNRESOLVED
            _assert_status(active, verdict.status, possible, name)
    require(decided > 0, "no label set was decided")
    return f"{decided} of {total} label sets decided, all rightly"


def ties_count_as_outputs(subject: VerifierSubject) -> str:
    """A logit of exactly 0 is off, and the lower id wins a tie: a set that such a tie outputs is not impossible."""
    by_tie = 0
    for name, decision in subject.decisions.items():
        possible = possible_sets(decision)
        for active, verdict in _by_set(decision, subject.verdicts[name]):
            if tuple(active.tolist()) in possible and not can_output(decision, active):
                by_tie += 1
                require(
                    verdict.status != UNARGMAXABLE,
                    f"{name}: {_set_name(active)} is unargmaxable by the verdict, and is output where logits tie",
                )
    return f"{by_tie} label sets that only ties output"


def proofs_are_valid(subject: VerifierSubject) -> str:
    """Check witnesses in exact arithmetic; combinations in float64, unless they hide an auxiliary variable."""
    proofs = 0
    for name, decision in subject.decisions.items():
        everything = np.arange(len(decision.W))
        for active, verdict in _by_set(decision, subject.verdicts[name]):
            proofs += verdict.status != UNRESOLVED
            where = f"{name}: {_set_name(active)}"
            require(verdict.proof in PROOFS, f"{where}: the proof is {verdict.proof!r}, expected {', '.join(PROOFS)}")
            if verdict.status == ARGMAXABLE:
                require(verdict.witness is not None, f"{where} is argmaxable, and there is no witness")
                x: Any = np.asarray(verdict.witness, dtype=np.float64)
                if verdict.exact_witness is not None:
                    *numerators, denominator = verdict.exact_witness
                    x = [Fraction(number, denominator) for number in numerators]
                require(outputs(decision, x, active, everything), f"{where}: the witness does not give this set")
            elif verdict.status == UNARGMAXABLE:
                require(verdict.certificate is not None, f"{where} is unargmaxable, and there is no certificate")
                if decision.rule == "sign" and decision.b is None:
                    _assert_combination(decision.W, active, verdict.certificate, where)
    return counted(proofs, "proof")


def replayed_matches_scorer(subject: VerifierSubject) -> str:
    """`replayed` is the result of the head's own scorer, not of the verifier."""
    decision = next(iter(subject.decisions.values()))
    sets = all_sets(len(decision.W))
    lying = replace(decision, replay=lambda vectors, *counts: csr_matrix((len(vectors), len(decision.W)), dtype="f4"))
    replays = 0
    for (active, honest), (_, lied) in zip(
        _by_set(decision, subject.verify(decision, sets)), _by_set(decision, subject.verify(lying, sets)), strict=True
    ):
        require(honest.replayed is not False, f"{_set_name(active)}: the scorer gives it, `replayed` is False")
        believed = lied.replayed is True and active.any()
        require(not believed, f"{_set_name(active)}: the scorer gives nothing, `replayed` is True")
        replays += honest.replayed is True
    return counted(replays, "replay")


def order_is_kept(subject: VerifierSubject) -> str:
    name, decision = next(iter(subject.decisions.items()))
    sets = all_sets(len(decision.W))
    order = np.random.default_rng(0).permutation(sets.shape[0])
    verdicts = subject.verify(decision, sets[order])
    for position, row in enumerate(order):
        expected, status = subject.verdicts[name][row].status, verdicts[position].status
        require(status == expected, f"set {row} is {expected}, and {status} when sets come in another order")
    return counted(len(order), "label set")


def single_set_matches_batch(subject: VerifierSubject) -> None:
    name, decision = next(iter(subject.decisions.items()))
    sets = all_sets(len(decision.W))
    for row in range(0, sets.shape[0], 7):
        expected, status = subject.verdicts[name][row].status, subject.verify(decision, sets[row])[0].status
        require(status == expected, f"set {row} is {expected} among others and {status} alone")
    require(len(subject.verify(decision, sets[:0])) == 0, "verdicts for no label set at all")


def candidates_restrict_outputs(subject: VerifierSubject) -> str:
    """Only candidates can be output, and only their rows count."""
    decision = tiny_decision(6, 2, seed=5)
    sets = all_sets(6)
    among = np.array([0, 2, 3, 5])
    candidates = np.zeros(sets.shape, dtype=np.float32)
    candidates[:, among] = 1
    possible = possible_sets(decision, among)
    for active, verdict in _by_set(decision, subject.verify(decision, sets, csr_matrix(candidates))):
        missed = tuple(label for label in np.flatnonzero(active).tolist() if label not in among)
        reported = tuple(int(label) for label in verdict.missed)
        require(reported == missed, f"{_set_name(active)}: missed is {reported}, expected {missed}")
        if missed:
            require(
                verdict.status == UNARGMAXABLE, f"{_set_name(active)} is {verdict.status}: it has no candidate {missed}"
            )
        else:
            _assert_status(active, verdict.status, possible, "among the candidates")
    return f"{sets.shape[0]} label sets"


def accepts_single_label(subject: VerifierSubject) -> str:
    decision = LinearDecision(np.array([[2.0]], dtype=np.float32), None)
    statuses = [verdict.status for verdict in subject.verify(decision, all_sets(1)).verdicts]
    require(UNARGMAXABLE not in statuses, "one label with one weight can be on and off, and a verdict denies it")
    return ", ".join(statuses)


@covers(SupportsParams)
def params_are_json(subject: VerifierSubject) -> str:
    """A run records the parameters with the verdicts."""
    params = subject.ready.params.model_dump(mode="json")
    common.assert_json(params, "params")
    return counted(len(params), "parameter")


def mismatched_inputs_are_rejected(subject: VerifierSubject) -> str:
    decision = tiny_decision(4, 2, seed=6)
    sets = all_sets(4)
    spoilt = decision.W.copy()
    spoilt[1, 0] = np.nan
    bad: dict[str, tuple[LinearDecision, csr_matrix, csr_matrix | None]] = {
        "sets of more labels than W has rows": (decision, all_sets(5), None),
        "a W with NaN": (replace(decision, W=spoilt), sets, None),
        "a b of another length": (replace(decision, b=np.zeros(3, dtype=np.float32)), sets, None),
        "candidates for fewer sets": (decision, sets, sets[:2]),
    }
    for what, (wrong, assignments, candidates) in bad.items():
        with expect_error(what):
            subject.ready.verify(wrong, assignments, candidates=candidates, context=subject.context)
    return counted(len(bad), "mistake")


CHECKS = common.checks_in(globals())


def _by_set(decision: LinearDecision, verdicts: Verdicts) -> list[tuple[np.ndarray, Any]]:
    return list(zip(all_sets(len(decision.W)).toarray() != 0, verdicts.verdicts, strict=True))


def _assert_status(active: np.ndarray, status: str, possible: set[tuple[bool, ...]], where: str) -> None:
    right = status == UNRESOLVED or (status == ARGMAXABLE) == (tuple(active.tolist()) in possible)
    require(right, f"{where}: {_set_name(active)} is {status} by the verdict, and is not")


def _set_name(active: np.ndarray) -> str:
    return f"the set {{{', '.join(map(str, np.flatnonzero(active).tolist()))}}}"


def _assert_combination(W: np.ndarray, active: np.ndarray, certificate: Any, where: str) -> None:
    """Σ λ_i y_i w_i = 0 with λ ≥ 0: all logits with λ_i > 0 are 0, and one of them must not be (Motzkin).

    If these rows span the whole space, x is 0 and so are all logits.
    """
    labels, multipliers = certificate[0], np.asarray(certificate[1], dtype=np.float64)
    require((multipliers >= 0).all() and (multipliers > 0).any(), f"{where}: multipliers below 0, or none above")
    terms = multipliers[:, None] * np.where(active[labels], 1.0, -1.0)[:, None] * W[labels].astype(np.float64)
    size = np.abs(terms).sum()
    require(np.abs(terms.sum(axis=0)).max() <= RESIDUAL * size, f"{where}: the certificate does not vanish")
    used = np.asarray(labels)[multipliers > 0]
    spans = np.linalg.matrix_rank(W[used].astype(np.float64)) == W.shape[1]
    clash = active.any() if spans else active[used].any()
    require(bool(clash), f"{where}: the certificate ties only labels that are off")
