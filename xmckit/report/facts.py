"""Nested facts as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flat_facts(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(name, value) as people read them, in order; what is absent or empty is left out."""
    return list(_rows(facts, prefix))


def _rows(facts: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _rows(value, f"{name} · ")
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif isinstance(value, (int, float)):
            yield name, f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        elif value:
            yield name, ", ".join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value)
