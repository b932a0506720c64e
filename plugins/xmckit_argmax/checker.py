"""An independent check of a verify stage: every verdict is proved anew from what is on disk, or rejected.

It shares nothing with the verifier but the files, so that one mistake cannot hide in both. The facts that it rests on,
with W and b the stored numbers taken as exact, and s = +1 for active labels and −1 for the others:

* *argmaxable*: the witness x makes s_i·(w_i·x + b_i) > 0 for every label i (rule "sign"), or gives every active label
  a larger logit than every other (rule "topk"). A logit computed in float64 is off by at most γ·(|w_i|·|x| + |b_i|)
  with γ = 2(d + 8)·2⁻⁵³, in whatever order it is summed; where that does not decide, rational numbers do.
* *unargmaxable*: λ > 0 on the certificate's labels with Σ λ_i s_i w_i = 0 (for "topk" also Σ λ_i s_i = 0) and
  Σ λ_i s_i b_i ≤ 0: an x that did it would make Σ λ_i s_i (w_i·x + b_i) positive. λ is computed here, in whole numbers,
  from the certificate's labels; the stored multipliers only have to be as many and positive.
* With candidates only their rows count, and an active label that is none of them can never be output: it is missed.

What else a verdict claims (margin, radius, eps, ideal) is checked by checker_claims.py, and the counts and lists of
verdicts.json are made anew. Not checked is what needs the head itself (`replayed`, `caveat`) or was only measured
(`seconds`, the rank of the verifier's `proof`).
"""

from __future__ import annotations

import hashlib
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flint import fmpq, fmpz_mat

from xmckit import store
from xmckit_argmax.checker_claims import HOLDS, STATUSES, Asked, Layer, facts, left_out, logits, rational, totals

STRUCTURE = {"degree", "slack", "order"}


@dataclass
class CheckReport:
    """How many verdicts were proved, how many of these took rational numbers, and what is wrong with the others."""

    proved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))  # "unresolved" claims nothing
    exact: int = 0
    claims: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOLDS, 0))  # of these, how many hold
    unchecked: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Rejected(Exception):
    """Why something is not proved."""


def check(folder: Path) -> CheckReport:
    """Check verdicts.json with the assignments, decisions, candidates and certificates beside it.

    StorageError when a file is missing or cannot be read; what can be read and is wrong is in `failures`.
    """
    report, started = CheckReport(), time.perf_counter()
    claims = store.read_json(folder / "verdicts.json")
    try:
        files = {name: store.read_arrays(folder / Path(name).name) for name in claims["files"]}
        for name, arrays in files.items():
            if _sha256(arrays) != claims["files"][name]:
                report.failures.append(f"{name} is not what was written with verdicts.json")
        params = claims["verifier"]["params"] or {}
        report.failures += left_out(claims, files, params)
        for result in claims["results"]:
            if result["verifiable"]:
                _check_result(result, files, params, report)
    except Rejected as why:
        report.failures.append(str(why))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        report.failures.append(f"verdicts.json and the files beside it do not fit: {type(error).__name__}: {error}")
    report.seconds = time.perf_counter() - started
    return report


