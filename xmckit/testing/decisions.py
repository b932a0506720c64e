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


def assert_outputs(
    decision: Any, vectors: np.ndarray, said: np.ndarray, what: str, among: np.ndarray | None = None
) -> str:
    """Check that the labels output follow the decision's rule; of the candidates `among`, if there are any.

    Under `topk`, no label that is left out may score clearly more than one that is output.
    """
    margins, bound = margins_of(decision, vectors, said, what)
    among = np.ones_like(said) if among is None else among
    require(not (said & ~among).any(), f"{what} gives labels that are not candidates")
    if decision.rule == "topk":
        lowest = np.where(said, margins + bound, np.inf).min(axis=1)[:, None]
        differ = clear = among & ~said & (margins - bound > lowest)
    else:
        differ = among & ((margins > 0) != said)
        clear = differ & (np.abs(margins) > bound)
    if clear.any():
        row, label = np.argwhere(clear)[0]
        raise AssertionError(
            f"W·x + b and {what} differ, by the rule '{decision.rule}', in {clear.sum()} of {among.sum()} entries, "
            f"first at row {row}, label {label}: margin {margins[row, label]:.4g}, rounding explains at most "
            f"{bound[row, label]:.2g}"
        )
    return f"{among.sum()} entries, {said.sum()} of them output, {differ.sum()} left to rounding"


def refuse_thresholds(decision: Any, vectors: np.ndarray, said: np.ndarray) -> None:
    """Fail if sets of several sizes follow one threshold per label: the rule is then not that of a ranking."""
    margins, bound = margins_of(decision, vectors, said, "labels()")
    highest_off = np.where(said, -np.inf, margins - bound).max(axis=0)
    lowest_on = np.where(said, margins + bound, np.inf).min(axis=0)
    by_score = bool((highest_off <= lowest_on).all()) and len(set(said.sum(axis=1).tolist())) > 1
    require(not by_score, "labels() outputs a label where W·x passes a threshold: the rule is 'sign', not 'topk'")
