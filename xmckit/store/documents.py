"""JSON files: write them atomically, and check what is read against a type."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from xmckit.store.checksums import canonical, compare_bytes
from xmckit.store.damage import damaged, explain_damage
from xmckit.store.files import atomic_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Shape = TypeVar("Shape")
_MOST_MISTAKES = 8  # listed in an error


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path, "w") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


@overload
def read_json(path: Path) -> Any: ...
@overload
def read_json(path: Path, shape: type[Shape]) -> Shape: ...
def read_json(path: Path, shape: Any = Any) -> Any:
    """Return the content of a JSON file; check that it has the type `shape`, such as a TypedDict, and its checksum."""
    with explain_damage(path, "not JSON", ValueError, RecursionError):
        text = path.read_bytes()
        content = json.loads(text)
    if shape is not Any:
        check_type(path, content, shape)  # before the checksum: it names the field that is wrong
    compare_bytes(path, text)
    return content


def check_type(path: Path, content: Any, shape: Any) -> Any:
    """Return the content of a file as `shape`, any type that pydantic knows; if it is of another type, say where."""
    from pydantic import ValidationError

    try:
        return _type_adapter(shape).validate_python(content, strict=True)
    except ValidationError as error:
        raise damaged(path, reasons(error)) from None


@functools.cache
def _type_adapter(shape: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def reasons(error: ValidationError) -> str:
    """Return the mistakes that pydantic found, in one line."""
    mistakes = error.errors()
    more = len(mistakes) - _MOST_MISTAKES
    return "; ".join(map(_mistake, mistakes[:_MOST_MISTAKES])) + (f"; and {more} more" if more > 0 else "")


def _mistake(mistake: Any) -> str:
    where, found = ".".join(map(str, mistake["loc"])), mistake["input"]
    shown = f", found {found!r:.60}" if not isinstance(found, (dict, list)) and mistake["type"] != "missing" else ""
    return f"{where}: {mistake['msg']}{shown}" if where else f"{mistake['msg']}{shown}"


def canonical_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value; the order of keys does not matter."""
    return hashlib.sha256(canonical(value)).hexdigest()
