"""The verify stage: what each head's output layer can and cannot produce, with the proofs written beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import PluginError
from xmckit.protocols import STATUSES, Head, LinearDecision, Verdicts, Verifier


def verify(
    folder: Path,
    verifier: Verifier,
    heads: Sequence[tuple[str, Head]],
    split: Split,
    *,
    most: int,
    context: Context,
) -> dict[str, Any]:
    """Write verdicts.json and certificates.npz into `folder`; return the content of the former.

    A head behind a shortlist (it has `candidates(X)`) is judged twice: the full layer, and what it can output for
    each row's candidates. The first is never a statement about the whole model.
    """
    rows = np.arange(split.rows)
    if len(rows) > most:
        rows = np.sort(context.rng("verify").choice(len(rows), size=most, replace=False))
    chosen = split.Y[rows]
    results: list[dict[str, Any]] = []
    proofs: dict[str, np.ndarray] = {"rows": rows}
    for name, head in heads:
        decision = head.decision()
        if decision is None:
            results.append({"head": name, "scope": "full", "verifiable": False})
            continue
        if not isinstance(decision, LinearDecision):
            raise PluginError(f"decision() of head {name} gave a {type(decision).__name__}, expected a LinearDecision")
        scopes: dict[str, csr_matrix | None] = {"full": None}
        if hasattr(head, "candidates"):
            scopes["shortlist"] = head.candidates(split.matrix[rows])
        for scope, candidates in scopes.items():
            verdicts = verifier.verify(decision, chosen, candidates=candidates, context=context)
            _check(verdicts, len(rows), type(verifier).__name__)
            results.append(
                {
                    "head": name,
                    "scope": scope,
                    "verifiable": True,
                    "rule": decision.rule,
                    "counts": verdicts.counts(),
                    "verdicts": [_summary(verdicts[row]) for row in range(len(verdicts))],
                }
            )
            proofs.update({f"{name}/{scope}/{key}": array for key, array in _proofs(verdicts).items()})
    summary = {"assignments": len(rows), "of": split.rows, "results": results}
    store.write_arrays(folder / "certificates.npz", proofs)
    store.write_json(folder / "verdicts.json", summary)
    return summary


def _check(verdicts: Verdicts, asked: int, verifier: str) -> None:
    """PluginError unless there is one verdict for each assignment, with a status that counts."""
    if len(verdicts) != asked:
        raise PluginError(f"verifier {verifier} gave {len(verdicts)} verdicts for {asked} assignments")
    for verdict in verdicts.verdicts:
        if verdict.status not in STATUSES:
            raise PluginError(f"verifier {verifier} gave the status {verdict.status!r}, expected {', '.join(STATUSES)}")


def _summary(verdict: Any) -> dict[str, Any]:
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


def _proofs(verdicts: Verdicts) -> dict[str, np.ndarray]:
    """Witnesses as rows of a matrix, certificates as ragged arrays; each with the positions they belong to."""
    witnesses = [(row, verdicts[row].witness) for row in range(len(verdicts)) if verdicts[row].witness is not None]
    certificates = [
        (row, verdicts[row].certificate) for row in range(len(verdicts)) if verdicts[row].certificate is not None
    ]
    lengths = [len(certificate[0]) for _, certificate in certificates if certificate is not None]
    return {
        "witness_of": np.asarray([row for row, _ in witnesses], dtype=np.int64),
        "witness": np.asarray([witness for _, witness in witnesses], dtype=np.float64),
        "certificate_of": np.asarray([row for row, _ in certificates], dtype=np.int64),
        "certificate_start": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "certificate_labels": _joined([certificate[0] for _, certificate in certificates if certificate], np.int64),
        "certificate_multipliers": _joined(
            [certificate[1] for _, certificate in certificates if certificate], np.float64
        ),
    }


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype=dtype)
