"""Check what a verdict claims beside its status against the files; part of the independent checker (see check.py).

* *margin*: the smallest s_i·a_i·v/(‖a_i‖‖v‖) of the witness v = x, with a_i = w_i. A bias adds the entry 1 to v and b_i
  to a_i; the rule "topk" adds −c and 1 for the best threshold c, which is searched here. Rows of zeros do not count.
* *radius* and *eps*, rule "sign": a ball of radius r around an x with entries up to `box` is inside the region if
  s_i·(w_i·x + b_i) ≥ r‖w_i‖ for every i; without biases x may be scaled to the box. For λ ≥ 0 no radius exceeds
  (box·‖Σ λ_i s_i w_i‖₁ + Σ λ_i s_i b_i)/Σ λ_i‖w_i‖: the certificate of an argmaxable set is such a λ.
* *ideal*: an alternating layer of degree k outputs every set with up to k arcs (cyclic runs of active labels in its
  order), and no other if it has no slack and equal biases, but for the tie of all labels under "topk", which outputs
  the lowest ids. The head alone vouches that its layer is alternating.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from flint import fmpq

from xmckit_argmax.checker.evidence import Evidence, StoredLayer, rational

MOST_THIRDS = 2000  # (2/3)^2000 of an interval is negligible at any scale of its ends
CLOSE = 1e-6  # a margin may differ by this share from the one computed here, which rounds differently


class ClaimBasis(NamedTuple):
    """What the claims about a layer refer to: ‖w_i‖ and ‖a_i‖, the claimed structure, box and eps."""

    norms: np.ndarray
    lengths: np.ndarray
    structure: dict[str, np.ndarray]
    box: Any
    eps: Any


def read_basis(layer: StoredLayer, stored: dict[str, np.ndarray], params: dict[str, Any]) -> ClaimBasis:
    norms = _lengths(layer.W)
    lengths = _lengths(np.stack([norms, np.full(len(norms), layer.rule == "topk"), layer.b], axis=1))
    structure = {name: array for name, array in stored.items() if name in ("degree", "slack", "order")}
    known = {"box", "eps"} <= params.keys()
    return ClaimBasis(norms, lengths, structure, *(params[name] if known else None for name in ("box", "eps")))


def _lengths(rows: np.ndarray) -> np.ndarray:
    """Return ‖row‖ for each row, without overflow or underflow of the squares."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return np.asarray(np.linalg.norm(rows / scale[:, None], axis=1) * scale)


def _margin_holds(verdict: dict[str, Any], evidence: Evidence, basis: ClaimBasis) -> bool:
    """Check that the witness has this margin."""
    layer, x, claimed = evidence.layer, evidence.x, verdict["margin"]
    counted = (evidence.signs != 0) & (basis.lengths > 0)  # a row of zeros has no angle with x
    signs, lengths, topk = evidence.signs[counted], basis.lengths[counted], layer.rule == "topk"
    if x is None or verdict["status"] != "argmaxable" or len(set(signs)) < 1 + topk:
        return False
    if not 0 <= claimed <= 1 + CLOSE:  # it is a cosine
        return False
    with np.errstate(all="ignore"):
        middle, length = (evidence.low + evidence.high)[counted] / 2, math.hypot(*x, layer.biased)
        if length == 0:  # all labels are tied
            return bool(claimed == 0)
        room = float(((evidence.high - evidence.low)[counted] / lengths).max(initial=0.0)) / length
        if not room < np.inf:
            return False

        def margin(threshold: float) -> float:
            return float((signs * (middle - threshold) / lengths).min()) / float(np.hypot(length, threshold))

        if not topk:
            return bool(abs(max(0.0, margin(0.0)) - claimed) <= room + CLOSE * claimed)
        left, right = float(middle[signs < 0].max()), float(middle[signs > 0].min())
        best = 0.0
        for _ in range(MOST_THIRDS):  # the margin rises and then falls with the threshold
            a, b = (2 * left + right) / 3, (left + 2 * right) / 3
            margins = margin(a), margin(b)
            best = max(best, *margins)
            if best > claimed * (1 + CLOSE) + room or not left < a < b < right:
                break
            left, right = (a, right) if margins[0] < margins[1] else (left, b)
        return bool(abs(best - claimed) <= room + CLOSE * claimed)


