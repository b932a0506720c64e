"""The checks of readers."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.data.model import Dataset
from xmckit.errors import XmckitError, counted, one_line
from xmckit.protocols import ReaderWithHint, Writer, offers
from xmckit.testing import common
from xmckit.testing.assertions import assert_close, assert_dataset, expect_error, flat, require, require_none
from xmckit.testing.datasets import contents, copy_of
from xmckit.testing.monitoring import monitor
from xmckit.testing.problems import small_dataset
from xmckit.testing.subjects import Subject, covers, kept_folder

JUNK = bytes(range(128, 256)) * 3


class ReaderSubject(Subject):
    """A reader with a small example in its format: `example`, or else what its own `write` makes."""

    def needs(self) -> list[str]:
        given = self.example is not None or offers(self.cls, Writer)
        return super().needs() + ([] if given else ["--example PATH, which is small and in its format"])

    @cached_property
    def path(self) -> Path:
        if self.example is not None:
            return Path(self.example)
        folder = kept_folder(self) / "small"
        folder.mkdir()
        self._write(folder)
        self.example = str(folder)
        return folder

    def _write(self, folder: Path) -> Dataset:
        """Write a data set that the format can hold, with a feature matrix or else with texts, and return it."""
        reader = self.component()
        last: XmckitError | None = None
        named = small_dataset()
        for data in (named, replace(named, label_names=None), small_dataset(texts=True)):
            try:
                reader.write(data, folder)
            except XmckitError as error:
                last = error
            else:
                return data
        raise AssertionError(f"it cannot write a small data set: {last}")

    def inputs(self) -> dict[str, Any]:
        return contents(self.path)

    def make(self, context: Context) -> Any:
        self.path  # noqa: B018  # the example is written before monitoring starts
        return self.component()

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return flat(ready.read(self.path, context=context), "data")


def data_is_well_formed(subject: ReaderSubject) -> str:
    return assert_dataset(subject.ready.read(subject.path, context=subject.context))


def matches_only_its_format(subject: ReaderSubject) -> None:
    reader = subject.ready
    require(reader.matches(subject.path) is True, f"matches() is not True for {subject.path.name}")
    with tempfile.TemporaryDirectory() as name:
        for folder in ("empty", "folder"):
            Path(name, folder).mkdir()
        for file in ("junk.bin", "folder/train"):
            Path(name, file).write_bytes(JUNK)
        for other in ("nothing", "empty", "junk.bin", "folder"):
            answer = reader.matches(Path(name, other))
            require(answer is False, f"matches() is {answer!r} for a path that is not in its format ({other})")


def files_lists_all_read_files(subject: ReaderSubject) -> str:
    """A change in a file that is not listed would go unnoticed, and old results would be used."""
    path = subject.path.resolve()
    named = [Path(file).resolve() for file in subject.ready.files(subject.path)]
    require(bool(named), "files() names none")
    require_none("files() names files that do not exist:", [file.name for file in named if not file.is_file()])
    with tempfile.TemporaryDirectory() as scratch, monitor(Path(scratch)) as seen:
        subject.ready.read(subject.path, context=subject.context)
    opened = {file.resolve() for file in seen.reads if file.resolve().is_relative_to(path) and file.is_file()}
    unnamed = sorted(file.relative_to(path) for file in opened - set(named))
    require_none("read() opens files that files() does not name:", unnamed)
    return counted(len(named), "file")


@covers(ReaderWithHint)
def looks_for_is_text(subject: ReaderSubject) -> str:
    hint = subject.cls.looks_for
    require(isinstance(hint, str) and bool(hint.strip()), f"`looks_for` is {hint!r}, expected the names of its files")
    return hint


@covers(Writer)
def written_data_reads_back(subject: ReaderSubject) -> str:
    with tempfile.TemporaryDirectory() as name:
        wrote = subject._write(Path(name))
        read = subject.component().read(Path(name), context=subject.context)
    for part, one, other in (("train", wrote.train, read.train), ("test", wrote.test, read.test)):
        assert_close(one.Y, other.Y, f"{part}: labels")
        if one.X is not None:
            assert_close(one.matrix, other.matrix, f"{part}: features")
        if one.texts is not None:
            require(list(one.texts) == list(other.texts or ()), f"{part}: other texts")
    return f"{read.train.rows} + {read.test.rows} rows"


def damaged_files_are_named(subject: ReaderSubject) -> str:
    """A damaged file is refused by an error that names it, or read as sound data."""
    refused = tried = 0
    with copy_of(subject.path) as copy:
        for file in [Path(name) for name in subject.ready.files(copy)]:
            content = file.read_bytes()
            for damage in (content[: len(content) // 2], b"", JUNK):
                file.write_bytes(damage)
                tried += 1
                try:
                    assert_dataset(subject.component().read(copy, context=subject.context))
                except XmckitError as error:
                    refused += 1
                    require(str(copy) in str(error), f"the error about {file.name} does not say where: {error}")
                except Exception as error:  # any error is a result
                    raise AssertionError(f"{file.name} is damaged: {one_line(error)}") from error
            file.write_bytes(content)
    require(refused > 0, "every damaged file was read without an error")
    return f"{refused} of {tried} refused, the others sound"


def missing_path_is_named(subject: ReaderSubject) -> None:
    missing = subject.path.with_name("no-such-file")
    with expect_error("files() of a path that does not exist", missing.name):
        subject.ready.files(missing)
    with expect_error("read() of a path that does not exist", missing.name):
        subject.ready.read(missing, context=subject.context)


CHECKS = common.checks_in(globals())
