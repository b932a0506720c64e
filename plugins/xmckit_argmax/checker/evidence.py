"""Read what a verdict rests on: the layer, the label sets, and the witnesses and certificates beside them.

Part of the independent checker: it shares nothing with the verifier but the files.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from flint import fmpq

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

    `low` and `high` bound the logits of the witness x; x is None without a witness of finite numbers. `exact` are the
    numerators and the common denominator of a witness that floats cannot hold; x is then next to it.
    """

    layer: StoredLayer
    signs: np.ndarray
    missed: list[int]
    x: np.ndarray | None
    low: np.ndarray
    high: np.ndarray
    certificate: Certificate
    exact: list[int] | None

    @classmethod
    def gather(
        cls, layer: StoredLayer, active: np.ndarray, counted: np.ndarray, x: np.ndarray | None,
        certificate: Certificate, exact: list[int] | None = None,
    ) -> Evidence:  # fmt: skip
        """Collect the evidence that `active` and no other of the labels `counted` can be output."""
        signs = np.zeros(len(layer.W), dtype=np.int8)
        signs[counted] = -1
        missed = active[signs[active] == 0].tolist()
        signs[active] = 1
        if x is None or not np.isfinite(x).all():
            return cls(layer, signs, missed, None, layer.b, layer.b, certificate, exact)
        if layer.rule == "sign" and not layer.biased and exact is None:
            x = _near_one(x[None])[0][0]  # a multiple of x has the same signs
        slack = 2 * (len(x) + 8)
        with np.errstate(all="ignore"):  # an overflow decides nothing, since no comparison with it is true
            logit = layer.W @ x + layer.b
            error = slack * 2.0**-53 * (layer.sizes @ np.abs(x) + np.abs(layer.b)) + slack * 2.0**-1022
            return cls(layer, signs, missed, x, logit - error, logit + error, certificate, exact)


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


def read_proofs(
    arrays: dict[str, np.ndarray], prefix: str
) -> tuple[dict[int, np.ndarray], dict[int, list[int]], dict[int, Certificate]]:
    """Return the witnesses, the witnesses of integers, and the certificates of one head and scope, by position.

    A witness of integers is a line of text: numerators and a common denominator, in hexadecimal.
    """
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    witnesses = dict(zip(own["witness_of"].tolist(), own["witness"], strict=True))
    lines = own.get("exact_witness", np.empty(0, np.uint8)).tobytes().decode("ascii").splitlines()
    integers = [[int(number, 16) for number in line.split()] for line in lines]
    exact = dict(zip(own.get("exact_witness_of", np.empty(0, np.int64)).tolist(), integers, strict=True))
    parts = [own[f"certificate_{part}"] for part in ("labels", "multipliers")]
    spans = [slice(*pair) for pair in itertools.pairwise(own["certificate_start"].tolist())]
    certificates = [(parts[0][span], parts[1][span]) for span in spans]
    return witnesses, exact, dict(zip(own["certificate_of"].tolist(), certificates, strict=True))


def _near_one(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale each row by a power of two to a largest entry of about 1, if that loses no bit; return rows and powers."""
    powers = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1].astype(np.int64)
    lossless = (np.ldexp(np.ldexp(rows, -powers[:, None]), powers[:, None]) == rows).all(axis=1)
    powers = np.where(lossless, powers, 0)
    return np.ldexp(rows, -powers[:, None]), powers


def rational(number: float) -> fmpq:
    return fmpq(*float(number).as_integer_ratio())
