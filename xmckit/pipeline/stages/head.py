"""A head stage: train a head, and with `refit = true` train it once more on all rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xmckit.context import Context
from xmckit.pipeline.output_checks import check_unchanged
from xmckit.pipeline.rows import FitInputs
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage
from xmckit.runs import layout


class HeadStage(ComponentStage[Any]):
    """The recipe's `position`-th head, fitted on the first of `fits` and refitted on the second if there is one."""

    def __init__(self, setup: Setup, position: int, fits: Sequence[FitInputs]):
        section = setup.recipe.heads[position]
        super().__init__(setup, layout.HEAD_PREFIX + section.name, section)
        self._position = position
        names = [index.name for index in setup.recipe.index]
        used = [names.index(name) for name in section.extra.get("index", names)]
        seen = setup.recipe.seen_by(section)
        self._fits = [(fit.rows[seen], [fit.indexes[place] for place in used]) for fit in fits]

    def identity(self) -> dict[str, Any]:
        rows = self._fits[0][0]
        indexes = [index.key for _, indexes in self._fits for index in indexes]
        return self.setup.identity(
            self.section,
            [*rows.keys, *indexes],
            seed=self.setup.context.seed_for("head", self._position),
            validation=[*rows.share, *(["refit"] if len(self._fits) > 1 else [])],
        )

    def produce(self, folder: Path, context: Context) -> Any:
        head = self.setup.build(self.section)
        for again, (rows, indexes) in enumerate(self._fits):
            with check_unchanged(self.who, rows.train):
                (head.refit if again else head.fit)(
                    rows.train,
                    indexes=[index.index_for_head() for index in indexes],
                    context=rows.fit_context(context, "head", self._position),
                )
        self.save(head, folder / layout.HEAD)
        return head

    def restore(self, folder: Path) -> Any:
        return self.setup.context.load(self.section.kind, self.use, folder / layout.HEAD)
