"""Label indexes as heads and commands receive them: checked, and with the name of the component that built them."""

from __future__ import annotations

from typing import Any

from xmckit.errors import PluginError


def named_index(index: Any, use: str) -> Any:
    """Check that `index` can shortlist and be saved, and set `indexer` to `use`, the component that can load it."""
    for promised in ("shortlist", "save"):
        if not callable(getattr(index, promised, None)):
            raise PluginError(f"indexer {use} built a {type(index).__name__}, which lacks {promised}()")
    try:
        index.indexer = use
    except AttributeError:
        raise PluginError(f"indexer {use} built a {type(index).__name__} that cannot be told its name") from None
    return index
