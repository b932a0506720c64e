"""The hooks that plugins implement: one for each kind of component in `xmckit.kinds`.

A plugin is a module that implements some of these hooks and is named by an entry point in the group `xmckit`
(or by `--plugin FILE.py`):

    import xmckit

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("mine", "my_package.my_head:MyHead", summary="What it does, in one line.")

The hook of a kind is `xmckit_` and the kind's plural: `xmckit_heads`, `xmckit_label_preprocessors`, `xmckit_indexers`,
`xmckit_verifiers`, `xmckit_datasets`, `xmckit_readers`, `xmckit_featurizers`, `xmckit_encoders`, `xmckit_metrics`,
`xmckit_executors`, `xmckit_commands`. Each takes no argument and returns or yields `Component` records.

The `target` of a record is a string, so that listing plugins imports neither torch nor any other heavy library.
`xmckit.protocols` says what each target must offer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType

import pluggy

from xmckit.kinds import KINDS, Kind

PROJECT = "xmckit"
ENTRY_POINT_GROUP = "xmckit"

# The version of everything in this file and in protocols.py. It grows when a plugin has to change.
API_VERSION = 1
# The oldest version whose plugins still work as they are.
OLDEST_API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Component:
    """One thing a plugin offers: its name in recipes, where it lives, and what it is for.

    `target` is `"package.module:attribute"`. `requires` names what has to be installed besides the plugin, as one
    would give it to pip; it is shown when the target cannot be imported. `api_version` is the version of the
    contracts that the component was written for.
    """

    name: str
    target: str
    summary: str = ""
    requires: str = ""
    api_version: int = 1


def _specification(kind: Kind) -> Callable[[], Iterable[Component]]:
    def hook() -> Iterable[Component]:  # type: ignore[empty-body]
        pass

    protocol = f" (`protocols.{kind.protocol}`)" if kind.protocol else ""
    usage = f", used by `{kind.usage}`" if kind.usage else ""
    hook.__name__ = hook.__qualname__ = kind.hook
    hook.__doc__ = f"{kind.summary}{protocol}{usage}."
    warning = DeprecationWarning(kind.deprecated) if kind.deprecated else None
    return hookspec(hook, warn_on_impl=warning)


def specifications() -> ModuleType:
    """Return a module with the hooks of all kinds in the table, as pluggy takes it."""
    hooks = ModuleType(f"{__name__}.hooks")
    vars(hooks).update({kind.hook: _specification(kind) for kind in KINDS.values()})
    return hooks
