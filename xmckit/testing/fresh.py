"""Load a saved component in a process of its own and ask it: nothing that the first process knew can help.

On Linux one process imports the large libraries, does nothing else, and forks for each request, which takes
milliseconds where an import of torch takes seconds. Elsewhere each request has a new Python.
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

LIBRARIES = (
    "numpy", "scipy.sparse", "numba", "torch", "torch.fx.experimental.symbolic_shapes", "pecos.xmc", "xmckit.nn",
    "xmckit.sparse",
)  # fmt: skip
REQUEST, ANSWERS, ERROR, SAVED = "request.json", "answers.npz", "error.txt", "saved"


def fresh_answers(subject: Any, folder: Path) -> dict[str, np.ndarray]:
    """What the component saved in `folder / SAVED` answers in another process."""
    store.write_json(folder / REQUEST, json.loads(json.dumps(_request(subject, folder), default=str)))
    if sys.platform.startswith("linux"):
        died = _Server.current().asked(folder / REQUEST)
    else:
        died = subprocess.run(_command(str(folder / REQUEST)), env=_environment(), check=False).returncode
    if (folder / ERROR).exists():
        raise AssertionError(f"a fresh process could not load and answer: {(folder / ERROR).read_text()}")
    if died:
        raise AssertionError(f"a fresh process died while it loaded and answered (code {died})")
    return store.read_arrays(folder / ANSWERS)


def prepare(libraries: Sequence[str] | None = None) -> None:
    """Let the process begin that forks, so that it is there when somebody asks, with libraries that will be wanted."""
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
        "module": subject.cls.__module__,
        "file": getattr(module, "__file__", None),
        "qualname": subject.cls.__qualname__,
        "params": subject.params,
        "indexers": list(subject.indexers),
        "example": subject.example,
        "workers": subject.context.workers,
        "seed": subject.context.seed,
        "plugins": files,
        "path": [os.path.abspath(entry) for entry in sys.path],
        "folder": str(folder),
    }


def answer(request: dict[str, Any]) -> None:
    """Write what the component answers, or why it cannot, into the folder of the request."""
    folder = Path(request["folder"])
    try:
        sys.path[:] = request["path"]
        subject = _subject(request)
        ready = subject.restored(folder / SAVED)
        store.write_arrays(folder / ANSWERS, subject.answers(ready, subject.context))
    except BaseException as error:  # noqa: BLE001  # whatever it is, the other process tells it
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
    return load(request["subject"])(
        cls, request["params"], context, indexers=request["indexers"], example=request["example"]
    )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "xmckit.testing.fresh", *arguments]


def _environment() -> dict[str, str]:
    """With another order of sets of strings than here, which no answer may depend on."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "4" if os.environ.get("PYTHONHASHSEED") != "4" else "5"}


class _Server:
    """The process that forks. It is started anew when libraries were imported here that it does not have yet."""

    _only: _Server | None = None

    def __init__(self, libraries: Sequence[str]):
        self.libraries = list(libraries)
        self.process = subprocess.Popen(
            _command("--serve", *libraries),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
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

    def asked(self, request: Path) -> int:
        """The code with which the process that answered ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(request, file=self.process.stdin, flush=True)
        code = self.process.stdout.readline().strip()
        if not code:
            raise AssertionError("the process that starts fresh ones has ended")
        return int(code)

    def close(self) -> None:
        """End it, whatever it is at: nobody waits for an answer any more."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self.process.wait()


def serve(libraries: Sequence[str]) -> None:
    """Fork for each request that stdin names, and print the code with which the fork ended."""
    import warnings

    for name in libraries:
        importlib.import_module(name)
    if "numba" in libraries:
        # the first function that it compiles takes a second, whatever it does
        importlib.import_module("numba").njit(lambda number: number)(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # threads of a library that sleep do not mind a fork
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(2, 1)  # what a component prints is not for the process that asks
            answer(json.loads(Path(line.strip()).read_bytes()))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2:])
    else:
        answer(json.loads(Path(sys.argv[1]).read_bytes()))
