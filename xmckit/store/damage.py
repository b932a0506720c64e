"""Errors about stored files with wrong content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from xmckit.errors import StorageError

# The records of a stage's folder and of a run folder; `xmckit.runs.layout` names all other files of a run.
STAGE_RECORD, RUN_RECORD, STAGES = "stage.json", "manifest.json", "stages"


def damaged(path: Path, why: str, advice: str = "") -> StorageError:
    """Return the error for a stored file with wrong content; `advice` says what to do, by default how to repair it."""
    return StorageError(f"{path}: this file is damaged or not xmckit's ({why}). {advice or _remedy(path)}")


def is_run_folder(folder: Path) -> bool:
    return (folder / RUN_RECORD).is_file() and (folder / STAGES).is_dir()


def _remedy(path: Path) -> str:
    path = Path(os.path.abspath(path))
    run = next((folder for folder in path.parents if is_run_folder(folder)), None)
    if run is None:
        return (
            "Delete the folder and make it again; in a folder of runs, `xmckit runs check --repair` drops the stages "
            "that are damaged."
        )
    below = path.relative_to(run).parts
    what = f"the stage {below[1]}" if below[0] == STAGES and len(below) > 2 else "what is damaged"
    return (
        f"`xmckit runs check --repair {run}` drops {what}, or restores it from a sound copy; then "
        f"`xmckit run --resume {run}` makes what is missing again."
    )


@contextlib.contextmanager
def explain_damage(path: Path, why: str, *errors: type[Exception], advice: str = "") -> Iterator[None]:
    """Raise StorageError if the block cannot open the file, or raises one of `errors` because of its content."""
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file. {advice or _remedy(path)}") from None
    except OSError as error:
        # Some libraries report wrong content as an OSError too, without a number.
        reason = error.strerror or error
        raise StorageError(f"{path}: this file cannot be read: {reason}. {advice or _remedy(path)}") from None
    except errors as error:
        raise damaged(path, f"{why}: {error}", advice) from None
