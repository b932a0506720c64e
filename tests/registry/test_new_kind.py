"""A new kind of component is one entry of the table in xmckit.kinds: no other module knows the kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import new_kind
import pytest
from click.testing import CliRunner

import xmckit
from xmckit.cli import xmckit as program
from xmckit.errors import PluginError, RecipeError
from xmckit.kinds import KINDS
from xmckit.recipe.schema import recipe_schema
from xmckit.registry import Registry, as_default
from xmckit.testing import check_component, summarise

RECIPE = """
[data]
use = "synthetic"
[head]
use = "popularity"
[[score.metrics]]
use = "on-a-sample"
sampler = {{ use = "every-other", step = {step} }}
"""
WITH_A_SECTION = """
import new_kind
from xmckit.kinds import KINDS
KINDS["sampler"] = new_kind.SAMPLER

from pathlib import Path
from xmckit.recipe import load_section
from xmckit.recipe.schema import recipe_schema
from xmckit.registry import Registry

registry = Registry(files=[Path(new_kind.__file__)])
assert recipe_schema(registry)["properties"]["sample"]["description"] == "How rows are drawn."
print(load_section("sample", {"step": 3}, registry=registry).resolved())
"""


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setitem(KINDS, "sampler", new_kind.SAMPLER)
    registry = Registry(files=[Path(new_kind.__file__)])
    assert not registry.problems
    with as_default(registry):
        yield registry


def test_its_components_are_listed_and_resolved(registry):
    assert registry.names("sampler") == ["every-other", "nothing", "too-far"]
    assert registry.resolve("sampler", "every-other") is new_kind.EveryOther
    with pytest.raises(PluginError, match=r"lacks draw\(\)"):
        registry.resolve("sampler", "nothing")
    result = CliRunner().invoke(
        program, ["plugins", "ls", "--kind", "sampler", "--plugin", new_kind.__file__, "--json"]
    )
    assert [item["name"] for item in json.loads(result.stdout)["components"]] == registry.names("sampler")


def test_its_components_are_checked(registry):
    assert summarise(check_component("sampler", "every-other")).ok
    failed = [result.name for result in check_component("sampler", "too-far") if result.status == "failed"]
    assert failed == ["draws_existing_rows"]


def test_recipes_name_its_components_inside_others(registry, tmp_path):
    file = tmp_path / "sampled.toml"
    file.write_text(RECIPE.format(step=3))
    recipe = xmckit.load_recipe(file, registry=registry)
    assert recipe.score.metrics[0].params == {"sampler": {"use": "every-other", "step": 3}}
    file.write_text(RECIPE.format(step=0))
    with pytest.raises(RecipeError, match=r"score\.metrics\.sampler\.step: expected a whole number of 1 or more"):
        xmckit.load_recipe(file, registry=registry)
    choices = recipe_schema(registry)["$defs"]["kind.sampler"]["properties"]["use"]["oneOf"]
    assert [choice["const"] for choice in choices] == registry.names("sampler")


def test_a_section_of_its_own_is_checked_and_in_the_schema():
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_SECTION],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "{'use': 'every-other', 'step': 3}\n", done.stderr
