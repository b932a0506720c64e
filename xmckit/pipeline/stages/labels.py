"""A label stage: new labels for the training rows, what is told about them, and how they agree with the data's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scipy.sparse import csr_matrix

from xmckit import exhibits, store
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.data.saved import save_split
from xmckit.pipeline.output_checks import checked_facts, relabelled, untouched
from xmckit.protocols import LabelPreprocessor
from xmckit.runs.layout import LABELS_FACTS


def relabel(
    folder: Path, preprocessor: LabelPreprocessor, use: str, before: Split, own: csr_matrix, *, context: Context
) -> Split:
    """Write the new labels, labels.json and what the preprocessor saves into `folder`; return the relabelled rows.

    `own` are the labels that the data itself has for the rows, which experiments compare with.
    """
    with untouched(f"label preprocessor {use}", before):
        applied = preprocessor.apply(before, context=context)
    after = relabelled(before, applied, use)
    save_split(replace(after, X=None, texts=None, names=None), folder)
    if hasattr(preprocessor, "save"):
        (folder / "preprocessor").mkdir()
        preprocessor.save(folder / "preprocessor")
    facts = checked_facts(preprocessor.facts(), f"label preprocessor {use}") if hasattr(preprocessor, "facts") else {}
    shown = exhibits.stored(preprocessor, use)
    store.write_json(folder / LABELS_FACTS, {"facts": facts, "agreement": agreement(after.Y, own), "exhibits": shown})
    return after


def agreement(Y: csr_matrix, own: csr_matrix) -> dict[str, float] | None:
    """How the pairs of `Y` agree with those of `own`; None when one of them has no pairs."""
    if not Y.nnz or not own.nnz:
        return None
    common = int((Y != 0).multiply(own != 0).nnz)
    return {"labels": int(Y.nnz), "own": int(own.nnz), "precision": common / Y.nnz, "recall": common / own.nnz}
