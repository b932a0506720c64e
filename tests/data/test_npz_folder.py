"""Folders of npz files: everything comes back, damage is an error, nothing is unpickled."""

import gzip
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from reader_checks import assert_same_dataset, datasets, mutations, random_csr, random_labels
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix, load_npz, save_npz

from xmckit.context import Context
from xmckit.data.model import Dataset, Groups, Split
from xmckit.data.npz import NpzFolder
from xmckit.errors import DataError, UsageError


def read(folder):
    return NpzFolder().read(Path(folder), context=Context())


def everything(seed=0):
    """A data set with every optional part."""
    rng = np.random.default_rng(seed)
    splits = []
    for rows in (7, 4):
        Y = random_labels(rng, rows, 5)
        weights = Y.copy()
        weights.data = rng.random(Y.nnz).astype(np.float32) + 0.5
        membership = csr_matrix(np.eye(3, dtype=np.float32)[rng.integers(0, 3, rows)])
        blocks = {
            "X": random_csr(rng, rows, 6), "words": random_csr(rng, rows, 3),
            "dense": rng.standard_normal((rows, 2)).astype(np.float32),
        }  # fmt: skip
        splits.append(
            Split(
                X=blocks, Y=Y, texts=[f"text {row}\nmore" for row in range(rows)], weights=weights,
                groups=Groups(membership, csr_matrix(membership.T @ Y), ["one\n", "two", ""]),
                filter=random_csr(rng, rows, 5, binary=True), names=[f"r{row}" for row in range(rows)],
            )
        )  # fmt: skip
    return Dataset(
        "all", *splits, label_names=list("abcde"), label_features=rng.standard_normal((5, 2)).astype(np.float32),
        propensity=(0.5, 0.4), info={"licence": "none", "n": 3},
    )  # fmt: skip


def test_everything_is_read_back(tmp_path):
    dataset = everything()
    # Blocks come in the order of their file names.
    blocks = [{name: split.X[name] for name in ("dense", "X", "words")} for split in (dataset.train, dataset.test)]
    dataset = replace(dataset, train=replace(dataset.train, X=blocks[0]), test=replace(dataset.test, X=blocks[1]))
    NpzFolder().write(dataset, tmp_path)
    result = read(tmp_path)
    assert_same_dataset(result, dataset)
    assert (result.name, result.propensity, result.info) == ("all", (0.5, 0.4), {"licence": "none", "n": 3})
    assert {file.name for file in NpzFolder().files(tmp_path)} == {file.name for file in tmp_path.iterdir()}


@settings(deadline=None, max_examples=25, derandomize=True)
@given(datasets())
def test_one_matrix_is_read_back(dataset):
    with tempfile.TemporaryDirectory() as folder:
        NpzFolder().write(dataset, Path(folder))
        assert_same_dataset(read(folder), dataset)
        assert np.array_equal(load_npz(Path(folder) / "X.trn.npz").toarray(), dataset.train.X.toarray())


@pytest.fixture
def folder(tmp_path):
    Y = csr_matrix(np.eye(3, 4, dtype=np.float32))
    for part in ("trn", "tst"):
        save_npz(tmp_path / f"X.{part}.npz", csr_matrix(np.eye(3, 5, dtype=np.float32) * 2))
        save_npz(tmp_path / f"Y.{part}.npz", Y)
    return tmp_path


@settings(deadline=None, max_examples=150, derandomize=True)
@given(mutations())
def test_damaged_archives_are_an_error_or_harmless(mutate):
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        NpzFolder().write(
            Dataset(
                "d",
                *(
                    Split(X=csr_matrix(np.eye(3, 5, dtype=np.float32)), Y=csr_matrix(np.eye(3, 4, dtype=np.float32)))
                    for _ in "ab"
                ),
            ),
            here,
        )
        before = read(here)
        (here / "X.trn.npz").write_bytes(mutate((here / "X.trn.npz").read_bytes()))
        try:
            after = read(here)
        except DataError:
            return
        # A zip file holds dates and other bytes without meaning; for the content its checksums vouch.
        assert_same_dataset(after, before)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(mutations())
