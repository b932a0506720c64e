"""Compare W·x + b with the labels that a head or its `replay` outputs, up to float32 rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from xmckit.testing.assertions import require

FLOAT32_UNIT = 2.0**-24


def margins_of(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return W·x + b in float64, and how far a float32 scorer may be from it."""
    W, x = decision.W.astype(np.float64), vectors.astype(np.float64)
    b = np.zeros(len(W)) if decision.b is None else decision.b.astype(np.float64)
    margins = x @ W.T + b
    require(margins.shape == said.shape, f"the decision is about {margins.shape}, {what} about {said.shape}")
    terms = W.shape[1] + 2
    gamma = terms * FLOAT32_UNIT / (1 - terms * FLOAT32_UNIT)
    bound = gamma * (np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(W, axis=1) + np.abs(b))
    # b may be the difference of a bias and a threshold, which are not known here
    return margins, bound + 8 * FLOAT32_UNIT * np.abs(margins).max(initial=0.0)


def assert_order(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    """Check that no label that is left out scores clearly more than one that is output."""
    margins, bound = margins_of(decision, vectors, said, what)
    lowest = np.where(said, margins + bound, np.inf).min(axis=1)
    highest = np.where(said, -np.inf, margins - bound).max(axis=1)
    wrong = np.flatnonzero(highest > lowest)
    require(
        not len(wrong),
        f"{what} are not the labels that W·x + b ranks first in {len(wrong)} of {len(said)} rows, "
        f"first in row {wrong[0] if len(wrong) else 0}",
    )
    return f"{len(said)} rows, {said.sum()} labels output"


def assert_signs(decision: Any, vectors: np.ndarray, said: np.ndarray, what: str) -> str:
    margins, bound = margins_of(decision, vectors, said, what)
    differ = (margins > 0) != said
    clear = differ & (np.abs(margins) > bound)
    if clear.any():
        row, label = np.argwhere(clear)[0]
        raise AssertionError(
            f"W·x + b and {what} differ in {clear.sum()} of {said.size} entries, first at row {row}, label {label}: "
            f"margin {margins[row, label]:.4g}, rounding explains at most {bound[row, label]:.2g}"
        )
    return f"{said.size} entries, {said.sum()} of them output, {differ.sum()} left to rounding"


def refuse_thresholds(decision: Any, vectors: np.ndarray, said: np.ndarray) -> None:
    """Fail if sets of several sizes follow one threshold per label: the rule is then not that of a ranking."""
    margins, bound = margins_of(decision, vectors, said, "labels()")
    highest_off = np.where(said, -np.inf, margins - bound).max(axis=0)
    lowest_on = np.where(said, margins + bound, np.inf).min(axis=0)
    by_score = bool((highest_off <= lowest_on).all()) and len(set(said.sum(axis=1).tolist())) > 1
    require(not by_score, "labels() outputs a label where W·x passes a threshold: the rule is 'sign', not 'topk'")


def assert_among(decision: Any, vectors: np.ndarray, said: np.ndarray, among: np.ndarray) -> str:
    """Compare among the candidates; no other label may be output."""
    require(not (said & ~among).any(), "labels() gives labels that are no candidates")
    margins, bound = margins_of(decision, vectors, said, "labels()")
    if decision.rule == "topk":
        lowest = np.where(said, margins + bound, np.inf).min(axis=1)
        wrong = (np.where(among & ~said, margins - bound, -np.inf).max(axis=1) > lowest)[:, None]
    else:
        wrong = among & ((margins > 0) != said) & (np.abs(margins) > bound)
    require(not wrong.any(), f"W·x + b and labels() differ among the candidates in {wrong.any(axis=1).sum()} rows")
    return f"{among.sum()} candidates, {said.sum()} of them output"
