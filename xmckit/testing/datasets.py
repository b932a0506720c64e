"""The checks of data sets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xmckit.context import Context
from xmckit.errors import XmckitError, counted
from xmckit.params import InputPath
from xmckit.testing import common
from xmckit.testing.assertions import assert_dataset, differing, expect_error, flat, require, skip_unless
from xmckit.testing.subjects import Subject, files_below


class DatasetSubject(Subject):
    """A small data set. The files that its parameters name are its input."""

    def paths(self) -> dict[str, Path]:
        """Return the parameters that are paths to read."""
        fields = self.cls.Params.model_fields
        marked = [name for name, field in fields.items() if any(isinstance(m, InputPath) for m in field.metadata)]
        return {name: Path(self.params[name]) for name in marked if self.params.get(name)}

    def inputs(self) -> dict[str, Any]:
        return {name: contents(path) for name, path in self.paths().items()}

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        data = ready.read(context=context)
        return flat({"data": data, "fingerprint": dict(sorted(ready.fingerprint(context=context).items()))}, "")


def contents(path: Path) -> dict[str, np.ndarray]:
    """Return the bytes of a file, or of all files below a folder."""
    return {str(file): np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in files_below(path)}


@contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    """Yield a copy of a file or folder, to be damaged."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / path.name
        shutil.copytree(path, copy) if path.is_dir() else shutil.copy2(path, copy)
        yield copy


def data_is_well_formed(subject: DatasetSubject) -> str:
    return assert_dataset(subject.ready.read(context=subject.context))


def fingerprint_covers_seed(subject: DatasetSubject) -> str:
    """Data that depends on the seed has another fingerprint with another seed."""
    prints, data = [], []
    for seed in (0, 1):
        context = subject.context.using(seed=seed)
        fingerprint = subject.ready.fingerprint(context=context)
        texts = chain.from_iterable(fingerprint.items()) if isinstance(fingerprint, Mapping) else [None]
        sound = all(isinstance(text, str) for text in texts)
        require(sound, f"fingerprint() is {fingerprint!r}, expected texts by name")
        prints.append(dict(fingerprint))
        data.append(flat(subject.ready.read(context=context), "data"))
    same = not differing(*data)
    require(same or prints[0] != prints[1], "another seed gives other data and the same fingerprint")
    return "" if same else "depends on the seed"


def fingerprint_covers_files(subject: DatasetSubject) -> str:
    """Equal prints mean equal data: half of a file gives the same data, another print, or an error."""
    paths = subject.paths()
    skip_unless(bool(paths), "it has no parameter that is a path")
    changed = 0
    for name, path in paths.items():
        with copy_of(path) as copy:
            data = subject.cls(**{**subject.params, name: copy})
            first, known = data.fingerprint(context=subject.context), flat(data.read(context=subject.context))
            for file in files_below(copy):
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
    skip_unless(bool(paths), "it has no parameter that is a path")
    for name, path in paths.items():
        with expect_error(f"a {name} that does not exist", "no-such-file"):
            missing = subject.cls(**{**subject.params, name: path.with_name("no-such-file")})
            missing.read(context=subject.context)
    return ", ".join(paths)


CHECKS = common.checks_in(globals())
