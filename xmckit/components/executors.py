"""Executors: they map a function over independent items, and return the results in the order of the items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xmckit.context import map_on_threads
from xmckit.params import Configured
from xmckit.processes import ProcessPool


class SerialExecutor(Configured):
    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]:
        return [function(item) for item in items]


class ThreadExecutor(Configured):
    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]:
        return map_on_threads(function, items, workers=workers)


class ProcessExecutor(Configured):
    """Worker processes, which stay for the next call and end with the executor."""

    _pool: ProcessPool | None = None

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]:
        if workers <= 1 or len(items) <= 1:
            return [function(item) for item in items]
        self._pool = self._pool or ProcessPool()
        return list(self._pool.map(function, items, workers=workers))
