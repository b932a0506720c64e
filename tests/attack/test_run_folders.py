"""Run folders with any field replaced and any file damaged: every command names what is wrong, and the rest works."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from file_edits import JSON_VALUES, json_texts
from run_forger import forge
from run_subjects import RECIPES, RUNS, commands, make_runs, run_of

from xmckit import store
from xmckit.cli import invocation
from xmckit.cli import xmckit as program
from xmckit.errors import XmckitError

pytest.importorskip("faiss", reason='faiss is not installed: pip install "xmckit[cpu]"')


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A folder with small finished runs."""
    folder = tmp_path_factory.mktemp("finished")
    make_runs(folder)
    return folder


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    """A copy of the runs for one test."""
    shutil.copytree(finished / RUNS, tmp_path / RUNS)
    return tmp_path


def leaves(
    command: click.Command, path: tuple[str, ...], context: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    inner = click.Context(command, parent=context)
    for name in command.list_commands(inner):
        found = command.get_command(inner, name)
        assert found is not None
        yield from leaves(found, (*path, name), inner)


def test_the_attack_calls_every_command_that_takes_runs(finished):
    called = [command.words for command in commands(finished)]
    with click.Context(program, obj=invocation.Call()) as context:
        of_runs = [path for path, command in leaves(program, (), context)
                   if any("--runs" in parameter.opts for parameter in command.params)]  # fmt: skip
    assert len(of_runs) > 10
    assert [path for path in of_runs if not any(words[: len(path)] == path for words in called)] == []


def test_no_edit_of_a_run_gets_through(finished):
    report = forge(finished, cases=100, calls=1, seed=0)
    assert report.failures == []
    assert report.cases == 100
    # Edits that nobody notices would make the attack worthless.
    assert report.codes["3"] > report.calls / 3


@pytest.mark.slow
def test_many_edits_of_all_files(finished):
    report = forge(finished, cases=20_000, calls=1, seed=1)
    assert report.failures == []


def list_runs(folder: Path, *more: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(program, ["runs", "ls", "--runs", str(folder / RUNS), *more], standalone_mode=False)
    error = result.exception
    return getattr(error, "exit_code", 1) if error is not None else 0, result.stdout, str(error)


@pytest.mark.parametrize("value", [value for value in JSON_VALUES if value != '"x"'])
def test_one_bad_run_does_not_hide_the_others(folder, value):
    bad = run_of(folder, "plain")
    manifest = store.read_json(bad / "manifest.json")
    text = json.dumps({**manifest, "status": "mark"}).replace('"mark"', value if value != "deleted" else "3")
    (bad / "manifest.json").write_text(text)
    code, output, message = list_runs(folder, "--json")
    listed = {row["run"]: row for row in json.loads(output)}
    assert code == 3
    assert {Path(run).parent.name for run in listed} == set(RECIPES)
    assert [run for run, row in listed.items() if row["status"] == "damaged"] == [str(bad)]
    assert str(bad / "manifest.json") in message
    assert f"runs check --repair {bad}" in message


def test_no_edit_of_a_suites_results_gets_through(tmp_path):
    """`bench table`, `plot` and `compare` read one JSON file, not a run."""
    file = tmp_path / "results.json"
    stored = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "smoke.json").read_text("utf-8"))
    texts = random.Random(0).sample(list(json_texts(stored, tmp_path / "outside")), 60)
    codes = Counter()
    for name, text in texts:
        file.write_bytes(text().encode("utf-8", "surrogatepass"))
        for words in (["table"], ["table", "--markdown"], ["table", "--html", str(tmp_path / "page.html")]):
            result = CliRunner().invoke(
                program, ["-q", "bench", words[0], str(file), *words[1:]], standalone_mode=False
            )
            error = result.exception
            assert error is None or isinstance(error, XmckitError), f"{name}: {error!r}"
            assert error is None or str(file) in str(error), f"{name}: {error}"
            codes[0 if error is None else error.exit_code] += 1
    assert codes[3] > 30
