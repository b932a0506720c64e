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
from xmckit.params import Params
from xmckit.sparse.parse import LARGEST_INDEX, Grammar, SparseRows

LABEL_NAMES = ("labels", "Y", "label_map")
TEXTS = {"train": "trn_X", "test": "tst_X"}
MATRICES = ("trn_X_Xf.txt", "trn_X_Y.txt", "tst_X_Xf.txt", "tst_X_Y.txt")
FILTERS = {"train": "filter_labels_train.txt", "test": "filter_labels_test.txt"}
LABEL_FEATURES = "lbl_X_Xf.txt"

_LONGEST_HEADER = 200


class XmcText(reading.FileReader):
    class Params(Params):
        split: int = Field(0, ge=0, description="The column of the split files to use, if there are split files.")

    form = "in the XMC repository's text format"
    looks_for = (
        "NAME_data.txt with NAME_trSplit.txt and NAME_tstSplit.txt, train.txt with test.txt, "
        "or trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt"
    )

    def layouts(self, path: Path) -> Sequence[Sequence[Path]]:
        """Return a data file and its split files, or train and test, or the four matrices, of each data set.

        A data file as `path` stands for itself and its split files.
        """
        folder = _folder(path)
        data, *split_files = (
            reading.matching_files(folder, rf"(.+)_{part}\.txt") for part in ("data", "trSplit", "tstSplit")
        )
        layouts: list[Sequence[Path]] = []
        for stem in data.keys() & split_files[0].keys() & split_files[1].keys():
            if path.is_dir() or path == data[stem]:
                layouts.append((data[stem], *(files[stem] for files in split_files)))
        if path.is_dir():
            train, test = (reading.matching_files(folder, rf"(?:(.+)_)?{part}\.txt") for part in ("train", "test"))
            layouts += [(train[stem], test[stem]) for stem in sorted(train.keys() & test.keys() - {"filter_labels"})]
            matrices = [reading.find_file(folder, name) for name in MATRICES]
            if all(matrices):
                layouts.append([file for file in matrices if file])
        return layouts

    def files(self, path: Path) -> Sequence[Path]:
        folder = _folder(path)
        beside = [
            *(reading.find_file(folder, name) for name in (*FILTERS.values(), LABEL_FEATURES)),
            *(reading.strings_file(folder, stem) for stem in TEXTS.values()),
            reading.strings_file(folder, *LABEL_NAMES),
        ]
        return [file for file in (*self.layout(path), *beside) if file is not None]

    def read(self, path: Path, *, context: Context) -> Dataset:
        files, folder = self.layout(path), _folder(path)
        half = len(files) // 2
        if len(files) == 3:
            train, test = _read_split_rows(files, self.params.split, context)
        else:
            train, test = (_read_split(files[:half], "train", context), _read_split(files[half:], "test", context))
        features_file = reading.find_file(folder, LABEL_FEATURES)
        dataset = Dataset(
            name=path.resolve().name if path.is_dir() else re.split(r"_data\.txt", path.name, flags=re.IGNORECASE)[0],
            train=train,
            test=test,
            label_names=reading.optional_strings(folder, LABEL_NAMES, count=train.labels, what="label"),
            label_features=None if features_file is None else _read_matrix(features_file, context),
            info={"format": "xmc"},
        )
        return reading.check_dataset(dataset, files[0], files[half])

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `train.txt`, `test.txt` and the files beside them; values have the nine digits that float32 needs."""
        reading.check_one_matrix(dataset, "XMC text", "weights", "groups", "names")
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


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _header(path: Path, text: np.ndarray, what: str) -> tuple[list[int], int]:
    """Return (the sizes in the first line, the position of the second line)."""
    if not len(text):
        raise DataError(f"the file is empty, expected a first line `{what}`", path=path)
    line = text[:_LONGEST_HEADER].tobytes().split(b"\n")[0]
    fields = line.split()
    are_numbers = all(field.isdigit() and len(field) <= 18 for field in fields)
    if len(line) == _LONGEST_HEADER or len(fields) != len(what.split()) or not are_numbers:
        first_line = reading.quote(text, 0, whole_line=True)
        raise DataError(f"expected a first line `{what}` of whole numbers, found {first_line}", path=path, line=1)
    sizes = [int(field) for field in fields]
    if min(sizes) < 1 or max(sizes[1:]) > LARGEST_INDEX + 1:
        limits = f"must be at least 1 and columns at most {LARGEST_INDEX + 1}"
        raise DataError(f"the sizes `{what}` {limits}, found {' '.join(map(str, sizes))}", path=path, line=1)
    return sizes, min(len(line) + 1, len(text))


def read_data_rows(path: Path, context: Context) -> tuple[csr_matrix, csr_matrix]:
    """Return (X, Y) of a data file."""
    rows, (features, labels) = _read_sized_rows(path, ("features", "labels"), context)
    return rows.features(features), rows.labels(labels)


def _read_sized_rows(path: Path, columns: tuple[str, ...], context: Context) -> tuple[SparseRows, list[int]]:
    """Return the rows of a file and its numbers of `columns`: features and labels, or the columns of a matrix."""
    text = reading.read_bytes(path)
    (rows, *sizes), start = _header(path, text, " ".join(("rows", *columns)))
    for name, size in zip(columns, sizes, strict=True):
        store.check_claim(path, name, size, len(text))
    has_labels = len(sizes) == 2
    grammar = Grammar(has_labels=has_labels, features=sizes[0], labels=sizes[1] if has_labels else 0)
    sizes_text = " and ".join(f"{size} {name}" for size, name in zip(sizes, columns, strict=True))
    expected = f"the header says {sizes_text}, numbered from 0"
    return reading.read_rows(path, text, start, grammar, rows=rows, context=context, expected=expected), sizes


def _read_matrix(path: Path, context: Context) -> csr_matrix:
    rows, (columns,) = _read_sized_rows(path, ("columns",), context)
    return rows.features(columns)


def _read_matrices(features: Path, labels: Path, context: Context) -> tuple[csr_matrix, csr_matrix]:
    X, Y = _read_matrix(features, context), reading.check_ones(_read_matrix(labels, context), labels)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"{Y.shape[0]} rows of labels, but {features.name} has {X.shape[0]} rows", path=labels)
    return X, Y


def _read_split(files: Sequence[Path], part: str, context: Context) -> Split:
    """Read a data file, or the two matrix files, with the texts and the filter beside them."""
    X, Y = read_data_rows(files[0], context) if len(files) == 1 else _read_matrices(files[0], files[1], context)
    folder = files[0].parent
    texts = reading.optional_strings(folder, [TEXTS[part]], count=Y.shape[0], what="row")
    filter_file = reading.find_file(folder, FILTERS[part])
    return Split(X=X, Y=Y, texts=texts, filter=None if filter_file is None else _read_filter(filter_file, Y.shape))


def _read_split_rows(files: Sequence[Path], column: int, context: Context) -> tuple[Split, Split]:
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
    chosen = table[:, [column]]
    reading.check_range(file, text, chosen, 1, [rows], f"row numbers go from 1 to {rows}, found")
    return chosen[:, 0] - 1


def _read_filter(path: Path, shape: tuple[int, int]) -> csr_matrix:
    pairs, text = reading.read_integers(path, 2)
    message = f"there are {shape[0]} rows and {shape[1]} labels, numbered from 0, found the pair"
    reading.check_range(path, text, pairs, 0, [shape[0] - 1, shape[1] - 1], message)
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
