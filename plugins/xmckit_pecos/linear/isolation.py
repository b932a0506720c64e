"""PECOS kept from taking everything with it: a mistake in C++ ends the process, whatever Python would say about it.

`isolated` work is done by another process, which reads the data from files and leaves its result in files. If that one
dies, there is an error that says how. Otherwise PECOS works in this process: Python's faulthandler then says on stderr
where it died, and a note in the scratch folder stays behind. Whoever goes on with the stage finds the note and isolates
PECOS from then on. That is not the rule from the start because a process takes seconds to begin: the models of
cve_libraries, which train in one second, take four or five that way.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import Context, DataError, Matrix, PluginError, UsageError, XmckitError, store
from xmckit_pecos import PECOS
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import features
from xmckit_pecos.linear.model import Model
from xmckit_pecos.linear.options import Training

NOTE, LAST_WORDS = "pecos-at-work.json", "pecos-last-words.txt"
SERVE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from xmckit_pecos.linear.isolation import serve; serve()"
)
_EXCHANGE, _JOB, _RESULT, _ERROR = "pecos-files-", "job.json", "result", "error.json"
_ERRORS: dict[str, type[XmckitError]] = {kind.__name__: kind for kind in (DataError, UsageError)}
_ADVICE = {
    signal.SIGKILL: "Nothing but the system or a person sends it: most likely memory ran out. Try a larger `prune`, "
    "fewer features, or fewer copies of labels",
    signal.SIGILL: "This processor lacks an instruction that PECOS was built with. Try a libpecos built on it",
}
_ADVICE_OTHERWISE = (
    "This is a mistake in PECOS, or in the libraries beside it. Try --workers 1, other `negatives`, or `xmckit doctor`"
)


def leaf_codes(X: Matrix, Y: csr_matrix, depth: int, seed: int, context: Context, *, isolated: bool) -> np.ndarray:
    """The leaf of each label: see `bridge.balanced_codes`, over embeddings of the labels."""
    settings = {"depth": depth, "seed": seed, "threads": context.workers}
    with _place("clustering the labels", context, isolated) as place:
        if place is None:
            return _leaf_codes(X, Y, **settings)
        _hand_over(place, X, Y)
        _ask(place, "codes", settings, context)
        return store.read_arrays(place / _RESULT / "codes.npz", "codes")["codes"]


def train(
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree,
    training: Training,
    context: Context,
    *,
    isolated: bool,
    weights: csr_matrix | None = None,
    matcher: Model | None = None,
) -> Model:
    """`bridge.train`, with the threads of the context."""
    with _place("training the linear models", context, isolated) as place:
        if place is None:
            return _bridge().train(X, Y, tree, training, context.workers, weights=weights, matcher=matcher)
        _hand_over(place, X, Y, tree, weights, matcher)
        _ask(place, "train", {"training": asdict(training), "threads": context.workers}, context)
        return Model.load(place / _RESULT)


def train_matcher(
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree,
    training: Training,
    context: Context,
    *,
    isolated: bool,
    weights: csr_matrix | None = None,
) -> Model | None:
    """`bridge.train_matcher`, with the threads of the context."""
    if tree.depth == 1:
        return None
    with _place("training the levels above the leaves", context, isolated) as place:
        if place is None:
            return _bridge().train_matcher(X, Y, tree, training, context.workers, weights=weights)
        _hand_over(place, X, Y, tree, weights)
        _ask(place, "matcher", {"training": asdict(training), "threads": context.workers}, context)
        return Model.load(place / _RESULT)


def _leaf_codes(X: Matrix, Y: csr_matrix, depth: int, seed: int, threads: int) -> np.ndarray:
    bridge = _bridge()
    return np.asarray(bridge.balanced_codes(bridge.label_embeddings(X, Y, threads), depth, seed, threads))


def _bridge() -> Any:
    """PECOS, which only training needs."""
    try:
        from xmckit_pecos.linear import bridge
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pecos":
            raise
        raise PluginError(f"trees are trained by PECOS, which is not installed: pip install '{PECOS}'") from None
    return bridge


# This side -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _place(what: str, context: Context, isolated: bool) -> Iterator[Path | None]:
    """A folder to exchange files with another process; None where PECOS may work in this one."""
    note = None if context.folder is None else context.folder / NOTE
    left = note is not None and note.is_file()
    if not isolated and not left:
        with _watched(what, note):
            yield None
        return
    with contextlib.ExitStack() as stack:
        if left:
            context.log(f"{_earlier(note)}: PECOS works in a process of its own now")
            stack.enter_context(context.progress("PECOS, apart: it ended an earlier attempt"))
        for unfinished in () if context.folder is None else context.folder.glob(f"{_EXCHANGE}*"):
            shutil.rmtree(unfinished)
        yield Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_EXCHANGE, dir=context.folder)))


def _earlier(note: Path | None) -> str:
    try:
        what = store.read_json(note)["what"] if note is not None else ""
    except (XmckitError, KeyError, TypeError):  # the process may have died while it wrote
        what = ""
    return f"an earlier attempt ended in PECOS{f', {what}' if what else ''} (a crash, no memory, or killed)"


@contextlib.contextmanager
def _watched(what: str, note: Path | None) -> Iterator[None]:
    """Leave a note that only the end of this process leaves behind; let Python say on stderr where that was."""
    # where somebody wants such words already, they stay where they were wanted
    stream = None if faulthandler.is_enabled() else sys.__stderr__
    if note is not None:
        store.write_json(note, {"what": what, "pid": os.getpid()})
    if stream is not None and not stream.closed:
        faulthandler.enable(stream)
    try:
        yield
    finally:
        if stream is not None:
            faulthandler.disable()
        if note is not None:
            note.unlink(missing_ok=True)


def _hand_over(
    place: Path,
    X: Matrix,
    Y: csr_matrix,
    tree: LabelTree | None = None,
    weights: csr_matrix | None = None,
    matcher: Model | None = None,
) -> None:
    store.write_matrix(place / "X.npz", features(X))
    store.write_csr(place / "Y.npz", Y)
    if tree is not None:
        tree.save(place)
    if weights is not None:
        store.write_csr(place / "weights.npz", weights)
    if matcher is not None:
        matcher.save(place / "matcher")


def _ask(place: Path, job: str, settings: dict[str, Any], context: Context) -> None:
    """Have the other process do the job; an error says how it ended if it did not."""
    store.write_json(place / _JOB, {"job": job, **settings})
    words = place / LAST_WORDS
    with open(words, "wb") as stream:
        # the other end of stdin is held by this process alone: when it is gone, so is the child
        child = subprocess.Popen(
            [sys.executable, "-c", SERVE, json.dumps(sys.path), str(place)],
            stdin=subprocess.PIPE, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with child:
            try:
                code = child.wait()
            finally:
                child.kill()
    if code == 0:
        return
    if (place / _ERROR).is_file():
        error = store.read_json(place / _ERROR)
        raise _ERRORS[error["kind"]](error["message"])
    kept = "" if context.folder is None else f" Its last words are in {context.folder / LAST_WORDS}."
    if context.folder is not None:
        shutil.copyfile(words, context.folder / LAST_WORDS)
    raise PluginError(f"{_ending(code, words)}{kept}")


def _ending(code: int, words: Path) -> str:
    if code < 0:
        number = signal.Signals(-code) if -code in signal.valid_signals() else None
        name = f"{number.name} ({signal.strsignal(number)})" if number is not None else f"signal {-code}"
        advice = _ADVICE.get(number, _ADVICE_OTHERWISE) if number is not None else _ADVICE_OTHERWISE
        return f"PECOS (libpecos 1.2.8) ended its process with {name}. {advice}."
    lines = words.read_text("utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing was said")
    return f"the process of PECOS (libpecos 1.2.8) ended with exit code {code}: {last}."


# The other side ------------------------------------------------------------------------------------------------------


def serve() -> None:
    """Do the job that is described in the folder on the command line; what a new process is started for."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    faulthandler.enable()
    place = Path(sys.argv[2])
    try:
        _work(place)
    except tuple(_ERRORS.values()) as error:
        store.write_json(place / _ERROR, {"kind": type(error).__name__, "message": str(error)})
        sys.exit(1)


def _end_with_parent() -> None:
    """Nothing is ever written to stdin: it ends when the process that holds it does."""
    while os.read(0, 1):
        pass
    os._exit(1)


def _work(place: Path) -> None:
    job = store.read_json(place / _JOB)
    X, Y, threads = store.read_matrix(place / "X.npz"), store.read_csr(place / "Y.npz"), job["threads"]
    result = place / _RESULT
    if job["job"] == "codes":
        result.mkdir()
        store.write_arrays(result / "codes.npz", {"codes": _leaf_codes(X, Y, job["depth"], job["seed"], threads)})
        return
    tree, training = LabelTree.load(place), Training(**job["training"])
    weights = store.read_csr(place / "weights.npz") if (place / "weights.npz").is_file() else None
    if job["job"] == "matcher":
        model = _bridge().train_matcher(X, Y, tree, training, threads, weights=weights)
        assert model is not None  # a tree with one leaf is not handed over
    else:
        matcher = Model.load(place / "matcher") if (place / "matcher").is_dir() else None
        model = _bridge().train(X, Y, tree, training, threads, weights=weights, matcher=matcher)
    model.save(result)
