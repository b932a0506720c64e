"""The checks of executors."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.testing import common
from xmckit.testing.assertions import expect_error, require
from xmckit.testing.subjects import Subject

ITEMS = list(range(17))


class ExecutorSubject(Subject):
    """An executor. Its functions can be sent to other processes."""

    def inputs(self) -> dict[str, Any]:
        return {"items": np.array(ITEMS)}

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return {"results": np.array(ready.map(math.sqrt, ITEMS, workers=context.workers))}


def order_is_kept(subject: ExecutorSubject) -> None:
    for workers in (1, 2):
        results = subject.ready.map(operator.neg, ITEMS, workers=workers)
        expected = [-item for item in ITEMS]
        require(results == expected, f"results with {workers} workers are {results}, expected {expected}")


def accepts_few_items(subject: ExecutorSubject) -> None:
    for items in ([], [3]):
        results = subject.ready.map(operator.neg, items, workers=2)
        require(results == [-item for item in items], f"{items} give {results}")


def errors_are_raised(subject: ExecutorSubject) -> None:
    for workers in (1, 2):
        with expect_error(f"the square root of −1 with workers = {workers}", errors=ValueError):
            subject.ready.map(math.sqrt, [1.0, -1.0, 4.0], workers=workers)


CHECKS = common.checks_in(globals())
