"""Heads and indexes of one recipe with different features: each is trained, scored, verified and shown with its own."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.sparse import csr_matrix, save_npz
from xmckit_pecos.labels.neighbours import similarities

import xmckit
from xmckit import DataError, UsageError, pipeline, store
from xmckit.cli import xmckit as program
from xmckit.components.ensembles import combine_rankings
from xmckit.components.featurizers import Tfidf
from xmckit.data.saved import load_dataset
from xmckit.recipe import load_recipe
from xmckit.records import TopK
from xmckit.registry import Registry
from xmckit.runs import Run

LABELS = ["bird", "cat", "fish", "hunt", "night", "river", "song", "tree", "wind", "winter"]
DATA = """
[data]
use = "files"
path = "rows.jsonl"
[score]
k = [1, 3]
top = 5
"""
WORDS = '[[features]]\nuse = "tfidf"\nname = "words"\nmin_count = 1\n'
LETTERS = (
    '[[features]]\nuse = "tfidf"\nname = "letters"\nmin_count = 1\nterms = "characters"\nngrams = 3\nshortest = 2\n'
)
# the first index and head see {0}, the second {1}
MODEL = """
[[index]]
use = "tree"
name = "large"
leaf_size = 2
branching = 2
features = "{0}"
[[index]]
use = "tree"
name = "small"
leaf_size = 2
branching = 2
beam = 1
features = "{1}"
[[head]]
use = "xrlinear"
name = "linear"
features = "{0}"
index = ["large"]
[[head]]
use = "bsl"
name = "shortlisted"
features = "{1}"
index = ["small"]
epochs = 3
candidates = 3
dim = 4
encoder = {{ use = "sparse-linear", width = 8 }}
"""
VERIFY = '[verify]\nuse = "argmax"\n'
TWO = DATA + WORDS + LETTERS + MODEL.format("words", "letters")


def rows(count):
    """Texts that name their labels, not always in full."""
    draw = random.Random(0)
    for _ in range(count):
        own = draw.sample(LABELS, draw.randint(1, 3))
        yield {"text": " ".join(label[: draw.randint(3, 6)] for label in own), "labels": own}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(120)))
    return folder


def run_of(folder, name, text, **options):
    (folder / f"{name}.toml").write_text(text)
    return xmckit.run(folder / f"{name}.toml", root=options.pop("root", folder / "runs"), **options).run


@pytest.fixture(scope="module")
def run(folder):
    return run_of(folder, "two", TWO + VERIFY)


@pytest.fixture(scope="module")
def texts(run):
    return list(load_dataset(run.stage_folder("data")).test.texts)


@pytest.fixture
def call(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def called(*arguments):
        result = CliRunner().invoke(program, ["-q", *map(str, arguments)], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result.stdout

    return called


def predictions(path):
    arrays = store.read_arrays(path / "predictions.npz")
    return TopK(arrays["indices"], arrays["scores"])


def same(one, other):
    return np.array_equal(one.indices, other.indices) and np.array_equal(one.scores, other.scores)


def names(run):
    return [stage.name for stage in run.stages]


def test_each_has_a_stage_and_the_run_says_who_sees_it(run):
    assert names(run) == [
        "data", "features-words", "features-letters", "index-large", "index-small", "head-linear", "head-shortlisted",
        "score", "verify",
    ]  # fmt: skip
    assert run.manifest.features == {
        "labels": "features-words",
        "index-large": "features-words",
        "index-small": "features-letters",
        "head-linear": "features-words",
        "head-shortlisted": "features-letters",
    }
    widths = [run.training_rows(stage)[0].shape[1] for stage in ("labels", "head-linear", "index-small")]
    assert widths[0] == widths[1] != widths[2]


def test_one_table_of_features_leaves_a_run_as_it_was(folder):
    text = DATA + WORDS.replace("[[features]]", "[features]").replace('name = "words"\n', "")
    plain = run_of(folder, "plain", text + '[head]\nuse = "popularity"\n')
    assert names(plain) == ["data", "features", "head-popularity", "score"]
    assert plain.manifest.features is None
    stages = {stage.name: stage for stage in plain.stages}
    assert stages["head-popularity"].identity["inputs"] == [stages["features"].key]
    order = ["data", "features", "head-popularity"]
    assert stages["score"].identity["inputs"] == [stages[name].key for name in order]
    assert "\n[features]\n" in (plain.path / "resolved.toml").read_text()


def test_predictions_of_texts_are_those_of_the_run_and_each_featurizer_runs_once(run, texts, monkeypatch):
    model = xmckit.load(run.path)
    seen = []
    transform = Tfidf.transform
    monkeypatch.setattr(Tfidf, "transform", lambda self, *a, **k: seen.append(self) or transform(self, *a, **k))
    found = model.topk(texts, k=5)
    assert len(seen) == len({id(featurizer) for featurizer in seen}) == 2
    assert same(found, predictions(run.path))
    matrices = model.all_features(texts)
    assert same(
        found,
        combine_rankings([head.predict(X, 5) for head, X in zip(model.heads, matrices, strict=True)], 5, "average"),
    )
    assert (model.sets(texts) != store.read_csr(run.path / "sets.npz")).nnz == 0
    for head, X in enumerate(matrices):
        assert (model.features(texts, head) != X).nnz == 0


def test_heads_with_the_same_features_share_them(folder, texts, monkeypatch):
    more = (
        '[[head]]\nuse = "popularity"\nfeatures = "letters"\n[[head]]\nuse = "xrlinear"\nname = "third"\nindex = []\n'
    )
    model = xmckit.load(run_of(folder, "four", TWO + more).path)
    assert [model.featurizers.index(featurizer) for featurizer in model.featurizers] == [0, 1, 1, 0]
    calls = []
    transform = Tfidf.transform
    monkeypatch.setattr(Tfidf, "transform", lambda self, *a, **k: calls.append(self) or transform(self, *a, **k))
    model.sets(texts)
    assert len(calls) == 2


@pytest.mark.parametrize("rule", ["average", "rank", "softmax"])
def test_it_is_the_ensemble_of_the_runs_with_one_of_the_features(run, folder, texts, rule):
    """Each head as if its features were the only ones, with the seed of its place; what can be shared is not redone."""
    ensemble = f'[ensemble]\nrule = "{rule}"\n'
    both = run_of(folder, f"both-{rule}", TWO + ensemble)
    views = {"words": WORDS, "letters": LETTERS}
    alone = {
        name: run_of(folder, f"only-{name}", DATA + view + MODEL.format(name, name)) for name, view in views.items()
    }
    heads = [
        xmckit.load(alone[name].path).heads[place].predict(xmckit.load(alone[name].path).features(texts), 5)
        for place, name in enumerate(views)
    ]
    assert same(predictions(both.path), combine_rankings(heads, 5, rule))
    keys = {stage.name: stage.key for stage in both.stages}
    for name, shared in {
        "words": ["index-large", "head-linear"],
        "letters": ["index-small", "head-shortlisted"],
    }.items():
        single = {stage.name: stage.key for stage in alone[name].stages}
        assert keys[f"features-{name}"] == single["features"]
        assert [keys[stage] for stage in shared] == [single[stage] for stage in shared]


WATCHING = """
from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix

