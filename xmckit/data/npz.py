"""The reader `npz`: folders of `X.trn.npz`, `Y.trn.npz`, `X.tst.npz`, `Y.tst.npz` from `scipy.sparse.save_npz`.

This format can hold every part of a data set. All further files are optional; PART is `trn` or `tst`:

- `X.NAME.PART.npz` (sparse) or `X.NAME.PART.npy` (dense): further feature blocks beside the one named X, which may
  itself be `X.PART.npy`;
- `labels.txt`: label names; `label_features.npz` or `.npy`: features of each label;
- `texts.PART.txt`, `rows.PART.txt`: the text and the name of each row, one per line (`.jsonl`: JSON strings);
- `groups.PART.npz` (rows × groups) with `group_labels.PART.npz` (groups × labels) and `group_names.PART.txt`;
- `weights.PART.npz` with the pattern of Y, and `filter.PART.npz`: pairs left out of scoring;
- `info.json`: name, propensity and facts about the data.

Text files may be compressed (`.gz`). `features.txt` is ignored. Nothing is unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.arrays import read_matrix, read_sparse, write_dense, write_sparse
from xmckit.data.model import ONLY_BLOCK, Dataset, Features, Matrix, Split
from xmckit.data.saved import join_parts, split_parts
from xmckit.errors import DataError, UsageError

PARTS = ("trn", "tst")
NEEDED = tuple(f"Y.{part}.npz" for part in PARTS)
# The names of the files with each part of a split: of strings, and of matrices, which have the name of the part.
_STRINGS = {"texts": "texts", "names": "rows", "group_names": "group_names"}
_MATRICES = ("groups", "group_labels", "weights", "filter")
_LABEL_FEATURES = ("label_features.npy", "label_features.npz")
_BLOCK = re.compile(r"X(?:\.(.+))?\.(trn|tst)\.(?:npz|npy)")


class NpzFolder(reading.FileReader):
    form = "a folder of npz files"
    looks_for = "X.trn.npz, Y.trn.npz, X.tst.npz and Y.tst.npz"

    def layouts(self, path: Path) -> Sequence[Sequence[Path]]:
        needed = [path / name for name in NEEDED]
        return [needed] if all(file.is_file() for file in needed) else []

    def files(self, path: Path) -> Sequence[Path]:
        needed = self.layout(path)
        strings = [f"{stem}.{part}" for stem in _STRINGS.values() for part in PARTS]
        matrices = [f"{name}.{part}.npz" for name in _MATRICES for part in PARTS]
        blocks = [name for name in reading.file_names(path) if _BLOCK.fullmatch(name)]
        candidates = [
            *needed,
            *(path / name for name in (*blocks, *matrices, *_LABEL_FEATURES, "info.json")),
            *(reading.strings_file(path, stem) for stem in (*strings, "labels")),
        ]
        return [file for file in candidates if file is not None and file.is_file()]

    def read(self, path: Path, *, context: Context) -> Dataset:
        files = self.files(path)
        with context.progress(f"reading {path.name}", total=len(files)) as bar:
            train, test = (_read_split(path, part) for part in PARTS)
            bar.advance(len(files))
        info = _read_info(path / "info.json")
        label_features = next((path / name for name in _LABEL_FEATURES if (path / name).is_file()), None)
        dataset = Dataset(
            name=info.get("name", path.resolve().name),
            train=train,
            test=test,
            label_names=reading.optional_strings(path, ["labels"], count=train.labels, what="label"),
            label_features=None if label_features is None else read_matrix(label_features),
            propensity=info.get("propensity"),
            info=info.get("info", {"format": "npz"}),
        )
        return reading.check_dataset(dataset, *(path / name for name in NEEDED))

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write every part of the data set, so that `read` restores it."""
        for part, split in zip(PARTS, (dataset.train, dataset.test), strict=True):
            _write_split(folder, part, split)
        if dataset.label_names is not None:
            reading.write_strings(folder, "labels", dataset.label_names)
        if dataset.label_features is not None:
            _write_matrix(folder, "label_features", dataset.label_features)
        facts = {"name": dataset.name, "propensity": dataset.propensity, "info": dict(dataset.info)}
        store.write_json(folder / "info.json", facts)


