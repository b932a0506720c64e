"""Find runs by folder or by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from xmckit.errors import StorageError, UsageError, XmckitError, nearest
from xmckit.runs import layout
from xmckit.runs.run import Run, is_run
from xmckit.runs.sequence import read_number

DEFAULT_ROOT = Path("runs")


def find_runs(root: Path, skip: Callable[[Path, XmckitError], None] = lambda path, error: None) -> list[Run]:
    """Return every run below `root`, oldest first; `skip` gets each folder of a run that cannot be read, and why."""
    runs = []
    for folder in find_run_folders((), root):
        try:
            runs.append(Run.open(folder))
        except (StorageError, UsageError) as error:
            skip(folder, error)
    # Not by the clock, which may go back. Older runs have no number: the sort keeps them in the order of their names.
    return sorted(runs, key=lambda run: run.manifest.sequence or 0)


def find_run_folders(names: Sequence[str], root: Path) -> list[Path]:
    """Return the folders of these runs, also of damaged ones; without names all below `root`, by their names."""
    below = sorted(root.glob("[!.]*/[!.]*"), key=lambda path: path.name)
    folders = [path for path in below if _was_run(path)]
    if not names:
        return folders
    by_name = {folder.name: folder for folder in folders}
    return [
        Path(name).resolve() if _was_run(Path(name)) else by_name.get(name) or find_run(name, root).path
        for name in names
    ]


def _was_run(folder: Path) -> bool:
    """Return whether the folder is a run, or one whose manifest is lost."""
    return is_run(folder) or os.path.lexists(folder / layout.RESOLVED)


def find_run(name: str | os.PathLike[str], root: Path) -> Run:
    """Return a run by its folder, by its folder's name below `root`, or the newest finished run of a recipe."""
    path = Path(name)
    for file, what in ((layout.EXTENSION, "a run with added labels"), (layout.ENSEMBLE, "several runs combined")):
        if (path / file).is_file():
            raise UsageError(f"{path} is {what}, not a run: name a run that its {file} lists")
    if path.is_dir() and (is_run(path) or path.is_absolute()):
        return Run.open(path)
    unreadable: dict[Path, XmckitError] = {}
    runs = find_runs(root, unreadable.__setitem__)
    of_recipe = [run for run in runs if run.name == str(name)]
    matches = [run for run in runs if run.path.name == str(name)] or [run for run in of_recipe if run.is_done]
    for folder, error in unreadable.items():
        # It may be the newest run of the recipe, and nobody can tell.
        if folder.name == str(name) or (folder.parent.name == str(name) and _may_be_newer(folder, matches)):
            others = f" The newest run of '{name}' that can be read is {matches[-1].path}." if matches else ""
            raise StorageError(f"{error}{others}") from None
    if matches:
        return matches[-1]
    if of_recipe:
        newest = of_recipe[-1]
        raise UsageError(
            f"no run of '{name}' below {root} is done; the newest is {newest.status}: {newest.path} "
            f"(continue with: xmckit run --resume {newest.path})"
        )
    known = {run.name for run in runs} | {run.path.name for run in runs}
    raise UsageError(f"no run '{name}' below {root}{nearest(str(name), known)}; `xmckit runs ls` lists the runs")


def _may_be_newer(damaged: Path, readable: Sequence[Run]) -> bool:
    """Return whether a damaged run may be newer than the last of these, by its number or, without one, by its name."""
    if not readable:
        return True
    newest, number = readable[-1], read_number(damaged / layout.MANIFEST)
    if number and newest.manifest.sequence:
        return number > newest.manifest.sequence
    return damaged.name > newest.path.name
