"""Forge verdicts and their proofs in every field, and count what `xmckit certificates check` accepts.

    python -m benchmarks.reliability.certificates [--minutes 20]

The verified layers are tiny, with ties, biases, candidates and an alternating structure, so that an enumeration of all
outputs knows which claims are true after an edit. Each edit changes one field of verdicts.json
(another type, another value, the value of a neighbour, nothing) or one array of another file (another type or shape, an
entry, a sign, the order, nothing), and brings the checksums and the totals up to date. An accepted folder must be true
in every claim that is recomputed here: statuses, missed labels, and for the rule "sign" margins and answers at eps. A
traceback is a failure. Figures are printed as JSON and stored in benchmarks/results/reliability_certificates.json.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from scipy.optimize import linprog
from scipy.sparse import csr_matrix
from xmckit_argmax.checker.check import totals
from xmckit_argmax.cli.certificates import certificates
from xmckit_argmax.verifier import ArgmaxVerifier

from benchmarks.common import paths, study
from xmckit import Alternating, Context, LinearDecision, XmckitError, store
from xmckit.data.model import Split
from xmckit.testing.brute_force import possible_sets
from xmckit.verification.verify import content_sha256, verify

RESULTS = paths.RESULTS / "reliability_certificates.json"
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 0.5, 1e-300, 1e308, math.nan, math.inf, 10**400, "", "argmaxable", "unargmaxable",
    "unresolved", "topk", "sign", [], [0], [0.0, 1.0], {},
)  # fmt: skip
NUMBERS = (0.0, -1.0, 1.0, 0.5, 3.0, 1e300, 5e-324, math.nan, math.inf)
ALIKE = 1e-3  # of margins and radii that were computed in another way
MOST_SHOWN = 10

Edit = Callable[[Path], None]


class _Head:
    """A head that is nothing but its decision; with candidates, it is behind a shortlist."""

    def __init__(self, decision: LinearDecision, candidates: csr_matrix | None = None):
        self._decision = decision
        if candidates is not None:
            self.candidates = lambda X: candidates

    def decision(self) -> LinearDecision:
        return self._decision


def write_original(folder: Path) -> None:
    """Verify all label sets of four small layers."""
    sets = csr_matrix(np.array(list(itertools.product([0, 1], repeat=4)), dtype=np.float32))
    angles = np.pi * np.arange(4) / 2
    circle = np.round(np.stack([np.ones(4), np.cos(angles), np.sin(angles)], axis=1))
    listed = csr_matrix((np.random.default_rng(0).random(sets.shape) < 0.7).astype(np.float32))
    heads = {
        "ties": _Head(LinearDecision(np.array([[1.0], [0.0], [-2.0], [1.0]]), None), listed),
        "thirds": _Head(LinearDecision(np.array([[3.0, 0], [-3, 0], [0, 1], [0, 0]]), np.array([-1.0, 1, 0, 0]))),
        "ranks": _Head(LinearDecision(np.array([[1.0, 0], [1, 0], [2, 1], [2, 1]]), None, "topk")),
        "circle": _Head(LinearDecision(circle, None, "sign", Alternating(1, 0, np.arange(4)))),
    }
    folder.mkdir(parents=True)
    split = Split(X=csr_matrix(np.zeros((sets.shape[0], 1))), Y=sets)
    verify(folder, ArgmaxVerifier(), list(heads.items()), split, most=1000, context=Context())  # type: ignore[arg-type]


# The edits


def edits(folder: Path) -> Iterator[tuple[str, Edit]]:
    """Yield every edit with a name that says where it is."""
    verdicts = store.read_json(folder / "verdicts.json")
    for path in _paths(verdicts):
        for value in (*VALUES, *_neighbours(verdicts, path), ...):
            yield f"verdicts.json {path} {value!r}", _json_edit(path, value)
    for name in verdicts["files"]:
        arrays = store.read_arrays(folder / name)
        for key, array in arrays.items():
            for what, changed in _array_edits(key, array, arrays):
                yield f"{name} {key} {what}", _file_edit(name, changed)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        if key != "seconds":  # was only measured
            yield (*path, key)
            yield from _paths(part, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _neighbours(verdicts: Any, path: tuple[Any, ...]) -> list[Any]:
    """Return the values of the entry before in the same list: the verdict on another set, or another result."""
    places = [place for place, key in enumerate(path) if isinstance(key, int) and key > 0]
    others = [(*path[:place], path[place] - 1, *path[place + 1 :]) for place in places]
    found = []
    for other in others:
        try:
            found.append(copy.deepcopy(_at(verdicts, other)))
        except (LookupError, TypeError):
            continue
    return found


def _json_edit(path: tuple[Any, ...], value: Any) -> Edit:
    def edit(folder: Path) -> None:
        verdicts = store.read_json(folder / "verdicts.json")
        if value is ...:
            del _at(verdicts, path[:-1])[path[-1]]
        else:
            _at(verdicts, path[:-1])[path[-1]] = value
        _bring_up_to_date(folder, verdicts, totals_too="verdicts" in path)

    return edit


def _array_edits(key: str, array: np.ndarray, arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, dict[str, Any]]]:
    def changed(new: np.ndarray | None) -> dict[str, Any]:
        return {name: old for name, old in {**arrays, key: new}.items() if old is not None}

    yield "dropped", changed(None)
    for kind in ("int8", "uint64", "float16", "complex128", "bool", "U4") if array.dtype.kind in "iuf" else ("S4",):
        with np.errstate(all="ignore"):
            yield f"as {kind}", changed(array.astype(kind))
    yield "in one more dimension", changed(array[None])
    if array.ndim:
        yield "shorter", changed(array[:-1])
        yield "longer", changed(np.concatenate([array, array[-1:]]))
        yield "reversed", changed(array[::-1].copy())
    if array.dtype.kind in "iuf":
        yield "negated", changed(np.negative(array))
        yield "plus one", changed(array + np.ones((), array.dtype))
        for place in range(array.size):
            for number in NUMBERS:
                if array.dtype.kind == "f" or (math.isfinite(number) and abs(number) < 100 and number == int(number)):
                    new = array.copy()
                    with np.errstate(over="ignore"):
                        new.flat[place] = number
                    yield f"[{place}] = {number}", changed(new)
            if array.dtype.kind == "f":
                new = array.copy()
                new.flat[place] = np.nextafter(new.flat[place], np.inf)
                yield f"[{place}] one ulp up", changed(new)
    for other, instead in arrays.items():
        if other != key and instead.dtype == array.dtype and not np.array_equal(instead, array):
            yield f"as {other}", changed(instead)


def _file_edit(name: str, arrays: dict[str, Any]) -> Edit:
    def edit(folder: Path) -> None:
        store.write_arrays(folder / name, arrays)
        verdicts = store.read_json(folder / "verdicts.json")
        verdicts["files"][name] = content_sha256(arrays)
        _bring_up_to_date(folder, verdicts, totals_too=name == "assignments.npz")

    return edit


def _bring_up_to_date(folder: Path, verdicts: Any, *, totals_too: bool) -> None:
    """Write verdicts.json with the totals of its verdicts, as far as they still have any."""
    if totals_too:
        try:
            sets = store.read_csr(folder / "assignments.npz")
            active = [sets.indices[sets.indptr[row] : sets.indptr[row + 1]] for row in range(sets.shape[0])]
            for result in verdicts["results"]:
                result.update(totals(result["verdicts"], active))
        except (XmckitError, LookupError, TypeError, ValueError, AttributeError):
            pass  # a forger can do no more
    (folder / "verdicts.json").write_text(json.dumps(verdicts), "utf-8")


# The truth


def false_claims(folder: Path) -> list[str]:
    """Return the claims of a folder that the checker accepted, and that are not true."""
    verdicts = store.read_json(folder / "verdicts.json")
    sets = store.read_csr(folder / "assignments.npz").toarray() != 0
    proofs, wrong = store.read_arrays(folder / "certificates.npz"), []
    params = verdicts["verifier"]["params"]
    for result in verdicts["results"]:
        head, scope = result["head"], result["scope"]
        arrays = store.read_arrays(folder / f"decision-{head}.npz")
        decision = LinearDecision(arrays["W"], arrays.get("b"), str(arrays["rule"]))  # type: ignore[arg-type]
        listed = np.ones_like(sets)
        if scope == "shortlist":
            listed = store.read_csr(folder / f"candidates-{head}.npz").toarray() != 0
        witnesses = proofs[f"{head}/{scope}/witness_of"].tolist(), proofs[f"{head}/{scope}/witness"]
        for row, (active, among, verdict) in enumerate(zip(sets, listed, result["verdicts"], strict=True)):
            x = witnesses[1][witnesses[0].index(row)] if row in witnesses[0] else None
            for claim in _false_claims(decision, active, np.flatnonzero(among), verdict, x, params):
                wrong.append(f"{head}, {scope}, {row}: {claim}")
    return wrong


def _false_claims(
    decision: LinearDecision, active: np.ndarray, among: np.ndarray, verdict: Any, x: np.ndarray | None, params: Any
) -> Iterator[str]:
    missed = sorted(set(np.flatnonzero(active).tolist()) - set(among.tolist()))
    if sorted(verdict["missed"]) != missed:
        yield "missed"
    can = not missed and tuple(active.tolist()) in possible_sets(decision, among)
    if verdict["status"] != "unresolved" and (verdict["status"] == "argmaxable") != can:
        yield "status"
    if verdict["margin"] is not None and decision.rule == "sign" and x is not None:
        yield from [] if _has_margin(decision, active, among, x, verdict["margin"]) else ["margin"]
    if verdict["eps"] in ("argmaxable", "unargmaxable") and decision.rule == "sign" and not missed and params:
        radius = _largest_radius(decision, active, among, params["box"]) if can else -math.inf
        close = abs(radius - params["eps"]) <= ALIKE * max(params["eps"], 1e-9)
        if not close and (verdict["eps"] == "argmaxable") != (radius > params["eps"]):
            yield "eps"


def _has_margin(decision: LinearDecision, active: np.ndarray, among: np.ndarray, x: np.ndarray, margin: float) -> bool:
    rows = decision.W if decision.b is None else np.hstack([decision.W, decision.b[:, None]])
    rows, v = rows[among].astype(np.float64), x if decision.b is None else np.append(x, 1.0)
    lengths, length = np.linalg.norm(rows, axis=1), np.linalg.norm(v)
    if not length or not (lengths > 0).any():
        return margin == 0
    signed = np.where(active[among], 1, -1) * (rows @ v)
    true = max(0.0, float((signed[lengths > 0] / lengths[lengths > 0]).min() / length))
    return abs(true - margin) <= ALIKE * true + 1e-12


def _largest_radius(decision: LinearDecision, active: np.ndarray, among: np.ndarray, box: float) -> float:
    """Return the radius of the largest ball in the region around an x of the box."""
    signs, W = np.where(active[among], 1.0, -1.0), decision.W[among].astype(np.float64)
    b = np.zeros(len(W)) if decision.b is None else decision.b[among].astype(np.float64)
    sloped = W.any(axis=1)
    if not sloped.any():
        return math.inf
    solved = linprog(
        [0.0] * W.shape[1] + [-1.0],
        A_ub=np.hstack([-signs[sloped, None] * W[sloped], np.linalg.norm(W[sloped], axis=1)[:, None]]),
        b_ub=(signs * b)[sloped],
        bounds=[(-box, box)] * W.shape[1] + [(None, None)],
    )
    return -float(solved.fun) if solved.status == 0 else math.nan


# The attack


def attack(folder: Path, *, share: float = 1.0, minutes: float = float("inf"), seed: int = 0) -> dict[str, Any]:
    """Try a share of all edits of a folder that `write_original` made, and return the figures."""
    counts, mistakes, runner = Counter[str](), [], CliRunner()
    rng, began, work = np.random.default_rng(seed), time.monotonic(), folder.parent / "forged"
    for name, edit in edits(folder):
        counts["edits"] += 1
        if rng.random() >= share or time.monotonic() - began > 60 * minutes:
            continue
        shutil.copytree(folder, work)
        try:
            edit(work)
            before = counts["false claims accepted"] + counts["tracebacks"]
            outcome = runner.invoke(certificates, ["check", str(work)])
            if outcome.exit_code == 0:
                wrong = false_claims(work)
                counts["false claims accepted" if wrong else "true and accepted"] += 1
                reason = "; ".join(wrong)
            else:
                known = isinstance(outcome.exception, XmckitError)
                counts["rejected" if known else "tracebacks"] += 1
                reason = "" if known else repr(outcome.exception)
            if counts["false claims accepted"] + counts["tracebacks"] > before and len(mistakes) < MOST_SHOWN:
                mistakes.append(f"{name}: {reason}")
        finally:
            shutil.rmtree(work)
        counts["tried"] += 1
    names = ("edits", "tried", "rejected", "true and accepted", "false claims accepted", "tracebacks")
    figures = {name.replace(" ", "_"): counts[name] for name in names}
    return {**figures, "seconds": round(time.monotonic() - began, 1), "mistakes": mistakes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="start no edit after this (default: %(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the edits to try (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        original = Path(scratch) / "original"
        write_original(original)
        found = attack(original, share=options.share, minutes=options.minutes)
    study.write_results(RESULTS, found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
