"""Load a saved component in a new process and compute its answers there, without the state of the first process.

On Linux one server process imports the large libraries and forks for each request, which takes milliseconds instead of
seconds for an import of torch. On other systems each request starts a new Python.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.processes import search_path, start

LIBRARIES = (
    "numpy", "scipy.sparse", "numba", "torch", "torch.fx.experimental.symbolic_shapes", "pecos.xmc", "xmckit.nn",
    "xmckit.sparse",
)  # fmt: skip
REQUEST, ANSWERS, ERROR, SAVED = "request.json", "answers.npz", "error.txt", "saved"


def fresh_answers(subject: Any, folder: Path) -> dict[str, np.ndarray]:
    """Return the answers of the component saved in `folder / SAVED`, computed in another process."""
    store.write_json(folder / REQUEST, json.loads(json.dumps(_request(subject, folder), default=str)))
    if sys.platform.startswith("linux"):
        died = _Server.current().run(folder / REQUEST)
    else:
        died = start("xmckit.testing.fresh_process:answer", str(folder / REQUEST), variables=_other_hash_seed()).wait()
    if (folder / ERROR).exists():
        raise AssertionError(f"a fresh process could not load and answer: {(folder / ERROR).read_text()}")
    if died:
        raise AssertionError(f"a fresh process died while it loaded and answered (code {died})")
    return store.read_arrays(folder / ANSWERS)


def prepare(libraries: Sequence[str] | None = None) -> None:
    """Start the server process early, with libraries that requests will need."""
    if sys.platform.startswith("linux"):
        _Server.current([name for name in libraries or () if importlib.util.find_spec(name.partition(".")[0])])


def _request(subject: Any, folder: Path) -> dict[str, Any]:
    from xmckit.registry import default_registry

    if subject.cls.__module__ == "__main__" or "<locals>" in subject.cls.__qualname__:
        raise AssertionError(
            f"a fresh process cannot import {subject.cls.__qualname__}, which is defined in the script that runs or in "
            "a function: move it into a module of its own"
        )
    module = sys.modules[subject.cls.__module__]
    files = [plugin.file for plugin in default_registry().plugins if plugin.origin == "file"]
    return {
        "subject": f"{type(subject).__module__}:{type(subject).__qualname__}",
        "kind": subject.kind,
        "module": subject.cls.__module__,
        "file": getattr(module, "__file__", None),
        "qualname": subject.cls.__qualname__,
        "params": subject.params,
        "indexers": list(subject.indexers),
        "example": subject.example,
        "workers": subject.context.workers,
        "seed": subject.context.seed,
        "plugins": files,
        "path": search_path(),
        "folder": str(folder),
    }


def answer(request_file: str) -> None:
    """Write the component's answers, or the error, into the folder of the request."""
    request = json.loads(Path(request_file).read_bytes())
    folder = Path(request["folder"])
    try:
        sys.path[:] = request["path"]
        subject = _subject(request)
        ready = subject.restore(folder / SAVED)
        store.write_arrays(folder / ANSWERS, subject.answers(ready, subject.context))
    except BaseException as error:  # noqa: BLE001  # the other process reports any error
        (folder / ERROR).write_text(f"{type(error).__name__}: {error}")


def _subject(request: dict[str, Any]) -> Any:
    from xmckit.kinds import load
    from xmckit.registry import make_context, registry_from_environment

    files = list(request["plugins"])
    if importlib.util.find_spec(request["module"].partition(".")[0]) is None and request["file"] not in files:
        files.append(request["file"])
    registry = registry_from_environment([Path(file) for file in files])
    cls: Any = importlib.import_module(request["module"])
    for name in request["qualname"].split("."):
        cls = getattr(cls, name)
    context = make_context(workers=request["workers"], seed=request["seed"], registry=registry)
    params, indexers, example = (request[name] for name in ("params", "indexers", "example"))
    return load(request["subject"])(request["kind"], cls, params, context, indexers, example)


def _other_hash_seed() -> dict[str, str]:
    """Return a variable that changes the hash seed: no answer may depend on the order of a set of strings."""
    return {"PYTHONHASHSEED": "4" if os.environ.get("PYTHONHASHSEED") != "4" else "5"}


class _Server:
    """The process that forks. It is restarted if this process has imported libraries that it lacks."""

    _only: _Server | None = None

    def __init__(self, libraries: Sequence[str]):
        self.libraries = list(libraries)
        self.process = start(
            "xmckit.testing.fresh_process:serve",
            *libraries,
            variables=_other_hash_seed(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @classmethod
    def current(cls, more: Sequence[str] = ()) -> _Server:
        wanted = [name for name in LIBRARIES if name in sys.modules or name in more]
        if cls._only is not None and (set(wanted) - set(cls._only.libraries) or cls._only.process.poll() is not None):
            cls._only.close()
            cls._only = None
        if cls._only is None:
            cls._only = _Server(wanted)
            atexit.register(cls._only.close)
        return cls._only

    def run(self, request: Path) -> int:
        """Serve one request; return the exit code of the forked process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(os.fsencode(request) + b"\n")
        self.process.stdin.flush()
        code = self.process.stdout.readline().strip()
        if not code:
            raise AssertionError("the process that starts fresh ones has ended")
        return int(code)

    def close(self) -> None:
        """Kill the process."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self.process.wait()


def serve(*libraries: str) -> None:
    """Fork for each request that stdin names, and print the fork's exit code."""
    import warnings

    for name in libraries:
        importlib.import_module(name)
    if "numba" in libraries:
        # the first function that numba compiles takes a second
        importlib.import_module("numba").njit(lambda number: number)(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # sleeping threads of a library survive a fork
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(2, 1)  # stdout is for exit codes only
            answer(line.strip())
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
