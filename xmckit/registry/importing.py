"""Import plugins in isolation, and explain why one could not be imported or registered."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from xmckit import __version__
from xmckit.errors import nearest, one_line
from xmckit.hookspecs import API_VERSION, PROJECT
from xmckit.kinds import KINDS
from xmckit.registry.entry_points import EntryPoint
from xmckit.registry.locations import defined_at, raised_at
from xmckit.registry.plugins import FaultyPlugin, Plugin

if TYPE_CHECKING:
    from pathlib import Path


def stdout_to_stderr() -> contextlib.AbstractContextManager[Any]:
    """Keep what a plugin prints while it is imported out of the results, which go to stdout."""
    return contextlib.redirect_stdout(sys.stderr)


@contextlib.contextmanager
def watch_interrupts() -> Iterator[Callable[[], bool]]:
    """Provide a function that says whether Ctrl-C was pressed in the block: plugins can raise KeyboardInterrupt too."""
    # The part of `signal` that Python has loaded already: `--help` must not pay for the rest.
    import _signal as signal  # type: ignore[import-not-found]

    pressed = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    try:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, on_interrupt)
        elif before not in (signal.SIG_IGN, signal.SIG_DFL):  # then Ctrl-C raises nothing, as in a background job
            raise ValueError("somebody else handles Ctrl-C")
    except ValueError:  # or this is not the main thread
        yield lambda: True
        return
    try:
        yield lambda: pressed
    finally:
        if signal.getsignal(signal.SIGINT) is on_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def import_file(file: Path) -> ModuleType:
    """Import one Python file as a module named after it, so that its components can say `name:Class`."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    name = file.stem
    if not name.isidentifier():
        raise ImportError(f"'{name}' is not a Python name; rename the file, for instance to my_plugin.py")
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return loaded
    other = None if loaded is not None else importlib.util.find_spec(name)
    # With the working folder on the path, Python would find the very same file.
    same = other is not None and other.origin is not None and os.path.realpath(other.origin) == str(file)
    if loaded is not None or (other is not None and not same):
        raise ImportError(f"a module named '{name}' exists already; rename the file")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_fault(error: BaseException, plugin: Plugin, entry: EntryPoint | None) -> FaultyPlugin:
    """Explain why a plugin could not be imported."""
    if entry is not None and not entry.module:
        reason = f"its entry point is '{entry.value}', expected package.module or package.module:attribute"
        return FaultyPlugin(reason, entry.at)
    if entry is not None and isinstance(error, ModuleNotFoundError) and _contains(error.name, entry.module):
        return FaultyPlugin(
            f"its entry point names the module {entry.module}, which does not exist: "
            f"install {plugin.distribution} again",
            entry.at,
        )
    raised = raised_at(error, plugin.file)
    if entry is not None and entry.attribute and isinstance(error, AttributeError) and not raised:
        return FaultyPlugin(f"its entry point names {entry.value}, which does not exist: {error}", entry.at)
    newer = isinstance(error, ImportError) and (error.name or "").partition(".")[0] == PROJECT
    hint = f". This is xmckit {__version__}: is the plugin for another one?" if newer else ""
    return FaultyPlugin(f"it raised on import: {one_line(error)}{hint}", raised)


def _contains(missing: str | None, module: str) -> bool:
    """Return whether the missing module is `module` or a package above it."""
    return missing is not None and f"{module}.".startswith(f"{missing}.")


def registration_fault(error: Exception, module: Any) -> FaultyPlugin:
    """Explain why pluggy did not take a plugin's hooks."""
    text = one_line(error)
    match = re.search(r"hook '(\w+)'", text)
    at = defined_at(getattr(module, match.group(1), None) or (lambda: None)) if match else None
    if match and "unknown hook" in text:
        hook, known = match.group(1), [kind.hook for kind in KINDS.values()]
        return FaultyPlugin(
            f"it implements '{hook}', which is no hook of xmckit{nearest(hook, known)} (this is version "
            f"{API_VERSION} of the contracts)",
            at,
        )
    return FaultyPlugin(f"its hooks do not fit: {text}", at)
