"""Entry points of installed distributions.

importlib.metadata finds the same, but its import alone takes as long as that of click, which every `--help` and every
press of the tab key would pay for; and one distribution with a damaged file would hide all others. It is asked only
about places that are no plain folders.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial, reduce
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from xmckit.registry.locations import Location

NAMES = "entry_points.txt"
_METADATA = (".dist-info", ".egg-info")
_VALUE = re.compile(r"([\w.]+)\s*(?::\s*([\w.]+)\s*)?(?:\[.*\])?")


class EntryPoint(NamedTuple):
    """A line `name = package.module:attribute` of a distribution; `at` is where it is written, where that is known."""

    name: str
    value: str
    distribution: str
    version: str
    at: Location | None

    @property
    def module(self) -> str:
        found = _VALUE.fullmatch(self.value)
        return found[1] if found else ""

    @property
    def attribute(self) -> str:
        found = _VALUE.fullmatch(self.value)
        return found[2] or "" if found else ""

    def load(self) -> Any:
        return reduce(getattr, filter(None, self.attribute.split(".")), importlib.import_module(self.module))


class _Distribution(NamedTuple):
    """`read` gives the text of one of its files by name, empty if there is none; `folder` is where they are."""

    name: str
    read: Callable[[str], str]
    folder: str = ""


def entry_points(group: str) -> Iterator[EntryPoint]:
    """The entry points of a group; of two distributions of the same name, the first on the path counts."""
    seen: set[str] = set()
    for home in _distributions():
        name = re.sub(r"[-_.]+", "-", home.name).lower()
        if name in seen:
            continue
        seen.add(name)
        found = list(_lines_of(group, home.read(NAMES)))
        about = _about(home) if found else ("", "")
        for line, (name, value) in found:
            at = Location(os.path.join(home.folder, NAMES), line) if home.folder else None
            yield EntryPoint(name, value, *about, at)


def _distributions() -> Iterator[_Distribution]:
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        yield from _others()
        return
    for place in sys.path:
        if os.path.isfile(place) or place.endswith(".egg"):
            yield from _others(path=[place])
        else:
            yield from _in_folder(place or ".")


def _in_folder(folder: str) -> Iterator[_Distribution]:
    try:
        names = os.listdir(folder)
    except OSError:  # a path may name what is not there
        return
    for name in names:
        if name.lower().endswith(_METADATA):
            home = os.path.join(folder, name)
            yield _Distribution(name.rpartition(".")[0].partition("-")[0], partial(_read, home), home)


def _read(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _others(**options: Any) -> Iterator[_Distribution]:
    """What importlib.metadata finds, in zip files too."""
    from importlib.metadata import distributions

    for found in distributions(**options):
        yield _Distribution(found.name or "", partial(_told, found))


def _told(found: Any, name: str) -> str:
    return found.read_text(name) or ""


def _lines_of(group: str, text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """The names and values below `[group]`, each with the number of its line."""
    section = ""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif section == group and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield number, (name.strip(), value.strip())


def _about(home: _Distribution) -> tuple[str, str]:
    """Name and version of a distribution, which stand at the head of its metadata."""
    head = (home.read("METADATA") or home.read("PKG-INFO")).partition("\n\n")[0]
    fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head.splitlines())}
    return fields.get("name", home.name), fields.get("version", "")
