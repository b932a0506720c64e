"""The reader `jsonl`: one JSON object per row, `{"text": "…", "labels": ["a", "b"], "id": "7", "group": "g"}`.

A folder holds `train.jsonl` and `test.jsonl` (also `.gz`). A single file, or a folder with one `.jsonl` file, is split
into train and test by the field `split` ("train" or "test") or, if no row has this field, by a seeded share of the rows
(of whole groups, if there are groups). `group` is a string or a list of strings; the labels of a group are those of its
rows, with their counts. `id` is the name of the row; all rows have one or none has. Blank lines and a byte order mark
are skipped.

Labels are numbered by their sorted names over train and test, unless a `labels.txt` beside the files lists the names in
order; then no other label may occur.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.model import Dataset, Groups, Split, carve_validation, labels_of_groups
from xmckit.errors import DataError, UsageError
from xmckit.params import Params
from xmckit.sparse.csr import csr_from_lists

_BATCH = 10_000
# Files that `reading.write_strings` writes beside data in this and other formats.
_STRINGS = re.compile(r"(labels|label_map|Y|trn_X|tst_X|(texts|rows|group_names)\.(trn|tst))\.jsonl")


class _Row(NamedTuple):
    line: int
    text: str
    labels: list[str] | None  # None without that field; the groups of the row may have labels
    name: str | None
    groups: list[str]
    part: str | None


class JsonLines(reading.FileReader):
    class Params(Params):
        text: str = Field("text", description="The field with the text.")
        labels: str = Field("labels", description="The field with the list of label names.")
        id: str = Field("id", description="The field with the name of the row.")
        group: str = Field("group", description="The field with the group, or the list of groups, of the row.")
        split: str = Field("split", description="The field with train or test, in a single file.")
        test_share: float = Field(0.2, gt=0, lt=1, description="The share of test rows, if nothing else defines them.")

    form = "JSON lines"
    looks_for = "train.jsonl with test.jsonl, or a single .jsonl file"

    def layouts(self, path: Path) -> Sequence[Sequence[Path]]:
        """Return train and test, or the single file, or nothing."""
        if not path.is_dir():
            return [[path]] if path.is_file() and _is_json_lines(path.name) else []
        pair = [reading.find_file(path, f"{part}.jsonl") for part in ("train", "test")]
        if all(pair):
            return [[file for file in pair if file is not None]]
        single = [name for name in reading.file_names(path) if _is_json_lines(name) and not _STRINGS.match(name)]
        return [[path / single[0]]] if len(single) == 1 else []

    def files(self, path: Path) -> Sequence[Path]:
        return [file for file in (*self.layout(path), _names_file(path)) if file is not None]

    def read(self, path: Path, *, context: Context) -> Dataset:
        files = self.layout(path)
        rows = [self._read_rows(file, context) for file in files]
        names_file = _names_file(path)
        names = _label_names(names_file, files, rows)
        splits = [_split(file, part, names) for file, part in zip(files, rows, strict=True)]
        train, test = splits if len(splits) == 2 else self._train_and_test(files[0], rows[0], splits[0], context)
        train, test = (replace(split, groups=_with_own_labels(split)) for split in (train, test))
        dataset = Dataset(
            name=path.resolve().name.split(".jsonl")[0],
            train=train,
            test=test,
            label_names=names,
            info={"format": "jsonl", **({} if names_file else {reading.LABEL_NAMES: reading.FROM_ROWS})},
        )
        return reading.check_dataset(dataset, files[0], files[-1])

    def read_file(self, path: Path, *, context: Context) -> tuple[Split, list[str]]:
        """Return all rows of one file as one split, and the names of their labels."""
        rows = self._read_rows(path, context)
        names = _label_names(None, [path], [rows])
        return _split(path, rows, names), names

    def _read_rows(self, path: Path, context: Context) -> list[_Row]:
        rows = []
        lines = reading.read_lines(path)
        if not lines:
            raise DataError("the file is empty, expected one JSON object a line", path=path)
        with context.progress(f"reading {path.name}", total=len(lines)) as bar:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append(self._row(reading.json_object(path, number, line), path, number))
                if number % _BATCH == 0:
                    bar.advance(_BATCH)
            bar.advance(len(lines) % _BATCH)
        _all_have(self.params.id, [row.name is not None for row in rows], rows, path)
        has_labels = [row.labels is not None for row in rows]
        _all_have(self.params.labels, has_labels, rows, path, "; a row without labels has []")
        return rows

    def _row(self, row: Mapping[str, Any], path: Path, line: int) -> _Row:
        names = self.params

        def wrong(key: str, expected: str) -> DataError:
            value = "nothing" if key not in row else json.dumps(row[key])[:60]
            return DataError(f"{key!r} must be {expected}, found {value}", path=path, line=line)

        text: Any = row.get(names.text)
        labels: Any = row.get(names.labels, [])
        if not isinstance(text, str):
            raise wrong(names.text, "a string")
        if not _is_string_list(labels):
            raise wrong(names.labels, "a list of strings")
        if len(set(labels)) != len(labels):
            raise wrong(names.labels, "a list without repetitions")
        name = row.get(names.id)
        if not reading.is_row_id(name):
            raise wrong(names.id, "a string or a whole number")
        group = row.get(names.group)
        groups = [] if group is None else [group] if isinstance(group, str) else group
        if not _is_string_list(groups):
            raise wrong(names.group, "a string or a list of strings")
        part = row.get(names.split)
        if part not in (None, "train", "test"):
            raise wrong(names.split, '"train" or "test"')
        name = None if name is None else str(name)
        for string in (text, *labels, name or "", *groups):
            reading.check_encodable(string, path, line)
        return _Row(line, text, labels if names.labels in row else None, name, list(dict.fromkeys(groups)), part)

    def _train_and_test(self, path: Path, rows: list[_Row], split: Split, context: Context) -> tuple[Split, Split]:
        has_part = [row.part is not None for row in rows]
        if _all_have(self.params.split, has_part, rows, path):
            in_test = np.array([row.part == "test" for row in rows], dtype=bool)
            return split.take(np.flatnonzero(~in_test)), split.take(np.flatnonzero(in_test))
        train, test = carve_validation(split, self.params.test_share, context.rng("jsonl", "test rows"))
        if test is None:
            raise DataError(f"{split.rows} rows cannot be split into train and test rows", path=path)
        return train, test

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `train.jsonl`, `test.jsonl` and `labels.txt`."""
        if dataset.label_features is not None:
            raise UsageError("JSON lines cannot hold label features: use npz")
        for split in (dataset.train, dataset.test):
            _check_writable(split)
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            with store.atomic_file(folder / f"{part}.jsonl", "w") as stream:
                for row in range(split.rows):
                    stream.write(json.dumps(self._object(dataset, split, row), ensure_ascii=False) + "\n")
        names = [dataset.label(label) for label in range(dataset.labels)]
        if len(set(names)) != len(names):
            raise UsageError("two labels have the same name: JSON lines would merge them")
        reading.write_strings(folder, "labels", names)

    def _object(self, dataset: Dataset, split: Split, row: int) -> dict[str, Any]:
        assert split.texts is not None
        labels = split.Y.indices[split.Y.indptr[row] : split.Y.indptr[row + 1]]
        content: dict[str, Any] = {
            self.params.text: split.texts[row],
            self.params.labels: [dataset.label(int(label)) for label in labels],
        }
        if split.names is not None:
            content[self.params.id] = split.names[row]
        if split.groups is not None:
            membership = split.groups.membership
            members = membership.indices[membership.indptr[row] : membership.indptr[row + 1]].tolist()
            content[self.params.group] = [_group_name(split.groups, group) for group in members]
        return content