def test_damaged_dense_blocks_never_crash(mutate):
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        for part in ("trn", "tst"):
            np.save(here / f"X.{part}.npy", np.eye(3, 5, dtype=np.float32))
            save_npz(here / f"Y.{part}.npz", csr_matrix(np.eye(3, 4, dtype=np.float32)))
        content = mutate((here / "X.trn.npy").read_bytes())
        (here / "X.trn.npy").write_bytes(content)
        try:
            X = read(here).train.X
        except DataError:
            return
        # An npy has no checksum: what can be read must be what the bytes say.
        assert X.shape == (3, 5)
        assert np.array_equal(X, np.load(here / "X.trn.npy", allow_pickle=False).astype(np.float32))


def test_other_sparse_formats_and_types_become_canonical_float32(folder):
    expected = read(folder)
    dense = expected.train.X.toarray()
    unsorted = csr_matrix((np.array([1, 2, 2]), np.array([4, 0, 1]), np.array([0, 2, 3, 3])), shape=(3, 5))
    for matrix in (csc_matrix(dense), coo_matrix(dense.astype(np.float64)), csr_matrix(dense.astype(np.int64))):
        save_npz(folder / "X.trn.npz", matrix)
        assert_same_dataset(read(folder), expected)
    save_npz(folder / "X.trn.npz", unsorted)
    X = read(folder).train.X
    assert X.dtype == np.float32
    assert X.indices.tolist() == [0, 4, 1]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite(folder, value):
    rows = np.array([[1, 0, 0, 0, 1], [0, 1, 0, 0, value], [value, 0, 0, 0, 1]])
    save_npz(folder / "X.tst.npz", csr_matrix(rows))
    with pytest.raises(DataError, match=r"X\.tst\.npz, row 1: a value is not a finite number in float32, found"):
        read(folder)
    (folder / "X.tst.npz").unlink()
    np.save(folder / "X.tst.npy", np.asfortranarray(rows))
    with pytest.raises(DataError, match=r"X\.tst\.npy, row 1: a value is not a finite number in float32, found"):
        read(folder)


def test_wrong_contents(folder):
    save_npz(folder / "X.trn.npz", csr_matrix(np.eye(2, 5)))
    with pytest.raises(DataError, match=r"X\.trn\.npz: 2 rows, but Y\.trn\.npz has 3"):
        read(folder)
    save_npz(folder / "X.trn.npz", csr_matrix(np.eye(3, 6)))
    with pytest.raises(DataError, match=r"train has features 6 but test has 5"):
        read(folder)
    save_npz(folder / "Y.trn.npz", csr_matrix(np.eye(3, 4) * 2))
    with pytest.raises(DataError, match=r"Y\.trn\.npz, row 0: a label's value must be 1, found 2"):
        read(folder)
    save_npz(folder / "X.trn.npz", csr_matrix(np.eye(3, 5)))
    save_npz(folder / "Y.trn.npz", csr_matrix((3, 4)))
    save_npz(folder / "Y.tst.npz", csr_matrix((int(load_npz(folder / "Y.tst.npz").shape[0]), 4)))
    with pytest.raises(DataError, match=r"Y\.tst\.npz: no row has a label"):
        read(folder)
    (folder / "X.trn.npz").write_bytes(b"")
    with pytest.raises(DataError, match="damaged or breaks off"):
        read(folder)
    (folder / "X.trn.npz").unlink()
    with pytest.raises(DataError, match=r"neither X\.trn\.npz nor texts\.trn\.txt"):
        read(folder)
    (folder / "info.json").write_text("{")
    (folder / "Y.tst.npz").unlink()
    assert not NpzFolder().matches(folder)


def test_indices_out_of_range_are_an_error(folder):
    arrays = {"format": b"csr", "shape": np.array([3, 5]), "data": np.ones(1), "indptr": np.array([0, 1, 1, 1])}
    for index in (5, -1, 2**40):
        np.savez(folder / "X.trn.npz", **arrays, indices=np.array([index]))
        with pytest.raises(DataError, match="not a sparse matrix"):
            read(folder)
    np.savez(folder / "X.trn.npz", **{**arrays, "indptr": np.array([0, 1, 0, 1])}, indices=np.array([0]))
    with pytest.raises(DataError, match="not a sparse matrix"):
        read(folder)


