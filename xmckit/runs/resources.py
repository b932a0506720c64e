"""Measure time and memory of a block of code."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType


@dataclass
class Measured:
    """`with Measured() as cost: …`, then `cost.seconds`, `cost.cpu_seconds` and `cost.peak_bytes`.

    The peak is the process's largest resident size during the block. Linux can reset that mark; elsewhere it is the
    largest since the process began, or 0 where it is not known.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    _start: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def __enter__(self) -> Measured:
        _reset_peak()
        self._start = (time.perf_counter(), _cpu_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._start[0]
        self.cpu_seconds = _cpu_seconds() - self._start[1]
        self.peak_bytes = _peak_bytes()


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not Linux, or not allowed: the peak is then the one since the process began


def _peak_bytes() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the system's own call below
    if sys.platform == "win32":
        return 0  # not known there
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
