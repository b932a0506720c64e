"""An index stage: build a label index on the training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xmckit import exhibits, store
from xmckit.components.indexes import named_index
from xmckit.context import Context
from xmckit.pipeline.output_checks import check_unchanged
from xmckit.pipeline.rows import FitRows
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import ComponentStage
from xmckit.protocols import ClusteredIndex, SupportsExhibits, SupportsFacts, offers
from xmckit.recipe import Section
from xmckit.runs import layout


class IndexStage(ComponentStage[Any]):
    """The index of the recipe's `position`-th `[[index]]` on `rows`.

    With `refit = true` every index is built twice: on a part of the rows, for early stopping, and on all.
    """

    def __init__(self, setup: Setup, position: int, section: Section, rows: FitRows, *, on_part: bool):
        prefix = layout.PART_INDEX_PREFIX if on_part else layout.INDEX_PREFIX
        super().__init__(setup, prefix + section.name, section)
        self._position, self._rows = position, rows

    def identity(self) -> dict[str, Any]:
        seed = self.setup.context.seed_for("indexer", self._position)
        return self.setup.identity(self.section, self._rows.keys, seed=seed, validation=self._rows.share)

    def produce(self, folder: Path, context: Context) -> Any:
        fit_context = self._rows.fit_context(context, "indexer", self._position)
        with check_unchanged(self.who, self._rows.train):
            index = self.setup.build(self.section).build(self._rows.train, context=fit_context)
        named_index(index, self.use)
        self.save(index, folder / layout.INDEX)
        store.write_json(folder / layout.INDEX_RECORD, _facts(index, self.use))
        return index

    def restore(self, folder: Path) -> Any:
        return named_index(self.setup.context.load(self.section.kind, self.use, folder / layout.INDEX), self.use)

    def index_for_head(self) -> Any:
        """Return the index; one of its own for a head that fills it with its vectors, which two heads cannot share."""
        return self.fresh_value() if getattr(self.value, "query_space", None) == "head" else self.value


def _facts(index: Any, use: str) -> dict[str, Any]:
    """Collect what an index reports about itself, and the sizes of its clusters if it has some."""
    stored = exhibits.stored(index, use)
    if offers(index, ClusteredIndex) and not offers(index, SupportsExhibits):
        stored = exhibits.stored_all(exhibits.leaf_exhibits(index.clusters, index.label_of), use)
    return {"facts": dict(index.facts()) if offers(index, SupportsFacts) else {}, "exhibits": stored}
