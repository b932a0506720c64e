"""The indexer `faiss`: it lists the labels with the largest inner product, or cosine, of embedding and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix, issparse
from threadpoolctl import threadpool_limits

from xmckit import Configured, Context, DataError, Matrix, Params, Split, StorageError, UsageError, store
from xmckit.params import PARAMS
from xmckit_faiss import kinds, library
from xmckit_faiss.embeddings import Projection, fitted_projection, label_sums
from xmckit_faiss.kinds import Kind, Searcher, SearchSettings

FORMAT = 1
INDEX, ABOUT, PLACES = "index.faiss", "index.json", "labels.npz"
SAMPLE = 1000  # rows for which exact and approximate neighbours are compared
QUERIES_AT_ONCE = 1 << 14
MOST_REMOVED = 0.25  # share of removed labels above which the index is rebuilt
_WHY_NO_EMBEDDING = {
    "pifa": "no training row has them",
    "text": "the features know none of their words",
    "head": "their rows are zeros",
}


class FaissParams(Params):
    embeddings: Literal["pifa", "text", "head"] = Field(
        "pifa",
        description='What represents a label: "pifa" the sum of its training rows, "text" its name or text as '
        'featurized, "head" its row in the head, which the head provides while it trains.',
    )
    dim: int = Field(128, ge=1, le=4096, description="Number of dimensions to which wider rows are projected.")
    kind: Literal["auto", "flat", "ivf", "hnsw", "pq"] = Field(
        "auto",
        description='"flat" compares with all labels, "ivf" with the labels in the nearest lists, "hnsw" walks a '
        'graph, "pq" first compares short codes in the nearest lists; "auto" tries them if there are many labels.',
    )
    metric: Literal["inner", "cosine"] = Field("inner", description="The measure of nearness.")
    probes: int | None = Field(None, ge=1, description='Number of lists that "ivf" and "pq" search.')
    breadth: int | None = Field(None, ge=1, description='Number of candidates that "hnsw" keeps on its walk.')


class FaissIndex:
    """Label embeddings in a faiss index, by position; `label_at` holds the label at each position.

    Labels without an embedding (all zeros) are left out, because no query prefers them to other labels. An index in the
    head's space is empty until `rebuild` is called.
    """

    def __init__(self, params: FaissParams, projection: Projection | None, labels: int, workers: int, seed: int):
        self.params, self.projection, self.labels = params, projection, labels
        self.query_space: Literal["input", "head"] = "head" if params.embeddings == "head" else "input"
        self.label_at = np.empty(0, dtype=np.int32)
        self._searcher: Searcher | None = None
        self._on_gpus: Any = None
        self._alive = np.empty(0, dtype=bool)
        self._facts: dict[str, Any] = {}
        self._workers, self._seed = workers, seed

    # Searching

    def shortlist(self, Q: Matrix, k: int) -> csr_matrix:
        """Return up to `k` nearest labels of each row with their inner products or cosines."""
        labels, scores = self.nearest(self._queries(Q), k)
        rows, places = np.nonzero(labels >= 0)
        shape = (Q.shape[0], self.labels)
        indptr = np.searchsorted(rows, np.arange(Q.shape[0] + 1))
        return csr_matrix((scores[rows, places], labels[rows, places], indptr), shape=shape).sorted_indices()

    def nearest(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels, scores) for vectors in the space of the embeddings, best first, ties by label.

        Rows are padded with −1 and −inf. faiss decides, deterministically, which of several tied labels at the end of a
        row are left out.
        """
        if k < 1:
            raise UsageError(f"a shortlist needs k of at least 1, not {k}")
        self._require_searcher()
        vectors = self._check_vectors(vectors, "a query")
        if self.params.metric == "cosine":
            vectors = unit_rows(vectors)
        k = min(k, self.count)
        labels = np.full((len(vectors), k), -1, dtype=np.int32)
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        for start in range(0, len(vectors), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            labels[part], scores[part] = self._search(vectors[part], k)
        return labels, scores

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        removed = len(self._alive) - self.count
        deep = k + removed
        on = self._on_gpus if deep <= library.DEEPEST_ON_GPU else None
        scores, positions = self._require_searcher().search(vectors, deep, self._workers, on)
        gone = (positions < 0) | ~self._alive[np.maximum(positions, 0)]
        labels = np.where(gone, self.labels, self.label_at[np.maximum(positions, 0)])
        scores = np.where(gone, -np.inf, scores).astype(np.float32)
        order = np.lexsort((labels, -scores), axis=1)[:, :k]
        labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
        return np.where(labels == self.labels, -1, labels).astype(np.int32), scores

    def _queries(self, Q: Matrix) -> np.ndarray:
        if self.projection is not None:
            return self.projection.rows(Q)
        rows: Any = Q
        return np.asarray(rows.toarray() if issparse(Q) else rows, dtype=np.float32)

    def embed(self, X: Matrix) -> np.ndarray:
        """Project feature rows to the space of the embeddings."""
        if self.projection is None:
            raise UsageError("this index is in the head's space: features have to pass the head first")
        return self.projection.rows(X)

    def embedding(self, label: int) -> np.ndarray | None:
        """Return the stored embedding of a label, or None if the label is not in the index."""
        places = np.flatnonzero((self.label_at == label) & self._alive)
        return None if not len(places) else self._require_searcher().rows(places)[0]

    def most_similar(self, vector: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels, cosines) of the `k` labels with the largest cosine to one vector, by exact search."""
        (vector,) = unit_rows(self._check_vectors(vector[None], "a query"))
        cosines = unit_rows(self._require_searcher().all_rows()) @ vector
        places = np.flatnonzero(self._alive)
        best = places[np.lexsort((self.label_at[places], -cosines[places]))[:k]]
        return self.label_at[best], cosines[best]

    def _require_searcher(self) -> Searcher:
        if self._searcher is None:
            raise UsageError("this index is in the head's space and has no labels yet: pass its rows to `rebuild`")
        return self._searcher

    @property
    def count(self) -> int:
        """The number of labels that a search can return."""
        return int(self._alive.sum())

    @property
    def width(self) -> int:
        """The number of dimensions of an embedding."""
        return 0 if self._searcher is None else self._searcher.width

    def _check_vectors(self, vectors: np.ndarray, what: str) -> np.ndarray:
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or (self._searcher is not None and vectors.shape[1] != self.width):
            raise DataError(f"{what} needs {self.width} numbers, found an array of size {vectors.shape}")
        wrong = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(wrong):
            raise DataError(f"{what} has a value that is not a finite number", row=int(wrong[0]))
        return vectors

    # Building and changing

    def fill(self, embeddings: np.ndarray, queries: np.ndarray, log: Any = lambda message: None) -> None:
        """Build the index over one embedding per label; `queries` serve to choose and to measure its kind."""
        if embeddings.shape[0] != self.labels:
            raise DataError(f"expected the embeddings of {self.labels} labels, found {embeddings.shape[0]}")
        self._searcher = None
        embeddings = self._check_vectors(embeddings, "a label embedding")
        present = np.flatnonzero(embeddings.any(axis=1))
        if not len(present):
            raise DataError("no label has an embedding: no training row has both a label and a feature")
        kept = embeddings[present] if len(present) < self.labels else embeddings
        if self.params.metric == "cosine":
            kept, queries = unit_rows(kept), unit_rows(queries)
        self.label_at, self._alive = present.astype(np.int32), np.ones(len(present), dtype=bool)
        self._choose_kind(kept, queries[queries.any(axis=1)], log)
        self._copy_to_gpus()
        if missing := self.labels - len(present):
            self._facts["labels left out"] = missing
            why = _WHY_NO_EMBEDDING[self.params.embeddings]
            log(f"{missing:,} of {self.labels:,} labels have no embedding, because {why}: no search returns them")

    def _choose_kind(self, embeddings: np.ndarray, queries: np.ndarray, log: Any) -> None:
        labels, kind = len(embeddings), self.params.kind
        scan = Searcher.build(SearchSettings("flat"), embeddings, self._seed, self._workers)
        _, exact = scan.search(queries, min(labels, kinds.DEEP), self._workers)
        few = labels < (kinds.ENOUGH_TO_TRY if kind == "auto" else kinds.ENOUGH_FOR_CODES)
        if kind == "flat" or few or (kind == "auto" and not len(queries)):
            self._searcher = scan
            why = "as asked for" if kind == "flat" else f"with {labels:,} labels the exact scan is fast enough"
            self._facts = {"kind": "flat", "because": why}
        elif kind == "auto":
            self._searcher = self._try_all(embeddings, queries, exact) or scan
        else:
            self._searcher = Searcher.build(self._settings(kind, labels), embeddings, self._seed, self._workers)
            self._facts = {**self._searcher.settings.as_dict(), "because": "as asked for"}
            if len(queries):
                self._facts |= kinds.measure(self._searcher, queries, exact).as_dict()
        log(f"faiss index over {labels:,} labels: {self._searcher.settings} ({self._facts['because']})")

    def _settings(self, kind: Kind, labels: int) -> SearchSettings:
        settings = kinds.default_settings(kind, labels)
        if self.params.probes is not None and settings.lists:
            settings = replace(settings, probes=min(self.params.probes, settings.lists))
        if self.params.breadth is not None and settings.breadth:
            settings = replace(settings, breadth=self.params.breadth)
        return settings

    def _try_all(self, embeddings: np.ndarray, queries: np.ndarray, exact: np.ndarray) -> Searcher | None:
        """Return the index with the settings that pay off most, or None if none pays off."""
        best: kinds.Trial | None = None
        chosen: Searcher | None = None
        seen = []
        for trial, searcher in kinds.trials(embeddings, queries, exact, self._seed, self._workers):
            seen.append(trial.as_dict())
            if trial.worth[0] and (best is None or trial.worth > best.worth):
                best, chosen = trial, searcher
        if best is None or chosen is None:
            self._facts = {"kind": "flat", "because": f"none of {len(seen)} approximate settings is worth it"}
        else:
            chosen.tune(best.settings)
            self._facts = {**best.as_dict(), "because": f"the least work of {len(seen)} settings that were tried"}
        self._facts["tried"] = seen
        return chosen

    def _copy_to_gpus(self) -> None:
        self._on_gpus = None
        searcher = self._require_searcher()
        if library.gpus() and searcher.settings.kind in library.ON_GPU:
            self._on_gpus = library.call(lambda: library.on_all_gpus(searcher.index), "copying to GPUs")

    def rebuild(self, label_vectors: np.ndarray) -> None:
        """Replace all embeddings by the rows of a head (labels × d)."""
        if self.query_space != "head":
            raise UsageError('only an index over the rows of a head can be rebuilt: [index] embeddings = "head"')
        rows = np.asarray(label_vectors, dtype=np.float32)
        self.labels = len(rows)
        self.fill(rows, sample_rows(rows, self._seed))

    def add_labels(self, X: Matrix, Y: csr_matrix) -> None:
        """Append labels, computed from feature rows that have them (`Y`: rows × new labels)."""
        first = self.labels
        self.add(self._embeddings_from_rows(X, Y), np.arange(first, first + Y.shape[1]))

    def of_new_labels(self, X: Matrix, Y: csr_matrix) -> FaissIndex:
        """Return an index with only the labels that `add_labels` would append."""
        params = self.params.model_copy(update={"kind": "flat"})
        index = FaissIndex(params, self.projection, self.labels + Y.shape[1], self._workers, self._seed)
        embeddings, labels = self._embeddings_from_rows(X, Y), np.arange(self.labels, index.labels)
        _check_not_zero(embeddings, labels)
        kept = unit_rows(embeddings) if params.metric == "cosine" else embeddings
        index.label_at, index._alive = labels.astype(np.int32), np.ones(len(labels), dtype=bool)
        index._searcher = Searcher.build(SearchSettings("flat"), kept, self._seed, self._workers)
        index._facts = {"kind": "flat", "because": "it has only the labels that were added"}
        index._copy_to_gpus()
        return index

    def _embeddings_from_rows(self, X: Matrix, Y: csr_matrix) -> np.ndarray:
        if self.projection is None:
            raise UsageError("an index over the rows of a head takes new labels from the head: see `rebuild`")
        return label_sums(X, csr_matrix(Y, dtype=np.float32), self.projection)

    def add(self, embeddings: np.ndarray, labels: Sequence[int] | np.ndarray) -> None:
        """Add labels that are not in the index, without rebuilding it; numbers above the last one raise the count."""
        labels = np.asarray(labels, dtype=np.int64)
        searcher = self._require_searcher()
        embeddings = self._check_vectors(embeddings, "a label embedding")
        if len(labels) != len(embeddings) or (labels < 0).any() or len(np.unique(labels)) < len(labels):
            raise DataError(f"expected one label number for each of {len(embeddings)} embeddings, each number once")
        present = np.intersect1d(self.label_at[self._alive], labels)
        if len(present):
            raise DataError(f"label {int(present[0])} is in the index already: remove it first")
        _check_not_zero(embeddings, labels)
        if not len(labels):
            return
        if self.params.metric == "cosine":
            embeddings = unit_rows(embeddings)
        with threadpool_limits(self._workers):
            searcher.add(embeddings)
        self.label_at = np.concatenate([self.label_at, labels]).astype(np.int32)
        self._alive = np.concatenate([self._alive, np.ones(len(labels), dtype=bool)])
        self.labels = max(self.labels, int(labels.max()) + 1)
        self._copy_to_gpus()

    def remove(self, labels: Sequence[int] | np.ndarray) -> None:
        """Remove labels. The index is rebuilt only when more than a quarter of its labels is removed."""
        labels = np.unique(np.asarray(labels, dtype=np.int64))
        doomed = self._alive & np.isin(self.label_at, labels)
        if doomed.sum() < len(labels):
            missing = np.setdiff1d(labels, self.label_at[self._alive])
            raise DataError(f"label {int(missing[0])} is not in the index")
        if doomed.sum() == self.count:
            raise UsageError("an index needs at least one label")
        self._alive = self._alive & ~doomed
        if 1 - self.count / len(self._alive) > MOST_REMOVED:
            self._compact()

    def _compact(self) -> None:
        kept = np.flatnonzero(self._alive)
        searcher = self._require_searcher()
        embeddings = searcher.rows(kept)
        self.label_at, self._alive = self.label_at[kept], np.ones(len(kept), dtype=bool)
        lists = min(searcher.settings.lists, kinds.lists_for(len(kept)))
        settings = replace(searcher.settings, lists=lists, probes=min(searcher.settings.probes, lists))
        self._searcher = Searcher.build(settings, embeddings, self._seed, self._workers)
        self._copy_to_gpus()

    # Facts and storage

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the index, by name."""
        where = f"{library.gpus()} GPUs" if self._on_gpus is not None else "CPU"
        facts = {name: value for name, value in self._facts.items() if name != "tried"}
        return {"labels": self.count, "dimensions": self.width, "searched on": where, **facts}

    def add_fact(self, name: str, value: Any) -> None:
        """Add a fact that is stored with the index."""
        self._facts[name] = value

    def save(self, folder: Path) -> None:
        store.write_json(folder / PARAMS, self.params.model_dump(mode="json"))
        if self.projection is not None:
            self.projection.save(folder)
        about: dict[str, Any] = {
            "format": FORMAT,
            "labels": self.labels,
            "seed": self._seed,
            "told": self._facts,
        }
        if self._searcher is not None:
            store.write_arrays(folder / PLACES, {"label_at": self.label_at, "alive": self._alive})
            about |= {name: getattr(self._searcher, name) for name in ("width", "radius")}
            about["settings"] = asdict(self._searcher.settings)
            about["file"] = library.write(folder / INDEX, self._searcher.index)
        store.write_json(folder / ABOUT, about)

    @classmethod
    def load(cls, folder: Path, params: FaissParams, workers: int) -> FaissIndex:
        about = _read_about(folder / ABOUT)
        projection = None if params.embeddings == "head" else Projection.load(folder)
        index = cls(params, projection, about["labels"], workers, about["seed"])
        index._facts = about["told"]
        if "file" in about:
            index._restore(folder, about)
        return index

    def _restore(self, folder: Path, about: dict[str, Any]) -> None:
        index = library.read(folder / INDEX, about["file"])
        searcher = Searcher(SearchSettings(**about["settings"]), index, about["width"], float(about["radius"]))
        places = store.read_arrays(folder / PLACES, "label_at", "alive")
        self.label_at, self._alive = places["label_at"], places["alive"]
        if not len(self.label_at) == len(self._alive) == index.ntotal or self._alive.dtype != bool:
            raise store.damaged(folder / PLACES, f"expected the labels of {index.ntotal} embeddings")
        if (self.label_at < 0).any() or (self.label_at >= self.labels).any():
            raise store.damaged(folder / PLACES, f"expected numbers of {self.labels} labels")
        wanted = searcher.width if self.projection is None else self.projection.width
        if searcher.width != wanted or index.d < wanted:
            raise store.damaged(folder / INDEX, f"expected embeddings of {wanted} numbers")
        searcher.tune(searcher.settings)
        self._searcher = searcher
        self._copy_to_gpus()


class FaissIndexer(Configured):
    """Build a faiss index over label embeddings."""

    Params: ClassVar[type[Params]] = FaissParams
    provides: ClassVar[frozenset[str]] = frozenset({"shortlist", "rebuild"})

    def build(self, train: Split, *, context: Context) -> FaissIndex:
        seed = context.seed_for("faiss")
        if self.params.embeddings == "head":
            return FaissIndex(self.params, None, train.labels, context.workers, seed)
        X, Y = train.matrix, csr_matrix(train.Y, dtype=np.float32)
        with context.progress("embedding labels"):
            projection = fitted_projection(X, Y, self.params.dim, context)
            embeddings = self._embeddings(X, Y, projection, context)
        index = FaissIndex(self.params, projection, train.labels, context.workers, seed)
        held = context.validation if context.validation is not None else train
        rows = np.sort(context.rng("queries").permutation(held.rows)[:SAMPLE])
        with context.progress("building the index"):
            index.fill(embeddings, projection.rows(held.matrix[rows]), context.log)
        if context.validation is not None:
            share = true_labels_found(index, held.matrix[rows], held.Y[rows])
            index.add_fact(f"true labels of validation rows among the first {kinds.DEEP}", share)
        return index

    def _embeddings(self, X: Matrix, Y: csr_matrix, projection: Projection, context: Context) -> np.ndarray:
        if self.params.embeddings == "pifa":
            return label_sums(X, Y, projection)
        rows = context.label_rows()
        if rows is None:
            raise DataError(
                'embeddings = "text" needs labels with names and a featurizer of texts, or label features as wide as '
                'the rows\': use embeddings = "pifa", or add these to the data'
            )
        return projection.rows(rows)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Any:
        params = super().load(folder, context=context).params
        return FaissIndex.load(folder, params, context.workers)


def true_labels_found(index: FaissIndex, X: Matrix, Y: csr_matrix) -> float:
    """Return the share of the rows' labels that are on shortlists of 100."""
    shortlists = index.shortlist(X, kinds.DEEP)
    shortlists.data = np.ones_like(shortlists.data)
    return round(float(shortlists.multiply(Y != 0).sum() / max(1, Y.nnz)), 4)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; rows of zeros stay."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], dtype=np.float32)


def _check_not_zero(embeddings: np.ndarray, labels: np.ndarray) -> None:
    if len(zero := np.flatnonzero(~embeddings.any(axis=1))):
        raise DataError(f"the embedding of label {int(labels[zero[0]])} has only zeros, so no search would find it")


def sample_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """Return a random sample of the rows, in their order."""
    return rows[np.sort(np.random.default_rng(seed).permutation(len(rows))[:SAMPLE])]


def _read_about(path: Path) -> dict[str, Any]:
    about = store.read_json(path)
    if not isinstance(about, dict) or "format" not in about:
        raise store.damaged(path, "no format")
    if about["format"] != FORMAT:
        raise StorageError(
            f"{path} was written in index format {about['format']} and this xmckit_faiss reads format {FORMAT}. "
            "Run the recipe again, or use the version of xmckit that made it."
        )
    numbers = all(type(about.get(name)) is int and about[name] >= 0 for name in ("labels", "seed"))
    if not numbers or not isinstance(about.get("told"), dict):
        raise store.damaged(path, "expected labels, seed and told")
    if "file" in about:
        _check_settings(path, about)
    return about


def _check_settings(path: Path, about: dict[str, Any]) -> None:
    settings, known = about.get("settings"), {"kind", "lists", "probes", "breadth"}
    if not isinstance(settings, dict) or settings.keys() != known or settings["kind"] not in kinds.COSTS:
        raise store.damaged(path, f"expected settings with {', '.join(sorted(known))}")
    sizes = [about.get("width"), *(settings[name] for name in sorted(known - {"kind"}))]
    if not all(type(size) is int and size >= 0 for size in sizes) or type(about.get("radius")) not in (int, float):
        raise store.damaged(path, "expected sizes as whole numbers and a radius")
    if not isinstance(about["file"], dict):
        raise store.damaged(path, "expected the checksum of the index")
