"""Read mutated files by the thousand, in child processes: each must be read, or be refused by an error that names it.

    python tests/attack/format_fuzzer.py [--inputs 10000] [--first 0] [--target npz …] [--keep FOLDER]

A child reads many inputs, with a limit on memory above what it has at the start and a limit on time for each input. If
it dies, the input is the one whose number it wrote down last; a new child goes on with the next. Prints JSON: the
numbers of outcomes of each target, and the failures. Input n of a target is the same on every machine.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from memory_limit import limit_memory

SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
READ, REFUSED = "read", "refused"
EXTRA_BYTES = 1 << 30  # that an input may allocate
SECONDS = 60  # that an input may take; a busy machine is slow
MOST_FAILURES = 25
# Cheap targets get more inputs, and those with many files fewer.
SHARES = {
    "rows-text": 2, "rows-jsonl": 6, "rows-csv": 6, "rows-tsv": 4, "rows-xmc": 6, "rows-svmlight": 6, "xmc": 4,
    "svmlight": 4, "npz-csc-coo": 4, "stored-arrays": 6, "jsonl": 3, "group-files": 4, "label-sets": 4, "blocks": 4,
    "tfidf": 4, "tfidf-64": 4, "popularity": 4, "stored-dataset": 1, "bsl": 1, "dft": 1,
}  # fmt: skip


def shares(inputs: int, names: list[str]) -> dict[str, int]:
    """Divide a number of inputs among the targets."""
    whole = sum(SHARES.get(name, 2) for name in names)
    return {name: max(1, inputs * SHARES.get(name, 2) // whole) for name in names}


# The child -----------------------------------------------------------------------------------------------------------


class Attack:
    """The files of one target, and what happens if one of them is replaced."""

    def __init__(self, name: str, folder: Path):
        from file_targets import fresh_folder, targets

        self.target, self.folder = targets()[name], folder
        self.files = fresh_folder(self.target, folder)
        self.target.prepare(folder)
        self.files = {file: file.read_bytes() for file in self.files}
        self.target.use(self.target.read(folder))  # compiles kernels, before memory is limited

    def try_input(self, file: Path, content: bytes) -> tuple[str, str]:
        """Return (outcome, details) of reading the folder with one file replaced."""
        from xmckit.errors import XmckitError

        file.write_bytes(content)
        try:
            self.target.prepare(self.folder)
            value = self.target.read(self.folder)
        except XmckitError as error:
            named = str(self.folder) in str(error)
            return (REFUSED, "") if named else ("error without a file", str(error))
        except Exception as error:  # noqa: BLE001 - what the attack looks for
            return f"read: {type(error).__name__}", traceback.format_exc(limit=-6)
        finally:
            for path in {file, self.folder / "index.json"} & self.files.keys():
                path.write_bytes(self.files[path])
        try:
            self.target.use(value)
        except XmckitError:
            return REFUSED, ""
        except Exception as error:  # noqa: BLE001
            return f"use: {type(error).__name__}", traceback.format_exc(limit=-6)
        return READ, ""

    def input(self, number: int) -> tuple[Path, bytes]:
        """Return the file that input `number` changes, and its new content."""
        from file_mutations import mutate

        rng = random.Random(f"{self.target.name} {number}")
        file = rng.choice(list(self.files))
        return file, mutate(file.name, self.files[file], rng)


class Job(NamedTuple):
    target: str
    first: int
    count: int


def _work(folder: Path) -> None:
    """Do the jobs in jobs.json; write down the current job and input, and the counts so far."""
    warnings.simplefilter("ignore")
    jobs = [Job(*job) for job in json.loads((folder / "jobs.json").read_text())]
    with open(folder / "progress", "wb", buffering=0) as progress, open(folder / "failures", "w") as failures:
        for place, job in enumerate(jobs):
            counts: Counter[str] = Counter()
            limit_memory(None)
            attack = Attack(job.target, folder / "files")
            limit_memory(EXTRA_BYTES)
            for number in range(job.first, job.first + job.count):
                _note(progress, [place, number, counts])
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                file, content = attack.input(number)
                outcome, details = attack.try_input(file, content)
                counts[outcome] += 1
                if outcome not in (READ, REFUSED):
                    (folder / f"{job.target}-{number}-{file.name}").write_bytes(content)
                    failure = {"target": job.target, "input": number, "outcome": outcome, "file": file.name}
                    failures.write(json.dumps({**failure, "details": details[-1500:]}) + "\n")
                    failures.flush()
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps([job.target, counts]), flush=True)
        _note(progress, [len(jobs), 0, {}])


def _note(progress: Any, state: list[Any]) -> None:
    os.pwrite(progress.fileno(), json.dumps(state).encode() + b"\n", 0)


# The parent ----------------------------------------------------------------------------------------------------------


def attack_all(
    inputs: int, first: int = 0, names: list[str] | None = None, *, keep: Path | None = None
) -> dict[str, Any]:
    """Attack the targets, all by default. Return the number of inputs, outcomes by target, and failures."""
    from file_targets import targets

    jobs = [Job(name, first, count) for name, count in shares(inputs, names or list(targets())).items()]
    outcomes: dict[str, Counter[str]] = {job.target: Counter() for job in jobs}
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=SCRATCH, prefix="xmckit-attack-") as scratch:
        folder = Path(scratch)
        while jobs and len(failures) < MOST_FAILURES:
            (folder / "progress").write_bytes(b"")
            (folder / "failures").write_bytes(b"")
            (folder / "jobs.json").write_text(json.dumps(jobs))
            command = [sys.executable, __file__, "--work", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            progress = (folder / "progress").read_bytes().split(b"\n")[0]
            if not progress:
                raise RuntimeError(f"the child did not start:\n{done.stderr[-3000:]}")
            place, number, counts = json.loads(progress)
            for line in done.stdout.splitlines():
                target, finished = json.loads(line)
                outcomes[target].update(finished)
            failures += [json.loads(line) for line in (folder / "failures").read_text().splitlines()]
            jobs = jobs[place:]
            if jobs:
                job, outcome = jobs[0], f"exit code {done.returncode}"
                outcomes[job.target].update({**counts, outcome: 1})
                details = done.stderr[-2500:]
                failures.append({"target": job.target, "input": number, "outcome": outcome, "details": details})
                jobs[0] = Job(job.target, number + 1, job.first + job.count - number - 1)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for failure in failures:
                for file in folder.glob(f"{failure['target']}-{failure['input']}-*"):
                    (keep / file.name).write_bytes(file.read_bytes())
    total = sum(counts.total() for counts in outcomes.values())
    return {
        "inputs": total,
        "outcomes": {name: dict(counts) for name, counts in outcomes.items()},
        "failures": failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", action="append")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        faulthandler.enable()
        _work(arguments.work)
        return
    result = attack_all(arguments.inputs, arguments.first, arguments.target, keep=arguments.keep)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["failures"] else 0)


if __name__ == "__main__":
    main()
