"""The XMC repository's text format against a slow parser, damaged bytes, and every layout."""

import contextlib
import gzip
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reader_checks import Wrong, assert_same_dataset, datasets, mutations, same, slow_matrices, slow_rows, with_strings
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data.model import Dataset
from xmckit.data.xmc_text import XmcText
from xmckit.errors import DataError, UsageError

SMALL = b"3 4 5\n0,3 1:0.5 2:-1e-3\n 0:2\n4\n"


def read(folder, **params):
    return XmcText(**params).read(Path(folder), context=Context())


def put(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.txt").write_bytes(content)
    return folder


@settings(deadline=None, max_examples=60, derandomize=True)
@given(datasets(), st.booleans())
def test_what_is_written_is_read_back(dataset, with_more):
    if with_more:
        words = iter(range(10**6))
        dataset = with_strings(dataset, lambda: f"wörd {next(words)}\u2028 x")
        dataset = replace(dataset, test=replace(dataset.test, filter=dataset.test.Y), label_features=_identity(dataset))
    with tempfile.TemporaryDirectory() as folder:
        XmcText().write(dataset, Path(folder))
        assert_same_dataset(read(folder), dataset)


def _identity(dataset):
    return csr_matrix(np.eye(dataset.labels, dtype=np.float32))


def test_texts_with_line_ends_survive(tmp_path):
    dataset = read(put(tmp_path, train=SMALL, test=SMALL))
    train = replace(dataset.train, texts=["a\nb", "c\r", ""])
    (tmp_path / "copy").mkdir()
    XmcText().write(replace(dataset, train=train), tmp_path / "copy")
    assert read(tmp_path / "copy").train.texts == ["a\nb", "c\r", ""]


def slow_file(content):
    """(X, Y) of a data file, or Wrong."""
    header, _, body = content.partition(b"\n")
    fields = header.split()
    if len(fields) != 3 or not all(field.isdigit() for field in fields):
        raise Wrong(header)
    rows, features, labels = (int(field) for field in fields)
    if min(rows, features, labels) < 1:
        raise Wrong(header)
    assume(max(features, labels) <= 10**6)
    parsed = slow_rows(body, labels=labels, features=features)
    if len(parsed) != rows or not any(row_labels for row_labels, _ in parsed):
        raise Wrong(header)
    return slow_matrices(parsed, labels, features)


@settings(deadline=None, max_examples=400, derandomize=True)
@given(datasets(), mutations())
def test_damaged_bytes_give_the_right_data_or_an_error(dataset, mutate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        XmcText().write(dataset, folder)
        content = mutate((folder / "train.txt").read_bytes())
        (folder / "train.txt").write_bytes(content)
        (folder / "test.txt").write_bytes(content)
        try:
            X, Y = slow_file(content)
        except Wrong:
            with pytest.raises(DataError):
                read(folder)
            return
        result = read(folder).train
        assert same(result.X, X)
        assert same(result.Y, Y)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.binary(max_size=60))
def test_random_bytes_are_an_error(content):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, train=content, test=SMALL)
        with pytest.raises(DataError):
            read(folder)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(mutations())
def test_a_damaged_gzip_file_is_an_error_or_harmless(mutate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, test=SMALL)
        (folder / "train.txt.gz").write_bytes(mutate(gzip.compress(SMALL)))
        # gzip's header holds bytes without meaning; for the content its checksum vouches.
        with contextlib.suppress(DataError):
            result = read(folder)
            assert_same_dataset(result, replace(result, train=result.test))


