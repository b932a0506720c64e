"""Find the file and line of what plugins define and of where they fail, without importing anything."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from xmckit.errors import nearest, one_line


@dataclass(frozen=True)
class Location:
    """A place in a file; the line is None if only the file is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class NotThere(Exception):
    """A target does not exist; the message says why."""


def file_of(module: str) -> str:
    """Return the file of a top-level package without running its code."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError, AttributeError):
        return ""
    return (spec.origin or "") if spec else ""


def defined_at(function: Callable[..., Any]) -> Location | None:
    """Return where a function is defined; None if Python did not compile it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Location(code.co_filename, code.co_firstlineno) if code else None


def raised_at(error: BaseException, file: str) -> Location | None:
    """Return the innermost line of a plugin's code in an error's traceback; `file` is the plugin's module."""
    if isinstance(error, SyntaxError) and error.filename and is_below(error.filename, file):
        return Location(error.filename, error.lineno)
    import traceback

    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [Location(name, line) for name, line in lines if is_below(name, file)]
    return own[-1] if own else None


def is_below(path: str, module: str) -> bool:
    """Return whether `path` is the module's file or, for a package, one of its files."""
    folder, name = os.path.split(module)
    return bool(module) and (path == module or (name == "__init__.py" and path.startswith(os.path.join(folder, ""))))


def find_target(target: str) -> Location:
    """Return file and line of `package.module:attribute` without importing the module, or raise NotThere."""
    module, colon, attribute = target.partition(":")
    if not colon or not module or not all(part.isidentifier() for part in attribute.split(".")):
        raise NotThere(f"target '{target}' is not of the form package.module:attribute")
    spec = _find_module(module)
    if spec is None:
        raise NotThere(f"target {target}: there is no module {module}")
    if spec.origin is None or not spec.origin.endswith(".py"):
        return Location(spec.origin or "")
    read = getattr(spec.loader, "get_data", None)  # a package may be in a zip file
    try:
        source: bytes = read(spec.origin) if read else Path(spec.origin).read_bytes()
    except OSError as error:
        raise NotThere(f"target {target}: {one_line(error)}") from None
    first = attribute.partition(".")[0]
    # A regular expression settles the usual case in microseconds; `--help` pays for every registered target.
    plain = re.search(rb"^(?:class|def) " + first.encode() + rb"\b", source, re.MULTILINE)
    if plain:
        return Location(spec.origin, source.count(b"\n", 0, plain.start()) + 1)
    try:
        names = dict(_bound_names(ast.parse(source, filename=spec.origin)))
    except SyntaxError as error:
        raise NotThere(f"target {target}: {Location(spec.origin, error.lineno)}: {one_line(error)}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # the other errors of ast.parse
        raise NotThere(f"target {target}: {one_line(error)}") from None
    if first in names:
        return Location(spec.origin, names[first])
    if "*" in names or "__getattr__" in names:
        return Location(spec.origin)
    raise NotThere(f"target {target}: {spec.origin} defines no {first}{nearest(first, names)}")


def _find_module(module: str) -> ModuleSpec | None:
    """Return the spec of a module; unlike importlib's find_spec, do not run the packages above it."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ValueError, ImportError):
        return None
    for depth in range(len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join([top, *parts[: depth + 1]]), spec.submodule_search_locations)
    return spec


def _bound_names(block: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module, or a block at its level, may bind, with their lines."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0], node.lineno
        elif isinstance(node, ast.expr):
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    yield name.id, name.lineno
        else:
            yield from _bound_names(node)
