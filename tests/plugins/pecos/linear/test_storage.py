"""PECOS's files: written so that PECOS reads them, and read only after they have been found sound."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pecos")

from pecos.xmc import HierarchicalMLModel, MLModel
from pecos.xmc.xlinear import XLinearModel
from pecos_problems import every_label
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear import bridge
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TrainingOptions

from xmckit import StorageError, XmckitError

LAST = "ranker/1.model"


@pytest.fixture(scope="module")
def train():
    return every_label(labels=12)


@pytest.fixture(scope="module")
def model(train):
    tree = tree_of_leaves(np.arange(12) % 3, 3, 4, np.arange(12), 12)
    return bridge.train(TrainingRows(train.matrix, train.Y), tree, TrainingOptions(), 1)


@pytest.fixture(scope="module")
def pristine(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine") / "model"
    model.save(folder)
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def scores(model, X):
    found = model.predict(X, 5, 2, 1, "l3-hinge")
    return found.indptr.tobytes(), found.indices.tobytes(), found.data.tobytes()


def test_what_was_saved_comes_back_bit_for_bit(model, folder, train):
    loaded = LinearModel.load(folder)
    assert (loaded.inputs, loaded.labels, loaded.depth) == (model.inputs, model.labels, model.depth)
    assert scores(loaded, train.matrix) == scores(model, train.matrix)
    assert (loaded.weights, loaded.bytes) == (model.weights, model.bytes)


def test_a_loaded_model_can_be_saved_again(folder, train, tmp_path):
    loaded = LinearModel.load(folder)
    loaded.save(tmp_path / "again")
    shutil.rmtree(folder)
    assert scores(LinearModel.load(tmp_path / "again"), train.matrix) == scores(loaded, train.matrix)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pecos_reads_the_files(model, folder, train):
    expected = model.predict(train.matrix, 5, 2, 1, "l3-hinge")
    theirs = XLinearModel.load(str(folder))
    found = theirs.predict(train.matrix, only_topk=5, beam_size=2, threads=1)
    assert (found != expected).nnz == 0
    assert theirs.model.get_pred_params().model_chain[0].only_topk == TrainingOptions().beam


def test_files_that_are_gone_end_nothing(folder, model, train):
    loaded = LinearModel.load(folder)
    shutil.rmtree(folder)
    assert scores(loaded, train.matrix) == scores(model, train.matrix)


@pytest.mark.parametrize(("at", "byte"), [(8, 1), (10, 99)])
def test_an_archive_that_claims_to_be_packed_otherwise(folder, at, byte):
    """The flag of encryption and the method of compression of its first member."""
    path = folder / LAST / "C.npz"
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + at] = byte
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"C\.npz.*damaged"):
        LinearModel.load(folder)


def rewrite(path, **changes):
    with np.load(path) as archive:
        arrays = {**archive, **changes}
    np.savez(path, **arrays)


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def arrays_of(folder, name=f"{LAST}/C.npz"):
    with np.load(folder / name) as archive:
        return dict(archive)


def beyond(folder):
    indices = arrays_of(folder, f"{LAST}/W.npz")["indices"].copy()
    indices[-1] = 10_000
    rewrite(folder / LAST / "W.npz", indices=indices)


def negative(folder):
    indices = arrays_of(folder, f"{LAST}/W.npz")["indices"].copy()
    indices[0] = -1
    rewrite(folder / LAST / "W.npz", indices=indices)


def two_clusters(folder):
    indices = arrays_of(folder)["indices"].copy()
    indices[0] = indices[-1]
    rewrite(folder / LAST / "C.npz", indices=indices)


def unsorted_column(folder):
    indices = arrays_of(folder)["indices"].copy()
    indices[:2] = indices[:2][::-1]
    rewrite(folder / LAST / "C.npz", indices=indices)


def falling_starts(folder):
    indptr = arrays_of(folder)["indptr"].copy()
    indptr[1] = indptr[2] + 1
    rewrite(folder / LAST / "C.npz", indptr=indptr)


def pickled(folder):
    arrays = arrays_of(folder, f"{LAST}/W.npz")
    np.savez(folder / LAST / "W.npz", **{**arrays, "data": np.asarray([print], dtype=object)})


def a_fourth_cluster(folder):
    rewrite(folder / LAST / "C.npz", shape=np.asarray([12, 4]), indptr=np.asarray([0, 4, 8, 12, 12]))


DAMAGE = {
    "an index beyond the rows": (beyond, "W.npz", "not between 0 and"),
    "an index below 0": (negative, "W.npz", "not between 0 and"),
    "a label in two clusters": (two_clusters, "C.npz", "do not rise|several clusters"),
    "an unsorted column": (unsorted_column, "C.npz", "do not rise"),
    "starts that fall": (falling_starts, "C.npz", "indptr decreases"),
    "a pickle": (pickled, "W.npz", "pickle"),
    "a value that is no number": (
        lambda folder: rewrite(folder / LAST / "C.npz", data=np.full(12, np.nan, np.float32)), "C.npz", "finite"),
    "float64": (lambda folder: rewrite(folder / LAST / "C.npz", data=np.ones(12)), "C.npz", "float32"),
    "unsigned indices": (
        lambda folder: rewrite(folder / LAST / "C.npz", indices=np.arange(12, dtype=np.uint64)), "C.npz", "int32"),
    "another shape": (lambda folder: rewrite(folder / LAST / "C.npz", shape=np.asarray([11, 3])), "C.npz", "between"),
    "no shape": (lambda folder: rewrite(folder / LAST / "C.npz", shape=np.asarray(7)), "C.npz", "shape 7"),
    "another format": (lambda folder: rewrite(folder / LAST / "C.npz", format=np.asarray(b"csr")), "C.npz", "csc"),
    "another number of clusters": (a_fourth_cluster, "param.json", "nr_codes"),
    "a level that is missing": (lambda folder: shutil.rmtree(folder / LAST), "param.json", "no such file"),
    "more levels than there are": (
        lambda folder: change_json(folder / "ranker/param.json", depth=3), "2.model", "no such file"),
    "fewer levels than there are": (
        lambda folder: change_json(folder / "ranker/param.json", depth=1), "ranker/param.json", "nr_labels"),
    "no depth": (lambda folder: change_json(folder / "ranker/param.json", depth=0), "ranker/param.json", "depth"),
    "a memory map": (lambda folder: change_json(folder / LAST / "param.json", is_mmap=True), "param.json", "npz files"),
    "a bias that is text": (lambda folder: change_json(folder / LAST / "param.json", bias="1"), "param.json", "bias"),
    "a bias of none": (lambda folder: change_json(folder / LAST / "param.json", bias=-1.0), "param.json", "nr_feat"),
    "another post-processor": (
        lambda folder: change_json(folder / LAST / "param.json", pred_kwargs={"only_topk": 1, "post_processor": "x"}),
        "param.json", "post-processor"),
    "a list": (lambda folder: (folder / "param.json").write_text("[1]"), "param.json", "JSON object"),
    "another model": (lambda folder: (folder / "param.json").write_text("{}"), "param.json", "XLinearModel"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_would_end_the_process_is_named_instead(what, folder):
    damage, file, why = DAMAGE[what]
    damage(folder)
    with pytest.raises(StorageError, match=why) as error:
        LinearModel.load(folder)
    assert file in str(error.value)


def test_levels_that_do_not_fit_together(folder):
    """Each file is sound by itself: the last level hangs below four clusters, the first one has three."""
    a_fourth_cluster(folder)
    change_json(folder / LAST / "param.json", nr_codes=4)
    with pytest.raises(StorageError, match="4 clusters below 3 nodes"):
        LinearModel.load(folder)


def loaded_or_error(folder):
    try:
        return LinearModel.load(folder)
    except XmckitError as error:
        return str(error)


def test_random_damage_never_gets_through(folder, train, model):
    """Bytes changed at random: an error that names the file, or a model that is still the same."""
    rng = np.random.default_rng(0)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    refused = 0
    for _ in range(150):
        path = files[rng.integers(len(files))]
        content = path.read_bytes()
        broken = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            broken[place] ^= 1 << rng.integers(8)
        path.write_bytes(broken)
        found = loaded_or_error(folder)
        if isinstance(found, str):
            assert path.name in found
            refused += 1
        else:
            assert scores(found, train.matrix) == scores(model, train.matrix)
        path.write_bytes(content)
    assert refused > 100
    assert scores(LinearModel.load(folder), train.matrix) == scores(model, train.matrix)


@pytest.mark.skipif(sys.platform != "linux", reason="about the C++ library of PECOS for Linux")
def test_why_the_files_are_checked_first(folder):
    """PECOS by itself, given one of these files, does not raise an error that a program could handle."""
    beyond(folder)
    program = (
        "import numpy as np, scipy.sparse as sp\n"
        "from pecos.xmc.xlinear import XLinearModel\n"
        f"model = XLinearModel.load({str(folder)!r}, is_predict_only=True)\n"
        "model.predict(sp.csr_matrix(np.ones((1, 30), np.float32)), threads=1)\n"
        "print('survived')\n"
    )
    (folder / LAST / "W.npz").write_bytes((folder / LAST / "W.npz").read_bytes()[:100])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "survived" not in ran.stdout
    assert ran.returncode < 0  # ended by a signal


def test_files_name_the_classes_as_pecos_does(folder):
    for path, named in (
        ("param.json", XLinearModel), ("ranker/param.json", HierarchicalMLModel), (f"{LAST}/param.json", MLModel)
    ):  # fmt: skip
        assert json.loads((folder / path).read_text())["__meta__"] == named.append_meta()["__meta__"]
    told = json.loads((folder / LAST / "param.json").read_text())["pred_kwargs"]
    assert told == MLModel.PredParams(only_topk=told["only_topk"], post_processor=told["post_processor"]).to_dict()
