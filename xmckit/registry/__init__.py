"""Find, load and isolate plugins, and say which plugin is at fault.

May be imported by everything above components and data; imports no stage, recipe or command. Public: the names below.
"""

from __future__ import annotations

from xmckit.registry.environment import (
    as_default,
    default_registry,
    forget_crashes,
    found_plugins,
    make_context,
    registry_from_environment,
)
from xmckit.registry.manager import Registry
from xmckit.registry.plugins import Plugin, Registered, how_to_have, place_of

__all__ = [
    "Plugin", "Registered", "Registry", "as_default", "default_registry", "forget_crashes", "found_plugins",
    "how_to_have", "make_context", "place_of", "registry_from_environment",
]  # fmt: skip
