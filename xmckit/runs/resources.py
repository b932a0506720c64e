"""Measure time and memory of a block of code, child processes included."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

_PAUSE = 0.05  # seconds between two looks at the processes, at least
_SHARE = 0.02  # of one processor that looking may take
_LINUX = sys.platform.startswith("linux")


@dataclass
class Measured:
    """`with Measured() as cost: …`, then `cost.seconds`, `cost.cpu_seconds` and `cost.peak_bytes`.

    All processes below this one count. On Linux the peak is the largest of three figures: the largest resident size of
    this process during the block, the largest sum of the resident sizes of all processes, which is sampled about 20
    times a second, and the largest child that ended. Pages that processes share count for each of them, and a child
    that lives for milliseconds may be missed in the sum. Elsewhere the peak is that of the largest single process
    since this one began, and 0 on Windows, where it is not known; CPU time of children counts when they have ended.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    _start: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    _largest_child: int = field(default=0, repr=False)
    _sampler: _Sampler | None = field(default=None, repr=False)

    def __enter__(self) -> Measured:
        _reset_peak()
        self._largest_child = _largest_ended_child() if _LINUX else 0
        if _LINUX:
            self._sampler = _Sampler()
            self._sampler.start()
        self._start = (time.perf_counter(), _cpu_seconds())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._start[0]
        self.cpu_seconds = _cpu_seconds() - self._start[1]
        child = _largest_ended_child()
        together = self._sampler.finish() if self._sampler is not None else 0
        self.peak_bytes = max(_peak_bytes(), together, child if child > self._largest_child else 0)


class _Process(NamedTuple):
    parent: int
    cpu_seconds: float  # of the process and of its children that ended
    resident_bytes: int


def _descendants() -> list[_Process]:
    """Return the processes below this one; an empty list if the system has no /proc."""
    if not _LINUX:
        return []
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    processes: dict[int, _Process] = {}
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb", buffering=0) as stream:
                # The name of the program, in brackets, may hold anything.
                facts = stream.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        processes[int(entry)] = _Process(int(facts[1]), sum(map(int, facts[11:15])) / tick, int(facts[21]) * page)
        children.setdefault(int(facts[1]), []).append(int(entry))
    found, waiting = [], [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.append(processes[child])
            waiting.append(child)
    return found


class _Sampler(threading.Thread):
    """A thread that watches how much memory this process and those below it hold together."""

    def __init__(self) -> None:
        super().__init__(name="xmckit-memory", daemon=True)
        self._peak = 0
        self._end = threading.Event()

    def run(self) -> None:
        pause = _PAUSE
        while not self._end.wait(pause):
            began = time.perf_counter()
            self._look()
            pause = max(_PAUSE, (time.perf_counter() - began) / _SHARE)

    def _look(self) -> None:
        below = _descendants()
        if below:
            own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            self._peak = max(self._peak, own + sum(process.resident_bytes for process in below))

    def finish(self) -> int:
        """Look once more, and return the peak; 0 if there were no other processes."""
        self._end.set()
        self.join()
        self._look()
        return self._peak


def _cpu_seconds() -> float:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(process.cpu_seconds for process in _descendants())


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
    return _largest("RUSAGE_SELF")


def _largest_ended_child() -> int:
    return _largest("RUSAGE_CHILDREN")


def _largest(which: str) -> int:
    """Return the largest resident size of this process, or of its largest child that ended; 0 if it is not known."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(getattr(resource, which)).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
