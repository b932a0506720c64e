"""Attack every reader and every stored format with mutated files, and add up the counts.

    python -m benchmarks.reliability.formats [--inputs 100000] [--first N] [--guided 1000] [--new] [--recheck]

Inputs are numbered, so that a further call with another `--first` attacks with other files; by default it goes on where
the stored counts end. `--guided` gives each target that many inputs that atheris chooses, if it is installed. `--new`
forgets the stored counts, which belong to an older version of the code. `--recheck` first repeats the inputs that
failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import paths

ATTACK = Path(__file__).resolve().parents[2] / "tests" / "attack"
RESULTS = paths.RESULTS / "reliability_formats.json"


def attack(inputs: int, first: int, *targets: str) -> dict[str, Any]:
    """Run the fuzzer of mutated files, on all targets by default."""
    command = [sys.executable, str(ATTACK / "format_fuzzer.py"), "--inputs", str(inputs), "--first", str(first)]
    command += [option for name in targets for option in ("--target", name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"the fuzzer ended with exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def attack_guided(targets: list[str], runs: int) -> tuple[dict[str, dict[str, int]], list[dict[str, Any]]]:
    """Run the coverage-guided fuzzer on each target. Return outcomes and failures."""
    outcomes, failures = {}, []
    for name in targets:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(ATTACK / "guided_fuzzer.py"), name, str(runs), folder]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            failures.append({"target": name, "outcome": f"exit code {done.returncode}", "details": done.stderr[-2000:]})
        else:
            outcomes[name] = json.loads(lines[-1])["outcomes"]
    return outcomes, failures


def recheck(stored: dict[str, Any]) -> None:
    """Repeat the mutated inputs that failed, and count what happens now."""
    before, stored["failures"] = stored["failures"], []
    for failure in before:
        if "input" not in failure:
            stored["failures"].append(failure)
            continue
        target = failure["target"]
        stored["outcomes"][target] = dict(Counter(stored["outcomes"][target]) - Counter([failure["outcome"]]))
        result = attack(1, failure["input"], target)
        stored["outcomes"] = add(stored["outcomes"], result["outcomes"])
        stored["failures"] += result["failures"]


def add(stored: dict[str, dict[str, int]], counts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: dict(Counter(stored.get(name, {})) + Counter(counts.get(name, {}))) for name in {**stored, **counts}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int)
    parser.add_argument("--guided", type=int, default=0)
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--recheck", action="store_true")
    arguments = parser.parse_args()
    stored: dict[str, Any] = {"inputs": 0, "outcomes": {}, "guided": {}, "failures": []}
    if RESULTS.is_file() and not arguments.new:
        stored = json.loads(RESULTS.read_text())
    first = stored["inputs"] if arguments.first is None else arguments.first
    if arguments.recheck:
        recheck(stored)
    if arguments.inputs:
        result = attack(arguments.inputs, first)
        stored["outcomes"] = add(stored["outcomes"], result["outcomes"])
        stored["failures"] += result["failures"]
    if arguments.guided and importlib.util.find_spec("atheris"):
        outcomes, failures = attack_guided(list(stored["outcomes"]), arguments.guided)
        stored["guided"] = add(stored["guided"], outcomes)
        stored["failures"] += failures
    stored["inputs"], stored["guided_inputs"] = (
        sum(sum(counts.values()) for counts in stored[part].values()) for part in ("outcomes", "guided")
    )
    RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"{stored['inputs']:,} mutated and {stored['guided_inputs']:,} guided inputs", file=sys.stderr)
    print(f"{len(stored['failures'])} failures: {RESULTS}", file=sys.stderr)


if __name__ == "__main__":
    main()
