"""Two processes and one cache. Interleavings are forced: a process stops at a named step until the test lets it go."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from xmckit import pipeline, store
from xmckit.cli import xmckit as program
from xmckit.errors import StorageError
from xmckit.pipeline import cache as stage_cache
from xmckit.pipeline.cache import empty_cache
from xmckit.runs import Run, find_run, find_runs
from xmckit.runs import run as run_module
from xmckit.runs.sequence import next_in_sequence
from xmckit.store import files

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
"""

# A process that runs the recipe, and tells of its steps: it writes a word and stops until a line comes.
RUNNER = """
import sys
from xmckit import pipeline, store
from xmckit.pipeline import cache
from xmckit.pipeline.stages.head import HeadStage

recipe, root, *stops = sys.argv[1:]

def step(word):
    print(word, flush=True)
    if word in stops:
        assert sys.stdin.readline()

def before(owner, name, word):
    original = getattr(owner, name)
    def wrapped(*arguments, **options):
        step(word)
        return original(*arguments, **options)
    setattr(owner, name, wrapped)

before(HeadStage, "produce", "fitting")
before(cache.StageRunner, "_waiting", "waiting")
before(store, "link_tree", "linking")
result = pipeline.run(recipe, root=root)
print("reused", *(stage.name for stage in result.run.stages if stage.reused), flush=True)
"""


