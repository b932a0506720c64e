"""Verify the heads of a finished run, as `xmckit verify RUN` does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Dataset, Matrix, Split
from xmckit.errors import UsageError, nearest
from xmckit.protocols import Verifier
from xmckit.runs import Run, provenance
from xmckit.verification.label_sets import RANDOM, random_label_sets, read_label_sets
from xmckit.verification.outputs import RealRows, label_sets, sample_rows
from xmckit.verification.verify import verify

if TYPE_CHECKING:
    from xmckit.model import Model

ROWS = ("test", "train")
PREDICTED = "predicted"


def verify_run(
    run: Run,
    model: Model,
    verifier: Verifier,
    *,
    folder: Path,
    only: str | None,
    assignments: str,
    most: int,
    code: Any,
    context: Context,
) -> dict[str, Any]:
    """Verify one head or all heads, and write verdicts and proofs below `folder`/verify.

    `assignments` is `test`, `train`, `predicted` (what the head outputs for the test rows), `random:K:COUNT` or a file;
    `code` identifies the verifier's code.
    """
    heads = _heads(run, model, only)
    if assignments == PREDICTED and len(heads) > 1:
        names = ", ".join(name for name, _ in heads)
        raise UsageError(f"each head outputs label sets of its own: choose one with --head (heads: {names})")
    dataset = run.dataset()
    split, X = _label_sets_and_features(assignments, dataset, run, model, heads, context)
    real = _real_rows(dataset, run, model)
    identity = {"code": code, "seed": context.seed, "versions": provenance.library_versions()}
    target = folder / "verify" / _folder_name(assignments, only, context.seed)
    # Finished blocks stay here if the process is killed, for the next call with the same question.
    scratch = target.parent / f".unfinished-{store.canonical_sha256(identity)[:16]}"
    store.remove_stale(target.parent)
    with store.atomic_folder(target, replace=True) as fresh:
        summary = verify(
            fresh, verifier, heads, split,
            X=X, real=real, predicted=assignments == PREDICTED, most=most, context=context.using(folder=scratch),
        )  # fmt: skip
        store.seal(fresh, {"name": f"verify/{target.name}"})
    shutil.rmtree(scratch, ignore_errors=True)
    return {"run": str(folder), "folder": str(target), **named_summary(summary, model.label_names)}


def given_label_sets(assignments: str, label_names: Sequence[str], context: Context) -> csr_matrix:
    """Return label sets that belong to no rows: random ones, or those of a file."""
    if assignments.startswith(RANDOM):
        return random_label_sets(assignments, len(label_names), context.rng("assignments", assignments))
    return read_label_sets(Path(assignments), label_names)


def named_summary(summary: Mapping[str, Any], label_names: Sequence[str]) -> dict[str, Any]:
    """Return the summary with names of labels, without the verdict on each label set."""
    results = []
    for result in summary["results"]:
        facts = {key: value for key, value in result.items() if key != "verdicts"}
        if result["verifiable"]:
            facts["never"] = [
                {
                    **item,
                    "labels": [label_names[label] for label in item["labels"]],
                    "by_rounding": result["verdicts"][item["position"]]["by_rounding"],
                }
                for item in result["never"]
            ]
        results.append(facts)
    return {"assignments": summary["assignments"], "of": summary["of"], "results": results}


def _heads(run: Run, model: Model, only: str | None) -> list[tuple[str, Any]]:
    names = run.head_names
    if only is not None and only not in names:
        raise UsageError(f"{run.path} has no head '{only}'{nearest(only, names)} (heads: {', '.join(names)})")
    return [pair for pair in zip(names, model.heads, strict=True) if only in (None, pair[0])]


def _label_sets_and_features(
    assignments: str,
    dataset: Dataset,
    run: Run,
    model: Model,
    heads: Sequence[tuple[str, Any]],
    context: Context,
) -> tuple[Split, dict[str, Matrix]]:
    """Return the label sets, and the rows' features for each head."""
    labels = len(model.label_names)
    if assignments not in (*ROWS, PREDICTED):
        return Split(X=None, Y=given_label_sets(assignments, model.label_names, context)), {}
    split = dataset.train if assignments == "train" else dataset.test
    X = dict(zip(run.head_names, model.all_features(split), strict=True))
    if assignments == PREDICTED:
        ((name, head),) = heads
        return Split(X=None, Y=label_sets(name, head, X[name], labels)), X
    Y = split.Y.copy()
    Y.resize(split.rows, labels)  # no row has a label that was added later
    return Split(X=None, Y=Y), X


def _real_rows(dataset: Dataset, run: Run, model: Model) -> RealRows:
    """Return test rows, or training rows if there are none, on which outputs are compared with decisions."""
    name, split = ("test", dataset.test) if dataset.test.rows else ("train", dataset.train)
    numbers = sample_rows(split.rows)
    features = model.all_features(split.take(numbers))
    return RealRows(name, numbers, dict(zip(run.head_names, features, strict=True)))


def _folder_name(assignments: str, only: str | None, seed: int) -> str:
    rows_or_random = assignments in (*ROWS, PREDICTED) or assignments.startswith(RANDOM)
    source = assignments if rows_or_random else f"file-{Path(assignments).stem}"
    parts = [source, *([only] if only else []), *([f"seed-{seed}"] if seed else [])]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip("-.") or "asked"
