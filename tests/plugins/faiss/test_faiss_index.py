"""Indexer `faiss` against brute force: kinds, metrics, changes, storage, bad input, GPUs that are not there."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from faiss_problems import CONTEXT, exact, planted
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit import DataError, PluginError, Split, StorageError, UsageError
from xmckit.store import file_sha256, write_arrays

faiss = pytest.importorskip("faiss", reason='faiss is not installed: pip install "xmckit[cpu]"')

from xmckit_faiss import kinds, library  # noqa: E402
from xmckit_faiss.embeddings import Projection, fit_projection, label_sums  # noqa: E402
from xmckit_faiss.index import FaissIndex, FaissIndexer, FaissParams, unit_rows  # noqa: E402

KINDS = ("flat", "ivf", "hnsw", "pq")


def filled(embeddings: np.ndarray, *, kind: str = "flat", metric: str = "inner", workers: int = 1) -> FaissIndex:
    """An index in head space, so that the vectors given are the embeddings."""
    index = FaissIndex(FaissParams(embeddings="head", kind=kind, metric=metric), None, len(embeddings), workers, 7)
    index.rebuild(embeddings)
    return index


def vectors(count: int, width: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, width)) * rng.uniform(0.2, 3, (count, 1))).astype(np.float32)


# -- embeddings


def test_embeddings_are_the_projected_sums_over_the_root_of_the_count():
    train = planted()
    projection = fit_projection(train.matrix, train.Y, 20, CONTEXT)
    Y, X = train.Y.toarray(), train.matrix.toarray()
    wanted = (Y.T @ X) / np.sqrt(np.maximum(Y.sum(axis=0), 1))[:, None] @ projection.columns
    np.testing.assert_allclose(label_sums(train.matrix, train.Y, projection), wanted, rtol=1e-4, atol=1e-4)


def test_the_projection_keeps_most_of_the_sums():
    train = planted()
    Y, X = train.Y.toarray(), train.matrix.toarray()
    sums = (Y.T @ X) / np.sqrt(np.maximum(Y.sum(axis=0), 1))[:, None]
    columns = fit_projection(train.matrix, train.Y, 20, CONTEXT).columns
    best = np.linalg.svd(sums)[1]
    assert np.linalg.norm(sums @ columns) >= 0.99 * np.sqrt((best[:20] ** 2).sum())


def test_narrow_rows_are_taken_as_they_are():
    train = planted()
    assert fit_projection(train.matrix, train.Y, 500, CONTEXT).columns is None


# -- searching


@pytest.mark.parametrize("metric", ["inner", "cosine"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_finds_what_brute_force_finds(kind, metric):
    embeddings, queries = vectors(900), vectors(40, seed=1)
    index = filled(embeddings, kind=kind, metric=metric)
    labels, scores = index.nearest(queries, 10)
    compared = (embeddings, queries) if metric == "inner" else (unit_rows(embeddings), unit_rows(queries))
    wanted = exact(*compared, 10)
    assert kinds.recall_of(labels, wanted, 10) >= (1.0 if kind == "flat" else 0.9)
    products = np.take_along_axis(compared[1] @ compared[0].T, labels, 1)
    np.testing.assert_allclose(scores, products, rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 1e-5).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_the_exact_scan_is_exact(labels, k, width, seed):
    embeddings, queries = vectors(labels, width, seed), vectors(3, width, seed + 1)
    found, scores = filled(embeddings).nearest(queries, k)
    wanted = np.sort(queries @ embeddings.T, axis=1)[:, ::-1][:, : min(k, labels)]
    assert all(len(set(row)) == min(k, labels) for row in found.tolist())
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-4)


def test_true_labels_are_on_the_shortlists_of_their_rows():
    train = planted()
    index = FaissIndexer(dim=32).build(train, context=CONTEXT.using(validation=train))
    found = index.shortlist(train.matrix, 10)
    assert found.shape == train.Y.shape
    assert found.has_sorted_indices
    assert (found != 0).multiply(train.Y).sum() >= 0.95 * train.Y.nnz
    assert index.facts()["true labels of validation rows among the first 100"] >= 0.95


def test_label_features_of_the_data_can_be_the_embeddings():
    train = planted()
    rows = csr_matrix(train.Y.T @ train.matrix)
    index = FaissIndexer(embeddings="text", dim=500).build(train, context=CONTEXT.using(label_rows=lambda: rows))
    np.testing.assert_allclose(index.embedding(3), rows[3].toarray()[0])
    with pytest.raises(DataError, match="needs labels with names"):
        FaissIndexer(embeddings="text").build(train, context=CONTEXT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 30, 3 * library.BLOCK + 5])
def test_the_number_of_threads_changes_nothing(kind, count):
    embeddings, queries = vectors(500), vectors(count, seed=1)
    one, *others = (filled(embeddings, kind=kind, workers=workers).nearest(queries, 7) for workers in (1, 2, 3))
    for other in others:
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


# -- the choice


def test_few_labels_are_scanned():
    assert filled(vectors(300), kind="auto").facts()["kind"] == "flat"


def test_the_choice_is_worth_it_or_the_exact_scan(monkeypatch):
    monkeypatch.setattr(kinds, "ENOUGH_TO_TRY", 100)
    facts = filled(vectors(800), kind="auto").facts()
    deep = facts.get("recall@100", 0) >= 0.9 and facts["work of the exact scan / its own"] >= 3
    shallow = facts.get("recall@10", 0) >= 0.9 and facts["work of the exact scan / its own"] >= 8
    assert facts["kind"] == "flat" or deep or shallow
    monkeypatch.setattr(kinds, "DEEP_GAIN", 1e9)
    monkeypatch.setattr(kinds, "SHALLOW_GAIN", 1e9)
    facts = filled(vectors(800), kind="auto").facts()
    assert facts["kind"] == "flat"
    assert "none of" in facts["because"]


@pytest.mark.parametrize(
    ("deep", "shallow", "gain", "worth"),
    [(0.9, 0.5, 3.0, 2), (0.89, 0.9, 8.0, 1), (0.89, 0.9, 7.9, 0), (0.95, 0.99, 2.9, 0)],
)
def test_the_rule(deep, shallow, gain, worth):
    assert kinds.Trial(kinds.SearchSettings("ivf"), {100: deep, 10: shallow}, gain).worth[0] == worth


def test_recall_is_stored_with_the_index(tmp_path):
    index = filled(vectors(900), kind="ivf")
    index.save(tmp_path)
    told = json.loads((tmp_path / "index.json").read_text())["told"]
    assert 0.5 < told["recall@10"] <= 1
    assert told["recall@10"] == index.facts()["recall@10"]


# -- adding and removing


def extensible(embeddings: np.ndarray, *, kind: str = "flat", metric: str = "inner") -> FaissIndex:
    """An index over rows that are not projected, so that a row with one label is the label's embedding."""
    index = FaissIndex(
        FaissParams(kind=kind, metric=metric), Projection(None, embeddings.shape[1]), len(embeddings), 1, 7
    )
    index.fill(embeddings, embeddings)
    return index


