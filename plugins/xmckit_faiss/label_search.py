"""Search the labels of a run by text or label, and add new labels to a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import Context, DataError, Matrix, Model, Split, UsageError, find_run, load, make_context
from xmckit.components.indexes import named_index
from xmckit.data import reading
from xmckit.errors import nearest
from xmckit.protocols import ExtensibleHead, IndexedHead, offers
from xmckit.runs.extensions import Extension, is_extension, read_extension, write_extension
from xmckit_faiss.index import FaissIndex, FaissIndexer

if TYPE_CHECKING:
    from xmckit.runs import Run

# Up to this size, a run without an index gets one on the fly, in about ten seconds.
MOST_ENTRIES, MOST_LABELS = 30_000_000, 200_000
BACKGROUND = 4000  # training rows that a head gets together with the examples of new labels
USE = "faiss"


@dataclass
class SearchableRun:
    """A run, or a run with added labels, with everything that a search needs."""

    run: Run
    extension: Extension | None
    context: Context

    @classmethod
    def open(cls, name: str, root: Path) -> SearchableRun:
        path = Path(name)
        extension = read_extension(path) if is_extension(path) else None
        run = extension.run if extension is not None else find_run(name, root)
        return cls(run, extension, run.explain_missing(make_context()))

    @property
    def path(self) -> Path:
        return self.run.path if self.extension is None else self.extension.path

    @functools.cached_property
    def label_names(self) -> list[str]:
        names = self.run.label_names()
        return names if self.extension is None else [*names, *self.extension.labels]

    @functools.cached_property
    def model(self) -> Model:
        model = load(self.run)
        assert isinstance(model, Model)
        return model

    def index_names(self) -> list[str]:
        """Return the faiss indexes over input features; an index over a head's rows is empty without the head."""
        stages = [stage for stage in self.run.index_stages if stage.use == USE]
        return [stage.section for stage in stages if stage.identity["params"]["embeddings"] != "head"]

    @property
    def features_stage(self) -> str:
        """The stage that made the features of the index."""
        names = self.index_names()
        return self.run.features_stage(f"index-{names[0]}") if names else self.run.features_stage()

    def features(self, texts: Sequence[str]) -> Matrix:
        """Return the features of texts, as the index takes them."""
        featurizer = self.run.load_featurizer(self.features_stage, self.context)
        try:
            return featurizer.transform(Split(X=None, Y=csr_matrix((len(texts), 0)), texts=texts), context=self.context)
        except DataError as error:
            raise UsageError(f"this model cannot take texts: {error}") from None

    def index(self, say: Any) -> FaissIndex:
        """Load the index of the run, or build one from its training rows."""
        if self.extension is not None and self.extension.indexes:
            return self._load_index(self.extension.index_folder(self.extension.indexes[0]))
        if names := self.index_names():
            return self._load_index(self.run.index_folder(names[0]))
        X, Y = self.run.training_rows()
        entries = X.nnz if hasattr(X, "nnz") else X.size
        if entries > MOST_ENTRIES or Y.shape[1] > MOST_LABELS:
            raise UsageError(
                f"{self.run.path} has no faiss index, and its {X.shape[0]:,} training rows and {Y.shape[1]:,} labels "
                'are too many to build one now. Add this to the recipe and run it:\n\n[[index]]\nuse = "faiss"'
            )
        say('this run has no faiss index: embedding its labels now ([[index]] use = "faiss" keeps them)')
        return FaissIndexer(kind="flat").build(Split(X, Y), context=self.context)

    def _load_index(self, folder: Path) -> FaissIndex:
        index = self.context.load("indexer", USE, folder)
        assert isinstance(index, FaissIndex)
        return index


def nearest_labels(target: SearchableRun, query: str, k: int, how: str | None, say: Any) -> dict[str, Any]:
    """Return the labels nearest to `query`, which is a label if one has this name and `how` is not "text"."""
    names = target.label_names
    as_label = how == "label" or (how is None and query in names)
    if as_label:
        if query not in names:
            raise UsageError(f"{target.path} has no label '{query}'{nearest(query, names)}")
        label, index = names.index(query), target.index(say)
        embedding = index.embedding(label)
        if embedding is None:
            raise UsageError(f"label '{query}' has no embedding in the index: search for a text instead")
        labels, scores = index.most_similar(embedding, k + 1)
        others = labels != label
        labels, scores = labels[others][:k], scores[others][:k]
    else:
        X = _text_features(target, query, how)
        if not (X.nnz if hasattr(X, "nnz") else np.any(X)):
            raise UsageError(
                f"no word of {query!r} is among the run's features, and no label has this name{nearest(query, names)}"
            )
        index = target.index(say)
        labels, scores = index.most_similar(index.embed(X)[0], k)
    entries = [
        {"label": names[label], "cosine": round(float(score), 4)}
        for label, score in zip(labels.tolist(), scores.tolist(), strict=True)
    ]
    return {"run": str(target.path), "query": query, "as": "label" if as_label else "text", "labels": entries}


def _text_features(target: SearchableRun, query: str, how: str | None) -> Matrix:
    try:
        return target.features([query])
    except UsageError as error:
        if how == "text":
            raise
        close = nearest(query, target.label_names)
        raise UsageError(f"{target.path} has no label '{query}'{close}; for a search by text: {error}") from None


