"""Edits of stored files: other values in every field, damaged bytes, other arrays, and things that are no files."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABOUT_LONG_LISTS = 6  # of a list with more items, the first, second and last are edited
RANDOM_FLIPS = 40
DELETED = "deleted"
# JSON texts that take the place of a field's value; `{outside}` is a folder that no command may open.
JSON_VALUES = (
    "null", "true", "0", "-1", "1", "0.5", "2147483648", "1e999", "NaN", "1" + "0" * 400, "9" * 5000, '""', '"x"',
    r'"\u001b[31m\u009bx\n"', r'"\ud800"', '"popularity"', '"../../../../outside/stage"', '"{outside}/stage"', '".."',
    "[]", "{}", "[null]", '["x"]', "[-1]", '{"a": {"b": []}}', "[" * 500 + "]" * 500, DELETED,
)  # fmt: skip
TOML_VALUES = (
    True, 0, -1, 1 << 40, 0.5, float("inf"), float("nan"), "", "x", "\x1b[31m\x9b", "popularity",
    "../../../../outside/stage", [], {}, [-1], [{}], DELETED,
)  # fmt: skip


_EXTREME_FLOATS, _EXTREME_INTEGERS = (float("nan"), float("inf"), -1e38), (-1, 2**31 - 1, -(2**31), 2**63 - 1)


class Edit(NamedTuple):
    """A name, and a function that puts something else in the place of a file."""

    name: str
    apply: Callable[[Path], None]


def edits(path: Path, outside: Path, seed: int) -> Iterator[Edit]:
    """Yield edits of the file; the same for the same content, `outside` and seed."""
    content = path.read_bytes()
    if path.suffix == ".json":
        yield from _json_edits(content, outside)
    elif path.suffix == ".toml":
        yield from _toml_edits(content)
    elif path.suffix == ".npz":
        yield from _array_edits(content)
    elif path.suffix == ".safetensors":
        yield from _tensor_edits(content, outside)
    yield from _byte_edits(content, random.Random(f"{seed} {len(content)} {path.name}"))
    yield from _other_things(outside)


def write(content: Callable[[], bytes]) -> Callable[[Path], None]:
    """Return a function that replaces a file; the old file may have other names, and those keep their content."""

    def apply(path: Path) -> None:
        path.unlink()
        path.write_bytes(content())

    return apply


# -- fields --------------------------------------------------------------------------------------------------------


def fields(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of the document itself and of every field, at any depth."""
    yield at
    if isinstance(value, dict):
        for key, item in value.items():
            yield from fields(item, (*at, key))
    elif isinstance(value, list):
        places = range(len(value)) if len(value) <= ABOUT_LONG_LISTS else (0, 1, len(value) - 1)
        for place in places:
            yield from fields(value[place], (*at, place))


