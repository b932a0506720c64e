"""An independent check of a verify stage: every verdict is proved anew from what is on disk, or rejected.

This file reads the folder and keeps the books: the files are what was written with verdicts.json, each verdict has a
proof (proofs.py), its other claims hold (claims.py: margin, radius, eps, ideal), and the counts and
lists of verdicts.json are made anew. Not checked is what needs the head itself (`replayed`, `caveat`) or was only
measured (`seconds`, the rank of the verifier's `proof`).
"""

from __future__ import annotations

import hashlib
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xmckit import store
from xmckit_argmax.checker.claims import HOLDS, Terms, read_terms
from xmckit_argmax.checker.proofs import Asked, Layer, Rejected, ask, prove, read_label_sets, read_layer

STATUSES = ("argmaxable", "unargmaxable", "unresolved")
FORMAT = 1  # of verdicts.json
MOST_LISTED = 20  # label sets that can never be output


@dataclass
class CheckReport:
    """How many verdicts were proved, how many of these took rational numbers, and what is wrong with the others."""

    proved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))  # "unresolved" claims nothing
    exact: int = 0
    claims: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HOLDS, 0))  # of these, how many hold
    unchecked: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


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
        report.failures += _left_out(claims, files, params)
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
    stored = files[f"decision-{head}.npz"]
    layer = read_layer(stored)
    active = read_label_sets(files["assignments.npz"], len(layer.W))
    everything = [np.arange(len(layer.W))] * len(active)
    counted = everything if scope == "full" else read_label_sets(files[f"candidates-{head}.npz"], len(layer.W))
    if len(verdicts) != len(active) or any(verdict["status"] not in STATUSES for verdict in verdicts):
        raise Rejected(f"head {head}, {scope}: not a verdict with a known status for each of {len(active)} assignments")
    terms = read_terms(layer, stored, params)
    expected = {**totals(verdicts, active), **_facts(layer, structured=bool(terms.structure))}
    wrong = [name for name, value in expected.items() if result[name] != value]
    report.failures += [f"head {head}, {scope}: its {name} is not what the files say" for name in wrong]
    proofs, prefix = files["certificates.npz"], f"{head}/{scope}/"
    given = {key.removeprefix(prefix): proofs[key] for key in proofs if key.startswith(prefix)}
    witnesses = dict(zip(given["witness_of"].tolist(), given["witness"], strict=True))
    spans = [slice(*pair) for pair in itertools.pairwise(given["certificate_start"].tolist())]
    certificates = dict(zip(given["certificate_of"].tolist(), spans, strict=True))
    for position, verdict in enumerate(verdicts):
        span = certificates.get(position, slice(0))
        certificate = given["certificate_labels"][span], given["certificate_multipliers"][span]
        asked = ask(layer, active[position], counted[position], witnesses.get(position), certificate)
        _check_verdict(f"head {head}, {scope}, assignment {position}", verdict, asked, terms, report)


def _check_verdict(where: str, verdict: dict[str, Any], asked: Asked, terms: Terms, report: CheckReport) -> None:
    try:
        if sorted(verdict["missed"]) != asked.missed:
            raise Rejected(f"it says that {verdict['missed']} are active and no candidates; {asked.missed} are")
        report.exact += prove(verdict["status"], asked)
        report.proved[verdict["status"]] += 1
    except Rejected as why:
        report.failures.append(f"{where}: not {verdict['status']}: {why}")
        return
    for claim in (name for name in (*HOLDS, "replayed") if verdict[name] is not None):
        if claim == "replayed" and (asked.x is None or type(verdict[claim]) is not bool):
            report.failures.append(f"{where}: nothing was replayed, or it is not said how it went")
        elif claim == "replayed" or (claim in ("radius", "eps") and terms.box is None):
            report.unchecked[claim] = report.unchecked.get(claim, 0) + 1
        elif HOLDS[claim](verdict, asked, terms):
            report.claims[claim] += 1
        else:
            report.failures.append(f"{where}: its {claim} {verdict[claim]!r} is wrong or has no proof")


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


def _facts(layer: Layer, *, structured: bool) -> dict[str, Any]:
    """What verdicts.json has to say about the decision."""
    labels, dim = layer.W.shape
    return {"rule": layer.rule, "labels": labels, "dim": dim, "bias": layer.biased, "structured": structured}


def _left_out(claims: dict[str, Any], files: dict[str, dict[str, np.ndarray]], params: dict[str, Any]) -> list[str]:
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


def _sha256(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode() + arrays[name].tobytes())
    return digest.hexdigest()
