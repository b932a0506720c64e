"""Describe a component's parameters for people: name, type, default, meaning."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from xmckit.params import KindOf, Spec

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "multiple_of": "multiple of"}


def describe_params(params: type[BaseModel]) -> list[dict[str, str]]:
    """Return one row per parameter."""
    return [
        {
            "name": name,
            "type": _type_name(field.annotation, field.metadata),
            "default": _default(field.get_default(call_default_factory=True)),
            "description": field.description or "",
        }
        for name, field in params.model_fields.items()
    ]


def _type_name(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the type as people write it: `int (≥ 1)`, `float | "validation"`, `list of int`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    for item in metadata:
        if isinstance(item, KindOf):
            return f"{item.kind} by name"
    if origin is Annotated:
        return _type_name(arguments[0], (*arguments[1:], *metadata))
    if origin is Literal:
        text = " | ".join(json.dumps(value, ensure_ascii=False) for value in arguments)
    elif origin in (Union, types.UnionType):
        text = " | ".join(_type_name(argument) for argument in arguments)
    elif origin is not None:
        inner = ", ".join(_type_name(argument) for argument in arguments if argument is not Ellipsis)
        text = f"{origin.__name__} of {inner}"
    elif annotation is type(None):
        text = "none"
    else:
        text = getattr(annotation, "__name__", str(annotation))
    bounds = [
        f"{sign} {getattr(item, key)}"
        for item in _flat(metadata)
        for key, sign in _BOUNDS.items()
        if getattr(item, key, None) is not None
    ]
    return text + (f" ({', '.join(bounds)})" if bounds else "")


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    """Yield bounds, which stand alone or inside a nested `Field(…)`."""
    for item in metadata:
        yield from _flat(item.metadata) if hasattr(item, "metadata") else [item]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Spec):
        options = ", ".join(f"{key}={item!r}" for key, item in value.options.items())
        return value.use + (f" ({options})" if options else "")
    return "–" if value is None else repr(value) if isinstance(value, str) else str(value)
