"""Verify label sets block by block, and keep finished blocks, so that stopped work resumes with the next one."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.errors import PluginError
from xmckit.protocols import SupportsParams, Verifier, offers
from xmckit.records import STATUSES, LinearDecision, Verdict, Verdicts

BLOCK = 512


def content_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a checksum of names, types, shapes and values: the same whenever and however the arrays were written."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class BlockVerifier:
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
                "params": verifier_params(self.verifier),
                "decision": self.decision_sha256,
                "assignments": content_sha256(csr_arrays(assignments)),
                "candidates": None if candidates is None else content_sha256(csr_arrays(candidates)),
            }
        )


def _save_block(path: Path, verdicts: Sequence[Verdict], width: int) -> None:
    text = json.dumps([verdict_summary(verdict) for verdict in verdicts], allow_nan=False).encode()
    store.write_arrays(path, {**proof_arrays(verdicts, width), "verdicts": np.frombuffer(text, dtype=np.uint8)})


def _load_block(path: Path) -> list[Verdict]:
    try:
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
            Verdict(
                **summary, witness=witnesses.get(row), certificate=certificates.get(row), exact_witness=exact.get(row)
            )
            for row, summary in enumerate(summaries)
        ]
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise store.damaged(path, f"not the verdicts on a block of label sets: {error}") from None


def verifier_params(verifier: Verifier) -> dict[str, Any] | None:
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


def csr_arrays(matrix: csr_matrix) -> dict[str, np.ndarray]:
    arrays = {name: getattr(matrix, name) for name in ("data", "indices", "indptr")}
    return {**arrays, "shape": np.asarray(matrix.shape, dtype=np.int64)}


def verdict_summary(verdict: Verdict) -> dict[str, Any]:
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


def proof_arrays(verdicts: Sequence[Verdict], width: int) -> dict[str, np.ndarray]:
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
