"""Compare `xmckit --help` with `python -c "import click"`, whole processes, the best of many.

python -m benchmarks.speed.startup [--json] [--repeats 20]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

TARGET = 3.0


def process_seconds(command: list[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - begin


def run_in_turns(commands: dict[str, list[str]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each command, run in turns, so that a busy moment of the machine affects both."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as kept:
        # Both use cached byte code, as installed programs do, even if this shell disables it.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": kept}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for command in commands.values():
            process_seconds(command, environment)
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(process_seconds(command, environment))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--repeats", type=int, default=20, help="runs of each command (default: %(default)s)")
    options = parser.parse_args()
    program = Path(sysconfig.get_path("scripts"), "xmckit")
    if not program.exists():
        raise SystemExit(f"{shutil.which('xmckit') or 'xmckit'} is not installed beside {sys.executable}")
    commands = {"xmckit --help": [str(program), "--help"], "import click": [sys.executable, "-c", "import click"]}
    best = {name: min(values) for name, values in run_in_turns(commands, options.repeats).items()}
    result = {
        "benchmark": "startup",
        "seconds": {name: round(value, 4) for name, value in best.items()},
        "ratio": round(best["xmckit --help"] / best["import click"], 2),
        "target_at_most": TARGET,
    }
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in best.items():
            print(f"{name:<16} {1000 * value:7.1f} ms")
        print(f"ratio            {result['ratio']:7.2f}   (at most {TARGET})")


if __name__ == "__main__":
    main()
