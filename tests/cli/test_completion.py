"""What the tab key offers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from xmckit.cli import xmckit as program
from xmckit.kinds import KINDS
from xmckit.scaffold import EXAMPLES

PROGRAM = Path(sysconfig.get_path("scripts"), "xmckit")


def offered(*words: str) -> list[str]:
    """Completions of the last word."""
    asked = ShellComplete(program, {}, "xmckit", "_XMCKIT_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in asked if item.type == "plain"]


def test_commands_of_the_core_and_of_plugins():
    assert {"run", "plugins", "completion", "argmax"} <= set(offered(""))
    assert offered("plug") == ["plugins"]
    assert {"ls", "show", "new", "trace"} <= set(offered("plugins", ""))
    assert "--single-file" in offered("plugins", "new", "--")


def test_recipes_and_recipe_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quiet.toml").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.toml").touch()
    assert offered("run", "qu") == ["quickstart", "quiet.toml"]
    assert offered("recipes", "show", "mine/") == ["mine/a.toml"]
    assert "dft" in offered("recipes", "validate", "quickstart", "")


def test_options_that_name_components():
    assert offered("verify", "--verifier", "") == ["argmax"]
    assert {"npz", "xmc"} <= set(offered("data", "convert", "synthetic", "out", "--to", ""))
    assert "bsl" in offered("plugins", "check", "")
    assert "head:bsl" in offered("plugins", "check", "head:b")


def test_components_by_name_and_by_kind():
    assert offered("plugins", "show", "topk") == ["topk-entropy"]
    assert "head:bsl" in offered("plugins", "show", "head:")
    assert not [name for name in offered("plugins", "show", "head:") if not name.startswith("head:")]
    assert offered("plugins", "ls", "--kind", "") == list(KINDS)
    assert offered("plugins", "new", "") == list(EXAMPLES)
    assert "stdlib-calls" in offered("data", "info", "")


def test_runs_of_commands_that_take_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/small/20260101T000000-aaaa", "elsewhere/other/20260101T000000-bbbb"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "runs" / ".cache" / "x").mkdir(parents=True)
    (tmp_path / "runs" / ".cache" / "x" / "manifest.json").touch()
    both = ["small", "runs/small/20260101T000000-aaaa"]
    assert offered("runs", "show", "") == both
    assert offered("predict", "") == both
    assert offered("run", "--resume", "") == both
    assert offered("ensemble", "small", "") == both
    assert offered("certificates", "check", "") == both  # a plugin's command
    assert offered("argmax", "hasse", "") == both
    assert offered("runs", "show", "--runs", "elsewhere", "oth") == ["other"]


def test_every_run_recipe_and_component_argument_has_names_to_offer():
    """An argument that is called otherwise would silently offer nothing."""
    from xmckit.cli.completion import NameType, offer_names

    context = click.Context(program, resilient_parsing=True)
    silent, asked = [], 0
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        offer_names(command)
        for path, argument in arguments(command, name):
            said = f"{argument.name} {argument.metavar}".lower()
            if any(word in said for word in ("run", "recipe", "kind", "source")):
                asked += 1
                if not isinstance(argument.type, NameType):
                    silent.append((path, argument.name))
    assert silent == []
    assert asked > 12


def arguments(command: click.Command, path: str):
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield path, parameter
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from arguments(child, f"{path} {name}")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_those_of_the_shell(shell):
    done = CliRunner().invoke(program, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert f"_XMCKIT_COMPLETE={shell}_complete" in done.stdout
    assert "%(" not in done.stdout


NOISY = "print('hello'); import sys; print('there', file=sys.stderr)"


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    """What a person sees of a line on which the tab key is pressed, in a bash that talks to a terminal."""
    if shutil.which("bash") is None or sys.platform == "win32":
        pytest.skip("needs bash and a terminal")
    import pty
    import select

    folder = tmp_path_factory.mktemp("home")
    run = folder / "runs" / "small" / "20260101T000000-aaaa"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    for name in ("quiet.toml", "my own.toml"):
        (folder / name).touch()
    (folder / "noisy.py").write_text(NOISY)
    path = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb", "COLUMNS": "300", "XMCKIT_TRACE": "1"}
    child, screen = pty.fork()
    if not child:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)

    def shown(typed: str, until: str) -> str:
        os.write(screen, typed.encode())
        seen = ""
        while until not in seen and select.select([screen], [], [], 120)[0]:
            seen += os.read(screen, 4096).decode()
        return seen

    shown('stty -echo; bind "set enable-bracketed-paste off"; bind "set bell-style none"; stty echo\n', "$ ")
    shown('eval "$(xmckit completion bash)"; echo rea""dy\n', "ready")
    yield shown
    os.write(screen, b"\x03\nexit\n")
    os.waitpid(child, 0)
    os.close(screen)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("plugins tr", "trace "),
        ("run quic", "quickstart "),
        ("recipes show quie", "quiet.toml "),
        ("recipes show my", "my\\ own.toml "),
        ('recipes show "my', 'my own.toml" '),
        ("plugins show head:bs", "head:bsl "),
        ("plugins check topk", "topk-entropy "),
        ("plugins ls --kind=lab", "--kind=label-preprocessor "),
        ("verify --verifier arg", "argmax "),
        ("runs show runs/sm", "runs/small/20260101T000000-aaaa "),
        ("runs show sm", "small "),
        ("--plugin noisy.py plugins tra", "trace "),
    ],
)
def test_a_person_presses_the_tab_key_in_bash(terminal, typed, completed):
    seen = terminal(f"xmckit {typed}\t", completed)
    assert f"xmckit {typed[: typed.rindex(completed[:2])]}{completed}" in seen, seen
    # nothing but the completed line: no trace, no print of a plugin
    assert "trace:" not in seen
    assert "there" not in seen
    terminal("\x15\n", "$ ")  # the line is taken back


def test_completing_imports_nothing_heavy():
    heavy = ["torch", "numba", "sklearn", "pecos", "faiss", "matplotlib"]
    code = (
        "import sys\n"
        "from xmckit.cli import xmckit\n"
        "from click.shell_completion import ShellComplete\n"
        "ask = ShellComplete(xmckit, {}, 'xmckit', '_XMCKIT_COMPLETE').get_completions\n"
        "commands = ask([], '')\n"
        "shared = {'xmckit.cli.invocation', 'xmckit.cli.options'}\n"
        "assert {name for name in sys.modules if name.startswith('xmckit.cli.')} <= shared, 'a command was imported'\n"
        "assert commands and ask(['run'], '') and ask(['plugins', 'show'], '') and ask(['plugins', 'new'], '')\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
