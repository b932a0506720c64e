"""A run that is killed at any operation on its files resumes as if nothing had happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and fork")


def counts(*arguments: str) -> dict:
    """Run the attack in a process of its own: its forks must not have the threads of this one."""
    command = [sys.executable, "-m", "benchmarks.reliability.kills", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_runs_survive_a_few_kills():
    (count,) = counts("--recipe", "every-stage", "--points", "8").values()
    assert count["failures"] == []
    assert count["kills"] >= 8
    assert {"fsync", "link", "mkdir", "open", "open to write", "rename", "replace", "rmdir", "unlink"} == set(
        count["by_kind"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["small", "every-stage"])
def test_runs_survive_every_kill(recipe):
    (count,) = counts("--recipe", recipe).values()
    assert count["failures"] == []
    assert count["kills"] == 2 * count["operations"] > 500
