"""Verify what each head's output layer can and cannot produce, and write the proofs.

The folder holds all that a second program needs to check every verdict, and nothing in it is pickled:

    verdicts.json         the verdicts, in the order of the assignments, and the content checksum of every other file
    assignments.npz       the label sets that were verified, CSR; `rows` says which rows they came from
    decision-<head>.npz   W, b (where there is one) and rule as the head gave them; degree, slack, order of a structure
    candidates-<head>.npz the candidates of each row, CSR, for a head behind a shortlist
    certificates.npz      <head>/<scope>/…: witnesses as rows of a matrix, certificates as ragged arrays, each with the
                          positions they belong to

Assignments are verified in blocks. A finished block is kept in the stage's scratch folder under a name that follows
from its content, so that a run that was killed resumes with the next block.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Matrix, Split, as_csr
from xmckit.errors import PluginError, attribute_errors_to
from xmckit.protocols import Head, ShortlistHead, SupportsParams, Verifier
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
    output = _Output(folder)
    output.write(layout.ASSIGNMENTS, {**_csr_arrays(assignments), "rows": rows})
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
        output.write(layout.decision_file(name), stored)
        scopes: dict[str, csr_matrix | None] = {"full": None}
        if allowed is not None:
            scopes["shortlist"] = allowed
            output.write(layout.candidates_file(name), _csr_arrays(allowed))
        for scope, candidates in scopes.items():
            blocks = _BlockVerifier(verifier, decision, content_sha256(stored), assignments, candidates)
            answers = blocks.verify(f"verifying {name}, {scope}", context)
            result: HeadVerdicts = {"head": name, "scope": scope, "verifiable": True}
            result.update(_decision_facts(decision))
            result.update(answers.facts(assignments))
            results.append(result)
            proofs.update({f"{name}/{scope}/{key}": array for key, array in answers.proofs.items()})
    output.write(layout.CERTIFICATES, proofs)
    summary: VerdictSummary = {
        "format": FORMAT,
        "verifier": {"name": type(verifier).__name__, "params": _params(verifier)},
        "assignments": len(rows),
        "of": split.rows,
        "files": output.checksums,
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


@dataclass
class _Output:
    """The stage's folder, and the checksums of what was written into it."""

    folder: Path
    checksums: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        store.write_arrays(self.folder / name, arrays)
        self.checksums[name] = content_sha256(arrays)


