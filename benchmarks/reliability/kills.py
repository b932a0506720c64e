"""Kill a run before and after every operation on its files, and see whether it resumes as if nothing had happened.

    python -m benchmarks.reliability.kills [--recipe NAME] [--points N | --minutes M]

A first run counts the operations: every rename, link, fsync, unlink, mkdir, rmdir, and every open for writing below the
folder of runs. Then, for each of them, a fresh process runs the recipe and kills itself with SIGKILL right before it,
and another one right after it. After each kill: `xmckit runs ls` works, nothing half-written has a final name, the run
resumes with the same predictions, metrics and verdicts, no temporary file is left, and another run that shares the
cache gives the same too. All processes are forks of one that has imported everything, and the files are in memory where
that is possible. `--points` takes that many kills only, and `--minutes` starts none after that time, in random order.
Without `--points` the counts are stored: `kills` is below `points` if the time was over.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import functools
import gc
import io
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import paths

RESULTS = paths.RESULTS / "reliability_kills.json"
PLUGIN = Path(__file__).resolve().parents[2] / "tests" / "assets" / "toy_plugin.py"
LIMIT = 120  # seconds of one process
MEMORY = Path("/dev/shm")
LINKED = 2000  # bytes: files of these small runs from this size on are linked, as large files are
_WRITES = set("wax+")

DATA = """
seed = 3
workers = 1
[data]
use = "synthetic"
rows = 60
test_rows = 20
features = 40
labels = 12
topics = 3
"""
RECIPES = {
    "small": DATA
    + """
[head]
use = "bsl"
dim = 4
epochs = 1
[head.encoder]
use = "sparse-linear"
width = 8
""",
    "every-stage": DATA
    + """
