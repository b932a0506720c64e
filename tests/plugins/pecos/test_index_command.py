"""`xmckit index show`, on runs of small recipes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("pecos")

from scipy.sparse import csr_matrix
from xmckit_pecos.cli import index
from xmckit_pecos.labels.neighbours import similarities, visitors

import xmckit
from xmckit import UsageError

NASTY = "tree\x1b[31m"
ROWS = [
    ("a robin sings in the tree", ["bird", "song"]),
    ("the hawk hunts a mouse", ["bird", "hunt"]),
    ("a cat hunts a mouse", ["cat", "hunt"]),
    ("the cat sleeps", ["cat"]),
    ("the robin sings a song", ["bird", "song"]),
    ("an oak is a tree", [NASTY]),
    ("the tree is an old oak", [NASTY]),
] * 4
RECIPE = """
    validation = 0.0
    [data]
    use = "files"
    path = "rows.jsonl"
    [features]
    use = "tfidf"
    [head]
    use = "xrlinear"
    leaf_size = 2
    branching = 2
"""
INDEX = """
    [index]
    use = "tree"
    path = "mine.txt"
"""
MINE = "animals\tbird\nanimals\tcat\nanimals\tsong\nanimals\thunt\nplants/trees\ttree\x1b[31m\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs: one whose head builds its tree, one with a tree from a file."""
    folder = tmp_path_factory.mktemp("runs")
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    (folder / "mine.txt").write_text(MINE)
    for name, text in (("own", RECIPE), ("written", RECIPE + INDEX)):
        (folder / f"{name}.toml").write_text(text)
        xmckit.run(folder / f"{name}.toml", root=folder / "runs")
    return folder


def show(folder, *arguments):
    return CliRunner().invoke(index, ["show", *arguments, "--runs", str(folder / "runs")], catch_exceptions=False)


def told(folder, *arguments):
    return json.loads(show(folder, *arguments, "--json").output)


def test_the_tree_of_a_head(folder):
    shape = told(folder, "own")
    assert (shape["index"], shape["labels"], shape["leaves"]) == ("xrlinear", 5, 4)
    assert sum(entry["labels"] * entry["leaves"] for entry in shape["leaf_sizes"]) == 5
    assert [level["nodes"] for level in shape["levels"]] == [1, 2, 4]
    text = show(folder, "own").output
    assert "5 labels in 4 leaves, 3 levels below the root" in text
    leaves = [leaf for node in shape["tree"] for leaf in node["below"]]
    assert sorted(name for leaf in leaves for name in leaf["frequent"]) == ["bird", "cat", "hunt", "song", NASTY]
    assert all(sum(leaf["labels"] for leaf in node["below"]) == node["labels"] for node in shape["tree"])
    for leaf in leaves:
        assert f"    {leaf['node']} ({leaf['labels']}) {leaf['frequent'][0].replace(chr(27), chr(92) + 'x1b')}" in text


def test_a_tree_from_a_file_goes_by_the_names_of_the_data(folder):
    assert told(folder, "written")["index"] == "tree"
    assert told(folder, "written")["tree"] == told(folder, "written", "--index", "xrlinear")["tree"]
    leaf = told(folder, "written", "--label", "cat")["leaves"][0]
    assert (leaf["path"], leaf["size"]) == ("animals", 4)
    assert {item["label"] for item in leaf["nearest"]} == {"bird", "song", "hunt"}


def test_neighbours_are_in_the_order_of_their_rows_likeness(folder):
    facts = told(folder, "own", "--label", "cat", "--most", "3")
    run = xmckit.find_run("own", folder / "runs")
    X, Y = run.training_rows()
    names = xmckit.load(run).label_names
    near = similarities(X, Y, facts["number"])
    near[facts["number"]] = -1
    expected = [names[label] for label in np.argsort(-near, kind="stable")[:3]]
    assert [item["label"] for item in facts["nearest"]] == expected
    assert facts["nearest"][0]["label"] == "hunt"
    assert facts["rows"] == Y[:, facts["number"]].nnz


