"""Save and load data sets and splits in the folder of a stage, bit for bit. Public."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.data.model import Dataset, Features, Groups, Split

_VERSION = 1
_OWN_PARTS = ("texts", "names", "weights", "filter")
STRINGS = ("texts", "names", "group_names")


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
    facts = _facts(folder / "dataset.json", "name", "propensity", "info", "label_names", "label_features")
    propensity = facts["propensity"]
    return Dataset(
        name=facts["name"],
        train=load_split(folder / "train"),
        test=load_split(folder / "test"),
        label_names=store.read_strings(folder / "label_names.npz") if facts["label_names"] else None,
        label_features=store.read_matrix(folder / "label_features.npz") if facts["label_features"] else None,
        propensity=(propensity[0], propensity[1]) if isinstance(propensity, list) else propensity,
        info=facts["info"],
    )


def load_label_names(folder: Path) -> list[str]:
    """Load the label names of a saved data set; numbers if labels have no names."""
    facts = _facts(folder / "dataset.json", "label_names")
    if facts["label_names"]:
        return store.read_strings(folder / "label_names.npz")
    return [str(label) for label in range(store.read_csr(folder / "test" / "Y.npz").shape[1])]


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
    facts = _facts(folder / "split.json", "one_matrix", "blocks", "strings", "matrices")
    blocks = {name: store.read_matrix(folder / f"X{number}.npz") for number, name in enumerate(facts["blocks"])}
    X: Any = next(iter(blocks.values())) if facts["one_matrix"] else blocks or None
    parts: dict[str, Any] = {name: store.read_strings(folder / f"{name}.npz") for name in facts["strings"]}
    parts |= {name: store.read_csr(folder / f"{name}.npz") for name in facts["matrices"]}
    return join_parts(X, store.read_csr(folder / "Y.npz"), parts)


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
    if not store.read_json(folder / "split.json").get("one_matrix"):
        return None
    path = folder / "X0.npz"
    try:
        with zipfile.ZipFile(path) as archive:
            if "dense.npy" not in archive.namelist():
                return FeatureRows(int(store.read_arrays(path, "shape")["shape"][1]), dense=False)
            with archive.open("dense.npy") as stream:
                np.lib.format.read_magic(stream)
                shape = np.lib.format.read_array_header_1_0(stream)[0]
                return FeatureRows(int(shape[1]), dense=True)
    except (OSError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise store.damaged(path, str(error)) from None


def _facts(path: Path, *keys: str) -> dict[str, Any]:
    facts = store.read_json(path)
    if not isinstance(facts, dict) or facts.get("version") != _VERSION:
        raise store.damaged(path, f"expected version {_VERSION}")
    if missing := [key for key in keys if key not in facts]:
        raise store.damaged(path, f"without {', '.join(missing)}")
    return facts
