"""Groups from text files beside features in another format."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xmckit import make_context
from xmckit.context import Context
from xmckit.data.files import Files
from xmckit.data.group_files import with_groups
from xmckit.data.svmlight import Svmlight
from xmckit.errors import DataError, UsageError

CONTEXT = Context(resolve=lambda kind, name: Svmlight, names=lambda kind: ["svmlight"])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.svm").write_text("1 1:1\n2,0 2:1\n0 1:1\n")
    (tmp_path / "test.svm").write_text("1 1:1\n")
    return tmp_path


def read(folder, **files):
    paths = {}
    for name, text in files.items():
        paths[name] = folder / f"{name}.txt"
        paths[name].write_bytes(text.encode())
    return Files(path=folder, **paths).read(context=CONTEXT).train.groups


def test_groups_have_the_labels_of_their_rows_unless_a_file_says_otherwise(folder):
    groups = read(folder, groups="b\nb\ta\n\n")
    assert groups.membership.toarray().tolist() == [[0, 1], [1, 1], [0, 0]]
    assert groups.labels.toarray().tolist() == [[1, 0, 1], [1, 1, 1]]
    groups = read(folder, groups="\ufeffb\r\nb\ta\r\n\r\n", group_labels="b\t1\t1\na\n")
    assert groups.labels.toarray().tolist() == [[0, 0, 0], [0, 2, 0]]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"groups": "a\na\n"}, "expected 3 lines, one for each training row, found 2"),
        ({"groups": "a\na\ta\na\n"}, r"line 2.*one group twice"),
        ({"groups": "a\na\na\n", "group_labels": "a\t0\nb\t1\n"}, r"line 2.*no training row is in a group 'b'"),
        ({"groups": "a\na\na\n", "group_labels": "a\t0\na\t1\n"}, r"line 2.*second line"),
        ({"groups": "a\na\na\n", "group_labels": "a\t7\n"}, r"line 1.*no label '7'"),
        ({"groups": "a\na\tb\na\n", "group_labels": "a\t0\n"}, "1 groups have no line.*is 'b'.*its name alone"),
        ({"groups": "a\na\na\n", "group_labels": "a\t0\n\n"}, r"line 2.*no training row is in a group ''"),
        ({"groups": "1\n1\n1\n", "group_labels": "\t1\t0\n"}, r"line 1.*no training row is in a group ''"),
    ],
)
def test_what_does_not_fit_is_named(folder, files, message):
    with pytest.raises(DataError, match=f"(?s){message}"):
        read(folder, **files)


def test_a_name_of_two_labels_is_ambiguous(folder):
    dataset = Files(path=folder).read(context=CONTEXT)
    dataset = replace(dataset, label_names=["same", "own", "same"])
    groups, labels = folder / "groups.txt", folder / "labels.txt"
    groups.write_text("a\na\na\n")
    labels.write_text("a\town\n")
    assert with_groups(dataset, groups, labels).train.groups.labels.toarray().tolist() == [[0, 1, 0]]
    labels.write_text("a\town\tsame\n")
    with pytest.raises(DataError, match=r"(?s)line 1.*several labels have the name 'same'"):
        with_groups(dataset, groups, labels)


def test_rows_without_a_label_learn_from_their_groups(folder):
    (folder / "train.svm").write_text("1:1\n2:1\n1:1\n")
    groups = read(folder, groups="a\nb\nb\n", group_labels="a\t0\nb\t1\t1\n")
    assert groups.labels.toarray().tolist() == [[1, 0], [0, 2]]
    for files in ({}, {"groups": "a\na\na\n"}, {"groups": "a\na\na\n", "group_labels": "a\n"}):
        with pytest.raises(DataError, match="neither a training row nor a group has a label"):
            read(folder, **files)


def test_groups_may_have_labels_that_no_row_has_where_nothing_declares_them(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "test.jsonl").write_text('{"text": "a", "labels": ["tea"]}\n')
    paths = {"groups": tmp_path / "groups.txt", "group_labels": tmp_path / "group_labels.txt"}
    paths["groups"].write_text("x\ny\n")
    paths["group_labels"].write_text("x\ttea\tmilk\ny\tmilk\n")
    context = make_context()
    dataset = Files(path=tmp_path, **paths).read(context=context)
    dataset.check()
    assert dataset.label_names == ["tea", "milk"]
    assert dataset.train.groups.labels.toarray().tolist() == [[1, 1], [0, 1]]
    assert dataset.test.Y.toarray().tolist() == [[1, 0]]
    (tmp_path / "labels.txt").write_text("tea\nmlik\n")
    with pytest.raises(DataError, match=r"(?s)line 1.*no label 'milk'; did you mean 'mlik'"):
        Files(path=tmp_path, **paths).read(context=context)


def test_labels_of_groups_need_groups(folder):
    with pytest.raises(UsageError, match="group_labels needs groups"):
        read(folder, group_labels="a\t0\n")


def test_the_files_are_part_of_the_fingerprint(folder):
    (folder / "g.txt").write_text("a\na\na\n")
    source = Files(path=folder, groups=folder / "g.txt")
    before = source.fingerprint(context=CONTEXT)
    assert before.keys() - Files(path=folder).fingerprint(context=CONTEXT).keys() == {"(groups)"}
    (folder / "g.txt").write_text("a\nb\na\n")
    assert source.fingerprint(context=CONTEXT) != before


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcde fü"), unique=True), min_size=3, max_size=3))
def test_membership_is_what_was_written(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.svm").write_text("1 1:1\n2,0 2:1\n0 1:1\n")
    (folder / "test.svm").write_text("1 1:1\n")
    groups = read(folder, groups="".join("\t".join(names) + "\n" for names in rows))
    names = sorted({name for row in rows for name in row})
    assert groups.membership.shape == (3, len(names))
    assert groups.membership.toarray().tolist() == [[float(name in row) for name in names] for row in rows]