def test_the_rows_that_reach_a_leaf(folder):
    for run in ("own", "written"):
        facts = told(folder, run, "--label", "cat", "--examples", "2")
        (leaf,) = facts["leaves"]
        assert leaf["rows"] == leaf["rows_first"] <= facts["rows"]
        texts = dict(ROWS)
        assert len(leaf["examples"]) == 2
        for example in leaf["examples"]:
            assert "cat" in texts[example["text"]]
            assert example["other_labels"] == [name for name in texts[example["text"]] if name != "cat"]
    text = show(folder, "written", "--label", "cat").output
    assert f"reached by {leaf['rows']} of its training rows, such as" in text
    assert "a cat hunts a mouse; also hunt" in text or "the cat sleeps; no other label" in text
    assert "such as" not in show(folder, "written", "--label", "cat", "--examples", "0").output


MEANINGS = [
    ("striped cat on the sofa purrs", ["cat", "pet"]),
    ("my dog barks at the sofa", ["dog", "pet"]),
    ("jaguar prowls the rainforest at night", ["jaguar", "wild"]),
    ("the tiger prowls the rainforest", ["tiger", "wild"]),
    ("jaguar engine with leather seats", ["jaguar", "car"]),
    ("bentley engine with leather seats", ["bentley", "car"]),
] * 6


def test_the_meanings_of_a_label(folder):
    (folder / "meanings.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in MEANINGS)
    )
    overlap = '[index]\nuse = "overlap"\nleaf_size = 2\nbranching = 2\ncap = "none"\naverage = 2.0\nreach = 1\n'
    (folder / "meanings.toml").write_text(RECIPE.replace("rows.jsonl", "meanings.jsonl") + overlap)
    xmckit.run(folder / "meanings.toml", root=folder / "runs")
    shape = told(folder, "meanings")
    assert shape["facts"]["copies per label"] == shape["pseudo_labels"] / shape["labels"] > 1
    assert "how labels moved" in show(folder, "meanings").output

    facts = told(folder, "meanings", "--label", "jaguar")
    assert len(facts["leaves"]) == 2
    assert sum(leaf["rows_first"] for leaf in facts["leaves"]) == facts["rows"]
    seen = {frozenset(example["text"] for example in leaf["examples"]) for leaf in facts["leaves"]}
    assert seen == {
        frozenset({"jaguar prowls the rainforest at night"}),
        frozenset({"jaguar engine with leather seats"}),
    }
    for leaf in facts["leaves"]:
        wild = "rainforest" in leaf["examples"][0]["text"]
        near = [item["label"] for item in leaf["nearest"]]
        assert near[:1] == ["wild"] if wild else near[:1] == ["car"]
    text = show(folder, "meanings", "--label", "jaguar").output
    assert "training rows, 2 leaves" in text
    assert "of them before its other leaves, such as" in text


def test_visitors_belong_to_the_leaf_that_they_reach_best():
    reached = csr_matrix([[0.9, 0, 0.1], [0.2, 0, 0.7], [0.5, 0.4, 0.5], [0, 1, 0], [0.3, 0, 0]])
    first, third = visitors(reached, np.asarray([0, 2]))
    assert (first[0].tolist(), first[1]) == ([0, 4, 2, 1], 3)
    assert (third[0].tolist(), third[1]) == ([1, 2, 0], 1)


def test_names_cannot_steer_a_terminal(folder):
    text = show(folder, "written", "--label", "tree\x1b[31m").output
    assert "\x1b" not in text
    assert "tree\\x1b[31m" in text
    assert "in leaf plants/trees, with 0 other labels" in text


def test_a_label_that_a_head_leaves_out(folder):
    """Its only row is a test row of the other file, so that the head built its tree without it."""
    (folder / "parts").mkdir()
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS]
    (folder / "parts" / "train.jsonl").write_text("\n".join(lines))
    (folder / "parts" / "test.jsonl").write_text(json.dumps({"text": "the wolf hunts", "labels": ["wolf", "hunt"]}))
    (folder / "parts.toml").write_text(RECIPE.replace("rows.jsonl", "parts"))
    xmckit.run(folder / "parts.toml", root=folder / "runs")
    facts = told(folder, "parts", "--label", "wolf")
    assert (facts["leaves"], facts["nearest"], facts["rows"]) == ([], [], 0)
    assert "in no leaf" in show(folder, "parts", "--label", "wolf").output


