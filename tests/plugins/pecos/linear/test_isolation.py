"""PECOS in a subprocess, and recovery after it killed its process."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("pecos")

from pecos_problems import every_label
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear import bridge, isolation
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.options import TrainingOptions
from xmckit_pecos.tree import TreeIndexer
from xmckit_pecos.xrlinear import XRLinearHead

import xmckit
from xmckit import Context, DataError, PluginError, UsageError, processes, store

PREPARED = "import json, os, sys; sys.path[:] = json.loads(sys.argv[1]); "
DIES = PREPARED + "os.kill(os.getpid(), {})"
SEGFAULTS_IN_PECOS = PREPARED + (
    "from xmckit_pecos.linear import bridge, isolation; "
    "bridge.train = lambda *given, **more: os.kill(os.getpid(), 11); "
    "isolation.serve(sys.argv[2])"
)


def child_with(code: str):
    """A stand-in for `processes.command` whose child runs `code`."""
    return lambda target, *arguments: [sys.executable, "-c", code, json.dumps(sys.path), *arguments]


def with_files(tmp_path, **more) -> Context:
    return replace(Context(seed=3, folder=tmp_path), **more)


def files_of(component, folder) -> dict[str, bytes]:
    folder.mkdir()
    component.save(folder)
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if name != "params.json"}


def test_the_same_bits_as_in_this_process(tmp_path):
    train = every_label()
    data = np.random.default_rng(0).uniform(0.5, 2, train.Y.nnz).astype(np.float32)
    train = replace(train, weights=csr_matrix((data, train.Y.indices, train.Y.indptr), train.Y.shape))
    (tmp_path / "scratch").mkdir()
    context = with_files(tmp_path / "scratch")
    saved = []
    for isolated in (False, True):
        params = {"leaf_size": 5, "branching": 4, "isolated": isolated}
        index = TreeIndexer(**params, negatives="tfn+man").build(train, context=context)
        head = XRLinearHead(**params, threshold=0.0)
        head.fit(train, indexes=[index], context=context)
        saved.append([files_of(one, tmp_path / f"{isolated}-{name}") for name, one in (("i", index), ("h", head))])
    assert saved[0] == saved[1]
    assert not list((tmp_path / "scratch").iterdir())


def test_one_leaf_and_no_scratch_folder():
    train = every_label()
    found = []
    for isolated in (False, True):
        head = XRLinearHead(leaf_size=100, threshold=0.0, isolated=isolated)
        head.fit(train, context=Context())
        found.append(head.predict(train.matrix, 3).scores)
    assert np.array_equal(*found)


def trained(context, isolated=True, **more):
    train = every_label()
    tree = tree_of_leaves(np.arange(40) % 4, 4, 2, np.arange(40), 40)
    rows = TrainingRows(train.matrix, train.Y)
    return isolation.train(rows, tree, TrainingOptions(), context, isolated=isolated, **more)


@pytest.mark.parametrize(
    ("ending", "advice"),
    [
        (signal.SIGSEGV, "SIGSEGV .*Try --workers 1"),
        (signal.SIGABRT, "SIGABRT .*Try --workers 1"),
        (signal.SIGKILL, "SIGKILL .*memory ran out. Try a larger `prune`"),
        (signal.SIGILL, "SIGILL .*lacks an instruction"),
    ],
)
def test_a_death_by_signal_is_an_error_that_says_so(tmp_path, monkeypatch, ending, advice):
    monkeypatch.setattr(processes, "command", child_with(DIES.format(int(ending))))
    with pytest.raises(PluginError, match=rf"(?s)PECOS \(libpecos 1.2.8\) ended its process with {advice}") as error:
        trained(with_files(tmp_path))
    assert str(tmp_path / isolation.LAST_WORDS) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [isolation.LAST_WORDS]


def test_last_words_say_where(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "command", child_with(SEGFAULTS_IN_PECOS))
    with pytest.raises(PluginError, match="SIGSEGV"):
        trained(with_files(tmp_path))
    words = (tmp_path / isolation.LAST_WORDS).read_text()
    assert "Segmentation fault" in words
    assert "in _work" in words


def test_what_python_raises_there_is_raised_here(tmp_path, monkeypatch):
    train = every_label()
    other = tree_of_leaves(np.arange(40) % 8, 8, 2, np.arange(40), 40)
    wrong = bridge.train(TrainingRows(train.matrix, train.Y), other, TrainingOptions(), 1, to_leaves=True)
    with pytest.raises(UsageError, match="the matcher is over 8 leaves, the tree has 4"):
        trained(with_files(tmp_path), matcher=wrong)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(processes, "command", child_with(PREPARED + "raise ValueError('a bug')"))
    with pytest.raises(PluginError, match="ended with exit code 1: ValueError: a bug"):
        trained(with_files(tmp_path))


def test_nothing_is_left_alone_when_its_parent_is_killed(tmp_path):
    """The parent waits for a child that would sleep for minutes."""
    sleeps = PREPARED + (
        "import time; from xmckit_pecos.linear import isolation; "
        "isolation._work = lambda place: (place.parent / 'child').write_text(str(os.getpid())) and time.sleep(300); "
        "isolation.serve(sys.argv[2])"
    )
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pathlib import Path\n"
            "import test_isolation; from test_isolation import trained, isolation, Context\n"
            "test_isolation.processes.command = test_isolation.child_with(sys.argv[2])\n"
            "trained(Context(folder=Path(sys.argv[3])))",
            json.dumps([*sys.path, os.path.dirname(__file__)]),
            sleeps,
            str(tmp_path),
        ]
    )
    try:
        child = int(wait_for(lambda: (tmp_path / "child").is_file() and (tmp_path / "child").read_text()))
        assert store.process_alive(child)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: gone(child))


def gone(process: int) -> bool:
    """Also when nobody has asked yet how it ended."""
    try:
        with open(f"/proc/{process}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)
    return found


# In this process


def test_a_note_while_pecos_works(tmp_path, monkeypatch):
    seen = []

    def looks(*given, **more):
        seen.append((store.read_json(tmp_path / isolation.NOTE)["what"], faulthandler.is_enabled()))
        raise DataError("something else")

    monkeypatch.setattr(bridge, "train", looks)
    before = faulthandler.is_enabled()
    with pytest.raises(DataError, match="something else"):
        trained(with_files(tmp_path), isolated=False)
    assert seen == [("training the linear models", True)]
    assert not list(tmp_path.iterdir())
    assert faulthandler.is_enabled() == before


@pytest.mark.parametrize("content", ['{"what": "training the linear models", "pid": 1}', "{", "[]"])
def test_a_note_that_was_left_behind_isolates_pecos(tmp_path, monkeypatch, content):
    (tmp_path / isolation.NOTE).write_text(content)
    (tmp_path / "pecos-files-old").mkdir()
    monkeypatch.setattr(processes, "command", child_with(DIES.format(int(signal.SIGSEGV))))
    said: list[str] = []
    with pytest.raises(PluginError, match="SIGSEGV"):
        trained(with_files(tmp_path, log=said.append), isolated=False)
    assert said[0].startswith("an earlier attempt ended in PECOS")
    assert ("training the linear models" in said[0]) == ("what" in content)
    assert sorted(path.name for path in tmp_path.iterdir()) == [isolation.NOTE, isolation.LAST_WORDS]


ROWS = [("a robin sings", ["bird"]), ("the cat sleeps", ["cat"]), ("an old oak", ["tree"]), ("a cat hunts", ["hunt"])]
RECIPE = """
    validation = 0.0
    [data]
    use = "files"
    path = "rows.jsonl"
    [features]
    use = "tfidf"
    [index]
    use = "tree"
    leaf_size = 2
    branching = 2
    [head]
    use = "xrlinear"
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS * 8]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


