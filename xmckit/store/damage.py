"""Errors about stored files with wrong content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from xmckit.errors import StorageError


def damaged(path: Path, why: str) -> StorageError:
    """Return the error for a stored file with wrong content; it tells the user to delete the folder."""
    return StorageError(
        f"{path}: this file is damaged or not xmckit's ({why}). Delete the folder and run again; "
        "for a run also empty the cache that it shares, with `xmckit runs clean`."
    )


@contextlib.contextmanager
def explain_damage(path: Path, why: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise StorageError if the block does not find the file, or raises one of `errors` because of its content."""
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except errors as error:
        raise damaged(path, f"{why}: {error}") from None
