"""An index stage: build a label index on the training rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xmckit import exhibits, store
from xmckit.components.indexes import named_index
from xmckit.context import Context
from xmckit.pipeline.output_checks import check_saved, untouched
from xmckit.pipeline.rows import FitRows
from xmckit.pipeline.setup import Setup
from xmckit.pipeline.stage import Stage
from xmckit.protocols import ClusteredIndex, SupportsExhibits, SupportsFacts
from xmckit.recipe import Section
from xmckit.runs import layout


class IndexStage(Stage[Any]):
    """The index of the recipe's `position`-th `[[index]]` on `rows`.

    With `refit = true` every index is built twice: on a part of the rows, for early stopping, and on all.
    """

    def __init__(self, setup: Setup, position: int, section: Section, rows: FitRows, *, on_part: bool):
        prefix = layout.PART_INDEX_PREFIX if on_part else layout.INDEX_PREFIX
        super().__init__(setup, prefix + section.name, section)
        self._position, self._section, self._rows = position, section, rows

    def identity(self) -> dict[str, Any]:
        seed = self.setup.context.seed_for("indexer", self._position)
        return self.setup.identity(self._section, self._rows.keys, seed=seed, validation=self._rows.share)

    def produce(self, folder: Path, context: Context) -> Any:
        who = f"indexer {self._section.use}"
        with untouched(who, self._rows.train):
            index = self.setup.build(self._section).build(
                self._rows.train, context=self._rows.fit_context(context, "indexer", self._position)
            )
        named_index(index, self._section.use)
        (folder / layout.INDEX).mkdir()
        index.save(folder / layout.INDEX)
        check_saved(folder / layout.INDEX, who)
        store.write_json(folder / layout.INDEX_RECORD, _facts(index, self._section.use))
        return index

    def restore(self, folder: Path) -> Any:
        use = self._section.use
        return named_index(self.setup.context.load("indexer", use, folder / layout.INDEX), use)

    def index_for_head(self) -> Any:
        """Return the index; one of its own for a head that fills it with its vectors, which two heads cannot share."""
        return self.fresh_value() if getattr(self.value, "query_space", None) == "head" else self.value


def _facts(index: Any, use: str) -> dict[str, Any]:
    """Collect what an index reports about itself, and the sizes of its clusters if it has some."""
    shown = exhibits.stored(index, use)
    if isinstance(index, ClusteredIndex) and not isinstance(index, SupportsExhibits):
        shown = exhibits.stored_all(exhibits.leaf_exhibits(index.clusters, index.label_of), use)
    return {"facts": dict(index.facts()) if isinstance(index, SupportsFacts) else {}, "exhibits": shown}
