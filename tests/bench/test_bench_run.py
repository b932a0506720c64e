"""A suite in child processes: what is done, what fails, what is skipped, what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from small_suite import HERE, SUITE, write_suite

from xmckit import RecipeError, UsageError, store
from xmckit.bench.cells import SuiteCell, read_rows
from xmckit.bench.results import changes, collect, read_results
from xmckit.bench.runner import run_suite
from xmckit.bench.suite import load_suite
from xmckit.cli.bench import bench
from xmckit.errors import StorageError
from xmckit.registry import default_registry
from xmckit.runs import Run

ONE_SEED = SUITE.replace("seeds = [0, 1]", "seeds = [0]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    write_suite(folder, ONE_SEED)
    return folder


@pytest.fixture(scope="module")
def suite(folder):
    return load_suite(folder / "small.toml", default_registry())


@pytest.fixture(scope="module")
def first(folder, suite):
    """The first sitting."""
    heard = []
    summary = run_suite(
        suite, folder / "work", registry=default_registry(), announce=lambda *about: heard.append(about)
    )
    return summary, heard


@pytest.fixture(scope="module")
def results(folder, suite, first):
    return collect(suite, folder / "work", draws=300)


def cell_of(suite, work, system, data="made-up"):
    found = next(one for one in suite.systems if one.name == system)
    return SuiteCell(suite, next(one for one in suite.data if one.name == data), found, 0, work)


def test_each_cell_ends_in_its_own_way_and_the_rest_goes_on(first):
    summary, heard = first
    assert summary.done == ["made-up / popularity / seed 0", "made-up / mine / seed 0", "made-up / worst / seed 0"]
    assert "crashed: SIGABRT" in summary.failed["made-up / crashing / seed 0"]
    assert "about to fail" in summary.failed["made-up / crashing / seed 0"]
    assert summary.failed["made-up / hanging / seed 0"] == "past its limit: stopped after 4 seconds"
    assert "not installed: No module named" in summary.failed["made-up / missing / seed 0"]
    assert "no data:" in summary.failed["gone / mine / seed 0"]
    assert "nowhere" in summary.failed["gone / mine / seed 0"]
    ended = [key for key, outcome in heard if outcome is not None]
    assert ended[-1] == "made-up / missing / seed 0"
    assert ended.count("gone") == 1  # a missing data set is reported once, not for each cell
    assert not any(key.startswith("gone /") for key in ended)


def test_a_cell_keeps_metrics_costs_versions_and_the_run(folder, suite, first):
    mine = cell_of(suite, folder / "work", "mine").outcome()
    assert mine["status"] == "done"
    run = Run.open(folder / "work" / mine["run"])
    own = store.read_json(run.path / "metrics.json")["results"][0]["metrics"]
    assert mine["metrics"] == own
    assert store.read_arrays(run.path / "predictions.npz")["indices"].shape == (100, 7)
    assert mine["data"] == {"rows": 300, "test_rows": 100, "features": 80, "labels": 12}
    for system in ("mine", "worst", "popularity"):
        outcome = cell_of(suite, folder / "work", system).outcome()
        assert outcome["seconds"] > 0
        assert outcome["cpu_seconds"] > 0
        assert outcome["peak_bytes"] > 2**20
        assert outcome["predict_seconds"] >= 0
        assert outcome["threads"] == 1
        assert outcome["versions"]["numpy"] == np.__version__
        assert outcome["machine"]["processors"] >= 1
        assert str(folder) not in json.dumps(outcome)
    assert cell_of(suite, folder / "work", "worst").outcome()["bytes"] == 12


def test_rows_add_up_to_the_metrics_of_the_cell(folder, suite, first):
    for system in ("mine", "worst", "popularity"):
        cell = cell_of(suite, folder / "work", system)
        totals = read_rows(cell.folder / "rows.npz").totals
        metrics = cell.outcome()["metrics"]
        assert totals == pytest.approx({name: metrics[name] for name in totals}, abs=1e-6)


def test_peers_get_the_rows_and_features_of_the_recipes(results):
    mean = {name: results.mean("made-up", name, "P@3") for name in ("popularity", "mine", "worst")}
    assert mean["popularity"] == mean["mine"]
    assert mean["worst"] < mean["mine"]
    made_up = results.data[0]
    assert made_up.standings["P@3"]["worst"].same is False
    assert made_up.standings["P@3"]["mine"].same is True
    duel = next(one for one in made_up.duels if one.metric == "P@3")
    assert (duel.recipe, duel.peer, duel.significant) == ("mine", "worst", True)
    assert duel.low <= duel.difference <= duel.high


def test_done_cells_are_skipped_failed_ones_wait_to_be_asked_for(folder, suite, first):
    work = folder / "work"
    before = (cell_of(suite, work, "mine").folder / "cell.json").stat().st_mtime_ns
    again = run_suite(suite, work, registry=default_registry(), only=["made-up"])
    assert len(again.skipped) == 3
    assert len(again.failed) == 3
    assert not again.done
    assert (cell_of(suite, work, "mine").folder / "cell.json").stat().st_mtime_ns == before
    retried = run_suite(suite, work, registry=default_registry(), only=["missing"], retry_failed=True)
    assert list(retried.failed) == ["made-up / missing / seed 0"]
    later = run_suite(suite, work, registry=default_registry(), only=["missing"], retry_failed=True, minutes=-1)
    assert later.later == ["made-up / missing / seed 0"]


def test_a_cell_that_asks_for_something_else_is_run_again(folder, suite, first):
    worst = next(one for one in suite.systems if one.name == "worst")
    same = cell_of(suite, folder / "work", "worst")
    other = replace(same, system=replace(worst, options={"worst": False}))
    assert same.identity(None) != other.identity(None)
    assert same.identity(None) == replace(same, system=replace(worst, title="renamed", limit=1)).identity(None)
    moved = replace(same, work=folder / "elsewhere")
    assert same.identity(None) == moved.identity(None)


def test_two_sittings_do_not_share_a_folder(folder, suite, first):
    with (
        store.locked(folder / "work" / ".lock", ""),
        pytest.raises(UsageError, match="being worked on by another process"),
    ):
        run_suite(suite, folder / "work", registry=default_registry())


def test_changed_data_runs_a_cell_again(folder, suite, first):
    from xmckit.bench.runner import CellJob, _is_current

    cell = cell_of(suite, folder / "work", "worst")
    outcome = cell.outcome()
    job = CellJob(cell, outcome["identity"], outcome["checksum"], (), 0.0)
    assert _is_current(outcome, job, retry_failed=True)
    assert not _is_current(outcome, replace(job, checksum="other"), retry_failed=False)
    assert not _is_current(outcome, replace(job, identity="other"), retry_failed=False)


def test_a_damaged_outcome_counts_as_none(tmp_path, suite):
    cell = cell_of(suite, tmp_path, "worst")
    cell.folder.mkdir(parents=True)
    for content in ("{", "[]", '{"format": 99}'):
        (cell.folder / "cell.json").write_text(content)
        assert cell.outcome() is None


def test_results_are_read_as_they_were_written(folder, results):
    from xmckit.bench.results import write_results

    write_results(results, folder / "copy.json")
    assert read_results(folder / "copy.json").to_json() == json.loads((folder / "copy.json").read_text())
    assert str(folder) not in (folder / "copy.json").read_text()
    (folder / "bad.json").write_text('{"format": 1, "suite": "x", "data": [{}]}')
    with pytest.raises(StorageError, match=r"bad\.json"):
        read_results(folder / "bad.json")


def test_changes_between_results(results):
    slower = [
        {**cell, "peak_bytes": 3 * cell["peak_bytes"]} if cell["system"] == "worst" and "metrics" in cell else cell
        for cell in results.cells
    ]
    found = {change.system: change for change in changes(results, replace(results, cells=slower))}
    assert set(found) == {"popularity", "mine", "worst"}
    assert found["worst"].memory_ratio == pytest.approx(3)
    assert found["mine"].memory_ratio == 1
    assert found["mine"].significant is None
    assert found["mine"].metrics["P@1"][0] == found["mine"].metrics["P@1"][1]
    with pytest.raises(UsageError, match="no system"):
        changes(results, replace(results, cells=[]))


def test_the_command_prints_tables_and_writes_results_and_page(folder, first, monkeypatch):
    monkeypatch.chdir(folder)

    def call(*arguments):
        answer = CliRunner().invoke(bench, list(arguments))
        assert answer.exit_code == 0, (answer.output, answer.exception)
        return answer.output

    text = call("run", "small.toml", "--work", "work", "--only", "made-up")
    assert "0 cells run, 3 done before, 3 failed" in text
    assert "failures" in text
    page = (folder / "page.md").read_text()
    assert page.startswith("Above.\n<!-- begin small -->\n### A small suite")
    assert page.endswith("<!-- end small -->\nBelow.\n")
    assert "\nold\n" not in page
    assert "| worst |" in page
    assert json.loads((folder / "out" / "results.json").read_text())["suite"] == "small"
    assert "| worst |" in call("table", "out/results.json", "--markdown")
    assert json.loads(call("table", "small.toml", "--work", "work", "--json"))["seeds"] == [0]
    assert "made-up / worst" in call("compare", "small.toml", "out/results.json", "--work-a", "work")
    tested = call("compare", "small.toml", "small.toml", "--work-a", "work", "--work-b", "work", "--json")
    assert json.loads(tested)[0]["significant"]["P@1"] is False
    call("table", "out/results.json", "--html", "suite.html")
    assert "worst" in (folder / "suite.html").read_text()
    call("plot", "out/results.json", "--metric", "P@3")
    assert "<svg" in (folder / "small.svg").read_text()


@pytest.mark.parametrize("also", [[], ["--json"]])
@pytest.mark.parametrize(("only", "code"), [("gone", 3), ("crashing", 1)])
def test_the_exit_code_of_a_sitting_in_which_all_failed(tmp_path, monkeypatch, only, code, also):
    monkeypatch.setattr("xmckit.bench.runner.run_cell", _failed)
    words = ["run", str(write_suite(tmp_path, ONE_SEED)), "--work", str(tmp_path / "work"), "--only", only, *also]
    answer = CliRunner().invoke(bench, words)
    assert answer.exit_code == code, answer.output
    if also:
        assert all(only in why or "popularity" in why for why in json.loads(answer.stdout)["summary"]["failed"])


def test_threads_announce_the_cells_that_they_run(tmp_path, monkeypatch):
    monkeypatch.setattr("xmckit.bench.runner.run_cell", _failed)
    suite = str(write_suite(tmp_path))
    words = ["run", suite, "--work", str(tmp_path / "work"), "--only", "mine", "--jobs", "2", "--executor", "threads"]
    answer = CliRunner().invoke(bench, words)
    assert answer.exit_code == 1, answer.exception
    assert answer.stderr.count("made-up / mine / seed 1") == 2


def _failed(job):
    return {"status": "failed", "reason": "crashed", "error": "as it was told"}


def test_a_killed_sitting_leaves_no_process_and_goes_on(tmp_path):
    write_suite(tmp_path, ONE_SEED.replace("limit = 4", "limit = 800"))
    command = [sys.executable, "-m", "xmckit", "bench", "run", "small.toml", "--only", "hanging", "--work", "work"]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    sitting = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    cells = tmp_path / "work" / "cells" / "made-up"
    try:
        assert _soon((cells / "popularity" / "seed-0" / "cell.json").is_file)
        assert _soon(lambda: _processes_of(cells / "hanging" / "seed-0" / "job.json"))
    finally:
        sitting.send_signal(signal.SIGKILL)
        sitting.wait()
    assert _soon(lambda: not _processes_of(cells / "hanging" / "seed-0" / "job.json"))
    assert not (cells / "hanging" / "seed-0" / "cell.json").exists()
    write_suite(tmp_path, ONE_SEED.replace("limit = 4", "limit = 2"))
    suite = load_suite(tmp_path / "small.toml", default_registry())
    again = run_suite(suite, tmp_path / "work", registry=default_registry(), only=["hanging"])
    assert again.skipped == ["made-up / popularity / seed 0"]
    assert list(again.failed) == ["made-up / hanging / seed 0"]


def _soon(true, seconds=600):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.1)
    return False


def _processes_of(job):
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            content = line.read_bytes()
        except OSError:
            continue
        if str(job).encode() in content:
            found.append(line)
    return found


def test_recipes_that_cannot_work_are_said_before_anything_runs(tmp_path):
    text = ONE_SEED.replace('set = ["score.top=7"]', 'set = ["score.top=7", "head.widht=3", "validation=2"]')
    write_suite(tmp_path, text)
    suite = load_suite(tmp_path / "small.toml", default_registry())
    with pytest.raises(RecipeError) as caught:
        run_suite(suite, tmp_path / "work", registry=default_registry())
    text = str(caught.value)
    assert "made-up / mine / seed 0" in text
    assert "widht" in text
    assert "validation" in text
    with pytest.raises(UsageError, match="'nonsense'"):
        run_suite(suite, tmp_path / "work", registry=default_registry(), only=["nonsense"])


def test_a_recipe_whose_heads_see_different_features_keeps_them(tmp_path):
    suite = load_suite(write_suite(tmp_path), default_registry())
    head = '[[head]]\nuse = "popularity"\n'
    views = '[[features]]\nuse = "blocks"\n[[features]]\nuse = "blocks"\nname = "long"\nnormalise = "l2"\n'
    (tmp_path / "mine.toml").write_text(
        '[data]\nuse = "stdlib-calls"\n' + views + head + head + 'name = "other"\nfeatures = "long"\n'
    )
    recipe = cell_of(suite, tmp_path / "work", "mine").recipe(suite.data[0].source, default_registry(), [])
    assert [section.name for section in recipe.features] == ["blocks", "long"]
    assert recipe.data.use == "synthetic"
    (tmp_path / "mine.toml").write_text('[data]\nuse = "stdlib-calls"\n[features]\nuse = "tfidf"\n' + head)
    recipe = cell_of(suite, tmp_path / "work", "mine").recipe(suite.data[0].source, default_registry(), [])
    assert [section.use for section in recipe.features] == ["blocks"]
