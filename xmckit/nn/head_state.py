"""What a stored head says about itself beside its weights, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.nn.training import Epoch


def read_state(path: Path) -> tuple[dict[str, int], float, tuple[Epoch, ...], list[str]]:
    state = store.read_json(path)
    sizes = state.get("sizes") if isinstance(state, dict) else None
    if not isinstance(sizes, dict) or not all(type(n) is int and 0 <= n < 1 << 48 for n in sizes.values()):
        raise store.damaged(path, "expected sizes as whole numbers")
    if not all(sizes.get(name, 1) for name in ("inputs", "labels", "width", "output")):
        raise store.damaged(path, "expected the sizes inputs, labels, width and output to be above 0")
    threshold = state.get("threshold")
    if type(threshold) not in (int, float) or not abs(threshold) <= float(np.finfo(np.float32).max):
        raise store.damaged(path, "expected a threshold that is a finite number")
    history = state.get("history")
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        raise store.damaged(path, "expected the epochs of the training, each with number, loss, score and seconds")
    used = state.get("indexes", [])
    if not isinstance(used, list) or not all(isinstance(name, str) for name in used):
        raise store.damaged(path, "expected the names of indexers")
    return sizes, float(threshold), tuple(Epoch(*epoch) for epoch in history), used


def _is_epoch(stored: Any) -> bool:
    """Whether this is an `Epoch` as JSON has it."""
    if not isinstance(stored, list) or len(stored) != len(Epoch._fields):
        return False
    number, loss, score, seconds = stored
    return type(number) is int and all(type(n) in (int, float) for n in (loss, score or 0, seconds))
