"""Errors that a user can act on, each with its exit code, and helpers for the texts of messages.

Exit codes: 0 ok, 1 bug, 2 usage or recipe, 3 data or storage, 4 plugin, 5 verification failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


# No space, no permission, read-only, quota, file too large, too many open files, broken device.
_MACHINE_ERRORS = {
    errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.EIO
}  # fmt: skip


class XmckitError(Exception):
    """Base of the errors that an input or the environment causes. Any other exception is a bug."""

    exit_code = 1


class UsageError(XmckitError):
    """A command, an option or an API call is wrong."""

    exit_code = 2


class RecipeError(XmckitError):
    """A recipe is wrong; `mistakes` lists everything that is wrong with it."""

    exit_code = 2

    def __init__(self, mistakes: str | Sequence[str]):
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__("\n".join(self.mistakes))


class DataError(XmckitError):
    """Data is damaged, inconsistent or missing; the message starts with the path, line or row."""

    exit_code = 3

    def __init__(
        self, message: str, *, path: str | Path | None = None, line: int | None = None, row: int | None = None
    ):
        self.path, self.line, self.row = path, line, row
        parts = {"": path, "line ": line, "row ": row}
        where = ", ".join(f"{name}{value}" for name, value in parts.items() if value is not None)
        super().__init__(f"{where}: {message}" if where else message)


class StorageError(XmckitError):
    """A file could not be written, or a stored file is damaged or has another version."""

    exit_code = 3


class PluginError(XmckitError):
    """A plugin is missing, fails, or breaks its contract. `component` is the (kind, name) at fault."""

    exit_code = 4
    component: tuple[str, str] | None = None


class VerificationError(XmckitError):
    """The verification found a false statement."""

    exit_code = 5


@contextlib.contextmanager
def attribute_errors_to(kind: str, use: str) -> Iterator[None]:
    """Mark errors of the `with` block as caused by the component `use`, unless a component that it uses caused them."""
    try:
        yield
    except Exception as error:
        if component_at_fault(error) is None:
            with contextlib.suppress(AttributeError):  # some exception classes do not accept attributes
                error.component = (kind, use)  # type: ignore[attr-defined]
        raise


def component_at_fault(error: Exception) -> tuple[str, str] | None:
    """Return the (kind, name) that `attribute_errors_to` stored on the error, or None."""
    return getattr(error, "component", None)


def is_machine_error(error: BaseException) -> bool:
    """Return whether the error is about this computer's disk or memory, and not about a program."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _MACHINE_ERRORS)


@contextlib.contextmanager
def name_file_in_errors(path: str | Path) -> Iterator[None]:
    """Give errors of this computer in the `with` block, such as a full disk, the name of the file if they lack one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and is_machine_error(error):
            error.filename = str(path)
        raise


def one_line(error: BaseException) -> str:
    """Return the error's class and message in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def shorten(text: str, longest: int) -> str:
    """Cut a text to at most `longest` characters; the last one is then an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural unless it is 1; `plural` is the noun with an s by default."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` if a known name is close to `name`, otherwise the empty string."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def printable(text: str, *, keep: str = "\n") -> str:
    """Escape the control characters of a text, except those in `keep`, so that it cannot steer a terminal."""
    return "".join(
        mark if mark.isprintable() or mark in keep else mark.encode("unicode_escape").decode() for mark in text
    )


# Controls from DEL on, marks without width or for the direction of text, ends of lines, lone surrogates, tags.
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable_json(text: str) -> str:
    """Do the same for a text in JSON, which has escaped the controls below DEL; it still means the same."""
    import json

    return _HIDDEN.sub(lambda match: json.dumps(match.group())[1:-1], text)
