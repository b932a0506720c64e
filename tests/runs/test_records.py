"""The records of a run folder: errors name damaged files, and unknown fields are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from xmckit import store
from xmckit.errors import StorageError
from xmckit.runs import Run, find_run, find_runs
from xmckit.runs.records import check_diagnostics


@pytest.fixture
def run(tmp_path) -> Run:
    run = Run.create(tmp_path / "runs", "small", "0" * 64, "", "")
    stage = {"name": "data", "key": "k", "identity": {"kind": "dataset"}, "seconds": 1.0, "peak_bytes": 1}
    manifest = store.read_json(run.path / "manifest.json")
    manifest["stages"] = [{**stage, "folder": "stages/0-data", "reused": False, "more": 2}]
    store.write_record(run.path / "manifest.json", {**manifest, "note_of_mine": 1})
    return Run.open(run.path)


def test_keys_that_are_not_known_stay(run):
    run.update(status="done")
    written = store.read_json(run.path / "manifest.json")
    assert (written["status"], written["note_of_mine"], written["stages"][0]["more"]) == ("done", 1, 2)


def test_unknown_keys_without_a_value_stay_and_misspelt_fields_are_refused(run):
    path = run.path / "manifest.json"
    store.write_record(path, {**store.read_json(path), "later": None})
    again = Run.open(run.path)
    again.update(error="x")
    assert "later" in store.read_json(path)
    with pytest.raises(TypeError, match="a manifest has no stattus"):
        again.update(stattus="done")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"stages": 3}, "stages: Input should be an instance of Sequence"),
        ({"stages": [{}]}, r"stages\.0\.name: Field required; stages\.0\.key: Field required"),
        ({"stages": [7]}, r"stages\.0: Input should be a valid dictionary"),
        ({"machine": "x"}, "machine: Input should be"),
        ({"seed": "0"}, "seed: Input should be a valid integer, found '0'"),
        ({"seed": True}, "seed: Input should be a valid integer"),
        ({"versions": {"numpy": 1}}, r"versions\.numpy: Input should be a valid string"),
        ({"format": [1]}, "format: Input should be a valid integer"),
        ({"format": None}, "format: Input should be a valid integer"),
    ],
)
def test_a_damaged_manifest_is_named(run, change, text):
    path = run.path / "manifest.json"
    store.write_json(path, {**store.read_json(path), **change})
    with pytest.raises(StorageError, match=text):
        Run.open(run.path)
    assert find_runs(Path(run.root)) == []


def test_another_format_is_named_as_such(run):
    path = run.path / "manifest.json"
    store.write_json(path, {**store.read_json(path), "format": 7})
    with pytest.raises(StorageError, match="was written in run format 7 and this xmckit reads format 1"):
        Run.open(run.path)


METRICS = {
    "dataset": "d",
    "rows": 1,
    "labels": 1,
    "k": [1],
    "propensity": {"A": 0.5, "B": 1.5, "from": "default"},
    "results": [{"name": "bsl", "role": "head", "metrics": {"P@1": 1}}],
}


@pytest.mark.parametrize(
    ("file", "content", "read", "text"),
    [
        ("metrics.json", [], Run.metrics, "Input should be a valid dictionary"),
        ("metrics.json", {**METRICS, "rows": True}, Run.metrics, "rows: Input should be a valid integer"),
        ("metrics.json", {**METRICS, "results": [{}]}, Run.metrics, r"results\.0\.name: Field required"),
        ("verdicts.json", {"format": 1}, Run.verdicts, "verifier: Field required"),
        ("facts.json", [{"name": "bsl"}], Run.head_facts, r"0\.facts: Field required"),
        ("origins.json", [{"key": "seed"}], Run.origins, r"0\.value: Field required"),
        ("origins.json", "seed", Run.origins, "Input should be a valid list"),
    ],
)
def test_a_damaged_record_is_named(run, file, content, read, text):
    store.write_json(run.path / file, content)
    with pytest.raises(StorageError, match=text) as error:
        read(run)
    assert str(run.path / file) in str(error.value)


def test_records_keep_what_this_version_does_not_know(run):
    store.write_json(run.path / "metrics.json", {**METRICS, "later": 2})
    assert run.metrics() == {**METRICS, "later": 2}


def test_many_mistakes_are_counted(run):
    store.write_json(run.path / "origins.json", [{}] * 10)
    with pytest.raises(StorageError, match="; and 22 more"):
        run.origins()


def test_a_number_that_is_no_process_is_no_process(run):
    run.update(status="running", pid=10**30)
    assert run.status == "killed"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"folder": "../../outside"},
            r"stages: stage 'data' has the folder '\.\./\.\./outside', not one in",
        ),
        ({"folder": "/etc"}, "'/etc', not one in stages/"),
        ({"folder": "stages/.."}, "not one in stages/"),
        ({"folder": "stages/0-data\0"}, "not one in stages/"),
        ({"name": "../../x"}, r"'\.\./\.\./x' is not the name of a stage"),
        ({"name": "\x1b[31m"}, "is not the name of a stage"),
    ],
)
def test_a_stage_cannot_lead_out_of_its_run(run, change, text):
    path = run.path / "manifest.json"
    manifest = store.read_json(path)
    manifest["stages"][0] |= change
    store.write_json(path, manifest)
    with pytest.raises(StorageError, match=text) as error:
        Run.open(run.path)
    assert f"xmckit runs check --repair {run.path}" in str(error.value)


@pytest.mark.parametrize(
    "value", ["NaN", "1e999", "-Infinity", "1" + "0" * 30, "9" * 5000, "[" * 99 + "]" * 99, r'"\ud800"']
)
def test_what_is_never_written_is_not_read(run, value):
    path = run.path / "manifest.json"
    path.write_text(path.read_text("utf-8").replace('"note_of_mine": 1', f'"note_of_mine": {value}'))
    with pytest.raises(StorageError, match="not JSON"):
        Run.open(run.path)


@pytest.mark.parametrize("what", ["folder", "link to nothing", "link to itself", "nothing"])
def test_a_run_without_a_readable_manifest_is_still_named(run, what):
    path = run.path / "manifest.json"
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what != "nothing":
        path.symlink_to("missing" if what == "link to nothing" else path.name)
    unreadable = {}
    assert find_runs(Path(run.root), unreadable.__setitem__) == []
    assert list(unreadable) == [run.path]
    assert "manifest.json" in str(unreadable[run.path])


def test_a_recipe_does_not_mean_an_older_run_if_the_newest_cannot_be_read(run):
    run.update(status="done")
    newer, older = run.path.with_name("9" + run.path.name), run.path.with_name("0" + run.path.name)
    shutil.copytree(run.path, older)
    (older / "manifest.json").write_text("")
    assert find_run("small", run.root).path == run.path
    shutil.copytree(older, newer)
    with pytest.raises(StorageError, match=rf"{newer.name}/manifest\.json.* that can be read is {run.path}"):
        find_run("small", run.root)
    assert find_run(run.path.name, run.root).path == run.path


DEPTHS = {"predicted": [1.0, 2.0], "right": [1.0, 1.0], "gain": [0.5, 0.5], "best_gain": [1.0, 1.0]}
SYSTEM = {
    "name": "bsl", "role": "head", "all": DEPTHS, "thirds": {name: [values] for name, values in DEPTHS.items()},
    "bins": {name: values[:1] for name, values in DEPTHS.items()}, "calibration": None,
}  # fmt: skip
DIAGNOSTICS = {
    "frequency": {"rank": [1], "count": [3]}, "k": 1, "rows": 1, "edges": [0], "bin_labels": [1], "bin_pairs": [1],
    "groups": [{"name": "head", "labels": 1, "least": 1, "pairs": 1}], "systems": [SYSTEM],
}  # fmt: skip


def test_lists_that_belong_together_have_one_length():
    check_diagnostics(DIAGNOSTICS)
    for change, text in (
        ({"bin_pairs": []}, "bin_pairs has 0 entries, expected 1"),
        ({"frequency": {"rank": [1], "count": []}}, r"frequency\.count has 0 entries, expected 1"),
        ({"systems": [{**SYSTEM, "bins": DEPTHS}]}, r"systems\.0\.bins\.predicted has 2 entries, expected 1"),
        ({"systems": [{**SYSTEM, "all": {**DEPTHS, "gain": [1.0]}}]}, r"systems\.0\.all\.gain has 1 entries"),
    ):
        with pytest.raises(ValueError, match=text):
            check_diagnostics({**DIAGNOSTICS, **change})