[[labels]]
use = "drop"
least = 2
[[index]]
use = "frequent"
[[head]]
use = "shortlisted"
[[head]]
use = "popularity"
[verify]
use = "argmax"
most = 10
""",
}


class Operations:
    """Counts the operations on files below `root`, and kills the process at one of them."""

    def __init__(self, root: Path, stop: tuple[int, str] | None = None):
        self.root, self.stop = str(root), stop
        self.kinds: list[str] = []

    def install(self) -> None:
        for name in ("rename", "replace", "link", "symlink", "unlink", "remove", "mkdir", "rmdir", "fsync", "open"):
            self._wrap(os, name, name)
        builtins.open = io.open = self._wrapped("open to write", io.open)  # type: ignore[assignment]
        accessor = getattr(pathlib, "_NormalAccessor", None)  # pathlib of Python 3.10 has functions of its own
        for name in ("rename", "replace", "link", "unlink", "mkdir", "rmdir") if accessor is not None else ():
            setattr(accessor, name, staticmethod(getattr(os, name)))

    def _wrap(self, owner: Any, name: str, kind: str) -> None:
        setattr(owner, name, self._wrapped(kind, getattr(owner, name)))

    def _wrapped(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if not self._counts(kind, arguments, options):
                return original(*arguments, **options)
            number = len(self.kinds)
            self.kinds.append(kind)
            self._kill_at(number, "before")
            try:
                return original(*arguments, **options)
            finally:
                self._kill_at(number, "after")

        return wrapped

    def _kill_at(self, number: int, when: str) -> None:
        if self.stop == (number, when):
            os.kill(os.getpid(), signal.SIGKILL)

    def _counts(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
        if kind == "open":
            flags = arguments[1] if len(arguments) > 1 else options.get("flags", 0)
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return False
        if kind == "open to write":
            mode = arguments[1] if len(arguments) > 1 else options.get("mode", "r")
            if not _WRITES & set(mode):
                return False
        return self._place(arguments[0], options.get("dir_fd")).startswith(self.root)

    def _place(self, what: Any, folder: int | None) -> str:
        if isinstance(what, int):
            return os.readlink(f"/proc/self/fd/{what}")
        path = os.fsdecode(what)
        return (
            os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path) if folder is not None else os.path.abspath(path)
        )


# -- processes -------------------------------------------------------------------------------------------------------


def fork(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do the work in a fork of this process; return how it ended (0, or the signal) and what it returned."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        signal.alarm(LIMIT)
        os.close(read)
        code = 1
        try:
            answer = json.dumps(work()).encode()
            with os.fdopen(write, "wb") as stream:
                stream.write(answer)
            code = 0
        except BaseException:  # noqa: BLE001  a fork must not return into its parent's code
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status), None
    if os.WEXITSTATUS(status):
        raise RuntimeError("a process failed: its error is above")
    return 0, json.loads(answer)


class Attack:
    """The kills of one recipe."""

    def __init__(self, name: str, folder: Path):
        self.recipe = folder / f"{name}.toml"
        self.recipe.write_text(RECIPES[name])
        self.root = folder / "runs"

    def run(self, root: Path, resume: Path | None = None) -> Path:
        from xmckit import pipeline
        from xmckit.registry import Registry

        return pipeline.run(self.recipe, root=root, resume=resume, registry=Registry(files=[PLUGIN])).path

    def count(self) -> list[str]:
        """Run the recipe in a fork; return the kinds of its operations."""

        def work() -> list[str]:
            operations = Operations(self.root)
            operations.install()
            self.run(self.root)
            return operations.kinds

        _, kinds = self._fresh(work)
        return list(kinds)

    def kill(self, number: int, when: str, expected: dict[str, str]) -> list[str]:
        """Kill a run at one point; return what was wrong afterwards."""

        def work() -> None:
            Operations(self.root, (number, when)).install()
            self.run(self.root)

        code, _ = self._fresh(work)
        if code != signal.SIGKILL:
            return [f"the run was not killed, but ended with {code}"]
        return list(fork(lambda: self.inspect(expected))[1])

    def _fresh(self, work: Callable[[], Any]) -> tuple[int, Any]:
        shutil.rmtree(self.root, ignore_errors=True)
        return fork(work)

    def inspect(self, expected: dict[str, str]) -> list[str]:
        """List the runs, resume the one that was killed, and run the recipe once more; return what is wrong."""
        from click.testing import CliRunner

        from xmckit.cli import xmckit as program
        from xmckit.runs import find_runs

        wrong: list[str] = []
        listed = CliRunner().invoke(program, ["-q", "runs", "ls", "--json", "--runs", str(self.root)])
        if listed.exit_code or "left out" in listed.output:
            wrong.append(f"runs ls: {listed.output}")
        wrong += [f"after the kill: {text}" for text in damage(self.root)]
        stopped = find_runs(self.root, lambda *found: wrong.append(str(found[-1])))
        if len(stopped) > 1:
            wrong.append(f"{len(stopped)} runs")
        finished = self.run(self.root, stopped[0].path if stopped else None)
        wrong += differences("resumed", results(finished), expected)
        wrong += [f"left behind: {path}" for path in leftovers(self.root)]
        wrong += [f"after the resume: {text}" for text in damage(self.root)]
        wrong += differences("another run", results(self.run(self.root)), expected)
        statuses = [run.status for run in find_runs(self.root)]
        if statuses != ["done", "done"]:
            wrong.append(f"the runs are {statuses}")
        return wrong


# -- what must hold --------------------------------------------------------------------------------------------------


def results(run: Path) -> dict[str, str]:
    """Return everything that a run claims, except times."""
    from xmckit import store

    content = {name: store.file_sha256(run / name) for name in ("predictions.npz", "sets.npz", "metrics.json")}
    if (run / "verdicts.json").is_file():
        content["certificates.npz"] = store.file_sha256(run / "certificates.npz")
        verdicts = json.loads((run / "verdicts.json").read_text(), object_hook=without_times)
        content["verdicts.json"] = store.canonical_sha256(verdicts)
    return content


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "seconds"}


def differences(who: str, found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return [
        f"{who}: another {name}" for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
    ]


def damage(root: Path) -> list[str]:
    """Return what is wrong in folders and files that have their final names."""
    from xmckit import store
    from xmckit.pipeline.cache import is_stage_key, why_incomplete
    from xmckit.pipeline.check import check_runs
    from xmckit.runs import find_run_folders

    runs = find_run_folders((), root)
    found = [f"{one.run}/{one.stage}/{one.file}: {one.why}" for one in check_runs(root, runs).damaged]
    folders = [folder for folder in (root / ".cache").glob("*") if is_stage_key(folder.name)]
    stages = [folder for run in runs for folder in (run / "stages").iterdir() if not folder.name.startswith(".")]
    for folder in [*folders, *stages]:
        key = folder.name if folder in folders else store.read_record(folder / store.STAGE_RECORD)["key"]
        found += [f"{folder}: {why}" for why in [why_incomplete(folder, key)] if why]
    return found


def leftovers(root: Path) -> list[str]:
    from xmckit import store

    return [
        str(path)
        for path in root.rglob("*")
        if path.name.startswith(store.TEMPORARY) or path.name == "scratch" or path.suffix == ".lock"
        if path.name != ".lock"  # the run's own lock file stays
    ]


# -- the command -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A fork has only the thread that forked: no library may start others before it."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
    yield


def attack(name: str, most: int | None, minutes: float, report: Callable[[str], None]) -> dict[str, Any]:
    """Kill a recipe at all points, or at `most` of them, or for some minutes; return the counts."""
    from xmckit.runs import provenance
    from xmckit.store import files

    started = time.monotonic()
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="xmckit-kills-", dir=memory) as folder, one_thread():
        files.LARGE = LINKED
        provenance.package_sha256 = functools.cache(provenance.package_sha256)  # half of the time of a small run
        target = Attack(name, Path(folder))
        # Once without a kill, in this process: it imports and compiles everything for all forks.
        expected = results(target.run(target.root))
        if wrong := target.inspect(expected):
            raise RuntimeError(f"a run that was not killed is wrong: {wrong}")
        kinds = target.count()
        if target.count() != kinds:
            raise RuntimeError("two runs do not do the same operations")
        gc.collect()
        gc.freeze()  # forks then share these objects
        points = [(number, when) for number in range(len(kinds)) for when in ("before", "after")]
        chosen = points if most is None else points[:: max(len(points) // most, 1)]
        random.Random(0).shuffle(chosen)
        failures, done = [], 0
        for number, when in chosen:
            if time.monotonic() - started > 60 * minutes:
                break
            wrong = target.kill(number, when, expected)
            failures += [f"{when} operation {number} ({kinds[number]}): {text}" for text in wrong]
            done += 1
            report(f"{name}: {done} of {len(chosen)} kills, {len(failures)} failures")
    return {
        "operations": len(kinds),
        "by_kind": dict(sorted(collections.Counter(kinds).items())),
        "points": len(points),
        "kills": done,
        "failures": failures,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    from xmckit.runs.provenance import library_versions, machine

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--recipe", action="append", choices=list(RECIPES), help="only this recipe; may repeat")
    options.add_argument("--points", type=int, help="number of kills for each recipe, evenly spread")
    options.add_argument("--minutes", type=float, default=float("inf"), help="start no kill after this time")
    chosen = options.parse_args()

    def report(text: str) -> None:
        print(f"\r{text}", end="", file=sys.stderr, flush=True)

    counts = {}
    for name in chosen.recipe or RECIPES:
        counts[name] = attack(name, chosen.points, chosen.minutes, report)
        if chosen.points is None:
            stored = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"recipes": {}}
            stored |= {"machine": machine(), "versions": library_versions()}
            stored["recipes"][name] = counts[name]
            RESULTS.write_text(json.dumps(stored, indent=2) + "\n")
    print(file=sys.stderr)
    print(json.dumps(counts, indent=2))
    sys.exit(any(count["failures"] for count in counts.values()))


if __name__ == "__main__":
    main()
