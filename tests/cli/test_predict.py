"""`xmckit predict`: rows of every format, answers in every form, and errors about bad rows."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import sys
import threading

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.sparse import csr_matrix, save_npz

import xmckit
from xmckit import store
from xmckit.analysis.evaluate import as_trained
from xmckit.analysis.predict import is_file
from xmckit.cli import main
from xmckit.cli import predict as module
from xmckit.cli import xmckit as program
from xmckit.data import row_stream as rows
from xmckit.data.model import Split
from xmckit.data.saved import FeatureRows, read_feature_rows, save_split
from xmckit.data.xmc_text import row_text
from xmckit.errors import DataError, StorageError, UsageError

WORDS = ["apple", "brick", "cloud", "drum", "earth", "flame"]


def call(*arguments, stdin=None):
    result = CliRunner().invoke(program, ["-q", "predict", *map(str, arguments)], input=stdin, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def best(output):
    """The first label of each line of JSON."""
    return [json.loads(line)["labels"][0]["label"] for line in output.splitlines()]


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory):
    """A run whose label is the text's word."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"text": f"{word} and {number}", "labels": [word.upper()]} for number in range(9) for word in WORDS]
    for part in ("train", "test"):
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "words.toml").write_text(
        f'validation = 0\n[data]\nuse = "files"\npath = "{folder}"\n[features]\nuse = "tfidf"\n[index]\nuse = "tree"\n'
        '[head]\nuse = "xrlinear"\n'
    )
    return xmckit.run(folder / "words.toml", root=folder / "runs").path


@pytest.fixture(scope="module")
def of_features(tmp_path_factory):
    """(a run whose label is the largest feature, its test rows)."""
    folder = tmp_path_factory.mktemp("features")
    X = np.vstack([np.eye(6), 3 * np.eye(6)]).astype(np.float32)
    for part in ("trn", "tst"):
        save_npz(folder / f"X.{part}.npz", csr_matrix(X))
        save_npz(folder / f"Y.{part}.npz", csr_matrix(np.vstack([np.eye(6), np.eye(6)]).astype(np.float32)))
    (folder / "labels.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (folder / "numbers.toml").write_text(
        f'validation = 0\n[data]\nuse = "files"\npath = "{folder}"\n[index]\nuse = "tree"\n[head]\nuse = "xrlinear"\n'
    )
    return xmckit.run(folder / "numbers.toml", root=folder / "runs").path, X


def test_the_formats_are_those_of_the_readers():
    assert module._FORMATS == rows.FORMATS
    assert all(is_file(f"missing{suffix}") for suffix in (".txt", *rows.SUFFIXES, ".npz", ".npy"))
    assert not is_file("missing.pdf")


def test_texts_on_the_line(of_texts):
    (answer,) = json.loads(call(of_texts, "a drum", "-k", 2, "--json"))
    assert (answer["text"], answer["labels"][0]["label"], len(answer["labels"])) == ("a drum", "DRUM", 2)
    assert call(of_texts, "a drum", "-k", 1).startswith("a drum: DRUM (")
    assert call(of_texts, " ", "-k", 1).startswith("line 1: ")
    assert call(of_texts, "a drum", "-k", 10**9).count("(") == len(WORDS)
    assert [json.loads(line)["text"] for line in call(of_texts, "x", "y", "--as", "jsonl").splitlines()] == ["x", "y"]


def test_every_format_of_texts_gives_the_same(of_texts, tmp_path):
    table = io.StringIO()
    csv.writer(table).writerows([["id", "text"], *([number, word] for number, word in enumerate(WORDS))])
    contents = {
        "a.txt": "\n".join(WORDS),
        "a.jsonl": "\n".join(json.dumps({"text": word, "id": word}) for word in WORDS),
        "a.csv": table.getvalue(),
        "a.tsv": "text\n" + "\n".join(WORDS),
    }
    expected = [word.upper() for word in WORDS]
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        form = {"a.txt": "text"}.get(name, name[2:])
        assert best(call(of_texts, tmp_path / name, "--as", "jsonl")) == expected
        assert best(call(of_texts, tmp_path / f"{name}.gz", "--as", "jsonl")) == expected
        assert best(call(of_texts, "-", "--from", form, "--as", "jsonl", stdin=content)) == expected
        assert best(call(of_texts, "--file", tmp_path / name, "--as", "jsonl")) == expected
    assert json.loads(call(of_texts, tmp_path / "a.jsonl", "--as", "jsonl").splitlines()[1])["id"] == "brick"


