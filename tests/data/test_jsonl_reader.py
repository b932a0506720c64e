"""JSON lines: every field, every mistake, and damaged bytes against a slow reader."""

import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_checks import assert_same_dataset, datasets, mutations
from scipy.sparse import csr_matrix

from xmckit.context import Context
from xmckit.data.jsonl import JsonLines
from xmckit.data.model import Dataset, Groups
from xmckit.errors import DataError, UsageError


def read(path, seed=0, **params):
    return JsonLines(**params).read(Path(path), context=Context(seed=seed))


def lines(*objects):
    return "".join(json.dumps(item) + "\n" for item in objects).encode()


def put(folder, train, test):
    (folder / "train.jsonl").write_bytes(train)
    (folder / "test.jsonl").write_bytes(test)
    return folder


TRAIN = lines(
    {"text": "one", "labels": ["b", "a"], "id": 7, "group": "g"},
    {"text": "two", "labels": [], "id": "x", "group": ["h", "g"]},
    {"text": "three", "labels": ["a"], "id": "y"},
)
TEST = lines({"text": "four", "labels": ["c"], "other": None})


def test_fields(tmp_path):
    dataset = read(put(tmp_path, TRAIN, b"\n" + TEST + b"\n"))
    assert dataset.label_names == ["a", "b", "c"]
    assert dataset.train.Y.toarray().tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 0]]
    assert dataset.test.Y.toarray().tolist() == [[0, 0, 1]]
    assert dataset.train.texts == ["one", "two", "three"]
    assert dataset.train.names == ["7", "x", "y"]
    assert dataset.train.groups.membership.toarray().tolist() == [[1, 0], [1, 1], [0, 0]]
    assert dataset.train.groups.names == ["g", "h"]
    assert dataset.train.groups.labels.toarray().tolist() == [[1, 1, 0], [0, 0, 0]]
    assert dataset.test.names is None
    assert dataset.test.groups is None


def test_field_names_are_parameters(tmp_path):
    content = lines({"body": "b", "tags": ["t"], "labels": 3})
    dataset = read(put(tmp_path, content, content), text="body", labels="tags")
    assert dataset.train.texts == ["b"]
    assert dataset.label_names == ["t"]


def test_groups_count_how_often_a_label_was_given(tmp_path):
    content = lines(*({"text": "", "labels": ["a"] if row < 2 else ["a", "b"], "group": "g"} for row in range(3)))
    groups = read(put(tmp_path, content, TEST)).train.groups
    assert groups.labels.toarray().tolist() == [[3, 1, 0]]


def test_a_single_file_with_a_split_field(tmp_path):
    rows = [{"text": str(n), "labels": ["a"], "split": "test" if n % 3 == 0 else "train"} for n in range(6)]
    (tmp_path / "all.jsonl.gz").write_bytes(gzip.compress(lines(*rows)))
    for path in (tmp_path, tmp_path / "all.jsonl.gz"):
        dataset = read(path)
        assert dataset.train.texts == ["1", "2", "4", "5"]
        assert dataset.test.texts == ["0", "3"]
    assert read(tmp_path / "all.jsonl.gz").name == "all"


def test_a_single_file_is_cut_by_seed(tmp_path):
    rows = [{"text": str(n), "labels": ["a"]} for n in range(50)]
    (tmp_path / "all.jsonl").write_bytes(lines(*rows))
    one, again, other = read(tmp_path, 1), read(tmp_path, 1), read(tmp_path, 2)
    assert len(one.test.texts) == 10
    assert sorted([*one.train.texts, *one.test.texts], key=int) == [str(n) for n in range(50)]
    assert one.test.texts == again.test.texts != other.test.texts
    assert len(read(tmp_path, test_share=0.5).test.texts) == 25


def test_a_split_keeps_groups_whole_and_their_labels_separate(tmp_path):
    rows = [{"text": str(n), "labels": ["a" if n % 2 else "b"], "group": f"g{n // 4}"} for n in range(40)]
    (tmp_path / "all.jsonl").write_bytes(lines(*rows))
    dataset = read(tmp_path)
    for split in (dataset.train, dataset.test):
        groups = split.groups
        assert groups.membership.sum(axis=0).tolist() == [[4.0] * groups.membership.shape[1]]
        assert (groups.labels != groups.membership.T @ split.Y).nnz == 0
    assert dataset.test.rows == 8


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"", None, "empty"),
        (b"\n\n", None, "no rows"),
        (b"[1]\n", 1, "expected a JSON object"),
        (b'{"text": "x"}\n', None, "no row has a label"),
        (b'{"text": "x", "labels": null}\n', 1, "'labels' must be a list of strings, found null"),
        (b'{"text": "x", "labels": ["a"]}\n{"text": "x"}\n', 2, r"no 'labels', but other rows do; .* has \[\]"),
        (b'{"labels": []}\n', 1, "'text' must be a string, found nothing"),
        (b'{"text": "x", "labels": "a"}\n', 1, "list of strings"),
        (b'{"text": "x", "labels": [1]}\n', 1, "list of strings"),
        (b'{"text": "x", "labels": ["a", "a"]}\n', 1, "without repetitions"),
        (b'{"text": "x", "labels": ["a"], "id": 1.5}\n', 1, "'id' must be"),
        (b'{"text": "x", "labels": ["a"], "id": true}\n', 1, "'id' must be"),
        (b'{"text": "x", "labels": ["a"], "group": 3}\n', 1, "'group' must be"),
        (b'{"text": "x", "labels": ["a"], "split": "dev"}\n', 1, "'split' must be"),
        (b'{"text": "x", "text": "y", "labels": ["a"]}\n', 1, "twice"),
        (TRAIN + b'{"text": "x", "labels": []}\n', 4, "no 'id'"),
        (TRAIN + b'{"text": "x", "labels": [', 4, "not a JSON object"),
        (TRAIN + b'{"text": "\xff", "labels": []}\n', 4, "not UTF-8"),
        (TRAIN + b'{"text": "\\ud800", "labels": []}\n', 4, "surrogate"),
        (b"[" * 100_000, 1, "not a JSON object"),
        (b'{"text": "x", "labels": [], "id": ' + b"1" * 10_000 + b"}", 1, "not a JSON object"),
        (lines({"text": "x", "labels": []}), None, "no row has a label"),
    ],
)
def test_errors_say_where(tmp_path, content, line, words):
    put(tmp_path, TRAIN, content)
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path)
    assert (caught.value.path, caught.value.line) == (tmp_path / "test.jsonl", line)


