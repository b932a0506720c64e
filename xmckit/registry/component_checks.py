"""Check the records that a plugin's hooks return. `FaultyPlugin` says what is wrong with one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from xmckit.hookspecs import API_VERSION, OLDEST_API_VERSION, Component
from xmckit.registry.plugins import FaultyPlugin, Plugin

MOST_COMPONENTS = 10_000  # of one hook of one plugin
EXPECTED = "xmckit.Component records: return a list of them, or yield each"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def listed_components(answer: Any, hook: str) -> list[Any]:
    """Return what a hook gave as a list; `check_component` checks its items."""
    if isinstance(answer, (str, bytes, Mapping)) or not hasattr(answer, "__iter__"):
        raise FaultyPlugin(f"its {hook}() gave {answer!r}, which is not iterable as {EXPECTED}")
    components = list(itertools.islice(answer, MOST_COMPONENTS + 1))
    if len(components) > MOST_COMPONENTS:
        raise FaultyPlugin(f"its {hook}() gave more than {MOST_COMPONENTS} components: does it ever end?")
    return components


def check_component(component: object, hook: str, plugin: Plugin) -> None:
    """Check one record: its type, its name, its texts and the version of the contracts."""
    if not isinstance(component, Component):
        raise FaultyPlugin(f"its {hook}() gave {component!r}, expected {EXPECTED}")
    if not isinstance(component.name, str) or not _NAME.fullmatch(component.name):
        raise FaultyPlugin(
            f"its {hook}() gave the name {component.name!r}, expected lower-case letters, digits, '-', '.', '_'"
        )
    texts = {"target": component.target, "summary": component.summary, "requires": component.requires}
    for field, value in texts.items():
        if not isinstance(value, str):
            raise FaultyPlugin(f"{component.name} has the {field} {value!r}, expected text")
    if not isinstance(component.api_version, int):
        raise FaultyPlugin(f"{component.name} has the api_version {component.api_version!r}, expected a whole number")
    if not OLDEST_API_VERSION <= component.api_version <= API_VERSION:
        raise FaultyPlugin(_other_version(component, plugin))


def _other_version(component: Component, plugin: Plugin) -> str:
    """Explain why a component for other contracts cannot be used, and what to do."""
    written = f"{component.name} was written for version {component.api_version} of the contracts and this xmckit"
    if component.api_version > API_VERSION:
        older = f", or install an older {plugin.distribution}" if plugin.distribution else ""
        return f"{written} has version {API_VERSION}: upgrade xmckit (pip install --upgrade xmckit){older}"
    remedy = (
        f"upgrade the plugin (pip install --upgrade {plugin.distribution}), or install an older xmckit"
        if plugin.distribution
        else "upgrade the plugin: `xmckit plugins new` writes a current one to compare with"
    )
    return f"{written} takes versions from {OLDEST_API_VERSION} to {API_VERSION}: {remedy}"


def name_taken(holder: Plugin, newcomer: Plugin) -> str:
    """Explain why a name cannot be given a second time, and what to do about it."""
    if holder == newcomer:
        return "a name that it offers twice"
    if holder.origin == "core":
        return f"a name that {holder.description} already has and keeps: choose another"
    way_out = f"set XMCKIT_DISABLE_PLUGINS={holder.name}" if holder.origin == "installed" else "leave that file out"
    return f"a name that {holder.description} already has; to replace that one, {way_out}"