def _radius_holds(verdict: dict[str, Any], evidence: Evidence, basis: ClaimBasis) -> bool:
    """Check that the radius is between the two numbers."""
    at_least, at_most = verdict["radius"]
    if not 0 <= at_least <= at_most or evidence.layer.rule != "sign" or evidence.layer.biased:
        return False
    trivial = basis.box * evidence.layer.W.shape[1] ** 0.5
    inside = at_least == 0 or _ball(evidence, basis) >= at_least
    return inside and (at_most >= trivial or _radius_is_bounded(evidence, basis, at_most))


def _eps_holds(verdict: dict[str, Any], evidence: Evidence, basis: ClaimBasis) -> bool:
    """Check that the witness or the certificate proves the answer at the tolerance."""
    if verdict["eps"] == "unargmaxable":
        return verdict["status"] == "unargmaxable" or _radius_is_bounded(evidence, basis, basis.eps)
    if verdict["eps"] == "argmaxable":
        return verdict["status"] == "argmaxable" and bool(_ball(evidence, basis) > basis.eps)
    return bool(verdict["eps"] == "unresolved")


def _ball(evidence: Evidence, basis: ClaimBasis) -> float:
    """Return a proved radius of a ball around the witness, −inf if nothing is proved."""
    layer, signs, x, box = evidence.layer, evidence.signs, evidence.x, float(basis.box)
    if layer.rule == "sign" and not signs.any():
        return np.inf
    if layer.rule != "sign" or x is None:
        return -np.inf
    sloped = (signs != 0) & (basis.norms > 0)  # a label without slope bounds no ball, and its sign is proved
    if not sloped.any():
        return np.inf
    with np.errstate(over="ignore"):  # such a distance exceeds any box
        distances = np.where(signs > 0, evidence.low, -evidence.high)[sloped] / basis.norms[sloped] * (1 - 1e-12)
    largest, distance = float(np.abs(x).max(initial=0.0)), float(distances.min(initial=np.inf))
    if layer.biased:
        return distance if largest <= box else -np.inf
    return distance * (box / largest) if largest > 0 else -np.inf


def _radius_is_bounded(evidence: Evidence, basis: ClaimBasis, radius: float) -> bool:
    """Check that the certificate's multipliers prove that no ball is larger; in rational numbers, but for lengths."""
    (labels, multipliers), layer, signs = evidence.certificate, evidence.layer, evidence.signs
    used = np.concatenate([multipliers, basis.norms[signs != 0]])
    if layer.rule != "sign" or not np.isin(labels, np.flatnonzero(signs)).all() or not np.isfinite(used).all():
        return False
    if not len(labels) or not (multipliers > 0).all():
        return False
    parts = [
        rational(part) * int(signs[label]) * fmpq(2) ** int(layer.powers[label])  # multipliers belong to stored rows
        for label, part in zip(labels, multipliers, strict=True)
    ]
    total = fmpq(0)
    for column in layer.W[labels].T:
        total += abs(sum((part * rational(w) for part, w in zip(parts, column, strict=True)), fmpq(0)))
    shift = sum((part * rational(layer.b[label]) for label, part in zip(labels, parts, strict=True)), fmpq(0))
    lengths = [rational(basis.norms[label] * (1 - 1e-12)) for label in labels]
    scale = sum((abs(part) * length for part, length in zip(parts, lengths, strict=True)), fmpq(0))
    return bool(scale > 0 and rational(basis.box) * total + shift <= rational(radius) * scale)


def _ideal_holds(verdict: dict[str, Any], evidence: Evidence, basis: ClaimBasis) -> bool:
    """Check that the number of arcs gives this answer."""
    if evidence.missed:
        return bool(verdict["ideal"] == "unargmaxable")
    if basis.structure.keys() != {"degree", "slack", "order"}:
        return False
    degree, slack, order = (basis.structure[name] for name in ("degree", "slack", "order"))
    labels, columns = evidence.layer.W.shape
    if not np.array_equal(np.sort(order), np.arange(labels)) or columns != 2 * degree + 1 + slack:
        return False
    around = evidence.signs[np.argsort(order)]
    around = around[around != 0] > 0
    arcs = int((around & ~np.roll(around, 1)).sum())
    b = np.ldexp(evidence.layer.b, evidence.layer.powers)
    equal = bool((b == b[:1]).all())
    lowest = evidence.layer.rule == "topk" and equal and (np.diff(evidence.signs[evidence.signs != 0]) <= 0).all()
    expected = "argmaxable" if arcs <= degree or lowest else "unargmaxable" if slack == 0 and equal else None
    return bool(verdict["ideal"] == expected)


CLAIM_CHECKS = {"margin": _margin_holds, "radius": _radius_holds, "eps": _eps_holds, "ideal": _ideal_holds}
