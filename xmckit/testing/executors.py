"""The checks of executors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.testing import common
from xmckit.testing.assertions import require
from xmckit.testing.subjects import Subject

ITEMS = list(range(17))


class ExecutorSubject(Subject):
    """An executor. Its functions can be sent to other processes."""

    kind = "executor"

    def inputs(self) -> dict[str, Any]:
        return {"items": np.array(ITEMS)}

    def make(self, context: Context) -> Any:
        return self.component()

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return {"results": np.array(ready.map(math.sqrt, ITEMS, workers=context.workers))}


def order_is_kept(subject: ExecutorSubject) -> str:
    for workers in (1, 2):
        found = subject.ready.map(operator.neg, ITEMS, workers=workers)
        expected = [-item for item in ITEMS]
        require(found == expected, f"results with {workers} workers are {found}, expected {expected}")
    return ""


def accepts_few_items(subject: ExecutorSubject) -> str:
    for items in ([], [3]):
        found = subject.ready.map(operator.neg, items, workers=2)
        require(found == [-item for item in items], f"{items} give {found}")
    return ""


def errors_are_raised(subject: ExecutorSubject) -> str:
    for workers in (1, 2):
        try:
            subject.ready.map(math.sqrt, [1.0, -1.0, 4.0], workers=workers)
        except ValueError:
            continue
        raise AssertionError(f"an error of the work is lost with {workers} workers")
    return ""


CHECKS: tuple[Callable[[ExecutorSubject], str], ...] = (
    *common.FIRST,
    order_is_kept,
    accepts_few_items,
    errors_are_raised,
    *common.ALWAYS,
)
