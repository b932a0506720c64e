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
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.arrays import read_dense, read_sparse, write_dense, write_sparse
from xmckit.data.model import Dataset, Features, Groups, Matrix, Split
from xmckit.errors import DataError, UsageError
from xmckit.params import Configured

PARTS = ("trn", "tst")
NEEDED = tuple(f"Y.{part}.npz" for part in PARTS)
_BLOCK = re.compile(r"X(?:\.(.+))?\.(trn|tst)\.(?:npz|npy)")


class NpzFolder(Configured):
    looks_for = "X.trn.npz, Y.trn.npz, X.tst.npz and Y.tst.npz"

    def matches(self, path: Path) -> bool:
        return path.is_dir() and all((path / name).is_file() for name in NEEDED)

    def files(self, path: Path) -> Sequence[Path]:
        if not self.matches(path):
            raise DataError(f"not a folder of npz files: expected {self.looks_for}", path=path)
        strings = [f"{kind}.{part}" for kind in ("texts", "rows", "group_names") for part in PARTS]
        numbers = [f"{kind}.{part}.npz" for kind in _MATRICES for part in PARTS]
        blocks = [name for name in reading.file_names(path) if _BLOCK.fullmatch(name)]
        candidates = [
            *(path / name for name in (*blocks, *NEEDED, *numbers, "info.json")),
            *(path / f"label_features{suffix}" for suffix in (".npz", ".npy")),
            *(reading.strings_file(path, stem) for stem in (*strings, "labels")),
        ]
        return [file for file in candidates if file is not None and file.is_file()]

    def read(self, path: Path, *, context: Context) -> Dataset:
        files = self.files(path)
        with context.progress(f"reading {path.name}", total=len(files)) as bar:
            train, test = (_read_split(path, part) for part in PARTS)
            bar.advance(len(files))
        info = _read_info(path / "info.json")
        dataset = Dataset(
            name=info.get("name", path.resolve().name),
            train=train,
            test=test,
            label_names=reading.optional_strings(path, ["labels"], count=train.labels, what="label"),
            label_features=_matrix(path, "label_features"),
            propensity=info.get("propensity"),
            info=info.get("info", {"format": "npz"}),
        )
        return reading.validated(dataset, *(path / name for name in NEEDED))

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


_MATRICES = ("groups", "group_labels", "weights", "filter")


def _read_split(folder: Path, part: str) -> Split:
    labels_file = folder / f"Y.{part}.npz"
    Y = reading.check_ones(read_sparse(labels_file), labels_file)
    rows = Y.shape[0]
    texts = reading.optional_strings(folder, [f"texts.{part}"], count=rows, what="row")
    extra = {kind: _sparse(folder / f"{kind}.{part}.npz") for kind in _MATRICES}
    return Split(
        X=_read_blocks(folder, part, rows, texts),
        Y=Y,
        texts=texts,
        weights=extra["weights"],
        groups=_groups(folder, part, extra["groups"], extra["group_labels"]),
        filter=extra["filter"],
        names=reading.optional_strings(folder, [f"rows.{part}"], count=rows, what="row"),
    )


def _read_blocks(folder: Path, part: str, rows: int, texts: Sequence[str] | None) -> Features | None:
    blocks: dict[str, Matrix] = {}
    for name in reading.file_names(folder):
        match = _BLOCK.fullmatch(name)
        if not match or match[2] != part:
            continue
        block, path = match[1] or "X", folder / name
        if block in blocks:
            raise DataError(f"the block {block} exists twice, as .npz and as .npy", path=path)
        blocks[block] = read_sparse(path) if path.suffix == ".npz" else read_dense(path)
        if blocks[block].shape[0] != rows:
            raise DataError(f"{blocks[block].shape[0]} rows, but Y.{part}.npz has {rows}", path=path)
    if not blocks and texts is None:
        raise DataError(f"there is neither X.{part}.npz nor texts.{part}.txt", path=folder)
    if blocks.keys() == {"X"}:
        return blocks["X"]
    return blocks or None


def _groups(folder: Path, part: str, membership: csr_matrix | None, labels: csr_matrix | None) -> Groups | None:
    if membership is None or labels is None:
        if membership is not labels:
            raise DataError(f"groups.{part}.npz and group_labels.{part}.npz need each other", path=folder)
        return None
    count = int(membership.shape[1])
    names = reading.optional_strings(folder, [f"group_names.{part}"], count=count, what="group")
    return Groups(membership, labels, names)


def _sparse(path: Path) -> csr_matrix | None:
    return read_sparse(path) if path.is_file() else None


def _matrix(folder: Path, stem: str) -> Matrix | None:
    if (folder / f"{stem}.npy").is_file():
        return read_dense(folder / f"{stem}.npy")
    return _sparse(folder / f"{stem}.npz")


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number that JSON knows")


def _read_info(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(reading.read_bytes(path).tobytes(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", path=path) from None
    propensity = facts.get("propensity") if isinstance(facts, Mapping) else None
    if isinstance(propensity, list) and len(propensity) == 2 and all(isinstance(x, (int, float)) for x in propensity):
        propensity = (float(propensity[0]), float(propensity[1]))
    elif propensity is not None and not isinstance(propensity, str):
        raise DataError(f"propensity must be a name or two numbers, found {propensity!r}", path=path)
    expected = {"name": str, "info": Mapping}
    if not isinstance(facts, Mapping) or any(not isinstance(facts.get(key), kind) for key, kind in expected.items()):
        raise DataError("expected an object with name, propensity and info", path=path)
    return {"name": facts["name"], "propensity": propensity, "info": facts["info"]}


def _write_split(folder: Path, part: str, split: Split) -> None:
    write_sparse(folder / f"Y.{part}.npz", split.Y)
    if isinstance(split.X, Mapping):
        for name, block in split.X.items():
            _write_matrix(folder, _block_stem(name, part), block)
    elif split.X is not None:
        _write_matrix(folder, f"X.{part}", split.X)
    groups = split.groups
    group_names = None if groups is None else groups.names
    for stem, strings in (("texts", split.texts), ("rows", split.names), ("group_names", group_names)):
        if strings is not None:
            reading.write_strings(folder, f"{stem}.{part}", strings)
    matrices = (groups and groups.membership, groups and groups.labels, split.weights, split.filter)
    for kind, matrix in zip(_MATRICES, matrices, strict=True):
        if matrix is not None:
            write_sparse(folder / f"{kind}.{part}.npz", matrix)


def _block_stem(name: str, part: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f"a feature block named {name!r} cannot be a file name: use letters, digits, _ and -")
    return f"X.{part}" if name == "X" else f"X.{name}.{part}"


def _write_matrix(folder: Path, stem: str, matrix: Matrix) -> None:
    if isinstance(matrix, np.ndarray):
        write_dense(folder / f"{stem}.npy", matrix)
    else:
        write_sparse(folder / f"{stem}.npz", matrix)
