"""`xmckit evaluate`: a run's model on other labelled data, and labels that it does not know."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, random, save_npz

import xmckit
from xmckit.analysis.evaluate import LabelledRows, concatenate, match, other_spellings, read_file
from xmckit.cli import xmckit as program
from xmckit.context import Context
from xmckit.data.model import Split
from xmckit.errors import DataError, UsageError

WORDS = ["apple", "brick", "cloud", "drum", "earth", "flame"]


def call(*arguments):
    result = CliRunner().invoke(program, ["-q", "evaluate", *map(str, arguments)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def scores(*arguments):
    return json.loads(call(*arguments, "--json"))


def written(path, rows):
    path.write_text("".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in rows))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(a run whose label is the text's word, the folder of its data)."""
    folder = tmp_path_factory.mktemp("words")
    rows = [(f"{word} and {number}", [word.upper()]) for number in range(9) for word in WORDS[: number + 1]]
    for part in ("train", "test"):
        written(folder / f"{part}.jsonl", rows)
    (folder / "words.toml").write_text(
        f'validation = 0\n[data]\nuse = "files"\npath = "{folder}"\n[features]\nuse = "tfidf"\n[index]\nuse = "tree"\n'
        '[head]\nuse = "xrlinear"\n'
    )
    return xmckit.run(folder / "words.toml", root=folder / "runs"), folder


def test_the_runs_own_data_gives_the_runs_own_scores(trained):
    result, folder = trained
    found = scores(result.path, folder)
    assert found["results"][0]["metrics"] == result.metrics["results"][0]["metrics"]
    assert found["unknown"]["labels"] == 0
    assert "P@1" in call(result.path, folder)


def test_another_file_of_rows(trained, tmp_path):
    result, _ = trained
    file = written(tmp_path / "new.jsonl", [("a drum", ["DRUM"]), ("an apple", ["DRUM"]), ("a brick", ["BRICK"])])
    found = scores(result.path, file)
    assert (found["rows"], found["dataset"]) == (3, "new.jsonl")
    assert found["results"][0]["metrics"]["P@1"] == pytest.approx(2 / 3)


def test_labels_that_the_model_does_not_know_are_misses(trained, tmp_path):
    result, _ = trained
    rows = [("a drum", ["DRUM", "NEW"]), ("a cloud", ["NEW\n\x1b[31m"]), ("a brick", ["BRICK"])]
    found = scores(result.path, written(tmp_path / "new.jsonl", rows))
    unknown = found["unknown"]
    assert (unknown["labels"], unknown["pairs"], unknown["of_pairs"], unknown["share"]) == (2, 2, 4, 0.5)
    assert (unknown["rows"], unknown["rows_with_no_other"], unknown["examples"]) == (2, 1, ["NEW", "NEW\n\x1b[31m"])
    metrics = found["results"][0]["metrics"]
    assert metrics["P@1"] == pytest.approx(2 / 3)
    assert metrics["R@5"] == pytest.approx((1 / 2 + 0 + 1) / 3), "a label that cannot be found is one that is missed"
    told = call(result.path, tmp_path / "new.jsonl")
    assert "2 labels are unknown to the model (NEW, NEW\\n\\x1b[31m): 2 of 4 true labels (50.0 %)" in told


def test_the_order_and_number_of_labels_may_differ(trained, tmp_path):
    result, _ = trained
    rows = [(f"a {word}", [word.upper()]) for word in reversed(WORDS)]
    for part in ("train", "test"):
        written(tmp_path / f"{part}.jsonl", rows)
    (tmp_path / "labels.txt").write_text("".join(f"{word.upper()}\n" for word in ["zero", *reversed(WORDS)]))
    assert scores(result.path, tmp_path)["results"][0]["metrics"]["P@1"] == 1
    assert scores(result.path, tmp_path, "--split", "all")["rows"] == 12
    assert scores(result.path, tmp_path, "--split", "train")["rows"] == 6


def test_labels_with_other_spelling_are_reported(trained, tmp_path):
    result, _ = trained
    file = written(tmp_path / "new.jsonl", [("a drum", ["drum", "BRICK"]), ("an apple", ["Ap-ple", "pear"])])
    found = scores(result.path, file)["unknown"]["written_otherwise"]
    assert found["labels"] == 2
    assert {(one["label"], one["known_as"]) for one in found["examples"]} == {("drum", "DRUM"), ("Ap-ple", "APPLE")}
    printed = call(result.path, file)
    assert "2 of them are spelled differently from the model's labels" in printed
    assert "; did you mean 'APPLE' by 'Ap-ple', 'DRUM' by 'drum'?" in printed


def test_one_unknown_label_is_one(trained, tmp_path):
    result, _ = trained
    file = written(tmp_path / "new.jsonl", [("a drum", ["DRUM", "pear"])])
    told = call(result.path, file)
    assert "1 label is unknown to the model (pear)" in told
    assert "Rows with one: 1; with no other label: 0." in told
    assert "did you mean" not in told


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), max_size=6), st.lists(st.text(max_size=5), max_size=6))
def test_what_is_written_otherwise_is_a_known_name_of_the_same_letters(names, known):
    found = other_spellings(names, known)
    assert set(found) <= set(names)
    assert set(found.values()) <= set(known)
    shouted = [name.upper() for name in known if name.isascii() and name.isalnum()]
    assert set(other_spellings(shouted, known)) == set(shouted)


