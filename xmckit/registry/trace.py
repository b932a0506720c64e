"""What the plugin manager did, step by step: imports, hook calls, who answered with how many components, how long.

The registry keeps these times itself. pluggy's own monitoring sees a hook that is a generator before it has run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Step:
    """One thing that was done with a plugin.

    `what` is the module of an import, the name of a hook, or the target of a component. `components` counts what a hook
    call gave; it is None where the plugin did not answer the hook, and for imports. `error` says how it failed.
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
        return f"{self.components} component{'s' * (self.components != 1)}"

    def __str__(self) -> str:
        return f"{self.plugin}: {self.action} {self.what}: {self.outcome}, {1000 * self.seconds:.1f} ms"


def print_step(step: Step) -> None:
    """To stderr, as it happens: results are on stdout."""
    print(f"trace: {step}", file=sys.stderr, flush=True)
