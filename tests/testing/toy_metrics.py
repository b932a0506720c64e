"""Small correct metrics and executors, and some that each break one rule, of their kind or of all kinds."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

import xmckit

# Metrics


class Share(xmckit.Configured):
    """Of the true pairs that count, how many are output; ranked first where there are no sets."""

    def compute(self, evaluation):
        counts = np.ones(evaluation.truth.shape, dtype=bool)
        if evaluation.filtered is not None:
            counts &= evaluation.filtered.toarray() == 0
        true = (evaluation.truth.toarray() != 0) & counts
        said = np.zeros_like(true) if evaluation.sets is None else evaluation.sets.toarray() != 0
        return {"share": float((said & true).sum() / max(1, true.sum())), "rows": float(len(true))}


class GivesNaN(Share):
    def compute(self, evaluation):
        return {**super().compute(evaluation), "odd": math.nan}


class LooksAtTheFirstRow(Share):
    def compute(self, evaluation):
        return {"first": float(evaluation.truth[0].sum() + evaluation.truth[0].indices.sum())}


class CountsPlaces(Share):
    def compute(self, evaluation):
        return {"places": float(evaluation.topk.k)}


class CountsWhatIsFiltered(Share):
    def compute(self, evaluation):
        return super().compute(replace(evaluation, filtered=None))


class NeedsSets(Share):
    def compute(self, evaluation):
        evaluation.sets.sum()
        return super().compute(evaluation)


class VariesOverRows(Share):
    def compute(self, evaluation):
        if evaluation.truth.shape[0] == 1:
            return {"deviation": math.nan}
        return super().compute(evaluation)


class MetricNeedsTwoLabels(Share):
    def compute(self, evaluation):
        evaluation.truth[:, 1]
        return super().compute(evaluation)


class DividesByTheTruth(Share):
    def compute(self, evaluation):
        return {"labels": 1.0 / evaluation.truth.nnz}


# Executors


class Loop(xmckit.Configured):
    """One after the other."""

    def map(self, function, items, *, workers):
        return [function(item) for item in items]


class Backwards(Loop):
    def map(self, function, items, *, workers):
        return [function(item) for item in reversed(items)]


class NeedsAnItem(Loop):
    def map(self, function, items, *, workers):
        return [function(items[0]), *(function(item) for item in items[1:])]


class SwallowsErrors(Loop):
    def map(self, function, items, *, workers):
        found = []
        for item in items:
            try:
                found.append(function(item))
            except ValueError:
                found.append(None)
        return found


class CountsWorkers(Loop):
    def map(self, function, items, *, workers):
        return [function(item) + 1e-9 * workers for item in items]


# Rules of all kinds, broken by metrics, which are the quickest


class DocumentsNothing(Share):
    class Params(xmckit.Params):
        weight: float = 1.0


class TakesAnything(Share):
    class Params(xmckit.Params):
        weight: object = Field(None, description="Anything.")


class TakesUnknown(Share):
    def __init__(self, **params):
        super().__init__()


class LacksCompute(xmckit.Configured):
    """Forgot its only method."""


class DrawsAnew(Share):
    def compute(self, evaluation):
        return {"share": float(np.random.default_rng().random())}


class CountsItsCalls(Share):
    def compute(self, evaluation):
        self.calls = getattr(self, "calls", 0) + 1
        return {"share": 1.0 / self.calls}


class DependsOnWorkers(Share):
    def compute(self, evaluation):
        return {"share": 1.0 / evaluation.workers}


class ChangesTheTruth(Share):
    def compute(self, evaluation):
        evaluation.truth.data[:] = 2
        return super().compute(evaluation)


class ChangesTheEnvironment(Share):
    def compute(self, evaluation):
        os.environ["XMCKIT_TOY"] = "1"
        return super().compute(evaluation)


class Phones(Share):
    def compute(self, evaluation):
        with socket.socket() as line, contextlib.suppress(OSError):
            line.connect(("192.0.2.1", 80))
        return super().compute(evaluation)


class SendsAWord(Share):
    def compute(self, evaluation):
        with socket.socket(type=socket.SOCK_DGRAM) as line, contextlib.suppress(OSError):
            line.sendmsg([b"here I am"], [], 0, ("192.0.2.1", 80))
        return super().compute(evaluation)


class KeepsADatabase(Share):
    def compute(self, evaluation):
        sqlite3.connect(Path(__file__).parent / "left-behind.txt").execute("create table scores (score)")
        return super().compute(evaluation)


class WritesElsewhere(Share):
    def compute(self, evaluation):
        (Path(__file__).parent / "left-behind.txt").write_text("here I was")
        return super().compute(evaluation)


class RemovesElsewhere(Share):
    def compute(self, evaluation):
        os.remove(Path(__file__).parent / "no-such-file.txt")
        return super().compute(evaluation)


class TouchesElsewhere(Share):
    def compute(self, evaluation):
        os.utime(__file__)
        return super().compute(evaluation)


class RemembersItsProcess(Share):
    def __init__(self, **params):
        super().__init__(**params)
        self.process = os.getpid()

    def compute(self, evaluation):
        return {"process": float(self.process)}


class CrashesElsewhere(Share):
    def compute(self, evaluation):
        if "PYTHONHASHSEED" in os.environ and os.environ["PYTHONHASHSEED"] in "45":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().compute(evaluation)


class SaysThatItTakesUnknown(TakesUnknown):
    conformance = {"expected_failures": {"unknown_parameters_are_rejected": "it is old"}}


class DeclaresNonsense(Share):
    conformance = {"expected": []}
