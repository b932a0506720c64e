"""Describe a component's parameters for people: name, type, default, meaning."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from xmckit.params import Spec
from xmckit.recipe.expectations import at_path, describe, schema_of


def describe_params(params: type[BaseModel]) -> list[dict[str, str]]:
    """Return one row per parameter; types are in the words of the messages about wrong values."""
    schema = schema_of(params)
    return [
        {
            "name": name,
            "type": describe({"anyOf": at_path(schema, [field.alias or name])}, schema) or "a value",
            "default": _default(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for name, field in params.model_fields.items()
    ]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Spec):
        options = ", ".join(f"{key}={item!r}" for key, item in value.options.items())
        return value.use + (f" ({options})" if options else "")
    return "–" if value is None else repr(value) if isinstance(value, str) else str(value)
