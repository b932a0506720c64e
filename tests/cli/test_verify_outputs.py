"""`xmckit verify` of heads whose decision is not what they output: in a run, in the survey, and in the verify stage."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from xmckit import pipeline, registry, store
from xmckit.cli import invocation
from xmckit.cli.run import _verdict_lines
from xmckit.cli.verify import verify
from xmckit.errors import UsageError, VerificationError

ASSETS = Path(__file__).parents[1] / "assets"
PLUGINS = ["lying_heads_plugin.py", "brute_force_plugin.py"]
HEADS = ["honest", "dropping", "misreplaying"]
REFUSED = "its decision is not what it outputs"

RECIPE = """
    [data]
    use = "synthetic"
    rows = 60
    test_rows = 40
    features = 20
    labels = 5
    topics = 2
    [[head]]
    use = "honest"
    [[head]]
    use = "dropping"
    [[head]]
    use = "misreplaying"
    [verify]
    use = "brute-force"
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    yield [Path(shutil.copy(ASSETS / name, folder)) for name in PLUGINS]
    for name in PLUGINS:
        sys.modules.pop(Path(name).stem, None)


@pytest.fixture(scope="module")
def result(tmp_path_factory, plugins):
    folder = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(textwrap.dedent(RECIPE))
    return pipeline.run(folder / "small.toml", root=folder / "runs", registry=registry.Registry(files=plugins))


@pytest.fixture
def call(monkeypatch, plugins):
    monkeypatch.setattr(registry.environment, "_default", None)

    def invoke(*arguments):
        words = [*map(str, arguments), "--verifier", "brute-force"]
        done = CliRunner().invoke(verify, words, obj=invocation.Call(files=plugins), standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.output

    return invoke


@pytest.fixture
def few_heads(monkeypatch):
    names = registry.Registry.names
    monkeypatch.setattr(registry.Registry, "names", lambda self, kind: HEADS if kind == "head" else names(self, kind))


def results_of(call, *arguments):
    return {result["head"]: result for result in json.loads(call(*arguments, "--json"))["results"]}


def check_refusals(results):
    assert [results[head]["verifiable"] for head in HEADS] == [True, False, False]
    assert all(results[head]["why"].startswith(REFUSED) for head in HEADS[1:])
    assert results["dropping"]["mismatch"]["check"] == "labels"
    assert results["dropping"]["mismatch"]["row"] % 5 == 0
    assert isinstance(results["dropping"]["mismatch"]["label"], int)
    assert results["misreplaying"]["mismatch"]["check"] == "replay"


def test_the_verify_stage_refuses_them(result):
    results = {one["head"]: one for one in store.read_json(result.path / "verdicts.json")["results"]}
    check_refusals(results)
    assert results["honest"]["checked"] == 40
    page = result.report.read_text()
    assert page.count(f"is not verifiable: {REFUSED}") == 2
    assert sum(REFUSED in line for line in _verdict_lines(result.run)) == 2


@pytest.mark.parametrize("assignments", ["test", "train", "random:2:20"])
def test_any_label_sets_are_refused(call, result, assignments):
    check_refusals(results_of(call, result.path, "--assignments", assignments))


def test_fail_under_fails_for_a_decision_that_is_not_output(call, result):
    with pytest.raises(VerificationError, match=f"dropping: not verifiable: {REFUSED}: labels.. differs") as caught:
        call(result.path, "--head", "dropping", "--fail-under", "0")
    assert caught.value.exit_code == 5
    call(result.path, "--head", "honest", "--fail-under", "0")


def test_outputs_of_a_head_are_verified(call, result):
    with pytest.raises(UsageError, match="each head outputs label sets of its own: choose one with --head"):
        call(result.path, "--assignments", "predicted")
    honest = results_of(call, result.path, "--assignments", "predicted", "--head", "honest")["honest"]
    assert (honest["outputs"], honest["by_rounding"], honest["share"]) == (40, 0, 1.0)
    printed = call(result.path, "--assignments", "predicted", "--head", "honest")
    assert "output by rounding" in printed
    assert "0 of 40" in printed
    assert (result.path / "verify" / "predicted-honest" / "verdicts.json").is_file()


@pytest.mark.usefixtures("few_heads")
def test_the_survey_refuses_them(call):
    for assignments in ([], ["--assignments", "predicted"], ["--assignments", "random:2:5"]):
        results = results_of(call, "--registry", "--labels", "5", "--dim", "2", "--most", "30", *assignments)
        check_refusals(results)
        status = {head: {one["name"]: one["status"] for one in results[head]["checks"]} for head in HEADS}
        assert "failed" not in status["honest"].values()
        assert status["dropping"]["decision_matches_labels"] == "failed"
        assert status["misreplaying"]["replay_matches_labels"] == "failed"
    assert results["honest"]["checked"] == 1000
    with pytest.raises(VerificationError, match=r"(?s)dropping: not verifiable: .*misreplaying: not verifiable: "):
        call("--registry", "--labels", "5", "--dim", "2", "--most", "5", "--fail-under", "0")
    printed = call("--registry", "--labels", "5", "--dim", "2", "--most", "5")
    assert "replayed" in printed
    assert f"dropping is not verifiable: {REFUSED}" in printed
