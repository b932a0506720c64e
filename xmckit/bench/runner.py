"""Run the cells of a suite that are not done, each in its own child process.

A cell is done if its `cell.json` says so for the same computation on the same data. If a cell crashes or exceeds its
time limit, the runner records that and continues with the next cell.
"""

from __future__ import annotations

import contextlib
import functools
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
from xmckit.bench.cells import FORMAT, SuiteCell, suite_cells
from xmckit.bench.suite import BASELINE, Suite, SuiteData
from xmckit.errors import RecipeError, UsageError, XmckitError
from xmckit.processes import THREAD_VARIABLES, describe_exit, start
from xmckit.recipe import Section, load_section
from xmckit.registry import Registry, make_context
from xmckit.runs import provenance
from xmckit.runs.run import utc_now

DONE, FAILED = "done", "failed"
NO_DATA, CRASHED, PAST_LIMIT, NO_BASELINE = "no data", "crashed", "past its limit", "no baseline"
_SHOWN_LINES = 15


# A data set that exists, as its [data] section with resolved paths and the checksum of its content; or what is wrong.
DataSource = tuple[Section, str] | XmckitError


@dataclass(frozen=True)
class CellJob:
    """The input of a worker that runs a cell; it can be pickled."""

    cell: SuiteCell
    identity: str
    checksum: str
    plugins: tuple[str, ...]
    until: float  # wall-clock time after which no cell starts


@dataclass
class SuiteSummary:
    """The keys of the cells by what happened to them; `failed` maps keys to reasons."""

    skipped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)

    def add(self, key: str, outcome: dict[str, Any] | None) -> None:
        """Add a cell that ran or failed before; an outcome of None means that the time was over."""
        if outcome is None:
            self.later.append(key)
        elif outcome["status"] == DONE:
            self.done.append(key)
        else:
            self.failed[key] = f"{outcome['reason']}: {outcome['error']}"


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
) -> SuiteSummary:
    """Run the cells that are not done.

    `announce` is called with the key of a cell and None when it starts, and with its outcome when it ends. For a
    missing data set it is called once, and not for its cells. `only` selects the cells with all these texts in their
    key, and the baselines that they need.
    """
    mapper = registry.resolve("executor", executor)()
    work.mkdir(parents=True, exist_ok=True)
    until = time.time() + 60 * minutes
    with store.locked(work / ".lock", f"{work} is being worked on by another process; wait for it or stop it"):
        cells = _select(suite, work, seeds, only)
        names = {cell.data.name for cell in cells}
        sources = {data.name: _locate(data, suite, registry, roots) for data in suite.data if data.name in names}
        planned = _jobs(cells, sources, registry, roots, until)
        summary = SuiteSummary()
        for name, source in sources.items():
            if isinstance(source, XmckitError):
                announce(name, {"status": FAILED, "reason": NO_DATA, "error": str(source)})
                for cell in cells:
                    if cell.data.name == name:
                        _record_no_data(cell, source, summary)
        pending = [job for job in planned if not _is_finished(job, retry_failed, summary)]
        # Baselines run first: peers read the rows and features of their runs.
        for baseline in (True, False):
            batch = [job for job in pending if (job.cell.system.kind == "baseline") is baseline]
            outcomes = mapper.map(functools.partial(_run_announced, announce), batch, workers=jobs)
            for job, outcome in zip(batch, outcomes, strict=True):
                summary.add(job.cell.key, outcome)
    return summary


def _select(suite: Suite, work: Path, seeds: Sequence[int], only: Sequence[str]) -> list[SuiteCell]:
    """Return the cells with all texts of `only` in their key, and the baselines of their data sets."""
    cells = suite_cells(suite, work, seeds)
    selected = {cell.key for cell in cells if all(part in cell.key for part in only)}
    if not selected:
        raise UsageError(f"no cell of the suite has {' and '.join(map(repr, only))} in its key")
    data = {cell.data.name for cell in cells if cell.key in selected}
    return [
        cell for cell in cells
        if cell.key in selected or (cell.system.kind == "baseline" and cell.data.name in data)
    ]  # fmt: skip


def _is_finished(job: CellJob, retry_failed: bool, summary: SuiteSummary) -> bool:
    """Return whether the cell need not run again; add it to the summary if so."""
    outcome = job.cell.outcome()
    if outcome is None or not _is_current(outcome, job, retry_failed):
        return False
    if outcome["status"] == DONE:
        summary.skipped.append(job.cell.key)
    else:
        summary.add(job.cell.key, outcome)
    return True


def _run_announced(announce: Announce, job: CellJob) -> dict[str, Any] | None:
    if time.time() > job.until:
        return None
    announce(job.cell.key, None)
    outcome = run_cell(job)
    announce(job.cell.key, outcome)
    return outcome


