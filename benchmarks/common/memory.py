"""What a benchmark needs to know about memory."""

from __future__ import annotations

import multiprocessing
import sys
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


def apart(measure: Callable[..., None], *arguments: Any) -> dict[str, Any]:
    """What `measure(*arguments, sender)` sends from a fresh process, whose peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_alone, args=(measure, *arguments, sender))
    child.start()
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        child.join()
        raise SystemExit(f"the measured process ended with {child.exitcode}") from None
    child.join()
    return dict(found)


def _alone(measure: Callable[..., None], *arguments: Any) -> None:
    try:
        measure(*arguments)
    finally:
        if "joblib" in sys.modules:
            # its idle workers would keep this process for minutes
            sys.modules["joblib"].externals.loky.get_reusable_executor().shutdown()


def resident(field: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))