def test_a_run_in_which_pecos_dies_is_whole_and_goes_on(recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(processes, "command", child_with(DIES.format(int(signal.SIGABRT))))
        with pytest.raises(PluginError, match="SIGABRT"):
            xmckit.run(recipe, root=tmp_path / "runs", sets=["head.isolated=true"])
    (stopped,) = (tmp_path / "runs" / "recipe").iterdir()
    manifest = store.read_json(stopped / "manifest.json")
    assert manifest["status"] == "failed"
    assert [stage["name"] for stage in manifest["stages"]] == ["data", "features", "index-tree"]
    result = xmckit.run(stopped / "resolved.toml", root=tmp_path / "runs", resume=stopped)
    assert result.run.status == "done"
    assert not (stopped / "scratch").exists()


def test_a_crash_in_this_process_has_words_and_goes_on(recipe, tmp_path):
    """What a user sees without `isolated`: where Python was, and when the run goes on, that it ended in PECOS."""
    crash = (
        "import json, os, sys; sys.path[:] = json.loads(sys.argv[1])\n"
        "from xmckit_pecos.linear import bridge\n"
        "bridge.train = lambda *given, **more: os.abort()\n"
        "import xmckit; xmckit.run(sys.argv[2], root=sys.argv[3])"
    )
    arguments = [json.dumps(sys.path), str(recipe), str(tmp_path / "runs")]
    command = [sys.executable, "-c", crash, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ended.stderr
    assert "isolation.py" in ended.stderr
    (stopped,) = (tmp_path / "runs" / "recipe").iterdir()
    assert xmckit.find_run(stopped, tmp_path).status == "killed"
    result = xmckit.run(stopped / "resolved.toml", root=tmp_path / "runs", resume=stopped)
    assert result.run.status == "done"
    assert (
        "an earlier attempt ended in PECOS, training the levels above the leaves" in (stopped / "log.txt").read_text()
    )
    assert not (stopped / "scratch").exists()
