"""Data sets from Python source, which is at hand on every machine: functions are rows, the names they call are labels.

Every function that calls something by name is a row. Its text describes it without its code: the words of its
docstring and, marked by kind, the parts of its name (`name_read`), arguments (`arg_path`), module and classes
(`path_json`) and decorators (`deco_property`). Its labels are the names it calls, `f` for both `f(…)` and `x.f(…)`. A
call belongs to the innermost function around it, so a nested function is a row of its own, and its calls do not count
for the outer function. Names that fewer than `min_label_count` functions call are not labels, and functions without a
label are not rows.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data.model import Dataset, Groups, Split, labels_of_groups
from xmckit.data.python_functions import Function, ParsedFile, parse_files, printable
from xmckit.errors import DataError
from xmckit.params import Configured, DataPath, Params
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


class _Row(NamedTuple):
    function: Function
    path: str


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
                digest.update(os.fsencode(path) + b"\0" + hashlib.sha256(_content(self.folder / path)).digest())
                bar.advance()
        return {"seed": str(context.seed), "python": platform.python_version(), "files": digest.hexdigest()}

    def read(self, *, context: Context) -> Dataset:
        files = self._parse(python_files(self.folder, self.params.exclude), context)
        rows = [_Row(function, file.path) for file in files for function in file.functions]
        kept, label_names = _keep_frequent(rows, self.params.min_label_count)
        if len(kept) < 2:
            raise DataError(
                f"{len(kept)} functions call a name that at least {self.params.min_label_count} functions call, in "
                f"{len(files)} Python files ({sum(file.problem is not None for file in files)} of them could not be "
                "parsed); at least 2 are needed for a train and a test set",
                path=self.folder,
            )
        Y = _label_matrix(kept, label_names)
        train, test = _split(len(kept), self.params.test_share, context.rng("python-source", "split"))
        dataset = Dataset(
            name=self.name,
            train=_make_split(kept, Y, train, self.params.groups),
            test=_make_split(kept, Y, test, self.params.groups),
            label_names=label_names,
            info={**self.source, **_facts(files, len(rows), len(kept))},
        )
        dataset.check()
        return dataset

    def _parse(self, paths: Sequence[str], context: Context) -> list[ParsedFile]:
        tasks = [list(paths[start : start + FILES_PER_TASK]) for start in range(0, len(paths), FILES_PER_TASK)]
        workers = context.workers if len(paths) >= FILES_WORTH_WORKERS else 1
        files: list[ParsedFile] = []
        with context.progress("parsing Python files", total=len(paths)) as bar:
            for parsed in _in_order(self.folder, tasks, workers):
                files.extend(parsed)
                bar.advance(len(parsed))
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
    paths = [
        str(PurePath(here, name).relative_to(folder))
        for here, names in _walk(folder, frozenset(exclude))
        for name in names
        if name.endswith(".py") and os.path.isfile(os.path.join(here, name))
    ]
    if not paths:
        left_out = f", with {', '.join(exclude)} left out" if exclude else ""
        raise DataError(f"no Python files (*.py) in this folder{left_out}", path=folder)
    return sorted(paths)


def _walk(folder: Path, exclude: frozenset[str]) -> Iterator[tuple[str, list[str]]]:
    def fail(error: OSError) -> None:
        raise DataError(f"cannot be read: {error.strerror}", path=error.filename) from None

    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if name not in exclude]
        yield here, names


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from None


def _in_order(folder: Path, tasks: list[list[str]], workers: int) -> Iterator[list[ParsedFile]]:
    """Return the results in the order of the tasks, so that the data does not depend on the number of workers."""
    if workers <= 1:
        return (parse_files(folder, task) for task in tasks)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=workers, return_as="generator")
    return iter(parallel(delayed(parse_files)(folder, task) for task in tasks))


def _keep_frequent(rows: list[_Row], min_label_count: int) -> tuple[list[_Row], list[str]]:
    """Return the rows that have a frequent label, and the sorted frequent labels."""
    counts = Counter(chain.from_iterable(row.function.calls for row in rows))
    labels = {label for label, count in counts.items() if count >= min_label_count}
    return [row for row in rows if not labels.isdisjoint(row.function.calls)], sorted(labels)


def _label_matrix(rows: list[_Row], label_names: list[str]) -> csr_matrix:
    """Return rows × labels. Calls and labels are both sorted by name, so the indices of a row ascend."""
    index = {label: column for column, label in enumerate(label_names)}
    return csr_from_lists([[index[call] for call in row.function.calls if call in index] for row in rows], len(index))


def _split(rows: int, test_share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of train and test, in the order of the source; neither is empty."""
    test_rows = min(max(1, round(rows * test_share)), rows - 1)
    order = rng.permutation(rows)
    return np.sort(order[test_rows:]), np.sort(order[:test_rows])


def _make_split(rows: list[_Row], Y: csr_matrix, chosen: np.ndarray, group_by: GroupBy) -> Split:
    here = [rows[row] for row in chosen]
    return Split(
        X=None,
        Y=Y[chosen],
        texts=[row.function.text for row in here],
        groups=_groups(here, Y[chosen], group_by) if group_by != "none" else None,
        names=[row.function.name for row in here],
    )


def _groups(rows: list[_Row], Y: csr_matrix, group_by: GroupBy) -> Groups:
    """Return a group for each class or file with rows in this split; labels count these rows."""
    keys = [(row.path, row.function.owner if group_by == "class" else "") for row in rows]
    index = {key: column for column, key in enumerate(dict.fromkeys(keys))}
    membership = csr_from_lists([[index[key]] for key in keys], len(index))
    return Groups(
        membership,
        labels_of_groups(membership, Y),
        [printable(f"{path}:{owner}" if owner else path) for path, owner in index],
    )


def _facts(files: list[ParsedFile], functions: int, rows: int) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "files": len(files),
        "functions_with_calls": functions,
        "functions_without_frequent_calls": functions - rows,
        "files_not_parsed": {printable(file.path): file.problem for file in files if file.problem is not None},
    }
