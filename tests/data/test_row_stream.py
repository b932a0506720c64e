"""Rows from a stream: chunks do not change them, errors number bad lines, and pipes are answered at once."""

import gzip
import io
import json
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, vstack

from xmckit.data import row_stream as module
from xmckit.data.row_stream import FORMATS, Lines, SkippedLines, matrix_chunks, read_chunks
from xmckit.data.xmc_text import row_text
from xmckit.errors import DataError, UsageError

LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=20)


def chunks(content, form, **options):
    return list(read_chunks(Lines(io.BytesIO(content), "input"), form, **options))


def texts(content, form="text", **options):
    return [text for rows in chunks(content, form, **options) for text in rows.texts]


def lines_of(found):
    return [line for rows in found for line in rows.lines]


@settings(deadline=None)
@given(st.lists(LINE), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_texts_are_the_lines(found, ended, end):
    content = end.join(found) + (end if ended and found else "")
    expected = content.encode().removeprefix(b"\xef\xbb\xbf").decode().split("\n")
    expected = [line.removesuffix("\r") for line in (expected[:-1] if expected[-1] == "" else expected)]
    assert texts(content.encode()) == expected


@settings(deadline=None)
@given(st.lists(LINE, min_size=1), st.integers(1, 7), st.integers(1, 5))
def test_blocks_and_chunks_change_nothing(found, block, most):
    content = "\n".join(found).encode()
    with pytest.MonkeyPatch.context() as patch:
        whole = texts(content)
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "ROWS_AT_ONCE", most)
        parts = chunks(content, "text")
    assert [text for rows in parts for text in rows.texts] == whole
    assert lines_of(parts) == list(range(1, len(whole) + 1))
    assert all(0 < len(rows) <= most for rows in parts)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers() | LINE)))
def test_json_lines(found):
    content = "\n".join(
        json.dumps({"text": text} if identity is None else {"text": text, "id": identity}) for text, identity in found
    )
    read = chunks(content.encode(), "jsonl")
    assert [text for rows in read for text in rows.texts] == [text for text, _ in found]
    assert [name for rows in read for name in rows.ids] == [None if name is None else str(name) for _, name in found]


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), LINE)))
def test_csv_as_the_csv_module_writes_it(found):
    import csv

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["id", "body"])
    writer.writerows([[identity, text] for text, identity in found])
    assert texts(buffer.getvalue().encode(), "csv", column="body") == [text for text, _ in found]


def test_tsv_has_no_quotes():
    assert texts(b'text\tid\nsay "hi\t1\n\nb\t2\n', "tsv") == ['say "hi', "b"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.dictionaries(st.integers(0, 8), st.floats(-8, 8, width=32)), min_size=1), st.booleans(), st.data())
def test_features(found, with_header, data):
    dense = np.zeros((len(found), 9), dtype=np.float32)
    for row, values in enumerate(found):
        dense[row, list(values)] = list(values.values())
    X = csr_matrix(dense)
    Y = csr_matrix(np.eye(len(found), 4, dtype=np.float32))
    labels = data.draw(st.sampled_from([None, Y]))
    header = f"{len(found)} 9 4\n" if with_header else ""
    xmc = header + "".join(row_text(X, labels, row, 0, 0) + "\n" for row in range(len(found)))
    read = chunks(xmc.encode(), "xmc", width=9)
    assert (vstack([rows.X for rows in read]) != X).nnz == 0
    assert lines_of(read) == list(range(1 + with_header, len(found) + 1 + with_header))
    svm = "".join((row_text(X, Y, row, 0, 1).strip() or "1:0") + " # row\n\n" for row in range(len(found)))
    read = chunks(svm.encode(), "svmlight", width=9)
    assert (vstack([rows.X for rows in read]) != X).nnz == 0
    assert lines_of(read) == list(range(1, 2 * len(found), 2))


BAD = [
    ("text", b"a\n\xff\nb\n", 2, "not UTF-8"),
    ("jsonl", b'{"text": "a"}\n\n{"text": 3}\n"b"\n', 3, "an object with a string 'text'"),
    ("jsonl", b'"a"\n{"txet": "x", "id": 3}\n"b"\n', 2, "no field 'text', only txet, id; choose the field"),
    ("jsonl", b'"a"\n{"text"\n"b"\n', 2, "not JSON: Expecting ':' delimiter at character 8"),
    ("jsonl", b'"a"\n"\\ud800"\n"b"\n', 2, "half of a surrogate pair"),
    ("jsonl", b'"a"\n{"text": "x", "id": [1]}\n"b"\n', 2, "an id must be"),
    ("jsonl", b'"a"\n{"text": "x", "id": true}\n"b"\n', 2, "an id must be"),
    ("jsonl", b'"a"\n{"text": "x", "id": "\\ud800"}\n"b"\n', 2, "half of a surrogate pair"),
    ("csv", b"text,n\na,1\nb\nb,2\n", 3, "expected 2 columns, found 1"),
    ("csv", b'text\na\n"b"x\nb\n', 3, "not csv"),
    ("csv", b"text\na\n\xff\nb\n", 3, "not UTF-8"),
    ("tsv", b"text\tn\na\t1\nb\t2\t3\nb\t2\n", 3, "expected 2 columns, found 3"),
]


