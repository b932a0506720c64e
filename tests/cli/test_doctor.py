"""`xmckit doctor` imports plugins in subprocesses, and names one that hangs or kills its process."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from xmckit import registry
from xmckit.cli import xmckit as program
from xmckit.registry import Plugin
from xmckit.registry.locations import Location
from xmckit.registry.probe import probe_all

LIMIT = 2.0
OFFERS = """
import xmckit

@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("{name}", "{target}")
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Plugin files, which can import each other."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> Plugin:
        (tmp_path / f"{name}.py").write_text(text)
        return Plugin(name, "file", file=str(tmp_path / f"{name}.py"))

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "fault", "line"),
    [
        ("import time\n\n\ntime.sleep(1000)", f"its import did not end within {LIMIT:g} s", 4),
        ("x = 0\nwhile True:\n    x += 1", f"its import did not end within {LIMIT:g} s", (2, 3)),
        (
            "import xmckit\n@xmckit.hookimpl\ndef xmckit_heads():\n    while True:\n        pass",
            f"its import did not end within {LIMIT:g} s",
            (4, 5),
        ),
        ("import os\n\nos._exit(7)", "its import ended the process, with exit code 7", None),
        ("import ctypes\n\nctypes.string_at(0)", "ended the process, with SIGSEGV (Segmentation fault)", 3),
    ],
)
def test_a_plugin_that_hangs_or_ends_its_process(write, text, fault, line):
    plugin = write("fatal_plugin", text)
    sound = write("sound_plugin", OFFERS.format(name="sound", target="xmckit.components.popularity:PopularityHead"))
    found, other = probe_all([plugin, sound], LIMIT)
    assert fault in found.fault
    lines = line if isinstance(line, tuple) else (line,)
    assert found.at in ([None] if line is None else [Location(plugin.file, one) for one in lines])
    assert found.faulty.description == f"plugin 'fatal_plugin' ({found.at or plugin.file})"
    assert (other.fault, other.components) == ("", 1)


def test_a_component_that_hangs(write):
    write("endless_module", "import time\n\ntime.sleep(1000)\nclass Head: ...")
    plugin = write("lazy_plugin", OFFERS.format(name="endless", target="endless_module:Head"))
    (found,) = probe_all([plugin], LIMIT)
    assert found.fault == ""
    assert list(found.broken) == ["head:endless"]
    where = plugin.file.replace("lazy_plugin", "endless_module")
    assert f"did not end within {LIMIT:g} s ({where}:3)" in found.broken["head:endless"]


def test_what_one_says_about_all_of_them(write, monkeypatch):
    """The report of a person's machine on which everything goes wrong at once."""
    offers = OFFERS.format(name="thin", target="talking_plugin:Thin")
    plugins = [
        write("talking_plugin", f"print('hello')\nclass Thin: ...\n{offers}"),
        write("leaving_plugin", "import os\nos._exit(3)"),
        write("raising_plugin", "\n\n1 / 0"),
    ]
    monkeypatch.setattr(registry, "found_plugins", lambda files: plugins)
    arguments = [part for plugin in plugins for part in ("--plugin", plugin.file)]
    done = CliRunner().invoke(program, ["doctor", "--json", *arguments])
    assert done.exit_code == 4, done.output
    told = json.loads(done.stdout)
    assert told["healthy"] is False
    assert [item["plugin"] for item in told["set_aside"]] == [
        f"plugin 'leaving_plugin' ({plugins[1].file})",
        f"plugin 'raising_plugin' ({plugins[2].file}:3)",
    ]
    assert [item["problem"] for item in told["set_aside"]] == [
        "its import ended the process, with exit code 3",
        "it raised on import: ZeroDivisionError: division by zero",
    ]
    assert told["writes_on_import"] == [f"plugin 'talking_plugin' ({plugins[0].file}): {plugins[0].file}:1: hello"]
    (broken,) = told["broken_components"]
    assert f"talking_plugin:Thin ({plugins[0].file}:2) lacks" in broken["error"]
    shown = CliRunner().invoke(program, ["doctor", *arguments])
    assert shown.exit_code == 4
    for text in ("broken: head:thin", "set aside: plugin 'leaving_plugin'", "3 problems", "hello"):
        assert text in shown.stdout
