"""Describe parameters in words: what each is, and what the JSON Schema of its value asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import PydanticUndefined

from xmckit.params import Spec

Schema = Mapping[str, Any]

_PLURAL = {
    "a whole number": "whole numbers",
    "a number": "numbers",
    "a text": "texts",
    "a path": "paths",
    "a table": "tables",
    "a list": "lists",
}
_BOUNDS = {
    "minimum": "of {} or more",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "that is a multiple of {}",
}
_LONGEST_SHOWN = 60


def describe_params(params: type[BaseModel]) -> list[dict[str, str]]:
    """Return name, type, default and description of each parameter, for people."""
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


def schema_of(model: type[BaseModel]) -> Schema:
    """Return the JSON Schema of a model; empty if it has a type that JSON Schema cannot express."""
    try:
        return model.model_json_schema()
    except PydanticInvalidForJsonSchema:
        return {}


def describe(schema: Schema, root: Schema) -> str:
    """Return `a whole number of 0 or more`, `'a' or 'b'`, …; the empty string if the schema says nothing.

    `root` is the document whose `$defs` the schema refers to.
    """
    schema = resolve(schema, root)
    if "const" in schema:
        return quote_all([schema["const"]])
    if "enum" in schema:
        return quote_all(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            options = [describe(option, root) for option in schema[union] if option.get("type") != "null"]
            return " or ".join(dict.fromkeys(option for option in options if option))
    if "kind" in schema:  # see `xmckit.params.KindOf`
        return a_component(schema["kind"])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _bounds(schema)
    if kind == "string":
        return "a path" if schema.get("format") == "path" else "a text" + _length(schema, "character")
    if kind == "array":
        return _describe_array(schema, root)
    return {"boolean": "true or false", "object": "a table"}.get(str(kind), "")


def a_component(kind: str) -> str:
    """Say how a recipe names a component of a kind."""
    return f"a table with `use`, the name of {with_article(kind)}"


def with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def resolve(schema: Schema, root: Schema) -> Schema:
    """Return the schema that a `$ref` stands for."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema


def at_path(root: Schema, path: Sequence[str | int]) -> list[Schema]:
    """Return the schemas that apply to the value at `path`: several inside unions, possibly none."""
    schemas = _alternatives(root, root)
    for key in path:
        schemas = [
            option for schema in schemas for inner in _inside(schema, key) for option in _alternatives(inner, root)
        ]
    return schemas


def _alternatives(schema: Schema, root: Schema) -> list[Schema]:
    schema = resolve(schema, root)
    options = [option for union in ("anyOf", "oneOf") for option in schema.get(union, ())]
    return [inner for option in options for inner in _alternatives(option, root)] if options else [schema]


def _inside(schema: Schema, key: str | int) -> list[Schema]:
    if isinstance(key, int):
        places = schema.get("prefixItems", [])
        inner = places[key] if key < len(places) else schema.get("items")
    else:
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
    return [inner] if isinstance(inner, Mapping) else []


def quote_all(values: Sequence[Any]) -> str:
    words = [f"'{value}'" if isinstance(value, str) else json.dumps(value) for value in values]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def quote_value(value: Any) -> str:
    """Return a value as a recipe would contain it, shortened."""
    if isinstance(value, Mapping):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _bounds(schema: Schema) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f" from {schema['minimum']} to {schema['maximum']}"
    parts = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
    return (" " + " and ".join(parts)) if parts else ""


def _length(schema: Schema, unit: str, least: str = "minLength", most: str = "maxLength") -> str:
    low, high = schema.get(least, 0), schema.get(most)
    if low and low == high:
        return f" of {low} {unit}s"
    parts = [f"at least {low} {unit}{'s' * (low > 1)}"] if low else []
    parts += [f"at most {high} {unit}{'s' * (high > 1)}"] if high is not None else []
    return f" of {' and '.join(parts)}" if parts else ""


def _describe_array(schema: Schema, root: Schema) -> str:
    places = schema.get("prefixItems")
    if places:
        return f"a list of {len(places)}: {', '.join(describe(place, root) or 'a value' for place in places)}"
    item = describe(schema["items"], root) if isinstance(schema.get("items"), Mapping) else ""
    singular = next((word for word in _PLURAL if item.startswith(word)), None)
    plural = _PLURAL[singular] + item[len(singular) :] if singular else f"values that are each {item}" if item else ""
    size = _length(schema, "item", "minItems", "maxItems").removeprefix(" of")
    return "a list" + (f" of{size}" if size else "") + (f"{',' if size else ' of'} {plural}" if plural else "")
