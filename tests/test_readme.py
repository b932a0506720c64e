"""What README says works as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.skipif(not README.is_file(), reason="README.md is not part of an installed xmckit")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)


def python(code: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_runs(tmp_path):
    (code,) = [block for block in blocks("python") if "xmckit.load" in block]
    first, *lines = python(code, tmp_path).splitlines()
    precision, report = first.split(maxsplit=1)
    assert 0.2 < float(precision) < 1, "popularity reaches 0.1"
    assert Path(report).is_file()
    assert len(lines) == 6


def test_the_plugin_runs_conforms_and_predicts(tmp_path):
    plugin, check = (block for block in blocks("python") if "NearestRows" in block)
    (tmp_path / "nearest.py").write_text(plugin)
    (tmp_path / "small.toml").write_text(
        '[data]\nuse = "synthetic"\nrows = 300\ntest_rows = 60\nfeatures = 300\nlabels = 60\ntopics = 6\n'
        '[head]\nuse = "nearest"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "xmckit", "-q", "run", "small.toml", "--plugin", "nearest.py", "--json"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    import json

    scores = {item["role"]: item["metrics"]["P@1"] for item in json.loads(done.stdout)["results"]}
    assert scores["head"] > scores["baseline"]
    (tmp_path / "test_nearest.py").write_text(check)
    checked = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_nearest.py", "-p", "no:cacheprovider"],
        check=False, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
    assert int(re.search(r"(\d+) passed", checked.stdout).group(1)) >= 8


def test_the_recipes_are_valid(tmp_path):
    from xmckit.recipe import load_recipe

    for folder in ("tickets", "products"):
        (tmp_path / folder).mkdir()
    for file in ("groups.txt", "group-labels.txt"):
        (tmp_path / file).touch()
    recipe, shortlists, groups = blocks("toml")
    (tmp_path / "mine.toml").write_text(recipe)
    assert load_recipe(tmp_path / "mine.toml").heads[0].params["dim"] == 128
    (tmp_path / "shortlists.toml").write_text(f'extends = "quickstart"\n{shortlists}')
    assert [index.use for index in load_recipe(tmp_path / "shortlists.toml").index] == ["overlap", "faiss"]
    (tmp_path / "groups.toml").write_text(f'title = "groups"\n{groups}[head]\nuse = "popularity"\n')
    assert load_recipe(tmp_path / "groups.toml").labels[0].use == "eagle"


def test_every_command_that_it_names_exists():
    from click.testing import CliRunner

    from xmckit.cli import xmckit

    named = set(re.findall(r"xmckit ([a-z]+)(?: ([a-z]+)\b)?", README.read_text("utf-8")))
    context = xmckit.make_context("xmckit", ["doctor"])
    checked = 0
    for command, subcommand in named:
        found = xmckit.get_command(context, command)
        if found is None:
            continue
        if subcommand and hasattr(found, "commands"):
            assert subcommand in found.commands, (command, subcommand)
            checked += 1
    assert checked >= 6
    assert CliRunner().invoke(xmckit, ["--help"]).exit_code == 0


def test_files_that_it_links_to_are_there():
    for link in re.findall(r"\]\(([^)#:]+)\)", README.read_text("utf-8")):
        assert (README.parent / link).exists(), link
