"""Errors a person can act on, each with the exit code of the command line.

Exit codes: 0 ok, 1 bug, 2 usage or recipe, 3 data or storage, 4 plugin, 5 verification failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


# Errors of the machine, not of xmckit: no space, no permission, read-only, quota, too large, too many open files.
_STORAGE = {errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.EIO}


class XmckitError(Exception):
    """Base of every error that is the fault of an input, not of xmckit."""

    exit_code = 1


class UsageError(XmckitError):
    """A command, an option or an API call that cannot work as it was given."""

    exit_code = 2


class RecipeError(XmckitError):
    """All mistakes of a recipe at once."""

    exit_code = 2

    def __init__(self, mistakes: str | Sequence[str]):
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class DataError(XmckitError):
    """Data that is damaged, inconsistent or missing; says where."""

    exit_code = 3

    def __init__(
        self, message: str, *, path: str | Path | None = None, line: int | None = None, row: int | None = None
    ):
        self.path, self.line, self.row = path, line, row
        where = str(path) if path is not None else ""
        if line is not None:
            where += f", line {line}" if where else f"line {line}"
        if row is not None:
            where += f", row {row}" if where else f"row {row}"
        super().__init__(f"{where}: {message}" if where else message)


class StorageError(XmckitError):
    """A file could not be written or a stored file cannot be trusted: full disk, no permission, damage, version."""

    exit_code = 3


class PluginError(XmckitError):
    """A plugin is missing, broken or does not keep its contract. `component` is (kind, name) of what is at fault."""

    exit_code = 4
    component: tuple[str, str] | None = None


@contextlib.contextmanager
def blaming(kind: str, use: str) -> Iterator[None]:
    """An error of the body is about this component, unless it is known to be about one that this one uses."""
    try:
        yield
    except Exception as error:
        if component_of(error) is None:
            with contextlib.suppress(AttributeError):  # not every error takes an attribute
                error.component = (kind, use)  # type: ignore[attr-defined]
        raise


def component_of(error: Exception) -> tuple[str, str] | None:
    """The (kind, name) that `blaming` put to the account of."""
    return getattr(error, "component", None)


def is_of_the_machine(error: BaseException) -> bool:
    """Whether it is about this computer's disk or memory, and no fault of a program."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _STORAGE)


class VerificationError(XmckitError):
    """Something that was to be proved is not true."""

    exit_code = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when one of the known names is close to `name`, otherwise the empty string."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def printable(text: str, *, keep: str = "\n") -> str:
    """`text` in which nothing can steer a terminal: control characters, but for those to keep, become their escapes."""
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode() for mark in text
    )
