"""The option `--plot` and the search for verified runs, which the commands of this plugin share."""

from __future__ import annotations

from pathlib import Path

import click

PLOT = click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help="Draw a picture."
)


def find_verified_folders(run: str, root: Path) -> list[Path]:
    """Return the folders with a verdicts.json and its proofs, from the run's verify stage and from `xmckit verify`.

    `run` is such a folder itself, a run folder, its name, or the name of a recipe for its newest verified run.
    """
    from xmckit import StorageError
    from xmckit.runs import layout
    from xmckit.runs.extensions import is_extension

    below = sorted(root.glob("*/*"), reverse=True)
    of_recipe = [path for path in below if path.parent.name == run and not is_extension(path)]
    for folder in [Path(run), *([path for path in below if path.name == run] or of_recipe)]:
        if (folder / layout.ASSIGNMENTS).is_file():
            return [folder]
        verdicts = [
            path
            for part in (layout.STAGES, layout.VERIFY)
            for path in sorted(folder.glob(f"{part}/*/{layout.VERDICTS}"))
        ]
        if complete := [path.parent for path in verdicts if not path.parent.name.startswith(".")]:
            return complete
    raise StorageError(
        f"{run}: no verdicts here or below {root}. `xmckit verify RUN` makes them, and so does [verify] in a recipe."
    )
