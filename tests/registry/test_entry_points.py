"""Entry points are those that importlib.metadata finds, and one distribution that is damaged hides no other."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from xmckit.registry import Registry
from xmckit.registry.entry_points import entry_points
from xmckit.registry.locations import Location


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, text: str | bytes, *, folder: str = "{}-1.2.dist-info", about: str = "") -> Path:
    info = site / folder.format(name.replace("-", "_"))
    info.mkdir(parents=True)
    head = about or f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n\nName: of the description\n"
    (info / ("METADATA" if folder.endswith("dist-info") else "PKG-INFO")).write_text(head)
    (info / "entry_points.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return info / "entry_points.txt"


def ours(group: str) -> set[tuple[str, str, str, str]]:
    return {(entry.name, entry.value, entry.distribution, entry.version) for entry in entry_points(group)}


def theirs(group: str) -> set[tuple[str, str, str, str]]:
    found = importlib.metadata.entry_points(group=group)
    return {(entry.name, entry.value, entry.dist.name, entry.dist.version) for entry in found if entry.dist}


@pytest.mark.parametrize("group", ["console_scripts", "pytest11", "xmckit", "xmckit.nothing"])
def test_what_is_installed_here(group):
    assert ours(group) == theirs(group)
    assert bool(ours(group)) == (group != "xmckit.nothing")


SEVERAL = """[other]
a = no

[made.up]
# a = no
a = one.two:three.four
b=five [extra]
  c  =  six : seven
[last]
d = no
"""


def test_every_place_and_form(site, monkeypatch):
    folders = ["{}-1.2.dist-info", "{}-1.2-py3.11.egg-info", "{}.egg-info", "odd.egg/EGG-INFO"]
    for n, folder in enumerate(folders):
        install(site, f"made-up.{n}", SEVERAL, folder=folder)
    (site / "not_a_folder.egg-info").write_text("Name: not-a-folder\n")
    later = site / "later"
    install(later, "Made_Up.0", "[made.up]\na = hidden", folder="Made_Up_0-3.dist-info")
    install(later, "made-up.9", "[made.up]\na = later")
    with zipfile.ZipFile(site / "packed.whl", "w") as packed:
        packed.writestr("packed-2.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 2\n")
        packed.writestr("packed-2.dist-info/entry_points.txt", "[made.up]\na = packed")
    monkeypatch.setattr(sys, "path", [*sys.path, *map(str, [site / "odd.egg", later, site / "packed.whl", "nowhere"])])
    assert ours("made.up") == theirs("made.up")
    found = {(entry.distribution, entry.name): entry for entry in entry_points("made.up")}
    assert len(found) == 4 * 3 + 2
    assert {name for name, _ in found} == {*(f"made-up.{n}" for n in (0, 1, 2, 3, 9)), "packed"}
    parts = {name: (entry.module, entry.attribute) for (home, name), entry in found.items() if home == "made-up.0"}
    assert parts == {"a": ("one.two", "three.four"), "b": ("five", ""), "c": ("six", "seven")}
    assert found["made-up.0", "b"].at == Location(str(site / "made_up.0-1.2.dist-info" / "entry_points.txt"), 7)


def test_other_ways_to_install_are_asked(site, monkeypatch):
    """Other finders on `sys.meta_path` that have distributions are asked too."""

    class Elsewhere(importlib.metadata.DistributionFinder):
        def find_distributions(self, context=None):
            yield importlib.metadata.Distribution.at(install(site / "away", "far", "[made.up]\na = far").parent)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Elsewhere()])
    assert ours("made.up") == {("a", "far", "far", "1.2")}


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("[xmckit]\nodd = not a module!", 2, "its entry point is 'not a module!', expected package.module or package."),
        ("[xmckit]\n\njust words", 3, "its entry point is '', expected package.module"),
        (b"[xmckit]\nodd = js\xffon", 2, "its entry point is 'js\ufffdon', expected package.module"),
        ("[xmckit]\nodd = xmckit_odd..module:", 2, "its entry point is 'xmckit_odd..module:', expected"),
    ],
)
def test_a_damaged_one_is_set_aside_alone(site, text, line, expected):
    file = install(site, "damaged", text)
    registry = Registry()
    (plugin,) = registry.problems
    assert plugin.distribution == "damaged"
    assert plugin.at == Location(str(file), line)
    assert expected in plugin.problem
    assert "bsl" in registry.names("head")


def test_damage_of_other_distributions_is_ignored(site):
    install(site, "strange", b"[console_scripts]\njust words\n\xff\xfe")
    install(site, "nameless", "[made.up]\na = b", about="\n")
    assert not Registry().problems
    assert ours("made.up") == {("a", "b", "nameless", "")}