def _group_name(groups: Groups, group: int) -> str:
    """Return the name of a group, or its number, padded so that sorted names keep the order of groups."""
    return groups.names[group] if groups.names is not None else f"{group:0{len(str(groups.membership.shape[1]))}}"


def _is_json_lines(name: str) -> bool:
    return name.removesuffix(".gz").endswith(".jsonl")


def _all_have(field: str, has: list[bool], rows: list[_Row], path: Path, hint: str = "") -> bool:
    """Return whether all rows have a field; raise DataError if only some rows have it."""
    if any(has) and not all(has):
        line = rows[has.index(False)].line
        raise DataError(f"this row has no {field!r}, but other rows do{hint}", path=path, line=line)
    return all(has)


def _names_file(path: Path) -> Path | None:
    return reading.strings_file(path if path.is_dir() else path.parent, "labels")


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _label_names(names_file: Path | None, files: Sequence[Path], rows: Sequence[list[_Row]]) -> list[str]:
    seen = {label for part in rows for row in part for label in row.labels or ()}
    if names_file is None:
        return sorted(seen)
    names = reading.read_strings(names_file)
    if len(set(names)) != len(names):
        raise DataError("a label name occurs twice", path=names_file)
    known = set(names)
    for file, part in zip(files, rows, strict=True):
        for row in part:
            if unknown := [label for label in row.labels or () if label not in known]:
                raise DataError(f"the label {unknown[0]!r} is not in {names_file.name}", path=file, line=row.line)
    return names


def _incidence(lists: Sequence[Sequence[str]], names: Sequence[str]) -> csr_matrix:
    """Return rows × names: 1 if the list of a row has the name."""
    ids = {name: column for column, name in enumerate(names)}
    return csr_from_lists([sorted(ids[name] for name in names) for names in lists], len(ids))


def _split(path: Path, rows: list[_Row], label_names: Sequence[str]) -> Split:
    if not label_names:
        raise DataError("no row has a label", path=path)
    Y = _incidence([row.labels or [] for row in rows], label_names)
    names = [row.name for row in rows if row.name is not None]
    group_names = sorted({name for row in rows for name in row.groups})
    groups = None
    if group_names:
        membership = _incidence([row.groups for row in rows], group_names)
        groups = Groups(membership, labels_of_groups(membership, Y), group_names)
    return Split(X=None, Y=Y, texts=[row.text for row in rows], names=names or None, groups=groups)


def _with_own_labels(split: Split) -> Groups | None:
    """Return the groups that have rows in this split, with the labels of these rows."""
    if split.groups is None:
        return None
    membership = split.groups.membership
    present = np.flatnonzero(np.bincount(membership.indices, minlength=membership.shape[1]))
    if not len(present):
        return None
    membership = csr_matrix(membership[:, present])
    membership.sort_indices()
    names = split.groups.names
    return Groups(
        membership,
        labels_of_groups(membership, split.Y),
        None if names is None else [names[group] for group in present],
    )


def _check_writable(split: Split) -> None:
    if split.texts is None or split.X is not None:
        raise UsageError("JSON lines hold texts and no feature matrices: use npz")
    reading.check_absent(split, "JSON lines", "weights", "filter")
    if split.groups is not None:
        own = _with_own_labels(split)
        if own is None or own.labels.shape != split.groups.labels.shape or (own.labels != split.groups.labels).nnz:
            raise UsageError("JSON lines can only hold groups that have the labels of their rows: use npz")
        if split.groups.names is not None and len(set(split.groups.names)) < len(split.groups.names):
            raise UsageError("two groups have the same name: JSON lines would merge them; use npz")
