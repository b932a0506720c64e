"""The reader `xmc`: the text format of the XMC repository, in all layouts of its data sets.

A data file starts with a line `rows features labels`; every further line is a row, `l1,l2,… f:v f:v …`, with labels
and features numbered from 0. A row without labels starts with a space. A matrix file starts with `rows columns`;
every further line is a row `i:v i:v …`, and an empty line is an empty row. A folder has one of these layouts:

- `NAME_data.txt` with `NAME_trSplit.txt` and `NAME_tstSplit.txt`: row numbers from 1, one column for each split;
- `train.txt` and `test.txt`, or `NAME_train.txt` and `NAME_test.txt`: two data files;
- `trn_X_Xf.txt`, `trn_X_Y.txt`, `tst_X_Xf.txt`, `tst_X_Y.txt`: four matrix files.

The last two layouts may include `filter_labels_test.txt` and `filter_labels_train.txt` (lines `row label`, from 0:
pairs left out of scoring) and `trn_X.txt`, `tst_X.txt` (texts, one row per line). All layouts may include
`lbl_X_Xf.txt` (a matrix file with the features of each label) and the label names, one per line, in `labels.txt`,
`Y.txt` or `label_map.txt`. Every file may be compressed (`.gz`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.model import Dataset, Split, as_csr
from xmckit.errors import DataError, UsageError
from xmckit.params import Configured, Params
from xmckit.sparse.parse import LARGEST_INDEX, Grammar, SparseRows

LABEL_NAMES = ("labels", "Y", "label_map")
TEXTS = {"train": "trn_X", "test": "tst_X"}
MATRICES = {"train": ("trn_X_Xf.txt", "trn_X_Y.txt"), "test": ("tst_X_Xf.txt", "tst_X_Y.txt")}
FILTERS = {"train": "filter_labels_train.txt", "test": "filter_labels_test.txt"}
LABEL_FEATURES = "lbl_X_Xf.txt"

_LONGEST_HEADER = 200


class XmcText(Configured):
    class Params(Params):
        split: int = Field(0, ge=0, description="The column of the split files to use, if there are split files.")

    looks_for = (
        "NAME_data.txt with NAME_trSplit.txt and NAME_tstSplit.txt, train.txt with test.txt, "
        "or trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt"
    )

    def matches(self, path: Path) -> bool:
        return len(_layouts(path)) > 0

    def files(self, path: Path) -> Sequence[Path]:
        layout = _layout(path)
        folder = _folder(path)
        beside = [
            *(reading.find_file(folder, name) for name in (*FILTERS.values(), LABEL_FEATURES)),
            *(reading.strings_file(folder, stem) for stem in TEXTS.values()),
            reading.strings_file(folder, *LABEL_NAMES),
        ]
        return [*layout.files, *(file for file in beside if file is not None)]

    def read(self, path: Path, *, context: Context) -> Dataset:
        layout, folder = _layout(path), _folder(path)
        if layout.kind == "splits":
            train, test = _read_split_rows(layout.files, self.params.split, context)
        elif layout.kind == "pair":
            train, test = (Split(*read_data_rows(file, context)) for file in layout.files)
        else:
            train, test = (_read_matrices(layout.files[part], layout.files[part + 1], context) for part in (0, 2))
        if layout.kind != "splits":
            train, test = (
                _with_texts_and_filter(split, folder, part) for split, part in ((train, "train"), (test, "test"))
            )
        features_file = reading.find_file(folder, LABEL_FEATURES)
        dataset = Dataset(
            name=_name(path, layout),
            train=train,
            test=test,
            label_names=reading.optional_strings(folder, LABEL_NAMES, count=train.labels, what="label"),
            label_features=None if features_file is None else _read_matrix(features_file, context),
            info={"format": "xmc"},
        )
        return reading.validated(dataset, layout.files[0], layout.files[len(layout.files) // 2])

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `train.txt`, `test.txt` and the files beside them; values have the nine digits that float32 needs."""
        for split in (dataset.train, dataset.test):
            reading.check_one_matrix(split, "XMC text")
            reading.check_absent(split, "XMC text", "weights", "groups", "names")
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            X = as_csr(split.X)
            header = f"{split.rows} {X.shape[1]} {split.labels}\n"
            _write_rows(folder / f"{part}.txt", header, X, split.Y)
            if split.texts is not None:
                reading.write_strings(folder, TEXTS[part], split.texts)
            if split.filter is not None:
                pairs = split.filter.tocoo()
                lines = (f"{row} {label}\n" for row, label in zip(pairs.row.tolist(), pairs.col.tolist(), strict=True))
                store.write_text(folder / FILTERS[part], "".join(lines))
        if dataset.label_names is not None:
            reading.write_strings(folder, "labels", dataset.label_names)
        if dataset.label_features is not None:
            F = as_csr(dataset.label_features)
            _write_rows(folder / LABEL_FEATURES, f"{F.shape[0]} {F.shape[1]}\n", F, None)


