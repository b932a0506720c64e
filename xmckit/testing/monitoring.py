"""Monitor side effects of a component: files that it opens, connections that it makes, shared state that it changes.

Python reports these to audit hooks, which stay for the life of the process; this one is active only inside `monitor`.
It does not see what C code and other programs do by themselves.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# event → position of each path that is created, changed or removed → position of the folder that it is relative to
_PATHS: dict[str, dict[int, int | None]] = {
    "os.mkdir": {0: 2}, "os.rename": {0: 2, 1: 3}, "os.remove": {0: 1}, "os.rmdir": {0: 1}, "os.link": {1: 3},
    "os.symlink": {1: 2}, "os.truncate": {0: None}, "shutil.rmtree": {0: 1}, "sqlite3.connect": {0: None},
    "os.chmod": {0: 2}, "os.chown": {0: 3}, "os.utime": {0: 3},
}  # fmt: skip
_HOSTS = {
    "socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.gethostbyaddr": 0, "socket.connect": 1,
    "socket.sendto": 1, "socket.sendmsg": 1,
}  # fmt: skip
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass
class Activity:
    """What monitored code did. Writing outside `folders` and connections to hosts were refused.

    `pickles` names what was unpickled, `programs` what was started; neither was refused. `state` names the shared state
    that it changed, `inputs` the inputs that `Subject.activity` found changed.
    """

    folders: Sequence[Path]
    reads: list[Path] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    pickles: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)


_current: Activity | None = None
_installed = False


@contextmanager
def monitor(folder: Path, *more: Path) -> Iterator[Activity]:
    """Record what the block does. It may write into these folders; its temporary files go into the first."""
    global _current, _installed
    if not _installed:
        sys.addaudithook(_on_audit_event)
        _installed = True
    scratch, before = folder / "tmp", tempfile.tempdir
    scratch.mkdir(exist_ok=True)
    seen, state = Activity([one.resolve() for one in (folder, *more)]), shared_state()
    tempfile.tempdir, _current = str(scratch), seen
    try:
        yield seen
    finally:
        tempfile.tempdir, _current = before, None
        now = shared_state()
        seen.state = [what for what, old in state.items() if now[what] != old]


@contextmanager
def suspend_monitoring() -> Iterator[None]:
    """Suspend monitoring inside the block."""
    global _current
    watcher, _current = _current, None
    try:
        yield
    finally:
        _current = watcher


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    seen = _current
    if seen is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & _WRITING)
        _record_path(seen, path, writes=writes)
    elif event in _PATHS:
        for place, start in _PATHS[event].items():
            # a path below an open folder was reported when the folder was opened or its removal began
            if start is None or len(arguments) <= start or arguments[start] in (-1, None):
                _record_path(seen, arguments[place], writes=True)
    elif event == "pickle.find_class":
        seen.pickles.append(".".join(map(str, arguments)))
    elif event in _PROGRAMS:
        command = os.fsdecode(arguments[0] or "").split()
        seen.programs.append(os.path.basename(command[0]) if command else "a program")
    elif event in _HOSTS:
        address = arguments[_HOSTS[event]]
        # a socket of the file system has a path for an address
        host = address[0] if isinstance(address, tuple) else address if _HOSTS[event] == 0 else None
        if host is not None and str(host) not in _THIS_MACHINE:
            seen.hosts.append(str(host))
            raise PermissionError(f"a check allows no network, and {host} was to be reached")


def _record_path(seen: Activity, path: Any, *, writes: bool) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)) or path == ":memory:":  # an open file, by its number
        return
    full = Path(os.path.abspath(os.fsdecode(path)))
    if not writes:
        seen.reads.append(full)
    elif not any(_is_allowed(full, folder) for folder in seen.folders):
        seen.writes.append(str(full))
        raise PermissionError(f"a check allows no writing here: {full}")


def _is_allowed(path: Path, folder: Path) -> bool:
    """Return whether a path is in the folder, a device, or compiled code that Python and numba keep."""
    if path.is_relative_to(folder) or path.resolve().is_relative_to(folder) or path.is_relative_to("/dev"):
        return True
    return any(part == "__pycache__" or part.startswith("numba") for part in path.parts)


def shared_state() -> dict[str, object]:
    """Return the state that all components of the process share."""
    state: dict[str, object] = {
        "the generator of random": random.getstate(),
        "the generator of numpy.random": str(np.random.get_state(legacy=False)["state"]),
        "numpy's handling of floating-point errors": np.geterr(),
        "the working folder": os.getcwd(),
        "the environment variables": dict(os.environ),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch's generator"] = torch.random.get_rng_state().numpy().tobytes()
        state["torch's number of threads"] = torch.get_num_threads()
        state["torch's default type"] = torch.get_default_dtype()
    return state
