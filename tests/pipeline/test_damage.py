"""Damage of a run folder or of the cache is seen when it is read, found by `xmckit runs check`, and repaired."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import xmckit
from xmckit import pipeline, store
from xmckit.cli import xmckit as program
from xmckit.errors import StorageError, UsageError
from xmckit.pipeline.check import _Checker, check_runs
from xmckit.runs import Run, find_run_folders, find_runs

ASSETS = Path(__file__).parents[1] / "assets"
RECIPE = """
[data]
use = "synthetic"
rows = 300
test_rows = 60
features = 200
labels = 40
topics = 4
[head]
use = "popularity"
[verify]
use = "argmax"
most = 5
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with two runs of one recipe, which share all stages."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.toml").write_text(RECIPE)
    for _ in range(2):
        pipeline.run(folder / "small.toml", root=folder / "runs")
    return folder


@pytest.fixture
def root(finished, tmp_path) -> Path:
    """A copy of those runs for one test, with the times of all files."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy" / "runs"


def runs_of(root: Path) -> list[Run]:
    return find_runs(root)


def flip(path: Path, position: int | None = None) -> None:
    """Change a byte and nothing else, as a bad disk does."""
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 4
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def invoke(*arguments: str | Path):
    return CliRunner().invoke(program, ["-q", *map(str, arguments)], catch_exceptions=False)


def check(root: Path, **options):
    return check_runs(root, find_run_folders((), root), **options)


def stored_files(root: Path) -> list[Path]:
    """All files that a record protects, and the records."""
    top = ("recipe.toml", "resolved.toml", "origins.json", "manifest.json", "metrics.json", "predictions.npz",
           "sets.npz", "facts.json", "verdicts.json", "certificates.npz")  # fmt: skip
    run = runs_of(root)[0].path
    below = [*(run / "stages").rglob("*"), *(root / ".cache").rglob("*")]
    return [*(run / name for name in top), *(path for path in below if path.is_file())]


def test_a_sound_folder_is_said_to_be_sound(root):
    report = check(root)
    assert report.damaged == []
    assert report.without_checksums == []
    assert (report.runs, report.cached_stages) == (2, 5)
    shown = invoke("runs", "check", "--runs", root)
    assert shown.exit_code == 0
    assert "read 2 runs and 5 cached stages" in shown.output
    assert "all sound" in shown.output


def test_every_damaged_file_is_found_and_no_other(root):
    for path in stored_files(root):
        content, times = path.read_bytes(), path.stat()
        flip(path)
        found = {(damage.run, damage.file) for damage in check(root).damaged}
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert len(found) == 1, (path, found)
        assert next(iter(found))[1].endswith(path.name)


@pytest.mark.parametrize("name", ["3-score/metrics.json", "2-head-popularity/head/counts.npz", "0-data/train/Y.npz"])
def test_damage_is_seen_when_it_is_read_and_repaired_from_a_sound_copy(root, name):
    run = runs_of(root)[0]
    expected = (run.path / "predictions.npz").read_bytes()
    path = run.path / "stages" / name
    sound = path.read_bytes()
    flip(path)
    with pytest.raises(StorageError, match=f"{path}.*damaged.*xmckit runs check --repair {run.path}.*--resume"):
        {"json": store.read_json, "npz": store.read_arrays}[path.suffix[1:]](path)
    found = invoke("runs", "check", "--runs", root, "--json")
    assert found.exit_code == 3
    (damage,) = json.loads(found.output)["damaged"]
    stage, file = name.split("/", 1)
    assert (damage["run"], damage["stage"], damage["file"]) == (str(run.path), stage.split("-", 1)[1], file)
    repaired = invoke("runs", "check", "--repair", "--runs", root, "--json")
    assert repaired.exit_code == 0
    assert json.loads(repaired.output)["damaged"][0]["repair"].startswith(f"restored from {root / '.cache'}")
    assert path.read_bytes() == sound
    assert check(root).damaged == []
    assert (run.path / "predictions.npz").read_bytes() == expected


def test_a_later_stage_sees_damage_in_what_it_reads(root):
    (path,) = (root / ".cache").glob("*/train/Y.npz")
    flip(path)
    recipe, sets = root.parent / "small.toml", ["validation=0.3"]
    with pytest.raises(StorageError, match=r"stages/0-data/train/Y\.npz.*damaged.*xmckit runs check --repair"):
        pipeline.run(recipe, sets=sets, root=root)
    stopped = runs_of(root)[-1]
    assert stopped.status == "failed"
    report = check(root, repair=True)
    assert {damage.repair.split(" ")[0] for damage in report.damaged} == {"restored"}
    assert pipeline.run(recipe, sets=sets, resume=stopped.path).run.status == "done"


def test_a_stage_without_a_sound_copy_is_dropped_and_made_again(root):
    before = {run.path: (run.path / "predictions.npz").read_bytes() for run in runs_of(root)}
    for folder in [root / ".cache", *(run.path for run in runs_of(root))]:
        for path in folder.rglob("head/counts.npz"):
            flip(path)
    shown = invoke("runs", "check", "--repair", "--runs", root)
    assert shown.exit_code == 0
    assert shown.output.count("dropped") == 3
    for run in runs_of(root):
        assert run.status == "interrupted"
        assert f"next: xmckit run --resume {run.path}" in shown.output
        with pytest.raises(UsageError, match=f"no trained head yet: continue with `xmckit run --resume {run.path}"):
            xmckit.load(run.path)
    assert check(root).damaged == []
    for run in runs_of(root):
        pipeline.run(root.parent / "small.toml", resume=run.path)
    assert {run.path: (run.path / "predictions.npz").read_bytes() for run in runs_of(root)} == before
    assert [run.status for run in runs_of(root)] == ["done", "done"]
    assert check(root).damaged == []


def test_a_damaged_manifest_is_written_again(root):
    """From what can be read, or from the recipe if nothing can; the stages are taken as they are."""
    first, second = (run.path for run in runs_of(root))
    manifest = first / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    (second / "manifest.json").write_text("{")
    assert invoke("runs", "check", "--runs", root).exit_code == 3
    shown = invoke("runs", "check", "--repair", "--runs", root)
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("manifest.json: ") == shown.output.count("→ written again") == 2
    for path in (first, second):
        resumed = pipeline.run(root.parent / "small.toml", resume=path).run
        assert resumed.status == "done"
        assert all(stage.reused for stage in resumed.stages)
    assert check(root).damaged == []


def test_a_run_whose_manifest_is_lost_stays_the_newest_of_its_recipe(root):
    older, newest = (run.path for run in runs_of(root))
    (newest / "manifest.json").unlink()
    with pytest.raises(StorageError, match=f"`xmckit runs check --repair {newest}` writes it again"):
        invoke("runs", "ls", "--runs", root)
    shown = invoke("runs", "check", "--repair", newest, "--runs", root)
    assert shown.exit_code == 0, shown.output
    assert "manifest.json: no such file → written again" in shown.output
    pipeline.run(root.parent / "small.toml", resume=newest)
    assert [run.path for run in runs_of(root)] == [older, newest]


def test_what_another_process_made_again_meanwhile_is_not_dropped(root, monkeypatch):
    """A check reads everything first, which may take minutes; the locks are taken after that."""
    sound = {path: path.read_bytes() for path in root.rglob("verdicts.json")}
    assert len(sound) == 5, "in the cache, and in two runs as a stage and at the top"
    for path in sound:
        flip(path)

    def resume(self):
        for path, content in sound.items():
            path.write_bytes(content)
        repair(self)

    repair = _Checker.repair_stages
    monkeypatch.setattr(_Checker, "repair_stages", resume)
    report = check(root, repair=True)
    assert {damage.repair for damage in report.damaged} == {"made again by another process"}
    assert len(report.damaged) == 5
    assert {path: path.read_bytes() for path in root.rglob("verdicts.json")} == sound
    assert [run.status for run in runs_of(root)] == ["done", "done"]


def test_a_damaged_copy_at_the_top_is_restored(root):
    run = runs_of(root)[0]
    flip(run.path / "verdicts.json")
    with pytest.raises(StorageError, match=r"verdicts\.json"):
        run.verdicts()
    flip(run.path / "recipe.toml")
    with pytest.raises(StorageError, match=r"recipe\.toml"):
        run.recipe_text()
    report = check(root, repair=True)
    assert {damage.file: bool(damage.repair) for damage in report.damaged} == {
        "verdicts.json": True, "recipe.toml": False,
    }  # fmt: skip
    assert run.verdicts()["assignments"] == 5


def test_what_xmckit_verify_wrote_is_read_too(root):
    run = runs_of(root)[0]
    assert invoke("verify", run.path, "--most", 3).exit_code == 0
    assert check(root).damaged == []
    flip(run.path / "verify" / "test" / "assignments.npz")
    report = check(root, repair=True)
    assert [(damage.stage, damage.file, damage.repair) for damage in report.damaged] == [
        ("verify/test", "assignments.npz", "dropped")
    ]
    assert report.next[0].startswith(f"xmckit verify {run.path}")
    assert check(root).damaged == []
    assert run.status == "done"


def test_only_named_runs_are_read(root):
    first, second = (run.path for run in runs_of(root))
    flip(second / "stages" / "0-data" / "stage.json")
    assert invoke("runs", "check", first, "--runs", root).exit_code == 0
    assert invoke("runs", "check", second.name, "--runs", root).exit_code == 3
    with Run.open(second).locked():
        shown = invoke("runs", "check", "--repair", second, "--runs", root)
    assert shown.exit_code == 3
    assert "a process is working on this run" in shown.output


def test_a_write_through_one_run_is_never_served_to_another(root):
    """Whatever file of a run is changed in place: the next run gives the same results, or says what is damaged."""
    run = runs_of(root)[0]
    expected = (run.path / "predictions.npz").read_bytes(), (run.path / "metrics.json").read_bytes()
    for path in sorted((run.path / "stages").rglob("*")):
        if path.is_file():
            with open(path, "r+b") as stream:
                stream.seek(path.stat().st_size // 2)
                stream.write(b"!")
    other = pipeline.run(root.parent / "small.toml", root=root)
    assert ((other.path / "predictions.npz").read_bytes(), (other.path / "metrics.json").read_bytes()) == expected
    assert {damage.run for damage in check(root).damaged} == {str(run.path)}
    with pytest.raises(StorageError, match="damaged"):
        xmckit.load(run.path)


def test_large_files_are_shared_but_a_write_through_them_is_noticed(tmp_path):
    (tmp_path / "large.toml").write_text(RECIPE.replace("rows = 300", "rows = 20000"))
    first = pipeline.run(tmp_path / "large.toml", root=tmp_path / "runs")
    path = first.run.stage_folder("data") / "train" / "X0.npz"
    assert path.stat().st_size > 1 << 18
    path.chmod(0o644)
    with open(path, "r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        stream.write(b"!")
    again = pipeline.run(tmp_path / "large.toml", root=tmp_path / "runs")
    assert again.metrics == first.metrics
    copy = again.run.stage_folder("data") / "train" / "X0.npz"
    assert store.read_csr(copy).nnz
    if not again.run.stages[0].reused:  # the cache had a hard link to the file
        assert "is not the finished stage data" in (again.path / "log.txt").read_text()


def test_runs_of_older_versions_have_no_checksums(tmp_path):
    pytest.importorskip("xmckit_pecos", reason="the run has a label tree")
    with zipfile.ZipFile(ASSETS / "run_of_0_1.zip") as archive:
        archive.extractall(tmp_path / "runs" / "older")
    shown = invoke("runs", "check", "--runs", tmp_path / "runs")
    assert shown.exit_code == 0, shown.output
    assert "of an older version without checksums: only sizes were compared" in shown.output
    report = check(tmp_path / "runs")
    assert str(tmp_path / "runs" / "older" / "run") in report.without_checksums