@dataclass(frozen=True)
class _Layout:
    kind: str
    files: tuple[Path, ...]


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _layouts(path: Path) -> list[_Layout]:
    """Return every layout that the files at `path` match; a data file stands for itself and its split files."""
    folder = _folder(path)
    names = reading.file_names(folder)

    def matching(pattern: str) -> dict[str, Path]:
        # Reversed, so that a plain file wins over its compressed copy.
        matches = ((re.fullmatch(pattern + r"(\.gz)?", name, re.IGNORECASE), name) for name in reversed(names))
        return {(match[1] or "").lower(): folder / name for match, name in matches if match}

    layouts = []
    data, train, test = (matching(rf"(.+)_{part}\.txt") for part in ("data", "trSplit", "tstSplit"))
    for stem in data.keys() & train.keys() & test.keys():
        if path.is_dir() or path == data[stem]:
            layouts.append(_Layout("splits", (data[stem], train[stem], test[stem])))
    if path.is_dir():
        train, test = matching(r"(?:(.+)_)?train\.txt"), matching(r"(?:(.+)_)?test\.txt")
        layouts += [
            _Layout("pair", (train[stem], test[stem]))
            for stem in sorted(train.keys() & test.keys() - {"filter_labels"})
        ]
        matrices = [reading.find_file(folder, name) for part in MATRICES.values() for name in part]
        if all(matrices):
            layouts.append(_Layout("matrices", tuple(file for file in matrices if file)))
    return layouts


def _layout(path: Path) -> _Layout:
    layouts = _layouts(path)
    if not layouts:
        raise DataError(f"not in the XMC repository's text format: expected {XmcText.looks_for}", path=path)
    if len(layouts) > 1:
        listed = "; ".join(", ".join(file.name for file in layout.files) for layout in layouts)
        raise UsageError(f"{path}: several data sets in one folder ({listed}). Move each to a folder of its own.")
    return layouts[0]


def _name(path: Path, layout: _Layout) -> str:
    if path.is_dir():
        return path.resolve().name
    return re.split(r"_data\.txt", layout.files[0].name, flags=re.IGNORECASE)[0]


def _header(path: Path, text: np.ndarray, what: str) -> tuple[list[int], int]:
    """Return (the sizes in the first line, the position of the second line)."""
    if not len(text):
        raise DataError(f"the file is empty, expected a first line `{what}`", path=path)
    line = text[:_LONGEST_HEADER].tobytes().split(b"\n")[0]
    fields = line.split()
    complete = len(line) < min(_LONGEST_HEADER, len(text)) or len(line) == len(text)
    if (
        not complete
        or len(fields) != len(what.split())
        or not all(re.fullmatch(rb"[0-9]{1,18}", field) for field in fields)
    ):
        raise DataError(
            f"expected a first line `{what}` of whole numbers, found {reading.quote(text, 0, whole_line=True)}",
            path=path,
            line=1,
        )
    sizes = [int(field) for field in fields]
    if min(sizes) < 1 or max(sizes[1:]) > LARGEST_INDEX + 1:
        raise DataError(
            f"the sizes `{what}` must be at least 1 and columns at most {LARGEST_INDEX + 1}, "
            f"found {' '.join(map(str, sizes))}",
            path=path,
            line=1,
        )
    return sizes, min(len(line) + 1, len(text))


def read_data_rows(path: Path, context: Context) -> tuple[csr_matrix, csr_matrix]:
    """Return (X, Y) of a data file."""
    rows, (features, labels) = _read_sized_rows(path, ("features", "labels"), context)
    return rows.features(features), rows.labels(labels)


def _read_sized_rows(path: Path, columns: tuple[str, ...], context: Context) -> tuple[SparseRows, list[int]]:
    """Return the rows of a file and its numbers of `columns`: features and labels, or the columns of a matrix."""
    text = reading.read_bytes(path)
    (rows, *sizes), start = _header(path, text, " ".join(("rows", *columns)))
    has_labels = len(sizes) == 2
    grammar = Grammar(has_labels=has_labels, features=sizes[0], labels=sizes[1] if has_labels else None)
    promised = " and ".join(f"{size} {name}" for size, name in zip(sizes, columns, strict=True))
    expected = f"the header says {promised}, numbered from 0"
    return reading.read_rows(path, text, start, grammar, rows=rows, context=context, expected=expected), sizes


