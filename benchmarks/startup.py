"""`xmckit --help` against `python -c "import click"`, whole processes, best of many, in one run.

python benchmarks/startup.py [--json] [--repeats 20]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

TARGET = 3.0


def seconds(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    program = Path(sysconfig.get_path("scripts"), "xmckit")
    if not program.exists():
        raise SystemExit(f"{shutil.which('xmckit') or 'xmckit'} is not installed beside {sys.executable}")
    commands = {"xmckit --help": [str(program), "--help"], "import click": [sys.executable, "-c", "import click"]}
    for command in commands.values():
        seconds(command)  # byte code and file cache warm for both
    # Taken in turns, so that a busy moment of the machine falls on both.
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(options.repeats):
        for name, command in commands.items():
            times[name].append(seconds(command))
    best = {name: min(values) for name, values in times.items()}
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
