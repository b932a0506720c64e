"""Limits on what a file may make a program allocate beyond the size of the file: one place, for every reader.

Memory that grows with the bytes of a file is not limited. Two things grow with a mere claim:

- a number of rows, features or labels, which may be far larger than the content. It may exceed the number of bytes of
  the content only up to `max_claim`;
- compressed content, which may be up to 1000 times as large as the file. It may exceed `max_growth` times the size of
  the file only up to `UNLIMITED_GROWTH` bytes.

The defaults cover all published data sets. `use_limits` raises them for a block of code, the data set `files` has them
as parameters, and the variables in `VARIABLES` set them for a whole process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from xmckit.errors import DataError, UsageError

UNLIMITED_GROWTH = 1 << 28
VARIABLES = {"max_claim": "XMCKIT_MAX_CLAIM", "max_growth": "XMCKIT_MAX_GROWTH"}


class Limits(NamedTuple):
    max_claim: int = 10_000_000
    max_growth: int = 100


_in_use: ContextVar[Limits | None] = ContextVar("limits", default=None)


def current_limits() -> Limits:
    """Return the limits of the surrounding `use_limits`, or those of the environment, or the defaults."""
    limits = _in_use.get()
    if limits is None:
        set_ = {name: os.environ[variable] for name, variable in VARIABLES.items() if os.environ.get(variable)}
        if wrong := [name for name, text in set_.items() if not (text.isascii() and text.isdigit() and int(text))]:
            name = wrong[0]
            raise UsageError(f"{VARIABLES[name]} must be a whole number above 0, not {set_[name]!r}")
        limits = Limits(**{name: int(text) for name, text in set_.items()})
    return limits


@contextlib.contextmanager
def use_limits(*, max_claim: int | None = None, max_growth: int | None = None) -> Iterator[None]:
    """Read files with other limits during the block; None keeps a limit."""
    changes = {"max_claim": max_claim, "max_growth": max_growth}
    limits = current_limits()._replace(**{name: limit for name, limit in changes.items() if limit is not None})
    token = _in_use.set(limits)
    try:
        yield
    finally:
        _in_use.reset(token)


def check_claim(path: Path, what: str, claimed: int, size: int) -> None:
    """Raise DataError if a content of `size` bytes claims more rows, features or labels (`what`) than it may."""
    limit = current_limits().max_claim
    if claimed > max(limit, size):
        raise DataError(
            f"the file claims {claimed:,} {what}, but holds only {size:,} bytes. More than {limit:,} are taken for a "
            f"mistake unless the file is as large. If the number is right, {_how_to_raise('max_claim', claimed)}",
            path=path,
        )


def largest_content(path: Path) -> int:
    """Return how many bytes the content of a compressed file may have."""
    return max(UNLIMITED_GROWTH, current_limits().max_growth * path.stat().st_size)


def check_growth(path: Path, size: int) -> None:
    """Raise DataError if a compressed file has at least `size` bytes of content, and these are too many."""
    if size > largest_content(path):
        on_disk = path.stat().st_size
        raise DataError(
            f"the compressed file has {on_disk:,} bytes, but its content has {size:,} or more, which is over "
            f"{current_limits().max_growth} times as much. If the file is right, "
            f"{_how_to_raise('max_growth', size // max(on_disk, 1) + 1)}",
            path=path,
        )


def _how_to_raise(name: str, limit: int) -> str:
    return (
        f"raise the limit: {name} = {limit} in [data] of the recipe, --param {name}={limit} of `xmckit data`, or the "
        f"environment variable {VARIABLES[name]}={limit} for all commands"
    )
