"""What a stored head says about itself beside its weights, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit.nn.training import Epoch


def read_state(path: Path) -> tuple[dict[str, int], float, tuple[Epoch, ...], list[str], list[int]]:
    """Sizes, threshold, epochs, the indexers by name, and how many labels the index of each knows."""
    state = store.read_json(path)
    sizes = state.get("sizes") if isinstance(state, dict) else None
    if not isinstance(sizes, dict) or not all(type(n) is int and 0 <= n < 1 << 48 for n in sizes.values()):
        raise store.damaged(path, "expected sizes as whole numbers")
    if not all(sizes.get(name, 1) for name in ("inputs", "labels", "width", "output")):
        raise store.damaged(path, "expected the sizes inputs, labels, width and output to be above 0")
    if not sizes.get("added", 0) < sizes.get("labels", 1):
        raise store.damaged(path, "expected fewer labels that were added than labels")
    threshold = state.get("threshold")
    if type(threshold) not in (int, float) or not abs(threshold) <= float(np.finfo(np.float32).max):
        raise store.damaged(path, "expected a threshold that is a finite number")
    history = state.get("history")
    if not isinstance(history, list) or not history or not all(map(_is_epoch, history)):
        raise store.damaged(path, "expected the epochs of the training, each with number, loss, score and seconds")
    used = state.get("indexes", [])
    if not isinstance(used, list) or not all(isinstance(name, str) for name in used):
        raise store.damaged(path, "expected the names of indexers")
    labels = sizes.get("labels", 0)
    known = state.get("known", [labels] * len(used))
    if not isinstance(known, list) or len(known) != len(used) or not all(_is_count(n, labels) for n in known):
        raise store.damaged(path, "expected for each index how many of the labels it knows")
    return sizes, float(threshold), tuple(Epoch(*epoch) for epoch in history), used, known


def _is_count(number: Any, most: int) -> bool:
    return type(number) is int and 0 < number <= most


def _is_epoch(stored: Any) -> bool:
    """Whether this is an `Epoch` as JSON has it."""
    if not isinstance(stored, list) or len(stored) != len(Epoch._fields):
        return False
    number, loss, score, seconds = stored
    return type(number) is int and all(type(n) in (int, float) for n in (loss, score or 0, seconds))
