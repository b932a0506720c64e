"""Functions of Python source as rows, the names that they call as labels: real data wherever Python is installed.

Every function that calls something by name is a row. Its text describes it without its code: the words of its
docstring and, marked by kind, the parts of its name (`name_read`), arguments (`arg_path`), module and classes
(`path_json`) and decorators (`deco_property`). Its labels are the names called, `f` for both `f(…)` and `x.f(…)`. A
call belongs to the innermost function around it, so a nested function is a row of its own and does not lend its
calls to the function around it. Names called by fewer than `min_label_count` functions are no labels, and functions
left without a label are no rows.
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
from xmckit.data.model import Dataset, Groups, Split
from xmckit.data.python_functions import Function, ParsedFile, parse_files, printable
from xmckit.errors import DataError
from xmckit.params import Configured, DataPath, Params

FILES_PER_TASK = 16
# Starting worker processes takes about as long as parsing this many files.
FILES_WORTH_WORKERS = 100

GroupBy = Literal["none", "class", "file"]


class CallsParams(Params):
    """What can be chosen for any folder of source."""

    min_label_count: int = Field(2, ge=1, description="Names called by fewer functions than this are no labels.")
    test_share: float = Field(0.2, gt=0, lt=1, description="Share of the rows, drawn at random, that is the test set.")
    exclude: tuple[str, ...] = Field(
        ("test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__"),
        description="Names of folders that are left out, wherever they are.",
    )
    groups: GroupBy = Field(
        "none",
        description="Also give each class (functions outside of classes: their file) or each file as a group of rows.",
    )


class PythonSourceParams(CallsParams):
    path: DataPath = Field(description="The folder with Python source; folders inside it are searched too.")


class _Row(NamedTuple):
    function: Function
    path: str


class PythonSource(Configured):
    """The functions of any folder of Python source. It is parsed, never executed."""

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
    """The Python files below `folder` that are not in a folder named in `exclude`: relative paths, sorted."""
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
    """The results of the tasks in their order, so that the number of workers does not show in the data."""
    if workers <= 1:
        return (parse_files(folder, task) for task in tasks)
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=workers, return_as="generator")
    return iter(parallel(delayed(parse_files)(folder, task) for task in tasks))


def _keep_frequent(rows: list[_Row], min_label_count: int) -> tuple[list[_Row], list[str]]:
    """The rows that have a frequent label, and the frequent labels in alphabetical order."""
    counts = Counter(chain.from_iterable(row.function.calls for row in rows))
    labels = {label for label, count in counts.items() if count >= min_label_count}
    return [row for row in rows if not labels.isdisjoint(row.function.calls)], sorted(labels)


def _label_matrix(rows: list[_Row], label_names: list[str]) -> csr_matrix:
    """Rows × labels; a row's calls are sorted by name, as the labels are, so its indices ascend."""
    index = {label: column for column, label in enumerate(label_names)}
    per_row = [[index[call] for call in row.function.calls if call in index] for row in rows]
    indptr = np.concatenate([[0], np.cumsum([len(columns) for columns in per_row])])
    indices = np.fromiter(chain.from_iterable(per_row), dtype=np.int32, count=int(indptr[-1]))
    return csr_matrix((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(rows), len(label_names)))


def _split(rows: int, test_share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of train and test, each in the order of the source, neither empty."""
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
    """One group per class or file that has rows here, with how many of those rows have each label."""
    keys = [(row.path, row.function.owner if group_by == "class" else "") for row in rows]
    index = {key: column for column, key in enumerate(dict.fromkeys(keys))}
    columns = np.array([index[key] for key in keys], dtype=np.int32)
    membership = csr_matrix(
        (np.ones(len(rows), dtype=np.float32), columns, np.arange(len(rows) + 1)), shape=(len(rows), len(index))
    )
    labels = csr_matrix(membership.T @ Y)
    labels.sort_indices()
    return Groups(membership, labels, [printable(f"{path}:{owner}" if owner else path) for path, owner in index])


def _facts(files: list[ParsedFile], functions: int, rows: int) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "files": len(files),
        "functions_with_calls": functions,
        "functions_without_frequent_calls": functions - rows,
        "files_not_parsed": {printable(file.path): file.problem for file in files if file.problem is not None},
    }
