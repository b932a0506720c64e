"""The registry that the environment variables ask for, the one of this process, and contexts that use it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from xmckit.registry.crashes import ImportJournal, journal_folder
from xmckit.registry.manager import Registry, core_plugin, file_plugin, installed_plugins, why_blocked
from xmckit.registry.plugins import Plugin
from xmckit.registry.trace import print_step

if TYPE_CHECKING:
    from pathlib import Path

    from xmckit.context import Context, Progress

SECONDS_TO_IMPORT = 30.0  # for a plugin that may have ended a process
_default: Registry | None = None


def found_plugins(files: Sequence[Path] = (), environment: Mapping[str, str] | None = None) -> list[Plugin]:
    """Return the plugins that `registry_from_environment` would load, the core first, without running their code."""
    allow, disable = _allowed_and_disabled(os.environ if environment is None else environment)
    installed = [plugin for _, plugin in installed_plugins() if not why_blocked(plugin, allow, disable)]
    return [core_plugin(), *installed, *map(file_plugin, dict.fromkeys(file.resolve() for file in files))]


def registry_from_environment(
    files: Sequence[Path] = (), environment: Mapping[str, str] | None = None, *, faulty: Sequence[Plugin] = ()
) -> Registry:
    """Return the registry that `XMCKIT_PLUGINS` (allow-list; empty = none) and `XMCKIT_DISABLE_PLUGINS` ask for.

    `XMCKIT_TRACE`, unless it is empty or 0, prints every step to stderr as it happens. `faulty` are set aside, and
    so are plugins whose import ended an earlier process (see `xmckit.registry.crashes`).
    """
    environment = os.environ if environment is None else environment
    allow, disable = _allowed_and_disabled(environment)
    journal = ImportJournal(journal_folder(environment))
    return Registry(
        allow=allow,
        disable=disable,
        files=[file.resolve() for file in files],
        faulty=[*journal.faulty_plugins(lambda: found_plugins(environment=environment), _try_import), *faulty],
        journal=journal,
        listener=print_step if environment.get("XMCKIT_TRACE", "0") not in ("", "0") else None,
    )


def _try_import(plugin: Plugin) -> Plugin:
    """Import the plugin in a child process; return it with its fault if that ends the child."""
    from xmckit.registry.probe import probe_all

    (probe,) = probe_all([plugin], SECONDS_TO_IMPORT, components=False)
    return probe.faulty


def forget_crashes(plugins: Sequence[Plugin], environment: Mapping[str, str] | None = None) -> None:
    """Load these plugins at the next start, even if their import ended a process earlier."""
    journal = ImportJournal(journal_folder(os.environ if environment is None else environment))
    for plugin in plugins:
        journal.forget(plugin)


def _allowed_and_disabled(environment: Mapping[str, str]) -> tuple[list[str] | None, list[str]]:
    """Return what the environment allows, None for everything, and what it disables."""
    allow = environment.get("XMCKIT_PLUGINS")
    return None if allow is None else _split(allow), _split(environment.get("XMCKIT_DISABLE_PLUGINS", ""))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def default_registry() -> Registry:
    """Return the registry of this process, made on first use."""
    global _default
    if _default is None:
        _default = registry_from_environment()
    return _default


@contextlib.contextmanager
def as_default(registry: Registry) -> Iterator[None]:
    """Let `default_registry` return `registry` inside the block; the command line does this for `--plugin`."""
    global _default
    before, _default = _default, registry
    try:
        yield
    finally:
        _default = before


def make_context(
    *,
    seed: int = 0,
    workers: int = 0,
    folder: Path | None = None,
    progress: Progress | None = None,
    executor: str = "threads",
    registry: Registry | None = None,
) -> Context:
    """Return a context that can build every registered component; `workers=0` is one for each processor."""
    from xmckit.context import Context, cpu_count, silent

    registry = registry or default_registry()
    return Context(
        seed=seed,
        workers=workers or cpu_count(),
        progress=progress or silent,
        folder=folder,
        executor=registry.resolve("executor", executor)(),
        resolve=registry.resolve,
        names=registry.names,
    )