@dataclass(frozen=True)
class NewLabels:
    """Names of new labels, and texts; `Y` (texts × labels) says which label a text describes or exemplifies."""

    names: Sequence[str]
    texts: Sequence[str]
    Y: csr_matrix

    @classmethod
    def read(cls, path: Path, known: Sequence[str]) -> NewLabels:
        names: list[str] = []
        texts: list[str] = []
        columns: list[int] = []
        taken = set(known)
        for number, line in enumerate(reading.read_lines(path), start=1):
            if not line.strip():
                continue
            name, examples = _parse_line(line, path, number)
            if name in taken:
                raise DataError(f"label {name!r} exists already: only new labels can be added", path=path, line=number)
            taken.add(name)
            columns += [len(names)] * len(examples)
            names.append(name)
            texts += examples
        if not names:
            raise DataError(
                'no label in this file: expected lines like {"label": "name", "examples": ["text"]}', path=path
            )
        Y = csr_matrix((np.ones(len(texts), np.float32), (np.arange(len(texts)), columns)), (len(texts), len(names)))
        return cls(names, texts, Y)


def _parse_line(line: bytes, path: Path, number: int) -> tuple[str, list[str]]:
    """Return (name, texts) of a line, or raise DataError."""
    entry = reading.json_object(path, number, line)
    name, examples = entry.get("label"), entry.get("examples", [])
    if not isinstance(name, str) or not name.strip():
        raise DataError('expected a "label" with a name', path=path, line=number)
    if unknown := entry.keys() - {"label", "examples", "text"}:
        raise DataError(
            f"unknown key {sorted(unknown)[0]!r}: expected label, examples and text", path=path, line=number
        )
    texts = [*examples, *([entry["text"]] if "text" in entry else [])] if isinstance(examples, list) else None
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError('expected "examples", a list of texts, or a "text"', path=path, line=number)
    for string in (name, *texts):
        reading.check_encodable(string, path, number)
    return name, texts


def add_labels_to_run(
    target: SearchableRun, path: Path, output: Path, say: Any
) -> tuple[Extension, list[str], list[dict[str, Any]]]:
    """Write a folder with the heads and the index of a run, extended by the labels of the file `path`.

    Return (the folder, why heads refused the labels, the label counts of the heads' indexes).
    """
    if target.extension is not None:
        raise UsageError(f"{target.path} has added labels already: add all labels to {target.run.path} at once")
    labels = NewLabels.read(path, target.label_names)
    X, head_features = target.features(labels.texts), target.model.all_features(labels.texts)
    for features in (X, *head_features):
        _check_known_words(features, labels, path)
    index = target.index(say)
    heads, refusals = _extend_heads(target, X, head_features, labels, index)
    names = target.index_names()
    index.add_labels(X, labels.Y)
    count = len(target.label_names) + len(labels.names)
    head_indexes = [
        {"head": target.run.head_names[position], "index": name, "labels": known, "new": known == count}
        for position, head in heads.items()
        if offers(head, IndexedHead)
        for name, known in head.index_labels()
    ]
    indexes = {names[0] if names else USE: index}
    return write_extension(output, target.run, labels.names, heads, indexes), refusals, head_indexes


def _check_known_words(X: Matrix, labels: NewLabels, path: Path) -> None:
    """Raise DataError if no word of the texts of a label is among the features."""
    filled = np.asarray(abs(X).sum(axis=1)).ravel() > 0
    texts = np.asarray(labels.Y.T @ filled.astype(np.float32)).ravel()
    if len(empty := np.flatnonzero(texts == 0)):
        raise DataError(
            f"no text of label {labels.names[empty[0]]!r} has a word that is among the run's features, so no search "
            "would find it. Give it other examples",
            path=path,
        )


def _extend_heads(
    target: SearchableRun, X: Matrix, head_features: Sequence[Matrix], labels: NewLabels, index: FaissIndex
) -> tuple[dict[int, Any], list[str]]:
    """Return (heads with the new labels, by position; why heads refuse the labels). All heads take them or none.

    A head with indexes that cannot take the labels gets a further index with the new labels alone.
    """
    run = target.run
    stages = {run.features_stage(stage.name): stage.name for stage in run.head_stages}
    backgrounds = {features: _background(run, name, target.context) for features, name in stages.items()}
    heads, refusals = {}, []

    def index_of_new_labels(features: str) -> FaissIndex:
        if features != target.features_stage:
            raise UsageError(
                "its indexes cannot take new labels, and labels are searched by other features than this head sees: an "
                '[[index]] with use = "faiss" and its features would take them'
            )
        new_index: FaissIndex = named_index(index.of_new_labels(X, labels.Y), USE)
        return new_index

    for position, (stage, head) in enumerate(zip(run.head_stages, target.model.heads, strict=True)):
        name, features = stage.section, run.features_stage(stage.name)
        if not offers(head, ExtensibleHead):
            refusals.append(f"head {name} cannot take new labels: train it again with them")
            continue
        try:
            listed_by = functools.partial(index_of_new_labels, features)
            head.add_labels(head_features[position], labels.Y, backgrounds[features], listed_by=listed_by)
        except UsageError as error:
            refusals.append(f"head {name}: {error}")
            continue
        heads[position] = head
    return ({} if refusals else heads), refusals


def _background(run: Run, stage: str, context: Context) -> Split:
    """Return a sample of training rows with the features of a head."""
    rows, Y = run.training_rows(stage)
    chosen = np.sort(context.rng("rows beside new labels").permutation(Y.shape[0])[:BACKGROUND])
    return Split(rows[chosen], Y[chosen])