def test_rows_with_and_without_split(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        lines({"text": "", "labels": ["a"], "split": "test"}, {"text": "", "labels": []})
    )
    with pytest.raises(DataError, match="line 2: this row has no 'split'"):
        read(tmp_path)


def test_one_row_cannot_be_cut(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "", "labels": ["a"]}))
    with pytest.raises(DataError, match="1 rows cannot be split"):
        read(tmp_path)


def test_label_names_in_order(tmp_path):
    put(tmp_path, TRAIN, TEST)
    (tmp_path / "labels.txt").write_text("c\nb\nzz\na\n")
    dataset = read(tmp_path)
    assert dataset.label_names == ["c", "b", "zz", "a"]
    assert dataset.train.Y[0].indices.tolist() == [1, 3]
    assert tmp_path / "labels.txt" in JsonLines().files(tmp_path)
    (tmp_path / "labels.txt").write_text("b\na\n")
    with pytest.raises(DataError, match=r"test\.jsonl, line 1: the label 'c' is not in labels\.txt"):
        read(tmp_path)
    (tmp_path / "labels.txt").write_text("a\na\nb\nc\n")
    with pytest.raises(DataError, match="twice"):
        read(tmp_path)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(datasets(), st.data())
def test_what_is_written_is_read_back(dataset, data):
    splits = []
    for split in (dataset.train, dataset.test):
        rows = split.rows
        groups = data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
        used = sorted(set(groups))
        membership = csr_matrix(np.eye(len(used), dtype=np.float32)[[used.index(group) for group in groups]])
        splits.append(
            replace(
                split, X=None, texts=data.draw(st.lists(texts, min_size=rows, max_size=rows)),
                names=data.draw(st.lists(texts, min_size=rows, max_size=rows)),
                groups=Groups(membership, csr_matrix(membership.T @ split.Y), [f"group {group}" for group in used]),
            )
        )  # fmt: skip
    names = data.draw(st.lists(texts, min_size=dataset.labels, max_size=dataset.labels, unique=True))
    dataset = Dataset("d", *splits, label_names=names)
    with tempfile.TemporaryDirectory() as folder:
        JsonLines().write(dataset, Path(folder))
        assert_same_dataset(read(folder), dataset)


def test_what_json_lines_cannot_hold_is_refused(tmp_path):
    dataset = read(put(tmp_path, TRAIN, TEST))
    wrong = [
        replace(dataset.train, X=dataset.train.Y),
        replace(dataset.train, weights=dataset.train.Y),
        replace(dataset.train, groups=replace(dataset.train.groups, labels=dataset.train.groups.labels * 2)),
        replace(dataset.train, groups=replace(dataset.train.groups, names=["g", "g"])),
    ]
    for train in wrong:
        with pytest.raises(UsageError, match="use npz"):
            JsonLines().write(replace(dataset, train=train), tmp_path)


def slow_read(content):
    """[(text, labels)] with plain json, or ValueError."""
    rows = []
    for line in content.split(b"\n"):
        if line.strip():
            item = json.loads(line.decode("utf-8"))
            text, labels = item["text"], item["labels"]
            if not isinstance(text, str) or not all(isinstance(label, str) for label in labels):
                raise ValueError(line)
            rows.append((text, sorted(labels)))
    return rows


@settings(deadline=None, max_examples=300, derandomize=True)
@given(mutations())
def test_damaged_bytes_give_the_right_data_or_an_error(mutate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = mutate(TRAIN)
        put(folder, content, TEST)
        try:
            dataset = read(folder)
        except DataError:
            return
        found = [
            (text, sorted(dataset.label_names[label] for label in row.indices))
            for text, row in zip(dataset.train.texts, dataset.train.Y, strict=True)
        ]
        assert found == slow_read(content)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(mutations())
def test_damaged_gzip(mutate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.jsonl.gz").write_bytes(mutate(gzip.compress(TRAIN)))
        (folder / "test.jsonl").write_bytes(TEST)
        try:
            texts = read(folder).train.texts
        except DataError:
            return
        assert texts == ["one", "two", "three"]


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    assert_same_dataset(read(put(tmp_path, b"\xef\xbb\xbf" + TRAIN, TEST)), read(put(tmp_path, TRAIN, TEST)))


def test_label_features_are_not_dropped_in_silence(tmp_path):
    dataset = read(put(tmp_path, TRAIN, TEST))
    with pytest.raises(UsageError, match="JSON lines cannot hold label features"):
        JsonLines().write(replace(dataset, label_features=csr_matrix((3, 2))), tmp_path)