def _read_matrix(path: Path, context: Context) -> csr_matrix:
    rows, (columns,) = _read_sized_rows(path, ("columns",), context)
    return rows.features(columns)


def _read_matrices(features: Path, labels: Path, context: Context) -> Split:
    X, Y = _read_matrix(features, context), reading.check_ones(_read_matrix(labels, context), labels)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"{Y.shape[0]} rows of labels, but {features.name} has {X.shape[0]} rows", path=labels)
    return Split(X=X, Y=Y)


def _read_split_rows(files: tuple[Path, ...], column: int, context: Context) -> tuple[Split, Split]:
    data, *parts = files
    X, Y = read_data_rows(data, context)
    owner = np.full(X.shape[0], -1)
    splits = []
    for number, file in enumerate(parts):
        rows = _split_column(file, column, X.shape[0])
        twice = np.flatnonzero(np.bincount(rows, minlength=X.shape[0])[rows] > 1)
        if len(twice):
            raise DataError(f"row {rows[twice[0]] + 1} is listed twice in column {column}", path=file)
        shared = rows[owner[rows] >= 0]
        if len(shared):
            raise DataError(f"row {shared[0] + 1} is in {parts[0].name} too", path=file)
        owner[rows] = number
        splits.append(Split(X=X[rows], Y=Y[rows]))
    return splits[0], splits[1]


def _split_column(file: Path, column: int, rows: int) -> np.ndarray:
    table, text = reading.read_integers(file)
    if not len(table):
        raise DataError("the file is empty, expected row numbers", path=file)
    if column >= table.shape[1]:
        raise UsageError(
            f"{file}: there are {table.shape[1]} splits, numbered from 0; split {column} is not one of them"
        )
    chosen = table[:, column]
    wrong = np.flatnonzero((chosen < 1) | (chosen > rows))
    if len(wrong):
        line = reading.table_line_number(text, int(wrong[0]))
        found = reading.number_text(chosen[wrong[0]])
        raise DataError(f"row numbers go from 1 to {rows}, found {found}", path=file, line=line)
    return chosen - 1


def _with_texts_and_filter(split: Split, folder: Path, part: str) -> Split:
    texts = reading.optional_strings(folder, [TEXTS[part]], count=split.rows, what="row")
    filter_file = reading.find_file(folder, FILTERS[part])
    pairs = None if filter_file is None else _read_filter(filter_file, split.Y.shape)
    return Split(X=split.X, Y=split.Y, texts=texts, filter=pairs)


def _read_filter(path: Path, shape: tuple[int, int]) -> csr_matrix:
    pairs, text = reading.read_integers(path, 2)
    wrong = np.flatnonzero((pairs >= np.asarray(shape)).any(axis=1))
    if len(wrong):
        row, label = (reading.number_text(number) for number in pairs[wrong[0]])
        line = reading.table_line_number(text, int(wrong[0]))
        raise DataError(
            f"there are {shape[0]} rows and {shape[1]} labels, numbered from 0, found the pair {row} {label}",
            path=path,
            line=line,
        )
    marks = np.ones(len(pairs), dtype=np.float32)
    matrix = as_csr(csr_matrix((marks, (pairs[:, 0], pairs[:, 1])), shape=shape))
    matrix.data[:] = 1
    return matrix


def _write_rows(path: Path, header: str, X: csr_matrix, Y: csr_matrix | None) -> None:
    with store.atomic_file(path) as stream:
        stream.write(header.encode("ascii"))
        for row in range(X.shape[0]):
            stream.write(row_text(X, Y, row, 0, 0).encode("ascii") + b"\n")


def row_text(X: csr_matrix, Y: csr_matrix | None, row: int, first_label: int, first_feature: int) -> str:
    """Return the line of a row, without its end."""
    start, end = X.indptr[row], X.indptr[row + 1]
    numbers: list[Any] = [0] * (2 * int(end - start))
    numbers[::2] = (X.indices[start:end] + first_feature).tolist()
    numbers[1::2] = X.data[start:end].tolist()
    features = " ".join(["%d:%.9g"] * int(end - start)) % tuple(numbers)
    if Y is None:
        return features
    labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]] + first_label
    return ",".join(map(str, labels.tolist())) + " " + features
