"""What a benchmark needs to know about memory."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def extra_memory(call: Callable[[], Any]) -> float:
    """MiB that `call` needs at its peak beyond what is there already, seen by the system in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def measure() -> None:
        before = resident("VmRSS")
        call()
        sender.send(resident("VmHWM") - before)

    child = context.Process(target=measure)
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the measured process ended with {child.exitcode}")
    return float(receiver.recv())


def resident(field: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
