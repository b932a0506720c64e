"""The reader `svmlight`: multi-label svmlight text, one row per line: `1,3 5:0.3 7:1 # comment`.

A folder holds `train.svm` and `test.svm` (or `NAME.train.svm` and `NAME.test.svm`; also `.svmlight` and `.gz`). The
reader does not guess from the numbers: features count from 1, as svmlight defines them, unless `zero_based` is set;
labels are class numbers that count from 0 unless `zero_based_labels = false`. Sizes that are not given are the largest
numbers in train and test together. Blank lines and lines with only a comment are not rows; a row with neither labels
nor features can be written as `1:0`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from xmckit import store
from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.model import Dataset, Split, as_csr
from xmckit.data.xmc_text import row_text
from xmckit.errors import UsageError
from xmckit.params import Params
from xmckit.sparse.parse import LARGEST_INDEX, Grammar, SparseRows


class Svmlight(reading.FileReader):
    class Params(Params):
        zero_based: bool = Field(False, description="Whether features count from 0 (svmlight: from 1).")
        zero_based_labels: bool = Field(True, description="Whether labels count from 0 (otherwise from 1).")
        features: int | None = Field(
            None, ge=1, le=LARGEST_INDEX + 1, description="The number of features (default: the largest in the data)."
        )
        labels: int | None = Field(
            None, ge=1, le=LARGEST_INDEX + 1, description="The number of labels (default: the largest in the data)."
        )

    form = "a folder with svmlight text"
    looks_for = "train.svm with test.svm, or NAME.train.svm with NAME.test.svm (also .svmlight)"

    def layouts(self, path: Path) -> Sequence[Sequence[Path]]:
        """Return train and test of every data set in the folder."""
        train, test = (reading.matching_files(path, rf"(?:(.+)\.)?{part}\.svm(?:light)?") for part in ("train", "test"))
        return [(train[name], test[name]) for name in sorted(train.keys() & test.keys())]

    def files(self, path: Path) -> Sequence[Path]:
        return self.layout(path)

    def read(self, path: Path, *, context: Context) -> Dataset:
        files = self.files(path)
        parts = [self._parse(file, context) for file in files]
        features = self.params.features or max(1, *(part.features_seen for part in parts))
        labels = self.params.labels or max(1, *(part.labels_seen for part in parts))
        train, test = (Split(X=part.features(features), Y=part.labels(labels)) for part in parts)
        dataset = Dataset(name=path.resolve().name, train=train, test=test, info={"format": "svmlight"})
        return reading.check_dataset(dataset, *files)

    @property
    def _first_numbers(self) -> tuple[int, int]:
        """The numbers of the first label and of the first feature."""
        return int(not self.params.zero_based_labels), int(not self.params.zero_based)

    def _parse(self, path: Path, context: Context) -> SparseRows:
        text = reading.read_bytes(path)
        first_label, first_feature = self._first_numbers
        grammar = Grammar(
            labels=self.params.labels or LARGEST_INDEX + 1,
            features=self.params.features or LARGEST_INDEX + 1,
            first_label=first_label,
            first_feature=first_feature,
            annotated=True,
        )
        expected = f"features are numbered from {first_feature} and labels from {first_label}"
        return reading.read_rows(path, text, 0, grammar, context=context, expected=expected)

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `train.svm` and `test.svm`, numbered according to the parameters."""
        first_label, first_feature = self._first_numbers
        reading.check_one_matrix(dataset, "svmlight", "texts", "weights", "groups", "filter", "names")
        if dataset.label_names is not None or dataset.label_features is not None:
            raise UsageError("svmlight cannot hold label names or label features: use npz or xmc")
        _check_column_counts(dataset, {"features": self.params.features, "labels": self.params.labels})
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            X = as_csr(split.X)
            with store.atomic_file(folder / f"{part}.svm") as stream:
                for row in range(split.rows):
                    line = row_text(X, split.Y, row, first_label, first_feature).strip()
                    stream.write((line or f"{first_feature}:0").encode("ascii") + b"\n")


def _check_column_counts(dataset: Dataset, declared: Mapping[str, int | None]) -> None:
    """Raise UsageError if empty last columns would be lost, because no parameter declares the number of columns."""
    splits = (dataset.train, dataset.test)
    matrices = {"features": [as_csr(split.X) for split in splits], "labels": [split.Y for split in splits]}
    for what, parts in matrices.items():
        size, used = parts[0].shape[1], 1 + max(int(part.indices.max(initial=-1)) for part in parts)
        if size not in (used, declared[what]):
            raise UsageError(
                f"svmlight does not say how many {what} there are, and the last {size - used} of {size} are empty: use "
                f"npz or xmc, or write and read it with the parameter {what} = {size}"
            )