def test_one_leaf_is_shown_with_what_it_means(folder):
    (folder / "single.toml").write_text(RECIPE + '[index]\nuse = "overlap"\nleaf_size = 8\n')
    result = xmckit.run(folder / "single.toml", root=folder / "runs")
    [warning] = result.warnings
    assert warning.startswith("overlap: the tree has one leaf only")
    assert warning.removeprefix("overlap: ") in result.report.read_text()
    text = show(folder, "single").output
    assert "the only leaf (5) bird, " in text
    assert text.rstrip().endswith("a label has no other leaf to be in")
    assert "how labels moved" not in text


def test_a_tree_with_many_nodes_is_cut(tmp_path):
    lines = [json.dumps({"text": f"word{row}", "labels": [f"label{row}"]}) for row in range(64)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    text = RECIPE.replace("branching = 2", "branching = 32").replace('"tfidf"', '"tfidf"\n    min_count = 1')
    (tmp_path / "many.toml").write_text(text)
    xmckit.run(tmp_path / "many.toml", root=tmp_path / "runs")
    shape = told(tmp_path, "many")
    assert (len(shape["tree"]), shape["more_nodes"]) == (16, 16)
    assert "  and 16 more\n" in show(tmp_path, "many").output


def test_mistakes(folder):
    with pytest.raises(UsageError, match="there is no label 'cats'; did you mean 'cat'"):
        show(folder, "own", "--label", "cats")
    with pytest.raises(UsageError, match="no label tree 'trees'; did you mean 'tree'"):
        show(folder, "written", "--index", "trees")
    with pytest.raises(UsageError, match="no run 'owl'"):
        show(folder, "owl")


@pytest.mark.parametrize("name", ["9" * 5000, "-1", "", "5", "cat\n"])
def test_names_and_numbers_that_are_no_label(folder, name):
    with pytest.raises(UsageError, match="there is no label"):
        show(folder, "own", f"--label={name}")


def test_a_label_on_no_row_stands_in_a_tree(folder):
    (folder / "unseen").mkdir()
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in ROWS]
    (folder / "unseen" / "train.jsonl").write_text("\n".join(lines))
    (folder / "unseen" / "test.jsonl").write_text(json.dumps({"text": "the wolf hunts", "labels": ["wolf"]}))
    tree = '[index]\nuse = "overlap"\nleaf_size = 2\nbranching = 2\n'
    (folder / "unseen.toml").write_text(RECIPE.replace("rows.jsonl", "unseen") + tree)
    xmckit.run(folder / "unseen.toml", root=folder / "runs")
    facts = told(folder, "unseen", "--label", "wolf")
    assert (len(facts["leaves"]), facts["rows"], facts["nearest"]) == (1, 0, [])
    assert "reached by 0 of its training rows" in show(folder, "unseen", "--label", "wolf").output


def test_a_run_without_a_tree(folder):
    text = RECIPE.replace("xrlinear", "popularity").replace("leaf_size = 2", "").replace("branching = 2", "")
    (folder / "none.toml").write_text(text)
    xmckit.run(folder / "none.toml", root=folder / "runs")
    with pytest.raises(UsageError, match="no label tree"):
        show(folder, "none")


def test_a_bad_tree_file_leaves_the_run_folder_whole(folder):
    (folder / "mine.txt").write_text(MINE.replace("cat", "dog"))
    try:
        with pytest.raises(xmckit.DataError, match=r"mine\.txt, line 2: there is no label 'dog'"):
            xmckit.run(folder / "written.toml", root=folder / "runs")
        failed = max((folder / "runs" / "written").iterdir(), key=lambda path: path.name)
        manifest = json.loads((failed / "manifest.json").read_text())
        assert manifest["status"] == "failed"
        assert not list(failed.glob("stages/*index*"))
    finally:
        (folder / "mine.txt").write_text(MINE)
