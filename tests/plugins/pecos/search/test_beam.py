"""`beam_search` against PECOS's own predictor, bit for bit, and against a search that leaves nothing out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csc_matrix, csr_matrix, random

pytest.importorskip("pecos")

from pecos.core import ScipyCompressedSparseAllocator
from xmckit_pecos.labels.tree import tree_of_leaves
from xmckit_pecos.linear.bridge import clib  # importing it mends PECOS
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.storage import LEVELS, POST_PROCESSORS, ModelLevel
from xmckit_pecos.search import beam as beam_search
from xmckit_pecos.search import levels as search_levels
from xmckit_pecos.search.copies import scores_of_labels
from xmckit_pecos.search.levels import LabelCopies, SearchLevel

from xmckit import DataError, UsageError

SOME = {"only_topk": 5, "post_processor": "l3-hinge"}


def model(
    rng: np.random.Generator,
    sizes: list[int],
    features: int,
    density: float,
    bias: float,
    few_values: bool,
    even: bool = False,
) -> LinearModel:
    """Return any weights over any tree with these numbers of nodes; with few values, most scores are equal."""
    levels, above = [], 1
    for nodes in sizes:
        rows = features + (bias > 0)
        W = random(rows, nodes, density, "csc", np.float32, random_state=rng)
        W.data[:] = rng.integers(-1, 2, W.nnz) if few_values else rng.normal(size=W.nnz)
        parent = np.arange(nodes) % above if even else rng.integers(0, above, nodes)
        C = csc_matrix((np.ones(nodes, np.float32), (np.arange(nodes), parent)), shape=(nodes, above))
        levels.append(ModelLevel(W, C, bias, SOME))
        above = nodes
    return LinearModel(levels)


def rows(rng: np.random.Generator, count: int, features: int, density: float, few_values: bool) -> csr_matrix:
    X = random(count, features, density, "csr", np.float32, random_state=rng)
    if few_values:
        X.data[:] = 1
    return X


def by_pecos(stored: LinearModel, X: csr_matrix, k: int, beam: int, post_processor: str) -> csr_matrix:
    with tempfile.TemporaryDirectory() as folder:
        stored.save(Path(folder) / "model")
        loaded = clib.xlinear_load_predict_only(str(Path(folder) / "model" / LEVELS))
    found = ScipyCompressedSparseAllocator()
    clib.xlinear_predict(loaded, X, beam, post_processor, k, 1, found)
    clib.xlinear_destruct_model(loaded)
    return found.get()


def search_levels_of(stored: LinearModel) -> list[SearchLevel]:
    return [SearchLevel.from_matrices(level.W, level.C, level.bias) for level in stored.levels]


def same(ours: csr_matrix, theirs: csr_matrix) -> bool:
    return (
        ours.shape == theirs.shape
        and np.array_equal(ours.indptr, theirs.indptr)
        and np.array_equal(ours.indices, theirs.indices)
        and np.array_equal(ours.data, theirs.data)
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    features=st.integers(1, 30) | st.sampled_from([63, 64, 65, 128, 200]),
    densities=st.tuples(st.sampled_from([0.0, 0.05, 0.3, 1.0]), st.sampled_from([0.0, 0.1, 0.6])),
    bias=st.sampled_from([-1.0, 0.5, 1.0]),
    few_values=st.booleans(),
    even=st.booleans(),
    k=st.integers(1, 50),
    beam=st.integers(1, 12),
    post_processor=st.sampled_from(POST_PROCESSORS),
    threads=st.integers(1, 3),
)
def test_scores_are_those_of_pecos(
    seed, sizes, features, densities, bias, few_values, even, k, beam, post_processor, threads
):
    rng = np.random.default_rng(seed)
    stored = model(rng, sizes, features, densities[0], bias, few_values, even)
    X = rows(rng, int(rng.integers(1, 40)), features, densities[1], few_values)
    levels = search_levels_of(stored)
    ours = beam_search.search(levels, X, k, beam, threads, post_processor)
    assert same(ours, by_pecos(stored, X, k, beam, post_processor))


@pytest.mark.parametrize("post_processor", POST_PROCESSORS)
@pytest.mark.parametrize(
    ("name", "value"),
    [("FEW", 0), ("FEW", 1 << 40), ("SHARE", 2), ("SHARE", 1 << 40), ("MANY", 0), ("SCORES_AT_ONCE", 1)],
    ids=["bisection", "table", "few zeros stored", "zeros stored", "many weights", "blocks"],
)
@pytest.mark.parametrize("sizes", [[3, 12, 90], [16, 256, 4096]], ids=["any", "sixteen children"])
def test_ways_to_the_same_scores(monkeypatch, post_processor, name, value, sizes):
    rng = np.random.default_rng(3)
    stored, X = model(rng, sizes, 200, 0.1, 1.0, False, even=True), rows(rng, 50, 200, 0.1, False)
    wanted = by_pecos(stored, X, 20, 4, post_processor)
    monkeypatch.setattr(beam_search if hasattr(beam_search, name) else search_levels, name, value)
    levels = search_levels_of(stored)
    assert same(beam_search.search(levels, X, 20, 4, 1, post_processor), wanted)


def test_a_beam_as_wide_as_the_tree_leaves_nothing_out():
    rng = np.random.default_rng(0)
    stored, X = model(rng, [4, 20, 150], 60, 0.3, 1.0, False), rows(rng, 30, 60, 0.4, False)
    found = stored.predict(X, 150, 150, 2, "l3-hinge").toarray()
    expected = np.ones((30, 1))
    for level in stored.levels:
        W = level.W.toarray()
        margins = X.toarray() @ W[:-1] + W[-1]
        expected = expected[:, level.C.toarray().argmax(axis=1)] * np.exp(-(np.maximum(1 - margins, 0) ** 3))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-30)


def test_no_rows_and_rows_without_entries():
    rng = np.random.default_rng(1)
    stored = model(rng, [3, 9], 20, 0.5, 1.0, False)
    assert stored.predict(csr_matrix((0, 20), dtype=np.float32), 5, 2, 2, "l3-hinge").shape == (0, 9)
    nothing = csr_matrix((3, 20), dtype=np.float32)
    assert same(stored.predict(nothing, 5, 2, 2, "l3-hinge"), by_pecos(stored, nothing, 5, 2, "l3-hinge"))


@pytest.mark.parametrize(
    ("post_processor", "indices", "values"),
    [("l3-hinge", [0, 2, 3, 1], [1, 1, 1, 0]), ("noop", [0, 3, 1, 2], [np.inf, 10, -np.inf, -np.inf])],
)
def test_margins_beyond_single_precision_do_no_harm(post_processor, indices, values):
    huge = np.float32(3e38)  # ∞, −∞, ∞ − ∞ and 10
    W = csc_matrix(np.asarray([[huge, -huge, huge, 1.0], [huge, -huge, -huge, 1.0]], dtype=np.float32))
    level = SearchLevel.from_matrices(W, csc_matrix(np.ones((4, 1), np.float32)), -1.0)
    found = beam_search.search([level], csr_matrix([[5.0, 5.0]], dtype=np.float32), 4, 1, 1, post_processor)
    assert found.indices.tolist() == indices
    assert found.data.tolist() == values


def test_what_would_be_read_beyond_an_array_is_refused():
    rng = np.random.default_rng(2)
    stored, X = model(rng, [3, 9], 20, 0.5, 1.0, False), rows(rng, 50, 20, 0.5, False)
    for wrong in (20, -1, 2_000_000_000):
        outside = X.copy()
        outside.indices[-1] = wrong
        with pytest.raises(DataError, match="not between 0 and 19"):
            stored.predict(outside, 5, 2, 1, "l3-hinge")
    tree = tree_of_leaves(np.zeros(3, np.int32), 1, 2, np.arange(3), 3)
    with pytest.raises(UsageError, match="the tree has 3 pseudo-labels, this model 9"):
        stored.predict(X, 5, 2, 1, "l3-hinge", tree=tree)
    assert same(stored.predict(X, 5, 1 << 62, 1, "l3-hinge"), stored.predict(X, 5, 3, 1, "l3-hinge"))


def test_arrays_in_any_form():
    rng = np.random.default_rng(5)
    stored, X = model(rng, [3, 9], 20, 0.5, 1.0, False), rows(rng, 50, 20, 0.5, False)
    pairs = np.zeros(X.nnz, [("index", np.int32), ("value", np.float32)])
    pairs["index"], pairs["value"] = X.indices, X.data
    strided = csr_matrix((pairs["value"], pairs["index"], X.indptr), shape=X.shape)
    wide = csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)
    wide.indices, wide.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    fixed = X.copy()
    for part in (fixed.data, fixed.indices, fixed.indptr):
        part.flags.writeable = False
    wanted = by_pecos(stored, X, 5, 2, "l3-hinge")
    assert all(same(stored.predict(form, 5, 2, 2, "l3-hinge"), wanted) for form in (strided, wide, fixed))


def test_blocks_are_about_as_much_work_and_leave_out_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    levels = search_levels_of(model(rng, [4, 30], 20, 0.5, 1.0, False))
    indptr = np.concatenate([[0], np.cumsum(np.repeat([1, 900], 500))])
    blocks = beam_search._blocks(levels, indptr, 10, 2)
    assert [(block.start, block.stop) for block in blocks[1:]] == [(blocks[0].stop, 1000)]
    done = [indptr[block.stop] - indptr[block.start] for block in blocks]
    assert max(done) < 1.05 * min(done)
    monkeypatch.setattr(beam_search, "ROWS_AT_ONCE", 7)
    for threads in (1, 2, 3, 2000):
        blocks = beam_search._blocks(levels, indptr, 10, threads)
        assert all(0 < block.stop - block.start <= 7 for block in blocks)
        assert [block.stop for block in blocks[:-1]] == [block.start for block in blocks[1:]]
        assert (blocks[0].start, blocks[-1].stop) == (0, 1000)
    assert beam_search._blocks(levels, np.zeros(1, np.int64), 10, 2) == [slice(0, 0)]


def test_a_label_without_a_cluster_is_never_found():
    C = csc_matrix((np.ones(2, np.float32), ([0, 2], [0, 0])), shape=(3, 1))
    level = SearchLevel.from_matrices(csc_matrix(np.ones((1, 3), np.float32)), C, -1.0)
    found = beam_search.search([level], csr_matrix(np.ones((1, 1), np.float32)), 3, 1, 1, "noop")
    assert found.indices.tolist() == [0, 2]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    nodes=st.integers(1, 120),
    few_values=st.booleans(),
    k=st.integers(1, 40),
    beam=st.integers(1, 8),
    post_processor=st.sampled_from(POST_PROCESSORS),
    mean=st.booleans(),
)
def test_labels_have_the_scores_of_their_copies(seed, nodes, few_values, k, beam, post_processor, mean):
    rng = np.random.default_rng(seed)
    stored = model(rng, [3, 10, nodes], 30, 0.2, 1.0, few_values)
    X = rows(rng, 12, 30, 0.3, few_values)
    label_of, labels = rng.integers(0, max(1, nodes // 2), nodes), nodes // 2 + 2
    levels = search_levels_of(stored)
    copies = LabelCopies.from_tree(label_of, labels, levels[-1])
    ours = beam_search.search(levels, X, k, beam, 1, post_processor, copies, mean)
    everything = beam_search.search(levels, X, nodes, beam, 1, post_processor)
    assert same(ours, scores_of_labels(everything, label_of, labels, k, nodes if mean else 1))


def test_a_copy_without_a_cluster_is_no_copy():
    rng = np.random.default_rng(5)
    W = csc_matrix(rng.normal(size=(6, 8)).astype(np.float32))
    C = csc_matrix((np.ones(7, np.float32), (np.arange(7), np.zeros(7, int))), shape=(8, 1))
    level = SearchLevel.from_matrices(W, C, -1.0)
    X = csr_matrix(rng.random((4, 6)).astype(np.float32))
    copies = LabelCopies.from_tree(np.asarray([0, 1, 2, 3, 0, 1, 2, 3]), 4, level)
    found = beam_search.search([level], X, 4, 1, 1, "l3-hinge", copies)
    expected = scores_of_labels(beam_search.search([level], X, 8, 1, 1, "l3-hinge"), copies.label_of, 4, 4, 8)
    assert same(found, expected)
