"""Write a recipe as the TOML that a person would write: one line for each value, one header for each section.

`tomli_w` writes only the values: it would break every list over several lines and fold short sections into lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tomli_w

from xmckit.recipe.layers import LISTED, Origin
from xmckit.recipe.toml_lines import KeyPath

OriginOf = Callable[[KeyPath], Origin]


def toml_text(document: Mapping[str, Any], origin_of: OriginOf | None = None) -> str:
    """Return the document as TOML; `origin_of` adds to each value a comment with its origin."""
    return "\n".join(_table(document, (), origin_of)).lstrip("\n") + "\n"


def _table(table: Mapping[str, Any], path: KeyPath, origin_of: OriginOf | None) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _repeats((*path, key), value)}
    for key, value in table.items():
        if key not in inner:
            comment = f"  # {' '.join(str(origin_of((*path, key))).split())}" if origin_of else ""
            yield f"{key_text(key)} = {literal(value)}{comment}"
    for key, value in inner.items():
        below = (*path, key)
        name = ".".join(key_text(part) for part in below if isinstance(part, str))
        if isinstance(value, Mapping):
            yield from ("", f"[{name}]", *_table(value, below, origin_of))
        else:
            for position, item in enumerate(value):
                yield from ("", f"[[{name}]]", *_table(item, (*below, position), origin_of))


def leaves(document: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the values that have a line of their own, each with its path."""
    for key, value in document.items():
        below = (*path, key)
        if isinstance(value, Mapping):
            yield from leaves(value, below)
        elif _repeats(below, value):
            for position, item in enumerate(value):
                yield from leaves(item, (*below, position))
        else:
            yield below, value


def _repeats(path: KeyPath, value: Any) -> bool:
    return path in LISTED and bool(value)


def key_text(key: str) -> str:
    """Return one part of a dotted key, with quotes if it needs them."""
    return tomli_w.dumps({key: 0}).rpartition(" = ")[0]


def literal(value: Any) -> str:
    """Return a value as TOML, in one line."""
    if isinstance(value, list):
        return f"[{', '.join(literal(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key_text(key)} = {literal(item)}" for key, item in value.items()) + "}"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").removesuffix("\n")
