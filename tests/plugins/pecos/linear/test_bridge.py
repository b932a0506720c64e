"""Everything odd about PECOS is behind `bridge`, and what comes out is what PECOS itself gives."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from scipy.sparse import csc_matrix, csr_array, csr_matrix

pytest.importorskip("pecos")

import xmckit_pecos
from pecos.utils import smat_util
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear import XLinearModel
from pecos_problems import every_label, problem
from xmckit_pecos.labels.tree import LabelTree, tree_of_clusters, tree_of_leaves
from xmckit_pecos.linear import bridge, matrices
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TrainingOptions
from xmckit_pecos.tree import TreeIndexer
from xmckit_pecos.xrlinear import XRLinearHead

from xmckit import Context, DataError, Split, UsageError


def tree_for(train: Split, leaves: int = 8, branching: int = 4) -> LabelTree:
    """Some tree: labels in turn."""
    labels = train.labels
    return tree_of_leaves(np.arange(labels) % leaves, leaves, branching, np.arange(labels), labels)


def chain(tree: LabelTree) -> list[csc_matrix]:
    return [tree.step(level).tocsc() for level in range(tree.depth)]


def same_weights(ours: LinearModel, theirs: XLinearModel) -> bool:
    pairs = zip(ours.levels, theirs.model.model_chain, strict=True)
    return all((one.W != other.W).nnz == 0 and (one.C != other.C).nnz == 0 for one, other in pairs)


def test_only_the_bridge_imports_pecos():
    folder = Path(xmckit_pecos.__file__).parent
    sources = {file.name: file.read_text("utf-8") for file in folder.rglob("*.py")}
    importing = {name for name, text in sources.items() if re.search(r"^\s*(import|from) pecos", text, re.M)}
    assert importing == {"bridge.py"}


def test_a_process_that_predicts_imports_no_broken_module_and_ends_without_a_word(tmp_path):
    program = """
import sys, numpy as np
from xmckit import Context, Split
from scipy.sparse import csr_matrix
from xmckit_pecos.xrlinear import XRLinearHead
head = XRLinearHead(leaf_size=2, branching=2)
Y = csr_matrix(np.eye(6, dtype=np.float32))
head.fit(Split(Y, Y), context=Context())
print(head.predict(Y, 1).indices.ravel().tolist())
print([name for name in sys.modules if name.startswith(("pecos.xmc.xtransformer", "pecos.xmr"))])
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("[0, 1, 2, 3, 4, 5]\n[]\n", "", 0)


WITHOUT_PECOS = """
import sys
sys.modules["pecos"] = None
import numpy as np
from pathlib import Path
from scipy.sparse import load_npz
from xmckit import Context
from xmckit_pecos.tree import TreeIndexer
from xmckit_pecos.xrlinear import XRLinearHead
"""


