"""What a verdict claims beside its status, held against the files; part of the independent checker (see checker.py).

* *margin*: the smallest s_i·a_i·v/(‖a_i‖‖v‖) of the witness v = x, with a_i = w_i. A bias adds the entry 1 to v and b_i
  to a_i, the rule "topk" −c and 1 for a threshold c; the best one is looked for here.
* *radius* and *eps*, rule "sign": a ball of radius r around an x with entries up to `box` is inside the region when
  s_i·(w_i·x + b_i) ≥ r‖w_i‖ for every i; without biases x may be scaled to the box. For λ ≥ 0 no radius exceeds
  (box·‖Σ λ_i s_i w_i‖₁ + Σ λ_i s_i b_i)/Σ λ_i‖w_i‖: the certificate of a set that is argmaxable is such a λ.
* *ideal*: an alternating layer of degree k outputs every set with up to k runs of active labels around its order, and
  no other if it has no slack and equal biases. That the layer is one is the head's word.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from flint import fmpq

STATUSES = ("argmaxable", "unargmaxable", "unresolved")
FORMAT = 1  # of verdicts.json
MOST_LISTED = 20  # label sets that can never be output
CLOSE = 1e-6  # by this share a margin may differ from the one computed here, which rounds differently


class Layer(NamedTuple):
    """What is in a decision file; `sizes` is |W|, and `lengths` are ‖a_i‖."""

    W: np.ndarray
    b: np.ndarray
    rule: str
    biased: bool
    sizes: np.ndarray
    norms: np.ndarray
    lengths: np.ndarray
    structure: dict[str, np.ndarray]


class Asked(NamedTuple):
    """One label set: the sign that each label is to have, 0 where it does not count, and what the files say.

    `low` and `high` bound the logits of the witness x; there is none where x is None.
    """

    layer: Layer
    signs: np.ndarray
    missed: list[int]
    x: np.ndarray | None
    low: np.ndarray
    high: np.ndarray
    certificate: tuple[np.ndarray, np.ndarray]
    params: dict[str, Any]


def _margin_holds(verdict: dict[str, Any], asked: Asked) -> bool:
    """Whether the witness has this margin."""
    layer, x, claimed, counted = asked.layer, asked.x, verdict["margin"], asked.signs != 0
    signs, lengths, topk = asked.signs[counted], layer.lengths[counted], layer.rule == "topk"
    if x is None or verdict["status"] != "argmaxable" or len(set(signs)) < 1 + topk:
        return False
    if not 0 <= claimed <= 1 + CLOSE:  # it is a cosine
        return False
    with np.errstate(all="ignore"):
        middle, length = (asked.low + asked.high)[counted] / 2, math.hypot(*x, layer.biased)
        if length == 0:
            return False
        room = float(((asked.high - asked.low)[counted] / lengths).max()) / length

        def margin(threshold: float) -> float:
            return float((signs * (middle - threshold) / lengths).min()) / float(np.hypot(length, threshold))

        if not topk:
            return bool(abs(max(0.0, margin(0.0)) - claimed) <= room + CLOSE * claimed)
        left, right = float(middle[signs < 0].max()), float(middle[signs > 0].min())
        for _ in range(100):  # the margin rises and then falls with the threshold
            a, b = (2 * left + right) / 3, (left + 2 * right) / 3
            left, right = (a, right) if margin(a) < margin(b) else (left, b)
        return bool(claimed <= margin(left) * (1 + CLOSE) + room)


def _radius_holds(verdict: dict[str, Any], asked: Asked) -> bool:
    """Whether the radius is between the two numbers."""
    at_least, at_most = verdict["radius"]
    if not 0 <= at_least <= at_most:
        return False
    trivial = asked.params["box"] * asked.layer.W.shape[1] ** 0.5
    inside = at_least == 0 or _ball(asked) >= at_least
    return inside and (at_most >= trivial or _bounded(asked, at_most)) and _has_radius(asked)


def _has_radius(asked: Asked) -> bool:
    return asked.layer.rule == "sign" and not asked.layer.biased


def _eps_holds(verdict: dict[str, Any], asked: Asked) -> bool:
    """Whether the answer at the tolerance is the one that the witness or the certificate proves."""
    if verdict["eps"] == "unargmaxable":
        return verdict["status"] == "unargmaxable" or _bounded(asked, asked.params["eps"])
    if verdict["eps"] == "argmaxable":
        return not asked.missed and _ball(asked) > asked.params["eps"]
    return bool(verdict["eps"] == "unresolved")


def _ball(asked: Asked) -> float:
    """A radius that a ball around the witness surely has, −inf where nothing is sure."""
    layer, signs, x, box = asked.layer, asked.signs, asked.x, asked.params["box"]
    if layer.rule == "sign" and not signs.any():
        return np.inf
    if layer.rule != "sign" or x is None:
        return -np.inf
    sloped = (signs != 0) & (layer.norms > 0)  # a label without slope, whose sign is proved, bounds no ball
    distances = np.where(signs > 0, asked.low, -asked.high)[sloped] / layer.norms[sloped] * (1 - 1e-12)
    largest, distance = float(np.abs(x).max(initial=0.0)), float(distances.min(initial=np.inf))
    if layer.biased:
        return distance if largest <= box else -np.inf
    return distance * (box / largest) if largest > 0 else -np.inf


def _bounded(asked: Asked, radius: float) -> bool:
    """Whether the certificate's multipliers prove that no ball is larger; in rational numbers, but for lengths."""
    (labels, multipliers), (W, b, rule, *_), signs = asked.certificate, asked.layer, asked.signs
    used = np.concatenate([multipliers, asked.layer.norms[signs != 0]])
    if rule != "sign" or not np.isin(labels, np.flatnonzero(signs)).all() or not np.isfinite(used).all():
        return False
    if not len(labels) or not (multipliers > 0).all():
        return False
    parts = [rational(part) * int(signs[label]) for label, part in zip(labels, multipliers, strict=True)]
    total = fmpq(0)
    for column in W[labels].T:
        total += abs(sum((part * rational(w) for part, w in zip(parts, column, strict=True)), fmpq(0)))
    shift = sum((part * rational(b[label]) for label, part in zip(labels, parts, strict=True)), fmpq(0))
    lengths = [rational(asked.layer.norms[label] * (1 - 1e-12)) for label in labels]
    scale = sum((abs(part) * length for part, length in zip(parts, lengths, strict=True)), fmpq(0))
    return bool(rational(asked.params["box"]) * total + shift <= rational(radius) * scale)


