"""The score stage: predictions of the heads, their ensemble and the baseline on the test rows, and their metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from xmckit.errors import DataError, PluginError, attribute_errors_to
from xmckit.pipeline.diagnostics import Output, diagnose, examples
from xmckit.pipeline.output_checks import check_unchanged, checked_facts, checked_ranking, checked_sets
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import Stage, keys_of
from xmckit.pipeline.stages.features import FeaturesStage
from xmckit.pipeline.stages.head import HeadStage
from xmckit.protocols import Head, HeadWithFacts, HeadWithHistory, OnePassHead, ProbabilisticHead, offers
from xmckit.recipe import ENSEMBLE, Section
from xmckit.records import Evaluation, TopK
from xmckit.runs import Metrics, layout, read_metrics
from xmckit.runs.records import EpochRecord, HeadFacts, SystemMetrics

BLOCK = 4096  # rows predicted between two steps of the progress bar


class ScoreStage(Stage[Metrics]):
    """Scores the heads, their ensemble and the baseline."""

    def __init__(
        self,
        setup: Setup,
        data: Stage[Dataset],
        features: Mapping[str, FeaturesStage],
        heads: Sequence[HeadStage],
    ):
        super().__init__(setup, layout.SCORE)
        self._data, self._features, self._heads = data, features, heads
        self._recipe = setup.recipe

    def identity(self) -> dict[str, Any]:
        recipe = self._recipe
        sections = [*recipe.score.metrics, *([recipe.score.baseline] if recipe.score.baseline else [])]
        return {
            "kind": "score",
            "inputs": keys_of(self._data, *self._features.values(), *self._heads),
            "names": [section.name for section in recipe.heads],
            "ensemble": recipe.ensemble if len(self._heads) > 1 else None,
            "k": list(recipe.score.k),
            "top": recipe.score.top,
            "propensity": recipe.score.propensity,
            "components": [self.setup.identity(section, []) for section in sections],
        }

    def produce(self, folder: Path, context: Context) -> Metrics:
        dataset, deepest = self._data.value, max(self._recipe.score.k)
        heads = [stage.value for stage in self._heads]
        outputs = self._outputs(heads, context)
        chosen = self._recipe.score.propensity
        propensity = dataset.propensity if chosen is None else chosen
        constants = propensity_constants("other" if propensity is None else propensity)
        train_counts = np.bincount(dataset.train.Y.indices, minlength=dataset.labels).astype(np.int64)
        metrics: Metrics = {
            "dataset": dataset.name,
            "rows": dataset.test.rows,
            "labels": dataset.labels,
            "k": list(self._recipe.score.k),
            "propensity": {
                "A": constants[0],
                "B": constants[1],
                "from": "default" if propensity is None else str(propensity),
            },
            **({"ensemble": self._recipe.ensemble} if len(heads) > 1 else {}),  # type: ignore[typeddict-item]
            "results": self._results(outputs, train_counts, constants, context),
        }
        model = outputs[0]
        store.write_arrays(
            folder / layout.PREDICTIONS, {"indices": model.ranking.indices, "scores": model.ranking.scores}
        )
        store.write_csr(folder / layout.SETS, model.sets)
        store.write_json(folder / layout.METRICS, metrics)
        store.write_json(folder / layout.HEAD_FACTS, _facts(self._recipe.heads, heads, dataset.test.Y))
        numbers = diagnose(outputs, dataset, train_counts, constants, deepest)
        store.write_json(folder / layout.DIAGNOSTICS, numbers)
        store.write_json(folder / layout.EXAMPLES, examples(model.ranking, dataset, deepest, context))
        return metrics

    def restore(self, folder: Path) -> Metrics:
        return read_metrics(folder)

    def _outputs(self, heads: Sequence[Head], context: Context) -> list[Output]:
        """Predict the test rows with the model first: the ensemble if there are several heads; the baseline is last."""
        recipe, labels, top = self._recipe, self._data.value.labels, self._recipe.score.top
        outputs = []
        for section, head in zip(recipe.heads, heads, strict=True):
            X = self._features[recipe.seen_by(section)].value.test
            predicted = predict_blocks(head, section, X, top, labels, context)
            outputs.append(Output(section.name, "head", *predicted, _is_probabilistic(head)))
        if len(outputs) > 1:
            ranking = combine_rankings([output.ranking for output in outputs], top, recipe.ensemble)
            sets = combine_sets([output.sets for output in outputs])
            probabilistic = recipe.ensemble == "average" and all(output.probabilistic for output in outputs)
            outputs.insert(0, Output(ENSEMBLE, "ensemble", ranking, sets, probabilistic))
        if recipe.score.baseline is not None:
            outputs.append(self._baseline(recipe.score.baseline, context))
        return outputs

    def _baseline(self, section: Section, context: Context) -> Output:
        features, data = self._features[self._recipe.features[0].name].value, self._data.value
        baseline = self.setup.build(section)
        train = Split(X=features.train, Y=data.train.Y)
        baseline.fit(train, context=context.using(seed=context.seed_for("baseline")))
        predicted = predict_blocks(baseline, section, features.test, self._recipe.score.top, data.labels, context)
        return Output(section.use, "baseline", *predicted, _is_probabilistic(baseline))

    def _results(
        self,
        outputs: Sequence[Output],
        train_counts: np.ndarray,
        propensity: tuple[float, float],
        context: Context,
    ) -> list[SystemMetrics]:
        dataset, sections = self._data.value, self._recipe.score.metrics
        measures = [self.setup.build(section) for section in sections]
        results: list[SystemMetrics] = []
        for output in outputs:
            evaluation = Evaluation(
                topk=output.ranking,
                truth=dataset.test.Y,
                train_counts=train_counts,
                train_rows=dataset.train.rows,
                propensity=propensity,
                sets=output.sets,
                filtered=dataset.test.filter,
                workers=context.workers,
            )
            values: dict[str, float] = {}
            for section, measure in zip(sections, measures, strict=True):
                with attribute_errors_to(section.kind, section.use):
                    values.update(_compute(measure, evaluation, output.name))
            results.append({"name": output.name, "role": output.role, "metrics": values})
        return results


def _is_probabilistic(head: Head) -> bool:
    return head.probabilistic if offers(head, ProbabilisticHead) else True


def _epoch_record(epoch: Any) -> EpochRecord:
    return {"number": epoch.number, "loss": epoch.loss, "score": epoch.score, "seconds": epoch.seconds}


def _facts(sections: Sequence[Section], heads: Sequence[Head], truth: csr_matrix) -> list[HeadFacts]:
    """Collect what heads report about themselves, and how their training went."""
    reported: list[HeadFacts] = []
    for section, head in zip(sections, heads, strict=True):
        with attribute_errors_to(section.kind, section.use):
            facts = head.facts(truth) if offers(head, HeadWithFacts) else {}
            epochs = head.history if offers(head, HeadWithHistory) else []
            reported.append(
                {
                    "name": section.name,
                    "facts": checked_facts(facts, f"head {section.name}"),
                    "training": [_epoch_record(epoch) for epoch in epochs],
                    "exhibits": exhibits.stored(head, section.name),
                }
            )
    return reported


def _compute(measure: Any, evaluation: Evaluation, of: str) -> dict[str, float]:
    """Return the values of a metric, checked to be finite; errors name the system that was scored."""
    what = type(measure).__name__
    try:
        with check_unchanged(f"metric {what}", evaluation):
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
    """Predict the ranking and the label set of every row, block by block under a progress bar."""
    rankings, sets = [], []
    who = f"head {section.name}"
    rows = int(X.shape[0])
    progress = context.progress(f"predicting with {section.name}", total=rows)
    with progress as bar, attribute_errors_to(section.kind, section.use):
        for start in range(0, max(rows, 1), BLOCK):
            block = X[start : start + BLOCK]
            size = int(block.shape[0])
            with check_unchanged(who, {"rows": block}):
                if offers(head, OnePassHead):
                    ranking, label_sets = head.rank_and_label(block, k)
                else:
                    ranking, label_sets = head.predict(block, k), head.labels(block)
            rankings.append(checked_ranking(ranking, size, k, section.name))
            sets.append(checked_sets(label_sets, size, labels, section.name))
            bar.advance(size)
    return TopK.of_blocks(rankings), csr_matrix(vstack(sets, format="csr"))
