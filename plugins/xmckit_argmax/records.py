"""The records that the verifier, the search and the proofs exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Certificate = tuple[np.ndarray, np.ndarray]  # label ids and their multipliers
Proof = Literal["float-certified", "exact", "none"]


@dataclass(frozen=True)
class Assignment:
    """A label set to verify: its active labels, and the candidates that it is restricted to (None: all labels)."""

    active: np.ndarray
    candidates: np.ndarray | None = None


@dataclass
class SearchResult:
    """The result of the search for one assignment: a vector, the rows of a combination, or neither.

    `index` is the position of the assignment, `rows` its last working set. `inverse` approximates the inverse of the
    transposed support rows without the last one; it is set if they form a square matrix.
    """

    index: int
    seconds: float
    rows: np.ndarray
    is_active: np.ndarray
    v: np.ndarray | None = None
    support: np.ndarray | None = None
    inverse: np.ndarray | None = None
