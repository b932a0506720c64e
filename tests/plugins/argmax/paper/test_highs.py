"""HiGHS in a process of its own: the same answers, and an end to calls that do not return."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_matrix
from xmckit_argmax.paper import highs
from xmckit_argmax.verifier import ArgmaxVerifier

from xmckit import LinearDecision, make_context, processes
from xmckit.processes import command

HANGS = "import time; time.sleep(1000)"
HANGS_AFTER_ONE = """
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from xmckit_argmax.paper import highs
solved, calls = highs._solve, []
def once(arrays):
    calls.append(1)
    while len(calls) > 1:
        pass
    return solved(arrays)
highs._solve = once
highs.serve()
"""


@pytest.fixture(autouse=True)
def fresh_children() -> Iterator[None]:
    """None are left from other tests, and none are left to them."""
    highs.close_idle()
    yield
    highs.close_idle()


def programme(seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    A = np.hstack([rng.standard_normal((30, 4)), np.ones((30, 1))])
    return A, np.ones(30), np.append(np.full(4, -1.0), -np.inf), np.append(np.ones(4), np.inf)


def test_the_answers_are_those_of_linprog() -> None:
    for seed in range(3):
        A, b, lower, upper = programme(seed)
        found = highs.maximise_last(A, b, lower, upper, 60.0)
        bounds = np.stack([lower, upper], axis=1)
        expected = linprog([0, 0, 0, 0, -1], A_ub=A, b_ub=b, bounds=bounds, method="highs-ds")
        assert found.status == expected.status == 0
        np.testing.assert_allclose(found.x[-1], -expected.fun, rtol=1e-9)
        np.testing.assert_allclose(-found.marginals.sum(), -expected.ineqlin.marginals.sum(), rtol=1e-9)
    assert len(highs._idle) == 1  # one process served all of them


def child_with(code: str) -> Callable[[str], list[str]]:
    """A stand-in for `processes.command` whose child runs `code`."""
    return lambda target: [sys.executable, "-c", code, json.dumps(sys.path)]


@pytest.mark.parametrize("code", [HANGS, "import sys; sys.exit(3)"])
def test_a_process_that_hangs_or_dies_is_ended(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(processes, "command", child_with(code))
    monkeypatch.setattr(highs, "GRACE", 0.1)
    monkeypatch.setattr(highs, "START", 0.5)
    found = highs.maximise_last(*programme(), 0.1)
    assert (len(found.x), found.status) == (0, -1)
    assert "no answer" in found.message
    assert highs._idle == []


def test_a_call_that_hangs_costs_one_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first label set is answered, the second hangs, and what comes after has a process of its own."""
    starts = []
    original = highs.HighsProcess.__init__

    def counted(self: highs.HighsProcess) -> None:
        monkeypatch.setattr(processes, "command", command if starts else child_with(HANGS_AFTER_ONE))
        starts.append(1)
        original(self)

    monkeypatch.setattr(highs.HighsProcess, "__init__", counted)
    monkeypatch.setattr(highs, "GRACE", 0.5)
    decision, sets = LinearDecision(np.eye(2), None), csr_matrix([[1, 1], [1, 0], [0, 1]])
    verdicts = ArgmaxVerifier(mode="chebyshev", seconds=0.5).verify(decision, sets, context=make_context(workers=1))
    assert [verdict.status for verdict in verdicts.verdicts] == ["argmaxable", "unresolved", "argmaxable"]
    assert len(starts) == 2


def test_threads_have_processes_of_their_own() -> None:
    results: dict[int, float] = {}

    def work(seed: int) -> None:
        results[seed] = float(highs.maximise_last(*programme(seed), 60.0).x[-1])

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    alone = {seed: float(highs.maximise_last(*programme(seed), 60.0).x[-1]) for seed in range(2)}
    assert results == alone


def test_no_process_stays_behind() -> None:
    highs.maximise_last(*programme(), 60.0)
    (child,) = highs._idle
    pid = child._process.pid
    highs.close_idle()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
