"""A limit on the memory of this process, above what it has already."""

from __future__ import annotations

import resource
from pathlib import Path


def limit_memory(extra: int | None) -> None:
    """Let this process have `extra` bytes more than it has now; None takes the limit away."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard if extra is None else used + extra, hard))
