"""Check a recipe's values against the parameters of the components that it names, and collect every mistake.

Values are checked as strictly as TOML types allow: `"3"` and `3.0` are not whole numbers, `1` is not true. The result
is complete: defaults are filled in, also those of components named inside other components, and input paths are
absolute.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from xmckit.errors import PluginError, RecipeError, nearest
from xmckit.params import InputPath, KindOf, Params, Spec
from xmckit.recipe.expectations import a_component, at_path, describe, quote_value, schema_of, with_article
from xmckit.recipe.layers import DEEPEST_NESTING, LISTED, Node, Origin, one_line
from xmckit.recipe.sections import GeneralKeys
from xmckit.recipe.text import key_text
from xmckit.recipe.toml_lines import KeyPath

if TYPE_CHECKING:
    from xmckit.registry import Registry

MOST_SHOWN = 200

Visit = Callable[[Any, Any, KeyPath], Any]  # (marker, value, path) → the value that takes its place


class Mistakes:
    """All mistakes, each with the place where the value was written. Only the first mistake at a path counts."""

    def __init__(self, root: Node, shown: str):
        self._root, self._shown = root, shown
        self._found: dict[KeyPath, tuple[Origin, str, bool]] = {}
        self._notes: dict[str, None] = {}

    def origin(self, path: KeyPath) -> Origin:
        """Return where the value at `path`, or the nearest one above it, was written."""
        node, origin = self._root, Origin(self._shown)
        for key in path:
            child = node.child(key)
            if child is None:
                break
            node, origin = child, child.origin
        return origin

    def add(self, path: KeyPath, message: str, *, broken_plugin: bool = False) -> None:
        if any(path[:length] in self._found for length in range(1, len(path) + 1)):
            return
        self._found[path] = (self.origin(path), message, broken_plugin)

    def note(self, text: str) -> None:
        """Add a text that may explain the mistakes; it is printed once, after them."""
        self._notes[text] = None

    def name(self, path: KeyPath) -> str:
        """Return the dotted key; a single `[head]` needs no number."""
        node: Node | None = self._root
        parts: list[str] = []
        for depth, key in enumerate(path):
            alone = node is not None and isinstance(node.value, list) and len(node.value) == 1
            if not (alone and path[:depth] in LISTED):
                parts.append(key_text(str(key)))
            node = node.child(key) if node is not None else None
        return ".".join(parts)

    @property
    def any(self) -> bool:
        return bool(self._found)

    def raise_any(self) -> None:
        if not self._found:
            return
        sources = list(dict.fromkeys(origin.source for origin, *_ in self._found.values()))

        def reading_order(path: KeyPath) -> tuple[bool, int, int]:
            """Sort files before `--set`, each from its first line to its last."""
            origin, *_ = self._found[path]
            return origin.source.startswith("--set "), sources.index(origin.source), origin.line or 0

        ranked = [(path, *self._found[path]) for path in sorted(self._found, key=reading_order)]
        lines = [one_line(f"{origin}: {self.name(path)}: {message}") for path, origin, message, _ in ranked]
        if len(lines) > MOST_SHOWN:
            lines[MOST_SHOWN:] = [f"… and {len(lines) - MOST_SHOWN:,} more mistakes"]
        # A recipe that is right but whose plugin does not work is the plugin's fault.
        if all(broken_plugin for *_, broken_plugin in ranked):
            raise PluginError("\n".join(lines))
        raise RecipeError([*lines, *self._notes])


class Checker:
    """Checks parts of one recipe. Mistakes go to `mistakes`; a part that cannot be checked is returned as None."""

    def __init__(self, mistakes: Mistakes, registry: Registry, data_roots: Sequence[Path]):
        self.mistakes, self._registry, self._data_roots = mistakes, registry, data_roots

    def reject_toml_types(self, value: Any, path: KeyPath = ()) -> Any:
        """Return the value without what only TOML allows: dates, infinities, integers beyond 64 bits."""
        if isinstance(value, dict):
            return {key: self.reject_toml_types(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.reject_toml_types(item, (*path, position)) for position, item in enumerate(value)]
        if isinstance(value, (datetime.date, datetime.time)):
            self.mistakes.add(path, f'found a date or time; write it as text: "{value.isoformat()}"')
        elif isinstance(value, float) and not math.isfinite(value):
            self.mistakes.add(path, f"expected a finite number, found {value}")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            self.mistakes.add(path, "expected a number of at most 64 bits")
        else:
            return value
        return None

    def component(
        self, kind: str, value: Any, path: KeyPath, *, reserved: type[BaseModel] = Params
    ) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the complete parameters of the component that a section names."""
        if not isinstance(value, dict):
            self.mistakes.add(path, f"expected {a_component(kind)}, found {quote_value(value)}")
            return None
        if len(path) > DEEPEST_NESTING:
            self.mistakes.add(path, "nested too deeply")
            return None
        target = self._resolve(kind, value, path)
        if target is None:
            return None
        others = ("use", *sorted(reserved.model_fields))
        given = {key: item for key, item in value.items() if key not in others}
        params = self.params(target.Params, given, path, more_keys=others)
        return None if params is None else (value["use"], params)

    def known_names(self, kind: str) -> str:
        return f"(known: {', '.join(self._registry.names(kind)) or 'none'})"

    def _resolve(self, kind: str, value: dict[str, Any], path: KeyPath) -> Any:
        if "use" not in value:
            self.mistakes.add((*path, "use"), f"required: the name of {with_article(kind)} {self.known_names(kind)}")
            return None
        use = value["use"]
        if not isinstance(use, str):
            self.mistakes.add((*path, "use"), f"expected the name of {with_article(kind)}, found {quote_value(use)}")
            return None
        names = self._registry.names(kind)
        if use not in names:
            self.mistakes.add((*path, "use"), f"no {kind} named '{use}'{nearest(use, names)} {self.known_names(kind)}")
            for plugin in self._registry.problems:
                self.mistakes.note(f"{plugin.description} was set aside: {plugin.problem}")
            for plugin in self._registry.plugins:
                if plugin.blocked:
                    self.mistakes.note(f"{plugin.description} is not loaded: {plugin.blocked}")
            return None
        try:
            target = self._registry.resolve(kind, use)
        except PluginError as error:
            self.mistakes.add((*path, "use"), str(error), broken_plugin=True)
            return None
        if not (isinstance(target.Params, type) and issubclass(target.Params, BaseModel)):
            self.mistakes.add((*path, "use"), f"{kind} '{use}' has no pydantic Params", broken_plugin=True)
            return None
        return target

    def params(
        self, model: type[BaseModel], given: Mapping[str, Any], path: KeyPath, *, more_keys: Iterable[str] = ()
    ) -> dict[str, Any] | None:
        """Return `given` validated by `model`, with all defaults, as JSON values without None."""
        values = transform(model, _over_defaults(model, given), path, self._read_marked)
        try:
            parsed = model.model_validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            self._explain(error, model, values, path, more_keys)
            return None
        complete = without_none(parsed.model_dump(mode="json", by_alias=True))
        if not _reads_back(model, complete, parsed):
            self.mistakes.add(path, f"the parameters of {model.__qualname__} cannot be written as TOML and read back")
            return None
        return transform(model, complete, path, self._complete_marked)

    def _read_marked(self, marker: Any, value: Any, path: KeyPath) -> Any:
        if isinstance(marker, InputPath):
            return self._input_path(marker, value, path)
        return self._complete_marked(marker, value, path)

    def _complete_marked(self, marker: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(marker, KindOf) or value is None:
            return value
        checked = self.component(marker.kind, value, path)
        return value if checked is None else {"use": checked[0], **checked[1]}

    def _input_path(self, marker: InputPath, value: Any, path: KeyPath) -> Any:
        if isinstance(value, list):
            return [self._input_path(marker, item, (*path, position)) for position, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        given = os.path.expanduser(value)
        folders = [self.mistakes.origin(path).folder, Path.cwd(), *self._data_roots]
        places = list(dict.fromkeys(os.path.abspath(folder / given) for folder in folders if folder is not None))
        for place in places:
            if os.path.exists(place):
                if place.encode(errors="ignore").decode() == place:
                    return place
                self.mistakes.add(path, f"the name of {place!a} is not UTF-8 text: rename the folder or file")
                return value
        advice = f"; {marker.missing(value, self._data_roots)}" if marker.missing else ""
        self.mistakes.add(path, f"there is no {quote_value(value)}; looked for {', '.join(places)}{advice}")
        return value

    def _explain(
        self,
        error: ValidationError,
        model: type[BaseModel],
        values: Mapping[str, Any],
        path: KeyPath,
        more_keys: Iterable[str],
    ) -> None:
        """Turn pydantic's errors into mistakes; the shallowest first, because a union reports errors at every depth."""
        schema = schema_of(model)
        explained = [
            (_place(item["loc"], values, item["type"] == "missing"), item) for item in error.errors(include_url=False)
        ]
        for place, item in sorted(explained, key=lambda pair: len(pair[0])):
            if item["type"] == "extra_forbidden":
                known = [key for option in at_path(schema, place[:-1]) for key in option.get("properties", ())]
                self.unknown_key((*path, *place), [*known, *(more_keys if len(place) == 1 else ())])
            else:
                self.mistakes.add((*path, *place), _message(item, schema, place))

    def unknown_key(self, path: KeyPath, known: Iterable[str]) -> None:
        keys = list(dict.fromkeys(known))
        # In TOML a key belongs to the [section] above it, also when it is meant for the whole recipe.
        stray = len(path) > 1 and path[-1] in GeneralKeys.model_fields
        hint = f"; '{path[-1]}' is a key of the recipe itself: write it above the first [section]" if stray else ""
        closest = hint or nearest(str(path[-1]), keys)
        self.mistakes.add(path, f"unknown key{closest} (keys: {', '.join(keys)})")


def _over_defaults(model: type[BaseModel], given: Mapping[str, Any]) -> dict[str, Any]:
    """Let a nested table without `use` change the default component."""
    values = dict(given)
    for name, info in model.model_fields.items():
        key = info.alias or name
        if isinstance(info.default, Spec) and isinstance(values.get(key), dict) and "use" not in values[key]:
            values[key] = {**info.default.model_dump(mode="json"), **values[key]}
    return values


def _message(item: Any, schema: Mapping[str, Any], place: KeyPath) -> str:
    if item["type"] in ("value_error", "assertion_error"):
        return str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    options = at_path(schema, place)
    expected = describe({"anyOf": options}, schema) if options else ""
    if item["type"] == "missing":
        meaning = next((option["description"] for option in options if "description" in option), "")
        return "required: " + " – ".join(part for part in (expected, meaning) if part)
    if not expected:
        return f"{item['msg'][:1].lower()}{item['msg'][1:]}, found {quote_value(item['input'])}"
    return f"expected {expected}, found {quote_value(item['input'])}"


def _place(location: Sequence[str | int], values: Any, missing: bool) -> KeyPath:
    """Return the part of pydantic's location that is a path in the values: unions and validators add other names."""
    place: list[str | int] = []
    for depth, key in enumerate(location):
        in_list = isinstance(values, list) and isinstance(key, int) and key < len(values)
        if in_list or (isinstance(values, dict) and key in values):
            values = values[key]
        elif not (missing and depth == len(location) - 1):
            continue
        place.append(key)
    return tuple(place)


def _reads_back(model: type[BaseModel], complete: Mapping[str, Any], parsed: BaseModel) -> bool:
    try:
        return model.model_validate_json(json.dumps(complete, allow_nan=False), strict=True) == parsed
    except ValueError:
        return False


def without_none(value: Any) -> Any:
    """Leave out keys that are None, which TOML cannot hold; they read back as their default, None."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value


def transform(model: type[BaseModel], values: Mapping[str, Any], path: KeyPath, visit: Visit) -> dict[str, Any]:
    """Return a copy of `values` in which `visit` replaces every value that `model` marks (KindOf, InputPath)."""
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    return {
        key: _transform(value, fields[key].annotation, fields[key].metadata, (*path, key), visit)
        if key in fields
        else value
        for key, value in values.items()
    }


def nested_specs_and_paths(
    model: type[BaseModel], params: Mapping[str, Any], registry: Registry
) -> tuple[list[tuple[str, str]], list[Path]]:
    """Return (kind, name) of each component, and every file or folder, that the parameters name.

    Those that the parameters of these components name are included.
    """
    specs: list[tuple[str, str]] = []
    paths: list[Path] = []

    def collect(marker: Any, value: Any, path: KeyPath) -> Any:
        if isinstance(marker, InputPath):
            paths.extend(Path(item) for item in (value if isinstance(value, list) else [value]) if item is not None)
        elif isinstance(value, dict):
            specs.append((marker.kind, value["use"]))
            transform(registry.resolve(*specs[-1]).Params, value, (), collect)
        return value

    transform(model, params, (), collect)
    return specs, paths


def _transform(value: Any, annotation: Any, metadata: Sequence[Any], path: KeyPath, visit: Visit) -> Any:
    for marker in metadata:
        if isinstance(marker, (KindOf, InputPath)):
            return visit(marker, value, path)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _transform(value, arguments[0], arguments[1:], path, visit)
    if origin in (Union, types.UnionType):
        fitting = [option for option in arguments if _fits(value, option)]
        return _transform(value, fitting[0], (), path, visit) if fitting else value
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, dict):
        return transform(annotation, value, path, visit)
    if isinstance(value, list) and arguments:
        places = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        inner = [
            _transform(item, place, (), (*path, position), visit)
            for position, (item, place) in enumerate(zip(value, places, strict=False))
        ]
        return [*inner, *value[len(inner) :]]
    if isinstance(value, dict) and len(arguments) == 2:
        return {key: _transform(item, arguments[1], (), (*path, key), visit) for key, item in value.items()}
    return value


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether an option of a union is meant by a value of this shape."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin = get_origin(annotation) or annotation
    if not isinstance(origin, type):
        return False
    if isinstance(value, dict):
        return issubclass(origin, (BaseModel, Mapping))
    if isinstance(value, list):
        return issubclass(origin, (list, tuple, set, frozenset, Sequence)) and not issubclass(origin, (str, bytes))
    return isinstance(value, str) and issubclass(origin, os.PathLike)
