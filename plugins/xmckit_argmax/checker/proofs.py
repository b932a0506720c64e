"""Is a verdict proved by its witness or its certificate? The independent checker's answer rests on this file alone.

W and b are the stored numbers taken as exact, s = +1 for active labels and −1 for the others:

* *argmaxable*: the witness x gives every active label a logit w_i·x + b_i above 0 and no other label (rule "sign"), or
  ranks the active labels first, where the lower id wins a tie (rule "topk"). A logit computed in float64 is off by at
  most γ·(|w_i|·|x| + |b_i|) with γ = 2(d + 8)·2⁻⁵³, in any order of summation; if that does not decide, rational
  numbers do. A witness that floats cannot hold is stored as integers, and checked in rational numbers alone.
* *unargmaxable*: λ > 0 on the certificate's labels with Σ λ_i s_i w_i = 0 (for "topk" also Σ λ_i s_i = 0) and
  Σ λ_i s_i b_i ≤ 0. An x that outputs the set makes no s_i (w_i·x + b_i − c) negative, with c = 0 or the threshold of
  "topk", so it makes all of them 0 for these labels: they are tied. If Σ λ_i s_i b_i < 0, that is impossible. If the
  rows (w_i, 1 for "topk", b_i) span the whole space, then x = 0 and all labels are tied, or, with a bias, there is no
  x. Otherwise the tied labels must hold an active one (rule "sign"), or an active one with a higher id than another
  (rule "topk"), for these must not be tied. λ is computed here, in integers, from the certificate's labels: all
  multipliers follow from the last one or two of them.
* With candidates only their rows count. An active label that is no candidate can never be output: it is missed.

It shares nothing with the verifier but the files, so that one mistake cannot hide in both. evidence.py reads them.
"""

from __future__ import annotations

import numpy as np
from flint import fmpq, fmpz_mat

from xmckit_argmax.checker.evidence import Evidence, Rejection, StoredLayer, rational

SMALLEST, LARGEST = rational(5e-324), rational(float(np.finfo(np.float64).max))


def prove(status: str, evidence: Evidence) -> bool:
    """Prove the status, or raise Rejection; return whether this took exact arithmetic. "unresolved" claims nothing."""
    if status == "argmaxable":
        return _prove_argmaxable(evidence)
    if status == "unargmaxable" and not evidence.missed:
        _prove_unargmaxable(evidence.layer, evidence.signs, *evidence.certificate)
        return True
    return False


def _prove_argmaxable(evidence: Evidence) -> bool:
    """Prove that the witness outputs the label set, or raise Rejection; return whether this needed rational numbers."""
    layer, signs, missed, x, low, high, _, integers = evidence
    active, others = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
    if missed:
        raise Rejection(f"its active labels {missed} are not candidates")
    if not signs.any() or (layer.rule == "topk" and not (len(active) and len(others))):
        return False  # x has no constraint
    if x is None:
        raise Rejection("it has no witness of finite numbers")
    vector = [rational(v) for v in x.tolist()]
    if integers is not None:
        if len(integers) != len(x) + 1 or integers[-1] <= 0:
            raise Rejection("its witness of integers has the wrong length, or a denominator that is not positive")
        floats, vector = vector, [fmpq(v, integers[-1]) for v in integers[:-1]]
        if any(
            abs(f - v) > max(abs(v) / 2**52, SMALLEST) and abs(f) < LARGEST for f, v in zip(floats, vector, strict=True)
        ):
            raise Rejection("its witness of integers is not next to its witness of floats")
        low, high = np.full(len(signs), -np.inf), np.full(len(signs), np.inf)

    def exact(label: int) -> fmpq:
        products = (rational(w) * v for w, v in zip(layer.W[label].tolist(), vector, strict=True))
        return sum(products, rational(layer.b[label]))

    if layer.rule == "topk":
        unsure, rivals = active[~(low[active] > high[others].max())], others[~(high[others] < low[active].min())]
        if not len(unsure):
            return False
        worst, best = min((exact(i), -i) for i in unsure), max((exact(i), -i) for i in rivals)
        if not worst > best:
            raise Rejection(f"its witness does not rank label {-worst[1]} before label {-best[1]}")
        return True
    unsure = np.concatenate([active[~(low[active] > 0)], others[~(high[others] <= 0)]])
    for label in unsure:
        if (exact(label) > 0) != (signs[label] > 0):
            found = "0 or less" if signs[label] > 0 else "more than 0"
            raise Rejection(f"its witness gives label {label} a logit of {found}")
    return bool(len(unsure))


def _prove_unargmaxable(layer: StoredLayer, signs: np.ndarray, support: np.ndarray, multipliers: np.ndarray) -> None:
    if not len(support) or len(set(support)) < len(support) or not np.isin(support, np.flatnonzero(signs)).all():
        raise Rejection(f"its certificate names the labels {support.tolist()}, expected different ones that count")
    if len(multipliers) != len(support) or not (np.isfinite(multipliers) & (multipliers > 0)).all():
        raise Rejection("its certificate has a multiplier that is not positive")
    threshold = [1.0] if layer.rule == "topk" else []
    vectors = [_integers([*layer.W[i].tolist(), *threshold, float(layer.b[i])], int(signs[i])) for i in support]
    *equations, shifts = map(list, zip(*vectors, strict=True))
    weights, _ = _combination(equations, multipliers)
    if weights and sum(weight * shift for weight, shift in zip(weights, shifts, strict=True)) < 0:
        return
    weights, rank = _combination([*equations, shifts], multipliers)
    if not weights:
        raise Rejection("its certificate's labels have no combination with positive multipliers that forbids the set")
    spans = rank == len(equations) + layer.biased
    tied = np.flatnonzero(signs) if spans else support
    on, off = tied[signs[tied] > 0], tied[signs[tied] < 0]
    if spans and layer.biased:
        return
    if not len(on) or (layer.rule == "topk" and not on.max() > off.min(initial=len(signs))):
        raise Rejection(
            "its certificate shows that labels are tied, and this tie does not forbid the set (xmckit 0.1 had no rule "
            "for ties: if it wrote these verdicts, verify the run again)"
        )


def _combination(equations: list[list[int]], multipliers: np.ndarray) -> tuple[list[fmpq], int]:
    """Return the λ > 0 with equations·λ = 0 that has these last multipliers, or nothing, and the equations' rank."""
    count = len(multipliers)
    reduced, scale, rank = fmpz_mat(equations or [[0] * count]).rref()
    if rank and not reduced[rank - 1, rank - 1]:  # the first columns do not determine λ
        return [], rank
    last = [rational(part) for part in multipliers[rank:].tolist()]
    parts = [
        -sum((fmpq(reduced[row, rank + place], scale) * part for place, part in enumerate(last)), fmpq(0))
        for row in range(rank)
    ]
    weights = parts + last
    return (weights if last and min(weights) > 0 else []), rank


def _integers(numbers: list[float], sign: int) -> list[int]:
    """Multiply the numbers by the sign and by a power of 2 that makes all of them integers: λ keeps its signs."""
    ratios = [number.as_integer_ratio() for number in numbers]
    common = max(below for _, below in ratios)
    return [sign * above * (common // below) for above, below in ratios]