def test_every_format_of_features_gives_the_same(of_features, tmp_path):
    run, X = of_features
    sparse = csr_matrix(X)
    lines = [row_text(sparse, None, row, 0, 0) for row in range(len(X))]
    (tmp_path / "a.txt").write_text(f"{len(X)} 6 6\n" + "".join(f"0 {line}\n" for line in lines))
    (tmp_path / "a.svm").write_text("".join(row_text(sparse, sparse, row, 0, 1) + "\n" for row in range(len(X))))
    save_npz(tmp_path / "a.npz", sparse)
    np.save(tmp_path / "a.npy", X)
    answers = {name: best(call(run, tmp_path / name, "--as", "jsonl")) for name in ("a.txt", "a.svm", "a.npz", "a.npy")}
    answers["-"] = best(call(run, "-", "--as", "jsonl", stdin="\n".join(lines)))
    assert all(found == WORDS * 2 for found in answers.values()), answers


def test_a_model_of_dense_rows_gets_dense_rows():
    sparse = csr_matrix(np.eye(1, 3))
    assert as_trained(sparse, FeatureRows(3, dense=True)).tolist() == [[1, 0, 0]]
    assert as_trained(sparse, FeatureRows(3, dense=False)) is sparse
    assert as_trained(None, FeatureRows(3, dense=True)) is None


@pytest.mark.parametrize("matrix", [csr_matrix, np.asarray])
def test_the_width_of_stored_rows_is_known_without_reading_them(matrix, tmp_path):
    (tmp_path / "train").mkdir()
    X, Y = matrix(np.eye(3, 5, dtype=np.float32)), csr_matrix((3, 2))
    save_split(Split(X=X, Y=Y), tmp_path / "train")
    found = read_feature_rows(tmp_path / "train")
    assert found == FeatureRows(5, dense=matrix is not csr_matrix)
    (tmp_path / "train" / "X0.npz").write_bytes(b"damage")
    with pytest.raises(StorageError, match="damaged"):
        read_feature_rows(tmp_path / "train")
    save_split(Split(X=X, Y=Y), tmp_path / "train")
    store.seal(tmp_path, {"name": "data", "key": None})
    content = (tmp_path / "train" / "X0.npz").read_bytes()
    (tmp_path / "train" / "X0.npz").write_bytes(content.replace(b"(3, 5)", b"(5, 3)").replace(b"(2,)", b"(3,)"))
    with pytest.raises(StorageError, match="does not have the checksum"):
        read_feature_rows(tmp_path / "train")
    (tmp_path / "stage.json").unlink()
    for name in ("texts", "blocks"):
        (tmp_path / name / "train").mkdir(parents=True)
    save_split(Split(X=None, Y=Y, texts=["a"] * 3), tmp_path / "texts" / "train")
    save_split(Split(X={"A": X, "B": X}, Y=Y), tmp_path / "blocks" / "train")
    for name in ("texts", "blocks"):
        assert read_feature_rows(tmp_path / name / "train") is None


def test_answers_as_a_table_and_as_json(of_texts, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "drum", "id": "one\\ttwo"}\n"cloud"\n')
    header, first, *_, last = call(of_texts, tmp_path / "a.jsonl", "-k", 2, "--as", "table").splitlines()
    assert header == "line\tid\trank\tlabel\tscore"
    assert first.split("\t")[:4] == ["1", "one\\ttwo", "1", "DRUM"]
    assert last.split("\t")[2] == "2"
    whole = json.loads(call(of_texts, tmp_path / "a.jsonl", "--json", "--no-text"))
    assert [list(row) for row in whole] == [["line", "id", "labels"], ["line", "labels"]]
    (tmp_path / "empty.txt").write_text("")
    assert json.loads(call(of_texts, tmp_path / "empty.txt", "--json")) == []
    assert call(of_texts, tmp_path / "empty.txt", "--as", "jsonl") == ""


@pytest.mark.parametrize("style", ["--json", "--as=jsonl", "--as=table", "--as=lines"])
def test_no_text_can_steer_the_terminal(of_texts, tmp_path, style):
    text = "drum \x1b[2J\x7f\x85\x9b31m\u2028\u202e\u2066"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text, "id": text}))
    out = call(of_texts, tmp_path / "a.jsonl", style)
    assert out.replace("\n", "").replace("\t", "").isprintable()
    if style == "--json":
        (row,) = json.loads(out)
        assert (row["text"], row["id"]) == (text, text)
    elif style == "--as=jsonl":
        assert json.loads(out)["text"] == text


def test_label_sets(of_texts):
    model = xmckit.load(of_texts)
    passed = model.labels(["drum and cloud"])[0]
    (answer,) = json.loads(call(of_texts, "drum and cloud", "-k", 1, "--labels", "--json"))
    assert {found["label"] for found in answer["labels"]} == set(passed)
    (answer,) = json.loads(call(of_texts, "drum and cloud", "-k", 6, "--threshold", "--json"))
    assert {found["label"] for found in answer["labels"]} == set(passed)
    with pytest.raises(UsageError, match="choose one"):
        call(of_texts, "x", "--labels", "--threshold")


def test_chunks_change_nothing(of_texts, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("\n".join(WORDS * 5))
    whole = call(of_texts, tmp_path / "a.txt", "--as", "jsonl")
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 4)
    assert call(of_texts, tmp_path / "a.txt", "--as", "jsonl") == whole


