"""The checks of data sets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.errors import XmckitError
from xmckit.params import InputPath
from xmckit.testing import common
from xmckit.testing.assertions import NotApplicable, assert_dataset, counted, differing, flat, require
from xmckit.testing.subjects import Subject


class DatasetSubject(Subject):
    """A small data set. The files that its parameters name are its input."""

    kind = "dataset"

    def paths(self) -> dict[str, Path]:
        """Return the parameters that are paths to read."""
        fields = self.cls.Params.model_fields
        marked = [name for name, field in fields.items() if any(isinstance(m, InputPath) for m in field.metadata)]
        return {name: Path(self.params[name]) for name in marked if self.params.get(name)}

    def inputs(self) -> dict[str, Any]:
        return {name: contents(path) for name, path in self.paths().items()}

    def make(self, context: Context) -> Any:
        return self.component()

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        data = ready.read(context=context)
        return flat({"data": data, "fingerprint": dict(sorted(ready.fingerprint(context=context).items()))}, "")


def contents(path: Path) -> dict[str, np.ndarray]:
    """Return the bytes of a file, or of all files below a folder."""
    return {str(file): np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in _files(path)}


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Yield a copy of a file or folder, to be damaged."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / path.name
        shutil.copytree(path, copy) if path.is_dir() else shutil.copy2(path, copy)
        yield copy


def data_is_well_formed(subject: DatasetSubject) -> str:
    return assert_dataset(subject.ready.read(context=subject.context))


def fingerprint_covers_seed(subject: DatasetSubject) -> str:
    """Equal prints mean equal data: if another seed gives other data, it gives another print."""
    prints, data = [], []
    for seed in (0, 1):
        context = subject.context.using(seed=seed)
        found = subject.ready.fingerprint(context=context)
        sound = isinstance(found, Mapping) and all(isinstance(text, str) for item in found.items() for text in item)
        require(sound, f"fingerprint() is {found!r}, expected texts by name")
        prints.append(dict(found))
        data.append(flat(subject.ready.read(context=context), "data"))
    same = not differing(*data)
    require(same or prints[0] != prints[1], "another seed gives other data and the same fingerprint")
    return "" if same else "depends on the seed"


def fingerprint_covers_files(subject: DatasetSubject) -> str:
    """Equal prints mean equal data: half of a file gives the same data, another print, or an error."""
    paths = subject.paths()
    if not paths:
        raise NotApplicable("it has no parameter that is a path")
    changed = 0
    for name, path in paths.items():
        with copied(path) as copy:
            data = subject.cls(**{**subject.params, name: copy})
            first, known = data.fingerprint(context=subject.context), flat(data.read(context=subject.context))
            for file in _files(copy):
                content = file.read_bytes()
                lines = content.splitlines(keepends=True)
                file.write_bytes(b"".join(lines[: len(lines) // 2]))
                try:
                    same = data.fingerprint(context=subject.context) == first
                    differ = differing(known, flat(data.read(context=subject.context)))
                except XmckitError:
                    continue
                finally:
                    file.write_bytes(content)
                changed += bool(differ)
                require(not same or not differ, f"half of {file.name} gives other data and the same fingerprint")
    return counted(changed, "change")


def missing_path_is_named(subject: DatasetSubject) -> str:
    paths = subject.paths()
    if not paths:
        raise NotApplicable("it has no parameter that is a path")
    for name, path in paths.items():
        try:
            missing = subject.cls(**{**subject.params, name: path.with_name("no-such-file")})
            missing.read(context=subject.context)
        except XmckitError as error:
            require("no-such-file" in str(error), f"the error does not name what is missing: {error}")
            continue
        raise AssertionError(f"read a {name} that does not exist")
    return ", ".join(paths)


CHECKS: tuple[Callable[[DatasetSubject], str], ...] = (
    *common.FIRST,
    data_is_well_formed,
    fingerprint_covers_seed,
    fingerprint_covers_files,
    missing_path_is_named,
    *common.ALWAYS,
)
