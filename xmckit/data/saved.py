"""Save and load data sets and splits in the folder of a stage, bit for bit. Public."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, FiniteFloat
from scipy.sparse import csr_matrix
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from xmckit import store
from xmckit.data.model import Dataset, Features, Groups, Split
from xmckit.errors import DataError
from xmckit.store.checksums import open_checked
from xmckit.store.damage import explain_damage
from xmckit.store.matrices import LARGEST_SIZE
from xmckit.store.npy import DAMAGE, read_header

_VERSION = 1
_OWN_PARTS = ("texts", "names", "weights", "filter")
STRINGS = ("texts", "names", "group_names")


class _DatasetFile(TypedDict):
    """The content of dataset.json."""

    version: Literal[1]
    name: str
    propensity: str | Annotated[list[FiniteFloat], Field(min_length=2, max_length=2)] | None
    info: dict[str, Any]
    label_names: bool
    label_features: bool


class _SplitFile(TypedDict):
    """The content of split.json: the names of feature blocks, and the optional parts that the split has."""

    version: Literal[1]
    one_matrix: bool
    blocks: list[str]
    strings: list[Literal["texts", "names", "group_names"]]
    matrices: list[Literal["weights", "filter", "groups", "group_labels"]]


def _dataset_facts(folder: Path) -> _DatasetFile:
    return store.read_json(folder / "dataset.json", _DatasetFile)


def _split_facts(folder: Path) -> _SplitFile:
    return store.read_json(folder / "split.json", _SplitFile, _check_split_facts)


def _check_split_facts(facts: _SplitFile) -> None:
    if facts["one_matrix"] and len(facts["blocks"]) != 1:
        raise ValueError(f"one_matrix is true, and the blocks are {facts['blocks']}")
    if len(set(facts["blocks"])) < len(facts["blocks"]):
        raise ValueError(f"two of the blocks {facts['blocks']} have the same name")
    if ("groups" in facts["matrices"]) != ("group_labels" in facts["matrices"]):
        raise ValueError(f"expected groups with group_labels, found {facts['matrices']}")


def save_dataset(dataset: Dataset, folder: Path) -> None:
    """Write the data set into the existing, empty `folder`."""
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        (folder / part).mkdir()
        save_split(split, folder / part)
    if dataset.label_names is not None:
        store.write_strings(folder / "label_names.npz", dataset.label_names)
    if dataset.label_features is not None:
        store.write_matrix(folder / "label_features.npz", dataset.label_features)
    facts = {
        "version": _VERSION,
        "name": dataset.name,
        "propensity": dataset.propensity,
        "info": dict(dataset.info),
        "label_names": dataset.label_names is not None,
        "label_features": dataset.label_features is not None,
    }
    store.write_json(folder / "dataset.json", facts)


def load_dataset(folder: Path) -> Dataset:
    """Load the data set that `save_dataset` wrote into `folder`."""
    facts = _dataset_facts(folder)
    propensity = facts["propensity"]
    dataset = Dataset(
        name=facts["name"],
        train=load_split(folder / "train"),
        test=load_split(folder / "test"),
        label_names=store.read_strings(folder / "label_names.npz") if facts["label_names"] else None,
        label_features=store.read_matrix(folder / "label_features.npz") if facts["label_features"] else None,
        propensity=(propensity[0], propensity[1]) if isinstance(propensity, list) else propensity,
        info=facts["info"],
    )
    return _fitting(dataset, folder / "dataset.json")


def load_label_names(folder: Path) -> list[str]:
    """Load the label names of a saved data set; numbers if labels have no names."""
    files = [folder / part / "Y.npz" for part in ("train", "test")]
    labels = int(store.read_csr(files[1]).shape[1])
    if not _dataset_facts(folder)["label_names"]:
        store.check_claim(files[1], "labels", labels, sum(file.stat().st_size for file in files if file.is_file()))
        return [str(label) for label in range(labels)]
    names = store.read_strings(folder / "label_names.npz")
    if len(names) != labels:
        raise store.damaged(folder / "label_names.npz", f"{len(names)} names of {labels} labels")
    return names


def save_split(split: Split, folder: Path) -> None:
    """Write the split into the existing, empty `folder`."""
    store.write_csr(folder / "Y.npz", split.Y)
    blocks = split.blocks
    for number, block in enumerate(blocks.values()):
        store.write_matrix(folder / f"X{number}.npz", block)
    parts = split_parts(split)
    for name, part in parts.items():
        write: Callable[[Path, Any], None] = store.write_strings if name in STRINGS else store.write_csr
        write(folder / f"{name}.npz", part)
    facts = {
        "version": _VERSION,
        "one_matrix": split.X is not None and not isinstance(split.X, Mapping),
        "blocks": list(blocks),
        "strings": [name for name in parts if name in STRINGS],
        "matrices": [name for name in parts if name not in STRINGS],
    }
    store.write_json(folder / "split.json", facts)


def load_split(folder: Path) -> Split:
    """Load the split that `save_split` wrote into `folder`."""
    facts = _split_facts(folder)
    blocks = {name: store.read_matrix(folder / f"X{number}.npz") for number, name in enumerate(facts["blocks"])}
    X: Any = next(iter(blocks.values())) if facts["one_matrix"] else blocks or None
    parts: dict[str, Any] = {name: store.read_strings(folder / f"{name}.npz") for name in facts["strings"]}
    parts |= {name: store.read_csr(folder / f"{name}.npz") for name in facts["matrices"]}
    return _fitting(join_parts(X, store.read_csr(folder / "Y.npz"), parts), folder / "split.json")


_Part = TypeVar("_Part", Dataset, Split)


def _fitting(part: _Part, path: Path) -> _Part:
    """Return a data set or a split whose parts fit together; otherwise StorageError names `path`, which lists them."""
    try:
        part.check_sizes()
    except DataError as error:
        raise store.damaged(path, str(error)) from None
    return part


def split_parts(split: Split) -> dict[str, Any]:
    """Return the optional parts that the split has, by name; those in `STRINGS` are strings, the others matrices."""
    parts = {name: getattr(split, name) for name in _OWN_PARTS}
    if split.groups is not None:
        groups = split.groups
        parts |= {"group_names": groups.names, "groups": groups.membership, "group_labels": groups.labels}
    return {name: part for name, part in parts.items() if part is not None}


def join_parts(X: Features | None, Y: csr_matrix, parts: Mapping[str, Any]) -> Split:
    """Return the split with these parts, named as `split_parts` names them."""
    groups = None
    if "groups" in parts:
        groups = Groups(parts["groups"], parts["group_labels"], parts.get("group_names"))
    return Split(X=X, Y=Y, groups=groups, **{name: parts.get(name) for name in _OWN_PARTS})


@dataclass(frozen=True)
class FeatureRows:
    """The format of saved feature rows: the number of columns, and whether they are dense."""

    width: int
    dense: bool


def read_feature_rows(folder: Path) -> FeatureRows | None:
    """Read the format of a split's features, not the features; None if it has texts or several blocks."""
    if not _split_facts(folder)["one_matrix"]:
        return None
    path = folder / "X0.npz"
    with explain_damage(path, "not a matrix", *DAMAGE), open_checked(path) as file, zipfile.ZipFile(file) as archive:
        dense = "dense.npy" in archive.namelist()
        if dense:
            with archive.open("dense.npy") as stream:
                shape = list(read_header(stream)[0])
    if not dense:
        shape = store.read_array(path, "shape", "i", (2,), low=0, high=LARGEST_SIZE).tolist()
    if len(shape) != 2:
        raise store.damaged(path, f"expected rows and columns, found {shape}")
    return FeatureRows(int(shape[1]), dense=dense)
