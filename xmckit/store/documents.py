"""JSON files: write them atomically, and check what is read against a type."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from xmckit.store.checksums import canonical, compare_bytes
from xmckit.store.damage import damaged, explain_damage
from xmckit.store.files import atomic_file

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

Shape = TypeVar("Shape")
_MOST_MISTAKES = 8  # listed in an error
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEEPEST = 64  # lists and objects inside each other; what xmckit writes has less than 20


def write_json(path: Path, value: Any) -> None:
    with atomic_file(path, "w") as stream:
        json.dump(value, stream, indent=2, ensure_ascii=False, allow_nan=False)
        stream.write("\n")


@overload
def read_json(path: Path, *, advice: str = ...) -> Any: ...
@overload
def read_json(
    path: Path, shape: type[Shape], check: Callable[[Shape], object] | None = ..., *, advice: str = ...
) -> Shape: ...
def read_json(path: Path, shape: Any = Any, check: Callable[[Any], object] | None = None, *, advice: str = "") -> Any:
    """Return the content of a JSON file; check its checksum, and that it has the type `shape`, such as a TypedDict.

    `check` gets content of that type, and raises ValueError if its parts disagree. Numbers that `write_json` never
    writes are refused: NaN, infinity, and whole numbers of more than 64 bits.
    """
    with explain_damage(path, "not JSON", ValueError, RecursionError, advice=advice):
        text = path.read_bytes()
        content = _DECODER.decode(text.decode("utf-8"))
        if not _is_shallow(text):
            _check_depth(content)
        if b"\\u" in text:  # it may be half of a character, which no file can hold
            json.dumps(content, ensure_ascii=False).encode("utf-8")
    if shape is not Any:
        check_type(path, content, shape, advice=advice)
    if check is not None:
        try:
            check(content)
        except ValueError as error:
            raise damaged(path, str(error), advice) from None
    compare_bytes(path, text)  # last: the checks before it name the field that is wrong
    return content


def read_text(path: Path) -> str:
    """Return the content of a text file; check its checksum."""
    with explain_damage(path, "not UTF-8", UnicodeDecodeError):
        content = path.read_bytes()
        compare_bytes(path, content)
        return content.decode("utf-8")


def _whole(text: str) -> int:
    if len(text) > 20 or (number := int(text)).bit_length() > 64:
        raise ValueError(f"{text:.24} is too large a number")
    return number


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.24} is not a finite number")
    return number


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_finite)


def _is_shallow(text: bytes) -> bool:
    """Return whether brackets are at most `_DEEPEST` deep; False also if brackets in strings make that unclear."""
    brackets = text.translate(None, _NO_BRACKETS)
    for _ in range(_DEEPEST):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return not brackets


def _check_depth(content: Any) -> None:
    """Refuse a document that is nested so deeply that code which walks through it would fail."""
    level = [content]
    for _ in range(_DEEPEST):
        below = (value.values() if isinstance(value, dict) else value for value in level)
        level = [item for items in below for item in items if isinstance(item, (dict, list))]
        if not level:
            return
    raise ValueError(f"lists and objects inside each other, more than {_DEEPEST} deep")


def check_type(path: Path, content: Any, shape: Any, *, advice: str = "") -> Any:
    """Return the content of a file as `shape`, any type that pydantic knows; if it is of another type, say where."""
    from pydantic import ValidationError

    try:
        return _type_adapter(shape).validate_python(content, strict=True)
    except ValidationError as error:
        raise damaged(path, reasons(error), advice) from None


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
    text = mistake["msg"].removeprefix("Value error, ")
    return f"{where}: {text}{shown}" if where else f"{text}{shown}"


def canonical_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value; the order of keys does not matter."""
    return hashlib.sha256(canonical(value)).hexdigest()
