"""Verify what each head's output layer can and cannot produce, and write the proofs.

The folder holds all that a second program needs to check every verdict, and nothing in it is pickled:

    verdicts.json         the verdicts, in the order of the assignments, and the content checksum of every other file
    assignments.npz       the label sets that were verified, CSR; `rows` says which rows they came from
    decision-<head>.npz   W, b (if the head has one) and rule as the head gave them; degree, slack, order of a structure
    candidates-<head>.npz the candidates of each row, CSR, for a head behind a shortlist
    certificates.npz      <head>/<scope>/…: witnesses as rows of a matrix, certificates as ragged arrays, witnesses that
                          floats cannot hold also as text, each with the positions they belong to

Assignments are verified in blocks. A finished block is kept in the stage's scratch folder under a name that follows
from its content, so that a run that was killed resumes with the next block.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Matrix, Split, as_csr
from xmckit.errors import PluginError, attribute_errors_to
from xmckit.protocols import Head, ShortlistHead, SupportsParams, Verifier, offers
from xmckit.records import ARGMAXABLE, STATUSES, UNARGMAXABLE, LinearDecision, Verdict, Verdicts
from xmckit.runs import HeadVerdicts, VerdictSummary, layout

FORMAT = 1
BLOCK = 512
MOST_LISTED = 20
NOT_LINEAR = "its decision is not one linear layer"


def verify(
    folder: Path,
    verifier: Verifier,
    heads: Sequence[tuple[str, Head]],
    split: Split,
    *,
    X: Mapping[str, Matrix] = MappingProxyType({}),
    most: int,
    uses: Mapping[str, str] = MappingProxyType({}),
    context: Context,
) -> VerdictSummary:
    """Write the files above into `folder`; return the content of verdicts.json. `uses` are the heads' components.

    A head behind a shortlist (its `candidates(X)` is not None) is verified twice: the full layer, and what it can
    output for each row's candidates. The first is never a statement about the whole model. `X` has the rows' features
    for heads that do not see `split.X`. Label sets without rows have no candidates: only the full layer is verified.
    """
    rows = np.arange(split.rows)
    if len(rows) > most:
        rows = np.sort(context.rng("verify").choice(len(rows), size=most, replace=False))
    assignments = _pattern(split.Y[rows])
    checksums: dict[str, str] = {}

    def write(name: str, arrays: Mapping[str, np.ndarray]) -> None:
        store.write_arrays(folder / name, arrays)
        checksums[name] = content_sha256(arrays)

    write(layout.ASSIGNMENTS, {**_csr_arrays(assignments), "rows": rows})
    results: list[HeadVerdicts] = []
    proofs: dict[str, np.ndarray] = {"rows": rows}
    for name, head in heads:
        seen = X.get(name, None if split.X is None else split.matrix)
        with attribute_errors_to("head", uses.get(name, name)):
            decision = head.decision()
            if decision is None:
                results.append({"head": name, "scope": "full", "verifiable": False, "why": NOT_LINEAR})
                continue
            stored = _decision_arrays(decision, name, assignments.shape[1])
            allowed = None if seen is None else _candidates(head, seen[rows], assignments.shape, name)
        write(layout.decision_file(name), stored)
        scopes: dict[str, csr_matrix | None] = {"full": None}
        if allowed is not None:
            scopes["shortlist"] = allowed
            write(layout.candidates_file(name), _csr_arrays(allowed))
        for scope, candidates in scopes.items():
            blocks = _BlockVerifier(verifier, decision, content_sha256(stored), assignments, candidates)
            verdicts = blocks.verify(f"verifying {name}, {scope}", context)
            result: HeadVerdicts = {"head": name, "scope": scope, "verifiable": True}
            result.update(_decision_facts(decision))
            result.update(_verdict_facts([_summary(verdict) for verdict in verdicts], assignments))
            results.append(result)
            arrays = _proof_arrays(verdicts, decision.W.shape[1])
            proofs.update({f"{name}/{scope}/{key}": array for key, array in arrays.items()})
    write(layout.CERTIFICATES, proofs)
    summary: VerdictSummary = {
        "format": FORMAT,
        "verifier": {"name": type(verifier).__name__, "params": _params(verifier)},
        "assignments": len(rows),
        "of": split.rows,
        "files": checksums,
        "results": results,
    }
    store.write_json(folder / layout.VERDICTS, summary)
    return summary


def content_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a checksum of names, types, shapes and values: the same whenever and however the arrays were written."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _BlockVerifier:
    """Verifies assignments against one decision, block by block."""

    verifier: Verifier
    decision: LinearDecision
    decision_sha256: str
    assignments: csr_matrix
    candidates: csr_matrix | None

    def verify(self, what: str, context: Context) -> list[Verdict]:
        rows = int(self.assignments.shape[0])
        verdicts: list[Verdict] = []
        counts = Counter(dict.fromkeys(STATUSES, 0))
        with context.progress(what, total=rows) as bar:
            for start in range(0, rows, BLOCK):
                block = self._block(slice(start, start + BLOCK), context)
                counts.update(verdict.status for verdict in block)
                bar.advance(len(block), **counts)
                verdicts += block
        return verdicts

    def _block(self, rows: slice, context: Context) -> Sequence[Verdict]:
        """Read the block from the scratch folder of an attempt that was stopped, or verify it and leave it there."""
        assignments = self.assignments[rows]
        candidates = None if self.candidates is None else self.candidates[rows]
        name = f"{self._key(assignments, candidates)}.npz"
        path = None if context.folder is None else context.folder / "blocks" / name
        if path is not None and path.is_file():
            return _load_block(path)
        verdicts = self.verifier.verify(self.decision, assignments, candidates=candidates, context=context)
        width = self.decision.W.shape[1]
        _check(verdicts, int(assignments.shape[0]), width, type(self.verifier).__name__)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _save_block(path, verdicts.verdicts, width)
        return verdicts.verdicts

    def _key(self, assignments: csr_matrix, candidates: csr_matrix | None) -> str:
        return store.canonical_sha256(
            {
                "verifier": f"{type(self.verifier).__module__}.{type(self.verifier).__qualname__}",
                "params": _params(self.verifier),
                "decision": self.decision_sha256,
                "assignments": content_sha256(_csr_arrays(assignments)),
                "candidates": None if candidates is None else content_sha256(_csr_arrays(candidates)),
            }
        )


def _save_block(path: Path, verdicts: Sequence[Verdict], width: int) -> None:
    text = json.dumps([_summary(verdict) for verdict in verdicts], allow_nan=False).encode()
    store.write_arrays(path, {**_proof_arrays(verdicts, width), "verdicts": np.frombuffer(text, dtype=np.uint8)})


def _load_block(path: Path) -> list[Verdict]:
    arrays = store.read_arrays(path)
    witnesses = dict(zip(arrays["witness_of"].tolist(), arrays["witness"], strict=True))
    spans = [slice(*ends) for ends in itertools.pairwise(arrays["certificate_start"].tolist())]
    certificates = {
        row: (arrays["certificate_labels"][span], arrays["certificate_multipliers"][span])
        for row, span in zip(arrays["certificate_of"].tolist(), spans, strict=True)
    }
    exact = _exact_witnesses(arrays)
    summaries = json.loads(arrays["verdicts"].tobytes())
    return [
        Verdict(**summary, witness=witnesses.get(row), certificate=certificates.get(row), exact_witness=exact.get(row))
        for row, summary in enumerate(summaries)
    ]


def _params(verifier: Verifier) -> dict[str, Any] | None:
    return dict(verifier.params.model_dump(mode="json")) if offers(verifier, SupportsParams) else None


def _check(verdicts: Any, count: int, width: int, verifier: str) -> None:
    """Raise PluginError unless each assignment has a verdict with a known status and proofs of the right size."""
    gave = f"verifier {verifier} gave"
    if not isinstance(verdicts, Verdicts):
        raise PluginError(f"{gave} a {type(verdicts).__name__}, expected Verdicts")
    if len(verdicts) != count:
        raise PluginError(f"{gave} {len(verdicts)} verdicts for {count} assignments")
    for verdict in verdicts.verdicts:
        if verdict.status not in STATUSES:
            raise PluginError(f"{gave} the status {verdict.status!r}, expected {', '.join(STATUSES)}")
        if verdict.witness is not None and np.shape(verdict.witness) != (width,):
            raise PluginError(f"{gave} a witness of size {np.shape(verdict.witness)}, expected {(width,)}")
        if verdict.certificate is not None and len({np.shape(part) for part in verdict.certificate}) != 1:
            raise PluginError(f"{gave} a certificate whose labels and multipliers differ in number")
        if verdict.margin is not None and not np.isfinite(verdict.margin):
            raise PluginError(f"{gave} the margin {verdict.margin}, expected a finite number")


def _candidates(head: Any, X: Matrix, shape: tuple[int, int], name: str) -> csr_matrix | None:
    """Return the labels that a head behind a shortlist can output for each row; None for a head without a shortlist."""
    candidates = head.candidates(X) if offers(head, ShortlistHead) else None
    if candidates is None:
        return None
    if getattr(candidates, "format", "") != "csr" or candidates.shape != shape:
        found = f"a {type(candidates).__name__} of size {getattr(candidates, 'shape', None)}"
        raise PluginError(f"candidates() of head {name} gave {found}, expected a CSR matrix of size {shape}")
    # A candidate may have the score 0; what counts is that it is listed.
    listed = csr_matrix((np.ones(candidates.nnz, np.float32), candidates.indices, candidates.indptr), candidates.shape)
    return _pattern(listed)


def _pattern(matrix: csr_matrix) -> csr_matrix:
    """Return ones where `matrix` has entries, in canonical form."""
    matrix = as_csr(matrix)
    return csr_matrix((np.ones(matrix.nnz, np.float32), matrix.indices, matrix.indptr), matrix.shape)


def _csr_arrays(matrix: csr_matrix) -> dict[str, np.ndarray]:
    arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    return {**arrays, "shape": np.asarray(matrix.shape, dtype=np.int64)}


def _decision_arrays(decision: Any, head: str, labels: int) -> dict[str, np.ndarray]:
    """Return the decision as it is stored; PluginError unless it is a decision over `labels` labels."""
    if not isinstance(decision, LinearDecision):
        raise PluginError(f"decision() of head {head} gave a {type(decision).__name__}, expected a LinearDecision")
    arrays = {"W": np.asarray(decision.W), "rule": np.asarray(decision.rule)}
    if decision.b is not None:
        arrays["b"] = np.asarray(decision.b)
    for part, dimensions in (("W", 2), ("b", 1)):
        array = arrays.get(part)
        if array is not None and (array.ndim != dimensions or len(array) != labels or array.dtype.kind != "f"):
            raise PluginError(
                f"decision() of head {head} gave {part} as {array.dtype} of size {array.shape}, "
                f"expected floating-point numbers in {dimensions}-D, one row for each of the {labels} labels"
            )
    if decision.structure is not None:
        parts = ("degree", "slack", "order")
        arrays |= {part: np.asarray(getattr(decision.structure, part), dtype=np.int64) for part in parts}
    return arrays


def _decision_facts(decision: LinearDecision) -> Any:
    return {
        "rule": decision.rule,
        "labels": int(decision.W.shape[0]),
        "dim": int(decision.W.shape[1]),
        "bias": decision.b is not None,
        "structured": decision.structure is not None,
        "caveat": _caveat(decision),
    }


def _caveat(decision: LinearDecision) -> str | None:
    """Return the caveat that keeps readers from reading more into "argmaxable" than is proved, if one is needed."""
    columns = int(decision.W.shape[1])
    if decision.inputs is None or decision.inputs >= columns:
        return None
    return (
        f"its vectors have {columns:,} entries and are made of {decision.inputs:,} features, so some vectors belong to "
        "no row. argmaxable holds for some vector, possibly one of these; unargmaxable holds for every row."
    )


def _verdict_facts(summaries: list[dict[str, Any]], assignments: csr_matrix) -> Any:
    """Return what a result says about all assignments together, and then about each."""
    counts = {
        key: {status: sum(summary[key] == status for summary in summaries) for status in STATUSES}
        for key in ("status", "ideal", "eps")
    }
    margins = [summary["margin"] for summary in summaries if summary["margin"] is not None]
    replayed = [summary["replayed"] for summary in summaries if summary["status"] == ARGMAXABLE]
    return {
        "counts": counts["status"],
        "share": counts["status"][ARGMAXABLE] / len(summaries) if summaries else None,
        "smallest_margin": min(margins, default=None),
        "replayed": {"yes": replayed.count(True), "no": replayed.count(False), "not tried": replayed.count(None)},
        "ideal": counts["ideal"],
        "eps": counts["eps"],
        "missed": sum(bool(summary["missed"]) for summary in summaries),
        "seconds": sum(summary["seconds"] for summary in summaries),
        "never": _never(assignments, summaries),
        "verdicts": summaries,
    }


def _never(assignments: csr_matrix, verdicts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the label sets that can never be output, the most frequent first; `missed`: labels outside the shortlist."""
    positions: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position, verdict in enumerate(verdicts):
        if verdict["status"] == UNARGMAXABLE:
            labels = assignments.indices[assignments.indptr[position] : assignments.indptr[position + 1]]
            positions[tuple(labels.tolist())].append(position)
    first = sorted(positions.items(), key=lambda item: (-len(item[1]), item[1][0]))[:MOST_LISTED]
    return [
        {"labels": list(labels), "times": len(where), "position": where[0], "missed": verdicts[where[0]]["missed"]}
        for labels, where in first
    ]