def test_values_sizes_and_empty_rows(tmp_path):
    dataset = read(put(tmp_path, train=SMALL.replace(b"\n", b"\r\n"), test=SMALL[:-1]))
    expected = np.array([[0, 0.5, -1e-3, 0], [2, 0, 0, 0], [0, 0, 0, 0]], dtype=np.float32)
    for split in (dataset.train, dataset.test):
        assert isinstance(split.X, csr_matrix)
        assert np.array_equal(split.X.toarray(), expected)
        assert np.array_equal(split.Y.toarray(), [[1, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert dataset.name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", None, "empty"),
        (b"3 4\n", 1, "rows features labels"),
        (b"3 4 x\n", 1, "rows features labels"),
        (b"-1 4 5\n", 1, "rows features labels"),
        (b"0 4 5\n", 1, "at least 1"),
        (b"1 4 99999999999\n0 1:1\n", 1, "at most"),
        (b"4 4 5\n0 1:1\n", 1, "says 4 rows, found 1"),
        (b"99999999999999 4 5\n0 1:1\n", 1, "the header says"),
        (b"2 4 5\n0 1:1\n0 4:1\n", 3, "out of range, found '4:1'"),
        (b"2 4 5\n0 1:1\n0 99999999999999999999999999:1\n", 3, "out of range"),
        (b"2 4 5\n0 1:1\n5 1:1\n", 3, "label number is out of range, found '5'"),
        (b"2 4 5\n0 1:1\n-1 1:1\n", 3, "label number is negative"),
        (b"2 4 5\n0 1:1\n1,-1 1:1\n", 3, "label number is negative"),
        (b"2 4 5\n0 1:1\n1 -1:1\n", 3, "index is negative"),
        (b"2 4 5\n0 1:nan\n1 1:1\n", 2, "not a finite number"),
        (b"2 4 5\n0 1:1\n1 1:-inf\n", 3, "not a finite number"),
        (b"2 4 5\n0 1:1\n1 1:1e39\n", 3, "not a finite number in float32, found '1e39'"),
        (b"2 4 5\n0 1:1\n1 1:1e999999999999999999999\n", 3, "not a finite number"),
        (b"2 4 5\n0 1:1\n1 1:\n", 3, "decimal number"),
        (b"2 4 5\n0 1:1\n1 1:1e\n", 3, "decimal number"),
        (b"2 4 5\n0 1:1\n1 1:0x1\n", 3, "space after a value"),
        (b"2 4 5\n0 1:1\n1 1:1_0\n", 3, "space after a value"),
        (b"2 4 5\n0 1:1\n1 2 3:1\n", 3, "with the colon right after the index, found '2'"),
        (b"1 4 5 6\n0 1:1\n", 1, "found '1 4 5 6'"),
        ("1 4 5\n0 1:½\n".encode(), 2, "found '½'"),
        (b"2 4 5\n0 1:1\n1,,2 3:1\n", 3, "label number"),
        (b"2 4 5\n0 1:1\n1,2, 3:1\n", 3, "label number"),
        (b"2 4 5\n0 1:1\n1;2 3:1\n", 3, "comma or a space"),
        (b"2 4 5\n0 1:1 1:2\n1 3:1\n", 2, "one index twice"),
        (b"2 4 5\n0 1:1\n2,1,2 3:1\n", 3, "one label twice"),
        (b"2 4 5\n0 1:1\n\xff\xfe\n", 3, "label number"),
        (b"2 4 5\n0 1:1\r2:1\n1 2:2\n", 2, "carriage return"),
        (b"2 4 5\n 1:1\n 2:2\n", None, "no row has a label"),
    ],
)
def test_errors_say_where_and_what(tmp_path, content, line, words):
    put(tmp_path, train=SMALL, test=content)
    with pytest.raises(DataError, match=words.replace("(", r"\(")) as caught:
        read(tmp_path)
    assert caught.value.path == tmp_path / "test.txt"
    assert caught.value.line == line


def test_a_broken_gzip_file_names_itself(tmp_path):
    put(tmp_path, test=SMALL)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(SMALL)[:-9])
    with pytest.raises(DataError, match=r"train\.txt\.gz: this gzip file is damaged or breaks off"):
        read(tmp_path)


def test_train_and_test_must_agree(tmp_path):
    put(tmp_path, train=SMALL, test=SMALL.replace(b"3 4 5", b"3 4 6"))
    with pytest.raises(DataError, match="train has 5 labels but test has 6"):
        read(tmp_path)


@pytest.fixture
def bibtex_like(tmp_path):
    rows = [b"%d %d:1\n" % (row % 3, row) for row in range(6)]
    (tmp_path / "Bibtex_data.txt").write_bytes(b"6 6 3\n" + b"".join(rows))
    (tmp_path / "bibtex_trSplit.txt").write_bytes(b"1 6 \n2 5 \n5 1 \n6 3 \n")
    (tmp_path / "bibtex_tstSplit.txt").write_bytes(b"4 2\n3 4\n")
    return tmp_path


def test_split_files_choose_rows_in_their_order(bibtex_like):
    for path in (bibtex_like, bibtex_like / "Bibtex_data.txt"):
        assert read(path).train.X.indices.tolist() == [0, 1, 4, 5]
        dataset = read(path, split=1)
        assert dataset.train.X.indices.tolist() == [5, 4, 0, 2]
        assert dataset.test.X.indices.tolist() == [1, 3]
        assert dataset.test.Y.indices.tolist() == [1, 0]
    assert read(bibtex_like / "Bibtex_data.txt").name == "Bibtex"
    assert {file.name for file in XmcText().files(bibtex_like)} == {
        "Bibtex_data.txt", "bibtex_trSplit.txt", "bibtex_tstSplit.txt",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"4 2\n0 4\n", "line 2: row numbers go from 1 to 6, found 0"),
        (b"4 2\n\n7 4\n", "line 3: row numbers go from 1 to 6, found 7"),
        (b"4 2\n3\n", r"too few or too many numbers \(expected as many on every line\)"),
        (b"4 2\n" + b"9" * 30 + b" 1\n", "found a number above 1099511627775"),
        (b"4 2\n4 3\n", "row 4 is listed twice in column 0"),
        (b"4 2\n5 3\n", "row 5 is in bibtex_trSplit.txt too"),
        (b"4 2\n-3 3\n", "whole numbers"),
        (b"", "empty"),
    ],
)
def test_wrong_split_files(bibtex_like, content, words):
    (bibtex_like / "bibtex_tstSplit.txt").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read(bibtex_like)


