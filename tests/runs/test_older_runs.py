"""A run folder of version 0.1.0 still loads, predicts, verifies and reports.

`tests/assets/run_of_0_1.zip` holds `run/`, a run of that version with a label stage, an index, three heads and a verify
stage, and `expected.json`, what that version predicted with it.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import xmckit
from xmckit.cli import xmckit as program

ARCHIVE = Path(__file__).parents[1] / "assets" / "run_of_0_1.zip"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("xmckit_pecos", reason="the run has a label tree")
    folder = tmp_path_factory.mktemp("older")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(program, ["-q", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_predictions_are_those_of_the_version_that_trained_the_model(folder):
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    model = xmckit.load(folder / "run")
    tags = model.predict(expected["texts"], k=4)
    assert [[tag.label for tag in row] for row in tags] == [[label for label, _ in row] for row in expected["predict"]]
    scores = [[tag.score for tag in row] for row in tags]
    np.testing.assert_allclose(scores, [[score for _, score in row] for row in expected["predict"]], rtol=1e-5)
    assert model.labels(expected["texts"]) == expected["labels"]


def test_commands_read_it(folder):
    run = folder / "run"
    shown = json.loads(invoke("runs", "show", run, "--json"))
    assert shown["status"] == "done"
    assert [result["name"] for result in shown["metrics"]["results"]] == [
        "ensemble", "bsl", "dft", "xrlinear", "popularity",
    ]  # fmt: skip
    report = Path(json.loads(invoke("runs", "report", run, "--json"))["report"])
    assert "bsl" in report.read_text("utf-8")
    assert "printer" in invoke("labels", "inspect", run)
    assert "printer" in invoke("index", "show", run)


def test_its_proofs_are_accepted_and_given_again(folder):
    run = folder / "run"
    checked = json.loads(invoke("certificates", "check", run, "--json"))
    assert checked["ok"]
    stored = json.loads((run / "verdicts.json").read_text("utf-8"))
    before = {(one["head"], one["scope"]): one.get("counts") for one in stored["results"]}
    verified = json.loads(invoke("verify", run, "--json"))
    assert {(one["head"], one["scope"]): one.get("counts") for one in verified["results"]} == before
