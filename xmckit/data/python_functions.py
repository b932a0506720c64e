"""Extract the functions of Python source files: the words that describe each, and the names it calls.

Files are parsed with `ast`; nothing is executed. This module imports nothing heavy, because every worker process
imports it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import NamedTuple, TypeAlias

from xmckit.errors import DataError

FunctionNode: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"

_WORD = re.compile(r"[^\W_]{2,}")
_NOT_IDENTIFIER = re.compile(r"[\W_]+")
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Function(NamedTuple):
    """A function: its file, its dotted name, its class ("" outside classes), its words, its calls."""

    path: str
    name: str
    owner: str
    text: str
    calls: tuple[str, ...]


class ParsedFile(NamedTuple):
    """The functions of a file, or the reason why it cannot be parsed."""

    path: str
    functions: list[Function]
    problem: str | None = None


@dataclass(frozen=True)
class _Scope:
    """The context of a node: the names and the class around it, and the calls of the function around it."""

    names: tuple[str, ...] = ()
    owner: str = ""
    calls: set[str] = field(default_factory=set)


def parse_file(root: Path, path: str) -> ParsedFile:
    """Return the functions of `root/path` that call something; the relative `path` is their module name."""
    try:
        source = (root / path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=root / path) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        return ParsedFile(path, [], printable(f"line {error.lineno or 0}: {error.msg}"))
    except (ValueError, RecursionError, MemoryError) as error:
        # Null bytes, and nesting that is too deep for the parser.
        return ParsedFile(path, [], str(error) or type(error).__name__)
    return ParsedFile(path, [_describe(node, scope, path) for node, scope in _functions(tree) if scope.calls])


def parse_files(root: Path, paths: Sequence[str]) -> list[ParsedFile]:
    return [parse_file(root, path) for path in paths]


def _functions(tree: ast.Module) -> list[tuple[FunctionNode, _Scope]]:
    """Return all functions in the order of the source, each with the calls of its own body.

    A call belongs to the innermost function around it. Decorators, default values and annotations run outside their
    function, so their calls count for the function around it. The stack is explicit because source may be nested deeper
    than Python's recursion limit.
    """
    functions: list[tuple[FunctionNode, _Scope]] = []
    pending: list[tuple[ast.AST, _Scope]] = [(tree, _Scope())]
    while pending:
        node, scope = pending.pop()
        inner = scope
        if isinstance(node, ast.Call):
            if name := _last_name(node.func):
                scope.calls.add(name)
        elif isinstance(node, ast.ClassDef):
            names = (*scope.names, node.name)
            inner = replace(scope, names=names, owner=".".join(names))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = replace(scope, names=(*scope.names, node.name), calls=set())
            functions.append((node, inner))
        children = [(child, inner if part == "body" else scope) for part, child in _children(node)]
        pending.extend(reversed(children))
    return functions


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for part, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield part, child


def _last_name(node: ast.expr) -> str:
    """Return `f` for `f` and for `x.f`, otherwise an empty text."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _describe(node: FunctionNode, scope: _Scope, path: str) -> Function:
    parts = PurePath(path).with_suffix("").parts
    module = parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts
    words = [
        *_mark_parts("name", [node.name]),
        *_mark_parts("arg", _arguments(node.args)),
        *_mark_parts("path", (*module, *scope.names[:-1])),
        *_mark_parts("deco", map(_decorator, node.decorator_list)),
        *_WORD.findall((ast.get_docstring(node, clean=False) or "").lower()),
    ]
    name = printable(".".join((*module, *scope.names)))
    return Function(path, name, scope.owner, " ".join(words), tuple(sorted(scope.calls)))


def _mark_parts(kind: str, identifiers: Iterable[str]) -> Iterator[str]:
    """Yield the parts of identifiers, marked by kind: `name_read`, `name_file` for `readFile` or `read_file`."""
    for identifier in identifiers:
        for part in identifier_parts(identifier):
            yield f"{kind}_{part}"


def identifier_parts(identifier: str) -> list[str]:
    """Split at underscores and in camel case: `["http", "server", "2"]` for `HTTPServer_2`."""
    return [
        part.lower() for word in _NOT_IDENTIFIER.split(identifier) if word for part in _CAMEL_HUMP.split(word) if part
    ]


def _arguments(arguments: ast.arguments) -> list[str]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [arguments.vararg, arguments.kwarg]
    return [argument.arg for argument in (*named, *starred) if argument is not None]


def _decorator(node: ast.expr) -> str:
    """Return the last name of a decorator: `lru_cache` for `@functools.lru_cache(8)`."""
    while isinstance(node, ast.Call):
        node = node.func
    return _last_name(node)


def printable(name: str) -> str:
    """Spell out the bytes of a file name that are not text."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
