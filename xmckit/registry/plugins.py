"""The records of the registry: plugins, the components that they offer, and why a plugin was set aside."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from xmckit.hookspecs import Component
from xmckit.registry.locations import Location, file_of, raised_at


@dataclass(frozen=True)
class Plugin:
    """A plugin. `problem` says why it was set aside, `blocked` why it was not loaded.

    `at` is the place in its code that the problem is about, if known. `deprecated` lists what will stop working.
    """

    name: str
    origin: str  # "core", "installed" or "file"
    distribution: str = ""
    version: str = ""
    file: str = ""
    problem: str = ""
    blocked: str = ""
    at: Location | None = None
    deprecated: tuple[tuple[Location, str], ...] = ()

    @property
    def full_name(self) -> str:
        """The name that differs from that of a plugin of the same name in another distribution."""
        return f"{self.distribution}:{self.name}" if self.distribution else self.name

    @property
    def where(self) -> str:
        return str(self.at) if self.at else self.file

    @property
    def description(self) -> str:
        home = f"{self.distribution} {self.version}".strip()
        return f"plugin '{self.name}' ({', '.join(part for part in (home, self.where) if part)})"

    @property
    def source(self) -> str:
        """What to install, or to name on the command line, to get this plugin; see `how_to_have`."""
        if self.origin == "file":
            return f"--plugin {os.path.basename(self.file)}"
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True)
class Registered:
    """A component and the plugin that offers it."""

    kind: str
    component: Component
    plugin: Plugin

    @property
    def description(self) -> str:
        return f"{self.kind}:{self.component.name} of {self.plugin.description}"


class FaultyPlugin(Exception):
    """Why a plugin is set aside, and the place in its code that this is about."""

    def __init__(self, reason: str, at: Location | None = None):
        super().__init__(reason)
        self.at = at


def how_to_have(source: str) -> str:
    """Say where a component came from and how to get it again, given its `Plugin.source` of then."""
    if source.startswith("--plugin "):
        return f"a file of its own: give it with {source}"
    distribution, _, version = source.partition("==")
    installed = installed_version(distribution)
    if not installed:
        return f"the distribution {distribution} {version}, which is not installed: pip install '{source}'"
    if installed != version:
        return f"the distribution {distribution} {version} (installed is {installed}): pip install '{source}'"
    return f"the distribution {distribution} {version}, which is installed"


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution; empty if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def place_of(error: BaseException, registered: Registered) -> Location | None:
    """Return where in a component's code an error was raised; None if it was not, or if the component is the core's."""
    if registered.plugin.origin == "core":
        return None
    homes = (registered.plugin.file, file_of(registered.component.target.partition(":")[0]))
    return next(filter(None, (raised_at(error, home) for home in homes)), None)