import xmckit
from xmckit import store


class Watch(xmckit.Configured):
    '''A head that only keeps what it was given.'''

    needs = frozenset()

    def fit(self, train, *, indexes=(), context):
        self.parts = {"train": train, "validation": context.validation}
        self.label_rows, self.labels_there = context.label_rows(), train.labels

    def predict(self, X, k, *, groups=None):
        return xmckit.TopK(np.full((X.shape[0], k), -1, np.int32), np.zeros((X.shape[0], k), np.float32))

    def labels(self, X):
        return csr_matrix((X.shape[0], self.labels_there), dtype=np.float32)

    def features(self, X):
        return None

    def decision(self):
        return None

    def save(self, folder):
        super().save(folder)
        for name, split in self.parts.items():
            store.write_csr(folder / f"{name}.npz", split.Y)
            store.write_json(folder / f"{name}.json", {"width": split.matrix.shape[1], "texts": list(split.texts)})
        store.write_json(folder / "labels.json", {"width": self.label_rows.shape[1]})


class Turn(xmckit.Configured):
    '''Every row gets the labels of the row at the other end.'''

    def apply(self, train, *, context):
        self.width = train.matrix.shape[1]
        return replace(train, Y=csr_matrix(train.Y[::-1]))

    def facts(self):
        return {"width": self.width}


@xmckit.hookimpl
def xmckit_heads():
    yield xmckit.Component("watch", f"{__name__}:Watch", summary="Watches.")


@xmckit.hookimpl
def xmckit_label_preprocessors():
    yield xmckit.Component("turn", f"{__name__}:Turn", summary="Turns.")
