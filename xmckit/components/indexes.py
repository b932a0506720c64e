"""Check label indexes before heads and commands receive them, and name the component that built them."""

from __future__ import annotations

from typing import Any

from xmckit.errors import PluginError


def named_index(index: Any, use: str) -> Any:
    """Check that `index` has `shortlist` and `save`, and set its `indexer` to `use`, the component that can load it."""
    for method in ("shortlist", "save"):
        if not callable(getattr(index, method, None)):
            raise PluginError(f"indexer {use} built a {type(index).__name__}, which lacks {method}()")
    try:
        index.indexer = use
    except AttributeError:
        raise PluginError(f"indexer {use} built a {type(index).__name__} that takes no attribute `indexer`") from None
    return index