def _ideal_holds(verdict: dict[str, Any], asked: Asked) -> bool:
    """Whether the runs of active labels around the circle give this answer."""
    if asked.missed:
        return bool(verdict["ideal"] == "unargmaxable")
    if asked.layer.structure.keys() != {"degree", "slack", "order"}:
        return False
    degree, slack, order = (asked.layer.structure[name] for name in ("degree", "slack", "order"))
    labels, columns = asked.layer.W.shape
    if not np.array_equal(np.sort(order), np.arange(labels)) or columns != 2 * degree + 1 + slack:
        return False
    around = asked.signs[np.argsort(order)]
    around = around[around != 0] > 0
    runs = int((around & ~np.roll(around, 1)).sum())
    equal = bool((asked.layer.b == asked.layer.b[:1]).all())
    expected = "argmaxable" if runs <= degree else "unargmaxable" if slack == 0 and equal else None
    return bool(verdict["ideal"] == expected)


def totals(verdicts: list[dict[str, Any]], active: list[np.ndarray]) -> dict[str, Any]:
    """What verdicts.json has to say about all verdicts together."""
    replayed = [verdict["replayed"] for verdict in verdicts if verdict["status"] == "argmaxable"]
    margins = [verdict["margin"] for verdict in verdicts if verdict["margin"] is not None]
    never: dict[tuple[int, ...], list[int]] = {}
    for position, verdict in enumerate(verdicts):
        if verdict["status"] == "unargmaxable":
            never.setdefault(tuple(active[position].tolist()), []).append(position)
    first = sorted(never.items(), key=lambda item: (-len(item[1]), item[1][0]))[:MOST_LISTED]
    counts = {key: {s: sum(v[key] == s for v in verdicts) for s in STATUSES} for key in ("status", "ideal", "eps")}
    return {
        "counts": counts["status"],
        "share": counts["status"]["argmaxable"] / len(verdicts) if verdicts else None,
        "ideal": counts["ideal"],
        "eps": counts["eps"],
        "smallest_margin": min(margins, default=None),
        "missed": sum(bool(verdict["missed"]) for verdict in verdicts),
        "replayed": {"yes": replayed.count(True), "no": replayed.count(False), "not tried": replayed.count(None)},
        "never": [
            {"labels": list(labels), "times": len(at), "position": at[0], "missed": verdicts[at[0]]["missed"]}
            for labels, at in first
        ],
    }


def facts(layer: Layer) -> dict[str, Any]:
    """What verdicts.json has to say about the decision."""
    labels, dim = layer.W.shape
    structured = bool(layer.structure)
    return {"rule": layer.rule, "labels": labels, "dim": dim, "bias": layer.biased, "structured": structured}


def left_out(claims: dict[str, Any], files: dict[str, dict[str, np.ndarray]], params: dict[str, Any]) -> list[str]:
    """What verdicts.json says about itself, and what is in the files that none of its results speaks of."""
    told = [(result["head"], result["scope"]) for result in claims["results"] if result["verifiable"]]
    proved = {tuple(key.rsplit("/", 2)[:2]) for key in files["certificates.npz"] if key.count("/") >= 2}
    decided = {name.removeprefix("decision-").removesuffix(".npz") for name in files if name.startswith("decision-")}
    shortlists = {name.removeprefix("candidates-").removesuffix(".npz") for name in files if name.startswith("cand")}
    expected = {(head, "full") for head in decided} | {(head, "shortlist") for head in shortlists}
    failures = [] if claims["format"] == FORMAT else [f"its format is {claims['format']!r}, expected {FORMAT}"]
    if not (0 < params.get("box", 1.0) < np.inf and 0 <= params.get("eps", 0.0) < np.inf):
        failures.append("its verifier's box or eps is no size that a radius can have")
    if len(told) != len(set(told)) or not proved == expected == set(told):
        failures.append("its results are not one for each head and scope that has a decision and proofs")
    rows = [files[name]["rows"].tolist() for name in ("assignments.npz", "certificates.npz")]
    count = int(files["assignments.npz"]["shape"][0])
    if claims["assignments"] != count or claims["of"] < count or len(rows[0]) != count or rows[0] != rows[1]:
        failures.append(f"it speaks of {claims['assignments']} of {claims['of']} assignments, its files of {count}")
    return failures


def logits(layer: Layer, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each logit is at least and at most; what overflows decides nothing, as no comparison with it is true."""
    slack = 2 * (len(x) + 8)
    with np.errstate(all="ignore"):
        logit = layer.W @ x + layer.b
        error = slack * 2.0**-53 * (layer.sizes @ np.abs(x) + np.abs(layer.b)) + slack * 2.0**-1022
        return logit - error, logit + error


def rational(number: float) -> fmpq:
    return fmpq(*float(number).as_integer_ratio())


HOLDS = {"margin": _margin_holds, "radius": _radius_holds, "eps": _eps_holds, "ideal": _ideal_holds}
