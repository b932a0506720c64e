"""A forged index, with the right checksum, is refused before faiss searches it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from faiss_problems import CONTEXT, planted

from xmckit import StorageError
from xmckit.store import file_sha256

faiss = pytest.importorskip("faiss", reason='faiss is not installed: pip install "xmckit[cpu]"')

from xmckit_faiss import library  # noqa: E402
from xmckit_faiss.index import FaissIndexer  # noqa: E402
from xmckit_faiss.kinds import Searcher, default_settings  # noqa: E402


def searcher(kind: str) -> Searcher:
    rows = np.random.default_rng(0).standard_normal((60, 7)).astype(np.float32)
    return Searcher.build(default_settings(kind, len(rows)), rows, 0, 1)


def _links(index, change) -> None:
    links = faiss.vector_to_array(index.hnsw.neighbors)
    faiss.copy_array_to_vector(change(links), index.hnsw.neighbors)


def _set(part, name, value) -> None:
    setattr(part, name, value)


def coarse(index):
    return faiss.downcast_index(index.base_index)


CHANGES = {
    "a link": ("hnsw", lambda index: _links(index, lambda links: np.where(links >= 0, 10**6, links)), "leads nowhere"),
    "too few links": ("hnsw", lambda index: _links(index, lambda links: links[:-1]), "do not belong"),
    "an entry": ("hnsw", lambda index: _set(index.hnsw, "entry_point", 60), "entry"),
    "a level": ("hnsw", lambda index: _set(index.hnsw, "max_level", 9), "level"),
    "codes": ("pq", lambda index: _set(coarse(index), "bbs", 64), "bbs is 64"),
    "a factor": ("pq", lambda index: _set(index, "k_factor", 1e9), "k_factor"),
    "no training": ("ivf", lambda index: _set(index, "is_trained", False), "not trained"),
    "a metric": ("ivf", lambda index: _set(index, "metric_type", faiss.METRIC_L2), "metric_type"),
    "a total": ("ivf", lambda index: _set(index, "ntotal", 61), "expected 61"),
    "vectors": ("flat", lambda index: _set(index, "ntotal", 61), "do not make 61"),
}


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "pq"])
def test_a_stored_index_of_each_kind_passes(kind):
    built = searcher(kind)
    read = faiss.deserialize_index(faiss.serialize_index(built.index))
    Searcher(built.settings, read, built.width, built.radius).check()


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_index_is_refused(change):
    kind, make, why = CHANGES[change]
    built = searcher(kind)
    make(built.index)
    with pytest.raises(ValueError, match=why):
        built.check()


def test_the_error_of_a_forged_file_names_it(tmp_path):
    FaissIndexer(dim=8, kind="hnsw").build(planted(), context=CONTEXT).save(tmp_path)
    about = json.loads((tmp_path / "index.json").read_text())
    index = library.read(tmp_path / "index.faiss", about["file"])
    _links(index, lambda links: np.where(links >= 0, 0, links))  # these exist, but not on all levels
    about["file"] = library.write(tmp_path / "index.faiss", index)
    about["settings"]["kind"] = "flat"
    (tmp_path / "index.json").write_text(json.dumps(about))
    with pytest.raises(StorageError, match=r"index\.faiss: this file is damaged"):
        FaissIndexer.load(tmp_path, context=CONTEXT)


def test_a_claimed_size_is_not_allocated(tmp_path):
    path = tmp_path / "index.faiss"
    library.write(path, searcher("flat").index)
    content = bytearray(path.read_bytes())
    content[-60 * 7 * 4 - 8 : -60 * 7 * 4] = (1 << 33).to_bytes(8, "little")  # the number of floats that follow
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"index\.faiss"):
        library.read(path, {"sha256": file_sha256(path)})
