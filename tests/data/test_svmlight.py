"""svmlight text against scikit-learn's reader and a slow parser."""

import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from reader_checks import Wrong, assert_same_dataset, datasets, mutations, same, slow_matrices, slow_rows
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

from xmckit.context import Context
from xmckit.data.model import Dataset, Split
from xmckit.data.svmlight import Svmlight
from xmckit.errors import DataError, UsageError

TEXT = b"# made by hand\n1,3 5:0.3 7:1 # comment, 9:9\n\n7:2\n0 1:-1e-3\n"


def read(folder, **params):
    return Svmlight(**params).read(Path(folder), context=Context())


def put(folder, train, test):
    (folder / "train.svm").write_bytes(train)
    (folder / "test.svm").write_bytes(test)
    return folder


def test_numbering_and_sizes(tmp_path):
    dataset = read(put(tmp_path, TEXT, b"4 9:1\n"))
    assert dataset.train.X.shape == (3, 9)
    assert dataset.train.X[0].indices.tolist() == [4, 6]
    assert dataset.train.Y.toarray().tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    dataset = read(tmp_path, zero_based=True, features=20, labels=6)
    assert dataset.train.X.shape == (3, 20)
    assert dataset.train.X[0].indices.tolist() == [5, 7]
    assert dataset.test.Y.shape == (1, 6)
    with pytest.raises(DataError, match="line 5: a label number is out of range, found '0'"):
        read(tmp_path, zero_based_labels=False)


@pytest.mark.parametrize(
    ("content", "params", "line", "words"),
    [
        (b"1 0:1\n", {}, 1, "an index is out of range, found '0:1' .features are numbered from 1"),
        (b"1 1:1\n1 8:1\n", {"features": 7}, 2, "out of range"),
        (b"1 1:1\n8 7:1\n", {"labels": 8}, 2, "out of range"),
        (b"1 1:1\n1 qid:1\n", {}, 2, "expected index:value"),
        (b"1 1:1\n1.0 1:1\n", {}, 2, "comma or a space"),
        (b"# nothing\n", {}, None, "no rows"),
        (b"1:1\n2:1\n", {}, None, "no row has a label"),
    ],
)
def test_errors_say_where(tmp_path, content, params, line, words):
    put(tmp_path, b"1 1:1\n", content)
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path, **params)
    assert (caught.value.path, caught.value.line) == (tmp_path / "test.svm", line)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(datasets())
def test_written_data_is_read_back_and_scikit_learn_agrees(dataset):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reader = Svmlight(features=dataset.train.X.shape[1], labels=dataset.labels)
        reader.write(dataset, folder)
        assert_same_dataset(reader.read(folder, context=Context()), dataset)
        X, labels = load_svmlight_file(
            io.BytesIO((folder / "train.svm").read_bytes()),
            multilabel=True, dtype=np.float32, zero_based=False, n_features=dataset.train.X.shape[1],
        )  # fmt: skip
        X.eliminate_zeros()
        assert same(csr_matrix(X), dataset.train.X)
        assert [list(map(int, row)) for row in labels] == [row.indices.tolist() for row in dataset.train.Y]


def test_empty_columns_at_the_end_are_not_lost_without_a_word(tmp_path):
    Y = csr_matrix(np.array([[1, 0], [0, 0]], dtype=np.float32))
    split = Split(X=csr_matrix(np.ones((2, 3), dtype=np.float32)), Y=Y)
    with pytest.raises(UsageError, match=r"last 1 of 2 are empty.*labels = 2"):
        Svmlight().write(Dataset("small", split, split), tmp_path)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=300, derandomize=True)
@given(datasets(), mutations())
def test_damaged_bytes_give_the_right_data_or_an_error(dataset, mutate):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Svmlight(features=dataset.train.X.shape[1], labels=dataset.labels).write(dataset, folder)
        content = mutate((folder / "train.svm").read_bytes())
        put(folder, content, content)
        try:
            rows = slow_rows(content, first_feature=1, annotated=True)
            if not any(labels for labels, _ in rows):
                raise Wrong(content)
        except Wrong:
            with pytest.raises(DataError):
                read(folder)
            return
        labels = 1 + max(label for row, _ in rows for label in row)
        features = 1 + max((feature for _, row in rows for feature in row), default=0)
        assume(max(labels, features) < 10**6)
        X, Y = slow_matrices(rows, labels, features)
        train = read(folder).train
        assert same(train.X, X)
        assert same(train.Y, Y)


def test_file_names(tmp_path):
    assert not Svmlight().matches(tmp_path)
    with pytest.raises(DataError, match=r"expected train\.svm"):
        Svmlight().files(tmp_path)
    for name in ("rcv1.train.svmlight", "rcv1.test.svmlight"):
        (tmp_path / name).write_bytes(TEXT)
    assert [file.name for file in Svmlight().files(tmp_path)] == ["rcv1.train.svmlight", "rcv1.test.svmlight"]
    put(tmp_path, TEXT, TEXT)
    with pytest.raises(UsageError, match="several data sets"):
        Svmlight().files(tmp_path)


def test_names_that_differ_only_in_case_are_refused(tmp_path):
    for name in ("News.train.svm", "News.test.svm", "news.train.svm", "news.test.svm"):
        (tmp_path / name).write_text("0 1:1\n")
    with pytest.raises(UsageError, match=r"is the data in News\.\w+\.svm or in news\.\w+\.svm\?"):
        Svmlight().files(tmp_path)
    for name in ("news.train.svm", "news.test.svm"):
        (tmp_path / name).unlink()
    (tmp_path / "News.train.svm.gz").write_bytes(b"")  # the plain file comes first
    assert [file.name for file in Svmlight().files(tmp_path)] == ["News.train.svm", "News.test.svm"]
