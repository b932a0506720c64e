"""A label stage: new labels for the training rows, what is reported about them, and how they agree with the data's."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.sparse import csr_matrix

from xmckit import exhibits, store
from xmckit.context import Context
from xmckit.data.model import Dataset, Split
from xmckit.data.saved import load_split, save_split
from xmckit.pipeline.output_checks import check_unchanged, checked_facts, checked_labels
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage, Stage
from xmckit.pipeline.stages.features import FeaturesStage
from xmckit.protocols import SupportsFacts, SupportsSave, offers
from xmckit.runs import layout


class LabelsStage(ComponentStage[Split]):
    """The `position`-th label stage. It sees the first features, and the labels of the label stage before it."""

    def __init__(
        self,
        setup: Setup,
        position: int,
        data: Stage[Dataset],
        features: FeaturesStage,
        before: LabelsStage | None,
    ):
        section = setup.recipe.labels[position]
        super().__init__(setup, layout.LABELS_PREFIX + section.name, section)
        self._data, self.features, self._before = data, features, before
        self._seed = setup.context.seed_for("labels", position)

    @cached_property
    def _rows_before(self) -> Split:
        if self._before is not None:
            return self._before.value
        return replace(self._data.value.train, X=self.features.value.train)

    def identity(self) -> dict[str, Any]:
        source = self._before or self.features
        return self.setup.identity(self.section, [source.key], seed=self._seed)

    def produce(self, folder: Path, context: Context) -> Split:
        preprocessor = self.setup.build(self.section)
        with check_unchanged(self.who, self._rows_before):
            output = preprocessor.apply(self._rows_before, context=context.using(seed=self._seed))
        rows = checked_labels(self._rows_before, output, self.use)
        save_split(replace(rows, X=None, texts=None, names=None), folder)
        if offers(preprocessor, SupportsSave):
            (folder / layout.PREPROCESSOR).mkdir()
            preprocessor.save(folder / layout.PREPROCESSOR)
        facts = preprocessor.facts() if offers(preprocessor, SupportsFacts) else {}
        record = {
            "facts": checked_facts(facts, self.who),
            "agreement": _agreement(rows.Y, self._data.value.train.Y),
            "exhibits": exhibits.stored(preprocessor, self.use),
        }
        store.write_json(folder / layout.LABELS_RECORD, record)
        return rows

    def restore(self, folder: Path) -> Split:
        stored = load_split(folder)
        return replace(self._rows_before, Y=stored.Y, weights=stored.weights, groups=stored.groups)


def _agreement(Y: csr_matrix, own: csr_matrix) -> dict[str, float] | None:
    """Compare the pairs of `Y` with those of `own`, the data's labels; None when one of them has no pairs."""
    if not Y.nnz or not own.nnz:
        return None
    common = int((Y != 0).multiply(own != 0).nnz)
    return {"labels": int(Y.nnz), "own": int(own.nnz), "precision": common / Y.nnz, "recall": common / own.nnz}
