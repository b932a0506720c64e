"""A distribution from outside: built, installed beside xmckit's wheel, listed, run, verified, checked, and removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import xmckit

HERE = Path(__file__).parent
OUTSIDE = HERE / "xmckit-asymmetric"
RECIPE = """
[data]
use = "numbers"
most = 200
[features]
use = "tfidf"
[head]
use = "asymmetric"
dim = 5
epochs = 2
[head.encoder]
use = "sparse-linear"
width = 8
[verify]
use = "argmax"
most = 30
"""


class Place:
    """An environment of its own, with xmckit and the outside distribution from their wheels."""

    def __init__(self, folder: Path, *wheels: Path):
        self.folder, self.python = folder, folder / "env" / "bin" / "python"
        venv.create(folder / "env", with_pip=False)
        self.site = Path(self.answer("import sysconfig; print(sysconfig.get_path('purelib'))"))
        self.pip("install", "--no-compile", "--no-deps", *map(str, wheels))
        # Not before: pip would take the xmckit of the test environment for this one's. Python reads no .pth of the
        # folders that a .pth names, so an editable install there does not count here.
        (self.site / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")

    def pip(self, action: str, *arguments: str) -> None:
        offline = ["--no-index"] if action == "install" else []
        self.run(sys.executable, "-m", "pip", "--python", str(self.python), "-q", action, *offline, *arguments)

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        left_out = ("PYTHONPATH", "PYTHONHOME", "XMCKIT_PLUGINS", "XMCKIT_DISABLE_PLUGINS")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=self.folder, env=environment)
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def answer(self, source: str) -> str:
        return self.run(str(self.python), "-c", source).stdout.strip()

    def xmckit(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.python.parent / "xmckit"), *arguments, code=code)

    def reuse_compiled(self) -> None:
        """Take compiled kernels from the source tree: like heavy dependencies, they are not what is tested here."""
        for source in (Path(xmckit.__file__).parent, *(Path(xmckit.__file__).parents[1] / "plugins").glob("xmckit_*")):
            for file in source.rglob("*.py"):
                own = self.site / source.name / file.relative_to(source)
                if own.is_file() and own.read_bytes() == file.read_bytes():
                    os.utime(own, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
            for file in source.rglob("__pycache__/*.nb[ic]"):
                own = self.site / source.name / file.relative_to(source)
                own.parent.mkdir(exist_ok=True, parents=True)
                shutil.copy(file, own)


@pytest.fixture(scope="module")
def place(tmp_path_factory, build_wheel, xmckit_wheel) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("outside")
    place = Place(folder, xmckit_wheel, build_wheel(OUTSIDE))
    place.reuse_compiled()
    (folder / "numbers.toml").write_text(RECIPE)
    return place


def installed(place: Place) -> dict[str, str]:
    """Components by KIND:NAME, with their distributions."""
    listed = json.loads(place.xmckit("plugins", "ls", "--json").stdout)
    assert [plugin["problem"] for plugin in listed["plugins"] if plugin["problem"]] == []
    return {f"{item['kind']}:{item['name']}": item["distribution"] for item in listed["components"]}


def test_an_outside_distribution_from_its_wheel_to_its_removal(place):
    """One test, because every step is about what the one before left."""
    # The wheels are what is used, not the source tree that these tests run in.
    files = place.answer("import xmckit, xmckit_heads, xmckit_asymmetric as a; print(xmckit.__file__, a.__file__)")
    assert all(Path(file).is_relative_to(place.site) for file in files.split())
    paths = place.answer("import sys; print('\\n'.join(sys.path))").splitlines()
    assert str(Path(xmckit.__file__).parents[1]) not in paths

    # listed
    components = installed(place)
    assert components["head:asymmetric"] == components["dataset:numbers"] == "xmckit-asymmetric"
    assert components["head:bsl"] == "xmckit"
    shown = json.loads(place.xmckit("plugins", "show", "head:asymmetric", "--json").stdout)
    assert Path(shown["file"]) == place.site / "xmckit_asymmetric" / "head.py"
    assert {"positive_focus", "negative_focus", "shift"} <= {param["name"] for param in shown["params"]}

    # held to the same checks as any other
    quick = [part for value in ("epochs=1", "dim=4") for part in ("--set", value)]
    for arguments, ran in ((["head:asymmetric", *quick], 20), (["dataset:numbers", "--set", "most=40"], 8)):
        checked = json.loads(place.xmckit("plugins", "check", *arguments, "--json").stdout)
        results = [result["status"] for component in checked["components"] for result in component["checks"]]
        assert set(results) <= {"passed", "skipped"}
        assert results.count("passed") >= ran
    own = place.run(
        *(str(place.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"),
        *("--rootdir", str(OUTSIDE), "-k", "not contract_of_the_head", str(OUTSIDE / "tests")),
    )
    assert "5 passed" in own.stdout

    # run from a recipe, verified, every proof checked
    result = json.loads(place.xmckit("-q", "run", "numbers.toml", "--json").stdout)
    assert result["results"][0]["name"] == "asymmetric"
    run = Path(result["run"])
    (verified,) = json.loads((run / "verdicts.json").read_text())["results"]
    assert (verified["head"], verified["verifiable"], verified["dim"]) == ("asymmetric", True, 5)
    assert verified["counts"]["argmaxable"] + verified["counts"]["unargmaxable"] == sum(verified["counts"].values()) > 0
    replayed = place.xmckit("certificates", "check", str(run), "--model").stdout
    assert "all right" in replayed
    assert place.xmckit("predict", "numbers", "one hundred seven", "-k", "2").stdout

    # removed: what needs it says what to install, all else goes on
    place.pip("uninstall", "--yes", "xmckit-asymmetric")
    assert {"head:asymmetric", "dataset:numbers"} == components.keys() - installed(place).keys()
    for command in (["predict", "numbers", "eight"], ["verify", "numbers"]):
        message = place.xmckit(*command, code=4).stderr
        assert "needs head:asymmetric" in message
        assert "the distribution xmckit-asymmetric 0.3.1, which is not installed" in message
        assert "pip install 'xmckit-asymmetric==0.3.1'" in message
    assert "no head named 'asymmetric'" in place.xmckit("run", "numbers.toml", code=2).stderr
    assert "asymmetric" in place.xmckit("runs", "show", "numbers").stdout
    assert "all right" in place.xmckit("certificates", "check", "numbers").stdout
    assert place.xmckit("plugins", "show", "head:bsl").stdout
