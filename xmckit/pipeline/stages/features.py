"""A features stage: fit a featurizer, and turn training and test rows into the matrix that later stages see."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Dataset, Matrix, Split
from xmckit.errors import DataError
from xmckit.pipeline.output_checks import check_unchanged, checked_features
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage, Stage
from xmckit.recipe import Section
from xmckit.runs import layout


@dataclass(frozen=True)
class FittedFeatures:
    """A fitted featurizer, and the features that it gives training and test rows."""

    featurizer: Any
    train: Matrix
    test: Matrix


class FeaturesStage(ComponentStage[FittedFeatures]):
    def __init__(self, setup: Setup, section: Section, data: Stage[Dataset]):
        self._alone = len(setup.recipe.features) == 1
        name = layout.FEATURES if self._alone else layout.FEATURES_PREFIX + section.name
        super().__init__(setup, name, section)
        self._data = data

    def identity(self) -> dict[str, Any]:
        return self.setup.identity(self.section, [self._data.key], seed=self.setup.data_seed)

    def produce(self, folder: Path, context: Context) -> FittedFeatures:
        try:
            return self._produce(folder, context.using(seed=self.setup.data_seed))
        except DataError as error:
            if self._alone:
                raise
            raise DataError(f"features {self.section.name}: {error}") from error

    def _produce(self, folder: Path, context: Context) -> FittedFeatures:
        featurizer, data = self.setup.build(self.section), self._data.value
        with check_unchanged(self.who, data.train):
            featurizer.fit(data.train, context=context)

        def features_of(split: Split) -> Matrix:
            with check_unchanged(self.who, split):
                X = featurizer.transform(split, context=context)
            return checked_features(X, split, self.use)

        fitted = FittedFeatures(featurizer, features_of(data.train), features_of(data.test))
        self.save(featurizer, folder / layout.FEATURIZER)
        as_in_data = fitted.train is data.train.X and fitted.test is data.test.X
        record = {"use": self.use, "as_in_data": as_in_data, "columns": int(fitted.train.shape[1])}
        store.write_json(folder / layout.FEATURES_RECORD, record)
        if not as_in_data:
            store.write_matrix(folder / layout.TRAIN_FEATURES, fitted.train)
            store.write_matrix(folder / layout.TEST_FEATURES, fitted.test)
        return fitted

    def restore(self, folder: Path) -> FittedFeatures:
        featurizer = self.setup.context.load(self.section.kind, self.use, folder / layout.FEATURIZER)
        if store.read_json(folder / layout.FEATURES_RECORD)["as_in_data"]:
            return FittedFeatures(featurizer, self._data.value.train.matrix, self._data.value.test.matrix)
        files = (layout.TRAIN_FEATURES, layout.TEST_FEATURES)
        return FittedFeatures(featurizer, *(store.read_matrix(folder / file) for file in files))
