"""Label sets that a user names: drawn at random, or in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.data.model import as_csr
from xmckit.errors import DataError, UsageError, nearest
from xmckit.sparse.csr import csr_from_lists

RANDOM = "random:"


def random_label_sets(text: str, labels: int, rng: np.random.Generator) -> csr_matrix:
    """Draw the label sets of `random:K:COUNT`: COUNT sets of K labels, every set as likely as any other."""
    form = re.fullmatch(r"random:(\d+):(\d+)", text)
    if form is None:
        raise UsageError(f"'{text}': expected random:K:COUNT, for instance random:3:1000 for 1000 sets of 3 labels")
    size, count = int(form[1]), int(form[2])
    if not count:
        raise UsageError(f"'{text}' asks for no label set: COUNT has to be 1 or more")
    if size > labels:
        raise UsageError(f"'{text}' asks for sets of {size} labels, but there are only {labels}")
    chosen = [sorted(rng.choice(labels, size=size, replace=False).tolist()) for _ in range(count)]
    return csr_from_lists(chosen, labels)


def read_label_sets(path: Path, label_names: Sequence[str]) -> csr_matrix:
    """Read a file with one JSON list of label names or numbers on each line, or an .npz with a CSR matrix."""
    if not path.is_file():
        raise DataError("there is no such file with label sets", path=path)
    if path.suffix == ".npz":
        matrix = store.read_csr(path)
        if matrix.shape[1] != len(label_names):
            raise DataError(f"the label sets are over {matrix.shape[1]} labels, expected {len(label_names)}", path=path)
        return as_csr(matrix)
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"this is not UTF-8 text: {error}", path=path) from None
    if not lines:
        raise DataError("there are no label sets in this file", path=path)
    numbers = _numbers_of(label_names)
    sets = []
    for line, text in enumerate(lines, start=1):
        try:
            sets.append(_label_set(text, numbers, label_names))
        except ValueError as error:
            raise DataError(str(error), path=path, line=line) from None
    return csr_from_lists(sets, len(label_names))


def _numbers_of(label_names: Sequence[str]) -> dict[str, int]:
    """Map names to numbers; −1 stands for a name that several labels have."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(label_names):
        numbers[name] = -1 if name in numbers else number
    return numbers


def _label_set(text: str, numbers: dict[str, int], label_names: Sequence[str]) -> list[int]:
    """Parse one line; ValueError says what is wrong with it."""
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'expected a JSON list such as ["red", "round"] or [3, 17], found {text[:60]!r} ({error})'
        ) from None
    if not isinstance(items, list):
        raise ValueError(f"expected a JSON list of labels, found {text[:60]!r}")
    return sorted({_label(item, numbers, label_names) for item in items})


def _label(item: Any, numbers: dict[str, int], label_names: Sequence[str]) -> int:
    if type(item) is int:
        if not 0 <= item < len(label_names):
            raise ValueError(f"label {item} does not exist: labels go from 0 to {len(label_names) - 1}")
        return item
    if not isinstance(item, str):
        raise ValueError(f"expected the name or the number of a label, found {item!r}")
    if item not in numbers:
        raise ValueError(f"no label is called {item!r}{nearest(item, label_names)}")
    if numbers[item] < 0:
        raise ValueError(f"several labels are called {item!r}: give the label's number")
    return numbers[item]
