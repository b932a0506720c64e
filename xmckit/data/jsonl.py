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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.model import Dataset, Groups, Split, carve_validation, labels_of_groups
from xmckit.errors import DataError, UsageError
from xmckit.params import Configured, Params
from xmckit.sparse.csr import csr_from_lists

_BATCH = 10_000
# Files that `reading.write_strings` writes beside data in this and other formats.
_STRINGS = re.compile(r"(labels|label_map|Y|trn_X|tst_X|(texts|rows|group_names)\.(trn|tst))\.jsonl")


@dataclass
class _RowColumns:
    """The fields of the rows, column by column."""

    lines: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)
    unlabelled: list[int] = field(default_factory=list)  # lines without that field; their groups may have labels
    names: list[str | None] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    parts: list[str | None] = field(default_factory=list)


class JsonLines(Configured):
    class Params(Params):
        text: str = Field("text", description="The field with the text.")
        labels: str = Field("labels", description="The field with the list of label names.")
        id: str = Field("id", description="The field with the name of the row.")
        group: str = Field("group", description="The field with the group, or the list of groups, of the row.")
        split: str = Field("split", description="The field with train or test, in a single file.")
        test_share: float = Field(0.2, gt=0, lt=1, description="The share of test rows, if nothing else defines them.")

    looks_for = "train.jsonl with test.jsonl, or a single .jsonl file"

    def matches(self, path: Path) -> bool:
        return len(_data_files(path)) > 0

    def files(self, path: Path) -> Sequence[Path]:
        files = _data_files(path)
        if not files:
            raise DataError(f"not JSON lines: expected {self.looks_for}", path=path)
        names = _names_file(path)
        return files if names is None else [*files, names]

    def read(self, path: Path, *, context: Context) -> Dataset:
        self.files(path)
        files = _data_files(path)
        rows = [self._read_rows(file, context) for file in files]
        names_file = _names_file(path)
        names = _label_names(names_file, files, rows)
        ids = {name: label for label, name in enumerate(names)}
        splits = [_split(file, part, ids) for file, part in zip(files, rows, strict=True)]
        train, test = splits if len(splits) == 2 else self._train_and_test(files[0], rows[0], splits[0], context)
        train, test = (replace(split, groups=_with_own_labels(split)) for split in (train, test))
        dataset = Dataset(
            name=path.resolve().name.split(".jsonl")[0],
            train=train,
            test=test,
            label_names=names,
            info={"format": "jsonl", **({} if names_file else {reading.LABEL_NAMES: reading.FROM_ROWS})},
        )
        return reading.validated(dataset, files[0], files[-1])

    def read_file(self, path: Path, *, context: Context) -> tuple[Split, list[str]]:
        """Return all rows of one file as one split, and the names of their labels."""
        rows = self._read_rows(path, context)
        names = _label_names(None, [path], [rows])
        return _split(path, rows, {name: label for label, name in enumerate(names)}), names

    def _read_rows(self, path: Path, context: Context) -> _RowColumns:
        rows = _RowColumns()
        lines = reading.read_lines(path)
        if not lines:
            raise DataError("the file is empty, expected one JSON object a line", path=path)
        with context.progress(f"reading {path.name}", total=len(lines)) as bar:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    self._add_row(rows, reading.json_object(path, number, line), path, number)
                if number % _BATCH == 0:
                    bar.advance(_BATCH)
            bar.advance(len(lines) % _BATCH)
        if any(name is None for name in rows.names) and any(name is not None for name in rows.names):
            nameless = rows.lines[rows.names.index(None)]
            raise DataError(f"this row has no {self.params.id!r}, but other rows do", path=path, line=nameless)
        if 0 < len(rows.unlabelled) < len(rows.lines):
            text = f"this row has no {self.params.labels!r}, but other rows do; a row without labels has []"
            raise DataError(text, path=path, line=rows.unlabelled[0])
        return rows

    def _add_row(self, rows: _RowColumns, row: Mapping[str, Any], path: Path, line: int) -> None:
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
        if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
            raise wrong(names.id, "a string or a whole number")
        group = row.get(names.group)
        groups = [] if group is None else [group] if isinstance(group, str) else group
        if not _is_string_list(groups):
            raise wrong(names.group, "a string or a list of strings")
        part = row.get(names.split)
        if part not in (None, "train", "test"):
            raise wrong(names.split, '"train" or "test"')
        rows.lines.append(line)
        if names.labels not in row:
            rows.unlabelled.append(line)
        rows.texts.append(reading.check_encodable(text, path, line))
        rows.labels.append([reading.check_encodable(label, path, line) for label in labels])
        rows.names.append(None if name is None else reading.check_encodable(str(name), path, line))
        rows.groups.append([reading.check_encodable(group, path, line) for group in dict.fromkeys(groups)])
        rows.parts.append(part)

    def _train_and_test(self, path: Path, rows: _RowColumns, split: Split, context: Context) -> tuple[Split, Split]:
        has_part = [part is not None for part in rows.parts]
        if all(has_part):
            in_test = np.array([part == "test" for part in rows.parts])
            return split.take(np.flatnonzero(~in_test)), split.take(np.flatnonzero(in_test))
        if any(has_part):
            line = rows.lines[has_part.index(False)]
            raise DataError(f"this row has no {self.params.split!r}, but other rows do", path=path, line=line)
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


def _data_files(path: Path) -> list[Path]:
    """Return [train, test], or the single file, or nothing."""
    if not path.is_dir():
        return [path] if path.is_file() and path.name.removesuffix(".gz").endswith(".jsonl") else []
    pair = [reading.find_file(path, f"{part}.jsonl") for part in ("train", "test")]
    if all(pair):
        return [file for file in pair if file is not None]
    single = [name for name in reading.file_names(path) if name.removesuffix(".gz").endswith(".jsonl")]
    single = [name for name in single if not _STRINGS.match(name)]
    return [path / single[0]] if len(single) == 1 else []


def _names_file(path: Path) -> Path | None:
    return reading.strings_file(path if path.is_dir() else path.parent, "labels")


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _label_names(names_file: Path | None, files: Sequence[Path], rows: Sequence[_RowColumns]) -> list[str]:
    seen = {label for part in rows for labels in part.labels for label in labels}
    if names_file is None:
        return sorted(seen)
    count = len(reading.read_lines(names_file))
    names = reading.read_strings(names_file, count=count, what="label")
    if len(set(names)) != len(names):
        raise DataError("a label name occurs twice", path=names_file)
    known = set(names)
    for file, part in zip(files, rows, strict=True):
        for line, labels in zip(part.lines, part.labels, strict=True):
            if unknown := [label for label in labels if label not in known]:
                raise DataError(f"the label {unknown[0]!r} is not in {names_file.name}", path=file, line=line)
    return names


def _incidence(lists: Sequence[Sequence[str]], ids: Mapping[str, int]) -> csr_matrix:
    """Return rows × ids: 1 if the list of a row has the name."""
    return csr_from_lists([sorted(ids[name] for name in names) for names in lists], len(ids))


def _split(path: Path, rows: _RowColumns, ids: Mapping[str, int]) -> Split:
    if not ids:
        raise DataError("no row has a label", path=path)
    Y = _incidence(rows.labels, ids)
    names = [name for name in rows.names if name is not None]
    group_ids = {name: group for group, name in enumerate(sorted({name for row in rows.groups for name in row}))}
    membership = _incidence(rows.groups, group_ids) if group_ids else None
    groups = None if membership is None else Groups(membership, (membership.T @ Y).tocsr(), list(group_ids))
    return Split(X=None, Y=Y, texts=rows.texts, names=names or None, groups=groups)


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
