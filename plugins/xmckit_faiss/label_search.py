"""The labels of a run that are nearest to a text or to another label, and new labels for a run."""

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
from xmckit.data.jsonl import json_object
from xmckit.data.saved import load_label_names
from xmckit.errors import nearest
from xmckit.runs.extensions import Extension, is_extension, read_extension, write_extension
from xmckit_faiss.index import FaissIndex, FaissIndexer

if TYPE_CHECKING:
    from xmckit.runs import Run

# A run without an index is given one on the spot up to this size: some ten seconds.
MOST_ENTRIES, MOST_LABELS = 30_000_000, 200_000
BACKGROUND = 4000  # training rows that a head sees beside the examples of new labels
USE = "faiss"


@dataclass
class SearchableRun:
    """A run, or a run with added labels, and what a search in it needs."""

    run: Run
    extension: Extension | None
    context: Context

    @classmethod
    def open(cls, name: str, root: Path) -> SearchableRun:
        path = Path(name)
        extension = read_extension(path) if is_extension(path) else None
        run = extension.run if extension is not None else find_run(name, root)
        return cls(run, extension, run.explaining(make_context()))

    @property
    def path(self) -> Path:
        return self.run.path if self.extension is None else self.extension.path

    @functools.cached_property
    def label_names(self) -> list[str]:
        names = load_label_names(self.run.stage_folder("data"))
        return names if self.extension is None else [*names, *self.extension.labels]

    @functools.cached_property
    def model(self) -> Model:
        model = load(self.run)
        assert isinstance(model, Model)
        return model

    def index_names(self) -> list[str]:
        """The faiss indexes of the run over input features; one over a head's rows is empty without the head."""
        names = []
        for stage in self.run.manifest["stages"]:
            name, identity = stage["name"], stage["identity"]
            if name.startswith("index-") and identity["use"] == USE and identity["params"]["embeddings"] != "head":
                names.append(name.removeprefix("index-"))
        return names

    @property
    def index_stage(self) -> str:
        """The stage whose features the index sees."""
        names = self.index_names()
        return f"index-{names[0]}" if names else "labels"

    def features(self, texts: Sequence[str]) -> Matrix:
        """Texts as the index sees them."""
        featurizer = self.run.load_featurizer(self.index_stage, self.context)
        try:
            return featurizer.transform(Split(X=None, Y=csr_matrix((len(texts), 0)), texts=texts), context=self.context)
        except DataError as error:
            raise UsageError(f"this model cannot take texts: {error}") from None

    def index(self, say: Any) -> FaissIndex:
        """The run's index, or one that is made now from its training rows."""
        if self.extension is not None and self.extension.indexes:
            return self._loaded(self.extension.index_folder(self.extension.indexes[0]))
        if names := self.index_names():
            return self._loaded(self.run.stage_folder(f"index-{names[0]}") / "index")
        X, Y = self.run.training_rows()
        entries = X.nnz if hasattr(X, "nnz") else X.size
        if entries > MOST_ENTRIES or Y.shape[1] > MOST_LABELS:
            raise UsageError(
                f"{self.run.path} has no faiss index, and its {X.shape[0]:,} training rows and {Y.shape[1]:,} labels "
                'are too many to make one now. Add to the recipe, and run it:\n\n[[index]]\nuse = "faiss"'
            )
        say('this run has no faiss index: embedding its labels now ([[index]] use = "faiss" keeps them)')
        return FaissIndexer(kind="flat").build(Split(X, Y), context=self.context)

    def _loaded(self, folder: Path) -> FaissIndex:
        index = self.context.load("indexer", USE, folder)
        assert isinstance(index, FaissIndex)
        return index

    def label(self, name: str) -> int:
        if name in self.label_names:
            return self.label_names.index(name)
        raise UsageError(f"{self.path} has no label '{name}'{nearest(name, self.label_names)}")


def nearest_labels(target: SearchableRun, query: str, k: int, how: str | None, say: Any) -> dict[str, Any]:
    """The labels nearest to `query`: the name of a label, unless none has it or a text is asked for."""
    as_label = how == "label" or (how is None and query in target.label_names)
    if as_label:
        label = target.label(query)
        index = target.index(say)
        embedding = index.embedding(label)
        if embedding is None:
            raise UsageError(f"label '{query}' has no embedding in the index: search for a text instead")
        found, scores = index.alike(embedding, k + 1)
        kept = found != label
        found, scores = found[kept][:k], scores[kept][:k]
    else:
        X = _text_features(target, query, how)
        if not (X.nnz if hasattr(X, "nnz") else np.any(X)):
            raise UsageError(
                f"no word of {query!r} is known to the run's features, nor is it a label"
                f"{nearest(query, target.label_names)}"
            )
        index = target.index(say)
        found, scores = index.alike(index.embed(X)[0], k)
    names = target.label_names
    told = [
        {"label": names[label], "cosine": round(float(score), 4)}
        for label, score in zip(found.tolist(), scores.tolist(), strict=True)
    ]
    return {
        "run": str(target.path),
        "query": query,
        "as": "label" if as_label else "text",
        "labels": told,
    }


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
    """Names, and the texts of each: examples, or the one text that describes it."""

    names: Sequence[str]
    texts: Sequence[str]
    of: csr_matrix

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
                raise DataError(
                    f"label {name!r} is there already: labels that are added must be new", path=path, line=number
                )
            taken.add(name)
            columns += [len(names)] * len(examples)
            names.append(name)
            texts += examples
        if not names:
            raise DataError(
                'no label in this file: expected lines like {"label": "name", "examples": ["text"]}', path=path
            )
        of = csr_matrix((np.ones(len(texts), np.float32), (np.arange(len(texts)), columns)), (len(texts), len(names)))
        return cls(names, texts, of)