class Bomb:
    """Unpickling this would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_nothing_is_unpickled(folder, tmp_path):
    trap = tmp_path / "exploded"
    bomb = np.array([Bomb(trap)], dtype=object)
    np.savez(folder / "X.trn.npz", format=b"csr", shape=np.array([3, 5]), data=bomb, indices=[0], indptr=[0, 1, 1, 1])
    with pytest.raises(DataError, match="Python objects"):
        read(folder)
    (folder / "X.trn.npz").unlink()
    np.save(folder / "X.trn.npy", bomb, allow_pickle=True)
    with pytest.raises(DataError, match="Python objects"):
        read(folder)
    assert not trap.exists()


def test_a_member_that_claims_too_much_is_not_allocated(folder):
    with zipfile.ZipFile(folder / "X.trn.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", b"\x93NUMPY\x01\x00")
    content = (folder / "X.trn.npz").read_bytes()
    place = content.rindex(b"PK\x01\x02") + 24
    (folder / "X.trn.npz").write_bytes(content[:place] + b"\xff\xff\xff\x7f" + content[place + 4 :])
    with pytest.raises(DataError, match="claims"):
        read(folder)


def test_strings_beside_the_matrices(folder):
    (folder / "labels.txt.gz").write_bytes(gzip.compress("ä\nb\nc\nd\n".encode()))
    (folder / "texts.trn.txt").write_text("one\ntwo\nthree")
    dataset = read(folder)
    assert list(dataset.label_names) == ["ä", "b", "c", "d"]
    assert list(dataset.train.texts) == ["one", "two", "three"]
    (folder / "labels.txt.gz").write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(DataError, match="expected 4 lines, one for each label, found 2"):
        read(folder)


def test_a_damaged_info_file_names_itself(folder):
    for content, words in (("{", "not JSON"), ("[]", "expected an object"), ('{"propensity": [1]}', "propensity")):
        (folder / "info.json").write_text(content)
        with pytest.raises(DataError, match=words):
            read(folder)


def test_block_names_must_be_file_names(tmp_path):
    dataset = everything()
    bad = replace(dataset.train, X={"../up": dataset.train.X["X"]})
    with pytest.raises(UsageError, match="cannot be a file name"):
        NpzFolder().write(replace(dataset, train=bad), tmp_path)


SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.skipif(not (SHARED / "bibtex").is_dir(), reason="needs a folder of real data sets beside the repository")
@pytest.mark.parametrize("name", ["bibtex", "cve_libraries", "corel5k"])
def test_real_data(name):
    dataset = read(SHARED / name)
    for part, split in (("trn", dataset.train), ("tst", dataset.test)):
        X = load_npz(SHARED / name / f"X.{part}.npz")
        assert (abs(split.X - X)).nnz == 0
        assert split.rows == X.shape[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": np.array("bsr")}, r"format 'bsr', expected csr, csc or coo"),
        ({"shape": np.array([3.5, 5.0])}, "expected two whole numbers"),
        ({"shape": np.array([3, 5, 1])}, r"shape \[3, 5, 1\], expected two whole numbers"),
        ({"data": np.ones((3, 1))}, "expected a list of numbers"),
    ],
)
def test_arrays_that_are_no_sparse_matrix(folder, change, words):
    arrays = {"format": np.array("csr"), "shape": np.array([3, 5]), "data": np.ones(3), "indices": np.arange(3)}
    np.savez(folder / "X.trn.npz", **{**arrays, "indptr": np.arange(4), **change})
    with pytest.raises(DataError, match=words):
        read(folder)


@pytest.mark.parametrize("facts", ['"info": {"a": NaN}', '"info": {}, "propensity": [1, Infinity]'])
def test_facts_hold_no_numbers_that_json_lacks(folder, facts):
    (folder / "info.json").write_text(f'{{"name": "x", {facts}}}')
    with pytest.raises(DataError, match=r"info\.json: not JSON: (NaN|Infinity) is not a number"):
        read(folder)


def test_a_byte_order_mark_is_no_part_of_a_name(folder):
    (folder / "labels.txt").write_bytes("\ufeffa\nb\nc\nd\n".encode())
    dataset = read(folder)
    assert dataset.label_names == list("abcd")
    dataset = replace(dataset, label_names=["\ufeffa", "b", "c", "d"])
    (folder / "copy").mkdir()
    NpzFolder().write(dataset, folder / "copy")
    assert read(folder / "copy").label_names == dataset.label_names
