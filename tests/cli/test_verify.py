"""`xmckit verify`: of a run, of any label sets, of every registered head; exit codes and files."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.sparse import csr_matrix, save_npz

from xmckit import pipeline, registry, store
from xmckit.cli import invocation
from xmckit.cli.verify import verify
from xmckit.data.saved import load_label_names
from xmckit.errors import DataError, RecipeError, UsageError, VerificationError
from xmckit.report.verdict_section import caveats, split_results
from xmckit.verification.label_sets import random_label_sets, read_label_sets

ASSETS = Path(__file__).parents[1] / "assets"
PLUGINS = ["toy_plugin.py", "brute_force_plugin.py"]

RECIPE = """
    [data]
    use = "synthetic"
    rows = 200
    test_rows = 40
    features = 60
    labels = 6
    topics = 2
    [[index]]
    use = "frequent"
    [[head]]
    use = "bsl"
    dim = 2
    epochs = 3
    encoder = { use = "sparse-linear", width = 4 }
    index = []
    [[head]]
    use = "shortlisted"
    [[head]]
    use = "popularity"
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plugins")
    yield [Path(shutil.copy(ASSETS / name, folder)) for name in PLUGINS]
    for name in PLUGINS:
        sys.modules.pop(Path(name).stem, None)


@pytest.fixture(scope="module")
def made(tmp_path_factory, plugins):
    folder = tmp_path_factory.mktemp("made")
    (folder / "small.toml").write_text(textwrap.dedent(RECIPE))
    return pipeline.run(folder / "small.toml", root=folder / "runs", registry=registry.Registry(files=plugins)).run


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made.path, tmp_path / "runs" / "small" / made.path.name))


@pytest.fixture
def call(monkeypatch, plugins):
    """The command as the program calls it, with these plugins; returns what it printed, or raises."""
    monkeypatch.setattr(registry.environment, "_default", None)

    def invoke(*arguments):
        words = [*map(str, arguments), "--verifier", "brute-force"]
        result = CliRunner().invoke(verify, words, obj=invocation.Call(files=plugins), standalone_mode=False)
        invoke.printed = result.output
        if result.exception is not None:
            raise result.exception
        return result.output

    return invoke


def told(call, *arguments):
    return json.loads(call(*arguments, "--json"))


def test_a_run_is_verified_head_by_head(call, run):
    facts = told(call, run)
    results = {(result["head"], result["scope"]): result for result in facts["results"]}
    assert list(results) == [
        ("bsl", "full"),
        ("shortlisted", "full"),
        ("shortlisted", "shortlist"),
        ("popularity", "full"),
    ]
    assert (facts["assignments"], facts["of"]) == (40, 40)
    bsl = results["bsl", "full"]
    assert (bsl["rule"], bsl["dim"], sum(bsl["counts"].values())) == ("sign", 2, 40)
    assert bsl["share"] == bsl["counts"]["argmaxable"] / 40
    assert results["popularity", "full"]["why"] == "its decision is not one linear layer"
    folder = Path(facts["folder"])
    assert folder == run / "verify" / "test"
    stored = store.read_json(folder / "verdicts.json")
    assert [result.get("counts") for result in stored["results"]] == [item.get("counts") for item in facts["results"]]
    assert [path.name for path in folder.parent.iterdir()] == ["test"]


def test_what_is_verified_is_proved(call, run):
    checker = pytest.importorskip("xmckit_argmax.checker.check")
    for asked in ("test", "train", "random:3:30"):
        facts = told(call, run, "--assignments", asked, "--most", "30")
        report = checker.check(Path(facts["folder"]))
        assert report.failures == []
        assert sum(report.proved.values()) == sum(
            sum(r["counts"].values()) for r in facts["results"] if r["verifiable"]
        )
        assert report.proved["unargmaxable"]


