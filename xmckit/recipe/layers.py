"""Merge a recipe's file, the files it extends, and `--set` into one tree that knows the origin of each value.

The merge rule, the same for `extends` and for `--set`: tables merge key by key, anything else is replaced. Where the
child names another `use`, it replaces the whole section. A single table `[head]` merges onto a parent's list of one;
`[[head]]` replaces the list. One item of a longer list is addressed by its number: `head.0.slack`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xmckit.errors import RecipeError, nearest
from xmckit.kinds import KINDS
from xmckit.recipe.toml_lines import KeyPath, key_lines, longest_key, parse_key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# These sections repeat: `[head]` is a list of one, `[[head]]` an item of a longer one.
LISTED: tuple[KeyPath, ...] = tuple(
    tuple(section.path.split(".")) for kind in KINDS.values() for section in kind.sections if section.repeats
)

LARGEST_FILE = 1 << 18
DEEPEST_NESTING = 32
LONGEST_CHAIN = 16

_BARE_WORD = re.compile(r"[\w\-./:~+@%]+")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ERROR_LINE = re.compile(r"^(.*) \(at line (\d+), column \d+\)$", re.DOTALL)
_ERROR_AT_END = " (at end of document)"
_INVALID_VALUE_HINT = " (text needs quotes; true and false are in lower case)"
_LONGEST_QUOTE = 60


@dataclass(frozen=True)
class Origin:
    """The place where a value was written: a file and its line, one `--set`, or nowhere (`default`)."""

    source: str
    line: int | None = None
    folder: Path | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Node:
    """A value and its origin; inside tables and lists every value is again a Node."""

    value: Any
    origin: Origin

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, key: str | int) -> Node | None:
        if isinstance(self.value, dict):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            child: Node = self.value[key]
            return child
        return None

    def origins(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Origin]]:
        yield path, self.origin
        parts: Iterable[tuple[str | int, Node]] = ()
        if isinstance(self.value, dict):
            parts = self.value.items()
        elif isinstance(self.value, list):
            parts = enumerate(self.value)
        for key, node in parts:
            yield from node.origins((*path, key))


@dataclass(frozen=True)
class RecipeFile:
    """One recipe file with its values."""

    path: Path
    shown: str
    text: str
    root: Node


def shipped_recipes() -> dict[str, Path]:
    """Return name → file of the recipes that come with xmckit: in the wheel, or in the repository if it is editable."""
    package = Path(__file__).resolve().parents[1]
    in_wheel = package / "_recipes"
    folder = in_wheel if in_wheel.is_dir() else package.parent / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def locate(source: str | Path, beside: Path | None = None) -> Path:
    """Return the file of a recipe given by path (it ends with `.toml` or has a separator) or by a shipped name."""
    text = os.fspath(source)
    separators = [os.sep, "/", *([os.altsep] if os.altsep else [])]
    if isinstance(source, Path) or text.endswith(".toml") or any(mark in text for mark in separators):
        return (beside or Path.cwd()) / Path(text).expanduser()
    known = shipped_recipes()
    if text in known:
        return known[text]
    file = next((name for name in (text, f"{text}.toml") if os.path.isfile(name)), None)
    hint = f" To use the file {file}, write ./{file}." if file else ""
    raise RecipeError(f"no recipe named '{text}'{nearest(text, known)} (recipes: {', '.join(known) or 'none'}).{hint}")


def display_path(path: Path) -> str:
    """Return the path relative to the working folder if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def read_chain(source: str | Path) -> list[RecipeFile]:
    """Read the recipe and all that it extends; the farthest ancestor comes first."""
    chain = [read_source(locate(source))]
    while (parent := chain[-1].root.value.get("extends")) is not None:
        try:
            if not isinstance(parent.value, str):
                raise RecipeError("expected the name or the path of a recipe")
            path = locate(parent.value, beside=chain[-1].path.parent)
            if any(os.path.realpath(path) == os.path.realpath(link.path) for link in chain):
                circle = " → ".join([*(link.shown for link in chain), display_path(path)])
                raise RecipeError(f"this recipe extends itself: {circle}")
            if len(chain) == LONGEST_CHAIN:
                raise RecipeError(f"expected at most {LONGEST_CHAIN} recipes that extend one another")
            chain.append(read_source(path))
        except RecipeError as error:
            raise RecipeError([f"{parent.origin}: extends: {mistake}" for mistake in error.mistakes]) from None
    return chain[::-1]


