"""`xmckit plugins check`: a line for each check, an exit code, and the components that a name means."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from xmckit import scaffold
from xmckit.cli import xmckit as program
from xmckit.registry import Registry
from xmckit.testing import cases_named

BROKEN = """
import xmckit


class Odd(xmckit.Configured):
    conformance = {"expected_failures": {"results_have_no_nan": "it is meant to be odd"}}

    def compute(self, evaluation):
        evaluation.truth.data[:] = 2
        return {"odd": float("nan")}


@xmckit.hookimpl
def xmckit_metrics():
    yield xmckit.Component("odd", f"{__name__}:Odd")


@xmckit.hookimpl
def xmckit_executors():
    yield xmckit.Component("odd", f"{__name__}:Missing.Part")


Missing = Odd
"""


NEEDY = """
import xmckit
from pydantic import Field
from xmckit.components.executors import SerialExecutor


class Some(xmckit.Configured):
    class Params(xmckit.Params):
        where: str = Field(description="A place.")

    def fingerprint(self, *, context):
        return {}

    def read(self, *, context):
        return None


@xmckit.hookimpl
def xmckit_datasets():
    yield xmckit.Component("some", f"{__name__}:Some")


@xmckit.hookimpl
def xmckit_executors():
    yield xmckit.Component("some", f"{__name__}:SerialExecutor")
"""


@pytest.fixture
def plugin(tmp_path):
    """Gives `--plugin` a file, which is forgotten again after the test."""

    def written(text):
        file = tmp_path / f"checked_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(text)
        return str(file)

    yield written
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def check(*arguments):
    return CliRunner().invoke(program, ["plugins", "check", *arguments])


def test_a_correct_component_passes():
    done = check("metric:ranking", "--set", "k=[1, 2]")
    assert done.exit_code == 0, done.output
    assert "metric:ranking(k=[1, 2])" in done.stdout
    lines = [line for line in done.stdout.splitlines() if " passed " in f"{line} "]
    assert len(lines) == 20
    assert "ok: 20 passed, 0 failed" in done.stdout


def test_a_plugin_of_ones_own_and_what_it_breaks(plugin):
    file = plugin(BROKEN)
    done = check("metric:odd", "--plugin", file, "--json")
    assert done.exit_code == 4, done.output
    facts = json.loads(done.stdout)
    (component,) = facts["components"]
    status = {item["check"]: item["status"] for item in component["checks"]}
    assert not facts["ok"]
    assert (component["file"], component["line"]) == (file, 5)
    assert status["inputs_are_unchanged"] == "failed"
    assert status["results_have_no_nan"] == "xfailed"
    assert status["fresh_process_same_results"] == "passed"
    assert component["ran"] == component["passed"] + component["failed"] + component["xfailed"] > 10


def test_a_component_that_cannot_be_imported_is_one_failure(plugin):
    file = plugin(BROKEN)
    done = check("executor:odd", "--plugin", file)
    assert done.exit_code == 4
    assert "can_be_constructed" in done.stdout
    assert "Missing.Part" in " ".join(done.stdout.split())


def test_parameters_that_are_missing_are_named():
    done = check("dataset:files")
    assert done.exit_code == 4
    assert "it needs --set path=…" in " ".join(done.stdout.split())
    done = check("metric:ranking", "--set", "k=0")
    assert done.exit_code == 4
    assert "failed: 0 passed, 1 failed" in done.stdout


def test_components_that_need_parameters_are_listed_and_do_not_fail(plugin):
    file = plugin(NEEDY)
    name = Path(file).stem
    done = check(name, "--plugin", file)
    assert done.exit_code == 0, done.output
    assert "not checked: dataset:some needs --set where=…" in done.stdout
    assert "not checked: dataset:some\n" in done.stdout
    facts = json.loads(check(name, "--plugin", file, "--json").stdout)
    assert facts["ok"]
    assert [item["component"] for item in facts["components"]] == ["executor:some"]
    assert [item["component"] for item in facts["not_checked"]] == ["dataset:some"]
    assert check("dataset:some", "--plugin", file).exit_code == 4


def test_a_reader_is_given_an_example(plugin, tmp_path, registry):
    file = scaffold.write_single_file("reader", "told", tmp_path / "plugin", registry)
    folder = tmp_path / "news"
    folder.mkdir()
    (folder / "train.tsv").write_text("sports,tennis\tmatch of the year\n\tno labels here\nsports\tmatch day\n")
    (folder / "test.tsv").write_text("tennis\tanother match\n")
    done = check("told", "--plugin", str(file), "--example", str(folder))
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def registry():
    return Registry()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("verifier:argmax", {"verifier:argmax"}),
        ("argmax", {"verifier:argmax"}),
        ("faiss", {"indexer:faiss"}),
        ("eagle", {"label-preprocessor:eagle", "label-preprocessor:aggregate", "head:miml"}),
        ("heads", {"head:bsl", "head:dft", "head:lml", "head:softmax", "head:topk-entropy"}),
    ],
)
def test_names_mean_components_plugins_and_distributions(name, expected, registry):
    assert {case.name for case in cases_named(name, registry)} == expected
    assert {case.name for case in cases_named("xmckit", registry)} > expected


@pytest.mark.parametrize(
    ("arguments", "expected", "code"),
    [
        (["haeds"], "did you mean 'heads'", 4),
        (["head:bls"], "did you mean 'bsl'", 4),
        (["haed:bsl"], "did you mean 'head'", 4),
        (["command:run"], "no checks for the kind 'command'", 2),
        (["eagle", "--set", "soft=true"], "say KIND:NAME", 2),
        (["metric:sets", "--set", "nonsense"], "nonsense", 2),
    ],
)
def test_what_cannot_be_is_explained(arguments, expected, code):
    done = check(*arguments)
    assert done.exception is not None
    assert expected in str(done.exception)
    assert done.exception.exit_code == code
