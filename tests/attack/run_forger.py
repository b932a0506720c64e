"""Forge run folders: edit every file that a command reads, call the command, and judge what it does.

Commands run in child processes, each of which judges many cases. A child that dies names the case that killed it.
`forge` returns the counts; run as a program, this file is the child.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import itertools
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from file_edits import Edit, edits, link_or_copy, restore, write
from run_subjects import OUTSIDE, RECIPES, RUNS, Command, commands, run_of

CASE_SECONDS = 60
MEMORY = 4 << 30  # above what the process has when it starts
EXPECTED_CODES = {0, 2, 3, 4, 5}
CACHE = ".cache"
# They name runs elsewhere by design, with the identity of each.
MAY_POINT_ELSEWHERE = ("ensemble.json", "extension.json")


class Case(NamedTuple):
    file: str  # below the folder with the runs
    edit: Edit


@dataclass
class Report:
    """What an attack found: cases and calls, how they ended, and every failure as a text."""

    files: int = 0
    possible: int | None = 0  # edits of all files; None if the edits of some files were not made
    cases: int = 0
    calls: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    failures: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "codes": dict(sorted(self.codes.items())), "failures": len(self.failures)}


# -- the parent ------------------------------------------------------------------------------------------------------


def forge(folder: Path, *, cases: int | None, calls: int | None, seed: int = 0, most_failures: int = 50) -> Report:
    """Attack the runs that `make_runs` made in `folder`, in as many child processes as die and one more.

    `cases`: how many edits are tried, drawn evenly over the files, or None for all; `calls`: how many of the commands
    that read a file are called for each edit of it, or None for all.
    """
    report, start = Report(), 0
    while start is not None and len(report.failures) < most_failures:
        request = [str(folder), str(seed), str(cases or 0), str(calls or 0), str(start)]
        child = subprocess.Popen(
            [sys.executable, __file__, *request], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        start = _follow(child, report, most_failures)
    return report


def _follow(child: subprocess.Popen[str], report: Report, most_failures: int) -> int | None:
    """Read a child's lines; return the case after the one that killed it, or None if it came to the end."""
    current: dict[str, Any] = {}
    assert child.stdout is not None
    assert child.stderr is not None
    with child:
        for line in child.stdout:
            event = json.loads(line)
            if "all" in event:
                report.files, report.possible = event["files"], event["all"]
            elif "case" in event:
                current = event
                report.cases += 1
            else:
                report.calls += 1
                report.codes[event["code"]] += 1
                if event["failure"]:
                    report.failures.append(
                        f"{current['file']}: {current['edit']}: {event['command']}: {event['failure']}"
                    )
                    if len(report.failures) >= most_failures:
                        child.kill()
        trace = child.stderr.read()
    if child.returncode == 0 or len(report.failures) >= most_failures:
        return None
    if not current:
        raise RuntimeError(f"the attack could not start:\n{trace}")
    report.crashes += 1
    report.failures.append(
        f"{current['file']}: {current['edit']}: the process ended with {child.returncode}:\n{trace[-3000:]}"
    )
    return int(current["case"]) + 1


def _named(case: dict[str, Any]) -> str:
    return f"{case['file']}: {case['edit']}"


# -- the child -------------------------------------------------------------------------------------------------------


