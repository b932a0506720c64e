"""Small correct data sets and readers, and some that each break one rule of the contract."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

import xmckit
from xmckit import store

# Data sets


class Lines(xmckit.Configured):
    """Numbers of a file, one a line: odd ones have the first label."""

    class Params(xmckit.Params):
        path: xmckit.DataPath = Field(description="The file.")

    def fingerprint(self, *, context):
        return {"file": store.file_sha256(self.params.path), "seed": str(context.seed)}

    def read(self, *, context):
        try:
            numbers = [int(line) for line in self.params.path.read_text().split()]
        except OSError as error:
            raise xmckit.DataError("cannot be read", path=self.params.path) from error
        order = context.rng("lines").permutation(len(numbers))
        rows = np.array(numbers)[order]
        X = csr_matrix(rows[:, None].astype(np.float32) + 1)
        Y = csr_matrix(np.column_stack([rows % 2, 1 - rows % 2]).astype(np.float32))
        half = len(rows) // 2
        return xmckit.Dataset("lines", xmckit.Split(X[:half], Y[:half]), xmckit.Split(X[half:], Y[half:]))


def lines(folder):
    (folder / "numbers.txt").write_text("\n".join(map(str, range(20))))
    return {"path": str(folder / "numbers.txt")}


class GivesOddShapes(Lines):
    def read(self, *, context):
        data = super().read(context=context)
        return replace(data, test=replace(data.test, Y=data.test.Y[:, :1]))


class ForgetsTheSeed(Lines):
    def fingerprint(self, *, context):
        return {"file": store.file_sha256(self.params.path)}


class TrustsNames(Lines):
    def fingerprint(self, *, context):
        return {"file": self.params.path.name, "seed": str(context.seed)}


class LeavesErrorsToPython(Lines):
    def read(self, *, context):
        self.params.path.read_bytes()
        return super().read(context=context)


class TidiesUp(Lines):
    def read(self, *, context):
        data = super().read(context=context)
        with contextlib.suppress(OSError):
            self.params.path.write_text("\n".join(sorted(self.params.path.read_text().split())))
        return data


class DependsOnHashes(Lines):
    def read(self, *, context):
        data = super().read(context=context)
        return replace(data, label_names=list({f"numbers {n}" for n in range(40)})[:2])


# Readers


class Tabbed(xmckit.Configured):
    """train.tab and test.tab: a label, a tab and a text on each line."""

    def matches(self, path):
        return all((path / f"{part}.tab").is_file() for part in ("train", "test"))

    def files(self, path):
        if not self.matches(path):
            raise xmckit.DataError("expected train.tab and test.tab", path=path)
        return [path / "train.tab", path / "test.tab"]

    def read(self, path, *, context):
        splits = [self.split(file) for file in self.files(path)]
        return xmckit.Dataset("tabbed", *splits, label_names=[f"label {n}" for n in range(11)])

    def split(self, file):
        rows, labels, texts = [], [], []
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            for row, line in enumerate(lines):
                given, text = line.split("\t")
                for label in json.loads(given):
                    rows.append(row)
                    labels.append(int(label))
                texts.append(text)
        except (ValueError, TypeError) as error:
            raise xmckit.DataError(f"not tabbed text: {error}", path=file) from None
        if not rows or min(labels) < 0 or max(labels) > 10:
            raise xmckit.DataError("labels 0 to 10 are expected", path=file)
        Y = csr_matrix((np.ones(len(rows), np.float32), (rows, labels)), shape=(len(texts), 11))
        Y.sum_duplicates()
        return xmckit.Split(X=None, Y=Y, texts=texts)

    def write(self, dataset, folder):
        for part, split in (("train", dataset.train), ("test", dataset.test)):
            if split.texts is None:
                raise xmckit.UsageError("tabbed text has no features")
            rows = [f"{split.Y[row].indices.tolist()}\t{text}\n" for row, text in enumerate(split.texts)]
            (folder / f"{part}.tab").write_text("".join(rows))


class ReadsBadData(Tabbed):
    def split(self, file):
        found = super().split(file)
        return replace(found, texts=found.texts[1:])


class MatchesAnything(Tabbed):
    def matches(self, path):
        return True


class RaisesWhenAsked(Tabbed):
    def matches(self, path):
        return any(path.iterdir()) and super().matches(path)


class OpensMore(Tabbed):
    def files(self, path):
        return super().files(path)[:1]

    def read(self, path, *, context):
        files = Tabbed.files(self, path)
        return xmckit.Dataset("tabbed", self.split(files[0]), self.split(files[1]))


class LooksForNothing(Tabbed):
    looks_for = None


class LosesTexts(Tabbed):
    def split(self, file):
        found = super().split(file)
        return replace(found, texts=[text.upper() for text in found.texts])


class TrustsItsFiles(Tabbed):
    def split(self, file):
        try:
            return super().split(file)
        except xmckit.DataError:
            raise ValueError("bad file") from None


class ReadsMissingFiles(Tabbed):
    def files(self, path):
        return [path / "train.tab", path / "test.tab"]
