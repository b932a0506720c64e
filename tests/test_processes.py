"""Processes that this one starts: what they import, and when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from xmckit import store
from xmckit.processes import command, describe_exit, end_with_stdin


def report(path: str) -> None:
    """Write the path that the child searches, and where it found `json`."""
    import json

    with open(path, "w", encoding="utf-8") as stream:
        json.dump({"path": sys.path, "json": json.__file__}, stream)


def sleep(path: str) -> None:
    import time

    end_with_stdin()
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(str(os.getpid()))
    time.sleep(300)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))


@pytest.mark.usefixtures("importable")
def test_a_child_searches_the_same_folders_and_never_the_working_folder(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "sys.py").write_text("raise SystemExit('the wrong sys')")
    output = tmp_path / "output.json"
    subprocess.run(command("test_processes:report", str(output)), check=True, cwd=tmp_path)
    found = store.read_json(output)
    assert found["path"] == [os.path.abspath(entry) for entry in sys.path if entry]
    assert not found["json"].startswith(str(tmp_path))


@pytest.mark.usefixtures("importable")
def test_a_child_ends_when_its_stdin_is_closed(tmp_path):
    child = subprocess.Popen(command("test_processes:sleep", str(tmp_path / "pid")), stdin=subprocess.PIPE)
    try:
        while child.poll() is None and not (tmp_path / "pid").is_file():
            pass
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == 1
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-signal.SIGSEGV, "SIGSEGV (Segmentation fault)"), (-35, "signal 35")],
)
def test_how_a_process_ended(code, text):
    assert describe_exit(code) == text
