"""A bound on the paper's radius that a second program can check, from a witness of the largest margin.

Such a witness is Σ λ_i s_i w_i/‖w_i‖ with λ ≥ 0, over the labels that it clears by no more than the margin. By weak
duality every λ ≥ 0 gives a bound (see tolerance.py), and this λ gives a bound close to the radius.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from xmckit_argmax.paper.tolerance import radius_is_at_most
from xmckit_argmax.records import Assignment, Certificate
from xmckit_argmax.system import row_lengths

TIGHT = 1e-3  # labels that are cleared by up to this share more than the margin count as tight
SPARE, SPARE_OF_BOX = 1e-9, 1e-13  # for the roundings of the multipliers, and of the program that checks the bound


@np.errstate(all="ignore")  # nan gives no bound
def radius_bound(W: np.ndarray, assignment: Assignment, x: np.ndarray, box: float) -> tuple[float, Certificate] | None:
    """Return a radius that no ball exceeds and its certificate, or None; for the rule "sign" without biases."""
    labels = np.arange(len(W)) if assignment.candidates is None else assignment.candidates
    signs = np.where(np.isin(labels, assignment.active), 1.0, -1.0)
    norms, length = row_lengths(W[labels]), float(row_lengths(x[None])[0])
    if not length > 0 or not (np.isfinite(norms) & (norms > 0)).all():
        return None
    clear = signs * (W[labels] @ x) / norms
    chosen = np.argsort(clear, kind="stable")[: 2 * len(x) + 8]
    chosen = chosen[clear[chosen] <= clear[chosen[0]] * (1 + TIGHT)]
    unit = W[labels[chosen]] * (signs[chosen] / norms[chosen])[:, None]
    if not len(chosen) or not np.isfinite(unit).all():
        return None
    try:
        weights = nnls(unit.T, x / length)[0]
    except (RuntimeError, np.linalg.LinAlgError):  # nnls gave up
        return None
    used = chosen[weights > 0]
    weights, rows = weights[weights > 0] / norms[used], W[labels[used]] * signs[used, None]
    if not len(used) or not np.isfinite(weights).all():
        return None
    bound = float(np.abs(weights @ rows).sum() / (weights @ norms[used]))
    bound = box * (bound * (1 + SPARE) + SPARE_OF_BOX)
    if not np.isfinite(bound) or not radius_is_at_most(bound, rows, np.zeros(len(used)), weights, box):
        return None
    order = np.argsort(labels[used])
    return bound, (labels[used][order], weights[order])
