"""Nothing runs from the working folder: every command is called in a folder with 150 modules that must not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest
from hostile_folder import DECOY, DEPENDENCIES, MARKS, STANDARD, fill

from xmckit import cli
from xmckit.cli import invocation

HERE = Path(__file__).parent
PROGRAM = Path(sysconfig.get_path("scripts"), "xmckit")

# Every command of the program, in an order in which each finds what it needs.
EXAMPLES: dict[str, list[str]] = {
    "run": ["small.toml"],
    "predict": ["small", "rows.jsonl", "--json"],
    "evaluate": ["small", "rows.jsonl"],
    "ensemble": ["small", "other", "--output", "both"],
    "compare": ["small", "other"],
    "verify": ["small", "--most", "2", "--set", "mode='chebyshev'"],
    "runs check": [],
    "runs clean": ["--yes"],
    "runs ls": [],
    "runs report": ["small"],
    "runs show": ["small"],
    "recipes cp": ["quickstart", "mine.toml"],
    "recipes ls": [],
    "recipes schema": [],
    "recipes show": ["small.toml", "--origin"],
    "recipes validate": ["small.toml"],
    "data convert": ["synthetic", "converted", "--to", "npz"],
    "data fetch": ["no-such-set"],
    "data info": ["python-source", "--param", "path='source'"],
    "data ls": [],
    "plugins check": ["metric:ranking"],
    "plugins ls": [],
    "plugins new": ["head", "mine"],
    "plugins show": ["head:bsl"],
    "plugins trace": [],
    "completion": ["bash"],
    "certificates check": ["small"],
    "argmax count": ["--labels", "5", "--dim", "2"],
    "argmax hasse": ["small", "--head", "bsl", "--label", "open", "--label", "close"],
    "argmax reach": ["small", "small"],
    "labels add": ["small", "new.jsonl", "--output", "added"],
    "labels inspect": ["small"],
    "search": ["small", "open"],
    "index show": ["small"],
    "doctor": [],
    "bench run": ["suite.toml"],
    "bench compare": ["results.json", "results.json"],
    "bench plot": ["results.json"],
    "bench table": ["results.json"],
}
# Their children import everything, or they need a second run.
SLOW = {"doctor", "bench run", "bench compare", "bench plot", "bench table", "ensemble", "compare"}
EXIT_CODES = {"data fetch": 2}  # there is no such set, and no network


def all_commands() -> list[str]:
    """Return the names of all commands and subcommands, those of plugins included."""

    def names(command: click.Command, context: click.Context, name: str) -> list[str]:
        if not isinstance(command, click.Group):
            return [name]
        found = []
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            assert below is not None
            found += names(below, click.Context(below, parent=context), f"{name} {child}".strip())
        return found

    with click.Context(cli.xmckit, obj=invocation.Call()) as context:
        return names(cli.xmckit, context, "")


@pytest.fixture
def folder(tmp_path):
    fill(tmp_path)
    return tmp_path


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}


def marks(folder: Path) -> list[str]:
    file = folder / MARKS
    return file.read_text().split() if file.exists() else []


def run_commands(folder: Path, outside: Path, names: list[str], *flags: str) -> None:
    """Run the commands in the folder, and check that each did its work and that no module of the folder ran."""
    commands = [[*name.split(), *EXAMPLES[name]] for name in names]
    second = [["run", "other.toml"]] if "ensemble" in names else []
    (outside / "commands.json").write_text(json.dumps(second + commands))
    files = [HERE / "hostile_folder.py", outside / "commands.json", outside / "codes.json"]
    driver = [sys.executable, *map(str, files), *flags]
    done = subprocess.run(driver, cwd=folder, env=variables(), capture_output=True, text=True, check=False)
    assert marks(folder) == [], done.stderr
    codes = json.loads((outside / "codes.json").read_text())
    assert dict(zip(names, codes[len(second) :], strict=True)) == {name: EXIT_CODES.get(name, 0) for name in names}, (
        done.stderr
    )


def test_every_command_has_an_example():
    assert sorted(EXAMPLES) == sorted(all_commands())


def test_the_decoys_are_found_by_a_python_that_searches_the_working_folder(folder):
    """Otherwise the tests below would prove nothing."""
    assert len(STANDARD) + len(DEPENDENCIES) > 150
    for name in ("json", "torch", "concurrent.futures", "numpy"):
        code = f"import sys; sys.modules.pop({name.partition('.')[0]!r}, None); import {name.partition('.')[0]}"
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables(), check=True)
    assert marks(folder) == ["json", "torch", "concurrent", "numpy"]


def test_no_command_runs_a_module_of_the_working_folder(folder, tmp_path_factory):
    run_commands(folder, tmp_path_factory.mktemp("outside"), [name for name in EXAMPLES if name not in SLOW])


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--plain"]])
def test_no_command_at_all_runs_a_module_of_the_working_folder(folder, tmp_path_factory, flags):
    run_commands(folder, tmp_path_factory.mktemp("outside"), list(EXAMPLES), *flags)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_the_program_itself_runs_none(folder, name):
    """Each command as a process of its own, with nothing of what it needs."""
    subprocess.run(
        [PROGRAM, *name.split(), *EXAMPLES[name]], cwd=folder, env=variables(), capture_output=True, check=False
    )
    assert marks(folder) == []


def test_python_with_the_module_option_forgets_the_working_folder(tmp_path):
    """Python itself may run files of the working folder before the first line of xmckit; these come later."""
    for name in ("click", "difflib", "json", "numpy", "pathlib", "pluggy", "torch"):
        (tmp_path / f"{name}.py").write_text(DECOY.format(marks=str(tmp_path / MARKS), name=name))
    command = [sys.executable, "-m", "xmckit", "data", "info", "synthetic"]
    done = subprocess.run(command, cwd=tmp_path, env=variables(), capture_output=True, text=True, check=False)
    assert (done.returncode, marks(tmp_path)) == (0, []), done.stderr
