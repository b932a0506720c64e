"""Run HiGHS in a subprocess that is killed when it does not return, since HiGHS does not always keep its time limit.

The process serves one program after another; arrays pass in both directions in numpy's file format.
"""

from __future__ import annotations

import atexit
import io
import os
import subprocess
import sys
import threading
from typing import IO, NamedTuple

import numpy as np

from xmckit.processes import receive_message, send_message, start

TOLERANCE = 1e-10  # the least that HiGHS accepts
GRACE = 5.0  # seconds after the time limit of HiGHS
START = 60.0  # additional seconds for the imports of a new process

_idle: list[HighsProcess] = []  # threads share it: to pop and to append are single steps


class HighsSolution(NamedTuple):
    """The result of linprog: x, the multipliers of the rows, status and message; without a solution x is empty."""

    x: np.ndarray
    marginals: np.ndarray
    status: int
    message: str


def maximise_last(A: np.ndarray, b: np.ndarray, lower: np.ndarray, upper: np.ndarray, limit: float) -> HighsSolution:
    """Maximise the last variable subject to A·v ≤ b and bounds; give up after `limit` seconds and a grace period."""
    try:
        process = _idle.pop()
    except IndexError:
        process = HighsProcess()
    return process.solve({"A": A, "b": b, "lower": lower, "upper": upper, "limit": np.asarray(limit)})


class HighsProcess:
    """A subprocess that solves programs, one at a time."""

    def __init__(self) -> None:
        self._process = start(
            "xmckit_argmax.paper.highs:serve",
            variables={"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._fresh = True

    def solve(self, arrays: dict[str, np.ndarray]) -> HighsSolution:
        """Solve one program, and become idle; without an answer in time, end the process instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        allowed = float(arrays["limit"]) + GRACE + (START if self._fresh else 0.0)
        killer = threading.Timer(allowed, self._process.kill)
        killer.start()
        try:
            _send(self._process.stdin, arrays)
            reply = _receive(self._process.stdout)
        except (BrokenPipeError, EOFError):
            self.close()
            message = f"HiGHS gave no answer within {allowed:g} s, or its process died: it was ended"
            return HighsSolution(np.empty(0), np.empty(0), -1, message)
        finally:
            killer.cancel()
        self._fresh = False
        _idle.append(self)
        return HighsSolution(reply["x"], reply["marginals"], int(reply["status"]), str(reply["message"]))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@atexit.register
def close_idle() -> None:
    while _idle:
        _idle.pop().close()


def serve() -> None:
    """Solve programs from standard input until it ends; this is the other end of `HighsProcess`."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of HiGHS must not mix with the replies
    while True:
        try:
            arrays = _receive(incoming)
        except EOFError:
            return
        _send(outgoing, _solve(arrays))


def _solve(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from scipy.optimize import linprog

    options = {
        "primal_feasibility_tolerance": TOLERANCE,
        "dual_feasibility_tolerance": TOLERANCE,
        "time_limit": float(arrays["limit"]),
    }
    costs = np.zeros(arrays["A"].shape[1])
    costs[-1] = -1.0
    bounds = np.stack([arrays["lower"], arrays["upper"]], axis=1)
    result = linprog(costs, A_ub=arrays["A"], b_ub=arrays["b"], bounds=bounds, method="highs-ds", options=options)
    has_dual = result.x is not None and result.ineqlin.marginals is not None
    return {
        "x": np.empty(0) if result.x is None else result.x,
        "marginals": np.asarray(result.ineqlin.marginals, dtype=np.float64) if has_dual else np.empty(0),
        "status": np.asarray(result.status),
        "message": np.asarray(str(result.message)),
    }


def _send(stream: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    send_message(stream, buffer.getbuffer())


def _receive(stream: IO[bytes]) -> dict[str, np.ndarray]:
    """Read arrays; EOFError if the stream ends before all of them."""
    with np.load(io.BytesIO(receive_message(stream)), allow_pickle=False) as arrays:
        return dict(arrays)