@dataclass(frozen=True)
class _StoredVerdicts:
    """Verdicts as they are stored: a summary of each, and the arrays of the proofs."""

    verdicts: list[dict[str, Any]]
    proofs: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        text = json.dumps(self.verdicts, allow_nan=False).encode()
        store.write_arrays(path, {**self.proofs, "verdicts": np.frombuffer(text, dtype=np.uint8)})

    @classmethod
    def load(cls, path: Path) -> _StoredVerdicts:
        proofs = store.read_arrays(path)
        return cls(json.loads(proofs.pop("verdicts").tobytes()), proofs)

    @classmethod
    def joined(cls, blocks: Sequence[_StoredVerdicts], width: int) -> _StoredVerdicts:
        """Concatenate blocks; positions and offsets continue from one to the next."""
        first = np.cumsum([0, *(len(block.verdicts) for block in blocks)])
        proofs = {"witness": np.concatenate([np.empty((0, width)), *(block.proofs["witness"] for block in blocks)])}
        for name in ("witness_of", "certificate_of"):
            shifted = [block.proofs[name] + start for block, start in zip(blocks, first[:-1], strict=True)]
            proofs[name] = _joined(shifted, np.int64)
        lengths = _joined([np.diff(block.proofs["certificate_start"]) for block in blocks], np.int64)
        proofs["certificate_start"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        for name, dtype in (("certificate_labels", np.int64), ("certificate_multipliers", np.float64)):
            proofs[name] = _joined([block.proofs[name] for block in blocks], dtype)
        return cls([verdict for block in blocks for verdict in block.verdicts], proofs)

    def counts(self, key: str = "status") -> dict[str, int]:
        return {status: sum(verdict[key] == status for verdict in self.verdicts) for status in STATUSES}

    def facts(self, assignments: csr_matrix) -> Any:
        """Return what a result says about all assignments together, and then about each."""
        counts = self.counts()
        margins = [verdict["margin"] for verdict in self.verdicts if verdict["margin"] is not None]
        replayed = [verdict["replayed"] for verdict in self.verdicts if verdict["status"] == ARGMAXABLE]
        return {
            "counts": counts,
            "share": counts[ARGMAXABLE] / len(self.verdicts) if self.verdicts else None,
            "smallest_margin": min(margins, default=None),
            "replayed": {"yes": replayed.count(True), "no": replayed.count(False), "not tried": replayed.count(None)},
            "ideal": self.counts("ideal"),
            "eps": self.counts("eps"),
            "missed": sum(bool(verdict["missed"]) for verdict in self.verdicts),
            "seconds": sum(verdict["seconds"] for verdict in self.verdicts),
            "never": _never(assignments, self.verdicts),
            "verdicts": self.verdicts,
        }


@dataclass(frozen=True)
class _BlockVerifier:
    """Verifies assignments against one decision, block by block."""

    verifier: Verifier
    decision: LinearDecision
    decision_sha256: str
    assignments: csr_matrix
    candidates: csr_matrix | None

    def verify(self, what: str, context: Context) -> _StoredVerdicts:
        rows = int(self.assignments.shape[0])
        blocks: list[_StoredVerdicts] = []
        counted = dict.fromkeys(STATUSES, 0)
        with context.progress(what, total=rows) as bar:
            for start in range(0, rows, BLOCK):
                block = self._block(slice(start, start + BLOCK), context)
                counted = {status: counted[status] + more for status, more in block.counts().items()}
                bar.advance(len(block.verdicts), **counted)
                blocks.append(block)
        return _StoredVerdicts.joined(blocks, int(self.decision.W.shape[1]))

    def _block(self, rows: slice, context: Context) -> _StoredVerdicts:
        """Read the block from the scratch folder of an attempt that was stopped, or verify it and leave it there."""
        assignments = self.assignments[rows]
        candidates = None if self.candidates is None else self.candidates[rows]
        if context.folder is None:
            return self._verified(assignments, candidates, context)
        path = context.folder / "blocks" / f"{self._key(assignments, candidates)}.npz"
        if path.is_file():
            return _StoredVerdicts.load(path)
        answers = self._verified(assignments, candidates, context)
        path.parent.mkdir(parents=True, exist_ok=True)
        answers.save(path)
        return answers

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

    def _verified(self, assignments: csr_matrix, candidates: csr_matrix | None, context: Context) -> _StoredVerdicts:
        verdicts = self.verifier.verify(self.decision, assignments, candidates=candidates, context=context)
        width = int(self.decision.W.shape[1])
        _check(verdicts, int(assignments.shape[0]), width, type(self.verifier).__name__)
        return _StoredVerdicts([_summary(verdict) for verdict in verdicts.verdicts], _proofs(verdicts, width))


def _params(verifier: Verifier) -> dict[str, Any] | None:
    return dict(verifier.params.model_dump(mode="json")) if isinstance(verifier, SupportsParams) else None


def _check(verdicts: Any, count: int, width: int, verifier: str) -> None:
    """Raise PluginError unless each assignment has a verdict with a known status and proofs of the right size."""
    if not isinstance(verdicts, Verdicts):
        raise PluginError(f"verifier {verifier} gave a {type(verdicts).__name__}, expected Verdicts")
    if len(verdicts) != count:
        raise PluginError(f"verifier {verifier} gave {len(verdicts)} verdicts for {count} assignments")
    for verdict in verdicts.verdicts:
        if verdict.status not in STATUSES:
            raise PluginError(f"verifier {verifier} gave the status {verdict.status!r}, expected {', '.join(STATUSES)}")
        if verdict.witness is not None and np.shape(verdict.witness) != (width,):
            raise PluginError(
                f"verifier {verifier} gave a witness of size {np.shape(verdict.witness)}, expected {(width,)}"
            )
        if verdict.certificate is not None and len({np.shape(part) for part in verdict.certificate}) != 1:
            raise PluginError(f"verifier {verifier} gave a certificate whose labels and multipliers differ in number")
        if verdict.margin is not None and not np.isfinite(verdict.margin):
            raise PluginError(f"verifier {verifier} gave the margin {verdict.margin}, expected a finite number")


def _candidates(head: Any, X: Matrix, shape: tuple[int, int], name: str) -> csr_matrix | None:
    """Return the labels that a head behind a shortlist can output for each row; None for a head without a shortlist."""
    candidates = head.candidates(X) if isinstance(head, ShortlistHead) else None
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
    return {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr,
        "shape": np.asarray(matrix.shape, dtype=np.int64),
    }


def _decision_arrays(decision: Any, head: str, labels: int) -> dict[str, np.ndarray]:
    """Return the decision as it is stored; PluginError unless it is a decision over `labels` labels."""
    if not isinstance(decision, LinearDecision):
        raise PluginError(f"decision() of head {head} gave a {type(decision).__name__}, expected a LinearDecision")
    W = np.asarray(decision.W)
    if W.ndim != 2 or W.shape[0] != labels or W.dtype.kind != "f":
        raise PluginError(
            f"decision() of head {head} gave W as {W.dtype} of size {W.shape}, "
            f"expected floating-point numbers and {labels} rows, one for each label"
        )
    arrays = {"W": W, "rule": np.asarray(decision.rule)}
    if decision.b is not None:
        arrays["b"] = np.asarray(decision.b)
        if arrays["b"].shape != (labels,) or arrays["b"].dtype.kind != "f":
            raise PluginError(
                f"decision() of head {head} gave b as {arrays['b'].dtype} of size {arrays['b'].shape}, "
                f"expected floating-point numbers and size {(labels,)}"
            )
    if decision.structure is not None:
        structure = decision.structure
        arrays |= {
            "degree": np.asarray(structure.degree, dtype=np.int64),
            "slack": np.asarray(structure.slack, dtype=np.int64),
            "order": np.asarray(structure.order, dtype=np.int64),
        }
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


def _proofs(verdicts: Verdicts, width: int) -> dict[str, np.ndarray]:
    witnesses = [(row, verdict.witness) for row, verdict in enumerate(verdicts.verdicts) if verdict.witness is not None]
    certificates = [
        (row, verdict.certificate) for row, verdict in enumerate(verdicts.verdicts) if verdict.certificate is not None
    ]
    lengths = [len(labels) for _, (labels, _) in certificates]
    return {
        "witness_of": np.asarray([row for row, _ in witnesses], dtype=np.int64),
        "witness": np.asarray([x for _, x in witnesses], dtype=np.float64).reshape(len(witnesses), width),
        "certificate_of": np.asarray([row for row, _ in certificates], dtype=np.int64),
        "certificate_start": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "certificate_labels": _joined([np.asarray(labels) for _, (labels, _) in certificates], np.int64),
        "certificate_multipliers": _joined([np.asarray(parts) for _, (_, parts) in certificates], np.float64),
    }


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype=dtype)
