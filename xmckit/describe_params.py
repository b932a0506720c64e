"""A component's parameters as people read them: name, type, default, meaning."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from xmckit.params import Spec

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"}


def describe_params(params: type[BaseModel], prefix: str = "") -> list[dict[str, str]]:
    """One row per parameter, nested models flattened as `outer.inner`."""
    rows = []
    for name, field in params.model_fields.items():
        rows.append(
            {
                "name": prefix + name,
                "type": _type_name(field.annotation, field.metadata),
                "default": "required"
                if field.is_required()
                else _default(field.get_default(call_default_factory=True)),
                "description": field.description or "",
            }
        )
    return rows


def _type_name(annotation: Any, metadata: list[Any]) -> str:
    text = (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )
    text = re.sub(
        r"typing\.|typing_extensions\.|<class '|'>|NoneType", lambda found: "None" if "None" in found[0] else "", text
    )
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)
    text = re.sub(r"Annotated\[(\w+),.*\]", r"\1", text)
    text = re.sub(r"Literal\[([^\]]*)\]", lambda found: " | ".join(part.strip() for part in found[1].split(",")), text)
    bounds = [
        f"{sign} {getattr(item, key)}" for item in metadata for key, sign in _BOUNDS.items() if hasattr(item, key)
    ]
    return text + (f" ({', '.join(bounds)})" if bounds else "")


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Spec):
        options = ", ".join(f"{key}={item!r}" for key, item in value.options.items())
        return value.use + (f" ({options})" if options else "")
    return "–" if value is None else repr(value) if isinstance(value, str) else str(value)
