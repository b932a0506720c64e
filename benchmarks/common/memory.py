"""Measure the peak memory of a call in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


def extra_memory(call: Callable[[], Any]) -> float:
    """Return the MiB by which `call` raises the resident memory of a forked process at its peak."""
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


def in_fresh_process(measure: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """Return what `measure(*arguments, sender)` sends from a new process, which has its own peak memory."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=measure, args=(*arguments, sender))
    child.start()
    sender.close()
    try:
        results = receiver.recv()
    except EOFError:
        child.join()
        raise SystemExit(f"the measured process ended with {child.exitcode}") from None
    child.join()
    return dict(results)


def resident(field: str) -> float:
    """Return a field of /proc/self/status in MiB, such as VmRSS or the peak VmHWM."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
