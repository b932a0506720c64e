"""Installed plugins that end the process when they are imported: the next start sets them aside, and only them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from xmckit.registry import crashes, environment
from xmckit.registry.crashes import ImportJournal
from xmckit.registry.plugins import Plugin

PROGRAM = Path(sysconfig.get_path("scripts"), "xmckit")
HOOK = "import os, signal, xmckit\n@xmckit.hookimpl\ndef xmckit_heads():\n    {}\n    yield\n"


class Installed:
    """A distribution with one plugin, and the program that finds it."""

    def __init__(self, folder: Path):
        self.site, self.cache = folder / "site", folder / "cache"
        self.variables = {**os.environ, "PYTHONPATH": str(self.site), "XDG_CACHE_HOME": str(self.cache)}
        self.file = self.site / "fatal_plugin.py"
        (self.site / "fatal.dist-info").mkdir(parents=True)
        self.set_version("1.0")
        (self.site / "fatal.dist-info" / "entry_points.txt").write_text("[xmckit]\nfatal = fatal_plugin\n")

    def set_version(self, version: str) -> None:
        (self.site / "fatal.dist-info" / "METADATA").write_text(f"Name: fatal\nVersion: {version}\n")

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def call(self, *arguments: str, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PROGRAM, *arguments], env={**self.variables, **variables}, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen([PROGRAM, "--help"], env=self.variables, stderr=subprocess.PIPE, text=True)

    def listed(self) -> dict[str, str]:
        """Return the plugin as `plugins ls` lists it."""
        answer = json.loads(self.call("plugins", "ls", "--json").stdout)
        (found,) = [plugin for plugin in answer["plugins"] if plugin["name"] == "fatal"]
        return found

    @property
    def files(self) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in self.cache.rglob("*") if path.is_file())


@pytest.fixture
def installed(tmp_path):
    return Installed(tmp_path)


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("import os\nos._exit(7)", 7, "exit code 7"),
        ("import ctypes\nctypes.string_at(0)", -signal.SIGSEGV, "SIGSEGV (Segmentation fault)"),
        (HOOK.format("os.abort()"), -signal.SIGABRT, "SIGABRT (Aborted)"),
    ],
)
def test_the_first_start_may_die_and_the_next_sets_the_plugin_aside(installed, text, code, reason):
    installed.write(text)
    installed.call("--help", code=code)
    second = installed.call("--help")
    assert "set aside: plugin 'fatal' (fatal 1.0, " in second.stderr
    assert f"its import ended the process, with {reason}" in second.stderr
    assert "`xmckit doctor` tries it again" in second.stderr
    found = installed.listed()
    assert reason in found["problem"]
    assert found["file"] == str(installed.file)
    assert installed.call("--help").stderr == ""  # it was said once; `plugins ls` and doctor say it always
    missing = installed.call("plugins", "show", "head:odd", code=4)
    assert reason in missing.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(0)", "BaseException('odd')", "GeneratorExit"])
@pytest.mark.parametrize("place", ["{}", HOOK])
def test_no_exception_of_a_plugin_ends_the_process(installed, error, place):
    installed.write(place.format(f"raise {error}"))
    assert error.partition("(")[0] in installed.listed()["problem"]
    assert installed.files == []


def test_a_plugin_that_raises_keyboard_interrupt_in_a_background_job(installed):
    """A shell without job control starts such jobs with SIGINT ignored."""
    installed.write("raise KeyboardInterrupt")
    shell = f"trap '' INT; exec {PROGRAM} plugins ls"
    done = subprocess.run(["sh", "-c", shell], env=installed.variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "it raised on import: KeyboardInterrupt" in done.stdout


def test_a_changed_plugin_is_tried_again_and_so_is_a_new_version(installed):
    installed.write("import os\nos._exit(7)")
    installed.call("--help", code=7)
    installed.call("--help")
    installed.set_version("1.1")
    installed.call("--help", code=7)
    installed.call("--help")
    installed.write("import xmckit")
    assert installed.listed()["problem"] == ""
    assert installed.files == []


def test_doctor_tries_it_again(installed):
    """Its file is the same, but what made it crash is gone."""
    trigger = installed.site.parent / "trigger"
    trigger.touch()
    installed.write(f"import os\nif os.path.exists({str(trigger)!r}):\n    os._exit(7)")
    installed.call("--help", code=7)
    installed.call("--help")
    trigger.unlink()
    assert "exit code 7" in installed.listed()["problem"]
    environment.forget_crashes(
        [Plugin("fatal", "installed", "fatal", "1.0", str(installed.file))], {"XDG_CACHE_HOME": str(installed.cache)}
    )
    assert installed.listed()["problem"] == ""


def test_a_plugin_that_dies_only_in_the_program_is_set_aside_after_two_deaths(installed):
    installed.write("import os, sys\nif os.path.basename(sys.argv[0]) == 'xmckit':\n    os._exit(7)")
    installed.call("--help", code=7)
    installed.call("--help", code=7)  # alone it can be imported
    assert crashes.TWICE in installed.call("--help").stderr


SLOW = "import os, pathlib, time\npathlib.Path({mark!r}).touch()\ntime.sleep(float(os.environ.get('SLEEP', '300')))"


@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGTERM, -15)])
def test_a_plugin_is_not_blamed_for_what_the_user_or_the_system_does(installed, ending, code):
    mark = installed.site.parent / "importing"
    installed.write(SLOW.format(mark=str(mark)))
    with installed.start() as process:
        until = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < until:
            time.sleep(0.01)
        other = installed.call("--help", SLEEP="0")  # a process at the same time blames nobody
        process.send_signal(ending)
        _, error = process.communicate()
    assert (other.stderr, process.returncode) == ("", code)
    assert ("plugin 'fatal'" in error) == (ending == signal.SIGINT)
    assert installed.files == ([] if ending == signal.SIGINT else ["importing"])
    assert installed.call("--help", SLEEP="0").stderr == ""
    assert installed.files == []


@pytest.mark.parametrize("cache", ["relative", "/proc/none", "/dev/null", ""])
def test_a_cache_folder_that_cannot_be_written_is_no_problem(installed, tmp_path, monkeypatch, cache):
    monkeypatch.chdir(tmp_path)
    installed.write("import xmckit")
    assert installed.call("plugins", "ls", XDG_CACHE_HOME=cache, HOME="/proc/none").stderr == ""
    assert not (tmp_path / "relative").exists()


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setattr(crashes, "_is_left_behind", lambda name: True)
    return ImportJournal(str(tmp_path / "journal"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"fingerprint": 3}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["importing-host-1-2", "crash-00000000", "crash-"])
def test_damaged_notes_and_records_are_removed(journal, content, name):
    os.makedirs(journal.folder)
    Path(journal.folder, name).write_bytes(content)
    assert journal.faulty_plugins(list, lambda plugin: plugin) == []
    assert os.listdir(journal.folder) == []


def test_a_note_names_the_plugin_that_is_being_imported(tmp_path):
    journal = ImportJournal(str(tmp_path / "journal"))
    for name in ("a plugin with a long name", "short"):
        plugin = Plugin(name, "installed", "somewhere", "1.0", "/a/file.py")
        with journal.importing(plugin):
            (note,) = os.listdir(journal.folder)
            assert Path(journal.folder, note).read_text().split("\n")[:2] == [f"somewhere:{name}", "/a/file.py"]
    assert not crashes._is_left_behind(note)  # this process lives
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert crashes._is_left_behind(note.replace(f"-{os.getpid()}-", f"-{gone.pid}-"))
    assert not crashes._is_left_behind(f"importing-elsewhere-{gone.pid}-1")
    journal.close()
    assert os.listdir(journal.folder) == []
    with contextlib.closing(ImportJournal("")) as nothing, nothing.importing(plugin):
        assert nothing.faulty_plugins(list, lambda plugin: plugin) == []