def test_the_table_names_what_can_never_come(call, run):
    printed = call(run, "--head", "shortlisted")
    for text in ("head", "scope", "smallest margin", "shortlisted can never output:", "for these rows' candidates:"):
        assert text in printed
    facts = told(call, run, "--head", "shortlisted")
    names = load_label_names(run / "stages" / "0-data")
    assert set(facts["results"][0]["never"][0]["labels"]) <= set(names)
    assert f"{{{', '.join(facts['results'][0]['never'][0]['labels'])}}}" in printed
    assert Path(facts["folder"]).name == "test-shortlisted"


def test_a_caveat_appears_once_for_each_head():
    result = {"head": "bsl", "verifiable": True, "caveat": "its vectors have 24 entries"}
    without = {"head": "popularity", "verifiable": False, "why": "it is not linear"}
    results = [result, {**result, "scope": "shortlist"}, {**result, "head": "dft", "caveat": None}, without]
    proved, reasons = split_results(results)
    assert caveats(proved) == ["bsl: its vectors have 24 entries"]
    assert reasons == ["popularity is not verifiable: it is not linear"]


def test_a_second_call_replaces_the_first_and_what_fails_leaves_it(call, run, monkeypatch):
    first = told(call, run, "--head", "bsl", "--assignments", "random:2:10")
    second = told(call, run, "--head", "bsl", "--assignments", "random:2:10", "--most", "5")
    assert first["folder"] == second["folder"]
    folder = Path(first["folder"])
    assert store.read_json(folder / "verdicts.json")["assignments"] == 5
    monkeypatch.setattr(store, "write_json", lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        call(run, "--head", "bsl", "--assignments", "random:2:10")
    assert store.read_json(folder / "verdicts.json")["assignments"] == 5
    assert len(list(folder.parent.glob("[!.]*"))) == 1


def test_finished_blocks_of_a_stopped_call_are_reused(call, run, tmp_path, monkeypatch):
    diary = tmp_path / "diary"
    options = [run, "--head", "bsl", "--assignments", "random:2:10", "--set", f"diary={str(diary)!r}"]
    with monkeypatch.context() as patch:
        patch.setattr(store, "write_json", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises((KeyboardInterrupt, click.Abort)):
            call(*options)
    assert diary.read_text().split() == ["10"]
    assert sum(told(call, *options)["results"][0]["counts"].values()) == 10
    assert diary.read_text().split() == ["10"]
    assert [path.name for path in (run / "verify").iterdir()] == ["random-2-10-bsl"]


def test_fail_under_is_code_5(call, run):
    call(run, "--head", "shortlisted", "--fail-under", "0")
    with pytest.raises(VerificationError, match=r"shortlisted, full: .* % of the label sets are proved") as caught:
        call(run, "--head", "shortlisted", "--fail-under", "99")
    assert caught.value.exit_code == 5
    assert "smallest margin" in call.printed
    with pytest.raises(VerificationError, match="popularity: not verifiable"):
        call(run, "--fail-under", "0")


def test_random_sets_follow_the_seed(call, run):
    folders = []
    for seed in ("0", "0", "5"):
        facts = told(call, run, "--head", "bsl", "--assignments", "random:3:20", "--seed", seed)
        folders.append(store.read_csr(Path(facts["folder"]) / "assignments.npz").toarray())
    assert (folders[0] == folders[1]).all()
    assert (folders[0] != folders[2]).any()
    assert (folders[2].sum(axis=1) == 3).all()


def test_sets_of_a_file(call, run, tmp_path):
    names = load_label_names(run / "stages" / "0-data")
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps(names[:2]) + "\n[]\n[5, 0]\n", encoding="utf-8")
    facts = told(call, run, "--head", "bsl", "--assignments", path)
    assert Path(facts["folder"]).name == "file-asked-bsl"
    asked = store.read_csr(Path(facts["folder"]) / "assignments.npz")
    assert asked.toarray().tolist() == [[1, 1, 0, 0, 0, 0], [0] * 6, [1, 0, 0, 0, 0, 1]]


def test_sets_of_an_npz(tmp_path):
    matrix = csr_matrix(np.eye(3, dtype=np.float32))
    save_npz(tmp_path / "sets.npz", matrix)
    assert (read_label_sets(tmp_path / "sets.npz", "abc").toarray() == np.eye(3)).all()
    with pytest.raises(DataError, match="are over 3 labels, expected 4"):
        read_label_sets(tmp_path / "sets.npz", "abcd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["red"]\nred\n', r"sets\.jsonl, line 2: expected a JSON list such as"),
        ("{}\n", "line 1: expected a JSON list of labels, found '{}'"),
        ('["gren"]\n', "line 1: no label is called 'gren'; did you mean 'green'"),
        ("[3]\n", "line 1: label 3 does not exist: labels go from 0 to 2"),
        ("[true]\n", "line 1: expected the name or the number of a label, found True"),
        ('["twin"]\n', "line 1: several labels are called 'twin'"),
        ("\n", "line 1: expected a JSON list such as"),
        ("[" * 200_000, "line 1: expected a JSON list such as"),
        ("", "no label sets in this file"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    path = tmp_path / "sets.jsonl"
    path.write_text(text)
    names = ["twin", "twin", "red", "green"] if "twin" in text else ["red", "green", "blue"]
    with pytest.raises(DataError, match=message):
        read_label_sets(path, names)


@pytest.mark.parametrize("text", ["random:3", "random:3:0", "random:9:1", "random:-1:5", "random:a:b", "random:1:2:3"])
def test_a_bad_random_is_a_usage_error(text):
    with pytest.raises(UsageError, match=r"expected random:K:COUNT|COUNT has to be 1|there are only 6"):
        random_label_sets(text, 6, np.random.default_rng(0))


def test_random_sets_are_sets():
    sets = random_label_sets("random:4:200", 6, np.random.default_rng(0)).toarray()
    assert (sets.sum(axis=1) == 4).all()
    assert len({tuple(row) for row in sets.tolist()}) == 15  # all of them


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--head", "bls"], UsageError, "no head 'bls'; did you mean 'bsl'"),
        (["--assignments", "nowhere.jsonl"], DataError, "there is no such file"),
        (["--set", "nonsense=1"], RecipeError, "nonsense"),
        (["--set", "most=1"], UsageError, "for most use the options"),
    ],
)
def test_bad_options(call, run, arguments, error, message):
    with pytest.raises(error, match=message):
        call(run, *arguments)
    assert not (run / "verify").exists()


def test_an_unknown_verifier(plugins, run):
    state = invocation.Call(files=plugins)
    result = CliRunner().invoke(verify, [str(run), "--verifier", "bruteforce"], obj=state, standalone_mode=False)
    assert isinstance(result.exception, RecipeError)
    assert "did you mean 'brute-force'" in str(result.exception)


def test_every_registered_head(call):
    facts = told(call, "--registry", "--labels", "6", "--dim", "2", "--most", "20")
    results = {(result["head"], result["scope"]): result for result in facts["results"]}
    expected = {"bsl", "dft", "lml", "popularity", "shortlisted", "softmax", "topk-entropy"}
    assert expected <= {head for head, _ in results}
    assert results["bsl", "full"]["dim"] == 2
    assert results["lml", "full"]["rule"] == "topk"
    assert results["shortlisted", "shortlist"]["verifiable"]
    for head in ("popularity", "miml"):  # the second was trained, on groups of rows
        assert results[head, "full"]["why"] == "its decision is not one linear layer"
    for result in results.values():
        assert not result["verifiable"] or sum(result["counts"].values()) == 20
    # the DFT layer's guarantee: few arcs, always within reach
    assert results["dft", "full"]["share"] == 1.0


def test_a_registry_without_an_indexer_says_what_is_missing(call, monkeypatch):
    offered = {"head": ["popularity", "shortlisted"], "verifier": ["brute-force"], "dataset": ["synthetic"]}
    monkeypatch.setattr(registry.Registry, "names", lambda self, kind: offered.get(kind, []))
    printed = call("--registry", "--labels", "6", "--dim", "2")
    assert "is not verifiable: it needs an index that provides shortlist, and no registered indexer does" in printed
    assert "smallest margin" not in printed  # no table without a verifiable head
    with pytest.raises(UsageError, match="rows of its own"):
        call("--registry", "--assignments", "test")
