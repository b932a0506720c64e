"""Evaluate the model of a finished run on other labelled rows.

Labels are matched by their names. The model cannot predict labels that it does not know: they count as misses, and the
result says how many there are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError
from scipy.sparse import csr_matrix, hstack, issparse, vstack

from xmckit import store
from xmckit.analysis.combine import members_of
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.data.saved import FeatureRows
from xmckit.errors import DataError
from xmckit.records import Evaluation, TopK
from xmckit.runs import Run, find_run, is_ensemble, layout
from xmckit.runs.extensions import is_extension, read_extension
from xmckit.sparse.parse import Grammar

if TYPE_CHECKING:
    from xmckit.model import CombinedModel, Model

BLOCK = 4096


def training_run(run: str | Path, root: Path) -> Run:
    """Return the run whose training rows a model has: that run, the run it extends, or the first that it combines."""
    folder = Path(run)
    if is_ensemble(folder):
        return members_of(folder)[1][0][0]
    if is_extension(folder):
        return read_extension(folder).run
    return find_run(run, root)


def as_trained(X: Any, features: FeatureRows | None) -> Any:
    """Return the rows in the format of the model's training rows, dense or sparse."""
    return X.toarray() if features is not None and features.dense and issparse(X) else X


# -- labelled rows -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledRows:
    """Rows with their true labels; `label_names` is None if labels are numbers."""

    name: str
    split: Split
    label_names: Sequence[str] | None


def read_file(path: Path, features: FeatureRows | None, *, context: Context) -> LabelledRows | None:
    """Read all rows of one file of JSON lines, XMC text or svmlight text; None for a file of another kind."""
    from xmckit.data import reading
    from xmckit.data.jsonl import JsonLines
    from xmckit.data.xmc_text import read_data_rows

    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in (".jsonl", ".ndjson"):
        return LabelledRows(path.name, *JsonLines().read_file(path, context=context))
    if suffix in (".svm", ".svmlight"):
        grammar = Grammar(first_feature=1, annotated=True)
        if features:
            grammar = grammar._replace(features=features.width)
        expected = f"the model takes {features.width} features, numbered from 1" if features else ""
        parsed = reading.read_rows(path, reading.read_bytes(path), 0, grammar, context=context, expected=expected)
        X = parsed.features(features.width if features else parsed.features_seen)
        Y = parsed.labels(max(parsed.labels_seen, 1))
        return LabelledRows(path.name, Split(X=as_trained(X, features), Y=Y), None)
    if suffix == ".txt":
        X, Y = read_data_rows(path, context)
        return LabelledRows(path.name, Split(X=as_trained(X, features), Y=Y), None)
    return None


def concatenate(one: Split, other: Split) -> Split:
    """Concatenate the rows of both; drop what only one of them has."""

    def stack(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        if isinstance(a, Mapping):
            return {name: stack(a[name], b[name]) for name in a}
        return vstack([a, b], format="csr") if hasattr(a, "indptr") else np.concatenate([a, b])

    def append(a: Sequence[str] | None, b: Sequence[str] | None) -> list[str] | None:
        return None if a is None or b is None else [*a, *b]

    return Split(
        X=stack(one.X, other.X),
        Y=csr_matrix(vstack([one.Y, other.Y], format="csr")),
        texts=append(one.texts, other.texts),
        filter=stack(one.filter, other.filter),
        names=append(one.names, other.names),
    )


# -- labels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchedLabels:
    """True labels in the model's columns, with further columns for labels that the model does not know."""

    truth: csr_matrix
    filtered: csr_matrix | None
    unknown: Sequence[str]
    meant: Mapping[str, str]  # unknown labels that are labels of the model in other writing, and these

    def unknown_facts(self, known: int) -> dict[str, Any]:
        """Count the labels, and the pairs of row and label, that the model does not know."""
        strange = self.truth[:, known:]
        per_row, all_per_row = np.diff(strange.indptr), np.diff(self.truth.indptr)
        pairs, of = int(strange.nnz), int(self.truth.nnz)
        return {
            "labels": len(self.unknown),
            "pairs": pairs,
            "of_pairs": of,
            "share": pairs / of if of else 0.0,
            "rows": int(np.count_nonzero(per_row)),
            "rows_with_no_other": int(np.count_nonzero((per_row > 0) & (per_row == all_per_row))),
            "examples": list(self.unknown[:5]),
            "written_otherwise": {
                "labels": len(self.meant),
                "examples": [{"label": name, "known_as": own} for name, own in [*self.meant.items()][:5]],
            },
        }


def match(labelled: LabelledRows, known: Sequence[str]) -> MatchedLabels:
    """Number the rows' labels as the model does; DataError if the model knows none of them."""
    Y = labelled.split.Y
    columns = _columns(labelled, known)
    seen = np.unique(Y.indices)
    strange = seen[columns[seen] < 0]
    unknown = [_name(labelled, int(label)) for label in strange]
    meant = other_spellings(unknown, known)
    if len(strange) and len(strange) == len(seen):
        advice = "; did you mean '{1}' by '{0}'?".format(*next(iter(meant.items()))) if meant else ""
        raise DataError(
            f"{labelled.name}: the model knows none of these labels: they are {_first(unknown)}, the model's are "
            f"{_first(known)}{advice}"
        )
    columns = columns.copy()
    columns[strange] = len(known) + np.arange(len(strange))
    total = len(known) + len(strange)
    filtered = labelled.split.filter
    return MatchedLabels(
        truth=_renumber_columns(Y, columns, total),
        filtered=None if filtered is None else _renumber_columns(filtered, columns, total),
        unknown=unknown,
        meant=meant,
    )


def other_spellings(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Map names to the known name from which they differ only in case, spaces, marks or encoding of letters."""
    if not names:
        return {}
    own = {_letters(name): name for name in known}
    matches = {name: own.get(letters) for name in names if (letters := _letters(name))}
    return {name: meant for name, meant in matches.items() if meant is not None}


def _letters(name: str) -> str:
    """Return the letters and digits of a name, by which spellings of the same name are matched."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", name).casefold()))


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (" …" if len(names) > 3 else "")


