"""A bound on the paper's radius that a second program can check, from a witness of the largest margin.

Such a witness is Σ λ_i s_i w_i/‖w_i‖ over the labels that it clears by no more than the margin, with λ ≥ 0. Whatever
λ ≥ 0 is, weak duality makes it a bound (see tolerance.py); the closer to this one, the closer to the radius.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from xmckit_argmax.answers import Question
from xmckit_argmax.paper.tolerance import radius_is_at_most
from xmckit_argmax.system import row_lengths

TIGHT = 1e-3  # labels that are cleared by this share more than the margin are looked at too
SPARE, SPARE_OF_BOX = 1e-9, 1e-13  # for the roundings of the multipliers, and of whoever checks the bound


@np.errstate(all="ignore")  # what is no number is no bound
def radius_bound(
    W: np.ndarray, question: Question, x: np.ndarray, box: float
) -> tuple[float, tuple[np.ndarray, np.ndarray]] | None:
    """(a radius that no ball exceeds, the labels and multipliers that prove it); None without any that do.

    For decisions of the rule "sign" without biases.
    """
    labels = np.arange(len(W)) if question.rows is None else question.rows
    signs = np.where(np.isin(labels, question.active), 1.0, -1.0)
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
    except (RuntimeError, np.linalg.LinAlgError):  # it gave up
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
