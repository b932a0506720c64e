"""Rows as the stages of a run see them: with each of the recipe's features, and read at first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data.model import Dataset, Matrix, Split, carve_validation

if TYPE_CHECKING:
    from xmckit.pipeline.stage import Stage
    from xmckit.pipeline.stages.features import FeaturesStage
    from xmckit.pipeline.stages.index import IndexStage
    from xmckit.pipeline.stages.labels import LabelsStage


class TrainingRows:
    """All training rows with one of the recipe's features, after the last label stage."""

    def __init__(self, data: Stage[Dataset], features: FeaturesStage, relabelled: LabelsStage | None, context: Context):
        self.data, self.features, self.relabelled, self._context = data, features, relabelled, context

    @property
    def keys(self) -> list[str]:
        """The keys of the stages that the rows come from."""
        if self.relabelled is None:
            return [self.features.key]
        return [self.relabelled.key, *([] if self._already_relabelled else [self.features.key])]

    @property
    def _already_relabelled(self) -> bool:
        """Whether the label stages saw these features; the labels they give hold for all features."""
        return self.relabelled is not None and self.relabelled.features is self.features

    @cached_property
    def split(self) -> Split:
        if self.relabelled is not None and self._already_relabelled:
            return self.relabelled.value
        source = self.data.value.train if self.relabelled is None else self.relabelled.value
        return replace(source, X=self.features.value.train)

    @cached_property
    def label_rows(self) -> Matrix | None:
        """The data's label features if they are as wide as the rows, else the labels' names through the featurizer."""
        dataset, fitted = self.data.value, self.features.value
        own = dataset.label_features
        if own is not None and own.shape[1] == fitted.train.shape[1]:
            return own
        if dataset.label_names is None or dataset.train.texts is None:
            return None
        texts = Split(X=None, Y=csr_matrix((dataset.labels, 0)), texts=list(dataset.label_names))
        rows: Matrix = fitted.featurizer.transform(texts, context=self._context)
        return rows


class FitRows:
    """The rows that indexes and heads are fitted on: all, or all but a validation share."""

    def __init__(self, rows: TrainingRows, validation_share: float | None, context: Context):
        self.rows, self._share, self._context = rows, validation_share, context

    @property
    def keys(self) -> list[str]:
        return self.rows.keys

    @property
    def share(self) -> list[Any]:
        """What decides which rows are kept for validation, for a stage's identity."""
        return [] if self._share is None else [self._share, self._context.seed]

    @property
    def train(self) -> Split:
        return self._parts[0]

    @property
    def validation(self) -> Split | None:
        return self._parts[1]

    @cached_property
    def _parts(self) -> tuple[Split, Split | None]:
        if self._share is None:
            return self.rows.split, None
        # The same rows are taken with each of the features.
        return carve_validation(self.rows.split, self._share, self._context.rng("validation"))

    def fit_context(self, context: Context, kind: str, position: int) -> Context:
        """Return the context for the `position`-th component of a kind that is fitted on these rows."""
        return context.using(
            seed=context.seed_for(kind, position),
            validation=self.validation,
            label_names=self.rows.data.value.label_names,
            label_rows=lambda: self.rows.label_rows,
        )


@dataclass(frozen=True)
class FitInputs:
    """Rows with each of the features, and the indexes that were built on them."""

    rows: Mapping[str, FitRows]
    indexes: Sequence[IndexStage]
