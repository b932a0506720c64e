"""Data sets from Python source, which is at hand on every machine: functions are rows, the names they call are labels.

Every function that calls something by name is a row. Its text describes it without its code: the words of its
docstring and, marked by kind, the parts of its name (`name_read`), arguments (`arg_path`), module and classes
(`path_json`) and decorators (`deco_property`). Its labels are the names it calls, `f` for both `f(…)` and `x.f(…)`. A
call belongs to the innermost function around it, so a nested function is a row of its own, and its calls do not count
for the outer function. Names that fewer than `min_label_count` functions call are not labels, and functions without a
label are not rows.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from xmckit.context import Context
from xmckit.data import reading
from xmckit.data.model import Dataset, Groups, Split, labels_of_groups
from xmckit.data.python_functions import Function, ParsedFile, parse_file, parse_files, printable
from xmckit.errors import DataError
from xmckit.params import Configured, DataPath, Params
from xmckit.processes import ProcessPool
from xmckit.sparse.csr import csr_from_lists

FILES_PER_TASK = 16
# Starting worker processes takes about as long as parsing this many files.
FILES_WORTH_WORKERS = 100

GroupBy = Literal["none", "class", "file"]


class CallsParams(Params):
    """Parameters for any folder of source."""

    min_label_count: int = Field(2, ge=1, description="Names that fewer functions call are not labels.")
    test_share: float = Field(0.2, gt=0, lt=1, description="Share of the rows that are drawn at random as test set.")
    exclude: tuple[str, ...] = Field(
        ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__"),
        description="Names of folders to leave out, at any depth.",
    )
    groups: GroupBy = Field(
        "none",
        description="Make each class (for functions outside classes: their file) or each file a group of rows.",
    )


class PythonSourceParams(CallsParams):
    path: DataPath = Field(description="The folder with Python source; folders inside it are searched too.")


class PythonSource(Configured):
    """The functions of a folder of Python source, which is parsed and never executed."""

    Params: ClassVar[type[Params]] = PythonSourceParams

    @property
    def name(self) -> str:
        return f"python-source/{printable(self.folder.resolve().name)}"

    @property
    def folder(self) -> Path:
        return Path(self.params.path)

    @property
    def source(self) -> dict[str, str]:
        return {"source": f"Python files below {printable(str(self.folder))}"}

    def fingerprint(self, *, context: Context) -> dict[str, str]:
        digest = hashlib.sha256()
        paths = python_files(self.folder, self.params.exclude)
        with context.progress("hashing Python files", total=len(paths)) as bar:
            for path in paths:
                content = hashlib.sha256(reading.read_bytes(self.folder / path).tobytes()).digest()
                digest.update(os.fsencode(path) + b"\0" + content)
                bar.advance()
        return {"seed": str(context.seed), "python": platform.python_version(), "files": digest.hexdigest()}

    def read(self, *, context: Context) -> Dataset:
        files = self._parse(python_files(self.folder, self.params.exclude), context)
        functions = [function for file in files for function in file.functions]
        kept, label_names = _keep_frequent(functions, self.params.min_label_count)
        problems = {printable(file.path): file.problem for file in files if file.problem is not None}
        if len(kept) < 2:
            raise DataError(
                f"{len(kept)} functions call a name that at least {self.params.min_label_count} functions call, in "
                f"{len(files)} Python files ({len(problems)} of them could not be parsed); at least 2 are needed for a "
                "train and a test set",
                path=self.folder,
            )
        index = {label: column for column, label in enumerate(label_names)}
        # Calls and labels are both sorted by name, so the columns of a row ascend.
        Y = csr_from_lists([[index[call] for call in row.calls if call in index] for row in kept], len(index))
        rows = Split(X=None, Y=Y, texts=[row.text for row in kept], names=[row.name for row in kept])
        train, test = _split(len(kept), self.params.test_share, context.rng("python-source", "split"))
        dataset = Dataset(
            name=self.name,
            train=_take(rows, kept, train, self.params.groups),
            test=_take(rows, kept, test, self.params.groups),
            label_names=label_names,
            info={
                **self.source,
                "python": platform.python_version(),
                "files": len(files),
                "functions_with_calls": len(functions),
                "functions_without_frequent_calls": len(functions) - len(kept),
                "files_not_parsed": problems,
            },
        )
        dataset.check()
        return dataset

    def _parse(self, paths: Sequence[str], context: Context) -> list[ParsedFile]:
        workers = context.workers if len(paths) >= FILES_WORTH_WORKERS else 1
        files = []
        with context.progress("parsing Python files", total=len(paths)) as bar:
            for parsed in _in_order(self.folder, paths, workers):
                files.append(parsed)
                bar.advance()
        return files


class StdlibCalls(PythonSource):
    """The standard library of the Python that is running."""

    Params: ClassVar[type[Params]] = CallsParams

    @property
    def name(self) -> str:
        return "stdlib-calls"

    @property
    def folder(self) -> Path:
        return Path(sysconfig.get_path("stdlib"))

    @property
    def source(self) -> dict[str, str]:
        implementation = f"{platform.python_implementation()} {platform.python_version()}"
        return {"source": f"the standard library of {implementation}", "licence": "PSF-2.0"}


def python_files(folder: Path, exclude: Sequence[str]) -> list[str]:
    """Return the sorted relative paths of the Python files below `folder`, outside folders named in `exclude`."""
    if not folder.is_dir():
        raise DataError(
            "expected a folder with Python files, found " + ("a file" if folder.exists() else "nothing"), path=folder
        )
    paths: list[str] = []
    for here, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders[:] = [name for name in folders if name not in exclude]
        files = [Path(here, name) for name in names if name.endswith(".py")]
        paths += [str(file.relative_to(folder)) for file in files if os.path.isfile(file)]
    if not paths:
        left_out = f", with {', '.join(exclude)} left out" if exclude else ""
        raise DataError(f"no Python files (*.py) in this folder{left_out}", path=folder)
    return sorted(paths)


def _raise_unreadable(error: OSError) -> None:
    raise DataError(f"cannot be read: {error.strerror}", path=error.filename) from None


def _in_order(folder: Path, paths: Sequence[str], workers: int) -> Iterator[ParsedFile]:
    """Return the parsed files in the order of the paths, so that the data does not depend on the number of workers."""
    if workers <= 1:
        yield from (parse_file(folder, path) for path in paths)
        return
    tasks = [paths[start : start + FILES_PER_TASK] for start in range(0, len(paths), FILES_PER_TASK)]
    with ProcessPool() as pool:
        for files in pool.map(functools.partial(parse_files, folder), tasks, workers=workers):
            yield from files


def _keep_frequent(functions: list[Function], min_label_count: int) -> tuple[list[Function], list[str]]:
    """Return the functions that have a frequent label, and the sorted frequent labels."""
    counts = Counter(chain.from_iterable(function.calls for function in functions))
    labels = {label for label, count in counts.items() if count >= min_label_count}
    return [function for function in functions if not labels.isdisjoint(function.calls)], sorted(labels)


def _split(rows: int, test_share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of train and test, in the order of the source; neither is empty."""
    test_rows = min(max(1, round(rows * test_share)), rows - 1)
    order = rng.permutation(rows)
    return np.sort(order[test_rows:]), np.sort(order[:test_rows])


def _take(rows: Split, functions: list[Function], chosen: np.ndarray, group_by: GroupBy) -> Split:
    """Return the chosen rows, with a group for each class or file that has some of them; labels count these rows."""
    split = rows.take(chosen)
    if group_by == "none":
        return split
    here = [functions[row] for row in chosen]
    keys = [(function.path, function.owner if group_by == "class" else "") for function in here]
    index = {key: column for column, key in enumerate(dict.fromkeys(keys))}
    membership = csr_from_lists([[index[key]] for key in keys], len(index))
    names = [printable(f"{path}:{owner}" if owner else path) for path, owner in index]
    return replace(split, groups=Groups(membership, labels_of_groups(membership, split.Y), names))
