"""Entry points of installed distributions, each with the line that it is written in.

`importlib.metadata.entry_points` does not say where an entry point is written, and one distribution with a damaged file
would hide all others. So its `distributions` are used, and their files are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from typing import Any, NamedTuple

from xmckit.kinds import load
from xmckit.registry.locations import Location

FILE = "entry_points.txt"
_VALUE = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\])?")


class EntryPoint(NamedTuple):
    """A line `name = package.module:attribute` of a distribution; `at` is where it is written, if known.

    The module is empty if the value is damaged, and the attribute if the value names none.
    """

    name: str
    value: str
    distribution: str
    version: str
    at: Location | None
    module: str
    attribute: str

    def load(self) -> Any:
        return load(f"{self.module}:{self.attribute}")


def entry_points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group. Of two distributions of the same name, the first on the path counts."""
    seen: set[str] = set()
    for distribution in distributions():
        folder = getattr(distribution, "_path", None)  # pip and setuptools use it too: there is no public name
        name = folder.name.rpartition(".")[0].partition("-")[0] if folder is not None else distribution.name
        normal_name = re.sub(r"[-_.]+", "-", name or "").lower()
        if normal_name in seen and name:
            continue
        seen.add(normal_name)
        lines = list(_lines_of(group, _read(distribution, FILE)))
        about = _name_and_version(distribution, name) if lines else ("", "")
        for number, key, value in lines:
            at = Location(str(folder / FILE), number) if folder is not None else None
            match = _VALUE.fullmatch(value)
            yield EntryPoint(key, value, *about, at, *((match[1], match[2] or "") if match else ("", "")))


def _read(distribution: Distribution, name: str) -> str:
    """Return the text of a file beside the metadata, with marks for damaged characters; empty if it cannot be read."""
    folder: Any = getattr(distribution, "_path", None)
    if folder is None:
        return distribution.read_text(name) or ""
    try:
        return str((folder / name).read_text(encoding="utf-8", errors="replace"))
    except (OSError, KeyError):  # KeyError: not in a zip file
        return ""


def _lines_of(group: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, name, value) of the entries below `[group]`."""
    section = ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == group and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield number, name.strip(), value.strip()


def _name_and_version(distribution: Distribution, name: str) -> tuple[str, str]:
    """Read both from the head of the metadata, without the slow parser of `Distribution.metadata`."""
    head = (_read(distribution, "METADATA") or _read(distribution, "PKG-INFO")).partition("\n\n")[0]
    fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head.splitlines())}
    return fields.get("name", name), fields.get("version", "")
