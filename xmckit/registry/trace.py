"""The steps of the plugin manager: imports, hook calls, the number of components, and the time of each.

The registry measures the times itself: pluggy's own monitoring ends before a hook that is a generator has run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from xmckit.errors import counted


@dataclass(frozen=True)
class Step:
    """One step with a plugin.

    `what` is the module of an import, the name of a hook, or the target of a component. `components` counts what a hook
    call gave; it is None for imports and for a hook that the plugin does not implement. `error` says how it failed.
    """

    plugin: str
    action: Literal["import", "hook", "component"]
    what: str
    seconds: float
    components: int | None = None
    error: str = ""

    @property
    def outcome(self) -> str:
        if self.error:
            return self.error
        if self.action != "hook":
            return "imported"
        if self.components is None:
            return "no answer"
        return counted(self.components, "component")

    def __str__(self) -> str:
        return f"{self.plugin}: {self.action} {self.what}: {self.outcome}, {1000 * self.seconds:.1f} ms"


def print_step(step: Step) -> None:
    """Print to stderr: results are on stdout."""
    print(f"trace: {step}", file=sys.stderr, flush=True)