def _check_result(
    result: dict[str, Any], files: dict[str, dict[str, np.ndarray]], params: dict[str, Any], report: CheckReport
) -> None:
    """Everything that is claimed about one head: for the full layer, or for each row's candidates."""
    head, scope, verdicts = result["head"], result["scope"], result["verdicts"]
    layer = _layer(files[f"decision-{head}.npz"])
    active = _label_sets(files["assignments.npz"], len(layer.W))
    everything = [np.arange(len(layer.W))] * len(active)
    asked = everything if scope == "full" else _label_sets(files[f"candidates-{head}.npz"], len(layer.W))
    if len(verdicts) != len(active) or any(verdict["status"] not in STATUSES for verdict in verdicts):
        raise Rejected(f"head {head}, {scope}: not a verdict with a known status for each of {len(active)} assignments")
    wrong = [name for name, value in totals(verdicts, active).items() if result[name] != value]
    report.failures += [f"head {head}, {scope}: its {name} is not what the verdicts add up to" for name in wrong]
    wrong = [name for name, value in facts(layer).items() if result[name] != value]
    report.failures += [f"head {head}, {scope}: its {name} is not the decision's" for name in wrong]
    proofs, prefix = files["certificates.npz"], f"{head}/{scope}/"
    given = {key.removeprefix(prefix): proofs[key] for key in proofs if key.startswith(prefix)}
    witnesses = dict(zip(given["witness_of"].tolist(), given["witness"], strict=True))
    spans = [slice(*pair) for pair in itertools.pairwise(given["certificate_start"].tolist())]
    certificates = dict(zip(given["certificate_of"].tolist(), spans, strict=True))
    for position, verdict in enumerate(verdicts):
        signs = np.zeros(len(layer.W), dtype=np.int8)  # 0: this label does not count
        signs[asked[position]] = -1
        missed = active[position][signs[active[position]] == 0].tolist()
        signs[active[position]] = 1
        span, x = certificates.get(position, slice(0)), witnesses.get(position)
        certificate = given["certificate_labels"][span], given["certificate_multipliers"][span]
        x = x if x is not None and np.isfinite(x).all() else None
        bounds = logits(layer, np.zeros(layer.W.shape[1]) if x is None else x)
        about = Asked(layer, signs, missed, x, *bounds, certificate, params)
        where = f"head {head}, {scope}, assignment {position}"
        try:
            if sorted(verdict["missed"]) != missed:
                raise Rejected(f"it says that {verdict['missed']} are active and no candidates; {missed} are")
            if verdict["status"] == "argmaxable":
                report.exact += _prove_argmaxable(about)
            elif verdict["status"] == "unargmaxable" and not missed:
                _prove_unargmaxable(layer, signs, *certificate)
                report.exact += 1
            report.proved[verdict["status"]] += 1
        except Rejected as why:
            report.failures.append(f"{where}: not {verdict['status']}: {why}")
            continue
        for claim in (name for name in (*HOLDS, "replayed") if verdict[name] is not None):
            if claim == "replayed" and (x is None or type(verdict[claim]) is not bool):
                report.failures.append(f"{where}: nothing was replayed, or it is not said how it went")
            elif claim == "replayed" or (claim in ("radius", "eps") and not {"box", "eps"} <= params.keys()):
                report.unchecked[claim] = report.unchecked.get(claim, 0) + 1
            elif HOLDS[claim](verdict, about):
                report.claims[claim] += 1
            else:
                report.failures.append(f"{where}: its {claim} {verdict[claim]!r} is wrong or has no proof")


def _prove_argmaxable(asked: Asked) -> bool:
    """Whether the proof took rational numbers; Rejected if there is none."""
    layer, signs, missed, x, low, high, *_ = asked
    active, others = np.flatnonzero(signs > 0), np.flatnonzero(signs < 0)
    if missed:
        raise Rejected(f"its active labels {missed} are no candidates")
    if not signs.any() or (layer.rule == "topk" and not (len(active) and len(others))):
        return False  # nothing is asked of x
    if x is None:
        raise Rejected("there is no witness of finite numbers")

    def exact(label: int) -> fmpq:
        products = (rational(w) * rational(v) for w, v in zip(layer.W[label], x, strict=True))
        return sum(products, rational(layer.b[label]))

    if layer.rule == "topk":
        unsure, rivals = active[~(low[active] > high[others].max())], others[~(high[others] < low[active].min())]
        if len(unsure) and not min(map(exact, unsure)) > max(map(exact, rivals)):
            raise Rejected(f"its witness does not rank labels {unsure.tolist()} above labels {rivals.tolist()}")
        return bool(len(unsure))
    unsure = np.concatenate([active[~(low[active] > 0)], others[~(high[others] < 0)]])
    for label in unsure:
        if not exact(label) * int(signs[label]) > 0:
            raise Rejected(f"its witness gives label {label} a logit of 0 or of the wrong sign")
    return bool(len(unsure))