def _read_split(folder: Path, part: str) -> Split:
    labels_file = folder / f"Y.{part}.npz"
    Y = reading.check_ones(read_sparse(labels_file), labels_file)
    files = {name: folder / f"{name}.{part}.npz" for name in _MATRICES}
    parts: dict[str, Any] = {name: read_sparse(file) for name, file in files.items() if file.is_file()}
    if ("groups" in parts) != ("group_labels" in parts):
        raise DataError(f"groups.{part}.npz and group_labels.{part}.npz need each other", path=folder)
    counts = {"texts": (Y.shape[0], "row"), "names": (Y.shape[0], "row")}
    if "groups" in parts:
        counts["group_names"] = (parts["groups"].shape[1], "group")
    for name, (count, what) in counts.items():
        parts[name] = reading.optional_strings(folder, [f"{_STRINGS[name]}.{part}"], count=count, what=what)
    X = _read_blocks(folder, part, Y.shape[0])
    if X is None and parts["texts"] is None:
        raise DataError(f"there is neither X.{part}.npz nor texts.{part}.txt", path=folder)
    return join_parts(X, Y, parts)


def _read_blocks(folder: Path, part: str, rows: int) -> Features | None:
    blocks: dict[str, Matrix] = {}
    for name in reading.file_names(folder):
        match = _BLOCK.fullmatch(name)
        if not match or match[2] != part:
            continue
        block, path = match[1] or ONLY_BLOCK, folder / name
        if block in blocks:
            raise DataError(f"the block {block} exists twice, as .npz and as .npy", path=path)
        blocks[block] = read_matrix(path)
        if blocks[block].shape[0] != rows:
            raise DataError(f"{blocks[block].shape[0]} rows, but Y.{part}.npz has {rows}", path=path)
    return blocks[ONLY_BLOCK] if blocks.keys() == {ONLY_BLOCK} else blocks or None


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number that JSON knows")


def _read_info(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(reading.read_bytes(path).tobytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", path=path) from None
    facts = facts if isinstance(facts, Mapping) else {}
    propensity = facts.get("propensity")
    if isinstance(propensity, list) and len(propensity) == 2 and all(isinstance(x, (int, float)) for x in propensity):
        propensity = (float(propensity[0]), float(propensity[1]))
    elif propensity is not None and not isinstance(propensity, str):
        raise DataError(f"propensity must be a name or two numbers, found {propensity!r}", path=path)
    if not isinstance(facts.get("name"), str) or not isinstance(facts.get("info"), Mapping):
        raise DataError("expected an object with name, propensity and info", path=path)
    return {"name": facts["name"], "propensity": propensity, "info": facts["info"]}


def _write_split(folder: Path, part: str, split: Split) -> None:
    write_sparse(folder / f"Y.{part}.npz", split.Y)
    for name, block in split.blocks.items():
        _write_matrix(folder, _block_stem(name, part), block)
    for name, content in split_parts(split).items():
        if name in _STRINGS:
            reading.write_strings(folder, f"{_STRINGS[name]}.{part}", content)
        else:
            write_sparse(folder / f"{name}.{part}.npz", content)


def _block_stem(name: str, part: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f"a feature block named {name!r} cannot be a file name: use letters, digits, _ and -")
    return f"X.{part}" if name == ONLY_BLOCK else f"X.{name}.{part}"


def _write_matrix(folder: Path, stem: str, matrix: Matrix) -> None:
    if isinstance(matrix, np.ndarray):
        write_dense(folder / f"{stem}.npy", matrix)
    else:
        write_sparse(folder / f"{stem}.npz", matrix)
