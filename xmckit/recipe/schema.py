"""The JSON Schema of recipe files, for editors: every section with the parameters of every installed component.

A recipe that extends another may leave anything out, so the schema requires nothing that a parent could contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from xmckit.errors import PluginError
from xmckit.recipe.expectations import with_article
from xmckit.recipe.sections import (
    SCORE_SECTIONS,
    SECTIONS,
    EnsembleKeys,
    GeneralKeys,
    ReportKeys,
    ScoreKeys,
    SectionKind,
)

if TYPE_CHECKING:
    from xmckit.registry import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema(registry: Registry) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe file, with the components of `registry`."""
    return _SchemaWriter(registry).recipe()


class _SchemaWriter:
    def __init__(self, registry: Registry):
        self._registry = registry
        self._definitions: dict[str, Any] = {}

    def recipe(self) -> dict[str, Any]:
        sections = {name: self._section(what) for name, what in SECTIONS.items()}
        scoring = {name: self._section(what) for name, what in SCORE_SECTIONS.items()}
        properties = {
            "extends": {"type": "string", "description": "A recipe that this one changes: its name or its path."},
            **self._keys(GeneralKeys),
            **sections,
            "score": {
                "description": "How predictions are scored.",
                **_table_of({**self._keys(ScoreKeys), **scoring}),
            },
            "ensemble": _table_of(self._keys(EnsembleKeys)),
            "report": _table_of(self._keys(ReportKeys)),
        }
        return {
            "$schema": DIALECT,
            "title": "xmckit recipe",
            **_table_of(properties),
            "if": {"not": {"required": ["extends"]}},
            "then": {"required": ["data", "head"]},
            "$defs": self._definitions,
        }

    def _section(self, what: SectionKind) -> dict[str, Any]:
        table = self._table(what.kind, self._keys(what.reserved))
        if what.repeats:
            table = {"anyOf": [table, {"type": "array", "items": table}]}
        elif what.optional:
            table = {"anyOf": [table, {"const": False}]}
        return {"description": what.summary, **table}

    def _table(self, kind: str, reserved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a table with `use`, which decides its other keys."""
        names = self._registry.names(kind)
        if not names:
            # JSON Schema has no empty choice.
            return {"type": "object", "properties": {"use": False}, "description": f"No {kind} is installed."}
        components = (self._registry.component(kind, name).component for name in names)
        choices = [{"const": component.name, "description": component.summary} for component in components]
        return {
            "type": "object",
            "properties": {"use": {"oneOf": choices, "description": f"The name of {with_article(kind)}."}},
            "allOf": [
                {
                    "if": {"properties": {"use": {"const": name}}, "required": ["use"]},
                    "then": self._with_parameters(kind, name, reserved),
                }
                for name in names
            ],
        }

    def _with_parameters(self, kind: str, name: str, reserved: Mapping[str, Any]) -> dict[str, Any]:
        try:
            parameters = self._keys(self._registry.resolve(kind, name).Params)
        except (PluginError, PydanticInvalidForJsonSchema) as error:
            return {"description": f"Its parameters are not known here: {error}"}
        return {"properties": {"use": {}, **reserved, **parameters}, "additionalProperties": False}

    def _keys(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return the properties of a model; its definitions move to the top of the schema."""
        prefix = f"{model.__module__}.{model.__qualname__}."
        schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
        for name, definition in schema.pop("$defs", {}).items():
            self._definitions[prefix + name] = self._with_tables(definition)
        return {name: self._with_tables(definition) for name, definition in schema.get("properties", {}).items()}

    def _with_tables(self, schema: Any) -> Any:
        """Return the schema with a reference to the table of a kind wherever it names the kind."""
        if isinstance(schema, list):
            return [self._with_tables(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if isinstance(schema.get("kind"), str) and schema.get("type") == "object":  # see `xmckit.params.KindOf`
            others = {key: item for key, item in schema.items() if key not in ("kind", "type")}
            return {"$ref": f"#/$defs/{self._kind_definition(schema['kind'])}", **others}
        return {key: self._with_tables(item) for key, item in schema.items()}

    def _kind_definition(self, kind: str) -> str:
        name = f"kind.{kind}"
        if name not in self._definitions:
            self._definitions[name] = {}  # a kind may name itself inside itself
            self._definitions[name] = self._table(kind, {})
        return name


def _table_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a table that has no other keys."""
    return {"type": "object", "properties": properties, "additionalProperties": False}
