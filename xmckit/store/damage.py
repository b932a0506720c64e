"""Errors about stored files with wrong content."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from xmckit.errors import StorageError

# The records of a stage's folder and of a run folder; `xmckit.runs.layout` names all other files of a run.
STAGE_RECORD, RUN_RECORD, STAGES = "stage.json", "manifest.json", "stages"


def damaged(path: Path, why: str) -> StorageError:
    """Return the error for a stored file with wrong content; it tells the user how to get a sound one."""
    return StorageError(f"{path}: this file is damaged or not xmckit's ({why}). {_remedy(Path(os.path.abspath(path)))}")


def is_run_folder(folder: Path) -> bool:
    return (folder / RUN_RECORD).is_file() and (folder / STAGES).is_dir()


def _remedy(path: Path) -> str:
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
def explain_damage(path: Path, why: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise StorageError if the block does not find the file, or raises one of `errors` because of its content."""
    try:
        yield
    except FileNotFoundError:
        raise StorageError(f"{path}: no such file") from None
    except errors as error:
        raise damaged(path, f"{why}: {error}") from None
