"""The whole program: the cost of --help, exit codes, readable errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner

from xmckit.cli import xmckit as program
from xmckit.registry import default_registry

PROGRAM = str(Path(sysconfig.get_path("scripts"), "xmckit"))
TOY = Path(__file__).parents[1] / "assets" / "toy_plugin.py"


def call(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment}
    )


def ok(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    done = call(*arguments, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(code: int, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
    done = call(*arguments, cwd=cwd, **environment)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


SMALL = """
[data]
use = "synthetic"
rows = 200
test_rows = 50
features = 200
labels = 30
topics = 4
[head]
use = "popularity"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_help_imports_nothing_heavy():
    heavy = ["torch", "numba", "scipy", "sklearn", "pecos", "faiss", "matplotlib"]
    code = (
        "import sys; sys.argv = ['xmckit', '--help']\n"
        "from xmckit.cli import main\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "Commands:" in done.stdout


@pytest.mark.parametrize(
    "command", [[], ["run"], ["predict"], ["runs"], ["recipes"], ["data"], ["plugins"], ["doctor"]]
)
def test_every_command_explains_itself(command):
    assert "Usage:" in ok(*command, "--help")


def test_a_recipe_from_start_to_prediction(recipe, tmp_path):
    done = call("run", str(recipe), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "popularity (baseline)" in done.stdout
    report = Path(done.stdout.strip().splitlines()[-1].removeprefix("report: "))
    assert report.is_file()
    assert "✓ data" in done.stderr
    (listed,) = json.loads(ok("runs", "ls", "--json", cwd=tmp_path))
    assert (listed["recipe"], listed["status"]) == ("small", "done")
    assert "popularity" in ok("runs", "show", "small", cwd=tmp_path)
    assert "deleted 4 cached stages" in ok("runs", "clean", "--yes", cwd=tmp_path)


def test_runs_that_cannot_be_read_are_named(tmp_path):
    damaged = tmp_path / "runs" / "small" / "20260101T000000-damaged"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    listed = call("runs", "ls", "--json", cwd=tmp_path)
    (run,) = json.loads(listed.stdout)
    assert (listed.returncode, run["status"]) == (3, "damaged")
    assert "20260101T000000-damaged" in listed.stderr


def test_quiet_prints_results_only(recipe, tmp_path):
    done = call("-q", "run", str(recipe), cwd=tmp_path)
    assert done.stderr == ""
    assert "popularity" in done.stdout
    assert call("run", str(recipe), "--quiet", cwd=tmp_path).stderr == ""


def test_json_is_json(recipe, tmp_path):
    result = json.loads(ok("run", str(recipe), "--json", cwd=tmp_path))
    assert result["results"][0]["name"] == "popularity"
    assert json.loads(ok("run", str(recipe), "--dry-run", "--json", cwd=tmp_path))[0]["cached"] is True
    assert {item["kind"] for item in json.loads(ok("plugins", "ls", "--json"))["components"]} >= {"head", "reader"}
    assert json.loads(ok("plugins", "show", "head:bsl", "--json"))["line"] > 1
    assert json.loads(ok("data", "info", "synthetic", "--param", "rows=50", "--json"))["train"]["rows"] == 50
    assert json.loads(ok("doctor", "--json"))["healthy"] is True


def test_info_describes_a_published_set_that_is_missing(tmp_path):
    facts = json.loads(ok("data", "info", "Bibtex-XMC", "--json", cwd=tmp_path, XMCKIT_DATA=""))
    assert (facts["name"], facts["state"], facts["labels"]) == ("bibtex-xmc", "missing", 159)
    assert facts["source 1"]["address"].startswith("https://")
    assert facts["source 1"]["md5"]
    assert "Katakis" in facts["citation"]
    assert "xmckit data fetch bibtex-xmc" in ok("data", "info", "bibtex-xmc", cwd=tmp_path, XMCKIT_DATA="")
    (tmp_path / "sets" / "bibtex-xmc").mkdir(parents=True)
    message = fails(3, "data", "info", "bibtex-xmc", cwd=tmp_path, XMCKIT_DATA="sets")
    assert "Bibtex_data.txt is missing" in message


def test_predicting_from_text(tmp_path):
    (tmp_path / "train.jsonl").write_text(
        "\n".join(
            json.dumps({"text": f"word{i % 2} more", "labels": ["even" if i % 2 else "odd", "all"]}) for i in range(20)
        )
    )
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "word1", "labels": ["even"]}))
    (tmp_path / "tags.toml").write_text(
        '[data]\nuse = "files"\npath = "."\n[features]\nuse = "tfidf"\n[head]\nuse = "popularity"\n'
    )
    ok("run", "tags.toml", cwd=tmp_path)
    (result,) = json.loads(ok("predict", "tags", "word1 again", "-k", "2", "--json", cwd=tmp_path))
    assert result["labels"][0]["label"] == "all"
    done = subprocess.run(
        [PROGRAM, "predict", "tags", "-k", "1"],
        check=True,
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.count("all") == 2


def test_a_sweep_runs_the_grid_once(recipe, tmp_path):
    arguments = ["run", str(recipe), "--sweep", "seed=0,1", "--sweep", "score.top=20,30", "--json"]
    first = json.loads(ok(*arguments, cwd=tmp_path))
    assert [cell["set"] for cell in first] == [
        ["seed=0", "score.top=20"], ["seed=0", "score.top=30"], ["seed=1", "score.top=20"], ["seed=1", "score.top=30"],
    ]  # fmt: skip
    assert not any(cell["skipped"] for cell in first)
    second = json.loads(ok(*arguments, cwd=tmp_path))
    assert all(cell["skipped"] for cell in second)
    assert [cell["run"] for cell in second] == [cell["run"] for cell in first]
    table = ok("run", str(recipe), "--sweep", "seed=0,1,2", "--sweep", "score.top=20", cwd=tmp_path)
    assert len([line for line in table.splitlines() if line.startswith(("0 ", "1 ", "2 "))]) == 3


def test_a_plugin_file_works_on_every_command_wherever_it_stands(tmp_path):
    assert "shortlisted" in ok("plugins", "ls", "--plugin", str(TOY))
    assert "shortlisted" in ok("--plugin", str(TOY), "plugins", "ls")
    assert "toy_plugin.py" in ok("plugins", "--plugin", str(TOY), "show", "head:shortlisted")


def test_a_broken_plugin_file_is_named_and_help_still_works(tmp_path):
    broken = tmp_path / "broken_file_plugin.py"
    broken.write_text("1 / 0")
    message = fails(4, "run", "quickstart", "--plugin", str(broken))
    assert "broken_file_plugin.py" in message
    assert "ZeroDivisionError" in message
    assert "Commands:" in ok("--plugin", str(broken), "--help")
    assert "set aside" in ok("plugins", "ls", "--plugin", str(broken))
    done = call("doctor", "--plugin", str(broken))
    assert done.returncode == 4
    assert "ZeroDivisionError" in done.stdout


def test_a_plugin_that_is_not_loaded_is_missed_by_name(tmp_path, recipe):
    recipe.write_text(SMALL.replace('"popularity"', '"bsl"'))
    message = fails(2, "run", str(recipe), cwd=tmp_path, XMCKIT_DISABLE_PLUGINS="heads")
    assert "small.toml:10: head.use: no head named 'bsl'" in message
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["rnu"], 2, "did you mean 'run'?"),
        (["run"], 2, "name a recipe"),
        (["run", "no-such-recipe"], 2, "no-such-recipe"),
        (["run", "quickstart", "--set", "head.widht=3"], 2, "head.widht: unknown key"),
        (["run", "--resume", "nothing"], 2, "no run 'nothing'"),
        (["run", "quickstart", "--set", "seed=1", "--resume", "x"], 2, "leave out --set"),
        (["predict", "nothing", "text"], 2, "no run 'nothing'"),
        (["plugins", "show", "head:bls"], 4, "did you mean 'bsl'?"),
        (["plugins", "show", "bls"], 2, "KIND:NAME"),
        (["plugins", "ls", "--kind", "heads"], 2, "did you mean 'head'?"),
        (["data", "info", "missing-folder"], 2, "missing-folder"),
        (["data", "info", "synthetic", "--param", "rows=3", "--param", "rows.x=2"], 2, "data.rows: expected a whole"),
        (["data", "convert", "synthetic", "out", "--to", "parquet"], 2, "formats that can be written"),
        (["data", "convert", "synthetic", "/dev/null/out", "--to", "npz"], 2, "the file /dev/null is in its way"),
    ],
)
def test_mistakes_get_a_clear_error(tmp_path, arguments, code, expected):
    assert expected in fails(code, *arguments, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bad_data_is_exit_code_3(tmp_path):
    (tmp_path / "train.txt").write_text("2 3 2\n0 0:1\n9 1:1\n")
    (tmp_path / "test.txt").write_text("1 3 2\n0 0:1\n")
    message = fails(3, "-q", "data", "info", ".", cwd=tmp_path)
    assert "train.txt, line 3" in message


def test_convert_writes_what_can_be_read_again(tmp_path):
    ok(
        "-q",
        "data",
        "convert",
        "synthetic",
        "one",
        "--to",
        "xmc",
        "--param",
        "rows=60",
        "--param",
        "labels=80",
        cwd=tmp_path,
    )
    ok("-q", "data", "convert", "one", "two", "--to", "npz", cwd=tmp_path)
    facts = [json.loads(ok("data", "info", name, "--json", cwd=tmp_path)) for name in ("one", "two")]
    for part in ("labels", "train", "test"):
        assert facts[0][part] | {"named": None} == facts[1][part] | {"named": None}
    assert "exists already" in fails(2, "data", "convert", "one", "two", "--to", "npz", cwd=tmp_path)


def test_a_closed_pipe_is_no_error():
    with subprocess.Popen(
        [PROGRAM, "plugins", "ls"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_no_colour_when_it_is_not_wanted():
    assert "\x1b" not in ok("plugins", "show", "head:bsl", NO_COLOR="1")


def test_a_call_in_the_same_process_knows_nothing_of_the_one_before(tmp_path):
    def said(*arguments):
        return CliRunner().invoke(program, [*arguments, "plugins", "new", "head", "mine", "--output", str(tmp_path)])

    assert said("-q", "--plugin", str(TOY)).stderr == ""
    shutil.rmtree(tmp_path / "xmckit-mine")
    assert 'use = "mine"' in said().stderr
    listed = CliRunner().invoke(program, ["plugins", "ls"]).stdout
    assert TOY.stem not in listed


def test_a_command_below_a_group_is_there_for_the_call_that_brought_it(tmp_path):
    (tmp_path / "greeting.py").write_text(
        "import click, xmckit\n"
        "@xmckit.hookimpl\n"
        "def xmckit_commands():\n"
        "    yield xmckit.Component('data.hello', __name__ + ':hello', 'Say hello.')\n"
        "@click.command()\n"
        "def hello():\n"
        "    click.echo('hello')\n"
    )
    plugin = ["--plugin", str(tmp_path / "greeting.py")]
    assert CliRunner().invoke(program, [*plugin, "data", "hello"]).stdout == "hello\n"
    assert "No such command 'hello'" in CliRunner().invoke(program, ["data", "hello"]).stderr


def test_plugins_of_a_call_are_not_those_of_the_process():
    before = default_registry()
    assert CliRunner().invoke(program, ["plugins", "ls", "--plugin", str(TOY)]).exit_code == 0
    assert default_registry() is before


BAD_COMMANDS = """
import click
import xmckit

@click.command()
def raises():
    raise ValueError("from a command")

nothing = 5

@xmckit.hookimpl
def xmckit_commands():
    yield xmckit.Component("raises", __name__ + ":raises")
    yield xmckit.Component("run.below", __name__ + ":raises")
    yield xmckit.Component("runs.ls", __name__ + ":raises")
    yield xmckit.Component("runs.odd", __name__ + ":nothing")
"""


def test_bad_commands_of_a_plugin_keep_nobody_from_the_others(tmp_path):
    file = tmp_path / "bad_commands.py"
    file.write_text(BAD_COMMANDS)
    runs = call("--plugin", str(file), "runs", "ls", cwd=tmp_path)
    assert runs.returncode == 0
    assert "no runs" in runs.stdout
    said = f"left out: command:runs.ls of plugin 'bad_commands' ({file}): 'runs' has a 'ls' of its own"
    assert runs.stderr.count(said) == 1
    planned = call("--plugin", str(file), "run", "quickstart", "--help", cwd=tmp_path)
    assert planned.returncode == 0
    assert "command:run.below" in planned.stderr
    assert "'run' is a command, not a group" in planned.stderr
    assert "lacks main(): a click command" in fails(4, "--plugin", str(file), "runs", "odd", "any", "--thing")


def test_a_command_that_raises_is_named_below_its_traceback(tmp_path):
    file = tmp_path / "bad_commands.py"
    file.write_text(BAD_COMMANDS)
    done = call("--plugin", str(file), "raises", cwd=tmp_path)
    assert done.returncode == 4
    *before, last = done.stderr.strip().splitlines()
    assert before[0].startswith("Traceback")
    assert last == f"error: plugin 'bad_commands' ({file}) raised ValueError: from a command ({file}:7)"


def test_a_command_has_one_dot_at_most(tmp_path):
    file = tmp_path / "bad_commands.py"
    file.write_text(BAD_COMMANDS.replace("runs.odd", "runs.odd.deep"))
    assert "the name 'runs.odd.deep', expected at most one dot" in fails(4, "--plugin", str(file), "nothing")