"""


def test_label_stages_see_the_first_features_and_all_heads_the_same_rows(folder):
    (folder / "watching.py").write_text(WATCHING)
    heads = "".join(f'[[head]]\nuse = "watch"\nname = "{name}"\nfeatures = "{name}"\n' for name in ("words", "letters"))
    text = DATA + LETTERS + WORDS + '[[labels]]\nuse = "turn"\n' + heads
    run = run_of(folder, "watched", text, registry=Registry(files=[folder / "watching.py"]))
    places = {name: run.stage_folder(f"head-{name}") / "head" for name in ("words", "letters")}
    wide = {name: run.training_rows(f"head-{name}")[0].shape[1] for name in places}
    assert wide["words"] != wide["letters"]
    assert store.read_json(run.stage_folder("labels-turn") / "labels.json")["facts"]["width"] == wide["letters"]
    for part in ("train", "validation"):
        of_words, of_letters = (store.read_json(place / f"{part}.json") for place in places.values())
        assert of_words["texts"] == of_letters["texts"]
        assert (of_words["width"], of_letters["width"]) == (wide["words"], wide["letters"])
        labels, others = (store.read_csr(place / f"{part}.npz") for place in places.values())
        assert labels.nnz
        assert (labels != others).nnz == 0
    for name, place in places.items():
        assert store.read_json(place / "labels.json")["width"] == wide[name]
    train, turned = load_dataset(run.stage_folder("data")).train, run.training_rows("head-words")[1]
    assert (turned != train.Y[::-1]).nnz == 0
    keys = {stage.name: stage.key for stage in run.stages}
    inputs = {stage.name: stage.identity.get("inputs") for stage in run.stages}
    assert inputs["head-letters"] == [keys["labels-turn"]]
    assert inputs["head-words"] == [keys["labels-turn"], keys["features-words"]]


class Stopped(Exception):
    pass


@pytest.mark.parametrize("last", ["features-words", "features-letters", "index-small", "head-linear"])
def test_a_run_that_was_stopped_goes_on(run, folder, tmp_path, last):
    def stop(record):
        if record.name == last:
            raise Stopped

    with pytest.raises(Stopped):
        run_of(folder, "two", TWO + VERIFY, root=tmp_path, announce=stop)
    (stopped,) = (tmp_path / "two").iterdir()
    with pytest.raises(UsageError, match="continue with"):
        xmckit.load(stopped)
    result = xmckit.run(folder / "two.toml", root=tmp_path, resume=stopped)
    assert same(predictions(result.path), predictions(run.path))
    assert result.run.manifest.features == run.manifest.features
    kept = names(Run.open(stopped))[: names(run).index(last) + 1]
    assert [stage.name for stage in result.run.stages if stage.reused] == kept
    again = xmckit.run(result.path / "resolved.toml", root=tmp_path)
    assert all(stage.reused for stage in again.run.stages)


@pytest.mark.parametrize("assignments", ["train", "validation"])
def test_a_second_round_and_other_assignments_see_the_same_features(folder, assignments):
    text = f'refit = true\n{TWO}{VERIFY}assignments = "{assignments}"\n'
    run = run_of(folder, f"again-{assignments}", text)
    assert [name for name in names(run) if "index" in name] == [
        "part-index-large", "part-index-small", "index-large", "index-small",
    ]  # fmt: skip
    X, Y = run.training_rows("head-shortlisted")
    stage = run.stage_folder("verify")
    asked = store.read_arrays(stage / "assignments.npz")
    assert asked["shape"][0] == (Y.shape[0] if assignments == "train" else round(0.1 * Y.shape[0]))
    candidates = store.read_arrays(stage / "candidates-shortlisted.npz")
    assert candidates["shape"].tolist() == asked["shape"].tolist()
    if assignments == "train":
        expected = xmckit.load(run.path).heads[1].candidates(X)
        assert np.array_equal(candidates["indices"], expected.sorted_indices().indices)


def test_evaluate_gives_the_metrics_of_the_run(run, call):
    stored = store.read_json(run.path / "metrics.json")["results"][0]["metrics"]
    told = json.loads(call("evaluate", run.path, "files", "--param", 'path="rows.jsonl"', "--json"))
    assert told["results"][0]["metrics"] == pytest.approx(stored)


def test_candidates_are_verified_with_the_features_of_their_head(run, texts, call):
    model = xmckit.load(run.path)
    candidates = model.heads[1].candidates(model.features(texts, 1))
    arrays = store.read_arrays(run.stage_folder("verify") / "candidates-shortlisted.npz")
    order = store.read_arrays(run.stage_folder("verify") / "assignments.npz", "rows")["rows"]
    assert np.array_equal(order, np.arange(len(texts)))
    assert np.array_equal(arrays["indices"], candidates.sorted_indices().indices)
    told = json.loads(call("verify", run.path, "--json"))
    verdicts = store.read_json(run.path / "verdicts.json")
    assert [one.get("counts") for one in told["results"]] == [one.get("counts") for one in verdicts["results"]]
    assert {one["scope"] for one in told["results"] if one["verifiable"]} == {"full", "shortlist"}
    again = store.read_arrays(run.path / "verify" / "test" / "candidates-shortlisted.npz")
    assert np.array_equal(again["indices"], arrays["indices"])
    call("certificates", "check", run.path)


def test_runs_are_compared_and_combined(run, folder, texts, call):
    other = run_of(folder, "popular", DATA + WORDS + '[head]\nuse = "popularity"\n')
    assert json.loads(call("compare", run.path, other.path, "--json"))
    call("ensemble", run.path, other.path, "--output", "with-popular")
    found = xmckit.load(folder / "with-popular").topk(texts, k=5)
    assert same(found, predictions(folder / "with-popular"))


def test_an_index_is_shown_with_the_rows_that_it_sees(run, call):
    told = json.loads(call("index", "show", run.path, "--index", "small", "--label", "bird", "--json"))
    label_names = load_dataset(run.stage_folder("data")).label_names
    bird = label_names.index("bird")
    found = {one["label"]: one["cosine"] for one in told["nearest"]}
    for stage, seen in (("index-small", True), ("index-large", False)):
        near = similarities(*run.training_rows(stage), bird)
        expected = {label_names[label]: round(float(near[label]), 4) for label in np.flatnonzero(near) if label != bird}
        assert (found == expected) == seen
    assert json.loads(call("index", "show", run.path, "--index", "large", "--json"))["labels"] == len(LABELS)


def test_the_report_names_both(run):
    page = (run.path / "report.html").read_text()
    for shown in ("features-words", "features-letters", "features.1.terms"):
        assert shown in page
    data = page[page.index('id="data"') : page.index('id="stages"')]
    columns = [run.training_rows(stage)[0].shape[1] for stage in ("head-linear", "head-shortlisted")]
    text = " ".join(re.sub("<[^>]+>", " ", data).split())
    assert f"words tfidf {columns[0]:,} index large head linear" in text.replace(" , ", " ")
    assert f"letters tfidf {columns[1]:,} index small head shortlisted" in text.replace(" , ", " ")


def test_the_plan_has_both(folder):
    (folder / "two.toml").write_text(TWO + VERIFY)
    steps = pipeline.plan(load_recipe(folder / "two.toml"), root=folder / "runs")
    assert [step.stage for step in steps][1:3] == ["features-words", "features-letters"]


def test_a_head_whose_features_cannot_take_texts(tmp_path, call):
    generator = np.random.default_rng(0)
    for part, count in (("trn", 30), ("tst", 6)):
        save_npz(tmp_path / f"X.{part}.npz", csr_matrix(generator.random((count, 4), dtype=np.float32)))
        save_npz(tmp_path / f"Y.{part}.npz", csr_matrix(np.eye(3, dtype=np.float32)[np.arange(count) % 3]))
        (tmp_path / f"texts.{part}.txt").write_text("".join(f"word{row % 3} more\n" for row in range(count)))
    text = (
        f'[data]\nuse = "files"\npath = "{tmp_path}"\n{WORDS}[[features]]\nuse = "blocks"\n'
        '[[head]]\nuse = "popularity"\nfeatures = "{}"\n[[head]]\nuse = "xrlinear"\nfeatures = "{}"\n[score]\ntop = 5\n'
    )
    for order in (("words", "blocks"), ("blocks", "words")):
        run = run_of(tmp_path, "mixed", text.replace("{}", order[0], 1).replace("{}", order[1], 1))
        np.save(tmp_path / "rows.npy", np.zeros((1, 4), np.float32))
        for rows in ("word1 more", tmp_path / "rows.npy"):
            with pytest.raises(UsageError, match="needs rows that have both a text and 4 features"):
                call("predict", run.path, rows)
        with pytest.raises(UsageError, match="cannot take these rows"):
            xmckit.load(run.path).topk(np.zeros((1, 4), np.float32))
        told = json.loads(call("evaluate", run.path, "files", "--param", f'path="{tmp_path}"', "--json"))
        stored = store.read_json(run.path / "metrics.json")["results"][0]["metrics"]
        assert told["results"][0]["metrics"] == pytest.approx(stored)


def test_features_that_the_data_cannot_give_stop_the_run(folder):
    with pytest.raises(DataError, match=r"^features blocks: these rows have texts but no feature matrix"):
        run_of(
            folder, "blocks", DATA + WORDS + '[[features]]\nuse = "blocks"\n[[head]]\nuse = "popularity"\n'
            '[[head]]\nuse = "xrlinear"\nfeatures = "blocks"\n'
        )  # fmt: skip
