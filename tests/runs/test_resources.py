"""Time and memory of a block, with those of the processes that it starts."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from xmckit.processes import ProcessPool
from xmckit.runs.resources import Measured

MIB = 1 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def hold(megabytes: int) -> int:
    """Hold memory long enough for a sample."""
    held = bytearray(megabytes * MIB)
    for at in range(0, len(held), 4096):
        held[at] = 1
    time.sleep(0.5)
    return len(held)


def burn(seconds: float) -> float:
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass
    return time.process_time() - begin


@linux
def test_memory_of_workers_counts_together_and_only_while_they_hold_it():
    with Measured() as before:
        pass
    with ProcessPool() as pool:
        with Measured() as cost:
            list(pool.map(hold, [150, 150], workers=2))
        with Measured() as idle:
            time.sleep(0.1)
    assert cost.peak_bytes > before.peak_bytes + 300 * MIB
    assert idle.peak_bytes < before.peak_bytes + 150 * MIB
    with Measured() as after:
        pass
    assert after.peak_bytes < idle.peak_bytes


@linux
def test_grandchildren_count():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    hold_there = "import time; held = bytearray(200 << 20); time.sleep(0.5)"
    with Measured() as cost:
        subprocess.run([sys.executable, "-c", script, hold_there], check=True)
    assert cost.peak_bytes > 200 * MIB


SHORT = """
import subprocess, sys
from xmckit.runs.resources import Measured
with Measured() as cost:
    subprocess.run([sys.executable, "-c", "held = bytearray(300 << 20)"], check=True)
print(cost.peak_bytes)
"""


@linux
def test_a_child_that_ends_before_it_is_seen_counts():
    done = subprocess.run([sys.executable, "-c", SHORT], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 300 * MIB


@linux
def test_time_of_workers_that_still_live_counts():
    with ProcessPool() as pool:
        list(pool.map(burn, [0.0], workers=1))
        with Measured() as cost:
            spent = sum(pool.map(burn, [0.4, 0.4], workers=2))
        with Measured() as idle:
            pass
    assert spent - 0.1 < cost.cpu_seconds < spent + 2
    assert idle.cpu_seconds < 0.3


def test_memory_of_this_process_counts_too():
    with Measured() as cost:
        hold(100)
    assert cost.peak_bytes > 100 * MIB
    assert cost.seconds >= 0.5
