"""Read groups of training rows from text files, for features in any format.

`groups` has a line for each training row: the name of its group, several names separated by tabs, or nothing.
`group_labels` has a line for each group: its name and its labels, separated by tabs; a repeated label counts twice.
Labels are names if the data has names, otherwise numbers from 0. If no file declares the labels, new labels of groups
are added to those of the rows. Without `group_labels`, a group has the labels of its rows, with their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data import reading
from xmckit.data.model import Dataset, Groups, as_csr
from xmckit.errors import DataError, nearest
from xmckit.sparse.csr import csr_from_lists


def with_groups(dataset: Dataset, groups: Path, group_labels: Path | None) -> Dataset:
    """Return the data set with the groups of its training rows."""
    train = dataset.train
    names_by_row = [_words(text) for text in reading.read_strings(groups, count=train.rows, what="training row")]
    for line, names in enumerate(names_by_row, 1):
        if len(set(names)) < len(names):
            raise DataError("the row names one group twice", path=groups, line=line)
    ids = {name: group for group, name in enumerate(sorted({name for names in names_by_row for name in names}))}
    membership = as_csr(csr_from_lists([[ids[name] for name in names] for names in names_by_row], len(ids)))
    if group_labels is None:
        labels = as_csr(membership.T @ (train.Y != 0).astype(np.float32))
    else:
        if dataset.info.get(reading.LABEL_NAMES) == reading.FROM_ROWS:
            dataset = _with_labels_from(group_labels, dataset)
        labels = _labels(group_labels, ids, dataset)
    return replace(dataset, train=replace(dataset.train, groups=Groups(membership, labels, list(ids))))


def _with_labels_from(path: Path, dataset: Dataset) -> Dataset:
    """Append the labels that only groups have to the labels of the data set."""
    group_labels = {label for _, _, labels in _lines(path) for label in labels}
    known = dataset.label_names or []
    names = [*known, *sorted(group_labels.difference(known))]
    splits = [
        replace(split, Y=csr_matrix((split.Y.data, split.Y.indices, split.Y.indptr), (split.rows, len(names))))
        for split in (dataset.train, dataset.test)
    ]
    return replace(dataset, train=splits[0], test=splits[1], label_names=names)


def _labels(path: Path, groups: dict[str, int], dataset: Dataset) -> csr_matrix:
    names = dataset.label_names
    ids_by_name = {name: label for label, name in enumerate(names or ())}
    shared = {name for name, count in Counter(names or ()).items() if count > 1}
    labels_by_group: dict[str, list[int]] = {}
    for line, group, labels in _lines(path):
        numbers = [_number(name, dataset.labels) if names is None else ids_by_name.get(name) for name in labels]
        wrong = ""
        if group not in groups:
            wrong = f"no training row is in a group {group!r}{nearest(group, list(groups))}"
        elif group in labels_by_group:
            wrong = f"the group {group!r} has a second line"
        elif unknown := [label for label, number in zip(labels, numbers, strict=True) if number is None]:
            declare = "A label without rows must be declared: in labels.txt, or by the number of labels"
            wrong = f"there is no label {unknown[0]!r}{nearest(unknown[0], names or ())}. {declare}"
        elif ambiguous := [label for label in labels if label in shared]:
            wrong = f"several labels have the name {ambiguous[0]!r}: give labels names of their own"
        if wrong:
            raise DataError(wrong, path=path, line=line)
        labels_by_group[group] = [number for number in numbers if number is not None]
    if missing := sorted(groups.keys() - labels_by_group.keys()):
        need = "a group without labels needs a line with its name alone"
        raise DataError(f"{len(missing)} groups have no line, the first is {missing[0]!r}: {need}", path=path)
    return as_csr(csr_from_lists([labels_by_group[group] for group in groups], dataset.labels))


def _number(name: str, labels: int) -> int | None:
    """Return the label that the name of a label without names stands for; None if there is none."""
    is_number = name.isascii() and name.isdigit() and len(name) <= len(str(labels)) and str(int(name)) == name
    return int(name) if is_number and int(name) < labels else None


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the number of each line, the group that it names, and its labels."""
    for line, content in enumerate(reading.read_lines(path), 1):
        group, _, rest = reading.decode_line(path, content, line).partition("\t")
        yield line, group, _words(rest)


def _words(text: str) -> list[str]:
    return [word for word in text.split("\t") if word]
