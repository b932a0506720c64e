"""`xmckit search` and `xmckit labels add` on small runs, as a user calls them."""

from __future__ import annotations

import json

import click
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.sparse import csr_matrix

import xmckit
from xmckit.cli import xmckit as program
from xmckit.verification.verify import verify

pytest.importorskip("faiss", reason='faiss is not installed: pip install "xmckit[cpu]"')
from xmckit_faiss.index import FaissIndex

TOPICS = {
    "fruit": "apple pear plum cherry",
    "metal": "iron copper zinc silver",
    "river": "rhine danube elbe weser",
    "planet": "mars venus saturn jupiter",
}
RECIPE = """
seed = 0
workers = 1
[data]
use = "files"
path = "{data}"
[features]
use = "tfidf"
min_count = 1
[[head]]
{head}
"""
BSL = 'use = "bsl"\nepochs = 30\nbatch = 16\ndim = 8\ndropout = 0.0\n[head.encoder]\nuse = "sparse-linear"\nwidth = 8'

DFT = 'use = "dft"\nactive = 1\nslack = 4\nepochs = 30\nbatch = 16\ndropout = 0.0\n'
FAISS = '\n[[index]]\nuse = "faiss"'
TREE = '\n[[index]]\nuse = "tree"\nleaf_size = 2'


