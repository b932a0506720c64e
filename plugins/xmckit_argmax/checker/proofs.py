"""Is a verdict proved by its witness or its certificate? The independent checker's answer rests on this file alone.

W and b are the stored numbers taken as exact, s = +1 for active labels and −1 for the others:

* *argmaxable*: the witness x makes s_i·(w_i·x + b_i) > 0 for every label i (rule "sign"), or gives every active label
  a larger logit than every other (rule "topk"). A logit computed in float64 is off by at most γ·(|w_i|·|x| + |b_i|)
  with γ = 2(d + 8)·2⁻⁵³, in any order of summation; if that does not decide, rational numbers do.
* *unargmaxable*: λ > 0 on the certificate's labels with Σ λ_i s_i w_i = 0 (for "topk" also Σ λ_i s_i = 0) and
  Σ λ_i s_i b_i ≤ 0: an x that outputs the set would make Σ λ_i s_i (w_i·x + b_i) positive. λ is computed here, in
  integers, from the certificate's labels; the stored multipliers only need the same number and must be positive.
* With candidates only their rows count. An active label that is no candidate can never be output: it is missed.

It shares nothing with the verifier but the files, so that one mistake cannot hide in both.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from flint import fmpq, fmpz_mat

from xmckit import store

Certificate = tuple[np.ndarray, np.ndarray]  # labels and multipliers


class Rejection(Exception):
    """A missing or wrong proof; the message gives the reason."""


class StoredLayer(NamedTuple):
    """A stored decision; row i of W and b[i] are the stored numbers times 2^−powers[i]: logits keep their signs."""

    W: np.ndarray
    sizes: np.ndarray  # |W|
    b: np.ndarray
    rule: str
    biased: bool
    powers: np.ndarray


class Evidence(NamedTuple):
    """The stored evidence for one label set, with the sign that each label must have (0: it does not count).

    `low` and `high` bound the logits of the witness x; x is None without a witness of finite numbers.
    """

    layer: StoredLayer
    signs: np.ndarray
    missed: list[int]
    x: np.ndarray | None
    low: np.ndarray
    high: np.ndarray
    certificate: Certificate

    @classmethod
    def gather(
        cls, layer: StoredLayer, active: np.ndarray, counted: np.ndarray, x: np.ndarray | None, certificate: Certificate
    ) -> Evidence:
        """Collect the evidence that `active` and no other of the labels `counted` can be output."""
        signs = np.zeros(len(layer.W), dtype=np.int8)
        signs[counted] = -1
        missed = active[signs[active] == 0].tolist()
        signs[active] = 1
        if x is None or not np.isfinite(x).all():
            return cls(layer, signs, missed, None, layer.b, layer.b, certificate)
        if layer.rule == "sign" and not layer.biased:
            x = _near_one(x[None])[0][0]  # a multiple of x has the same signs
        slack = 2 * (len(x) + 8)
        with np.errstate(all="ignore"):  # an overflow decides nothing, since no comparison with it is true
            logit = layer.W @ x + layer.b
            error = slack * 2.0**-53 * (layer.sizes @ np.abs(x) + np.abs(layer.b)) + slack * 2.0**-1022
            return cls(layer, signs, missed, x, logit - error, logit + error, certificate)


def read_layer(arrays: dict[str, np.ndarray]) -> StoredLayer:
    """Read a decision file, or raise Rejection if it holds none."""
    W, rule = arrays["W"], str(arrays["rule"])
    b = arrays.get("b", np.zeros(len(W)))
    if any(part.dtype not in (np.float16, np.float32, np.float64) or not np.isfinite(part).all() for part in (W, b)):
        raise Rejection("W and b are not finite numbers in float16, float32 or float64")
    if W.ndim != 2 or b.shape != W.shape[:1] or rule not in ("sign", "topk"):
        raise Rejection(f"W of size {W.shape}, b of size {b.shape} and rule {rule!r} make no decision")
    rows = np.concatenate([W, b[:, None]], axis=1).astype(np.float64)
    rows, powers = _near_one(rows) if rule == "sign" else (rows, np.zeros(len(W), dtype=np.int64))
    return StoredLayer(rows[:, :-1], np.abs(rows[:, :-1]), rows[:, -1], rule, "b" in arrays, powers)


def read_label_sets(arrays: dict[str, np.ndarray], labels: int) -> list[np.ndarray]:
    """Return the rows of a CSR matrix as arrays of label numbers."""
    sets = store.make_csr(*(arrays[name] for name in ("data", "indices", "indptr", "shape")))
    if sets.shape[1] != labels or (sets.data != 1).any():
        raise Rejection(f"expected ones in a matrix of {labels} columns, found label sets of size {sets.shape}")
    return [sets.indices[start:end] for start, end in itertools.pairwise(sets.indptr)]


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
    layer, signs, missed, x, low, high, _ = evidence
    active, others = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
    if missed:
        raise Rejection(f"its active labels {missed} are not candidates")
    if not signs.any() or (layer.rule == "topk" and not (len(active) and len(others))):
        return False  # x has no constraint
    if x is None:
        raise Rejection("it has no witness of finite numbers")

    def exact(label: int) -> fmpq:
        products = (rational(w) * rational(v) for w, v in zip(layer.W[label], x, strict=True))
        return sum(products, rational(layer.b[label]))

    if layer.rule == "topk":
        unsure, rivals = active[~(low[active] > high[others].max())], others[~(high[others] < low[active].min())]
        if len(unsure) and not min(map(exact, unsure)) > max(map(exact, rivals)):
            raise Rejection(f"its witness does not rank labels {unsure.tolist()} above labels {rivals.tolist()}")
        return bool(len(unsure))
    unsure = np.concatenate([active[~(low[active] > 0)], others[~(high[others] < 0)]])
    for label in unsure:
        if not exact(label) * int(signs[label]) > 0:
            raise Rejection(f"its witness gives label {label} a logit of 0 or of the wrong sign")
    return bool(len(unsure))


def _prove_unargmaxable(layer: StoredLayer, signs: np.ndarray, support: np.ndarray, multipliers: np.ndarray) -> None:
    if not len(support) or len(set(support)) < len(support) or not np.isin(support, np.flatnonzero(signs)).all():
        raise Rejection(f"its certificate names the labels {support.tolist()}, expected different ones that count")
    if len(multipliers) != len(support) or not (np.isfinite(multipliers) & (multipliers > 0)).all():
        raise Rejection("its certificate has a multiplier that is not positive")
    threshold = [1.0] if layer.rule == "topk" else []
    vectors = [_integers([*layer.W[i].tolist(), *threshold, float(layer.b[i])], int(signs[i])) for i in support]
    *equations, shifts = map(list, zip(*vectors, strict=True))
    weights = _combination(equations, len(support)) or _combination([*equations, shifts], len(support))
    if weights is None:
        raise Rejection("its certificate's labels have no single combination with positive multipliers that is zero")
    if sum(weight * shift for weight, shift in zip(weights, shifts, strict=True)) > 0:
        raise Rejection("its certificate's combination is zero, but its biases do not forbid the label set")


def _combination(equations: list[list[int]], count: int) -> list[Any] | None:
    """Return the λ > 0 with equations·λ = 0, if the solutions are one line and such a λ is on it."""
    reduced, scale, rank = fmpz_mat(equations or [[0] * count]).rref()
    if rank != count - 1:
        return None
    # A solution without zeros has its free entry last, and the last column of the reduced form holds the others.
    line = [-reduced[row, count - 1] * scale for row in range(rank)] + [scale * scale]
    return line if min(line) > 0 else None


def _integers(numbers: list[float], sign: int) -> list[int]:
    """Multiply the numbers by the sign and by a power of 2 that makes all of them integers: λ keeps its signs."""
    ratios = [number.as_integer_ratio() for number in numbers]
    common = max(below for _, below in ratios)
    return [sign * above * (common // below) for above, below in ratios]


def _near_one(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale each row by a power of two to a largest entry of about 1, if that loses no bit; return rows and powers."""
    powers = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1].astype(np.int64)
    lossless = (np.ldexp(np.ldexp(rows, -powers[:, None]), powers[:, None]) == rows).all(axis=1)
    powers = np.where(lossless, powers, 0)
    return np.ldexp(rows, -powers[:, None]), powers


def rational(number: float) -> fmpq:
    return fmpq(*float(number).as_integer_ratio())
