"""Runs the cells of a suite that are not done, each in a child process of its own.

A cell is done when its `cell.json` says so, for the same question on the same data. Whatever happens to one cell, a
crash or a limit that it runs past, is written down, and the next one begins.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.bench.cells import FORMAT, Cell
from xmckit.bench.suite import BASELINE, Suite
from xmckit.errors import RecipeError, UsageError, XmckitError
from xmckit.processes import command, describe_exit
from xmckit.recipe import Section, load_section
from xmckit.registry import Registry, make_context
from xmckit.runs import provenance
from xmckit.runs.run import utc_now

DONE, FAILED = "done", "failed"
NO_DATA, CRASHED, PAST_LIMIT, NO_BASELINE = "no data", "crashed", "past its limit", "no baseline"
_SHOWN_LINES = 15
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "LOKY_MAX_CPU_COUNT", "NUMBA_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A data set that is there: its [data] with paths found, and the checksum of what it is made of."""

    section: Section
    checksum: str


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a cell; it can go to another process."""

    cell: Cell
    identity: str
    checksum: str
    plugins: tuple[str, ...]
    until: float  # by the wall clock; after it no cell begins


@dataclass
class Summary:
    """What a sitting did, by keys of cells."""

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)


Announce = Callable[[str, dict[str, Any] | None], None]


def run_suite(
    suite: Suite,
    work: Path,
    *,
    registry: Registry,
    roots: Sequence[Path] = (),
    seeds: Sequence[int] = (),
    retry_failed: bool = False,
    minutes: float = math.inf,
    executor: str = "serial",
    jobs: int = 1,
    only: Sequence[str] = (),
    announce: Announce = lambda key, outcome: None,
) -> Summary:
    """Run what is not done. `announce` hears of a cell when it begins, with None, and with its outcome when it ends; of
    a data set that is not there once, and not of its cells.

    `only` takes the cells whose key contains all these texts; baselines that others need are run in any case.
    """
    spread = registry.resolve("executor", executor)()
    work.mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes
    with store.locked(work / ".lock", f"{work} is being worked on by another process; wait for it or stop it"):
        wanted = _wanted(suite, work, seeds, only)
        names = {cell.data.name for cell in wanted}
        sources = {data.name: _find(data, suite, registry, roots) for data in suite.data if data.name in names}
        identities = _checked(wanted, sources, registry, roots)
        summary = Summary()
        todo = _todo(wanted, sources, identities, registry, until, retry_failed, summary, announce)
        # A baseline's run holds the rows and features that the peers get.
        first = [job for job in todo if job.cell.system.kind == "baseline"]
        rest = [job for job in todo if job.cell.system.kind != "baseline"]
        for batch in (first, rest):
            for job, outcome in zip(batch, spread.map(_Work(announce), batch, workers=jobs), strict=True):
                _note(summary, job.cell.key, outcome)
    return summary


def _wanted(suite: Suite, work: Path, seeds: Sequence[int], only: Sequence[str]) -> list[Cell]:
    """The cells that were asked for, and the baselines of their data sets."""
    cells = [Cell(suite, data, system, seed, work) for data, system, seed in suite.cells(seeds)]
    named = {cell.key for cell in cells if all(part in cell.key for part in only)}
    if not named:
        raise UsageError(f"no cell of the suite has {' and '.join(map(repr, only))} in its key")
    data = {cell.data.name for cell in cells if cell.key in named}
    return [
        cell for cell in cells
        if cell.key in named or (cell.system.kind == "baseline" and cell.data.name in data)
    ]  # fmt: skip


def _todo(
    cells: Sequence[Cell],
    sources: dict[str, Source | XmckitError],
    identities: dict[str, str],
    registry: Registry,
    until: float,
    retry_failed: bool,
    summary: Summary,
    announce: Announce,
) -> list[Job]:
    """The cells to run; those that need not be, or cannot since their data is not there, go into the summary."""
    files = tuple(str(plugin.file) for plugin in registry.plugins if plugin.origin == "file")
    todo = []
    for name, source in sources.items():
        if isinstance(source, XmckitError):
            announce(name, {"status": FAILED, "reason": NO_DATA, "error": str(source)})
    for cell in cells:
        source = sources[cell.data.name]
        if isinstance(source, XmckitError):
            _no_data(cell, source, summary)
            continue
        job = Job(cell, identities[cell.key], source.checksum, files, until)
        outcome = cell.outcome()
        if outcome is None or not _is_settled(outcome, job, retry_failed):
            todo.append(job)
        elif outcome["status"] == DONE:
            summary.skipped.append(cell.key)
        else:
            _note(summary, cell.key, outcome)
    return todo


@dataclass(frozen=True)
class _Work:
    announce: Announce

    def __call__(self, job: Job) -> dict[str, Any] | None:
        if time.time() > job.until:
            return None
        self.announce(job.cell.key, None)
        outcome = run_cell(job)
        self.announce(job.cell.key, outcome)
        return outcome


def _note(summary: Summary, key: str, outcome: dict[str, Any] | None) -> None:
    if outcome is None:
        summary.later.append(key)
    elif outcome["status"] == DONE:
        summary.done.append(key)
    else:
        summary.failed[key] = f"{outcome['reason']}: {outcome['error']}"


def _find(data: Any, suite: Suite, registry: Registry, roots: Sequence[Path]) -> Source | XmckitError:
    """The data set, or why it is not there: that is no reason to leave the others."""
    context = make_context(registry=registry)
    try:
        section = load_section(
            "data", data.source, registry=registry, data_roots=roots, source=f"{suite.path.name}: {data.name}"
        )
        source = context.build("dataset", {"use": section.use, **section.params})
        prints = dict(source.fingerprint(context=context.using(seed=section.extra["seed"])))
    except XmckitError as error:
        return error
    return Source(section, store.canonical_sha256(prints))


def _checked(
    cells: Sequence[Cell], sources: dict[str, Source | XmckitError], registry: Registry, roots: Sequence[Path]
) -> dict[str, str]:
    """The identity of every cell whose data is there; RecipeError with all that cannot work."""
    identities, mistakes = {}, []
    for cell in cells:
        source = sources[cell.data.name]
        if isinstance(source, XmckitError):
            continue
        try:
            recipe = None
            if cell.system.kind != "peer":
                recipe = cell.recipe(source.section.resolved(), registry, roots)
            identities[cell.key] = cell.identity(recipe)
        except RecipeError as error:
            mistakes += [f"{cell.suite.path.name}: {cell.key}: {mistake}" for mistake in error.mistakes]
    if mistakes:
        raise RecipeError(list(dict.fromkeys(mistakes)))
    return identities


def _is_settled(outcome: dict[str, Any], job: Job, retry_failed: bool) -> bool:
    if outcome["identity"] != job.identity or outcome["checksum"] != job.checksum:
        return False
    if outcome["status"] == DONE:
        kept = job.cell.folder / "rows.npz"
        return kept.is_file() and (job.cell.system.kind == "peer" or (job.cell.work / outcome["run"]).is_dir())
    return not retry_failed


def _no_data(cell: Cell, error: XmckitError, summary: Summary) -> None:
    """Written down, unless the cell was done when its data was there."""
    outcome = cell.outcome()
    if outcome is None or outcome["status"] != DONE:
        outcome = _outcome(cell, "", "", {"reason": NO_DATA, "error": str(error)}, 0.0)
        cell.folder.mkdir(parents=True, exist_ok=True)
        store.write_json(cell.folder / "cell.json", outcome)
    summary.failed[cell.key] = f"{NO_DATA}: {error}"


def run_cell(job: Job) -> dict[str, Any]:
    """Run a cell in a child process and write down what came of it."""
    cell, folder = job.cell, job.cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cell.json", "found.json", "rows.npz", "rows.names.npz"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "model", ignore_errors=True)
    baseline = Cell(cell.suite, cell.data, cell.suite.systems[0], 0, cell.work).outcome()
    if cell.system.kind == "peer" and (baseline is None or baseline["status"] != DONE):
        found: dict[str, Any] = {"reason": NO_BASELINE, "error": f"the cell of {BASELINE}, whose rows it needs, failed"}
        seconds = 0.0
    else:
        store.write_json(folder / "job.json", _job_file(job, baseline))
        found, seconds = _child(folder, cell.suite.threads, cell.system.limit)
    shutil.rmtree(folder / "model", ignore_errors=True)
    outcome = _outcome(cell, job.identity, job.checksum, found, seconds)
    store.write_json(folder / "cell.json", outcome)
    return outcome


def _job_file(job: Job, baseline: dict[str, Any] | None) -> dict[str, Any]:
    cell = job.cell
    peer: dict[str, Any] = {}
    if cell.system.kind == "peer":
        assert baseline is not None
        peer = {
            "use": cell.system.use,
            "options": dict(cell.system.options),
            "baseline": str(cell.work / baseline["run"]),
            "propensity": baseline["propensity"],
        }
    return {
        "kind": cell.system.kind,
        "changes": list(cell.system.changes),
        "seed": cell.seed,
        "threads": cell.suite.threads,
        "k": list(cell.suite.k),
        "root": str(cell.work / "runs"),
        "plugins": list(job.plugins),
        **peer,
    }


def _child(folder: Path, threads: int, limit: float) -> tuple[dict[str, Any], float]:
    """What the child found, or how it ended, and its seconds."""
    environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads)), "PYTHONHASHSEED": "0"}
    began = time.perf_counter()
    with open(folder / "output.txt", "wb") as output:
        child = subprocess.Popen(
            command("xmckit.bench.child:main", str(folder / "job.json")),
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # What a program started must not outlive it, nor an interrupted suite.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    seconds = time.perf_counter() - began
    if code is None:
        return {"reason": PAST_LIMIT, "error": f"stopped after {limit:g} seconds"}, seconds
    if code != 0 or not (folder / "found.json").is_file():
        return {"reason": CRASHED, "error": f"{describe_exit(code)}: {_last_lines(folder / 'output.txt')}"}, seconds
    return store.read_json(folder / "found.json"), seconds


def _last_lines(file: Path) -> str:
    with open(file, "rb") as stream:
        stream.seek(max(0, file.stat().st_size - 8192))
        text = stream.read().decode("utf-8", "replace")
    return "\n".join(text.strip().splitlines()[-_SHOWN_LINES:]) or "it said nothing"


def _outcome(cell: Cell, identity: str, checksum: str, found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The content of cell.json; nothing in it says where things lie on this machine."""
    failed = "reason" in found
    if "error" in found:
        found["error"] = found["error"].replace(str(cell.work), "…").replace(str(Path.home()), "~")
    if "run" in found:
        found["run"] = os.path.relpath(found["run"], cell.work)
    return {
        "format": FORMAT,
        "status": FAILED if failed else DONE,
        "data_set": cell.data.name,
        "system": cell.system.name,
        "kind": cell.system.kind,
        "seed": cell.seed,
        "identity": identity,
        "checksum": checksum,
        "threads": cell.suite.threads,
        "machine": provenance.machine(),
        "ended": utc_now(),
        "seconds": round(seconds, 3),
        **found,
    }