def replaced(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at this path, or without the field."""
    if not at:
        return value
    document = copy.deepcopy(document)
    above = document
    for part in at[:-1]:
        above = above[part]
    if value is DELETED:
        del above[at[-1]]
    else:
        above[at[-1]] = value
    return document


def _json_edits(content: bytes, outside: Path) -> Iterator[Edit]:
    for name, text in json_texts(json.loads(content), outside):
        yield Edit(name, write(lambda text=text: text().encode("utf-8", "surrogatepass")))


def json_texts(document: Any, outside: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (name, JSON text) of the document with each field replaced by each value, removed, renamed or doubled."""
    for at in fields(document):
        where = ".".join(map(str, at)) or "(document)"
        for value in JSON_VALUES:
            yield (
                f"{where} = {value[:40]}",
                partial(_with_value, document, at, value.replace("{outside}", str(outside))),
            )
        if at and isinstance(at[-1], str):
            yield f"{where} renamed", partial(_renamed, document, at)
        elif at:
            yield f"{where} twice", partial(_doubled, document, at)


def _with_value(document: Any, at: tuple[Any, ...], value: str) -> str:
    if value == DELETED:
        return json.dumps(replaced(document, at, DELETED)) if at else ""
    mark = "the place of the value"
    return json.dumps(replaced(document, at, mark)).replace(json.dumps(mark), value)


def _renamed(document: Any, at: tuple[Any, ...]) -> str:
    return json.dumps(replaced(replaced(document, at, DELETED), (*at[:-1], "other"), 1))


def _doubled(document: Any, at: tuple[Any, ...]) -> str:
    document = copy.deepcopy(document)
    items = document
    for part in at[:-1]:
        items = items[part]
    items.insert(at[-1], items[at[-1]])
    return json.dumps(document)


def _toml_edits(content: bytes) -> Iterator[Edit]:
    document = tomllib.loads(content.decode())
    for at in fields(document):
        for value in TOML_VALUES if at else ():
            where = ".".join(map(str, at))
            yield Edit(f"{where} = {value!r:.40}", write(partial(_toml, document, at, value)))
    for name, text in (
        ("deep lists", "a = " + "[" * 5000),
        ("deep keys", "a." * 20000 + "a = 1"),
        ("a table twice", "[data]\n" * 2),
    ):
        yield Edit(name, write(lambda text=text: text.encode()))


def _toml(document: Any, at: tuple[Any, ...], value: Any) -> bytes:
    return tomli_w.dumps(replaced(document, at, value)).encode()


# -- arrays --------------------------------------------------------------------------------------------------------


def _array_edits(content: bytes) -> Iterator[Edit]:
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        for what, other in _other_arrays(array):
            yield Edit(f"array {name}: {what}", write(partial(_npz, {**arrays, name: other})))
        yield Edit(
            f"array {name} deleted", write(partial(_npz, {own: one for own, one in arrays.items() if own != name}))
        )


def _other_arrays(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    yield "no dimension", np.asarray(7, dtype=array.dtype) if array.dtype.kind in "iuf" else np.asarray(b"x")
    yield "one dimension more", array[..., None]
    yield "flat", array.reshape(-1)
    yield "texts", np.full(array.shape, "text")
    yield "complex", np.zeros(array.shape, complex)
    yield "dates", np.zeros(array.shape, "datetime64[s]")
    yield "records", np.zeros(array.shape, [("a", "i4"), ("b", "f8")])
    for dtype in ("float64", "float16", "int64", "int8", "uint64", "bool", ">i4"):
        if array.dtype.kind in "iufb":
            with np.errstate(all="ignore"):
                yield f"as {dtype}", array.astype(dtype)
    if array.ndim:
        yield "empty", array[:0]
        yield "without its last", array[:-1]
        yield "with its last twice", np.concatenate([array, array[-1:]])
        yield "backwards", array[::-1]
        if array.ndim > 1:
            yield "without its last column", array[:, :-1]
            yield "transposed", array.T
    if array.size and array.dtype.kind in "iuf":
        extremes = (
            [float("nan"), float("inf"), -1e38] if array.dtype.kind == "f" else [-1, 2**31 - 1, -(2**31), 2**63 - 1]
        )
        for value in extremes:
            for place in (0, array.size // 2, array.size - 1):
                other = array.copy()
                try:
                    other.reshape(-1)[place] = value
                except OverflowError:
                    continue
                yield f"{value} at {place}", other


def _npz(arrays: dict[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    return stream.getvalue()


def _tensor_edits(content: bytes, outside: Path) -> Iterator[Edit]:
    """Edit the header of a safetensors file: its length in 8 bytes, JSON, the tensors."""
    size = int.from_bytes(content[:8], "little")
    for name, text in json_texts(json.loads(content[8 : 8 + size]), outside):
        yield Edit(f"header: {name}", write(partial(_with_header, text, content[8 + size :])))
    for length in (0, size - 1, size + 1, len(content), 2**31, 2**63, 2**64 - 1):
        yield Edit(
            f"length of the header = {length}", write(lambda length=length: length.to_bytes(8, "little") + content[8:])
        )


def _with_header(text: Callable[[], str], tensors: bytes) -> bytes:
    header = text().encode("utf-8", "surrogatepass")
    return len(header).to_bytes(8, "little") + header + tensors


# -- bytes ---------------------------------------------------------------------------------------------------------


def _byte_edits(content: bytes, rng: random.Random) -> Iterator[Edit]:
    size = len(content)
    structured = {*range(min(size, 64)), *range(max(size - 64, 0), size)}  # headers, and the directory of a zip file
    chosen = sorted(structured | {rng.randrange(size) for _ in range(RANDOM_FLIPS if size else 0)})
    for place in chosen:
        bit = 1 << rng.randrange(8)
        yield Edit(f"bit {bit} of byte {place}", write(partial(_flipped, content, place, bit)))
    for length in sorted({0, 1, 4, size // 4, size // 2, size - 22, size - 1} & set(range(size))):
        yield Edit(f"cut to {length} bytes", write(lambda length=length: content[:length]))
    for name, added in (("zeros", b"\0" * 99), ("letters", b"x" * 99), ("itself", content)):
        yield Edit(f"followed by {name}", write(lambda added=added: content + added))
    texts = {"invalid UTF-8": b"\xff\xfe" + content, "zeros": b"\0" * size, "noise": rng.randbytes(size)}
    texts |= {"deep nesting": b"[" * 200_000, "a number": b"1", "a list": b"[]", "an object": b"{}"}
    for name, text in texts.items():
        yield Edit(f"replaced by {name}", write(lambda text=text: text))


def _flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def _other_things(outside: Path) -> Iterator[Edit]:
    def remove(path: Path) -> None:
        path.unlink()

    def folder(path: Path) -> None:
        path.unlink()
        path.mkdir()

    def link(target: str) -> Callable[[Path], None]:
        def apply(path: Path) -> None:
            path.unlink()
            path.symlink_to(target)

        return apply

    yield Edit("removed", remove)
    yield Edit("replaced by a folder", folder)
    yield Edit("replaced by a link to nothing", link("nothing-here"))
    yield Edit("replaced by a link to itself", lambda path: link(path.name)(path))


def restore(path: Path, original: Path) -> None:
    """Put the original file back in place of what an edit left there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    link_or_copy(original, path)


def link_or_copy(original: str | Path, path: str | Path) -> None:
    """Give a file a second name, or copy it if programs append to it in place."""
    if Path(original).suffix in (".jsonl", ".txt"):
        shutil.copyfile(original, path)
    else:
        os.link(original, path)