def one_label_each(rows: np.ndarray) -> csr_matrix:
    return csr_matrix(np.eye(len(rows), dtype=np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("metric", ["inner", "cosine"])
def test_labels_are_added_without_rebuilding(kind, metric):
    embeddings, more = vectors(600), 40 * unit_rows(vectors(3, seed=9))
    index = extensible(embeddings, kind=kind, metric=metric)
    alone = index.of_new_labels(more, one_label_each(more))
    index.add_labels(more, one_label_each(more))
    for one in (index, alone):
        assert one.nearest(more, 1)[0].ravel().tolist() == [600, 601, 602]
        assert one.labels == 603
        np.testing.assert_allclose(one.embedding(602), more[2] / (40 if metric == "cosine" else 1), rtol=1e-5)
    assert index.facts()["labels"] == 603
    assert alone.facts()["labels"] == 3
    assert alone.embedding(0) is None


def test_embeddings_that_cannot_be_added_are_refused():
    index = extensible(vectors(20))
    for rows, why in (
        (np.zeros((1, 12), np.float32), "the embedding of label 20 has only zeros"),
        (np.full((1, 12), np.nan, np.float32), "not a finite number"),
        (vectors(1, 5), "the rows have 5 features, this index was built for 12"),
    ):
        for add in (index.add_labels, index.of_new_labels):
            with pytest.raises(DataError, match=why):
                add(rows, one_label_each(rows))
    assert index.facts()["labels"] == index.labels == 20
    with pytest.raises(UsageError, match="takes new labels from the head"):
        filled(vectors(20)).add_labels(vectors(1), one_label_each(vectors(1)))


@pytest.mark.parametrize("kind", KINDS)
def test_removed_labels_are_not_found(kind):
    embeddings, more = vectors(600), 40 * unit_rows(vectors(3, seed=9))
    index = extensible(embeddings, kind=kind)
    index.add_labels(more, one_label_each(more))
    index.remove([601])
    found, _ = index.nearest(more, 50)
    assert 601 not in found
    assert (found >= 0).all()
    assert index.embedding(601) is None
    assert 601 not in index.most_similar(more[1], 602)[0]
    assert index.facts()["labels"] == 602


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_is_rebuilt_when_many_labels_are_removed(kind):
    embeddings, queries = vectors(800), vectors(20, seed=3)
    index = filled(embeddings, kind=kind)
    index.remove(np.arange(300))
    assert len(index.label_at) == 500
    wanted = exact(embeddings[300:], queries, 5) + 300
    assert kinds.recall_of(index.nearest(queries, 5)[0], wanted, 5) >= (1.0 if kind == "flat" else 0.85)


def test_labels_that_cannot_be_removed_are_named():
    index = filled(vectors(20))
    index.remove([5])
    for label in (77, -1, 5):
        with pytest.raises(DataError, match=f"label {label} is not in the index"):
            index.remove([label])
    with pytest.raises(UsageError, match="at least one label"):
        index.remove(np.delete(np.arange(20), 5))
    assert index.count == 19


# -- bad input


def test_duplicate_embeddings_are_all_found_lowest_label_first():
    embeddings = np.repeat(unit_rows(vectors(4)), 5, axis=0)
    found, _ = filled(embeddings).nearest(embeddings[:1], 5)
    assert found.tolist() == [[0, 1, 2, 3, 4]]
    for kind in KINDS:
        assert filled(np.ones((200, 6), np.float32), kind=kind).nearest(np.ones((1, 6), np.float32), 3)[0].min() >= 0


def test_labels_on_no_row_are_never_found():
    train, said = planted(), []
    index = FaissIndexer(metric="inner").build(train, context=CONTEXT.using(log=said.append))
    assert index.embedding(59) is None
    assert 59 not in index.shortlist(train.matrix, 60).indices
    assert any("1 of 60 labels have no embedding" in line for line in said)
    with pytest.raises(DataError, match="no label has an embedding"):
        FaissIndexer().build(Split(train.X, csr_matrix(train.Y.shape, dtype=np.float32)), context=CONTEXT)


def test_k_beyond_the_labels_gives_all_of_them():
    index = filled(vectors(5))
    assert index.nearest(vectors(2), 99)[0].shape == (2, 5)
    with pytest.raises(UsageError, match="at least 1"):
        index.nearest(vectors(2), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_label(kind):
    assert filled(vectors(1), kind=kind).nearest(vectors(3), 4)[0].tolist() == [[0], [0], [0]]


def test_no_rows_and_rows_of_zeros():
    index = filled(vectors(9), metric="cosine")
    assert index.shortlist(np.empty((0, 12), np.float32), 3).shape == (0, 9)
    assert index.shortlist(np.zeros((1, 12), np.float32), 3).nnz == 3


def test_nan_is_an_error_with_its_row():
    wrong = vectors(4)
    wrong[2, 1] = np.nan
    with pytest.raises(DataError, match="row 2"):
        filled(wrong)
    with pytest.raises(DataError, match="row 2"):
        filled(vectors(9)).nearest(wrong, 1)


def test_an_index_in_head_space_is_empty_at_first(tmp_path):
    index = FaissIndexer(embeddings="head").build(planted(), context=CONTEXT)
    with pytest.raises(UsageError, match="rebuild"):
        index.shortlist(vectors(1), 3)
    index.save(tmp_path)
    again = FaissIndexer.load(tmp_path, context=CONTEXT)
    again.rebuild(vectors(60))
    with pytest.raises(UsageError, match="features have to pass the head first"):
        again.embed(planted().matrix)
    assert again.shortlist(vectors(2), 3).nnz == 6
    with pytest.raises(UsageError, match="only an index over the rows of a head"):
        FaissIndexer().build(planted(), context=CONTEXT).rebuild(vectors(60))


# -- storage


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_is_what_was_saved(tmp_path, kind):
    train = planted(labels=300, rows=2000)
    index = FaissIndexer(kind=kind, dim=16).build(train, context=CONTEXT)
    index.remove([4])
    index.save(tmp_path)
    again = FaissIndexer.load(tmp_path, context=CONTEXT)
    one, two = (one.shortlist(train.matrix[:50], 9) for one in (index, again))
    assert (one != two).nnz == 0
    assert again.facts() == index.facts()
    again.add_labels(train.matrix[:2], csr_matrix(np.eye(2, dtype=np.float32)))
    assert again.labels == 302


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_damaged_file_is_noticed_before_faiss_reads_it(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    filled(vectors(30)).save(folder)
    path = folder / "index.faiss"
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    path.write_bytes(content)
    with pytest.raises(StorageError, match="checksum"):
        FaissIndexer.load(folder, context=CONTEXT)


def test_other_versions_and_missing_parts_are_named(tmp_path):
    filled(vectors(30)).save(tmp_path)
    about = json.loads((tmp_path / "index.json").read_text())
    for change, why in (
        ({"format": 9}, "index format 9"),
        ({"labels": 3}, "label_at holds values from 0 to 29, expected at least 0 and at most 2"),
        ({"labels": "x"}, "expected the number of labels, a seed and facts"),
        ({"settings": {}}, "expected settings"),
        ({"width": -1}, "whole numbers"),
        ({"width": 99}, "its embeddings have"),
    ):
        (tmp_path / "index.json").write_text(json.dumps({**about, **change}))
        with pytest.raises(StorageError, match=why):
            FaissIndexer.load(tmp_path, context=CONTEXT)
    (tmp_path / "index.json").write_text(json.dumps(about))
    places = {"label_at": np.arange(30, dtype=np.int32), "alive": np.arange(29) > 0}
    write_arrays(tmp_path / "labels.npz", places)
    with pytest.raises(StorageError, match="alive is bool of shape"):
        FaissIndexer.load(tmp_path, context=CONTEXT)
    (tmp_path / "index.faiss").unlink()
    with pytest.raises(StorageError, match="no such file"):
        FaissIndexer.load(tmp_path, context=CONTEXT)


def test_a_file_that_this_faiss_cannot_read_names_both_versions(tmp_path):
    path = tmp_path / "index.faiss"
    path.write_bytes(b"IxXXnot an index of any version")
    with pytest.raises(StorageError, match=r"written by faiss 99\.9"):
        library.read(path, {"sha256": file_sha256(path), "faiss": "99.9"})


def test_without_faiss_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['faiss'] = None\n"
        "from xmckit import make_context, PluginError\n"
        "try: make_context().resolve('indexer', 'faiss')\n"
        "except PluginError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "pip install 'xmckit[cpu]'" in done.stdout


# -- GPUs


def test_an_empty_copy_on_gpus_is_an_error(monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda index: faiss.IndexFlatIP(index.d))
    with pytest.raises(PluginError, match="0 of 50 label embeddings on 2 GPUs"):
        filled(vectors(50))


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_are_gpus_their_copy_answers(monkeypatch, kind):
    embeddings, queries = vectors(400), vectors(9, seed=1)
    wanted = filled(embeddings, kind=kind).nearest(queries, 5)
    copies = []

    def copy(index):
        copies.append(faiss.clone_index(index))
        return copies[-1]

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", copy)
    index = extensible(embeddings, kind=kind)
    assert index.facts()["searched on"] == ("2 GPUs" if kind in library.ON_GPU else "CPU")
    np.testing.assert_array_equal(index.nearest(queries, 5)[0], wanted[0])
    index.add_labels(40 * unit_rows(queries[:1]), one_label_each(queries[:1]))
    assert index.nearest(queries[:1], 1)[0].tolist() == [[400]]


def test_without_gpus_faiss_is_not_asked_for_copies(monkeypatch):
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    monkeypatch.setattr(faiss, "index_cpu_to_all_gpus", lambda index: pytest.fail("asked for a copy"))
    assert filled(vectors(50), kind="ivf").nearest(vectors(2), 3)[0].shape == (2, 3)


@pytest.mark.skipif(faiss.get_num_gpus() == 0, reason="there is no GPU here")
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_gpus_find_what_the_processor_finds(monkeypatch, kind):
    embeddings, queries = vectors(5000), vectors(50, seed=1)
    on_gpus = filled(embeddings, kind=kind)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    on_cpu = filled(embeddings, kind=kind)
    assert on_gpus.facts()["searched on"] != "CPU"
    assert kinds.recall_of(on_gpus.nearest(queries, 10)[0], on_cpu.nearest(queries, 10)[0], 10) >= 0.99
