"""What the tests of the readers share: a slow parser that owes nothing to the real one, random data, mutations."""

import re
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit.data.model import Dataset, Split, as_csr

NUMBER = rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"


class Wrong(Exception):
    """The slow parser's only verdict on bad text."""


def slow_rows(text, *, has_labels=True, labels=2**31 - 1, features=2**31 - 1, first_label=0, first_feature=0,
              annotated=False):  # fmt: skip
    """[(label numbers, {feature: value}), …] of the rows in `text`."""
    lines = text.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    rows = []
    for line in lines:
        fields = re.split(rb"[ \t]+", line.removesuffix(b"\r"))
        row_labels = []
        for place, field in enumerate(fields):
            if annotated and field.startswith(b"#"):
                fields = fields[:place]
                break
        if has_labels and fields and fields[0] and b":" not in fields[0]:
            if not re.fullmatch(rb"[0-9]+(?:,[0-9]+)*", fields[0]):
                raise Wrong(line)
            row_labels = [int(number) - first_label for number in fields.pop(0).split(b",")]
        entries = [re.fullmatch(rb"([0-9]+):(" + NUMBER + rb")", field) for field in fields if field]
        if not all(entries):
            raise Wrong(line)
        columns = [int(entry[1]) - first_feature for entry in entries]
        with np.errstate(over="ignore"):
            values = [np.float32(float(entry[2])) for entry in entries]
        if not all(0 <= column < features for column in columns) or not all(0 <= n < labels for n in row_labels):
            raise Wrong(line)
        if len(set(columns)) < len(columns) or len(set(row_labels)) < len(row_labels) or not np.isfinite(values).all():
            raise Wrong(line)
        if row_labels or columns or not annotated:
            rows.append((row_labels, dict(zip(columns, values, strict=True))))
    return rows


def slow_matrices(rows, labels, features):
    """(X, Y) of the slow parser's rows."""
    X = np.zeros((len(rows), features), dtype=np.float32)
    Y = np.zeros((len(rows), labels), dtype=np.float32)
    for row, (row_labels, entries) in enumerate(rows):
        Y[row, row_labels] = 1
        for column, value in entries.items():
            X[row, column] = value
    return csr_matrix(X), csr_matrix(Y)


def same(one, other):
    """Whether two matrices are equal in every bit that matters: values, places, form."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.data, other.data)
    )


def assert_same_part(one, other):
    if one is None or other is None:
        assert one is other
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert all(same(one[name], other[name]) for name in one)
    else:
        assert same(one, other)


def assert_same_split(one, other):
    for part in ("X", "Y", "weights", "filter"):
        assert_same_part(getattr(one, part), getattr(other, part))
    for part in ("texts", "names"):
        mine, theirs = getattr(one, part), getattr(other, part)
        assert (mine is None and theirs is None) or list(mine) == list(theirs)
    assert (one.groups is None) == (other.groups is None)
    if one.groups is not None:
        assert same(one.groups.membership, other.groups.membership)
        assert same(one.groups.labels, other.groups.labels)
        assert one.groups.names == other.groups.names


def assert_same_dataset(one, other):
    assert_same_split(one.train, other.train)
    assert_same_split(one.test, other.test)
    assert_same_part(one.label_features, other.label_features)
    assert (one.label_names is None and other.label_names is None) or list(one.label_names) == list(other.label_names)


def random_csr(rng, rows, columns, density=0.3, binary=False):
    mask = rng.random((rows, columns)) < density
    values = np.ones((rows, columns)) if binary else rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-9, 9)
    return as_csr(csr_matrix((mask * values).astype(np.float32)))


def random_labels(rng, rows, labels):
    Y = random_csr(rng, rows, labels, binary=True).toarray()
    Y[rng.integers(rows), rng.integers(labels)] = 1
    return csr_matrix(Y)


@st.composite
def datasets(draw):
    """Small data sets of one feature matrix; rows without labels or features happen."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    features, labels = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    splits = [
        Split(X=random_csr(rng, rows, features), Y=random_labels(rng, rows, labels))
        for rows in (draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    ]
    return Dataset("random", *splits)


def with_strings(dataset, strings):
    """The data set with texts, row names and label names from an endless `strings()`."""
    train, test = (
        replace(split, texts=[strings() for _ in range(split.rows)]) for split in (dataset.train, dataset.test)
    )
    return replace(dataset, train=train, test=test, label_names=[strings() for _ in range(dataset.labels)])


@st.composite
def mutations(draw):
    """A function that damages bytes in one to three places."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["flip", "delete", "insert", "truncate", "replace"]),
                st.floats(0, 1, exclude_max=True),
                st.binary(min_size=1, max_size=3) | st.sampled_from([bytes([c]) for c in b"0123456789 :,.-+e\r\n\t#"]),
            ),
            min_size=1,
            max_size=3,
        )
    )

    def mutate(content):
        for kind, place, new in steps:
            at = int(place * len(content))
            if kind == "flip" and content:
                content = content[:at] + bytes([content[at] ^ (1 << new[0] % 8)]) + content[at + 1 :]
            elif kind == "delete":
                content = content[:at] + content[at + len(new) :]
            elif kind == "insert":
                content = content[:at] + new + content[at:]
            elif kind == "truncate":
                content = content[:at]
            else:
                content = content[:at] + new + content[at + len(new) :]
        return content

    return mutate
