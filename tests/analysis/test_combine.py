"""Ensembles in a recipe, of finished runs, and of models that are loaded again."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from forging import reseal

import xmckit
from xmckit import DataError, RecipeError, StorageError, UsageError, store
from xmckit.analysis.combine import combine_runs
from xmckit.cli.ensemble import ensemble
from xmckit.cli.predict import predict
from xmckit.components.ensembles import combine_rankings, combine_sets
from xmckit.data.saved import load_dataset
from xmckit.recipe import load_recipe
from xmckit.records import TopK
from xmckit.runs import Run
from xmckit.runs.layout import ENSEMBLE

RULES = ("average", "rank", "softmax")
ROWS = [
    ("a robin sings in the tree", ["bird", "song"]),
    ("the hawk hunts a mouse", ["bird", "hunt"]),
    ("a cat hunts a mouse", ["cat", "hunt"]),
    ("the cat sleeps", ["cat"]),
    ("the robin sings a song", ["bird", "song"]),
    ("an oak is a tree", ["tree"]),
] * 5
DATA = """
[data]
use = "files"
path = "rows.jsonl"
[features]
use = "tfidf"
[score]
k = [1, 2]
top = 3
"""
BSL = '[[head]]\nuse = "bsl"\nname = "{}"\nepochs = 3\nencoder = {{ use = "sparse-linear", width = {} }}\n'
POPULAR = '[[head]]\nuse = "popularity"\n'


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    monkeypatch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensembles")
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder


def run_of(folder, name, text, *sets):
    (folder / f"{name}.toml").write_text(text)
    return xmckit.run(folder / f"{name}.toml", root=folder / "runs", sets=sets).run


@pytest.fixture(scope="module")
def runs(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
        return [
            run_of(folder, "narrow", DATA + BSL.format("narrow", 4)),
            run_of(folder, "wide", DATA + BSL.format("wide", 8) + POPULAR),
            run_of(folder, "narrow", DATA + BSL.format("narrow", 4), "seed=1", "score.top=5"),
        ]


def predictions(path):
    arrays = store.read_arrays(path / "predictions.npz")
    return TopK(arrays["indices"], arrays["scores"])


@pytest.mark.parametrize("rule", RULES)
def test_the_recipe_says_how_heads_are_combined(folder, rule):
    text = DATA + BSL.format("narrow", 4) + BSL.format("wide", 8) + f'[ensemble]\nrule = "{rule}"\n'
    run = run_of(folder, f"both-{rule}", text)
    metrics = store.read_json(run.path / "metrics.json")
    roles = [(result["name"], result["role"]) for result in metrics["results"]]
    assert metrics["ensemble"] == rule
    assert roles[:3] == [("ensemble", "ensemble"), ("narrow", "head"), ("wide", "head")]
    model = xmckit.load(run.path)
    texts = load_dataset(run.stage_folder("data")).test.texts
    members = [head.predict(model.features(texts), 3) for head in model.heads]
    expected = combine_rankings(members, 3, rule)
    for found in (predictions(run.path), model.topk(texts, k=3)):
        assert np.array_equal(found.indices, expected.indices)
        assert np.array_equal(found.scores, expected.scores)
    assert np.array_equal(model.topk(texts, k=1).indices, expected.indices[:, :1])
    assert (store.read_csr(run.path / "sets.npz") != model.sets(texts)).nnz == 0
    again = load_recipe(run.path / "resolved.toml")
    assert (again.ensemble, again) == (rule, load_recipe(folder / f"both-{rule}.toml", sets=[f"name=both-{rule}"]))


def test_another_rule_scores_again_and_trains_nothing(folder):
    text = DATA + BSL.format("narrow", 4) + BSL.format("wide", 8)
    run_of(folder, "rules", text, "seed=7")
    run = run_of(folder, "rules", text, "seed=7", "ensemble.rule=softmax")
    assert [stage.name for stage in run.stages if not stage.reused] == ["score"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('rule = "mean"', r":\d+: ensemble\.rule: expected 'average', 'rank' or 'softmax', found \"mean\""),
        ("rule = 1", r":\d+: ensemble\.rule: expected 'average'"),
        ('rules = "rank"', r":\d+: ensemble\.rules: unknown key; did you mean 'rule'\?"),
    ],
)
def test_a_wrong_rule_is_named_with_its_line(folder, wrong, message):
    (folder / "wrong.toml").write_text(DATA + POPULAR + f"[ensemble]\n{wrong}\n")
    with pytest.raises(RecipeError, match=message):
        load_recipe(folder / "wrong.toml")


@pytest.mark.parametrize("rule", RULES)
def test_finished_runs_are_combined_as_their_predictions_say(runs, rule):
    combined = combine_runs(runs, rule)
    expected = combine_rankings([predictions(run.path) for run in runs], 5, rule)
    assert np.array_equal(combined.topk.indices, expected.indices)
    assert np.array_equal(combined.topk.scores, expected.scores)
    sets = combine_sets([store.read_csr(run.path / "sets.npz") for run in runs])
    assert (combined.sets != sets).nnz == 0
    names = [result["name"] for result in combined.metrics["results"]]
    assert names[:1] + names[2:3] == ["ensemble", "wide"]
    assert names[1].startswith("narrow/")
    for run, result in zip(runs, combined.metrics["results"][1:], strict=True):
        own = store.read_json(run.path / "metrics.json")["results"][0]["metrics"]
        assert result["metrics"] == pytest.approx(own)


def test_the_command_prints_every_run_and_keeps_what_predict_takes(runs, folder, monkeypatch):
    monkeypatch.chdir(folder)
    kept = folder / "kept"
    call = [str(runs[0].path), "wide", str(runs[2].path), "--rule", "rank"]
    shown = CliRunner().invoke(ensemble, [*call, "--output", str(kept)], catch_exceptions=False).output
    assert "ensemble (rank)" in shown
    assert "wide (run)" in shown
    told = json.loads(CliRunner().invoke(ensemble, [*call, "--json"], catch_exceptions=False).output)
    assert told["results"] == store.read_json(kept / "metrics.json")["results"]
    assert told["runs"] == [str(run.path) for run in runs]
    model = xmckit.load(kept)
    texts = load_dataset(runs[0].stage_folder("data")).test.texts
    found = model.topk(texts, k=5)
    assert np.array_equal(found.indices, predictions(kept).indices)
    assert np.array_equal(found.scores, predictions(kept).scores)
    assert (model.sets(texts) != store.read_csr(kept / "sets.npz")).nnz == 0
    assert len(model.heads) == 4
    answer = json.loads(CliRunner().invoke(predict, [str(kept), "a cat", "-k", "2", "--json"]).output)
    assert [tag["label"] for tag in answer[0]["labels"]] == [tag.label for tag in model.predict(["a cat"], k=2)[0]]
    with pytest.raises(UsageError, match="exists already"):
        CliRunner().invoke(ensemble, [*call, "--output", str(kept)], catch_exceptions=False)
    with pytest.raises(UsageError, match="exists already"):
        combine_runs(runs, "rank").save(kept)


def test_an_ensemble_knows_when_its_runs_are_gone(runs, tmp_path):
    combine_runs(runs, "average").save(tmp_path / "kept")
    about = store.read_json(tmp_path / "kept" / ENSEMBLE)
    for entry, message in (
        ({"path": "../nowhere"}, "which does not exist"),
        ({"identity": "0"}, "combines another run than"),
    ):
        changed = {**about, "runs": [{**about["runs"][0], **entry}, *about["runs"][1:]]}
        store.write_json(tmp_path / "kept" / ENSEMBLE, changed)
        with pytest.raises(UsageError, match=message):
            xmckit.load(tmp_path / "kept")
    store.write_json(tmp_path / "kept" / ENSEMBLE, {**about, "format": 9})
    with pytest.raises(StorageError, match="format: Input should be 1"):
        xmckit.load(tmp_path / "kept")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"rule": "mean"}, "rule: Input should be 'average'"),
        ({"rule": None}, "rule: Input should be 'average'"),
        ({"runs": None}, "runs: Input should be a valid list"),
        ({"runs": []}, "runs: List should have at least 2 items"),
        ({"runs": ["one", "two"]}, r"runs\.0: Input should be a valid dictionary"),
        ({"runs": [{"path": 1}] * 2}, r"runs\.0\.path: Input should be a valid string"),
        ({"runs": [{"path": "..", "top": "5"}] * 2}, r"runs\.0\.top: Input should be a valid integer"),
        ({"runs": [{"path": "..", "identity": "0", "top": 0}] * 2}, r"runs\.0\.top: Input should be greater"),
    ],
)
def test_a_damaged_ensemble_names_its_file(runs, tmp_path, damage, message):
    combine_runs(runs, "average").save(tmp_path / "kept")
    about = store.read_json(tmp_path / "kept" / ENSEMBLE)
    store.write_json(tmp_path / "kept" / ENSEMBLE, {**about, **damage})
    with pytest.raises(StorageError, match=rf"ensemble\.json.*{message}"):
        xmckit.load(tmp_path / "kept")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda indices, scores: (indices[:-1], scores[:-1]), "the best labels of"),
        (lambda indices, scores: (indices, scores[:, :-1]), "the best labels of"),
        (lambda indices, scores: (indices[:, :0], scores[:, :0]), "the best labels of"),
        (lambda indices, scores: (indices[0, 0], scores[0, 0]), "the best labels of"),
        (lambda indices, scores: (indices.astype(np.float64), scores), "labels as int32"),
        (lambda indices, scores: (indices + 100, scores), "a label is not one of"),
        (lambda indices, scores: (indices - 9, scores), "a label is not one of"),
    ],
)
def test_damaged_predictions_of_a_run_are_named(runs, tmp_path, change, message):
    shutil.copytree(runs[1].path, tmp_path / "wide" / "old")
    kept = predictions(runs[1].path)
    indices, scores = change(kept.indices, kept.scores)
    old = Run.open(tmp_path / "wide" / "old")
    for folder in (old.path, old.stage_folder("score")):
        store.write_arrays(folder / "predictions.npz", {"indices": indices, "scores": scores})
    reseal(old.path)
    with pytest.raises(StorageError, match=rf"predictions\.npz.*{message}"):
        combine_runs([runs[0], old], "average")


def test_where_an_ensemble_cannot_be_kept(runs, tmp_path):
    call = [str(runs[0].path), str(runs[1].path), "--output"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is in its way"):
        CliRunner().invoke(ensemble, [*call, str(tmp_path / "file" / "below" / "kept")], catch_exceptions=False)
    CliRunner().invoke(ensemble, [*call, str(tmp_path / "new" / "below" / "kept")], catch_exceptions=False)
    assert len(xmckit.load(tmp_path / "new" / "below" / "kept").heads) == 3


def test_what_a_killed_process_left_is_removed(runs, tmp_path):
    half = store.temporary_beside(tmp_path / "kept")
    left = half.with_name(half.name.replace(f"-{os.getpid()}-", "-999999999-"))
    for folder in (half, left):
        folder.mkdir()
    combine_runs(runs, "average").save(tmp_path / "kept")
    assert {path.name for path in tmp_path.iterdir()} == {"kept", half.name}


def test_an_ensemble_of_ensembles_is_refused(runs, tmp_path):
    combine_runs(runs[:2], "average").save(tmp_path / "kept")
    with pytest.raises(UsageError, match="is several runs combined, not a run: name a run that its"):
        CliRunner().invoke(ensemble, [str(tmp_path / "kept"), str(runs[2].path)], catch_exceptions=False)


def test_what_cannot_be_combined(runs, folder):
    with pytest.raises(UsageError, match="two runs or more"):
        combine_runs(runs[:1], "average")
    with pytest.raises(UsageError, match=rf"{runs[0].path.name} is given twice"):
        combine_runs([runs[0], runs[0]], "average")
    stopped = Run.create(folder / "runs", "stopped", "0" * 64, "", "")
    stopped.update(status="failed")
    with pytest.raises(UsageError, match="is failed, not done"):
        combine_runs([runs[0], stopped], "average")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda rows: [*rows, ("a dog", ["dog"])], "labels there"),
        (lambda rows: [(text, [f"{label}!" for label in labels]) for text, labels in rows], "is called 'bird' there"),
        (lambda rows: [*rows, *rows], "test rows there"),
        (lambda rows: [(f"{text}.", labels) for text, labels in rows], "has another text"),
        (lambda rows: [(text, ["bird", "cat", *labels[2:]]) for text, labels in rows], "label"),
    ],
)
def test_runs_on_other_data_are_named_with_what_differs(runs, folder, tmp_path, changed, message):
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in changed(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    other = run_of(tmp_path, "other", DATA + POPULAR)
    with pytest.raises(DataError, match=message):
        combine_runs([runs[0], other], "average")


def test_other_features_of_the_same_rows_may_be_combined(runs, folder):
    other = run_of(folder, "words", DATA.replace('use = "tfidf"', 'use = "tfidf"\nngrams = 2') + POPULAR)
    assert combine_runs([runs[0], other], "average").metrics["results"][2]["name"] == "words"


def test_a_run_that_kept_no_sets_leaves_the_ensemble_without(runs, tmp_path):
    shutil.copytree(runs[1].path, tmp_path / "wide" / "old")
    (tmp_path / "wide" / "old" / "sets.npz").unlink()
    combined = combine_runs([runs[0], Run.open(tmp_path / "wide" / "old")], "average")
    assert combined.sets is None
    ensemble_metrics, first, second = (result["metrics"] for result in combined.metrics["results"])
    assert "micro-F1" in first
    assert "micro-F1" not in ensemble_metrics
    assert "micro-F1" not in second