def _name(labelled: LabelledRows, label: int) -> str:
    return labelled.label_names[label] if labelled.label_names is not None else str(label)


def _columns(labelled: LabelledRows, known: Sequence[str]) -> np.ndarray:
    """Return the model's number of each label of the data, −1 if it has none."""
    count = int(labelled.split.Y.shape[1])
    numbered = all(name == str(number) for number, name in enumerate(known))
    if labelled.label_names is None and not numbered and count != len(known):
        raise DataError(
            f"{labelled.name}: these labels are numbers up to {count - 1:,}, and the model has {len(known):,} labels "
            "with names: put the names into labels.txt beside the data"
        )
    if labelled.label_names is None or list(labelled.label_names) == list(known):
        numbers = np.arange(count)
        return np.where(numbers < len(known), numbers, -1)
    own = {name: number for number, name in enumerate(known)}
    if len(own) < len(known) or len(set(labelled.label_names)) < count:
        raise DataError(f"{labelled.name}: two labels have the same name, so labels cannot be matched by name")
    return np.array([own.get(name, -1) for name in labelled.label_names], dtype=np.int64)


def _renumber_columns(matrix: csr_matrix, columns: np.ndarray, total: int) -> csr_matrix:
    """Move the columns of a matrix; drop columns without a new number."""
    places = columns[matrix.indices]
    kept = places >= 0
    ends = np.append(0, np.cumsum(kept))[matrix.indptr]
    result = csr_matrix((matrix.data[kept], places[kept], ends), shape=(matrix.shape[0], total))
    result.sort_indices()
    return result


# -- scores --------------------------------------------------------------------------------------------------------


def evaluate(
    model: Model | CombinedModel, run: Run, labelled: LabelledRows, *, name: str, context: Context
) -> dict[str, Any]:
    """Score the model, called `name` in the results, on these rows, and count the labels that it does not know.

    Depths, metrics and propensities are those of the run: propensities are about the labels' training rows.
    """
    if not labelled.split.Y.nnz:
        raise DataError(f"{labelled.name}: no row has a label, so there is nothing to score by")
    matched = match(labelled, model.label_names)
    scored = run.metrics()
    total, known = int(matched.truth.shape[1]), len(model.label_names)
    train = store.read_csr(run.train_folder / "Y.npz")
    top = max(run.manifest.top or 0, *scored["k"])
    topk, sets = _predict(model, labelled.split, top, context)
    evaluation = Evaluation(
        topk=topk,
        truth=matched.truth,
        train_counts=np.bincount(train.indices, minlength=total).astype(np.int64),
        train_rows=int(train.shape[0]),
        propensity=(scored["propensity"]["A"], scored["propensity"]["B"]),
        sets=csr_matrix(hstack([sets, csr_matrix((sets.shape[0], total - known), dtype=sets.dtype)], format="csr")),
        filtered=matched.filtered,
        workers=context.workers,
    )
    values: dict[str, float] = {}
    for measure in _measures(run, context):
        values.update({str(name): float(value) for name, value in measure.compute(evaluation).items()})
    return {
        "dataset": labelled.name,
        "rows": labelled.split.rows,
        "labels": known,
        "k": scored["k"],
        "propensity": scored["propensity"],
        "unknown": matched.unknown_facts(known),
        "results": [{"name": name, "role": "head", "metrics": values}],
    }


def _measures(run: Run, context: Context) -> list[Any]:
    """Build the metrics that the run was scored with."""
    resolve = run.explain_missing(context).resolve
    components = run.stage(layout.SCORE).identity.get("components", [])
    try:
        measures = [resolve("metric", part["use"])(**part["params"]) for part in components if part["kind"] == "metric"]
    except (KeyError, ValidationError) as error:
        reason = store.reasons(error) if isinstance(error, ValidationError) else f"without {error}"
        raise store.damaged(run.path / layout.MANIFEST, f"the metrics of the score stage: {reason}") from None
    if not measures:
        raise store.damaged(run.path / layout.MANIFEST, "the score stage has no metrics")
    return measures


def _predict(model: Model | CombinedModel, split: Split, top: int, context: Context) -> tuple[TopK, csr_matrix]:
    rankings, sets = [], []
    with context.progress("predicting", total=split.rows) as bar:
        for start in range(0, split.rows, BLOCK):
            block: Any = split.take(np.arange(start, min(start + BLOCK, split.rows)))
            rankings.append(model.topk(block, top))
            sets.append(model.sets(block))
            bar.advance(block.rows)
    return TopK.of_blocks(rankings), csr_matrix(vstack(sets, format="csr"))
