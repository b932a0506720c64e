"""A small correct verifier, and verifiers that each break one rule of the contract."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

import xmckit
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, UNRESOLVED
from xmckit.testing.brute_force import can_output, outputs


class Guesses(xmckit.Configured):
    """Tries vectors at random; what it cannot find and is not obvious stays open."""

    class Params(xmckit.Params):
        tries: int = Field(300, ge=1, description="Vectors to try.")

    def verify(self, decision, assignments, *, candidates=None, context):
        labels = len(decision.W)
        if assignments.shape[1] != labels or not np.isfinite(decision.W).all():
            raise xmckit.DataError("the label sets do not fit W")
        if decision.b is not None and len(decision.b) != labels:
            raise xmckit.DataError("b does not fit W")
        if candidates is not None and candidates.shape[0] != assignments.shape[0]:
            raise xmckit.DataError("the candidates do not fit the label sets")
        verdicts = []
        for row in range(assignments.shape[0]):
            active = assignments[row].toarray().ravel() != 0
            asked = np.arange(labels) if candidates is None else candidates[row].indices
            verdicts.append(self.verdict(decision, active, asked, context))
        return xmckit.Verdicts(verdicts)

    def verdict(self, decision, active, asked, context):
        missed = tuple(int(label) for label in np.flatnonzero(active) if label not in asked)
        if missed:
            return xmckit.Verdict(UNARGMAXABLE, "exact", missed=missed)
        x = self.witness(decision, active, asked, context)
        if x is None:
            return xmckit.Verdict(UNRESOLVED)
        replayed = None
        if decision.replay is not None and len(asked) == len(active):
            counts = (np.array([active.sum()]),) if decision.rule == "topk" else ()
            replayed = bool((decision.replay(x[None], *counts).toarray().ravel() != 0).tolist() == active.tolist())
        return xmckit.Verdict(ARGMAXABLE, "exact", witness=x, replayed=replayed)

    def witness(self, decision, active, asked, context):
        b = 0 if decision.b is None else decision.b[asked]
        vectors = context.rng("witness").standard_normal((self.params.tries, decision.W.shape[1])) * 4
        scores = vectors @ decision.W[asked].T.astype(np.float64) + b
        on, off = scores[:, active[asked]], scores[:, ~active[asked]]
        lowest, highest = on.min(axis=1, initial=np.inf), off.max(axis=1, initial=-np.inf)
        right = lowest > highest if decision.rule == "topk" else (lowest > 0) & (highest < 0)
        return next((x for x in vectors[right] if outputs(decision, x, active, asked)), None)


class HoldsItsSetsInParams(Guesses):
    def __init__(self, **params):
        super().__init__(**params)
        self.params = self.params.model_copy(update={"tries": float("nan")})


class Denies(Guesses):
    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        return replace(found, status=UNARGMAXABLE) if found.status == UNRESOLVED and active.any() else found


class DeniesTies(Guesses):
    """Asks for logits below 0 where a label is off, as if 0 were neither on nor off."""

    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        if found.status != UNRESOLVED or len(asked) < len(active) or can_output(decision, active):
            return found
        return xmckit.Verdict(UNARGMAXABLE, "exact", certificate=(asked, np.ones(len(asked))))


class DeniesAll(Guesses):
    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        return replace(found, status=UNARGMAXABLE, witness=None) if not found.missed else found


class KnowsNothing(Guesses):
    def verdict(self, decision, active, asked, context):
        return xmckit.Verdict(UNRESOLVED)


class TurnsWitnesses(Guesses):
    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        return found if found.witness is None else replace(found, witness=-found.witness)


class BelievesItself(Guesses):
    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        return found if found.witness is None else replace(found, replayed=True)


class SortsSets(Guesses):
    def verify(self, decision, assignments, *, candidates=None, context):
        order = np.lexsort(assignments.toarray().T)
        return super().verify(decision, assignments[order], candidates=candidates, context=context)


class AnswersManyOnly(Guesses):
    def verify(self, decision, assignments, *, candidates=None, context):
        found = super().verify(decision, assignments, candidates=candidates, context=context)
        if assignments.shape[0] == 1:
            return xmckit.Verdicts([xmckit.Verdict(UNRESOLVED)])
        return found


class IgnoresCandidates(Guesses):
    def verify(self, decision, assignments, *, candidates=None, context):
        return super().verify(decision, assignments, context=context)


class DeniesSingleLabels(Guesses):
    def verdict(self, decision, active, asked, context):
        found = super().verdict(decision, active, asked, context)
        return xmckit.Verdict(UNARGMAXABLE) if len(active) == 1 else found


class AnswersAnything(Guesses):
    def verify(self, decision, assignments, *, candidates=None, context):
        if assignments.shape[1] != len(decision.W):
            return xmckit.Verdicts([xmckit.Verdict(UNRESOLVED)] * assignments.shape[0])
        return super().verify(decision, assignments, candidates=candidates, context=context)
