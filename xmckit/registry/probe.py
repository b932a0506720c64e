"""Import plugins in child processes, to find those that hang or crash.

A child writes one line of JSON for every step that it begins or ends; the last line says what it did when it stopped.
If it crashes or exceeds the time limit, Python's faulthandler reports the line of code.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from xmckit.errors import PluginError
from xmckit.processes import describe_exit, start
from xmckit.registry.locations import Location, file_of, is_below
from xmckit.registry.manager import Registry
from xmckit.registry.plugins import Plugin

_REQUEST, _PROGRESS, _STACK, _OUTPUT = "request.json", "progress.jsonl", "stack.txt", "output.txt"
_FRAME = re.compile(r'File "(.+)", line (\d+) in ')
LONGEST_OUTPUT = 200  # characters of a plugin's output to the terminal
_GRACE = 10.0  # seconds for a child to write its stack after the time limit


@dataclass
class Probe:
    """The result for one plugin. `fault` is the reason why it cannot be imported at all."""

    plugin: Plugin
    seconds: float | None = None
    components: int = 0
    broken: dict[str, str] = field(default_factory=dict)  # component -> why it cannot be used
    written: str = ""  # its output to the terminal during the import, and the line that wrote it
    fault: str = ""
    at: Location | None = None

    @property
    def faulty(self) -> Plugin:
        return replace(self.plugin, problem=self.fault, at=self.at)


def probe_all(plugins: Sequence[Plugin], limit: float, *, components: bool = True) -> list[Probe]:
    """Import each plugin and its `components`, one process per distribution, `limit` seconds per step."""
    probes = []
    for _, group in groupby(plugins, key=lambda plugin: plugin.distribution or plugin.file):
        waiting = [Probe(plugin) for plugin in group]
        probes += waiting
        while waiting:
            done = _run_child(waiting, limit, components)
            waiting = waiting[max(done, 1) :]
    return probes


def _run_child(probes: Sequence[Probe], limit: float, components: bool) -> int:
    """Let a child import the plugins; return how many it has finished when it ends."""
    with tempfile.TemporaryDirectory(prefix="xmckit-doctor-") as name:
        folder = Path(name)
        plugins = [{**asdict(probe.plugin), "at": None} for probe in probes]
        request = {"plugins": plugins, "components": components}
        (folder / _REQUEST).write_text(json.dumps(request))
        (folder / _PROGRESS).touch()
        with open(folder / _OUTPUT, "wb") as output:
            child = start("xmckit.registry.probe:main", name, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            code = _wait(child, folder / _PROGRESS, limit)
        return _read(probes, folder, code, limit)


def _wait(child: subprocess.Popen[bytes], progress: Path, limit: float) -> int | None:
    """Return the child's exit code; None if a step exceeded the limit and the child was stopped."""
    seen, began = -1, 0.0
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(0.05)
            size, now = progress.stat().st_size, time.monotonic() - _seconds_waiting_for_cpu(child.pid)
            if size != seen:
                seen, began = size, now
            elif now - began > limit:
                child.send_signal(signal.SIGABRT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_GRACE)
                return None
    finally:
        child.kill()
        child.wait()


def _seconds_waiting_for_cpu(process: int) -> float:
    """Return how long the process was ready to run but had no CPU, if the system knows; that time does not count."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _read(probes: Sequence[Probe], folder: Path, code: int | None, limit: float) -> int:
    """Fill the probes from the files of the child; return how many it has finished."""
    done = 0
    under_way: dict[str, str] = {}
    for line in (folder / _PROGRESS).read_text().splitlines():
        step = json.loads(line)
        under_way = step.get("begins", {})
        if "seconds" in step:
            probes[done].seconds, probes[done].written = step["seconds"], step["written"]
        if "component" in step:
            probes[done].components += 1
            if step["error"]:
                probes[done].broken[step["component"]] = step["error"]
        done += step.get("ends", 0)
    if done == len(probes):
        return done
    probe = probes[done]
    stack = (folder / _STACK).read_text() if (folder / _STACK).is_file() else ""
    end = f"did not end within {limit:g} s" if code is None else f"ended the process, with {describe_exit(code)}"
    fault = f"its import {end}"
    homes = [probe.plugin.file, file_of(under_way["target"])] if under_way else [probe.plugin.file]
    frames = [Location(file, int(line)) for file, line in _FRAME.findall(stack)]
    at = next((frame for frame in frames if any(is_below(frame.file, home) for home in homes)), None)
    if under_way:
        name = under_way["component"]
        probe.broken[name] = f"{name} of {probe.plugin.description}: {fault}" + (f" ({at})" if at else "")
        probe.components += 1
    else:
        probe.fault, probe.at = fault, at
    return done + 1


def main(folder: str) -> None:
    """Import the plugins of the request: the main function of the child."""
    request = json.loads(Path(folder, _REQUEST).read_text())
    with open(Path(folder, _PROGRESS), "a") as progress, open(Path(folder, _STACK), "w") as stack:

        def report(**facts: Any) -> None:
            progress.write(json.dumps(facts) + "\n")
            progress.flush()

        faulthandler.enable(stack)
        for facts in request["plugins"]:
            _import_all(Plugin(**facts), report, components=request["components"])
    # Do not wait for threads that a plugin has started.
    os._exit(0)


def _import_all(plugin: Plugin, report: Callable[..., None], *, components: bool) -> None:
    output = _RecordedOutput(plugin.file)
    begin = time.perf_counter()
    with contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if plugin.origin == "file":
            registry = Registry(allow=[], files=[Path(plugin.file)])
        else:
            registry = Registry(allow=[plugin.full_name] if plugin.origin == "installed" else [])
    report(seconds=time.perf_counter() - begin, written=output.description)
    for item in registry.all() if components else ():
        if item.plugin.full_name != plugin.full_name:
            continue
        name, error = f"{item.kind}:{item.component.name}", ""
        report(begins={"component": name, "target": item.component.target.partition(":")[0]})
        try:
            registry.resolve(item.kind, item.component.name)
        except PluginError as fault:
            error = str(fault)
        report(component=name, error=error)
    report(ends=1)


class _RecordedOutput(io.StringIO):
    """Record the output to the terminal, and the first line of the plugin that wrote."""

    def __init__(self, file: str):
        super().__init__()
        self.file = file
        self.at: Location | None = None

    def write(self, text: str) -> int:
        frame = sys._getframe(1) if self.at is None else None
        while frame is not None and not is_below(frame.f_code.co_filename, self.file):
            frame = frame.f_back
        if frame is not None:
            self.at = Location(frame.f_code.co_filename, frame.f_lineno)
        return super().write(text)

    @property
    def description(self) -> str:
        text = " ".join(self.getvalue().split())
        return f"{self.at or self.file}: {text[:LONGEST_OUTPUT]}" if text else ""