@pytest.mark.parametrize(("form", "content", "line", "why"), BAD)
def test_a_bad_line_is_an_error_after_the_rows_before_it(form, content, line, why):
    found = []
    with pytest.raises(DataError, match=f"input, line {line}: .*{why}"):
        found.extend(rows.texts[0] for rows in read_chunks(Lines(io.BytesIO(content), "input"), form))
    assert found == ["a"]


@pytest.mark.parametrize(("form", "content", "line", "why"), BAD)
def test_bad_lines_are_counted(form, content, line, why):
    skipped = SkippedLines()
    assert texts(content, form, skipped=skipped) == ["a", "b"]
    assert skipped.count == 1
    assert f"line {line}" in skipped.first[0]


@pytest.mark.parametrize(
    ("form", "content", "line", "why"),
    [
        ("xmc", b"0:1\n9:1\n1:1\n", 2, "an index is out of range.* there are 9"),
        ("xmc", b"1 9 2\n0 0:1\n0 x:1\n1 1:1\n", 3, "expected index:value"),
        ("svmlight", b"0 1:1\n# no row\n0 0:1\n1 2:1\n", 3, "index"),
        ("xmc", b"0:1\n0:nan\n1:1", 2, "not a finite number"),
    ],
)
def test_bad_features(form, content, line, why):
    before = []
    with pytest.raises(DataError, match=f"input, line {line}: .*{why}"):
        before.extend(map(len, read_chunks(Lines(io.BytesIO(content), "input"), form, width=9)))
    assert before == [1]
    skipped = SkippedLines()
    read = chunks(content, form, width=9, skipped=skipped)
    assert (sum(map(len, read)), skipped.count) == (2, 1)


def test_what_is_wrong_with_the_whole_input_is_never_skipped():
    with pytest.raises(DataError, match=r"the file has 7 features, the model takes 9"):
        chunks(b"1 7 2\n0:1\n", "xmc", width=9, skipped=SkippedLines())
    with pytest.raises(DataError, match=r"no column 'text', only body, id"):
        chunks(b"body,id\na,1\n", "csv", skipped=SkippedLines())
    with pytest.raises(UsageError, match="takes texts"):
        chunks(b"", "xmc")
    packed = gzip.compress(os.urandom(1 << 16).hex().encode())[:-4000]
    with gzip.open(io.BytesIO(packed)) as stream, pytest.raises(DataError, match="gzip file is damaged"):
        list(read_chunks(Lines(stream, "input"), "text", skipped=SkippedLines()))


def test_many_bad_lines_are_all_counted_and_few_are_kept():
    skipped = SkippedLines()
    assert texts(b"\xff\n" * 5000 + b"a\n", skipped=skipped) == ["a"]
    assert (skipped.count, len(skipped.first)) == (5000, 5)


def test_an_endless_line_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    monkeypatch.setattr(module, "BLOCK", 100)
    with pytest.raises(DataError, match="line 2: a line is longer"):
        texts(b"a\n" + b"x" * 5000)


@pytest.mark.parametrize(
    ("form", "first", "then"),
    [
        ("text", b"first\nsecond\nthi", b"rd\n"),
        ("jsonl", b'"first"\n"second"\n\n"thi', b'rd"\n'),
        ("csv", b"text\nfirst\nsecond\n\nthi", b"rd\n"),
    ],
)
def test_a_pipe_is_answered_without_waiting_for_more(form, first, then):
    ours, theirs = os.pipe()
    answered, done = threading.Event(), []

    def produce():
        with open(theirs, "wb", buffering=0) as stream:
            stream.write(first)
            assert answered.wait(60)
            stream.write(then)

    thread = threading.Thread(target=produce)
    thread.start()
    with open(ours, "rb") as stream:
        for rows in read_chunks(Lines(stream, "pipe"), form):
            done.append(list(rows.texts))
            answered.set()
    thread.join()
    assert done == [["first", "second"], ["third"]]


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(FORMATS))
def test_any_bytes_are_rows_or_errors(content, form):
    skipped = SkippedLines()
    try:
        read = chunks(content, form, width=5, skipped=skipped)
    except DataError:
        return
    for rows in read:
        assert len(rows.lines) == len(rows.ids) == (len(rows.texts) if rows.X is None else rows.X.shape[0]) > 0


def test_matrices_come_in_chunks(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 4)
    X = np.arange(18.0, dtype=np.float32).reshape(9, 2)
    for matrix in (X, csr_matrix(X)):
        read = list(matrix_chunks(matrix, tmp_path))
        assert [len(rows) for rows in read] == [4, 4, 1]
        assert lines_of(read) == list(range(1, 10))
        assert np.array_equal(np.vstack([csr_matrix(rows.X).toarray() for rows in read]), X)
    X[5, 1] = np.nan
    with pytest.raises(DataError, match="row 5: a value is not a finite number"):
        list(matrix_chunks(X, tmp_path))


def test_a_json_string_has_no_id_called_like_the_column():
    (rows,) = read_chunks(Lines(io.BufferedReader(io.BytesIO(b'"a"\n')), "x"), "jsonl", column="id")
    assert (list(rows.texts), rows.ids) == (["a"], [None])
