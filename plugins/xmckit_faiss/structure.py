"""Check an index that faiss read from a file, before faiss searches it.

faiss compares few of the numbers of a file with each other, and its searches trust all of them: a wrong one ends the
process. So an index must have the parts and settings that a new one of its kind has, and every position that it stores
must exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from xmckit_faiss.library import faiss

# Parts of an index, and settings of it and of its parts, that do not depend on the embeddings.
_PARTS = ("quantizer", "pq", "invlists", "hnsw", "storage", "base_index", "refine_index")
_SETTINGS = (
    "d", "metric_type", "metric_arg", "code_size", "by_residual", "nlist", "M", "M2", "ksub", "dsub", "nbits", "bbs",
    "qbs", "qbs2", "implem", "skip", "n_per_block", "block_size", "parallel_mode", "max_codes", "is_similarity",
    "search_method", "use_precomputed_table", "k_factor",
)  # fmt: skip


def check_structure(index: Any, empty: Any) -> None:
    """Raise ValueError unless `index` is of the kind of `empty`, a new index, and consistent."""
    # The arguments own the memory of the objects below.
    index_, empty_ = _downcast(index), _downcast(empty)
    if (found := _kind(index_)) != (expected := _kind(empty_)):
        raise ValueError(f"it holds a {found}, expected a {expected}")
    for name in _SETTINGS:
        if hasattr(empty_, name) and getattr(index_, name) != getattr(empty_, name):
            raise ValueError(f"{name} is {getattr(index_, name)}, expected {getattr(empty_, name)}")
    for name in _PARTS:
        if getattr(empty_, name, None) is not None:
            if getattr(index_, name) is None:
                raise ValueError(f"it has no {name}")
            check_structure(getattr(index_, name), getattr(empty_, name))
    _check_content(index_)


def _check_content(index: Any) -> None:
    if isinstance(index, faiss.Index) and not index.is_trained:
        raise ValueError("it is not trained")
    if isinstance(index, faiss.IndexFlat):
        _check_vectors(index)
    if isinstance(index, faiss.IndexIVF):
        _check_lists(index)
    if isinstance(index, faiss.IndexHNSW):
        _check_graph(index)
    if (
        isinstance(index, faiss.IndexRefine)
        and not index.ntotal == index.base_index.ntotal == index.refine_index.ntotal
    ):
        raise ValueError("its parts have different numbers of embeddings")


def _downcast(part: Any) -> Any:
    if isinstance(part, faiss.Index):
        return faiss.downcast_index(part)
    return faiss.downcast_InvertedLists(part) if isinstance(part, faiss.InvertedLists) else part


def _kind(part: Any) -> str:
    """Return the name of the class; after reading, faiss names the flat ones by their metric."""
    name = type(part).__name__
    return "IndexFlat" if name in ("IndexFlatIP", "IndexFlatL2") else name


def _check_vectors(index: Any) -> None:
    if index.codes.size() != index.ntotal * index.code_size:
        raise ValueError(f"{index.codes.size()} bytes do not make {index.ntotal} embeddings")
    if index.ntotal and not np.isfinite(faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)).all():
        raise ValueError("an embedding has a value that is not a finite number")


def _check_lists(index: Any) -> None:
    lists = _downcast(index.invlists)
    sizes = [lists.list_size(number) for number in range(index.nlist)]
    if index.quantizer.ntotal != index.nlist or sum(sizes) != index.ntotal:
        raise ValueError(f"{index.quantizer.ntotal} lists have {sum(sizes)} embeddings, expected {index.ntotal}")
    positions = [np.empty(0, np.int64)]
    positions += [faiss.rev_swig_ptr(lists.get_ids(number), size).copy() for number, size in enumerate(sizes) if size]
    if not np.array_equal(np.sort(np.concatenate(positions)), np.arange(index.ntotal)):
        raise ValueError("the lists do not hold each embedding once")
    if hasattr(index, "pq") and not np.isfinite(faiss.vector_to_array(index.pq.centroids)).all():
        raise ValueError("a code stands for a value that is not a finite number")


def _check_graph(index: Any) -> None:
    graph, count = index.hnsw, index.ntotal
    levels, offsets, neighbours = (
        faiss.vector_to_array(vector) for vector in (graph.levels, graph.offsets, graph.neighbors)
    )
    links = faiss.vector_to_array(graph.cum_nneighbor_per_level)
    if index.storage.ntotal != count or levels.shape != (count,) or offsets.shape != (count + 1,) or not count:
        raise ValueError(f"its graph is not one of {count} embeddings")
    if levels.min() < 1 or levels.max() >= len(links) or graph.max_level != levels.max() - 1 or links[0]:
        raise ValueError("a level of its graph does not exist")
    if not 0 <= graph.entry_point < count or levels[graph.entry_point] != levels.max():
        raise ValueError("the entry to its graph does not exist")
    ends = np.concatenate([[0], np.cumsum(links[levels], dtype=np.int64)])
    if (np.diff(links) < 0).any() or not np.array_equal(offsets, ends) or len(neighbours) != ends[-1]:
        raise ValueError("the links of its graph do not belong to its embeddings")
    if len(neighbours) and not -1 <= neighbours.min() <= neighbours.max() < count:
        raise ValueError("a link of its graph leads nowhere")
    # A link on an upper level must lead to an embedding that has this level.
    for level in range(1, int(levels.max())):
        nodes = np.flatnonzero(levels > level)
        places = offsets[nodes, None].astype(np.int64) + np.arange(links[level], links[level + 1])
        linked = neighbours[places]
        if (levels[linked[linked >= 0]] <= level).any():
            raise ValueError("a link of its graph leads to a level that does not exist")
