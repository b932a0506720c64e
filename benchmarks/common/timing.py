"""Time calls that take turns, so that a busy moment of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """The least seconds of a call, and its last result."""

    wall: float
    processor: float
    result: Any


def best_of(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Return the least seconds of each call over the rounds, after one call that compiles and warms up."""
    best = {name: Timing(float("inf"), float("inf"), call()) for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            wall, processor = time.perf_counter(), time.process_time()
            result = call()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            best[name] = Timing(min(best[name].wall, wall), min(best[name].processor, processor), result)
    return best
