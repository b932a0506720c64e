import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from xmckit.cli import invocation
from xmckit.cli.recipes import recipes
from xmckit.errors import PluginError, RecipeError, StorageError, UsageError
from xmckit.params import Configured, Params
from xmckit.recipe import shipped_recipes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class HeadParams(Params):
    width: int = 3


class FakeHead(Configured):
    Params = HeadParams
    needs = frozenset()


class FakeRegistry:
    """One component of each kind that a recipe cannot do without."""

    problems = plugins = ()
    known = {
        "dataset": ["toy"],
        "featurizer": ["blocks"],
        "head": ["faulty", "mine", "popularity"],
        "metric": ["ranking", "sets"],
        "executor": ["threads"],
    }

    def names(self, kind):
        return self.known.get(kind, [])

    def resolve(self, kind, name):
        if name == "faulty":
            raise PluginError("head:faulty cannot be imported")
        return FakeHead if kind == "head" else Configured

    def component(self, kind, name):
        return SimpleNamespace(component=SimpleNamespace(name=name, summary=""))


GOOD = '[data]\nuse = "toy"\n[head]\nuse = "mine"\n'


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Run `xmckit recipes …` in an empty folder that holds one right and one wrong recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(invocation, "get_registry", FakeRegistry)
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "bad.toml").write_text(GOOD + "widht = 1\nwidth = true\n")

    def run(*arguments, fails=None):
        result = CliRunner().invoke(recipes, arguments)
        if fails is None:
            assert result.exit_code == 0, result.output
            return result.stdout
        assert isinstance(result.exception, fails), result.output
        return str(result.exception) if fails is not SystemExit else (result.exit_code, result.stdout)

    return run


def test_ls_names_every_shipped_recipe_with_its_title(call):
    rows = json.loads(call("ls", "--json"))
    assert {row["name"]: row["path"] for row in rows} == {name: str(file) for name, file in shipped_recipes().items()}
    assert "quickstart" in shipped_recipes()
    lines = call("ls").splitlines()
    assert [line.split("  ")[0].strip() for line in lines] == [row["name"] for row in rows]
    assert all(row["title"] and row["title"] in line for row, line in zip(rows, lines, strict=True))


def test_show_prints_toml_that_is_the_resolved_recipe(call):
    printed = tomllib.loads(call("show", "good.toml", "--set", "head.width=7"))
    assert printed["head"] == [{"use": "mine", "name": "mine", "width": 7}]
    assert printed == json.loads(call("show", "good.toml", "--set", "head.width=7", "--json"))


def test_show_says_where_values_come_from(call):
    printed = call("show", "good.toml", "--origin", "--set", "seed=4")
    assert "seed = 4  # --set seed=4" in printed.splitlines()
    assert 'use = "mine"  # good.toml:4' in printed.splitlines()
    assert "width = 3  # default" in printed.splitlines()
    both = json.loads(call("show", "good.toml", "--origin", "--json"))
    assert both["recipe"]["head"][0]["width"] == 3
    assert both["origins"]["head.0.use"] == "good.toml:4"


def test_show_reports_all_mistakes(call):
    message = call("show", "bad.toml", fails=RecipeError)
    assert [line.split(": ")[:2] for line in message.splitlines()] == [
        ["bad.toml:5", "head.widht"],
        ["bad.toml:6", "head.width"],
    ]


def test_cp_copies_exactly_and_overwrites_only_with_force(call, tmp_path):
    text = shipped_recipes()["quickstart"].read_text()
    assert call("cp", "quickstart").strip() == "quickstart.toml"
    assert (tmp_path / "quickstart.toml").read_text() == text
    (tmp_path / "quickstart.toml").write_text("mine")
    assert "exists already" in call("cp", "quickstart", fails=UsageError)
    assert (tmp_path / "quickstart.toml").read_text() == "mine"
    call("cp", "quickstart", "--force")
    assert (tmp_path / "quickstart.toml").read_text() == text
    (tmp_path / "folder").mkdir()
    call("cp", "bad.toml", "folder")
    assert (tmp_path / "folder" / "bad.toml").read_text() == (tmp_path / "bad.toml").read_text()
    assert "cannot be written" in call("cp", "quickstart", "no/such/folder.toml", fails=StorageError)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.toml", "folder", "good.toml", "quickstart.toml"]


def test_validate_prints_every_recipe_and_fails_if_one_is_wrong(call):
    assert call("validate", "good.toml") == "good.toml: ok\n"
    code, printed = call("validate", "good.toml", "bad.toml", fails=SystemExit)
    assert code == 2
    assert printed.splitlines()[:2] == ["good.toml: ok", "bad.toml: 2 mistakes"]
    code, printed = call("validate", "bad.toml", "nothing.toml", "--json", fails=SystemExit)
    assert [(row["recipe"], row["ok"], len(row["mistakes"])) for row in json.loads(printed)] == [
        ("bad.toml", False, 2),
        ("nothing.toml", False, 1),
    ]
    code, printed = call("validate", "good.toml", "--set", "head.use=faulty", fails=SystemExit)
    assert code == 4


def test_schema_is_json(call):
    schema = json.loads(call("schema"))
    assert {"data", "head", "seed", "extends"} <= set(schema["properties"])


def test_exit_codes_and_help_of_the_program(tmp_path):
    (tmp_path / "bad.toml").write_text("\nseed = \n")
    program = [sys.executable, "-m", "xmckit", "recipes"]
    wrong = subprocess.run(
        [*program, "validate", "bad.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert wrong.stdout.startswith("bad.toml: 1 mistake\n  bad.toml:2: not TOML: invalid value")
    shown = subprocess.run([*program, "show", "bad.toml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "bad.toml:2: not TOML" in shown.stderr
    assert "Traceback" not in shown.stderr