def _locate(data: SuiteData, suite: Suite, registry: Registry, roots: Sequence[Path]) -> DataSource:
    """Return the data set, or the error if it cannot be read, so that the other data sets can run."""
    context = make_context(registry=registry)
    try:
        section = load_section(
            "data", data.source, registry=registry, data_roots=roots, source=f"{suite.path.name}: {data.name}"
        )
        source = context.build("dataset", {"use": section.use, **section.params})
        prints = dict(source.fingerprint(context=context.using(seed=section.extra["seed"])))
    except XmckitError as error:
        return error
    return section, store.canonical_sha256(prints)


def _jobs(
    cells: Sequence[SuiteCell], sources: dict[str, DataSource], registry: Registry, roots: Sequence[Path], until: float
) -> list[CellJob]:
    """Return the jobs of all cells with data; raise a RecipeError that lists the mistakes of all cells."""
    files = tuple(str(plugin.file) for plugin in registry.plugins if plugin.origin == "file")
    jobs, mistakes = [], []
    for cell in cells:
        source = sources[cell.data.name]
        if isinstance(source, XmckitError):
            continue
        section, checksum = source
        try:
            recipe = None if cell.system.kind == "peer" else cell.recipe(section.resolved(), registry, roots)
            jobs.append(CellJob(cell, cell.identity(recipe), checksum, files, until))
        except RecipeError as error:
            mistakes += [f"{cell.suite.path.name}: {cell.key}: {mistake}" for mistake in error.mistakes]
    if mistakes:
        raise RecipeError(list(dict.fromkeys(mistakes)))
    return jobs


def _is_current(outcome: dict[str, Any], job: CellJob, retry_failed: bool) -> bool:
    """Return whether the outcome is that of the job, so that the cell need not run."""
    if outcome["identity"] != job.identity or outcome["checksum"] != job.checksum:
        return False
    if outcome["status"] == DONE:
        rows = job.cell.folder / "rows.npz"
        return rows.is_file() and (job.cell.system.kind == "peer" or (job.cell.work / outcome["run"]).is_dir())
    return not retry_failed


def _record_no_data(cell: SuiteCell, error: XmckitError, summary: SuiteSummary) -> None:
    """Write the error to cell.json, unless the cell was done earlier, with data."""
    outcome = cell.outcome()
    if outcome is None or outcome["status"] != DONE:
        outcome = _outcome(cell, "", "", {"reason": NO_DATA, "error": str(error)}, 0.0)
        cell.folder.mkdir(parents=True, exist_ok=True)
        store.write_json(cell.folder / "cell.json", outcome)
    summary.failed[cell.key] = f"{NO_DATA}: {error}"


def run_cell(job: CellJob) -> dict[str, Any]:
    """Run a cell in a child process; write and return its outcome."""
    cell, folder = job.cell, job.cell.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("cell.json", "found.json", "rows.npz", "rows.names.npz"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "model", ignore_errors=True)
    baseline = SuiteCell(cell.suite, cell.data, cell.suite.systems[0], 0, cell.work).outcome()
    if cell.system.kind == "peer" and (baseline is None or baseline["status"] != DONE):
        result: dict[str, Any] = {"reason": NO_BASELINE, "error": f"needs rows of the cell of {BASELINE}, which failed"}
        seconds = 0.0
    else:
        store.write_json(folder / "job.json", _job_file(job, baseline))
        result, seconds = _run_child(folder, cell.suite.threads, cell.system.limit)
    shutil.rmtree(folder / "model", ignore_errors=True)
    outcome = _outcome(cell, job.identity, job.checksum, result, seconds)
    store.write_json(folder / "cell.json", outcome)
    return outcome


def _job_file(job: CellJob, baseline: dict[str, Any] | None) -> dict[str, Any]:
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


def _run_child(folder: Path, threads: int, limit: float) -> tuple[dict[str, Any], float]:
    """Return the content of found.json, or how the child ended, and its seconds."""
    variables = {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "PYTHONHASHSEED": "0"}
    began = time.perf_counter()
    with open(folder / "output.txt", "wb") as output:
        child = start(
            "xmckit.bench.child:main", str(folder / "job.json"),
            variables=variables, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Processes that the child started must not outlive it, nor an interrupted suite.
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
    return "\n".join(text.strip().splitlines()[-_SHOWN_LINES:]) or "it printed nothing"


def _outcome(cell: SuiteCell, identity: str, checksum: str, result: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the content of cell.json, without absolute paths of this machine."""
    failed = "reason" in result
    if "error" in result:
        result["error"] = result["error"].replace(str(cell.work), "…").replace(str(Path.home()), "~")
    if "run" in result:
        result["run"] = os.path.relpath(result["run"], cell.work)
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
        **result,
    }
