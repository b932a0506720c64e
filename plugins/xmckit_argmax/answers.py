"""What is asked about a system, what a search finds, and what is proved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Proof = Literal["float-certified", "exact", "none"]


@dataclass
class Answer:
    """What is known about one label set; `reached` is a radius that the paper's linear programme can reach."""

    status: Literal["argmaxable", "unargmaxable", "unresolved"] = "unresolved"
    proof: Proof = "none"
    x: np.ndarray | None = None
    support: np.ndarray | None = None
    multipliers: np.ndarray | None = None
    margin: float | None = None
    radius: tuple[float, float] | None = None
    reached: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Question:
    """A label set; `rows` are the rows that count, None for all."""

    active: np.ndarray
    rows: np.ndarray | None = None


@dataclass
class Found:
    """What the rounds leave of a label set: a vector, or a combination of rows, or neither, and the rows they saw.

    `inverse` is about that of the transposed rows of the support but the last, where these are as many as columns.
    """

    index: int
    seconds: float
    rows: np.ndarray
    is_active: np.ndarray
    v: np.ndarray | None = None
    support: np.ndarray | None = None
    inverse: np.ndarray | None = None

    def working_set(self) -> np.ndarray:
        """The rows, active ones first."""
        return self.rows[np.argsort(self.is_active == 0, kind="stable")].astype(np.int64)