def _parse_line(line: bytes, path: Path, number: int) -> tuple[str, list[str]]:
    """(name, texts) of a line, or DataError."""
    entry = json_object(path, number, line)
    name, examples = entry.get("label"), entry.get("examples", [])
    if not isinstance(name, str) or not name.strip():
        raise DataError('expected a "label" with a name', path=path, line=number)
    if unknown := entry.keys() - {"label", "examples", "text"}:
        raise DataError(
            f"unknown key {sorted(unknown)[0]!r}: there are label, examples and text", path=path, line=number
        )
    texts = [*examples, *([entry["text"]] if "text" in entry else [])] if isinstance(examples, list) else None
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError('expected "examples", a list of texts, or a "text"', path=path, line=number)
    for string in (name, *texts):
        reading.check_encodable(string, path, number)
    return name, texts


@dataclass(frozen=True)
class AddedLabels:
    """What was written, why some heads could not take the labels, and what the indexes of those that could know."""

    extension: Extension
    refusals: Sequence[str]
    indexes: Sequence[dict[str, Any]]


def add_labels_to_run(target: SearchableRun, path: Path, output: Path, say: Any) -> AddedLabels:
    """Write a folder with the run's heads and its index, each with the labels of the file `path`."""
    if target.extension is not None:
        raise UsageError(f"{target.path} has added labels already: add all of them to {target.run.path} at once")
    labels = NewLabels.read(path, target.label_names)
    X, of_heads = target.features(labels.texts), target.model.all_features(labels.texts)
    for seen in (X, *of_heads):
        _check_known_words(seen, labels, path)
    index = target.index(say)
    heads, refusals = _extend_heads(target, X, of_heads, labels, index)
    names = target.index_names()
    index.add_labels(X, labels.of)
    count = len(target.label_names) + len(labels.names)
    told = [
        {"head": target.run.head_names[position], "index": name, "labels": known, "new": known == count}
        for position, head in heads.items()
        for name, known in getattr(head, "index_labels", list)()
    ]
    indexes = {names[0] if names else USE: index}
    return AddedLabels(write_extension(output, target.run, labels.names, heads, indexes), refusals, told)


def _check_known_words(X: Matrix, labels: NewLabels, path: Path) -> None:
    """Every label needs a text with a word that the features know."""
    filled = np.asarray(abs(X).sum(axis=1)).ravel() > 0
    texts = np.asarray(labels.of.T @ filled.astype(np.float32)).ravel()
    if len(empty := np.flatnonzero(texts == 0)):
        raise DataError(
            f"label {labels.names[empty[0]]!r} has no text with a word that the run's features know: it could never "
            "be found. Give it other examples",
            path=path,
        )


def _extend_heads(
    target: SearchableRun, X: Matrix, of_heads: Sequence[Matrix], labels: NewLabels, index: FaissIndex
) -> tuple[dict[int, Any], list[str]]:
    """(heads with the new labels, by position; why others cannot take them). All heads take them or none.

    A head whose own indexes cannot take the labels gets one of them alone, beside: what it says about others stays.
    """
    run = target.run
    names = target.run.head_names
    seen = [run.features_folder(f"head-{name}") for name in names]
    sees = dict(zip(seen, names, strict=True))
    trains = {place: _background(run, f"head-{name}", target.context) for place, name in sees.items()}
    heads, refusals = {}, []

    def alone(place: Path) -> FaissIndex:
        if place != run.features_folder(target.index_stage):
            raise UsageError(
                "its indexes cannot take new labels, and labels are target by other features than this head sees: an "
                '[[index]] with use = "faiss" and its features would take them'
            )
        found: FaissIndex = named_index(index.of_new_labels(X, labels.of), USE)
        return found

    for position, (name, place, head) in enumerate(zip(names, seen, target.model.heads, strict=True)):
        if not hasattr(head, "add_labels"):
            refusals.append(f"head {name} cannot take new labels: train it anew with them")
            continue
        try:
            listed_by = functools.partial(alone, place)
            head.add_labels(of_heads[position], labels.of, trains[place], listed_by=listed_by)
        except UsageError as error:
            refusals.append(f"head {name}: {error}")
            continue
        heads[position] = head
    return ({} if refusals else heads), refusals


def _background(run: Run, stage: str, context: Context) -> Split:
    """Some training rows as a head saw them."""
    rows, Y = run.training_rows(stage)
    chosen = np.sort(context.rng("rows beside new labels").permutation(Y.shape[0])[:BACKGROUND])
    return Split(rows[chosen], Y[chosen])
