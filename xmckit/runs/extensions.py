"""A model with labels that it was not trained on: a folder that refers to a run and leaves it unchanged.

    extension.json       the run, and the names of the new labels
    heads/<n>/           the run's heads, each with the new labels
    index/<name>/        its indexes, likewise

`xmckit.load`, and with it `xmckit predict`, takes such a folder in the place of a run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from xmckit import store
from xmckit.runs import layout
from xmckit.runs.records import SectionName
from xmckit.runs.run import Run, open_linked

FORMAT = 1


class _ExtensionFile(TypedDict):
    """The content of extension.json."""

    format: Literal[1]
    run: str
    identity: str
    labels: list[str]
    heads: list[int]
    indexes: list[SectionName]


@dataclass(frozen=True)
class Extension:
    """The content of such a folder: the run, the new labels, and which of its heads and indexes have them."""

    path: Path
    run: Run
    labels: Sequence[str]
    heads: Sequence[int]
    indexes: Sequence[str]

    def head_folder(self, position: int) -> Path:
        return self.path / "heads" / str(position)

    def index_folder(self, name: str) -> Path:
        return self.path / "index" / name


def is_extension(folder: Path) -> bool:
    return (folder / layout.EXTENSION).is_file()


def read_extension(folder: Path) -> Extension:
    """Read and check the extension in `folder`."""
    folder = Path(folder).resolve()
    advice = "Make the folder again with `xmckit labels add`."
    about = store.read_json(folder / layout.EXTENSION, _ExtensionFile, advice=advice)
    run = open_linked(folder, "extends", about["run"], about["identity"])
    trained = len(run.head_stages)
    if len(set(about["heads"])) < len(about["heads"]) or not set(about["heads"]) <= set(range(trained)):
        raise store.damaged(folder / layout.EXTENSION, f"heads: expected numbers of the run's {trained} heads", advice)
    return Extension(folder, run, about["labels"], about["heads"], about["indexes"])


def write_extension(
    folder: Path, run: Run, labels: Sequence[str], heads: dict[int, Any], indexes: dict[str, Any]
) -> Extension:
    """Write a new folder with these heads (by position) and indexes (by name); it appears complete or not at all."""
    store.check_new_folder(folder)
    folder = folder.resolve()
    extension = Extension(folder, run, list(labels), sorted(heads), sorted(indexes))
    about = {
        "format": FORMAT,
        "run": run.path_from(folder),
        "identity": run.manifest.identity,
        "labels": extension.labels,
        "heads": extension.heads,
        "indexes": extension.indexes,
    }
    with store.atomic_folder(folder, exclusive=True) as fresh:
        for part, components in (("heads", heads), ("index", indexes)):
            for name, component in components.items():
                (fresh / part / str(name)).mkdir(parents=True)
                component.save(fresh / part / str(name))
                store.seal(fresh / part / str(name), {"name": f"{part}/{name}"})
        store.write_json(fresh / layout.EXTENSION, about)
    return extension
