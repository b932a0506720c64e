"""`xmckit plugins trace` and XMCKIT_TRACE: every import and hook call, who answered, how long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xmckit.errors import PluginError
from xmckit.kinds import KINDS
from xmckit.registry import Registry, registry_from_environment

SLEEPER = """
import time
import xmckit
time.sleep(0.05)

@xmckit.hookimpl
def xmckit_heads():
    time.sleep(0.02)
    for name in ("one", "two"):
        yield xmckit.Component(f"{name}-slept", "colorsys:rgb_to_hsv")

@xmckit.hookimpl
def xmckit_metrics():
    return []
"""


@pytest.fixture
def sleeper(tmp_path):
    file = tmp_path / "sleeping_plugin.py"
    file.write_text(SLEEPER)
    yield file
    sys.modules.pop("sleeping_plugin", None)


def test_steps_say_who_answered_and_how_long_it_took(sleeper, monkeypatch):
    heard = []
    registry = Registry(allow=[], files=[sleeper], listener=heard.append)
    assert heard == registry.steps
    steps = [step for step in registry.steps if step.plugin == "sleeping_plugin"]
    assert [(step.action, step.what) for step in steps] == [
        ("import", str(sleeper)),
        *(("hook", kind.hook) for kind in KINDS.values()),
    ]
    by_name = {step.what: step for step in steps}
    assert by_name[str(sleeper)].seconds >= 0.05
    # a generator's own time counts, and an empty answer is an answer
    assert by_name["xmckit_heads"].seconds >= 0.02
    assert {name: by_name[name].components for name in ("xmckit_heads", "xmckit_metrics", "xmckit_readers")} == {
        "xmckit_heads": 2,
        "xmckit_metrics": 0,
        "xmckit_readers": None,
    }
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    for _ in range(2):  # what is imported already is not imported again
        with pytest.raises(PluginError, match="lacks"):
            registry.resolve("head", "one-slept")
    assert [step.what for step in registry.steps if step.action == "component"] == ["colorsys:rgb_to_hsv"]


@pytest.mark.parametrize(
    ("source", "action", "error"),
    [
        ("raise ValueError('on\\npurpose')", "import", "ValueError: on purpose"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): raise KeyError('k')", "hook", "KeyError: 'k'"),
        ("import xmckit\n@xmckit.hookimpl\ndef xmckit_heads(): return 3", "hook", "not iterable"),
    ],
)
def test_failures_are_steps_too(source, action, error, tmp_path):
    file = tmp_path / "failing_plugin.py"
    file.write_text(source)
    registry = Registry(allow=[], files=[file])
    sys.modules.pop("failing_plugin", None)
    assert len(registry.problems) == 1
    assert (registry.steps[-1].action, error in registry.steps[-1].error) == (action, True)


@pytest.mark.parametrize(("value", "told"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_the_environment_asks_for_it(value, told, capsys):
    registry_from_environment(environment={"XMCKIT_TRACE": value, "XMCKIT_PLUGINS": ""})
    output = capsys.readouterr()
    assert output.out == ""
    assert ("trace: xmckit: hook xmckit_heads: 1 component" in output.err) is told


def test_the_command(sleeper):
    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "xmckit", "--plugin", str(sleeper), *arguments],
            capture_output=True, text=True, check=True, cwd=Path(sleeper).parent, env={**os.environ, **environment},
        )  # fmt: skip

    shown = call("plugins", "trace", XMCKIT_TRACE="1")
    assert "2 components" in shown.stdout
    assert "xmckit_readers" not in "".join(line for line in shown.stdout.splitlines() if "sleeping_plugin" in line)
    assert "trace: sleeping_plugin: hook xmckit_heads: 2 components" in shown.stderr
    assert " answered; all steps took " in shown.stdout
    full = call("plugins", "trace", "--all").stdout
    asked = [line for line in full.splitlines() if line.startswith("sleeping_plugin") and " hook " in line]
    assert all(any(kind.hook in line for line in asked) for kind in KINDS.values())
    assert len([line for line in asked if "no answer" in line]) == len(KINDS) - 2
    found = json.loads(call("plugins", "trace", "--json").stdout)
    assert {"plugin", "action", "what", "seconds", "components", "error"} == found["steps"][0].keys()
    assert {plugin["name"] for plugin in found["plugins"]} >= {"xmckit", "sleeping_plugin"}
