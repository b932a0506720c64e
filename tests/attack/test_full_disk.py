"""A disk that fills up at any moment of a run: the error names the file, and nothing half-written is left."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from xmckit import pipeline, store
from xmckit.cli import invocation
from xmckit.registry import Registry
from xmckit.runs import find_runs

PROGRAM = Path(sysconfig.get_path("scripts"), "xmckit")
RECIPE = """
[data]
use = "synthetic"
rows = 60
test_rows = 20
features = 30
labels = 12
topics = 3
[head]
use = "bsl"
dim = 4
epochs = 1
[verify]
use = "argmax"
most = 3
"""


class Disk:
    """Let the write number `fatal` and all later ones fail, as on a full disk; count the writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path):
        self.root, self.fatal, self.writes, self.fsync = str(root), -1, 0, os.fsync
        monkeypatch.setattr(os, "fsync", self.flush)
        monkeypatch.setattr(store.files, "open", self.open, raising=False)

    def flush(self, number: int) -> None:
        self.count()
        self.fsync(number)

    def count(self) -> None:
        self.writes += 1
        if self.writes > self.fatal >= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: Path, mode: str = "r", **options: object) -> io.IOBase:
        stream = open(path, mode, **options)  # type: ignore[call-overload]  # noqa: SIM115
        if "a" in mode:  # a line of a log, which is not flushed to the disk
            return _Line(stream, self)
        return stream


class _Line(io.RawIOBase):
    """A file that takes half of a line, and no more, when the disk is full."""

    def __init__(self, stream: io.RawIOBase, disk: Disk):
        self.stream, self.disk, self.half = stream, disk, False

    def write(self, content: bytes) -> int:  # type: ignore[override]
        if not self.half and self.disk.writes >= self.disk.fatal >= 0:
            self.half = True
            return self.stream.write(content[: len(content) // 2])
        self.disk.count()
        return self.stream.write(content)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.stream.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self.stream.truncate(size)

    def close(self) -> None:
        self.stream.close()


def check_run(root: Path) -> None:
    """Check that every file that is there is whole."""
    assert [path for path in root.rglob("*") if path.name.startswith(store.TEMPORARY)] == []
    for path in root.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)
    for path in root.rglob("*.json"):
        json.loads(path.read_text())
    for path in root.rglob("*.npz"):
        store.read_arrays(path)


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
    (tmp_path / "small.toml").write_text(RECIPE)
    return Disk(monkeypatch, tmp_path)


def writes_of_a_run(disk: Disk, tmp_path: Path, registry: Registry) -> int:
    pipeline.run(tmp_path / "small.toml", root=tmp_path / "whole", registry=registry)
    return disk.writes


def attack(disk: Disk, tmp_path: Path, registry: Registry, fatal: int) -> None:
    """Run with a disk that is full after `fatal` writes, check what is left, and resume with an empty disk."""
    root = tmp_path / f"after-{fatal}"
    disk.fatal, disk.writes = fatal, 0
    with pytest.raises(OSError, match="No space left") as caught:
        pipeline.run(tmp_path / "small.toml", root=root, registry=registry)
    text, code = invocation.explain(caught.value)
    assert str(root) in text.partition(": No space left on device. Free some space there")[0]
    assert code == 3
    disk.fatal = -1
    check_run(root)
    for run in find_runs(root):
        pipeline.run(tmp_path / "small.toml", root=root, registry=registry, resume=run.path)
        assert run.open(run.path).status == "done"
    check_run(root)


def test_a_run_survives_a_disk_that_is_full_at_some_moments(disk, tmp_path):
    registry = Registry()
    writes = writes_of_a_run(disk, tmp_path, registry)
    assert writes > 40
    for fatal in np.linspace(0, writes - 1, 8).astype(int):
        attack(disk, tmp_path, registry, int(fatal))


@pytest.mark.slow
def test_a_run_survives_a_disk_that_is_full_at_any_moment(disk, tmp_path):
    registry = Registry()
    for fatal in range(writes_of_a_run(disk, tmp_path, registry)):
        attack(disk, tmp_path, registry, fatal)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["recipes", "show", "quickstart"], ["plugins", "ls", "--json"]])
def test_an_output_that_cannot_be_written_is_an_error(arguments):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, check=False, env=variables)
    assert done.returncode == 3
    assert done.stderr.startswith(b"error: the output could not be written: No space left on device.")
    assert done.stderr.count(b"\n") == 1