def test_a_split_that_does_not_exist(bibtex_like):
    with pytest.raises(UsageError, match="there are 2 splits, numbered from 0; split 2 is not one of them"):
        read(bibtex_like, split=2)


@pytest.fixture
def matrices(tmp_path):
    return put(
        tmp_path,
        trn_X_Xf=b"3 4\n0:1.5 3:2\n\n1:1\n",
        trn_X_Y=b"3 2\n0:1.0\n1:1 0:1\n\n",
        tst_X_Xf=b"1 4\n2:1\n",
        tst_X_Y=b"1 2\n1:1",
    )


def test_matrix_files(matrices):
    dataset = read(matrices)
    assert np.array_equal(dataset.train.X.toarray(), [[1.5, 0, 0, 2], [0, 0, 0, 0], [0, 1, 0, 0]])
    assert np.array_equal(dataset.train.Y.toarray(), [[1, 0], [1, 1], [0, 0]])
    assert dataset.train.Y.has_sorted_indices
    assert dataset.test.Y.toarray().tolist() == [[0, 1]]


def test_files_beside_the_matrices(matrices):
    put(
        matrices,
        lbl_X_Xf=b"2 3\n0:1\n2:1\n",
        filter_labels_test=b"0 1\n",
        filter_labels_train=b"0 1\n2 0\n0 1\n",
        trn_X=b"one\ntwo\n\n",
        tst_X="größe\n".encode(),
        Y=b"cat\ndog\n",
    )
    dataset = read(matrices)
    assert dataset.label_features.toarray().tolist() == [[1, 0, 0], [0, 0, 1]]
    assert dataset.test.filter.toarray().tolist() == [[0, 1]]
    assert dataset.train.filter.toarray().tolist() == [[0, 1], [0, 0], [1, 0]]
    assert dataset.train.texts == ["one", "two", ""]
    assert dataset.test.texts == ["größe"]
    assert dataset.label_names == ["cat", "dog"]
    assert {file.name for file in XmcText().files(matrices)} == {file.name for file in matrices.iterdir()}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("trn_X_Y", b"2 2\n0:1\n1:1\n", "2 rows of labels, but trn_X_Xf.txt has 3"),
        ("trn_X_Y", b"3 2\n0:1\n1:0.5\n\n", "row 1: a label's value must be 1, found 0.5"),
        ("filter_labels_test", b"0 1\n0 2\n", "line 2: there are 1 rows and 2 labels"),
        ("filter_labels_test", b"0 1 1\n", r"too few or too many numbers \(expected 2 on every line\)"),
        ("Y", b"cat\n", "expected 2 lines, one for each label, found 1"),
        ("tst_X", b"\xff\n", "line 1: not UTF-8: byte 0 of the line is 0xff"),
        ("lbl_X_Xf", b"3 3\n0:1\n2:1\n\n", "2 labels but 3 label feature rows"),
    ],
)
def test_wrong_files_beside_the_matrices(matrices, name, content, words):
    put(matrices, **{name: content})
    with pytest.raises(DataError, match=words):
        read(matrices)


def test_compressed_files_give_the_same(matrices):
    plain = read(matrices)
    for file in list(matrices.iterdir()):
        (matrices / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert_same_dataset(read(matrices), plain)


def test_what_text_cannot_hold_is_refused(tmp_path):
    dataset = read(put(tmp_path, train=SMALL, test=SMALL))
    blocks = replace(dataset.train, X={"a": dataset.train.X, "b": dataset.train.X})
    for wrong in (
        replace(dataset.train, names=["a", "b", "c"]),
        blocks,
        replace(dataset.train, X=None, texts=[""] * 3),
    ):
        with pytest.raises(UsageError, match="use npz"):
            XmcText().write(Dataset("d", wrong, dataset.test), tmp_path)


def test_a_folder_of_two_data_sets_is_not_guessed(bibtex_like):
    put(bibtex_like, train=SMALL, test=SMALL)
    with pytest.raises(UsageError, match="several data sets"):
        read(bibtex_like)


def test_workers_do_not_change_the_result(tmp_path, monkeypatch):
    from xmckit.data import reading

    rng = np.random.default_rng(0)
    lines = [
        b"%d,%d %d:%.7f\n" % (a, a + 1, f, v)
        for a, f, v in zip(*rng.integers(0, 9, (2, 500)), rng.random(500), strict=True)
    ]
    put(tmp_path, train=b"500 9 10\n" + b"".join(lines), test=SMALL.replace(b"4 5", b"9 10"))
    one = read(tmp_path)
    parse_rows = reading.parse.parse_rows
    monkeypatch.setattr(reading.parse, "parse_rows", lambda *a, **k: parse_rows(*a, **k, chunk_bytes=300))
    many = XmcText().read(tmp_path, context=Context(workers=3))
    assert_same_dataset(one, many)
