"""What ships: the wheel has plugins, recipes and the report's template, and runs from anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(xmckit_wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(xmckit_wheel) as archive:
        archive.extractall(folder)
    return folder


def call(unpacked: Path, cwd: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "xmckit", *arguments],
        check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PYTHONPATH": str(unpacked)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recipes_are_found_by_name_from_any_folder(unpacked, tmp_path):
    listed = json.loads(call(unpacked, tmp_path, "recipes", "ls", "--json"))
    assert {path.stem for path in (ROOT / "recipes").glob("*.toml")} <= {item["name"] for item in listed}
    assert all(str(unpacked) in item["path"] for item in listed), listed


def test_a_run_from_the_wheel_writes_its_report(unpacked, tmp_path):
    (tmp_path / "small.toml").write_text(
        '[data]\nuse = "synthetic"\nrows = 99\ntest_rows = 9\nlabels = 60\nfeatures = 99\n[head]\nuse = "popularity"\n'
    )
    result = json.loads(call(unpacked, tmp_path, "-q", "run", "small.toml", "--json"))
    assert Path(result["report"]).read_text().startswith("<!doctype html>")
    shown = json.loads(call(unpacked, tmp_path, "plugins", "show", "head:bsl", "--json"))
    assert str(unpacked) in shown["file"]


def test_the_examples_of_plugins_ship(unpacked, tmp_path):
    made = json.loads(call(unpacked, tmp_path, "plugins", "new", "label-preprocessor", "mine", "--json"))
    assert {Path(file).name for file in made["files"]} >= {"pyproject.toml", "__init__.py", "label_preprocessor.py"}


def test_nothing_else_ships(unpacked):
    tops = {path.name for path in unpacked.iterdir()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        "xmckit",
        "xmckit_argmax",
        "xmckit_eagle",
        "xmckit_faiss",
        "xmckit_heads",
        "xmckit_pecos",
    }
    assert (unpacked / "xmckit" / "py.typed").is_file()
    (info,) = unpacked.glob("*.dist-info")
    assert (info / "licenses" / "LICENSE").is_file()
