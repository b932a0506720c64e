"""The score stage: predictions of the heads, their ensemble and the baseline on the test rows, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from xmckit import exhibits, store
from xmckit.components.ensembles import combine_rankings, combine_sets
from xmckit.components.metrics import propensity_constants
from xmckit.context import Context
from xmckit.data.model import Dataset, Matrix, Split
from xmckit.errors import DataError, PluginError, blaming
from xmckit.pipeline.diagnostics import examples, insights
from xmckit.pipeline.output_checks import checked_facts, checked_ranking, checked_sets, untouched
from xmckit.protocols import Head
from xmckit.recipe import ENSEMBLE, Recipe, Section
from xmckit.records import Evaluation, TopK

BLOCK = 4096  # rows predicted between two steps of the progress bar


def score(
    folder: Path,
    recipe: Recipe,
    dataset: Dataset,
    heads: Sequence[Head],
    test_features: Sequence[Matrix],
    baseline_features: tuple[Matrix, Matrix],
    *,
    build: Callable[[Section], Any],
    context: Context,
) -> dict[str, Any]:
    """Write predictions.npz, sets.npz, metrics.json and what the report shows into `folder`; return the metrics.

    `test_features` are those that each head sees; `baseline_features` are of the training and test rows.
    """
    outputs = [
        (section.name, "head", *predict_blocks(head, section, X, recipe.score.top, dataset.labels, context))
        for section, head, X in zip(recipe.heads, heads, test_features, strict=True)
    ]
    probabilistic = [_is_probabilistic(head) for head in heads]
    if len(heads) > 1:
        probabilistic.insert(0, recipe.ensemble == "average" and all(probabilistic))
        topk = combine_rankings([output[2] for output in outputs], recipe.score.top, recipe.ensemble)
        outputs.insert(0, (ENSEMBLE, "ensemble", topk, combine_sets([output[3] for output in outputs])))
    model, model_sets = outputs[0][2:]
    if recipe.score.baseline is not None:
        section = recipe.score.baseline
        baseline = build(section)
        train = Split(X=baseline_features[0], Y=dataset.train.Y)
        baseline.fit(train, context=context.using(seed=context.seed_for("baseline")))
        answers = predict_blocks(baseline, section, baseline_features[1], recipe.score.top, dataset.labels, context)
        outputs.append((section.use, "baseline", *answers))
        probabilistic.append(_is_probabilistic(baseline))

    asked = recipe.score.propensity if recipe.score.propensity is not None else dataset.propensity
    constants = propensity_constants("other" if asked is None else asked)
    train_counts = np.bincount(dataset.train.Y.indices, minlength=dataset.labels).astype(np.int64)
    measures = [build(section) for section in recipe.score.metrics]
    results = []
    for name, role, topk, sets in outputs:
        evaluation = Evaluation(
            topk=topk,
            truth=dataset.test.Y,
            train_counts=train_counts,
            train_rows=dataset.train.rows,
            propensity=constants,
            sets=sets,
            filtered=dataset.test.filter,
            workers=context.workers,
        )
        values: dict[str, float] = {}
        for section, measure in zip(recipe.score.metrics, measures, strict=True):
            with blaming(section.kind, section.use):
                values.update(_measured(measure, evaluation, name))
        results.append({"name": name, "role": role, "metrics": values})
    metrics = {
        "dataset": dataset.name,
        "rows": dataset.test.rows,
        "labels": dataset.labels,
        "k": list(recipe.score.k),
        "propensity": {"A": constants[0], "B": constants[1], "from": "default" if asked is None else str(asked)},
        **({"ensemble": recipe.ensemble} if len(heads) > 1 else {}),
        "results": results,
    }
    store.write_arrays(folder / "predictions.npz", {"indices": model.indices, "scores": model.scores})
    store.write_csr(folder / "sets.npz", model_sets)
    store.write_json(folder / "metrics.json", metrics)
    store.write_json(folder / "facts.json", _facts(recipe.heads, heads, dataset.test.Y))
    rankings = [(name, role, topk) for name, role, topk, _ in outputs]
    deepest = max(recipe.score.k)
    numbers = insights(rankings, dataset, train_counts, constants, deepest, probabilistic=probabilistic)
    store.write_json(folder / "insights.json", numbers)
    store.write_json(folder / "examples.json", examples(model, dataset, deepest, context))
    return metrics


def _is_probabilistic(head: Head) -> bool:
    return bool(getattr(head, "probabilistic", True))


def _facts(sections: Sequence[Section], heads: Sequence[Head], truth: csr_matrix) -> list[dict[str, Any]]:
    """What heads tell about themselves, and how their training went, where they do."""
    found = []
    for section, head in zip(sections, heads, strict=True):
        with blaming(section.kind, section.use):
            found.append(
                {
                    "name": section.name,
                    "facts": checked_facts(head.facts(truth), f"head {section.name}") if hasattr(head, "facts") else {},
                    "training": [epoch._asdict() for epoch in getattr(head, "history", ())],
                    "exhibits": exhibits.stored(head, section.name),
                }
            )
    return found


def _measured(measure: Any, evaluation: Evaluation, of: str) -> dict[str, float]:
    """What a metric says, as plain finite numbers; an error names whose predictions it is about."""
    what = type(measure).__name__
    try:
        with untouched(f"metric {what}", evaluation):
            values = measure.compute(evaluation)
    except DataError as error:
        raise DataError(f"scoring {of}: {error}") from None
    if not isinstance(values, Mapping):
        raise PluginError(f"metric {what} gave a {type(values).__name__}, expected numbers by name")
    for name, value in values.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise PluginError(f"metric {what} gave {value!r} as {name} of {of}, expected a finite number")
    return {str(name): float(value) for name, value in values.items()}


def predict_blocks(
    head: Head, section: Section, X: Matrix, k: int, labels: int, context: Context
) -> tuple[TopK, csr_matrix]:
    """The ranking and the label sets of every row, block by block under a progress bar."""
    rankings, sets = [], []
    who = f"head {section.name}"
    rows = int(X.shape[0])
    progress = context.progress(f"predicting with {section.name}", total=rows)
    with progress as bar, blaming(section.kind, section.use):
        for start in range(0, max(rows, 1), BLOCK):
            block = X[start : start + BLOCK]
            size = int(block.shape[0])
            with untouched(who, {"rows": block}):
                ranking, found = _answers(head, block, k)
            rankings.append(checked_ranking(ranking, size, k, section.name))
            sets.append(checked_sets(found, size, labels, section.name))
            bar.advance(size)
    return TopK.of_blocks(rankings), csr_matrix(vstack(sets, format="csr"))


def _answers(head: Head, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
    if hasattr(head, "rank_and_label"):
        ranking, labels = head.rank_and_label(X, k)
        return ranking, labels
    return head.predict(X, k), head.labels(X)
