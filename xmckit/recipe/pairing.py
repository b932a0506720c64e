"""Resolve the features that an index or a head sees, and the indexes that a head uses, by section name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from xmckit.errors import nearest
from xmckit.recipe.check import Mistakes
from xmckit.recipe.toml_lines import KeyPath

if TYPE_CHECKING:
    from xmckit.recipe import Section
    from xmckit.registry import Registry

FEATURES, INDEX = "features", "index"

Sections: TypeAlias = "tuple[Section | None, ...]"  # None: a section with a mistake


@dataclass(frozen=True)
class Pairing:
    """Completes sections with the names of the sections that they use."""

    mistakes: Mistakes
    registry: Registry

    def pair(
        self, features: Sections, indexes: Sections, heads: Sections, relabelled: bool
    ) -> tuple[Sections, Sections]:
        """Return the completed indexes and heads. Label stages, if any (`relabelled`), see the first features."""
        indexes, heads = self._with_features(INDEX, indexes, features), self._with_features("head", heads, features)
        self._check_seen(features, (*indexes, *heads), relabelled)
        known = {index.name: index for index in indexes if index is not None}
        complete = len(known) == len(indexes)
        return indexes, tuple(
            self._with_indexes(position, head, known, complete) if head is not None else None
            for position, head in enumerate(heads)
        )

    def _with_features(self, key: str, items: Sections, features: Sections) -> Sections:
        """Return indexes or heads with the name of the features that each sees, if there is a choice."""
        known = [section.name for section in features if section is not None]
        first = features[0].name if features and features[0] is not None else None
        completed: list[Section | None] = []
        for position, item in enumerate(items):
            wanted = None if item is None else item.extra.get(FEATURES, first)
            if item is None or wanted is None:
                completed.append(item)
                continue
            if known and len(known) == len(features) and wanted not in known:
                self.mistakes.add(
                    (key, position, FEATURES),
                    f"no features named '{wanted}'{nearest(wanted, known)} (known: {', '.join(known)})",
                )
            own = {name: value for name, value in item.extra.items() if name != FEATURES}
            completed.append(replace(item, extra={FEATURES: wanted, **own} if len(features) > 1 else own))
        return tuple(completed)

    def _check_seen(self, features: Sections, by: Sections, relabelled: bool) -> None:
        """Report features that nothing sees: most likely a head was meant to name them.

        If something names features that do not exist, that is the mistake instead.
        """
        if len(features) < 2 or None in (*features, *by):
            return
        seen = {section.extra[FEATURES] for section in by if section is not None}
        names = [section.name for section in features if section is not None]
        for position, name in enumerate(names if seen.issubset(names) else ()):
            if name not in seen and (position or not relabelled):
                self.mistakes.add(
                    (FEATURES, position),
                    f'no index or head sees these: write features = "{name}" into one, or leave them out',
                )

    def _with_indexes(self, position: int, head: Section, known: Mapping[str, Section], complete: bool) -> Section:
        """Return the head with the names of its indexes, each of which must offer what the head needs."""
        seen = head.extra.get(FEATURES)
        alike = [name for name, index in known.items() if index.extra.get(FEATURES) == seen]
        wanted = head.extra.get(INDEX, alike)
        path: KeyPath = ("head", position, INDEX)
        for place, name in enumerate(wanted):
            if name in wanted[:place]:
                self.mistakes.add((*path, place), f"'{name}' is listed twice")
            elif name in known and name not in alike:
                its = known[name].extra.get(FEATURES)
                if its is None or seen is None:  # its default is reported as a mistake already
                    continue
                others = f" (those are {', '.join(alike)})" if alike else ""
                self.mistakes.add(
                    (*path, place),
                    f"index '{name}' sees the features '{its}' and this head '{seen}': "
                    f"expected an index that sees the same{others}",
                )
            elif name in known:
                self._check_offers(head, known[name], path)
            elif complete:
                names = ", ".join(known) or "none"
                self.mistakes.add((*path, place), f"no index named '{name}'{nearest(name, known)} (known: {names})")
        return replace(head, extra={**head.extra, INDEX: list(wanted)} if known else head.extra)

    def _check_offers(self, head: Section, index: Section, path: KeyPath) -> None:
        needs: frozenset[str] = getattr(self.registry.resolve("head", head.use), "needs", frozenset())
        provides: frozenset[str] = getattr(self.registry.resolve("indexer", index.use), "provides", frozenset())
        if lacking := sorted(needs - provides):
            self.mistakes.add(
                path,
                f"head '{head.use}' needs an index with {', '.join(lacking)}, "
                f"and '{index.name}' ({index.use}) offers {', '.join(sorted(provides)) or 'nothing'}",
            )
