"""Data sets in stage folders: an exact round trip, and errors that name damaged files."""

from dataclasses import replace

import numpy as np
import pytest
from reader_checks import assert_same_dataset
from scipy.sparse import csr_matrix
from test_npz_folder import everything

from xmckit import store
from xmckit.data.model import Dataset, Split
from xmckit.data.saved import load_dataset, load_label_names, load_split, save_dataset, save_split
from xmckit.errors import StorageError


def round_trip(dataset, folder):
    save_dataset(dataset, folder)
    return load_dataset(folder)


def test_everything_comes_back(tmp_path):
    dataset = replace(everything(), propensity="wikipedia")
    result = round_trip(dataset, tmp_path)
    assert_same_dataset(result, dataset)
    assert (result.name, result.propensity, result.info) == (dataset.name, "wikipedia", dataset.info)


@pytest.mark.parametrize(
    "X",
    [
        None,
        csr_matrix(np.eye(3, dtype=np.float32)),
        np.eye(3, dtype=np.float32),
        {"only": np.eye(3, dtype=np.float32)},
        {"z": csr_matrix(np.eye(3, dtype=np.float32)), "a/../b": np.zeros((3, 0), dtype=np.float32)},
    ],
)
def test_every_kind_of_features(tmp_path, X):
    split = Split(X=X, Y=csr_matrix(np.eye(3, dtype=np.float32)), texts=["a\n", "\ud800", ""])
    dataset = Dataset("d", split, split, propensity=(0.1, 2.0))
    result = round_trip(dataset, tmp_path)
    assert_same_dataset(result, dataset)
    assert type(result.train.X) is type(X)
    assert result.propensity == (0.1, 2.0)


def test_splits_alone(tmp_path):
    split = everything().train
    save_split(split, tmp_path)
    dataset = Dataset("d", split, split)
    assert_same_dataset(replace(dataset, train=load_split(tmp_path)), dataset)


def test_damage_names_the_file(tmp_path):
    save_dataset(everything(), tmp_path)
    (tmp_path / "train" / "Y.npz").write_bytes(b"PK")
    with pytest.raises(StorageError, match=r"Y\.npz"):
        load_dataset(tmp_path)
    (tmp_path / "train" / "split.json").write_text('{"version": 1}')
    with pytest.raises(StorageError, match="one_matrix: Field required"):
        load_dataset(tmp_path)
    (tmp_path / "dataset.json").write_text('{"version": 99}')
    with pytest.raises(StorageError, match="version: Input should be 1, found 99"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("file", "value", "text"),
    [
        ("label_names.npz", ["one"], "label names"),
        ("train/texts.npz", ["one"], "rows of labels but 1 texts"),
        ("test/Y.npz", csr_matrix((3, 99), dtype=np.float32), "but"),
    ],
)
def test_parts_that_do_not_fit_together_are_named(tmp_path, file, value, text):
    save_dataset(everything(), tmp_path)
    (store.write_strings if isinstance(value, list) else store.write_csr)(tmp_path / file, value)
    with pytest.raises(StorageError, match=text) as error:
        load_dataset(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_label_names_are_as_many_as_labels(tmp_path):
    dataset = everything()
    save_dataset(dataset, tmp_path)
    assert load_label_names(tmp_path) == list(dataset.label_names)
    store.write_strings(tmp_path / "label_names.npz", [*dataset.label_names, "more"])
    with pytest.raises(StorageError, match=f"{dataset.labels + 1} names of {dataset.labels} labels"):
        load_label_names(tmp_path)
