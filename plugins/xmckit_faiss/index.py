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
from xmckit_faiss.embeddings import Projection, fit_projection, label_sums
from xmckit_faiss.kinds import Kind, Searcher, SearchSettings

FORMAT = 1
INDEX, ABOUT, PLACES = "index.faiss", "index.json", "labels.npz"
SAMPLE = 1000  # rows for which exact and approximate neighbours are compared
QUERIES_AT_ONCE = 1 << 14
MOST_REMOVED = 0.25  # share of removed labels above which the index is rebuilt
_WHY_NO_EMBEDDING = {
    "pifa": "no training row has them",
    "text": "none of their words is among the features",
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
    """Label embeddings in a faiss index, by position; `label_at` holds the label at each position, −1 if removed.

    Labels without an embedding (all zeros) are left out, because no query prefers them to other labels. An index in the
    head's space is empty until `rebuild` is called.
    """

    def __init__(self, params: FaissParams, projection: Projection | None, labels: int, workers: int, seed: int):
        self.params, self.projection, self.labels = params, projection, labels
        self.query_space: Literal["input", "head"] = "head" if params.embeddings == "head" else "input"
        self.label_at = np.empty(0, dtype=np.int32)
        self._searcher: Searcher | None = None
        self._on_gpus: Any = None
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
        vectors = self._scale(self._check_vectors(vectors, "a query"))
        k = min(k, self.count)
        labels = np.full((len(vectors), k), -1, dtype=np.int32)
        scores = np.full((len(vectors), k), -np.inf, dtype=np.float32)
        for start in range(0, len(vectors), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            labels[part], scores[part] = self._search(vectors[part], k)
        return labels, scores

    def _search(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        deep = k + len(self.label_at) - self.count  # removed labels may be among the nearest
        on = self._on_gpus if deep <= library.DEEPEST_ON_GPU else None
        scores, positions = self._require_searcher().search(vectors, deep, self._workers, on)
        padding = (positions < 0) | (self.label_at[positions] < 0)
        labels = np.where(padding, self.labels, self.label_at[positions])
        scores = np.where(padding, -np.inf, scores).astype(np.float32)
        order = np.lexsort((labels, -scores), axis=1)[:, :k]
        labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
        return np.where(labels == self.labels, -1, labels).astype(np.int32), scores

    def embed(self, X: Matrix) -> np.ndarray:
        """Project feature rows to the space of the embeddings."""
        if self.projection is None:
            raise UsageError("this index is in the head's space: features have to pass the head first")
        return self.projection.rows(X)

    def _queries(self, Q: Matrix) -> np.ndarray:
        if self.projection is not None:
            return self.projection.rows(Q)
        rows: Any = Q
        return np.asarray(rows.toarray() if issparse(Q) else rows, dtype=np.float32)

    def _scale(self, vectors: np.ndarray) -> np.ndarray:
        return unit_rows(vectors) if self.params.metric == "cosine" else vectors

    def embedding(self, label: int) -> np.ndarray | None:
        """Return the stored embedding of a label, or None if the label is not in the index."""
        positions = np.flatnonzero(self.label_at == label)
        return None if not len(positions) else self._require_searcher().row(int(positions[0]))

    def most_similar(self, vector: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels, cosines) of the `k` labels with the largest cosine to one vector, by exact search."""
        (vector,) = unit_rows(self._check_vectors(vector[None], "a query"))
        cosines = unit_rows(self._require_searcher().all_rows()) @ vector
        present = np.flatnonzero(self.label_at >= 0)
        best = present[np.lexsort((self.label_at[present], -cosines[present]))[:k]]
        return self.label_at[best], cosines[best]

    def _require_searcher(self) -> Searcher:
        if self._searcher is None:
            raise UsageError("this index is in the head's space and has no labels yet: pass its rows to `rebuild`")
        return self._searcher

    @property
    def count(self) -> int:
        """The number of labels that a search can return."""
        return int(np.count_nonzero(self.label_at >= 0))

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
        self.label_at = present.astype(np.int32)
        self._choose_kind(self._scale(kept), self._scale(queries[queries.any(axis=1)]), log)
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
        chosen = np.sort(np.random.default_rng(self._seed).permutation(len(rows))[:SAMPLE])
        self.fill(rows, rows[chosen])

    def add_labels(self, X: Matrix, Y: csr_matrix) -> None:
        """Append labels, computed from feature rows that have them (`Y`: rows × new labels)."""
        labels, embeddings = self._embed_new_labels(X, Y)
        with threadpool_limits(self._workers):
            self._require_searcher().add(embeddings)
        self.label_at = np.concatenate([self.label_at, labels])
        self.labels += len(labels)
        self._copy_to_gpus()

    def of_new_labels(self, X: Matrix, Y: csr_matrix) -> FaissIndex:
        """Return an index with only the labels that `add_labels` would append."""
        labels, embeddings = self._embed_new_labels(X, Y)
        params = self.params.model_copy(update={"kind": "flat"})
        index = FaissIndex(params, self.projection, self.labels + len(labels), self._workers, self._seed)
        index.label_at = labels
        index._searcher = Searcher.build(SearchSettings("flat"), embeddings, self._seed, self._workers)
        index._facts = {"kind": "flat", "because": "it has only the labels that were added"}
        index._copy_to_gpus()
        return index

    def _embed_new_labels(self, X: Matrix, Y: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        """Return (numbers, embeddings) of the labels of `Y`."""
        if self.projection is None:
            raise UsageError("an index over the rows of a head takes new labels from the head: see `rebuild`")
        embeddings = self._check_vectors(label_sums(X, Y, self.projection), "a label embedding")
        labels = np.arange(self.labels, self.labels + len(embeddings), dtype=np.int32)
        if len(zero := np.flatnonzero(~embeddings.any(axis=1))):
            raise DataError(f"the embedding of label {labels[zero[0]]} has only zeros, so no search would find it")
        return labels, self._scale(embeddings)

    def remove(self, labels: Sequence[int] | np.ndarray) -> None:
        """Remove labels. The index is rebuilt only when more than a quarter of its labels is removed."""
        labels = np.unique(np.asarray(labels, dtype=np.int64))
        if len(missing := np.setdiff1d(labels, self.label_at[self.label_at >= 0])):
            raise DataError(f"label {int(missing[0])} is not in the index")
        if len(labels) == self.count:
            raise UsageError("an index needs at least one label")
        self.label_at = np.where(np.isin(self.label_at, labels), np.int32(-1), self.label_at)
        if self.count < (1 - MOST_REMOVED) * len(self.label_at):
            searcher = self._require_searcher()
            kept = np.flatnonzero(self.label_at >= 0)
            lists = min(searcher.settings.lists, kinds.default_settings(searcher.settings.kind, len(kept)).lists)
            settings = replace(searcher.settings, lists=lists, probes=min(searcher.settings.probes, lists))
            self.label_at = self.label_at[kept]
            self._searcher = Searcher.build(settings, searcher.all_rows()[kept], self._seed, self._workers)
            self._copy_to_gpus()

    # Facts and storage

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the index, by name."""
        where = f"{library.gpus()} GPUs" if self._on_gpus is not None else "CPU"
        facts = {name: value for name, value in self._facts.items() if name != "tried"}
        return {"labels": self.count, "dimensions": self.width, "searched on": where, **facts}

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
            present = self.label_at >= 0
            store.write_arrays(folder / PLACES, {"label_at": np.maximum(self.label_at, 0), "alive": present})
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
        try:
            searcher.check()
        except ValueError as error:
            raise store.damaged(folder / INDEX, str(error)) from None
        path, shape = folder / PLACES, (index.ntotal,)
        labels = store.read_array(path, "label_at", "i", shape, low=0, high=self.labels - 1)
        present = store.read_array(path, "alive", "b", shape)
        if not present.any():
            raise store.damaged(path, "expected a label that is alive")
        self.label_at = np.where(present, labels, -1).astype(np.int32)
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
            projection = fit_projection(X, Y, self.params.dim, context)
            embeddings = self._embeddings(X, Y, projection, context)
        index = FaissIndex(self.params, projection, train.labels, context.workers, seed)
        held = context.validation if context.validation is not None else train
        rows = np.sort(context.rng("queries").permutation(held.rows)[:SAMPLE])
        with context.progress("building the index"):
            index.fill(embeddings, projection.rows(held.matrix[rows]), context.log)
        if context.validation is not None:
            share = share_of_true_labels(index, held.matrix[rows], held.Y[rows])
            index._facts[f"true labels of validation rows among the first {kinds.DEEP}"] = share
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


def share_of_true_labels(index: FaissIndex, X: Matrix, Y: csr_matrix) -> float:
    """Return the share of the rows' labels that are on shortlists of 100."""
    shortlists = index.shortlist(X, kinds.DEEP)
    shortlists.data = np.ones_like(shortlists.data)
    return round(float(shortlists.multiply(Y != 0).sum() / max(1, Y.nnz)), 4)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; rows of zeros stay."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return np.asarray(rows / np.where(lengths > 0, lengths, 1)[:, None], dtype=np.float32)


def _read_about(path: Path) -> dict[str, Any]:
    about = store.read_json(path)
    if not isinstance(about, dict) or "format" not in about:
        raise store.damaged(path, "no format")
    if about["format"] != FORMAT:
        raise StorageError(
            f"{path} was written in index format {about['format']} and this xmckit_faiss reads format {FORMAT}. "
            "Run the recipe again, or use the version of xmckit that made it."
        )
    limits = {"labels": 2**31, "seed": 2**64}
    numbers = all(type(about.get(name)) is int and 0 <= about[name] < limit for name, limit in limits.items())
    if not numbers or not isinstance(about.get("told"), dict):
        raise store.damaged(path, "expected the number of labels, a seed and facts as `told`")
    if "file" in about:
        _check_settings(path, about)
    return about


def _check_settings(path: Path, about: dict[str, Any]) -> None:
    settings, known = about.get("settings"), {"kind", "lists", "probes", "breadth"}
    if not isinstance(settings, dict) or settings.keys() != known or settings["kind"] not in list(kinds.COSTS):
        raise store.damaged(path, f"expected settings with {', '.join(sorted(known))}")
    sizes = [about.get("width"), *(settings[name] for name in sorted(known - {"kind"}))]
    if not all(type(size) is int and 0 <= size < 2**31 for size in sizes):
        raise store.damaged(path, "expected sizes as whole numbers below 2³¹")
    if type(about.get("radius")) not in (int, float) or not 0 <= about["radius"] < float("inf"):
        raise store.damaged(path, "expected a radius of at least 0")
    if not isinstance(about["file"], dict):
        raise store.damaged(path, "expected the checksum of the index")