@pytest.fixture
def recipe(tmp_path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def start(recipe, tmp_path):
    """Start a process that runs the recipe and stops at some steps; all are killed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def start_one(*stops: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", RUNNER, str(recipe), str(tmp_path / "runs"), *stops]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start_one


def read_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """Return the words of the line that begins with `word`."""
    for line in process.stdout:
        if line.split()[0] == word:
            return line.split()
    raise AssertionError(f"the process ended without {word}")


def let_go(process: subprocess.Popen[str]) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(store.TEMPORARY) or path.suffix == ".lock"]


def metrics(root: Path) -> list:
    return [run.metrics() for run in find_runs(root)]


def test_the_second_process_waits_and_takes_what_the_first_has_made(start, tmp_path):
    first = start("fitting")
    read_until(first, "fitting")
    second = start()
    read_until(second, "waiting")
    let_go(first)
    assert read_until(first, "reused") == ["reused"]
    assert read_until(second, "reused") == ["reused", "data", "features", "head-popularity", "score"]
    one, two = metrics(tmp_path / "runs")
    assert one == two
    lines = [
        line for run in find_runs(tmp_path / "runs") for line in (run.path / "events.jsonl").read_text().splitlines()
    ]
    events = list(map(json.loads, lines))
    assert next(event["name"] for event in events if event["event"] == "stage-wait") == "head-popularity"
    assert leftovers(tmp_path / "runs" / ".cache") == []


def test_a_process_that_dies_blocks_nobody(start, recipe, tmp_path):
    first = start("fitting")
    read_until(first, "fitting")
    second = start()
    read_until(second, "waiting")
    first.kill()
    first.wait()
    assert read_until(second, "reused") == ["reused", "data", "features"]
    (killed,) = [run for run in find_runs(tmp_path / "runs") if run.status == "killed"]
    resumed = pipeline.run(recipe, resume=killed.path)
    assert [stage.reused for stage in resumed.run.stages] == [True] * 4
    one, two = metrics(tmp_path / "runs")
    assert one == two
    assert leftovers(tmp_path / "runs" / ".cache") == []


def test_a_stage_that_is_being_taken_is_not_cleaned_away(start, recipe, tmp_path):
    pipeline.run(recipe, root=tmp_path / "runs")
    process = start("linking")
    read_until(process, "linking")  # the data stage: it is in the cache, and was found complete
    busy: list[Path] = []
    assert empty_cache(tmp_path / "runs", busy.append) == 3
    assert [store.read_record(folder / "stage.json")["name"] for folder in busy] == ["data"]
    for _ in range(4):
        let_go(process)
    assert read_until(process, "reused") == ["reused", "data"]
    one, two = metrics(tmp_path / "runs")
    assert one == two


# -- the same without locks: the other process acts at the worst moment ------------------------------------------------


@pytest.fixture
def no_locks(monkeypatch):
    monkeypatch.setattr(files, "_take", lambda lock, waiting: True)


def once_before(monkeypatch, name: str, action) -> list[str]:
    """Let `action` happen right before the first call of a function of the store."""
    original, calls = getattr(store, name), []

    def wrapped(*arguments, **options):
        calls.append(name)
        if len(calls) == 1:
            action()
        return original(*arguments, **options)

    monkeypatch.setattr(store, name, wrapped)
    return calls


def test_a_stage_that_another_process_completes_is_not_removed(recipe, tmp_path, monkeypatch, no_locks):
    expected = pipeline.run(recipe, root=tmp_path / "other").metrics
    root = tmp_path / "runs"

    def complete_all() -> None:
        shutil.copytree(tmp_path / "other" / ".cache", root / ".cache", dirs_exist_ok=True)

    once_before(monkeypatch, "remove_folder", complete_all)  # after the check has found nothing
    theirs = []
    original = stage_cache.StageRunner._make

    def make(self, stage, identity) -> None:
        theirs.append((self.cache / stage.key).stat().st_ino)
        original(self, stage, identity)
        theirs.append((self.cache / stage.key).stat().st_ino)

    monkeypatch.setattr(stage_cache.StageRunner, "_make", make)
    result = pipeline.run(recipe, root=root)
    assert result.metrics == expected
    assert len(theirs) == 2
    assert theirs[0] == theirs[1], "the folder of the other process was replaced"
    assert leftovers(root / ".cache") == []


def test_a_stage_that_is_cleaned_away_before_it_is_linked_is_made_again(recipe, tmp_path, monkeypatch, no_locks):
    root = tmp_path / "runs"
    first = pipeline.run(recipe, root=root)
    calls = once_before(monkeypatch, "link_tree", lambda: empty_cache(root))
    second = pipeline.run(recipe, root=root)
    assert second.metrics == first.metrics
    assert len(calls) == 5
    assert not any(stage.reused for stage in second.run.stages)
    assert leftovers(root / ".cache") == []


def test_a_cache_that_somebody_keeps_deleting_is_an_error(recipe, tmp_path, monkeypatch, no_locks):
    root = tmp_path / "runs"
    original = store.link_tree

    def link_tree(source: Path, target: Path) -> None:
        empty_cache(root)
        original(source, target)

    monkeypatch.setattr(store, "link_tree", link_tree)
    with pytest.raises(StorageError, match=r"another process removes or changes this folder.*--resume"):
        pipeline.run(recipe, root=root)
    assert leftovers(root / ".cache") == []


def test_the_loser_of_two_that_make_the_same_stage_does_no_harm(recipe, tmp_path, monkeypatch, no_locks):
    root = tmp_path / "runs"
    results = []

    def run_the_other() -> None:
        results.append(pipeline.run(recipe, root=root))

    once_before(monkeypatch, "seal", run_the_other)  # the first has computed its data stage, the other overtakes it
    results.append(pipeline.run(recipe, root=root))
    assert results[0].metrics == results[1].metrics
    assert [run.status for run in find_runs(root)] == ["done", "done"]
    assert leftovers(root / ".cache") == []


# -- links and clocks ------------------------------------------------------------------------------------------------


def test_a_cache_that_is_a_link_is_refused(recipe, tmp_path):
    root, outside = tmp_path / "runs", tmp_path / "outside"
    pipeline.run(recipe, root=root)
    shutil.move(root / ".cache", outside)
    (root / ".cache").symlink_to(outside)
    before = sorted(outside.rglob("*"))
    for act in (lambda: pipeline.run(recipe, root=root), lambda: empty_cache(root)):
        with pytest.raises(StorageError, match=rf"\.cache is a symbolic link to {outside}: xmckit neither writes"):
            act()
    assert sorted(outside.rglob("*")) == before
    assert len(find_runs(root)) == 1, "a run that could only fail was created"


def test_links_in_the_cache_are_removed_and_not_followed(recipe, tmp_path):
    root, outside = tmp_path / "runs", tmp_path / "outside"
    first = pipeline.run(recipe, root=root)
    shutil.copytree(root / ".cache", outside)
    before = sorted(outside.rglob("*"))
    for folder in list((root / ".cache").iterdir()):
        shutil.rmtree(folder)
        folder.symlink_to(outside / folder.name)
    second = pipeline.run(recipe, root=root)
    assert second.metrics == first.metrics
    assert not any(stage.reused for stage in second.run.stages)
    assert f"a symbolic link to {outside}" in (second.path / "log.txt").read_text()
    assert not any(path.is_symlink() for path in root.rglob("*"))
    (root / ".cache" / ("0" * 64)).symlink_to(outside)
    (root / ".cache" / f"{store.TEMPORARY}{files._HOST}-999999999-ab-stage").symlink_to(outside)
    assert empty_cache(root) == 5
    assert list((root / ".cache").iterdir()) == []
    assert sorted(outside.rglob("*")) == before


def test_a_file_of_a_stage_that_was_replaced_by_a_link_is_not_followed(recipe, tmp_path):
    root = tmp_path / "runs"
    first = pipeline.run(recipe, root=root)
    path = next((root / ".cache").glob("*/metrics.json"))
    shutil.copy2(path, tmp_path / "elsewhere.json")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere.json")
    second = pipeline.run(recipe, root=root)
    assert second.metrics == first.metrics
    assert {stage.name for stage in second.run.stages if not stage.reused} == {"score"}


def test_the_newest_run_is_the_last_one_also_if_the_clock_went_back(tmp_path, monkeypatch):
    class Clock(datetime.datetime):
        moment = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)

        @classmethod
        def now(cls, tz=None):
            return cls.moment

    monkeypatch.setattr(run_module.datetime, "datetime", Clock)
    runs = []
    for year in (2030, 2029, 2031, 2028):
        Clock.moment = Clock.moment.replace(year=year)
        runs.append(Run.create(tmp_path, "one", "0" * 64, "", ""))
        runs[-1].update(status="done")
    assert [run.path for run in find_runs(tmp_path)] == [run.path for run in runs]
    assert find_run("one", tmp_path).path == runs[-1].path
    for run in runs:
        run.update(status="interrupted")  # a run that is done has metrics, which `runs ls` shows
    shown = CliRunner().invoke(program, ["-q", "runs", "ls", "--json", "--runs", str(tmp_path)])
    assert [row["run"] for row in json.loads(shown.output)] == [str(run.path) for run in runs]
    # A damaged run is the newest if its number says so; its name does not count.
    for run in runs:
        run.update(status="done")
    for damaged, newest in ((runs[3], None), (runs[2], runs[3])):
        content = (damaged.path / "manifest.json").read_text()
        (damaged.path / "manifest.json").write_text(content.replace('"name": "one"', '"name": 1'))
        if newest is None:
            with pytest.raises(StorageError, match=f"The newest run of 'one' that can be read is {runs[2].path}"):
                find_run("one", tmp_path)
        else:
            assert find_run("one", tmp_path).path == newest.path
        (damaged.path / "manifest.json").write_text(content)
    # An older version gave no numbers: its runs come first, by their names.
    for run in (runs[1], runs[0]):
        manifest = {
            name: value
            for name, value in run.manifest.to_json().items()
            if name not in ("sequence", "files", "checksum")
        }
        store.write_json(run.path / "manifest.json", manifest)
    assert [run.path for run in find_runs(tmp_path)] == [runs[1].path, runs[0].path, runs[2].path, runs[3].path]


def test_a_lost_counter_goes_on_behind_the_newest_run(tmp_path):
    numbers = [Run.create(tmp_path, "one", "0" * 64, "", "").manifest.sequence for _ in range(3)]
    assert numbers == [1, 2, 3]
    for damage in ("", "x", "-5", "9" * 27):
        (tmp_path / ".sequence").write_text(damage)
        assert next_in_sequence(tmp_path) == 4
    (tmp_path / ".sequence").unlink()
    assert Run.create(tmp_path, "two", "0" * 64, "", "").manifest.sequence == 4
    assert sorted(os.listdir(tmp_path)) == [".sequence", "one", "two"]


def test_processes_take_different_numbers(tmp_path):
    code = (
        "import sys; from pathlib import Path; from xmckit.runs.sequence import next_in_sequence;"
        "print('ready', flush=True); sys.stdin.readline();"
        f"print(*(next_in_sequence(Path({str(tmp_path)!r})) for _ in range(20)))"
    )
    command = [sys.executable, "-c", code]
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        for child in children:
            read_until(child, "ready")
        for child in children:
            let_go(child)
        lines = [list(map(int, child.stdout.read().split())) for child in children]
    assert all(line == sorted(line) for line in lines)
    assert sorted(number for line in lines for number in line) == list(range(1, 61))