def _prove_unargmaxable(layer: Layer, signs: np.ndarray, support: np.ndarray, multipliers: np.ndarray) -> None:
    if not len(support) or len(set(support)) < len(support) or not np.isin(support, np.flatnonzero(signs)).all():
        raise Rejected(f"its certificate names the labels {support.tolist()}, expected different ones that count")
    if len(multipliers) != len(support) or not (np.isfinite(multipliers) & (multipliers > 0)).all():
        raise Rejected("its certificate has a multiplier that is not positive")
    threshold = [1.0] if layer.rule == "topk" else []
    vectors = [_whole([*layer.W[i].tolist(), *threshold, float(layer.b[i])], int(signs[i])) for i in support]
    *equations, shifts = map(list, zip(*vectors, strict=True))
    found = _combination(equations, len(support)) or _combination([*equations, shifts], len(support))
    if found is None:
        raise Rejected("its certificate's labels have no single combination with positive multipliers that is zero")
    if sum(part * shift for part, shift in zip(found, shifts, strict=True)) > 0:
        raise Rejected("its certificate's combination is zero, but its biases do not forbid the label set")


def _combination(equations: list[list[int]], count: int) -> list[Any] | None:
    """The λ > 0 with equations·λ = 0, when the solutions are one line and there is such a λ on it."""
    reduced, scale, rank = fmpz_mat(equations or [[0] * count]).rref()
    if rank != count - 1:
        return None
    # A solution without zeros has its free entry last, and the last column of the reduced form holds the others.
    line = [-reduced[row, count - 1] * scale for row in range(rank)] + [scale * scale]
    return line if min(line) > 0 else None


def _whole(numbers: list[float], sign: int) -> list[int]:
    """The numbers times the sign and the power of 2 that makes all of them whole: λ keeps its signs."""
    ratios = [number.as_integer_ratio() for number in numbers]
    common = max(below for _, below in ratios)
    return [sign * above * (common // below) for above, below in ratios]


def _layer(arrays: dict[str, np.ndarray]) -> Layer:
    W, rule = arrays["W"], str(arrays["rule"])
    b = arrays.get("b", np.zeros(len(W)))
    if any(part.dtype not in (np.float16, np.float32, np.float64) or not np.isfinite(part).all() for part in (W, b)):
        raise Rejected("W and b are not finite numbers in float16, float32 or float64")
    if W.ndim != 2 or b.shape != W.shape[:1] or rule not in ("sign", "topk"):
        raise Rejected(f"W of size {W.shape}, b of size {b.shape} and rule {rule!r} make no decision")
    W, b, biased = W.astype(np.float64), b.astype(np.float64), "b" in arrays
    norms = _lengths(W)
    lengths = _lengths(np.stack([norms, np.full(len(W), rule == "topk"), b], axis=1))
    structure = {name: arrays[name] for name in STRUCTURE & arrays.keys()}
    return Layer(W, b, rule, biased, np.abs(W), norms, lengths, structure)


def _lengths(rows: np.ndarray) -> np.ndarray:
    """‖row‖ for each, whatever its scale."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    scale = np.where(largest > 0, largest, 1.0)
    return np.asarray(np.linalg.norm(rows / scale[:, None], axis=1) * scale)


def _label_sets(arrays: dict[str, np.ndarray], labels: int) -> list[np.ndarray]:
    """The rows of a CSR matrix as arrays of label numbers."""
    indices, indptr, shape = arrays["indices"], arrays["indptr"], arrays["shape"].tolist()
    if shape[1] != labels or len(indptr) != shape[0] + 1 or np.any((indices < 0) | (indices >= labels)):
        raise Rejected(f"label sets of size {shape} do not fit {labels} labels")
    return [indices[start:end] for start, end in itertools.pairwise(indptr)]


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode() + arrays[name].tobytes())
    return digest.hexdigest()
