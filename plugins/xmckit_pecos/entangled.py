"""Data set `entangled`: another data set with every few labels merged into one (Liu et al. 2021, section 5.1).

Labels are sorted and cut into pieces of `size`. Each piece becomes one label, on train and test rows alike. The order:

- easy: the leaves of balanced 2-means over the labels' PIFA embeddings, so that similar labels merge;
- medium: the same, shuffled within stretches of 32 · size labels;
- hard: random.

This is a data set and not a label stage, because a label stage only sees training rows and may not change the set of
labels. The paper cuts by balanced ⌈L/size⌉-means. Consecutive leaves of the halving tree are the same idea with pieces
of exactly `size`; a few pieces at the end of a branch reach into the next branch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import Configured, Context, DataError, Dataset, Groups, Matrix, Params, Spec, Split
from xmckit.data.model import as_csr
from xmckit.params import KindOf
from xmckit_pecos.linear import isolation

Difficulty = Literal["easy", "medium", "hard"]
PIECES = 32  # pieces in a stretch of the medium order


class EntangledParams(Params):
    of: Annotated[Spec, KindOf("dataset")] = Field(description="Data set to merge the labels of.")
    size: int = Field(2, ge=1, description="Number of labels that become one.")
    difficulty: Difficulty = Field(
        "hard", description='Labels to merge. "easy": labels on similar rows, "medium": less similar ones, "hard": any.'
    )
    draw: int = Field(0, ge=0, description="Number of the random order. The rows stay the same.")
    features: Annotated[Spec, KindOf("featurizer")] | None = Field(
        None,
        description="Features that compare rows, for easy and medium. Default: tf-idf of texts, or blocks as they are.",
    )


class Entangled(Configured):
    """The rows of another data set, over fewer labels."""

    Params: ClassVar[type[Params]] = EntangledParams
    conformance: ClassVar[Mapping[str, Any]] = {
        "params": {"of": {"use": "synthetic", "rows": 60, "test_rows": 20, "features": 80, "labels": 12, "topics": 3}}
    }

    def fingerprint(self, *, context: Context) -> Mapping[str, str]:
        prints = context.build("dataset", self.params.of).fingerprint(context=context)
        if self.params.difficulty != "hard":
            context.resolve("featurizer", self._featurizer(True).use)  # both, so that the code of either counts
            context.resolve("featurizer", self._featurizer(False).use)
        return {**prints, "numpy": np.__version__, "seed": str(context.seed)}

    def read(self, *, context: Context) -> Dataset:
        data: Dataset = context.build("dataset", self.params.of).read(context=context)
        with context.progress("merging labels"):
            order = self._order(data, context)
        return entangle(data, order, self.params.size, str(self.params.difficulty))

    def _order(self, data: Dataset, context: Context) -> np.ndarray:
        rng = context.rng("entangled", self.params.draw)
        if self.params.difficulty == "hard":
            return rng.permutation(data.labels)
        order = sort_by_similarity(self._rows(data, context), data.train.Y, context, self.params.draw)
        if self.params.difficulty == "medium":
            stretch = PIECES * self.params.size
            for start in range(0, len(order), stretch):
                rng.shuffle(order[start : start + stretch])
        return order

    def _rows(self, data: Dataset, context: Context) -> Matrix:
        featurizer = context.build("featurizer", self._featurizer(data.train.X is None))
        featurizer.fit(data.train, context=context)
        X: Matrix = featurizer.transform(data.train, context=context)
        return X

    def _featurizer(self, only_texts: bool) -> Spec:
        if self.params.features is not None:
            spec: Spec = self.params.features
            return spec
        return Spec.model_validate({"use": "tfidf"} if only_texts else {"use": "blocks", "normalise": "l2"})


def sort_by_similarity(X: Matrix, Y: csr_matrix, context: Context, draw: int) -> np.ndarray:
    """Sort all labels so that those on similar rows are neighbours. Labels on no row are last."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    seen, unseen = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    if not len(seen):
        raise DataError("no training row has a label, so nothing tells which labels are similar")
    depth, seed = int(math.log2(len(seen))), context.seed_for("entangled", "tree", draw)
    codes = isolation.leaf_codes(X, as_csr(Y[:, seen]), depth, seed, context, isolated=False)
    return np.concatenate([seen[np.argsort(codes, kind="stable")], unseen])


def entangle(data: Dataset, order: np.ndarray, size: int, difficulty: str) -> Dataset:
    """Merge each `size` consecutive labels of `order` into one. The last may merge fewer."""
    pieces = -(-data.labels // size)
    piece_of = np.empty(data.labels, dtype=np.int64)
    piece_of[order] = np.arange(data.labels) // size
    merge = csr_matrix(
        (np.ones(data.labels, dtype=np.float32), piece_of, np.arange(data.labels + 1)), shape=(data.labels, pieces)
    )
    members = [order[start : start + size] for start in range(0, data.labels, size)]
    features = data.label_features
    if features is not None:
        features = merge.T @ features / np.array([len(piece) for piece in members], dtype=np.float32)[:, None]
        features = csr_matrix(features, dtype=np.float32) if hasattr(features, "tocsr") else np.float32(features)
    return replace(
        data,
        name=f"{data.name}, {size} labels as one, {difficulty}",
        train=_merge_split(data.train, merge),
        test=_merge_split(data.test, merge),
        label_names=[" + ".join(data.label(label) for label in piece.tolist()) for piece in members],
        label_features=features,
        info={**data.info, "entangled": {"labels_before": data.labels, "size": size, "difficulty": difficulty}},
    )


def _merge_split(split: Split, merge: csr_matrix) -> Split:
    if split.weights is not None:
        raise DataError("the labels of this data set have weights, and the weight of a merged label is not defined")
    groups = split.groups
    return replace(
        split,
        Y=_merge_pairs(split.Y, merge),
        groups=None if groups is None else Groups(groups.membership, as_csr(groups.labels @ merge)),
        filter=None if split.filter is None else _merge_filter(split.Y, split.filter, merge),
    )


def _merge_pairs(pairs: csr_matrix, merge: csr_matrix) -> csr_matrix:
    """Return 1 where a row has at least one of the merged labels."""
    merged = as_csr(as_csr(pairs).astype(bool).astype(np.float32) @ merge)
    merged.data[:] = 1
    return merged


def _merge_filter(Y: csr_matrix, left_out: csr_matrix, merge: csr_matrix) -> csr_matrix:
    """Leave a merged pair out of scoring if one of its pairs is, unless another of them is true and counts."""
    left_out = as_csr(left_out).astype(bool)
    true = as_csr(Y).astype(bool)
    counts = _merge_pairs(true > left_out, merge).astype(bool)
    return as_csr((_merge_pairs(left_out, merge).astype(bool) > counts).astype(np.float32))
