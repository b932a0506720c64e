"""The order of runs: a number that rises with every run below one root, independent of the clock."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from xmckit import store
from xmckit.runs import layout

_LARGEST = 1 << 53  # what comes from damage: nobody counts that far, and a manifest cannot hold much more


def next_in_sequence(root: Path) -> int:
    """Take the next number of the runs below `root`. Two processes get different ones, where there are file locks."""
    root.mkdir(parents=True, exist_ok=True)
    counter = root / layout.SEQUENCE
    with store.turn(root / f"{layout.SEQUENCE}.lock", contextlib.nullcontext):
        number = _last(counter) + 1
        store.write_text(counter, f"{number}\n")
    return number


def _last(counter: Path) -> int:
    """Read the last number; if the file is missing or damaged, the largest of all runs."""
    with contextlib.suppress(OSError, ValueError):
        number = int(counter.read_text("ascii"))
        if 0 <= number < _LARGEST:
            return number
    return max(map(read_number, counter.parent.glob(f"[!.]*/[!.]*/{layout.MANIFEST}")), default=0)


def read_number(manifest: Path) -> int:
    """Read the number of a run whose manifest may be damaged; 0 if it has none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(manifest.read_bytes())
        number = content.get("sequence") if isinstance(content, dict) else None
        return number if type(number) is int and 0 < number < _LARGEST else 0
    return 0