def _summary(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": verdict.status,
        "proof": verdict.proof,
        "replayed": None if verdict.replayed is None else bool(verdict.replayed),
        "margin": None if verdict.margin is None else float(verdict.margin),
        "radius": None if verdict.radius is None else [float(bound) for bound in verdict.radius],
        "ideal": verdict.ideal,
        "eps": verdict.eps,
        "missed": [int(label) for label in verdict.missed],
        "seconds": float(verdict.seconds),
    }


def _proof_arrays(verdicts: Sequence[Verdict], width: int) -> dict[str, np.ndarray]:
    witnesses = {row: verdict.witness for row, verdict in enumerate(verdicts) if verdict.witness is not None}
    certificates = {row: verdict.certificate for row, verdict in enumerate(verdicts) if verdict.certificate is not None}
    labels = [np.empty(0, dtype=np.int64), *(labels for labels, _ in certificates.values())]
    multipliers = [np.empty(0), *(multipliers for _, multipliers in certificates.values())]
    return {
        "witness": np.asarray(list(witnesses.values()), dtype=np.float64).reshape(len(witnesses), width),
        "witness_of": np.asarray(list(witnesses), dtype=np.int64),
        "certificate_of": np.asarray(list(certificates), dtype=np.int64),
        "certificate_start": np.cumsum([len(part) for part in labels], dtype=np.int64),
        "certificate_labels": np.concatenate(labels).astype(np.int64),
        "certificate_multipliers": np.concatenate(multipliers).astype(np.float64),
        **_exact_witness_arrays(verdicts),
    }


def _exact_witness_arrays(verdicts: Sequence[Verdict]) -> dict[str, np.ndarray]:
    """Return the witnesses that floats cannot hold as lines of text: integers, in hexadecimal."""
    exact = {row: verdict.exact_witness for row, verdict in enumerate(verdicts) if verdict.exact_witness is not None}
    if not exact:
        return {}
    text = "\n".join(" ".join(format(number, "x") for number in numbers) for numbers in exact.values())
    return {
        "exact_witness": np.frombuffer(text.encode("ascii"), dtype=np.uint8),
        "exact_witness_of": np.asarray(list(exact), dtype=np.int64),
    }


def _exact_witnesses(arrays: Mapping[str, np.ndarray]) -> dict[int, tuple[int, ...]]:
    if "exact_witness" not in arrays:
        return {}
    lines = arrays["exact_witness"].tobytes().decode("ascii").split("\n")
    integers = [tuple(int(number, 16) for number in line.split()) for line in lines]
    return dict(zip(arrays["exact_witness_of"].tolist(), integers, strict=True))
