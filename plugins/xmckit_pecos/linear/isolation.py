"""Run PECOS in a subprocess, so that a crash in C++ becomes a Python exception.

With `isolated`, another process does the work: it reads the data from files and leaves its result in files. If it dies,
an error says how. Otherwise PECOS runs in this process. If that crashes, Python's faulthandler prints on stderr where,
and a note stays in the scratch folder. When the stage is resumed, the note makes PECOS run isolated. Isolation is not
the default because starting a process takes seconds: the models of cve_libraries, which train in one second, take four
or five that way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import Context, DataError, Matrix, PluginError, UsageError, XmckitError, store
from xmckit.processes import describe_exit, end_with_stdin, start
from xmckit_pecos import PECOS
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import TrainingRows, features
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TrainingOptions

NOTE, LAST_WORDS = "pecos-at-work.json", "pecos-last-words.txt"
_EXCHANGE, _JOB, _RESULT, _ERROR = "pecos-files-", "job.json", "result", "error.json"
_ERRORS: dict[str, type[XmckitError]] = {kind.__name__: kind for kind in (DataError, UsageError)}
_ADVICE: dict[int, str] = {
    signal.SIGKILL: "Only the system or a person sends this signal: most likely memory ran out. Try a larger `prune`, "
    "fewer features, or fewer copies of labels",
    signal.SIGILL: "This processor lacks an instruction that PECOS was built with. Try a libpecos built on it",
}
_OTHER_ADVICE = (
    "This is a bug in PECOS, or in the libraries beside it. Try --workers 1, other `negatives`, or `xmckit doctor`"
)


def leaf_codes(X: Matrix, Y: csr_matrix, depth: int, seed: int, context: Context, *, isolated: bool) -> np.ndarray:
    """Run `bridge.balanced_codes` over embeddings of the labels, and return the leaf of each label."""
    settings = {"depth": depth, "seed": seed, "threads": context.workers}
    with _exchange_folder("clustering the labels", context, isolated) as folder:
        if folder is None:
            return _leaf_codes(X, Y, **settings)
        _write_rows(folder, TrainingRows(X, Y))
        _run_child(folder, {"job": "codes", **settings}, context)
        return store.read_array(folder / _RESULT / "codes.npz", "codes", "iu", (Y.shape[1],), low=0)


def train(
    rows: TrainingRows,
    tree: LabelTree,
    options: TrainingOptions,
    context: Context,
    *,
    isolated: bool,
    matcher: LinearModel | None = None,
    to_leaves: bool = False,
) -> LinearModel:
    """Run `bridge.train` with the threads of the context."""
    task = "training the levels above the leaves" if to_leaves else "training the linear models"
    with _exchange_folder(task, context, isolated) as folder:
        if folder is None:
            return _bridge().train(rows, tree, options, context.workers, matcher=matcher, to_leaves=to_leaves)
        _write_rows(folder, rows)
        tree.save(folder)
        if matcher is not None:
            matcher.save(folder / "matcher")
        job = {"job": "train", "training": asdict(options), "threads": context.workers, "to_leaves": to_leaves}
        _run_child(folder, job, context)
        return LinearModel.load(folder / _RESULT)


def _leaf_codes(X: Matrix, Y: csr_matrix, depth: int, seed: int, threads: int) -> np.ndarray:
    bridge = _bridge()
    return np.asarray(bridge.balanced_codes(bridge.label_embeddings(X, Y, threads), depth, seed, threads))


def _bridge() -> Any:
    """Import PECOS, which only training needs."""
    try:
        from xmckit_pecos.linear import bridge
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pecos":
            raise
        raise PluginError(f"trees are trained by PECOS, which is not installed: pip install '{PECOS}'") from None
    return bridge


# The parent process --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _exchange_folder(task: str, context: Context, isolated: bool) -> Iterator[Path | None]:
    """Provide a folder to exchange files with another process, or None if PECOS runs in this process."""
    note = None if context.folder is None else context.folder / NOTE
    crash = _earlier_crash(note)
    if not isolated and crash is None:
        with _crash_note(task, note):
            yield None
        return
    with contextlib.ExitStack() as stack:
        if crash is not None:
            context.log(f"{crash}: PECOS now runs in its own process")
            stack.enter_context(context.progress("PECOS in its own process: it ended an earlier attempt"))
        for unfinished in () if context.folder is None else context.folder.glob(f"{_EXCHANGE}*"):
            shutil.rmtree(unfinished)
        yield Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_EXCHANGE, dir=context.folder)))


def _earlier_crash(note: Path | None) -> str | None:
    """Describe the crash that left a note behind. Return None if there is no note."""
    if note is None or not note.is_file():
        return None
    task = ""
    with contextlib.suppress(XmckitError, KeyError, TypeError):  # the process may have died while it wrote
        task = f", {store.read_json(note)['what']}"
    return f"an earlier attempt ended in PECOS{task} (a crash, no memory, or killed)"


@contextlib.contextmanager
def _crash_note(task: str, note: Path | None) -> Iterator[None]:
    """Keep a note that stays behind only if this process dies, and let Python print on stderr where it died."""
    # a faulthandler that is enabled already keeps its stream
    stream = None if faulthandler.is_enabled() else sys.__stderr__
    if note is not None:
        store.write_json(note, {"what": task, "pid": os.getpid()})
    if stream is not None and not stream.closed:
        faulthandler.enable(stream)
    try:
        yield
    finally:
        if stream is not None:
            faulthandler.disable()
        if note is not None:
            note.unlink(missing_ok=True)


def _write_rows(folder: Path, rows: TrainingRows) -> None:
    store.write_matrix(folder / "X.npz", features(rows.X))
    store.write_csr(folder / "Y.npz", rows.Y)
    if rows.weights is not None:
        store.write_csr(folder / "weights.npz", rows.weights)


def _run_child(folder: Path, job: dict[str, Any], context: Context) -> None:
    """Run the job in another process. Raise an error that says how the process ended if it failed."""
    store.write_json(folder / _JOB, job)
    output = folder / LAST_WORDS
    with open(output, "wb") as stream:
        # only this process holds the other end of stdin, so the child ends when this process does
        child = start(
            "xmckit_pecos.linear.isolation:serve", str(folder),
            stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with child:
            try:
                code = child.wait()
            finally:
                child.kill()
    if code == 0:
        return
    if (folder / _ERROR).is_file():
        error = store.read_json(folder / _ERROR)
        raise _ERRORS[error["kind"]](error["message"])
    message = _exit_message(code, output)
    if context.folder is not None:
        shutil.copyfile(output, context.folder / LAST_WORDS)
        message += f" Its output is in {context.folder / LAST_WORDS}."
    raise PluginError(message)


def _exit_message(code: int, output: Path) -> str:
    if code < 0:
        advice = _ADVICE.get(-code, _OTHER_ADVICE)
        return f"PECOS (libpecos 1.2.8) ended its process with {describe_exit(code)}. {advice}."
    lines = output.read_text("utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"the process of PECOS (libpecos 1.2.8) ended with exit code {code}: {last}."


# The child process ---------------------------------------------------------------------------------------------------


def serve(folder_name: str) -> None:
    """Do the job that is described in the folder."""
    end_with_stdin()
    faulthandler.enable()
    folder = Path(folder_name)
    try:
        _work(folder)
    except tuple(_ERRORS.values()) as error:
        store.write_json(folder / _ERROR, {"kind": type(error).__name__, "message": str(error)})
        sys.exit(1)


def _work(folder: Path) -> None:
    job, result = store.read_json(folder / _JOB), folder / _RESULT
    X, Y, threads = store.read_matrix(folder / "X.npz"), store.read_csr(folder / "Y.npz"), job["threads"]
    if job["job"] == "codes":
        result.mkdir()
        store.write_arrays(result / "codes.npz", {"codes": _leaf_codes(X, Y, job["depth"], job["seed"], threads)})
        return
    tree, options = LabelTree.load(folder), TrainingOptions(**job["training"])
    weights = store.read_csr(folder / "weights.npz") if (folder / "weights.npz").is_file() else None
    matcher = LinearModel.load(folder / "matcher") if (folder / "matcher").is_dir() else None
    rows = TrainingRows(X, Y, weights)
    _bridge().train(rows, tree, options, threads, matcher=matcher, to_leaves=job["to_leaves"]).save(result)
