"""A plugin names the version of the contracts it was written for; one that does not fit is explained and set aside."""

from __future__ import annotations

import sys
import warnings

import pytest

import xmckit
from xmckit.hookspecs import API_VERSION, OLDEST_API_VERSION
from xmckit.kinds import KINDS, Kind
from xmckit.registry import Plugin, Registry, component_checks, manager
from xmckit.registry.plugins import FaultyPlugin

SOURCE = """
import xmckit

@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("versioned", "xmckit.components.popularity:PopularityHead", api_version={version})
"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (API_VERSION, ""),
        (OLDEST_API_VERSION, ""),
        (API_VERSION + 1, f"versioned was written for version {API_VERSION + 1} of the contracts"),
        (API_VERSION + 1, "upgrade xmckit"),
        (OLDEST_API_VERSION - 1, "upgrade the plugin"),
    ],
)
def test_versions(version, expected, tmp_path):
    file = tmp_path / "versioned_plugin.py"
    file.write_text(SOURCE.format(version=version))
    registry = Registry(files=[file])
    sys.modules.pop("versioned_plugin", None)
    assert ("versioned" in registry.names("head")) is not bool(expected)
    assert "popularity" in registry.names("head")
    assert expected in "".join(plugin.problem for plugin in registry.problems)
    assert [plugin.file for plugin in registry.problems] == ([str(file)] if expected else [])


def test_the_versions_are_public():
    assert (xmckit.API_VERSION, xmckit.OLDEST_API_VERSION) == (API_VERSION, OLDEST_API_VERSION)
    assert xmckit.Component("x", "y:z").api_version == 1, "what names no version was written for the first"


@pytest.mark.parametrize(
    ("version", "distribution", "expected"),
    [
        (5, "outside", "has version 4: upgrade xmckit (pip install --upgrade xmckit), or install an older outside"),
        (5, "", "has version 4: upgrade xmckit (pip install --upgrade xmckit)"),
        (2, "outside", "takes versions from 3 to 4: upgrade the plugin (pip install --upgrade outside)"),
        (2, "", "takes versions from 3 to 4: upgrade the plugin: `xmckit plugins new` writes a current one"),
        (3, "outside", ""),
        (4, "outside", ""),
    ],
)
def test_what_to_do_depends_on_who_is_behind(version, distribution, expected, monkeypatch):
    monkeypatch.setattr(component_checks, "API_VERSION", 4)
    monkeypatch.setattr(component_checks, "OLDEST_API_VERSION", 3)
    component = xmckit.Component("mine", "json:loads", api_version=version)
    plugin = Plugin("p", "installed" if distribution else "file", distribution)
    if not expected:
        component_checks.check_component(component, "xmckit_heads", plugin)
        return
    with pytest.raises(FaultyPlugin) as caught:
        component_checks.check_component(component, "xmckit_heads", plugin)
    assert f"mine was written for version {version} of the contracts" in str(caught.value)
    assert expected in str(caught.value)


OLD_HOOK = """
import xmckit

@xmckit.hookimpl
def xmckit_olds():
    return []

@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("still-there", "xmckit.components.popularity:PopularityHead")
"""


@pytest.fixture
def old_hook(monkeypatch, tmp_path):
    """A plugin for a hook that is about to go."""

    monkeypatch.setitem(KINDS, "old", Kind("old", "An old kind", deprecated="use xmckit_heads instead"))
    monkeypatch.setattr(manager, "_warned", set())
    file = tmp_path / "old_hook_plugin.py"
    file.write_text(OLD_HOOK)
    yield file
    sys.modules.pop("old_hook_plugin", None)


def test_a_deprecated_hook_works_and_warns_once(old_hook):
    with pytest.warns(FutureWarning, match="use xmckit_heads instead") as caught:
        first = Registry(files=[old_hook])
    (told,) = caught
    assert f"plugin 'old_hook_plugin' ({old_hook})" in str(told.message)
    assert (told.filename, told.lineno) == (str(old_hook), 4)
    assert "still-there" in first.names("head")
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        Registry(files=[old_hook])
    assert again == []


def test_a_plugin_without_deprecated_hooks_does_not_warn(old_hook):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any(plugin.deprecated for plugin in Registry().plugins)
