"""The records of a run folder: what is damaged is named, and what this version does not know is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from xmckit import store
from xmckit.errors import StorageError
from xmckit.runs import Run, find_runs


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run.create(tmp_path / "runs", "small", "0" * 64, "", "")
    stage = {"name": "data", "key": "k", "identity": {"kind": "dataset"}, "seconds": 1.0, "peak_bytes": 1}
    manifest = store.read_json(run.path / "manifest.json")
    manifest["stages"] = [{**stage, "folder": "stages/0-data", "reused": False, "more": 2}]
    store.write_json(run.path / "manifest.json", {**manifest, "note_of_mine": 1})
    return Run.open(run.path)


def test_keys_that_are_not_known_stay(run):
    run.update(status="done")
    written = store.read_json(run.path / "manifest.json")
    assert (written["status"], written["note_of_mine"], written["stages"][0]["more"]) == ("done", 1, 2)
    assert "rest" not in written
    assert "rest" not in written["stages"][0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stages": 3}, "stages is 3"),
        ({"stages": [{}]}, "without name, key"),
        ({"stages": [7]}, "expected an object, found int"),
        ({"machine": "x"}, "machine is 'x'"),
        ({"seed": "0"}, "seed is '0'"),
    ],
)
def test_a_damaged_manifest_is_named(run, change, text):
    path = run.path / "manifest.json"
    store.write_json(path, {**store.read_json(path), **change})
    with pytest.raises(StorageError, match=text):
        Run.open(run.path)
    assert find_runs(Path(run.root)) == []


def test_a_number_that_is_no_process_is_no_process(run):
    run.update(status="running", pid=10**30)
    assert run.status == "killed"
