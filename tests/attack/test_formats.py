"""Every mutated file of every format is read, or refused by an error that names it; no input ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("needs limits on the memory of a process", allow_module_level=True)

from file_targets import targets
from format_fuzzer import READ, REFUSED, attack_all

FAST, SLOW, GUIDED = 2_500, 900_000, 100_000
GUIDED_FUZZER = Path(__file__).with_name("guided_fuzzer.py")


def _report(failures) -> str:
    return "\n".join(
        f"{one['target']}, input {one['input']}: {one['outcome']}\n{one['details']}" for one in failures[:5]
    )


def _check(result, inputs: int) -> None:
    assert not result["failures"], _report(result["failures"])
    assert result["inputs"] >= 0.95 * inputs
    for name, counts in result["outcomes"].items():
        assert counts.keys() <= {READ, REFUSED}, name
        assert counts.get(REFUSED, 0) >= sum(counts.values()) / 50, f"{name}: the mutations do no harm"


def test_mutated_files_are_read_or_refused(tmp_path):
    _check(attack_all(FAST, keep=tmp_path), FAST)


@pytest.mark.slow
def test_a_million_mutated_files_are_read_or_refused(tmp_path):
    _check(attack_all(SLOW, first=1_000_000, keep=tmp_path), SLOW)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("name", targets())
def test_inputs_that_reach_new_code_are_read_or_refused(name, tmp_path):
    if find_spec("atheris") is None:
        pytest.skip('needs atheris, which has no wheel for Python 3.10: pip install "xmckit[fuzz]"')
    runs = GUIDED // len(targets())
    command = [sys.executable, str(GUIDED_FUZZER), name, str(runs), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = Counter(json.loads(done.stdout.splitlines()[-1])["outcomes"])
    assert counts.total() == runs
    assert counts.keys() <= {READ, REFUSED}