class OpenedFiles:
    """Files that Python code opens, by an audit hook: those that are read, and those that are written."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self._on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path, mode, flags = arguments
            writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if mode is None else set(mode) & set("wax+")
            (self.written if writing else self.read).add(os.path.abspath(os.fsdecode(path)))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self.read.clear()
        self.written.clear()
        self._on = True
        try:
            yield
        finally:
            self._on = False


class Attack:
    """The runs, a copy of them to damage, and the commands that read each file."""

    def __init__(self, folder: Path, work: Path, seed: int):
        self.original, self.work, self.seed = folder, work, seed
        self.outside = folder / OUTSIDE
        self.opened = OpenedFiles()
        (work / RUNS).mkdir()
        for name in ("rows.jsonl", "new.jsonl"):
            shutil.copyfile(folder / name, work / name)
        self.reset()
        self.commands = commands(work)
        self.readers = self._trace()

    def reset(self, command: Command | None = None) -> None:
        """Undo everything that the command may have changed; all runs without one."""
        root = self.original / RUNS
        names = {path.name for path in root.iterdir()}
        if command is not None:
            named = {Path(word).relative_to(self.work / RUNS).parts[0] for word in command.words
                     if word.startswith(f"{self.work / RUNS}{os.sep}")}  # fmt: skip
            names = named | ({CACHE} if command.words[:1] == ("run",) else names if "clean" in command.words else set())
        for name in names:
            path = self.work / RUNS / name
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if (root / name).is_dir():
                shutil.copytree(root / name, path, copy_function=link_or_copy)
            elif (root / name).exists():
                shutil.copy2(root / name, path)

    def _trace(self) -> dict[str, list[Command]]:
        """Call every command on sound runs, and note the files that it opens; each must succeed."""
        root = self.work / RUNS
        readers: dict[str, list[Command]] = {}
        for command in self.commands:
            with self.opened.listening():
                code, output, errors = self.call(command)
            if code != "0":
                raise RuntimeError(f"{command.name}, on sound runs: {code}: {errors}{output}")
            for file in self.opened.read:
                if Path(file).is_relative_to(root):
                    readers.setdefault(os.path.relpath(file, root), []).append(command)
            if command.writes:
                self.reset(command)
        for path in sorted((self.original / RUNS).rglob("*")):
            # What compiled code opens is not heard of: safetensors, for one.
            file = os.path.relpath(path, self.original / RUNS)
            beside = [own for own in readers if os.path.dirname(own) == os.path.dirname(file)]
            if path.suffix == ".safetensors" and beside:
                readers.setdefault(file, readers[beside[0]])
        # What a command made is not there for the next one.
        return {file: own for file, own in sorted(readers.items()) if (self.original / RUNS / file).is_file()}

    def cases(self, most: int) -> tuple[int | None, list[Case]]:
        """Return the cases that are tried: all, or `most` drawn evenly over the files, and the number of all cases.

        That number is None if there are fewer cases than files, because the edits of some files are then not made.
        """
        rng, files = random.Random(self.seed), list(self.readers)
        rng.shuffle(files)
        by_file = {file: list(self._edits(file)) for file in files[: most or None]}
        for own in by_file.values():
            rng.shuffle(own)
        turns = itertools.zip_longest(*([Case(file, edit) for edit in own] for file, own in by_file.items()))
        drawn = list(itertools.islice((case for turn in turns for case in turn if case is not None), most or None))
        return (sum(map(len, by_file.values())) if len(by_file) == len(files) else None), drawn

    def _edits(self, file: str) -> Iterator[Edit]:
        yield from edits(self.original / RUNS / file, self.outside, self.seed)
        name = os.path.basename(file)
        for other in self.readers:  # a file of the same name, from another run or stage
            if other != file and os.path.basename(other) == name and not other.startswith(CACHE):
                yield Edit(f"swapped for {other}", write((self.original / RUNS / other).read_bytes))

    def call(self, command: Command) -> tuple[str, str, str]:
        """Call a command as a shell does; return its exit code, or a traceback instead, its output and its errors."""
        from xmckit.cli import main

        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
        code, argv = "", sys.argv
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            sys.argv = ["xmckit", "-q", *command.words]
            try:
                main()
            except SystemExit as end:
                code = str(end.code)
            except BaseException as error:  # noqa: BLE001  a user would see its traceback
                code = "".join(traceback.format_exception(error))[-2500:]
            finally:
                sys.argv = argv
            for stream in streams:
                stream.flush()
        output, errors = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
        return (errors if "Traceback" in errors else code), output, errors

    def judge(self, case: Case, command: Command) -> tuple[str, str]:
        """Call a command on the damaged run; return how it ended, and what is wrong with that, if anything."""
        with self.opened.listening():
            code, output, message = self.call(command)
        if not code.isdigit() or int(code) not in EXPECTED_CODES:
            return code.strip().splitlines()[-1].partition(":")[0], f"{code}: {message}"
        if bad := _control_characters(output) or _control_characters(message):
            return code, f"prints {bad!r}"
        own = case.file.split(os.sep)[1] if case.file.split(os.sep)[0] in RECIPES else case.file.split(os.sep)[0]
        if code != "0" and own.lstrip(".") not in message + output:  # `runs check` lists damage as its result
            return code, f"does not name {own}: {message}"
        strange = [file for file in self.opened.read if Path(file).is_relative_to(self.outside)]
        if strange and not case.file.endswith(MAY_POINT_ELSEWHERE):
            return code, f"opens {strange[0]}"
        away = [file for file in self.opened.written if not _may_be_written(file, self.work)]
        if away:
            return code, f"writes {away[0]}"
        if command.words[:2] == ("runs", "ls"):
            lost = [name for name in RECIPES if not case.file.startswith(name + os.sep)
                    and run_of(self.work, name).name not in output]  # fmt: skip
            if lost:
                return code, f"does not list {lost}"
        if "--json" in command.words and code == "0":
            try:
                json.loads(output, parse_constant=_no_constant)
            except ValueError as error:
                return code, f"does not print JSON: {error}"
        return code, ""

    def run(self, chosen: Sequence[tuple[int, Case]], calls: int) -> None:
        for number, case in chosen:
            _tell(case=number, file=case.file, edit=case.edit.name)
            readers, rng = self.readers[case.file], random.Random(f"{self.seed} {number}")
            if calls:
                quick = [command for command in readers if not command.slow]
                if quick and rng.random() < 0.95:
                    readers = quick
                readers = rng.sample(readers, min(calls, len(readers)))
            path = self.work / RUNS / case.file
            for command in readers:
                restore(path, self.original / RUNS / case.file)
                case.edit.apply(path)
                faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
                code, failure = self.judge(case, command)
                faulthandler.cancel_dump_traceback_later()
                _tell(command=command.name, code=code, failure=failure)
                if command.writes:
                    self.reset(command)
            restore(path, self.original / RUNS / case.file)


def _tell(**event: Any) -> None:
    os.write(1, (json.dumps(event) + "\n").encode())


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _control_characters(text: str) -> str:
    return "".join(sorted({mark for mark in text if not mark.isprintable() and mark not in "\n\t"}))


def _may_be_written(file: str, work: Path) -> bool:
    return (
        Path(file).is_relative_to(work)
        or file.startswith(("/dev/", "/proc/self/"))
        or "__pycache__" in file
        or "numba" in file
    )


def main(folder: str, seed: str, cases: str, calls: str, start: str) -> None:
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as work:
        os.environ["XDG_CACHE_HOME"] = work  # for the journal of imports
        attack = Attack(Path(folder), Path(work).resolve(), int(seed))
        total, chosen = attack.cases(int(cases))
        _tell(all=total, files=len(attack.readers))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        attack.run(list(enumerate(chosen))[int(start) :], int(calls))


if __name__ == "__main__":
    main(*sys.argv[1:])
