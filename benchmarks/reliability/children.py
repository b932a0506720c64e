"""Run every command in a folder of decoys, fill the disk at every write, import plugins that end the process.

python -m benchmarks.reliability.children stores a figure only if the attack failed everywhere: any other outcome is an
AssertionError.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import paths
from benchmarks.common.study import write_results
from xmckit.registry import Registry

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
RESULTS = paths.RESULTS / "reliability_children.json"
FATAL = {
    "os._exit": "import os\nos._exit(7)",
    "os._exit in a hook": "import os, xmckit\n@xmckit.hookimpl\ndef xmckit_heads():\n    os._exit(7)",
    "SIGSEGV": "import ctypes\nctypes.string_at(0)",
    "SIGABRT": "import os\nos.abort()",
    "SIGKILL": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "stack overflow": "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
}
RAISED = ("KeyboardInterrupt", "SystemExit(0)", "GeneratorExit", "BaseException", "MemoryError")


def working_folder(folder: Path) -> dict[str, Any]:
    """Run every command in a folder full of modules, with and without Python's own protection."""
    attack = importlib.import_module("test_working_folder")
    for name, flags in (("protected", []), ("plain", ["--plain"])):
        (folder / name).mkdir()
        attack.fill(folder / name)
        attack.run_commands(folder / name, folder, list(attack.EXAMPLES), *flags)
    return {
        "modules": len(attack.STANDARD) + len(attack.DEPENDENCIES),
        "commands": len(attack.EXAMPLES),
        "ways": 2,
        "modules_run": 0,
    }


def full_disk(folder: Path) -> dict[str, Any]:
    """Let the disk be full from every write of a run on; resume each run."""
    attack = importlib.import_module("test_full_disk")
    (folder / "small.toml").write_text(attack.RECIPE)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
        disk, registry = attack.Disk(patches, folder), Registry()
        writes = attack.writes_of_a_run(disk, folder, registry)
        for fatal in range(writes):
            attack.attack(disk, folder, registry, fatal)
    return {"writes": writes, "file_not_named": 0, "half_written": 0, "not_resumed": 0}


def plugins(folder: Path) -> dict[str, Any]:
    """Install plugins that end the process: the second start must work, or the first if they only raise."""
    attack = importlib.import_module("test_crashes")
    for number, text in enumerate(FATAL.values()):
        (folder / f"fatal-{number}").mkdir()
        installed = attack.Installed(folder / f"fatal-{number}")
        installed.write(text)
        died = attack.subprocess.run(
            [attack.PROGRAM, "--help"], env=installed.variables, capture_output=True
        ).returncode
        assert died, text
        assert "set aside" in installed.call("--help").stderr
        assert installed.listed()["problem"]
    for number, error in enumerate(RAISED):
        (folder / f"raised-{number}").mkdir()
        installed = attack.Installed(folder / f"raised-{number}")
        installed.write(f"raise {error}")
        assert installed.listed()["problem"]
    return {
        "fatal": list(FATAL),
        "set_aside_at_second_start": len(FATAL),
        "raised": list(RAISED),
        "survived": len(RAISED),
    }


def main() -> None:
    sys.path[:0] = [str(TESTS / "attack"), str(TESTS / "registry")]
    attacks: dict[str, Callable[[Path], dict[str, Any]]] = {
        "working_folder": working_folder, "full_disk": full_disk, "plugins": plugins,
    }  # fmt: skip
    results = {}
    for name, attack in attacks.items():
        with tempfile.TemporaryDirectory() as folder:
            results[name] = attack(Path(folder))
        print(f"{name}: {results[name]}", flush=True)
    write_results(RESULTS, results)


if __name__ == "__main__":
    main()
