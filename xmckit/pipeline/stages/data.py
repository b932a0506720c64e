"""The data stage: read the data set, check it, describe it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from xmckit import store
from xmckit.components.metrics import propensity_constants
from xmckit.context import Context
from xmckit.data.describe import describe
from xmckit.data.model import Dataset
from xmckit.data.saved import load_dataset, save_dataset
from xmckit.errors import DataError
from xmckit.pipeline.blame import explain_component_errors
from xmckit.pipeline.output_checks import checked_dataset, checked_fingerprint
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage
from xmckit.runs import layout


class DataStage(ComponentStage[Dataset]):
    def __init__(self, setup: Setup):
        super().__init__(setup, layout.DATA, setup.recipe.data)
        self._source = self.setup.build(self.section)
        self._resolved: list[tuple[str, str]] = []

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the data depends on: input -> checksum."""
        # What the source resolves while it looks at its input, such as a format's reader, is behind its rows too.
        context = self.setup.context.using(seed=self.setup.data_seed, resolve=self._resolve)
        with explain_component_errors(self.setup.registry), self._attribute_errors():
            return checked_fingerprint(self._source.fingerprint(context=context), self.use)

    def _resolve(self, kind: str, name: str) -> Any:
        target = self.setup.registry.resolve(kind, name)
        self._resolved.append((kind, name))
        return target

    def identity(self) -> dict[str, Any]:
        fingerprint = self.fingerprint  # fills `_resolved`
        seed = self.setup.data_seed
        return self.setup.identity(self.section, [], self._resolved, fingerprint=fingerprint, seed=seed)

    def produce(self, folder: Path, context: Context) -> Dataset:
        content = self._source.read(context=context.using(seed=self.setup.data_seed))
        dataset = checked_dataset(content, self.use)
        propensity_constants(dataset.propensity)
        if dataset.train.rows == 0 or dataset.labels == 0:
            raise DataError(f"{dataset.name} has {dataset.train.rows} training rows and {dataset.labels} labels")
        save_dataset(dataset, folder)
        store.write_json(folder / layout.DESCRIPTION, describe(dataset))
        return dataset

    def restore(self, folder: Path) -> Dataset:
        return load_dataset(folder)
