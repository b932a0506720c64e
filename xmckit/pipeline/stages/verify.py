"""The verify stage: what each head's output layer can and cannot produce, with proofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xmckit.context import Context
from xmckit.data.model import Dataset, Split
from xmckit.errors import DataError
from xmckit.pipeline.rows import FitRows
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage, Stage, keys_of
from xmckit.pipeline.stages.features import FeaturesStage
from xmckit.pipeline.stages.head import HeadStage
from xmckit.recipe import Section
from xmckit.runs import VerdictSummary, layout, read_verdicts
from xmckit.verification.outputs import RealRows, sample_rows
from xmckit.verification.verify import verify


class VerifyStage(ComponentStage[VerdictSummary]):
    """Verifies the label sets of the train, validation or test rows, as the recipe says.

    `fitted` are the rows that the heads were trained on last, `parts` those less the validation share.
    """

    def __init__(
        self,
        setup: Setup,
        section: Section,
        data: Stage[Dataset],
        features: Mapping[str, FeaturesStage],
        heads: Sequence[HeadStage],
        fitted: Mapping[str, FitRows],
        parts: Mapping[str, FitRows],
    ):
        super().__init__(setup, layout.VERIFY, section)
        self._data, self._features, self._heads = data, features, heads
        self._fitted, self._parts = fitted, parts
        self._uses = {head.name: head.use for head in setup.recipe.heads}

    def identity(self) -> dict[str, Any]:
        return self.setup.identity(
            self.section,
            keys_of(self._data, *self._features.values(), *self._heads),
            extra=dict(self.section.extra),
            seed=self.setup.recipe.seed,
            names=list(self._uses),
        )

    def produce(self, folder: Path, context: Context) -> VerdictSummary:
        recipe = self.setup.recipe
        rows = {head.name: self._rows(recipe.seen_by(head)) for head in recipe.heads}
        first = rows[recipe.heads[0].name]
        if first is None:
            raise DataError("verify.assignments is 'validation', but there are too few rows to keep a validation share")
        return verify(
            folder,
            self.setup.build(self.section),
            list(zip(self._uses, [head.value for head in self._heads], strict=True)),
            first,
            X={name: split.matrix for name, split in rows.items() if split is not None},
            real=self._real_rows(),
            most=self.section.extra["most"],
            uses=self._uses,
            context=context,
        )

    def _rows(self, features: str) -> Split | None:
        """Return the rows whose label sets are verified, with these features."""
        assignments = self.section.extra["assignments"]
        if assignments == "train":
            return self._fitted[features].train
        if assignments == "validation":
            return self._parts[features].validation
        return replace(self._data.value.test, X=self._features[features].value.test)

    def _real_rows(self) -> RealRows:
        """Return test rows, or training rows if there are none, on which outputs are compared with decisions."""
        recipe, test = self.setup.recipe, self._data.value.test.rows
        numbers = sample_rows(test or self._fitted[recipe.seen_by(recipe.heads[0])].train.rows)
        X = {}
        for head in recipe.heads:
            seen = recipe.seen_by(head)
            X[head.name] = (self._features[seen].value.test if test else self._fitted[seen].train.matrix)[numbers]
        return RealRows("test" if test else "train", numbers, X)

    def restore(self, folder: Path) -> VerdictSummary:
        return read_verdicts(folder)