def test_a_wrong_name_of_data_has_the_nearest_one(trained):
    result, folder = trained
    beside = (folder / "tset.jsonl", "test.jsonl")
    for wrong, meant in (("stdlib-cals", "stdlib-calls"), ("eurlex4k", "eurlex-4k"), beside):
        with pytest.raises(UsageError, match=f"no data set, file or folder '{wrong}'; did you mean '.*{meant}'"):
            call(result.path, wrong)
    with pytest.raises(UsageError, match=r"no data set, file or folder 'qqqqqq' \(looked in .*`xmckit data ls`"):
        call(result.path, "qqqqqq")


def test_data_that_does_not_fit(trained, tmp_path):
    result, _ = trained
    file = written(tmp_path / "new.jsonl", [("a drum", ["drum"])])
    with pytest.raises(
        DataError, match=r"they are 'drum', the model's are 'APPLE', .* …; did you mean 'DRUM' by 'drum'\?"
    ):
        scores(result.path, file)
    (tmp_path / "new.txt").write_text("1 3 2\n0 0:1\n")
    with pytest.raises(DataError, match="labels are numbers up to 1, and the model has 6 labels with names"):
        scores(result.path, tmp_path / "new.txt")
    (tmp_path / "six.txt").write_text("1 3 6\n0 0:1\n")
    with pytest.raises(UsageError, match=r"words.* cannot take these rows"):
        scores(result.path, tmp_path / "six.txt")
    for content in (" 1:1\n", ""):
        (tmp_path / "bare.svm").write_text(content)
        with pytest.raises(DataError, match="no row has a label"):
            scores(result.path, tmp_path / "bare.svm")
    with pytest.raises(UsageError, match="no run 'nothing'"):
        scores("nothing", tmp_path)


def test_one_file_of_features(tmp_path):
    context = Context()
    (tmp_path / "a.txt").write_text("2 3 4\n0,3 0:1\n 2:1\n")
    xmc = read_file(tmp_path / "a.txt", None, context=context)
    assert xmc.split.Y.toarray().tolist() == [[1, 0, 0, 1], [0, 0, 0, 0]]
    (tmp_path / "a.svm").write_text("0,3 1:1\n2 3:1\n")
    svm = read_file(tmp_path / "a.svm", None, context=context)
    assert (svm.split.X != xmc.split.X).nnz == 0
    assert read_file(tmp_path / "a.npz", None, context=context) is None


# -- matching labels -----------------------------------------------------------------------------------------------


def labelled(Y, names):
    return LabelledRows("rows", Split(X=None, Y=csr_matrix(Y, dtype=np.float32), texts=[""] * len(Y)), names)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1), st.permutations("abcdef"), st.data())
def test_matching_is_by_name(names, known, data):
    Y = np.array(data.draw(st.lists(st.lists(st.booleans(), min_size=len(names), max_size=len(names)), min_size=1)))
    used = {name for name, there in zip(names, Y.any(axis=0), strict=True) if there}
    rows = labelled(Y, names)
    if used and not used & set(known):
        with pytest.raises(DataError, match="knows none"):
            match(rows, known)
        return
    matched = match(rows, known)
    columns = [*known, *matched.unknown]
    assert set(matched.unknown) == used - set(known)
    for row, labels in enumerate(Y):
        expected = {name for name, there in zip(names, labels, strict=True) if there}
        assert {columns[label] for label in matched.truth[row].indices} == expected
    told = matched.unknown_facts(len(known))
    assert told["pairs"] == sum(Y[:, place].sum() for place, name in enumerate(names) if name not in known)
    assert matched.truth.has_sorted_indices


def test_numbers_are_matched_as_numbers():
    matched = match(labelled([[1, 0, 1]], None), ["0", "1"])
    assert (matched.truth.indices.tolist(), list(matched.unknown)) == ([0, 2], ["2"])
    assert match(labelled([[0, 1]], None), ["x", "y"]).truth.indices.tolist() == [1]


def test_names_that_are_there_twice_cannot_be_matched():
    assert match(labelled([[0, 1]], ["x", "x"]), ["x", "x"]).truth.indices.tolist() == [1]
    with pytest.raises(DataError, match="the same name"):
        match(labelled([[0, 1]], ["x", "x"]), ["x", "y"])


def test_filtered_pairs_move_with_their_labels():
    split = Split(X=None, Y=csr_matrix([[1.0, 1.0]]), texts=[""], filter=csr_matrix([[0.0, 1.0]]))
    assert match(LabelledRows("rows", split, ["a", "b"]), ["b", "a"]).filtered.indices.tolist() == [0]


def test_rows_are_joined():
    one, other = (
        Split(
            X={"X": random(rows, 3, 0.5, "csr"), "D": np.ones((rows, 2))}, Y=csr_matrix((rows, 2)), texts=["t"] * rows
        )
        for rows in (2, 3)
    )
    both = concatenate(one, other)
    assert (both.rows, both.X["X"].shape, both.X["D"].shape, len(both.texts)) == (5, (5, 3), (5, 2), 5)


def test_a_set_by_name_is_looked_for_in_the_data_folders(trained, tmp_path):
    result, _ = trained
    (tmp_path / "bibtex").mkdir()
    save_npz(tmp_path / "bibtex" / "X.trn.npz", csr_matrix((1, 1)))
    with pytest.raises(DataError, match="this is not the set bibtex"):
        scores(result.path, "bibtex", "--data", tmp_path)