def call(*arguments: str) -> str:
    done = CliRunner().invoke(program, ["-q", *arguments], catch_exceptions=False, standalone_mode=False)
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes a run of this head, with or without an index."""
    folder = tmp_path_factory.mktemp("topics")
    rng = np.random.default_rng(0)
    (folder / "data").mkdir()
    for part, rows in (("train", 120), ("test", 20)):
        lines = []
        for _ in range(rows):
            topic = rng.choice(list(TOPICS))
            words = [*rng.choice(TOPICS[topic].split(), 3), *rng.choice(["lake", "boat", "sail", "harbour"], 1)]
            lines.append(json.dumps({"text": " ".join(words), "labels": [topic]}))
        (folder / "data" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")

    def make(name: str, head: str, also: str = "") -> xmckit.runs.Run:
        recipe = folder / f"{name}.toml"
        recipe.write_text(also + RECIPE.format(data=folder / "data", head=head))
        return xmckit.run(recipe, root=folder / "runs")

    return make


@pytest.fixture(scope="module")
def indexed(made):
    return made("indexed", BSL + '\n[[index]]\nuse = "faiss"').path


@pytest.fixture(scope="module")
def refitted(made):
    return made("refitted", BSL + '\n[[index]]\nuse = "faiss"', also="refit = true\nvalidation = 0.2").path


@pytest.fixture(scope="module")
def behind_a_tree(made):
    return made("behind_a_tree", BSL + TREE).path


@pytest.fixture(scope="module")
def united(made):
    """The heads and indexes of the recipe `everything`."""
    heads = BSL.replace('"bsl"', '"lml"') + "\n[[head]]\n" + DFT
    return made("united", heads + TREE.replace("tree", "overlap") + FAISS).path


@pytest.fixture(scope="module")
def plain(made):
    return made("plain", BSL).path


@pytest.fixture
def new(tmp_path):
    path = tmp_path / "new.jsonl"
    examples = ["iron copper", "copper zinc", "zinc iron silver"]
    path.write_text(json.dumps({"label": "alloy", "examples": examples}) + "\n")
    return path


def test_a_text_finds_its_label(indexed):
    told = json.loads(call("search", str(indexed), "copper and zinc", "-k", "2", "--json"))
    assert told["as"] == "text"
    assert told["labels"][0]["label"] == "metal"
    assert len(told["labels"]) == 2
    assert "metal" in call("search", str(indexed), "copper and zinc")


def test_a_label_finds_others_but_not_itself(indexed):
    told = json.loads(call("search", str(indexed), "fruit", "--json"))
    assert told["as"] == "label"
    assert {item["label"] for item in told["labels"]} == set(TOPICS) - {"fruit"}


def test_unknown_names_are_reported(indexed):
    with pytest.raises(xmckit.UsageError, match="did you mean 'fruit'"):
        call("search", str(indexed), "friut", "--label")
    with pytest.raises(xmckit.UsageError, match="no word of 'qqq' is among the run's features"):
        call("search", str(indexed), "qqq", "--text")


def test_a_run_that_takes_no_texts_is_searched_by_label(tmp_path):
    recipe = tmp_path / "matrix.toml"
    recipe.write_text(
        'seed = 0\nworkers = 1\n[data]\nuse = "synthetic"\nrows = 200\ntest_rows = 20\nfeatures = 60\nlabels = 12\n'
        'topics = 3\n[features]\nuse = "blocks"\n[head]\nuse = "popularity"'
    )
    run = xmckit.run(recipe, root=tmp_path / "runs").path
    name = xmckit.load(run).label_names[0]
    assert len(json.loads(call("search", str(run), name, "-k", "2", "--json"))["labels"]) == 2
    with pytest.raises(xmckit.UsageError, match=f"no label '{name}x'; did you mean '{name}'.*cannot take texts"):
        call("search", str(run), f"{name}x")
    with pytest.raises(xmckit.UsageError, match=r"^this model cannot take texts"):
        call("search", str(run), "some words", "--text")


def test_a_run_without_an_index_is_searched_too(plain):
    told = json.loads(CliRunner().invoke(program, ["search", str(plain), "copper", "--json"]).stdout)
    assert told["labels"][0]["label"] == "metal"


@pytest.mark.parametrize("which", ["indexed", "refitted", "plain", "behind_a_tree", "united"])
def test_new_labels_are_predicted_and_found(which, new, tmp_path, request):
    run = request.getfixturevalue(which)
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    told = json.loads(call("labels", "add", str(run), str(new), "--output", str(tmp_path / "more"), "--json"))
    assert told["predictable"]
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before
    model = xmckit.load(tmp_path / "more")
    assert list(model.label_names) == [*xmckit.load(run).label_names, "alloy"]
    metals, fruits = model.predict(["iron copper zinc", "apple pear plum"], k=2)
    assert {tag.label for tag in metals} == {"metal", "alloy"}
    assert fruits[0].label == "fruit"
    found = json.loads(call("search", str(tmp_path / "more"), "copper zinc", "-k", "2", "--json"))
    assert {item["label"] for item in found["labels"]} == {"metal", "alloy"}
    with pytest.raises(xmckit.UsageError, match="exists already"):
        call("labels", "add", str(run), str(new), "--output", str(tmp_path / "more"))
    with pytest.raises(xmckit.UsageError, match="has added labels already"):
        call("labels", "add", str(tmp_path / "more"), str(new))


@pytest.mark.parametrize(
    ("which", "first", "heads"), [("behind_a_tree", "tree", ["bsl"]), ("united", "overlap", ["lml", "dft"])]
)
def test_the_indexes_with_new_labels_are_named(which, first, heads, new, tmp_path, request):
    run, more = request.getfixturevalue(which), tmp_path / "more"
    told = json.loads(call("labels", "add", str(run), str(new), "--output", str(more), "--json"))
    expected = [(first, 4, False), ("faiss", 5, True)]
    assert [(line["head"], line["index"], line["labels"], line["new"]) for line in told["indexes"]] == [
        (head, *line) for head in heads for line in expected
    ]
    said = call("labels", "add", str(run), str(new), "--output", str(tmp_path / "again"))
    assert f"head {heads[0]}: index {first} still lists only the first 4 labels" in said
    assert f"head {heads[-1]}: index faiss lists the new labels" in said


@pytest.mark.parametrize("which", ["behind_a_tree", "united"])
def test_old_labels_keep_their_order_beside_new_ones(which, new, tmp_path, request):
    run, more = request.getfixturevalue(which), tmp_path / "more"
    call("labels", "add", str(run), str(new), "--output", str(more), "--json")
    before, after = xmckit.load(run), xmckit.load(more)
    X = before.features([" ".join(words.split()[:2]) + " boat" for words in TOPICS.values()])
    for old, extended in zip(before.heads, after.heads, strict=True):
        candidates = extended.candidates(X).toarray()
        assert (candidates[:, :4] == old.candidates(X).toarray()).all()
        ranked, with_new = old.predict(X, 5), extended.predict(X, 5)
        for row in range(4):
            kept = (with_new.indices[row] >= 0) & (with_new.indices[row] < 4)
            found = old.predict(X, 5).indices[row]
            assert with_new.indices[row][kept].tolist() == found[found >= 0].tolist()
            np.testing.assert_allclose(with_new.scores[row][kept], ranked.scores[row][found >= 0], rtol=1e-5, atol=1e-5)


def test_what_heads_with_new_labels_can_output_is_proved(united, new, tmp_path):
    more = tmp_path / "more"
    call("labels", "add", str(united), str(new), "--output", str(more), "--json")
    model = xmckit.load(more)
    X = model.features(["iron copper zinc", "apple pear plum"])
    wanted = csr_matrix(np.array([[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]], dtype=np.float32))
    (tmp_path / "verified").mkdir()
    told = verify(
        tmp_path / "verified",
        model.context.resolve("verifier", "argmax")(),
        [("lml", model.heads[0]), ("dft", model.heads[1])],
        xmckit.Split(X, wanted),
        most=10,
        context=model.context.using(folder=tmp_path),
    )
    answers = {(one["head"], one["scope"]): one for one in told["results"]}
    assert set(answers) == {(head, scope) for head in ("lml", "dft") for scope in ("full", "shortlist")}
    for answer in answers.values():
        assert [verdict["status"] for verdict in answer["verdicts"]] == ["argmaxable", "argmaxable"]


VIEWS = """
[data]
use = "files"
path = "{data}"
[[features]]
use = "tfidf"
name = "words"
min_count = 1
[[features]]
use = "tfidf"
name = "letters"
min_count = 1
terms = "characters"
ngrams = 3
shortest = 2
[[index]]
use = "faiss"
features = "letters"
[[index]]
use = "tree"
leaf_size = 2
[[head]]
name = "letters"
features = "letters"
{bsl}
[[head]]
name = "words"
{index}
{bsl}
"""


@pytest.mark.parametrize("index", ["index = []", ""])
def test_texts_are_searched_and_labels_added_with_the_features_of_each(index, made, indexed, new, tmp_path):
    """A head behind nothing takes labels; one behind a tree cannot be helped by an index of other features."""
    data = indexed.parent.parent.parent / "data"
    (tmp_path / "views.toml").write_text(VIEWS.format(data=data, bsl=BSL, index=index))
    run = xmckit.run(tmp_path / "views.toml", root=tmp_path / "runs").path
    (found,) = json.loads(call("search", str(run), "coppe silve", "-k", "1", "--json"))["labels"]
    assert found["label"] == "metal"  # no word of it is known
    told = json.loads(call("labels", "add", str(run), str(new), "--output", str(tmp_path / "more"), "--json"))
    if not index:
        assert told["why"] == [
            "head words: its indexes cannot take new labels, and labels are searched by other features than this "
            'head sees: an [[index]] with use = "faiss" and its features would take them'
        ]
        return
    assert told["predictable"]
    model = xmckit.load(tmp_path / "more")
    metals, fruits = model.predict(["iron copper zinc", "apple pear plum"], k=2)
    assert {tag.label for tag in metals} == {"metal", "alloy"}
    assert fruits[0].label == "fruit"


def test_nothing_is_left_of_labels_that_were_being_added(united, new, tmp_path, monkeypatch):
    more = tmp_path / "more"

    def killed(self, folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FaissIndex, "save", killed)
        with pytest.raises((KeyboardInterrupt, click.Abort)):
            call("labels", "add", str(united), str(new), "--output", str(more))
    assert not more.exists()
    call("labels", "add", str(united), str(new), "--output", str(more))
    assert xmckit.load(more).label_names[-1] == "alloy"


def test_a_head_that_cannot_take_labels_says_so(made, new, tmp_path):
    run = made("popular", 'use = "popularity"').path
    told = call("labels", "add", str(run), str(new), "--output", str(tmp_path / "more"))
    assert "not predictable: head popularity cannot take new labels" in told
    assert "alloy" in call("search", str(tmp_path / "more"), "copper zinc")
    with pytest.raises(xmckit.UsageError, match="can be searched"):
        xmckit.load(tmp_path / "more")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("{", "line 1: not a JSON object"),
        ("[1]\n", "expected a JSON object"),
        ('{"text": "boat"}', 'expected a "label" with a name'),
        ('{"label": " ", "text": "boat"}', 'expected a "label" with a name'),
        ('{"label": "a", "text": "boat", "text": "sail"}', "a key occurs twice"),
        (r'{"label": "a\ud800", "text": "boat"}', "half of a surrogate pair"),
        (r'{"label": "a", "examples": ["boat", "\udc00"]}', "half of a surrogate pair"),
        ('{"label": "a", "text": 3}', 'expected "examples"'),
        ('{"label": "a", "examples": []}', 'expected "examples"'),
        ('{"label": "a", "exmples": ["x"]}', "unknown key 'exmples'"),
        ('{"label": "fruit", "text": "apple"}', "'fruit' exists already"),
        ('{"label": "a", "text": "boat"}\n{"label": "a", "text": "boat"}', "line 2: label 'a' exists already"),
        (
            '{"label": "a", "text": "qqq"}',
            "new.jsonl: no text of label 'a' has a word that is among the run's features",
        ),
        ("\n", "no label in this file"),
    ],
)
def test_bad_files_are_refused(plain, tmp_path, lines, why):
    path = tmp_path / "new.jsonl"
    path.write_text(lines)
    with pytest.raises(xmckit.DataError, match=why):
        call("labels", "add", str(plain), str(path), "--output", str(tmp_path / "more"))
    assert not (tmp_path / "more").exists()


def test_files_as_other_programs_write_them(plain, tmp_path):
    path = tmp_path / "new.jsonl"
    # a byte order mark, line ends of Windows, and a character that ends a line elsewhere but not here
    path.write_bytes('\ufeff{"label": "ship", "text": "boat\u2028sail"}\r\n\r\n'.encode())
    told = json.loads(call("labels", "add", str(plain), str(path), "--output", str(tmp_path / "more"), "--json"))
    assert told["labels"] == ["ship"]


def test_two_plugins_share_the_group_labels():
    told = CliRunner().invoke(program, ["labels", "--help"]).output
    assert "inspect" in told
    assert "add" in told


def test_a_folder_with_new_labels_is_verified_and_its_proofs_checked(united, new):
    folder = united.with_name("behind")
    call("labels", "add", str(united), str(new), "--output", str(folder))
    told = json.loads(call("verify", str(folder), "--workers", "1", "--json"))
    model = xmckit.load(folder)
    assert told["run"] == str(folder)
    assert [(one["head"], one["scope"]) for one in told["results"]] == [
        (head, scope) for head in ("lml", "dft") for scope in ("full", "shortlist")
    ]
    for name, head in zip(("lml", "dft"), model.heads, strict=True):
        with np.load(folder / "verify" / "test" / f"decision-{name}.npz") as stored:
            np.testing.assert_array_equal(stored["W"], head.decision().W)
    assert call("certificates", "check", str(folder), "--model").count("all right") == 1
    # the run's own name is not that of a model with more labels
    with pytest.raises(xmckit.StorageError, match="no verdicts here"):
        call("certificates", "check", "united", "--runs", str(united.parents[1]))
    with pytest.raises(xmckit.UsageError, match=r"is a run with added labels, not a run: .* extension\.json"):
        call("index", "show", str(folder))


@pytest.mark.parametrize(
    "damage", [{"heads": [1]}, {"heads": ["0"]}, {"heads": [-1]}, {"labels": [3]}, {"indexes": [0]}]
)
def test_a_damaged_folder_names_its_file(damage, plain, new, tmp_path):
    call("labels", "add", str(plain), str(new), "--output", str(tmp_path / "more"))
    about = tmp_path / "more" / "extension.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), **damage}))
    with pytest.raises(xmckit.StorageError, match=r"extension\.json: this file is damaged"):
        xmckit.load(tmp_path / "more")


def test_a_search_takes_features_of_a_plugin_file(made, tmp_path):
    """`--plugin` behind the name of a command that is itself a plugin's; without it, the error names the file."""
    plugin = tmp_path / "own_words.py"
    plugin.write_text(
        "import xmckit\nfrom xmckit.components.featurizers import Tfidf\n\nclass OwnWords(Tfidf):\n    pass\n\n"
        "@xmckit.hookimpl\ndef xmckit_featurizers():\n"
        "    yield xmckit.Component('own-words', f'{__name__}:OwnWords', summary='Words.')\n"
    )
    recipe = made("plain", BSL).path / "recipe.toml"
    own = tmp_path / "own.toml"
    own.write_text(recipe.read_text().replace('use = "tfidf"', 'use = "own-words"'))
    call("run", str(own), "--plugin", str(plugin), "--runs", str(tmp_path / "runs"))
    asked = ("search", "own", "copper", "-k", "1", "--json", "--runs", str(tmp_path / "runs"))
    told = json.loads(call(*asked, "--plugin", str(plugin)))
    assert [found["label"] for found in told["labels"]] == ["metal"]
    with pytest.raises(xmckit.PluginError, match=r"came from a file of its own: give it with --plugin .*own_words\.py"):
        call(*asked)
