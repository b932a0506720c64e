"""HiGHS in a process of its own, which is ended when it does not return: its own time limit is not always kept.

The process is started once and then serves one programme after another; arrays go to and fro in numpy's file format.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import struct
import subprocess
import sys
import threading
from typing import IO, NamedTuple

import numpy as np

TOLERANCE = 1e-10  # the least that HiGHS takes
GRACE = 5.0  # seconds after HiGHS's own limit
START = 60.0  # seconds that a new process may take besides, to import what it needs
SERVE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from xmckit_argmax.paper.highs import serve; serve()"

_idle: list[Child] = []
_lock = threading.Lock()


class Solution(NamedTuple):
    """What linprog gave: x, the multipliers of the rows, status and message; x is empty where there is none."""

    x: np.ndarray
    marginals: np.ndarray
    status: int
    message: str


def maximise_last(A: np.ndarray, b: np.ndarray, lower: np.ndarray, upper: np.ndarray, limit: float | None) -> Solution:
    """Maximise the last variable subject to A·v ≤ b and bounds; no answer after `limit` seconds and a grace."""
    with _lock:
        child = _idle.pop() if _idle else None
    child = child or Child()
    solution = child.solve({"A": A, "b": b, "lower": lower, "upper": upper}, limit)
    if child.alive:
        with _lock:
            _idle.append(child)
    return solution


class Child:
    """One process; of no more use once it had to be killed."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(sys.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._fresh = True
        self.alive = True

    def solve(self, arrays: dict[str, np.ndarray], limit: float | None) -> Solution:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        allowed = None if limit is None else limit + GRACE + (START if self._fresh else 0.0)
        killer = threading.Timer(allowed, self._process.kill) if allowed is not None else None
        if killer is not None:
            killer.start()
        try:
            _send(self._process.stdin, {**arrays, "limit": np.asarray(np.nan if limit is None else limit)})
            found = _receive(self._process.stdout)
        except (BrokenPipeError, EOFError):
            return self._ended(allowed)
        finally:
            if killer is not None:
                killer.cancel()
        self._fresh = False
        return Solution(found["x"], found["marginals"], int(found["status"]), str(found["message"]))

    def _ended(self, allowed: float | None) -> Solution:
        self.close()
        nothing = np.empty(0)
        after = "" if allowed is None else f" within {allowed:g} s"
        return Solution(nothing, nothing, -1, f"HiGHS gave no answer{after}, or its process died: it was ended")

    def close(self) -> None:
        self.alive = False
        self._process.kill()
        self._process.communicate()


@atexit.register
def close_idle() -> None:
    with _lock:
        while _idle:
            _idle.pop().close()


def serve() -> None:
    """Solve what comes in until there is no more; the other end of `Child`."""
    incoming, outgoing = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what HiGHS prints must not get between the answers
    while True:
        try:
            arrays = _receive(incoming)
        except EOFError:
            return
        _send(outgoing, _solved(arrays))


def _solved(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from scipy.optimize import linprog

    options = {"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE}
    if not np.isnan(arrays["limit"]):
        options["time_limit"] = float(arrays["limit"])
    costs = np.zeros(arrays["A"].shape[1])
    costs[-1] = -1.0
    bounds = np.stack([arrays["lower"], arrays["upper"]], axis=1)
    found = linprog(costs, A_ub=arrays["A"], b_ub=arrays["b"], bounds=bounds, method="highs-ds", options=options)
    given = found.x is not None and found.ineqlin.marginals is not None
    return {
        "x": np.empty(0) if found.x is None else found.x,
        "marginals": np.asarray(found.ineqlin.marginals, dtype=np.float64) if given else np.empty(0),
        "status": np.asarray(found.status),
        "message": np.asarray(str(found.message)),
    }


def _send(stream: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    stream.write(struct.pack("<q", buffer.tell()))
    stream.write(buffer.getbuffer())
    stream.flush()


def _receive(stream: IO[bytes]) -> dict[str, np.ndarray]:
    size = struct.unpack("<q", _exactly(stream, 8))[0]
    with np.load(io.BytesIO(_exactly(stream, size)), allow_pickle=False) as arrays:
        return dict(arrays)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
