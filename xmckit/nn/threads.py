"""Threads over fixed pieces of work, so that the bits of a result do not depend on the number of threads.

A BLAS library that spreads a matrix product over its own threads sums in an order that depends on their number. Here
torch uses one thread inside each piece, the pieces do not depend on the number of threads, and their results are
combined in the order of the pieces.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_lock = threading.Lock()
_users = 0
_threads_outside = 1


class Threads:
    """Map functions over pieces, on the calling thread and those of a pool, or without a pool on the caller alone."""

    def __init__(self, pool: ThreadPoolExecutor | None = None, workers: int = 1):
        self._pool, self._workers = pool, workers

    def map(self, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
        if self._pool is None or len(pieces) < 2:
            return [function(piece) for piece in pieces]
        results: dict[int, Result] = {}
        waiting = iter(range(len(pieces)))

        def work() -> None:
            for nth in waiting:
                results[nth] = function(pieces[nth])

        others = [self._pool.submit(work) for _ in range(min(self._workers, len(pieces)) - 1)]
        token = _current.set(Threads())
        try:
            work()
        finally:
            _current.reset(token)
            # A thread that has not started yet has nothing left to do.
            started = [other for other in others if not other.cancel()]
            wait(started)
        for other in started:
            other.result()
        return [results[nth] for nth in range(len(pieces))]


_current: ContextVar[Threads] = ContextVar("threads", default=Threads())  # noqa: B039  # it has no state


def current_threads() -> Threads:
    """Return the threads of the innermost `threads` block; inside a piece, one that runs on the caller alone."""
    return _current.get()


@contextlib.contextmanager
def use_threads(workers: int) -> Iterator[Threads]:
    """Provide threads inside a `with` block; torch itself uses one thread there."""
    with _use_one_torch_thread():
        if workers <= 1:
            yield Threads()
        else:
            # MKL has a number of threads per thread. Without the initializer, the first product of a new pool thread
            # would still be spread.
            with ThreadPoolExecutor(workers - 1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                token = _current.set(Threads(pool, workers))
                try:
                    yield _current.get()
                finally:
                    _current.reset(token)


@contextlib.contextmanager
def _use_one_torch_thread() -> Iterator[None]:
    """Make torch use one thread. Its count belongs to the process: the last block to end restores it."""
    global _users, _threads_outside
    with _lock:
        if _users == 0:
            _threads_outside = torch.get_num_threads()
        torch.set_num_threads(1)  # MKL's number belongs to the thread, so every block has to set it
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads_outside)


def stripes(length: int, *, least: int = 1024, most: int = 16) -> list[slice]:
    """Cut `range(length)` into at most `most` contiguous parts of at least `least`, independent of the threads."""
    return slices(0, length, max(least, -(-length // most)))


def slices(start: int, stop: int, size: int) -> list[slice]:
    """Cut `range(start, stop)` into slices of `size`; the last one may be shorter."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]
