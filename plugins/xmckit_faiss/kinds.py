"""The kinds of index, their costs, and the choice between them.

An approximate index pays off if it finds 90 % of the first 100 labels of the exact scan with at most a third of its
work, or 90 % of the first 10 with at most an eighth. Work is counted, not timed, so that the choice is reproducible: it
is the number of embeddings that are compared with a query, weighted by the cost of a comparison relative to the exact
scan, as measured by benchmarks/shortlists/label_search.py.

Approximate kinds search for neighbours, but a long embedding far away often has the largest inner product. They
therefore extend each embedding by one number, √(r² − |x|²), where r is the length of the longest embedding; a query is
extended by 0. Inner products do not change and all embeddings have the same length, so the nearest embedding is the one
with the largest inner product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from xmckit_faiss import library
from xmckit_faiss.library import faiss
from xmckit_faiss.structure import check_structure

Kind = Literal["flat", "ivf", "hnsw", "pq"]
ENOUGH_TO_TRY = 50_000  # labels below which the exact scan is fast enough
ENOUGH_FOR_CODES = 16  # fewest labels for the codes of "pq"
DEEP, SHALLOW = 100, 10
RECALL, DEEP_GAIN, SHALLOW_GAIN = 0.90, 3.0, 8.0
# The cost of a comparison relative to one of the exact scan, which is a matrix product.
COSTS: dict[str, float] = {"flat": 1.0, "ivf": 9.0, "hnsw": 100.0, "pq": 5.0}
KEPT = 60.0  # the relative cost of keeping one label among the best
LINKS, EFFORT = 16, 64  # in the graph: neighbours of a label, and candidates examined to find them
REFINED = 16  # labels that "pq" compares exactly for each label that it returns
LARGEST = 1 << 20  # most inverted lists; more than 2 √labels of all labels that int32 can number
PROBES = (4, 8, 16, 32, 64, 128)
BREADTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class SearchSettings:
    """A kind of index with its number of inverted lists, of lists that a query probes, and breadth of a graph walk."""

    kind: Kind
    lists: int = 0
    probes: int = 0
    breadth: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" if name != "kind" else value for name, value in self.as_dict().items())


@dataclass(frozen=True)
class Trial:
    """The recall of settings against the exact scan, and `gain`: the work of the exact scan over their work."""

    settings: SearchSettings
    recall: dict[int, float]
    gain: float

    @property
    def worth(self) -> tuple[int, float]:
        """Return (2 if long shortlists pay off, 1 if only short ones do, otherwise 0; gain)."""
        deep, shallow = self.recall.get(DEEP, 0.0), self.recall.get(SHALLOW, 0.0)
        if deep >= RECALL and self.gain >= DEEP_GAIN:
            return 2, self.gain
        return int(shallow >= RECALL and self.gain >= SHALLOW_GAIN), self.gain

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.settings.as_dict(),
            **{f"recall@{k}": round(value, 4) for k, value in self.recall.items()},
            "work of the exact scan / its own": round(self.gain, 2),
        }


def default_settings(kind: Kind, labels: int) -> SearchSettings:
    if kind in ("ivf", "pq"):
        # about 2 √labels, with at least 39 labels in a list, as k-means requires
        lists = max(1, min(round(2 * np.sqrt(labels)), labels // 39))
        return SearchSettings(kind, lists=lists, probes=min(lists, 32))
    return SearchSettings(kind, breadth=256) if kind == "hnsw" else SearchSettings(kind)


@dataclass
class Searcher:
    """A faiss index over embeddings, by position, for inner products; the module docstring explains `radius`."""

    settings: SearchSettings
    index: Any
    width: int
    radius: float

    @classmethod
    def build(cls, settings: SearchSettings, embeddings: np.ndarray, seed: int, workers: int) -> Searcher:
        radius = float(np.sqrt(np.einsum("ij,ij->i", embeddings, embeddings).max()))
        with threadpool_limits(workers):
            searcher = cls(settings, None, embeddings.shape[1], radius)
            what = f"building a {settings.kind} index"
            searcher.index = library.call(lambda: _train_index(settings, searcher._lift(embeddings), seed), what)
            searcher.add(embeddings)
            searcher.tune(settings)
        return searcher

    def search(self, queries: np.ndarray, k: int, workers: int, on: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return (scores, positions) of the `k` best of each query, padded with −1; `on` is a copy on GPUs."""
        queries = self._lift_queries(queries)
        return library.search(self.index, queries, k, workers) if on is None else on.search(queries, k)

    def add(self, embeddings: np.ndarray) -> None:
        """Append embeddings at the next positions."""
        # Links of a graph depend on the order of insertion, which is random with several threads.
        with threadpool_limits(1 if self.settings.kind == "hnsw" else None):
            library.call(lambda: self.index.add(self._lift(embeddings)), "adding labels")

    def _lift(self, embeddings: np.ndarray) -> np.ndarray:
        """Extend embeddings as the module docstring says, to an even width, which codes require."""
        if self.settings.kind == "flat":
            return embeddings
        room = self.radius**2 - np.einsum("ij,ij->i", embeddings, embeddings)
        more = np.zeros((len(embeddings), 1 + (self.width + 1) % 2), np.float32)
        more[:, 0] = np.sqrt(np.maximum(room, 0))
        return np.hstack([embeddings, more])

    def _lift_queries(self, queries: np.ndarray) -> np.ndarray:
        return np.hstack([queries, np.zeros((len(queries), self.index.d - self.width), np.float32)])

    def check(self) -> None:
        """Raise ValueError unless the index, which was read from a file, is one that `build` could have made."""
        lifted = self.width if self.settings.kind == "flat" else self.width + 1 + (self.width + 1) % 2
        if self.index.d != lifted or (self.settings.kind in ("ivf", "pq") and not 0 < self.settings.lists <= LARGEST):
            raise ValueError(f"its embeddings have {self.index.d} numbers, expected {lifted}")
        empty = new_index(self.settings, lifted)
        check_structure(self.index, refine(empty) if self.settings.kind == "pq" else empty)

    def row(self, position: int) -> np.ndarray:
        """Return the embedding at a position."""
        return np.asarray(self.index.reconstruct(position)[: self.width])

    def all_rows(self) -> np.ndarray:
        """Return all embeddings, by position."""
        rows = self.index.reconstruct_n(0, self.index.ntotal)[:, : self.width]
        return np.asarray(rows, dtype=np.float32)

    def tune(self, settings: SearchSettings) -> None:
        """Apply settings to later searches; faiss's file does not store all of them.

        faiss allocates for each probe and each candidate, so there are no more of them than lists and embeddings.
        """
        self.settings = settings
        probes = min(settings.probes, settings.lists)
        if settings.kind == "ivf":
            self.index.nprobe = probes
            self.index.make_direct_map()  # needed to read embeddings back
        elif settings.kind == "pq":
            self.coarse.nprobe = probes
        elif settings.kind == "hnsw":
            self.index.hnsw.efSearch = min(settings.breadth, max(self.index.ntotal, 1))

    @property
    def coarse(self) -> Any:
        """The index over codes of an index of kind "pq"."""
        return faiss.downcast_index(self.index.base_index)

    def count_comparisons(self, queries: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """Return (average number of embeddings compared with a query, positions found)."""
        kind = self.settings.kind
        statistics = faiss.cvar.hnsw_stats if kind == "hnsw" else faiss.cvar.indexIVF_stats
        statistics.reset()
        _, positions = self.search(queries, k, 1)  # the counters are not thread-safe
        if kind == "flat":
            return float(self.index.ntotal), positions
        # The scan of codes keeps no statistics.
        return (self._codes(queries) if kind == "pq" else statistics.ndis / len(queries)), positions

    def work(self, compared: float, k: int) -> float:
        """Return the cost of a search with `compared` comparisons, in comparisons of the exact scan."""
        kind = self.settings.kind
        if kind == "flat":
            return compared
        return compared * COSTS[kind] + self.settings.lists + KEPT * k * (REFINED if kind == "pq" else 1)

    def _codes(self, queries: np.ndarray) -> float:
        """Return the average number of embeddings in the lists that a query probes."""
        _, lists = self.coarse.quantizer.search(self._lift_queries(queries), self.coarse.nprobe)
        sizes = np.array([self.coarse.invlists.list_size(number) for number in range(self.coarse.nlist)] + [0])
        return float(sizes[lists].sum(axis=1).mean())


def new_index(settings: SearchSettings, width: int) -> Any:
    """Return an index of this kind that is neither trained nor filled; `width` is that of lifted embeddings."""
    inner = faiss.METRIC_INNER_PRODUCT
    if settings.kind == "flat":
        return faiss.IndexFlatIP(width)
    if settings.kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, LINKS, inner)
        index.hnsw.efConstruction = EFFORT
        return index
    quantizer = faiss.IndexFlatL2(width)
    if settings.kind == "ivf":
        index = faiss.IndexIVFFlat(quantizer, width, settings.lists, inner)
    else:
        index = faiss.IndexIVFPQFastScan(quantizer, width, settings.lists, width // 2, 4, inner)
    return index


def _train_index(settings: SearchSettings, lifted: np.ndarray, seed: int) -> Any:
    """Return a trained index of this kind without embeddings."""
    index = new_index(settings, lifted.shape[1])
    if settings.kind == "hnsw":
        index.hnsw.rng = faiss.RandomGenerator(seed % 2**31)
    elif settings.kind != "flat":
        _train_lists(index, lifted, seed)
    return refine(index) if settings.kind == "pq" else index


def refine(coarse: Any) -> Any:
    """Return an index that compares the best of an index over codes with the embeddings themselves."""
    index = faiss.IndexRefineFlat(coarse)
    index.k_factor = REFINED
    return index


def _train_lists(index: Any, lifted: np.ndarray, seed: int) -> None:
    """Train inverted lists by k-means, on GPUs if there are any."""
    index.cp.seed = seed % 2**31
    index.cp.spherical = False
    index.cp.min_points_per_centroid = 1  # no warning about few labels per list
    helper = faiss.index_cpu_to_all_gpus(faiss.IndexFlatL2(index.d)) if library.gpus() else None
    index.clustering_index = helper
    index.train(lifted)
    index.clustering_index = None


def recall_of(found: np.ndarray, exact: np.ndarray, k: int) -> float:
    """Return the share of the exact scan's first `k` that are among the first `k` found."""
    best, first = exact[:, :k], found[:, :k]
    hits = sum(len(np.intersect1d(a[a >= 0], b[b >= 0])) for a, b in zip(best, first, strict=True))
    return hits / max(1, int((best >= 0).sum()))


def measure(searcher: Searcher, queries: np.ndarray, exact: np.ndarray) -> Trial:
    """Measure recall and work of an index for queries with known best positions."""
    deepest = exact.shape[1]
    compared, positions = searcher.count_comparisons(queries, deepest)
    depths = [k for k in (SHALLOW, DEEP) if k <= deepest] or [deepest]
    recall = {k: recall_of(positions, exact, k) for k in depths}
    return Trial(searcher.settings, recall, searcher.index.ntotal / searcher.work(compared, deepest))


def variants(kind: Kind, labels: int) -> list[SearchSettings]:
    """Return the settings of a kind to try, fastest first; all of them search the same index."""
    start = default_settings(kind, labels)
    if kind == "hnsw":
        return [replace(start, breadth=breadth) for breadth in BREADTHS]
    return [replace(start, probes=probes) for probes in PROBES if probes <= start.lists]


def trials(
    embeddings: np.ndarray, queries: np.ndarray, exact: np.ndarray, seed: int, workers: int
) -> Iterator[tuple[Trial, Searcher]]:
    """Yield trials with their indexes. A graph takes long to build and comes only if nothing else pays off."""
    kinds: tuple[Kind, ...] = ("ivf", "pq", "hnsw")
    best = 0
    for kind in kinds:
        if kind == "hnsw" and best == 2:
            return
        settings = variants(kind, len(embeddings))
        searcher = Searcher.build(settings[0], embeddings, seed, workers)
        for one in settings:
            searcher.tune(one)
            trial = measure(searcher, queries, exact)
            best = max(best, trial.worth[0])
            yield trial, searcher
