"""A plugin names the version of the contracts it was written for; one that does not fit is explained and set aside."""

from __future__ import annotations

import sys

import pytest

from xmckit.hookspecs import API_VERSION, OLDEST_API_VERSION
from xmckit.registry import Registry

SOURCE = """
import xmckit

@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("versioned", "xmckit.popularity:PopularityHead", api_version={version})
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