def test_bad_lines(of_texts, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'"drum"\n{"txt": 1}\n\xff\n"cloud"\n')
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: no field .text., only txt"):
        call(of_texts, tmp_path / "a.jsonl")
    with pytest.raises(DataError, match="standard input, line 1: not UTF-8"):
        call(of_texts, "-", stdin=b"\xff")
    arguments = ["predict", str(of_texts), str(tmp_path / "a.jsonl"), "--skip-bad", "--as", "jsonl"]
    result = CliRunner().invoke(program, arguments, standalone_mode=False)
    assert best(result.stdout) == ["DRUM", "CLOUD"]
    assert "2 lines were skipped:\n" in result.stderr
    assert "line 2" in result.stderr
    assert "line 3" in result.stderr


def test_an_output_file_appears_when_it_is_complete(of_texts, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"drum\n\xff\n")
    with pytest.raises(DataError, match="line 2"):
        call(of_texts, tmp_path / "a.txt", "--out", tmp_path / "out.jsonl", "--as", "jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    shown = call(of_texts, tmp_path / "a.txt", "--out", tmp_path / "out.jsonl", "--as", "jsonl", "--skip-bad")
    assert shown == ""
    assert best((tmp_path / "out.jsonl").read_text()) == ["DRUM"]
    left = tmp_path / store.temporary_beside(tmp_path / "out").name.replace(str(os.getpid()), "999999999")
    left.write_text("of a process that was killed")
    call(of_texts, "drum", "--out", tmp_path / "out.jsonl")
    assert not left.exists()
    for place, why in ((tmp_path / "no" / "out", "no folder"), (tmp_path, "not a file"), ("/dev/null", "not a file")):
        with pytest.raises(UsageError, match=why):
            call(of_texts, "drum", "--out", place)


def test_what_cannot_be_asked(of_texts, of_features, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"there is no file missing\.jsonl"):
        call(of_texts, "missing.jsonl")
    with pytest.raises(UsageError, match="is a folder, not a file"):
        call(of_texts, tmp_path)
    assert call(of_texts, "drum " * 2000, "-k", 1, "--no-text").startswith("line 1: DRUM"), "no name is that long"
    with pytest.raises(UsageError, match="these are several files"):
        call(of_texts, "a.txt", "b.txt")
    with pytest.raises(UsageError, match="a file or texts, not both"):
        call(of_texts, "x", "--file", "-")
    (tmp_path / "a.svm").write_text("0 1:1\n")
    with pytest.raises(UsageError, match="give it texts"):
        call(of_texts, tmp_path / "a.svm")
    run, X = of_features
    (tmp_path / "a.jsonl").write_text('{"text": "drum"}\n')
    for texts in ("some text", tmp_path / "a.jsonl"):
        with pytest.raises(UsageError, match="cannot take texts: give it a file with rows of 6 features"):
            call(run, texts)
    save_npz(tmp_path / "a.npz", csr_matrix(X[:, :4]))
    with pytest.raises(DataError, match="rows have 4 features, the model takes 6"):
        call(run, tmp_path / "a.npz")
    (tmp_path / "a.npy").write_bytes(b"no array")
    with pytest.raises(DataError, match="npy file is damaged"):
        call(run, tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", X=X)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(DataError, match="npy file is damaged"):
        call(run, tmp_path / "b.npy")
    np.save(tmp_path / "words.npy", [WORDS])
    with pytest.raises(DataError, match="expected numbers"):
        call(run, tmp_path / "words.npy")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdin", None)  # as Python has it where the caller closed it
        with pytest.raises(UsageError, match="give a file, texts, or -"):
            module._file_or_texts(None, ())
        with pytest.raises(UsageError, match="standard input is closed"):
            module._file_or_texts("-", ())


def test_a_pipe_is_answered_line_by_line_and_may_be_left(of_texts, monkeypatch):
    (our_input, questions), (answers, our_output) = os.pipe(), os.pipe()
    stdin, stdout, codes = os.fdopen(our_input), os.fdopen(our_output, "w"), []
    for name, stream in {"stdin": stdin, "stdout": stdout, "stderr": io.StringIO()}.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["xmckit", "predict", str(of_texts), "-", "--as", "jsonl", "-k", "1"])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the program sets it for its processes; forget it afterwards

    def run_program():
        with stdin, contextlib.suppress(BrokenPipeError), stdout, pytest.raises(SystemExit) as stop:
            main()
        codes.append(stop.value.code)

    with open(questions, "wb", buffering=0) as asking, open(answers) as answered:
        thread = threading.Thread(target=run_program)
        thread.start()
        asking.write(b"drum\n")
        assert best(answered.readline()) == ["DRUM"], "before the input has ended"
        answered.close()
        asking.write(b"cloud\n")
        asking.close()
        thread.join()
    assert (codes, sys.stderr.getvalue()) == ([0], "")