def read_source(path: Path) -> RecipeFile:
    name = display_path(path)
    text = read_text(path)
    document = _parse(text, name)
    origin = Origin(name, None, path.parent)
    return RecipeFile(path, name, text, node_of(document, origin, key_lines(text)))


def read_text(path: Path) -> str:
    """Return the text of a recipe file, unchecked; RecipeError if it is no text."""
    name = display_path(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            kind = "a folder" if os.path.isdir(path) else "not an ordinary file"
            raise RecipeError(f"{name}: this is {kind}, expected a recipe file (.toml)")
        with open(path, "rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise RecipeError(f"{name}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecipeError(f"{name}: cannot be read: {reason}") from None
    if len(content) > LARGEST_FILE:
        raise RecipeError(f"{name}: expected a recipe of at most {LARGEST_FILE:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{name}:{line}: not UTF-8 text: found byte 0x{content[error.start]:02x}") from None


def _parse(text: str, name: str) -> dict[str, Any]:
    parts, line = longest_key(text, DEEPEST_NESTING)
    if parts > DEEPEST_NESTING:
        raise RecipeError(f"{name}:{line}: expected a key of at most {DEEPEST_NESTING} parts, found {parts}")
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise RecipeError(f"{name}: not a recipe: nested too deeply") from None
    except ValueError as error:
        raise RecipeError(_not_toml(error, text, name)) from None
    if _too_deep(document):
        raise RecipeError(f"{name}: not a recipe: expected at most {DEEPEST_NESTING} levels of nesting")
    return document


def _not_toml(error: ValueError, text: str, name: str) -> str:
    message = str(error)
    match = _ERROR_LINE.match(message)
    if match:
        reason, number = match.group(1), int(match.group(2))
        hint = _INVALID_VALUE_HINT if reason == "Invalid value" else ""
        quote = one_line(text.split("\n")[number - 1].strip()[:_LONGEST_QUOTE])
        return f"{name}:{number}: not TOML: {_lower_first(reason)}{hint}, found `{quote}`"
    if message.endswith(_ERROR_AT_END):
        line = text.count("\n") + (not text.endswith("\n"))
        return f"{name}:{line}: not TOML: {_lower_first(message.removesuffix(_ERROR_AT_END))} at the end of the file"
    return f"{name}: not TOML: {_lower_first(message)}"


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]


def _too_deep(document: dict[str, Any]) -> bool:
    """Walk without recursion: dotted keys nest as deep as a file is long."""
    level: list[Any] = [document]
    for _ in range(DEEPEST_NESTING):
        containers = (item.values() if isinstance(item, dict) else item for item in level)
        level = [inner for container in containers for inner in container if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def read_sets(sets: Sequence[str], option: str = "--set") -> Node:
    """Return all `--set` as one child recipe; RecipeError lists all that cannot be read."""
    folder, mistakes = Path.cwd(), []
    child = Node({}, DEFAULT)
    for text in sets:
        try:
            parts, value = parse_set(text, option)
            node = node_of(value, Origin(f"{option} {one_line(text)}", None, folder))
            for part in reversed(parts):
                node = Node({part: node}, node.origin)
            child = merge(child, node)
        except RecipeError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RecipeError(mistakes)
    return child


def node_of(value: Any, source: Origin, lines: Mapping[KeyPath, int] | None = None, path: KeyPath = ()) -> Node:
    """Return a plain value as a tree whose nodes all come from `source`, each from its line if `lines` are known."""
    if isinstance(value, dict):
        value = {key: node_of(item, source, lines, (*path, key)) for key, item in value.items()}
    elif isinstance(value, list):
        value = [node_of(item, source, lines, (*path, position)) for position, item in enumerate(value)]
    return Node(value, replace(source, line=lines.get(path)) if lines else source)


def one_line(text: str) -> str:
    """Escape what could break a line or a terminal."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


def parse_set(text: str, option: str = "--set") -> tuple[tuple[str, ...], Any]:
    """Return the key's parts and the value of `a.b=VALUE`; a value is TOML, or one bare word, which is text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecipeError(f"{option} {text!a}: not UTF-8 text") from None
    at = f"{option} {one_line(text)}"
    key, equals, value = (part.strip() for part in text.partition("="))
    if longest_key(key, DEEPEST_NESTING)[0] > DEEPEST_NESTING:
        raise RecipeError(f"{at}: expected a key of at most {DEEPEST_NESTING} parts")
    try:
        parts = parse_key(key)
    except ValueError:
        parts = ()
    if not equals or not parts:
        raise RecipeError(f"{at}: expected KEY=VALUE with a key such as head.slack or head.0.slack")
    if parts[0] == "extends":
        raise RecipeError(f"{at}: 'extends' is only for recipe files")
    parsed = _toml_value(value) if longest_key(value, DEEPEST_NESTING)[0] <= DEEPEST_NESTING else None
    if parsed is None:
        raise RecipeError(
            f'{at}: expected a TOML value (12, 0.5, true, "text", [1, 2]) or one word; {_advice(key, value, option)}'
        )
    return parts, parsed


def _advice(key: str, value: str, option: str) -> str:
    as_list = f"[{value}]"
    if "," in value and _toml_value(as_list) is not None:
        return f"a list needs brackets: {option} {one_line(shlex.quote(f'{key}={as_list}'))}"
    quoted = shlex.quote(f"{key}={json.dumps(value, ensure_ascii=False)}")
    return f"other text needs quotes: {option} {one_line(quoted)}"


def _toml_value(text: str) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        tomllib.loads(f"value = [{text}]")  # fails if a comment or another line follows the value
        return None if _too_deep({"value": value}) else value
    except RecursionError:
        return None
    except ValueError:
        return text if _BARE_WORD.fullmatch(text) else None


def merge(parent: Node | None, child: Node, path: KeyPath = ()) -> Node:
    """Merge the child over the parent, by the rule in the module's text; RecipeError if it cannot be applied."""
    if parent is None:
        return child
    if isinstance(child.value, dict) and isinstance(parent.value, list):
        return _merge_into_list(parent, child, path)
    if not (isinstance(child.value, dict) and isinstance(parent.value, dict)) or _names_another(parent, child):
        return child
    merged, mistakes = dict(parent.value), []
    for key, node in child.value.items():
        try:
            merged[key] = merge(merged.get(key), node, (*path, key))
        except RecipeError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RecipeError(mistakes)
    return Node(merged, parent.origin)


def _names_another(parent: Node, child: Node) -> bool:
    old, new = parent.value.get("use"), child.value.get("use")
    return old is not None and new is not None and old.value != new.value


def _merge_into_list(parent: Node, child: Node, path: KeyPath) -> Node:
    items = list(parent.value)
    numbered = {key: node for key, node in child.value.items() if key.isascii() and key.isdecimal()}
    rest = {key: node for key, node in child.value.items() if key not in numbered}
    name = ".".join(map(str, path))
    if rest and path not in LISTED:
        return child
    if rest and len(items) > 1:
        first = next(iter(rest))
        raise RecipeError(
            f"{rest[first].origin}: {name}.{first}: there are {len(items)} of {name}; say which: {name}.0.{first}"
        )
    if rest:
        table = Node(rest, child.origin)
        items = [merge(items[0], table, (*path, 0))] if items else [table]
    for key, node in numbered.items():
        position = int(key[:9])
        if position >= len(items):
            known = f"0 to {len(items) - 1}" if items else "none"
            raise RecipeError(f"{node.origin}: {name}.{key}: there is no such item (there are {known})")
        items[position] = merge(items[position], node, (*path, position))
    return Node(items, parent.origin)


def with_lists(root: Node) -> Node:
    """Return the tree with each single table of a repeating section as a list of one."""
    for path in LISTED:
        root = _with_list(root, path)
    return root


def _with_list(node: Node, path: KeyPath) -> Node:
    if not path:
        return Node([node], node.origin) if isinstance(node.value, dict) else node
    if not isinstance(node.value, dict) or path[0] not in node.value:
        return node
    return Node({**node.value, path[0]: _with_list(node.value[path[0]], path[1:])}, node.origin)


def merged_tree(chain: Sequence[RecipeFile], sets: Sequence[str]) -> Node:
    """Return one tree of all files and of `--set`; RecipeError lists every mistake of merging."""
    mistakes: list[str] = []
    tree = Node({}, chain[-1].root.origin)
    layers = []
    for source in chain:  # an ancestor's name is not this recipe's
        hidden = {"extends"} if source is chain[-1] else {"extends", "name"}
        own = {key: node for key, node in source.root.value.items() if key not in hidden}
        layers.append(Node(own, source.root.origin))
    try:
        layers.append(read_sets(sets))
    except RecipeError as error:
        mistakes += error.mistakes
    for layer in layers:
        try:
            tree = with_lists(merge(tree, layer))
        except RecipeError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RecipeError(mistakes)
    return tree
