"""An independent check of a verify stage: every verdict is proved again from the files on disk, or rejected.

This file reads the folder and checks that the files are those that were written with verdicts.json, that each verdict
has a proof (proofs.py), that its other claims hold (claims.py: margin, radius, eps, ideal), and that the counts and
lists of verdicts.json are right. It does not check what needs the head itself (`replayed`, `caveat`) or was only
measured (`seconds`, the rank of the verifier's `proof`).
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit_argmax.checker.claims import CLAIM_CHECKS, ClaimBasis, read_basis
from xmckit_argmax.checker.evidence import Evidence, Rejection, StoredLayer, read_label_sets, read_layer, read_proofs
from xmckit_argmax.checker.proofs import prove

STATUSES = ("argmaxable", "unargmaxable", "unresolved")
FORMAT = 1  # the version of verdicts.json
MOST_LISTED = 20  # verdicts.json lists this many label sets that can never be output


@dataclass
class CheckReport:
    """How many verdicts were proved, how many of them needed rational numbers, and what is wrong with the others."""

    proved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))  # "unresolved" claims nothing
    exact: int = 0
    claims: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLAIM_CHECKS, 0))  # how many hold
    unchecked: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def check(folder: Path) -> CheckReport:
    """Check verdicts.json with the assignments, decisions, candidates and certificates beside it.

    Raise StorageError if a file is missing or cannot be read; all other errors go to `failures`.
    """
    report, started = CheckReport(), time.perf_counter()
    claims = store.read_json(folder / "verdicts.json")
    try:
        files = {name: store.read_arrays(folder / Path(name).name) for name in claims["files"]}
        for name, arrays in files.items():
            if _sha256(arrays) != claims["files"][name]:
                report.failures.append(f"{name} is not the file that was written with verdicts.json")
        params = claims["verifier"]["params"] or {}
        report.failures += _inconsistencies(claims, files, params)
        for result in claims["results"]:
            if result["verifiable"]:
                _check_result(result, files, params, report)
    except Rejection as reason:
        report.failures.append(str(reason))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        report.failures.append(f"verdicts.json does not fit the files beside it: {type(error).__name__}: {error}")
    report.seconds = time.perf_counter() - started
    return report


def _check_result(
    result: dict[str, Any], files: dict[str, dict[str, np.ndarray]], params: dict[str, Any], report: CheckReport
) -> None:
    """Check all claims about one head, for the full layer or for each row's candidates."""
    head, scope, verdicts = result["head"], result["scope"], result["verdicts"]
    stored = files[f"decision-{head}.npz"]
    layer = read_layer(stored)
    active = read_label_sets(files["assignments.npz"], len(layer.W))
    everything = [np.arange(len(layer.W))] * len(active)
    counted = everything if scope == "full" else read_label_sets(files[f"candidates-{head}.npz"], len(layer.W))
    if len(verdicts) != len(active) or any(verdict["status"] not in STATUSES for verdict in verdicts):
        raise Rejection(
            f"head {head}, {scope}: expected one verdict of a known status for each of {len(active)} assignments"
        )
    basis = read_basis(layer, stored, params)
    expected = {**totals(verdicts, active), **_facts(layer, structured=bool(basis.structure))}
    wrong = [name for name, value in expected.items() if result[name] != value]
    report.failures += [f"head {head}, {scope}: its {name} differs from the files" for name in wrong]
    witnesses, exact, certificates = read_proofs(files["certificates.npz"], f"{head}/{scope}/")
    none = np.empty(0, np.int64), np.empty(0)
    for position, verdict in enumerate(verdicts):
        proof = witnesses.get(position), certificates.get(position, none), exact.get(position)
        evidence = Evidence.gather(layer, active[position], counted[position], *proof)
        _check_verdict(f"head {head}, {scope}, assignment {position}", verdict, evidence, basis, report)


def _check_verdict(
    where: str, verdict: dict[str, Any], evidence: Evidence, basis: ClaimBasis, report: CheckReport
) -> None:
    try:
        if sorted(verdict["missed"]) != evidence.missed:
            raise Rejection(f"it claims missed labels {verdict['missed']}, but the files give {evidence.missed}")
        report.exact += prove(verdict["status"], evidence)
        report.proved[verdict["status"]] += 1
    except Rejection as reason:
        report.failures.append(f"{where}: not {verdict['status']}: {reason}")
        return
    for claim in (name for name in (*CLAIM_CHECKS, "replayed") if verdict[name] is not None):
        if claim == "replayed" and (evidence.x is None or type(verdict[claim]) is not bool):
            report.failures.append(f"{where}: a replay needs a witness, and an outcome of true or false")
        elif claim == "replayed" or (claim in ("radius", "eps") and basis.box is None):
            report.unchecked[claim] = report.unchecked.get(claim, 0) + 1
        elif CLAIM_CHECKS[claim](verdict, evidence, basis):
            report.claims[claim] += 1
        else:
            report.failures.append(f"{where}: its {claim} {verdict[claim]!r} is wrong or has no proof")


def totals(verdicts: list[dict[str, Any]], active: list[np.ndarray]) -> dict[str, Any]:
    """Return the summary that verdicts.json must give of these verdicts."""
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
            {"labels": list(labels), "times": len(rows), "position": rows[0], "missed": verdicts[rows[0]]["missed"]}
            for labels, rows in first
        ],
    }


def _facts(layer: StoredLayer, *, structured: bool) -> dict[str, Any]:
    """Return what verdicts.json must say about the decision."""
    labels, dim = layer.W.shape
    return {"rule": layer.rule, "labels": labels, "dim": dim, "bias": layer.biased, "structured": structured}


def _inconsistencies(
    claims: dict[str, Any], files: dict[str, dict[str, np.ndarray]], params: dict[str, Any]
) -> list[str]:
    """Compare what verdicts.json says about itself with the files, and find files that no result mentions."""
    listed = [(result["head"], result["scope"]) for result in claims["results"] if result["verifiable"]]
    proved = {tuple(key.rsplit("/", 2)[:2]) for key in files["certificates.npz"] if key.count("/") >= 2}
    decided = {name.removeprefix("decision-").removesuffix(".npz") for name in files if name.startswith("decision-")}
    shortlists = {name.removeprefix("candidates-").removesuffix(".npz") for name in files if name.startswith("cand")}
    expected = {(head, "full") for head in decided} | {(head, "shortlist") for head in shortlists}
    failures = [] if claims["format"] == FORMAT else [f"its format is {claims['format']!r}, expected {FORMAT}"]
    if not (0 < params.get("box", 1.0) < np.inf and 0 <= params.get("eps", 0.0) < np.inf):
        failures.append("its verifier's box or eps is not a possible radius")
    if len(listed) != len(set(listed)) or not proved == expected == set(listed):
        failures.append("expected one result for each head and scope with a decision and proofs")
    rows = [files[name]["rows"].tolist() for name in ("assignments.npz", "certificates.npz")]
    count = int(files["assignments.npz"]["shape"][0])
    if claims["assignments"] != count or claims["of"] < count or len(rows[0]) != count or rows[0] != rows[1]:
        failures.append(f"it has {claims['assignments']} of {claims['of']} assignments, its files have {count}")
    return failures


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode() + arrays[name].tobytes())
    return digest.hexdigest()