def test_models_predict_without_pecos(tmp_path):
    train = every_label()
    index = TreeIndexer(leaf_size=5, branching=4).build(train, context=Context(seed=3))
    head = XRLinearHead()
    head.fit(train, indexes=[index], context=Context(seed=3))
    for component, name in ((index, "index"), (head, "head")):
        (tmp_path / name).mkdir()
        component.save(tmp_path / name)
    scipy.sparse.save_npz(tmp_path / "X.npz", train.matrix)
    program = (
        WITHOUT_PECOS
        + """
folder = Path(sys.argv[1])
X = load_npz(folder / "X.npz")
head = XRLinearHead.load(folder / "head", context=Context())
index = TreeIndexer.load(folder / "index", context=Context())
print(head.predict(X, 3).indices.tolist() == np.load(folder / "expected.npz")["best"].tolist())
print(index.shortlist(X, 7).indices.tolist() == np.load(folder / "expected.npz")["listed"].tolist())
"""
    )
    np.savez(
        tmp_path / "expected.npz",
        best=head.predict(train.matrix, 3).indices,
        listed=index.shortlist(train.matrix, 7).indices,
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("True\nTrue\n", "")


def test_training_without_pecos_says_what_to_install():
    program = (
        WITHOUT_PECOS
        + """
from xmckit import PluginError, Split
from scipy.sparse import csr_matrix
Y = csr_matrix(np.eye(6, dtype=np.float32))
try:
    XRLinearHead(leaf_size=2).fit(Split(Y, Y), context=Context())
except PluginError as error:
    print(error)
"""
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "trees are trained by PECOS, which is not installed: pip install 'libpecos==1.2.8'" in ran.stdout


@pytest.fixture
def newer_libraries():
    """PECOS's module of matrices as it finds itself beside numpy 2 and scipy 1.14: no sputils, no copy=False."""
    spec = importlib.util.spec_from_file_location("smat_util_beside_new_libraries", smat_util.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class WithoutSputils:
        def __getattr__(self, name):
            if name == "sputils":
                raise AttributeError(name)
            return getattr(scipy.sparse, name)

    class WithoutCopyFalse:
        def __getattr__(self, name):
            return getattr(np, name)

        @staticmethod
        def array(value, *, copy=True, **more):
            if copy is False and np.asarray(value, **more) is not value:
                raise ValueError("Unable to avoid copy")
            return np.array(value, **more)

    module.smat, module.np = WithoutSputils(), WithoutCopyFalse()
    return module


def test_pecos_is_mended_for_new_libraries(newer_libraries):
    parts = (np.ones(2, np.float32), np.asarray([0, 2], np.uint32), np.asarray([0, 1, 2], np.uint64))
    with pytest.raises(AttributeError, match="sputils"):
        newer_libraries.csr_matrix(parts, shape=(2, 3))
    bridge._patch_smat_util(newer_libraries)
    matrix = newer_libraries.csr_matrix(parts, shape=(2, 3))
    assert (matrix.indices.dtype, matrix.indptr.dtype, matrix.dtype) == (np.int32, np.int32, np.float32)
    assert np.array_equal(matrix.toarray(), [[1, 0, 0], [0, 0, 1]])
    stacked = newer_libraries.hstack_csr([matrix, matrix])
    assert np.array_equal(stacked.toarray(), np.hstack([matrix.toarray()] * 2))


def test_indices_stay_wide_where_they_have_to():
    assert bridge._index_type(np.asarray([0, 2**31], np.uint64)) is np.int64
    assert bridge._index_type(np.asarray([0, 2**31 - 1], np.uint64)) is np.int32
    assert bridge._index_type(np.empty(0, np.uint32)) is np.int32


@pytest.mark.parametrize("negatives", ["tfn", "man", "tfn+man"])
@pytest.mark.parametrize("loss", ["squared-hinge", "hinge"])
def test_training_is_that_of_pecos(negatives, loss):
    train = every_label()
    tree = tree_for(train)
    training = TrainingOptions(C=2.0, prune=0.05, loss=loss, negatives=negatives, beam=3, post_processor="l2-hinge")
    ours = bridge.train(TrainingRows(train.matrix, train.Y), tree, training, 1)
    theirs = XLinearModel.train(
        train.matrix, train.Y.tocsc(), C=chain(tree), min_codes=2, nr_splits=2, threshold=0.05, Cp=2.0, Cn=2.0,
        solver_type=bridge._SOLVERS[loss], negative_sampling_scheme=negatives, beam_size=3, post_processor="l2-hinge",
        threads=1,
    )  # fmt: skip
    assert same_weights(ours, theirs)
    expected = theirs.predict(train.matrix, beam_size=3, only_topk=7, post_processor="l2-hinge", threads=1)
    found = ours.predict(train.matrix, 7, 3, 1, "l2-hinge")
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.data, expected.data)


@pytest.mark.parametrize("negatives", ["tfn", "tfn+man"])
def test_a_ranker_below_a_matcher_is_the_whole_model(negatives):
    train = every_label()
    tree, training = tree_for(train), TrainingOptions(negatives=negatives, beam=3)
    matcher = bridge.train(TrainingRows(train.matrix, train.Y), tree, training, 1, to_leaves=True)
    assert matcher is not None
    assert (matcher.labels, matcher.depth) == (tree.leaves, tree.depth - 1)
    whole = bridge.train(TrainingRows(train.matrix, train.Y), tree, training, 1)
    joined = bridge.train(TrainingRows(train.matrix, train.Y), tree, training, 1, matcher=matcher)
    assert same_weights(joined, SimpleNamespace(model=SimpleNamespace(model_chain=whole.levels)))


def test_a_matcher_of_other_leaves_is_refused():
    train = every_label()
    rows, options = TrainingRows(train.matrix, train.Y), TrainingOptions()
    matcher = bridge.train(rows, tree_for(train, leaves=4), options, 1, to_leaves=True)
    with pytest.raises(UsageError, match="over 4 leaves"):
        bridge.train(rows, tree_for(train, leaves=8), options, 1, matcher=matcher)
    with pytest.raises(UsageError, match="the tree is over 39 labels, the training rows have 40"):
        bridge.train(rows, tree_of_leaves(np.arange(39) % 4, 4, 4, np.arange(39), 39), options, 1)


def test_one_leaf_needs_no_matcher():
    train = every_label(labels=3)
    index = TreeIndexer().build(train, context=Context())
    assert index.tree.leaves == 1
    assert index.matcher is None


def test_results_do_not_depend_on_threads(monkeypatch):
    for module in (bridge, xmckit_pecos.linear.model):
        monkeypatch.setattr(module, "useful_threads", lambda threads, *_: threads)  # small data would get one
    train = every_label()
    tree, training = tree_for(train), TrainingOptions(negatives="tfn+man")
    found = []
    for threads in (1, 2, 3):
        embeddings = bridge.label_embeddings(train.matrix, train.Y, threads)
        model = bridge.train(TrainingRows(train.matrix, train.Y), tree, training, threads)
        scores = model.predict(train.matrix, 5, 3, threads, "l3-hinge")
        codes = bridge.balanced_codes(embeddings, 3, 7, threads)
        found.append((embeddings.data.tobytes(), codes.tobytes(), scores.data.tobytes(), scores.indices.tobytes()))
    assert found[0] == found[1] == found[2]


def test_clusters_are_those_of_pecos():
    train = problem(labels=70)
    seen = np.flatnonzero(np.bincount(train.Y.indices, minlength=70))
    Y = csr_matrix(train.Y[:, seen])
    embeddings = bridge.label_embeddings(train.matrix, Y, 1)
    assert (embeddings != LabelEmbeddingFactory.create(Y, train.matrix, method="pifa")).nnz == 0
    expected = Indexer.gen(embeddings, nr_splits=4, max_leaf_size=10, seed=5, threads=1)
    codes = bridge.balanced_codes(embeddings, 3, 5, 1)
    tree = tree_of_leaves(codes, 8, 4, np.arange(len(seen)), len(seen))
    assert [step.shape for step in chain(tree)] == [step.shape for step in expected]
    assert all((ours != theirs).nnz == 0 for ours, theirs in zip(chain(tree), expected, strict=True))


@pytest.mark.parametrize("labels", [8, 9, 15, 16, 1000])
def test_the_depth_of_clusters_is_the_one_asked_for(labels):
    embeddings = csr_matrix(np.random.default_rng(labels).random((labels, 5), dtype=np.float32))
    for depth in (1, 2, 3):
        sizes = np.bincount(bridge.balanced_codes(embeddings, depth, 0, 1), minlength=1 << depth)
        assert sizes.max() - sizes.min() <= depth
        assert len(sizes) == 1 << depth


def test_a_seed_of_64_bits_is_taken():
    embeddings = csr_matrix(np.random.default_rng(0).random((20, 5), dtype=np.float32))
    assert np.array_equal(
        bridge.balanced_codes(embeddings, 2, 2**62 + 5, 1), bridge.balanced_codes(embeddings, 2, 5, 1)
    )


def test_forms_that_pecos_refuses_are_brought_into_its_own():
    train = every_label()
    tree, X = tree_for(train), train.matrix
    model = bridge.train(TrainingRows(X, train.Y), tree, TrainingOptions(), 1)
    unsorted = X.copy()
    for row in range(X.shape[0]):
        part = slice(X.indptr[row], X.indptr[row + 1])
        unsorted.indices[part], unsorted.data[part] = X.indices[part][::-1], X.data[part][::-1]
    unsorted.has_sorted_indices = False
    before = unsorted.indices.copy()
    expected = model.predict(X, 5, 3, 1, "l3-hinge")
    for form in (unsorted, csr_array(X), X.astype(np.float64), X.tocsc(), X.toarray(), np.asfortranarray(X.toarray())):
        found = model.predict(form, 5, 3, 1, "l3-hinge")
        assert np.array_equal(found.indices, expected.indices)
        assert np.array_equal(found.data, expected.data)
        again = bridge.train(TrainingRows(form, train.Y), tree, TrainingOptions(), 1)
        np.testing.assert_allclose(again.levels[-1].W.toarray(), model.levels[-1].W.toarray(), atol=0.1)
    assert np.array_equal(unsorted.indices, before)


@pytest.mark.parametrize("dense", [False, True])
def test_a_feature_that_is_no_number_is_named(dense):
    X = np.eye(3, dtype=np.float32)
    X[1, 2] = np.nan
    with pytest.raises(DataError, match="row 1"):
        matrices.features(X if dense else csr_matrix(X))


def weighted(train: Split, value) -> csr_matrix:
    return csr_matrix((value, train.Y.indices, train.Y.indptr), shape=train.Y.shape)


def test_weights_of_one_change_nothing():
    train = every_label()
    tree = tree_for(train)
    plain = bridge.train(TrainingRows(train.matrix, train.Y), tree, TrainingOptions(), 1)
    ones = weighted(train, np.ones(train.Y.nnz, dtype=np.float32))
    even = bridge.train(TrainingRows(train.matrix, train.Y, ones), tree, TrainingOptions(), 1)
    assert all((one.W != other.W).nnz == 0 for one, other in zip(plain.levels, even.levels, strict=True))


def test_weights_are_pecos_relevance():
    train = every_label()
    tree = tree_for(train, leaves=1)
    weights = weighted(train, np.random.default_rng(0).uniform(0, 3, train.Y.nnz).astype(np.float32))
    ours = bridge.train(TrainingRows(train.matrix, train.Y, weights), tree, TrainingOptions(), 1)
    theirs = XLinearModel.train(
        train.matrix, train.Y.tocsc(), C=chain(tree), R=weights.tocsc(), rel_mode="ranker-only", threads=1
    )
    assert same_weights(ours, theirs)


def test_a_cluster_weighs_as_much_as_its_heaviest_label():
    rng = np.random.default_rng(0)
    weights = csc_matrix(rng.uniform(0, 1, (5, 6)) * (rng.random((5, 6)) < 0.5), dtype=np.float32)
    weights.data[0] = 0  # a pair may weigh nothing and is still a pair
    parents = np.asarray([0, 2, 0, 2, 2, 3], dtype=np.int32)
    found = bridge._largest_below(weights, parents, 4)
    entries = weights.tocoo()
    expected = {}
    for row, column, value in zip(entries.row, parents[entries.col], entries.data, strict=True):
        expected[row, column] = max(value, expected.get((row, column), 0))
    stored = found.tocoo()
    pairs = zip(stored.row.tolist(), stored.col.tolist(), stored.data.tolist(), strict=True)
    assert {(row, column): value for row, column, value in pairs} == expected
    assert found.has_canonical_format


def test_weights_without_weight_keep_their_pairs():
    train = every_label()
    value = np.ones(train.Y.nnz, dtype=np.float32)
    value[::3] = 0
    split = replace(train, weights=weighted(train, value))
    Y, weights = matrices.targets(split)
    assert weights is not None
    assert Y.nnz == weights.nnz == train.Y.nnz
    tree = tree_for(train)
    bridge.train(TrainingRows(train.matrix, Y, weights), tree, TrainingOptions(), 1)


def test_pairs_stored_as_zero_are_no_pairs():
    Y = csr_matrix((np.asarray([1, 0, 5], np.float32), [0, 1, 1], [0, 2, 3]), shape=(2, 3))
    ones, weights = matrices.targets(Split(Y, Y))
    assert weights is None
    assert np.array_equal(ones.toarray(), [[1, 0, 0], [0, 1, 0]])
    ones, weights = matrices.targets(Split(Y, Y, weights=csr_matrix(([2.0, 3.0, 4.0], Y.indices, Y.indptr), Y.shape)))
    assert weights is not None
    assert np.array_equal(weights.toarray(), [[2, 0, 0], [0, 4, 0]])
    assert np.array_equal(ones.toarray(), [[1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("entries", [0, 2])
def test_a_label_in_no_or_two_clusters_never_reaches_pecos(entries):
    clusters = np.eye(4, dtype=np.float32)
    clusters[2] = 0
    clusters[2, :entries] = 1
    with pytest.raises(DataError, match=f"pseudo-label 2 is in {entries} clusters"):
        tree_of_clusters(csr_matrix(clusters), np.arange(4), 4, 2)


def test_impossible_predictions_are_refused():
    train = every_label()
    model = bridge.train(TrainingRows(train.matrix, train.Y), tree_for(train), TrainingOptions(), 1)
    for k, beam in ((0, 1), (1, 0)):
        with pytest.raises(UsageError, match="at least 1"):
            model.predict(train.matrix, k, beam, 1, "l3-hinge")
    with pytest.raises(UsageError, match="no post-processor 'softmax'"):
        model.predict(train.matrix, 1, 1, 1, "softmax")
    with pytest.raises(DataError, match="the rows have 29 features"):
        model.predict(train.matrix[:, :-1], 1, 1, 1, "l3-hinge")


def test_empty_leaves_and_inner_nodes_do_no_harm():
    train = every_label(labels=6)
    parents = ([0, 0, 0], [0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 3])
    tree = LabelTree(tuple(np.asarray(p, dtype=np.int32) for p in parents), np.arange(6, dtype=np.int32), 6)
    model = bridge.train(TrainingRows(train.matrix, train.Y), tree, TrainingOptions(), 1)
    assert model.predict(train.matrix, 10, 5, 1, "l3-hinge").nnz == 6 * train.rows
