"""The checks of indexers and of the indexes that they build."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse, vstack

from xmckit.components.indexes import named_index
from xmckit.context import Context
from xmckit.data.model import Matrix, Split, as_csr
from xmckit.errors import counted
from xmckit.protocols import ClusteredIndex, ExtensibleIndex, RebuildableIndex
from xmckit.testing import common
from xmckit.testing.assertions import ABSOLUTE, RELATIVE, assert_csr, flat, require, require_none, skip_unless
from xmckit.testing.problems import small_problem
from xmckit.testing.rows import BY_ROW, LEARNING, LearningSubject, RowSubject
from xmckit.testing.subjects import covers

K = 4
WIDTH = 8  # of the vectors that a head would hand to an index in its space
MEMBERS = {"shortlist": ("shortlist",), "clusters": ("clusters", "label_of"), "rebuild": ("rebuild",)}


class IndexerSubject(RowSubject, LearningSubject):
    """An indexer. Queries of its index are rows, or vectors of a head if it is in head space."""

    @cached_property
    def train(self) -> Split:
        return small_problem()

    @cached_property
    def rows(self) -> csr_matrix:
        return small_problem(rows=40, seed=2).matrix

    @cached_property
    def vectors(self) -> np.ndarray:
        return np.random.default_rng(1).standard_normal((40, WIDTH)).astype(np.float32)

    def inputs(self) -> dict[str, Any]:
        return {"train": self.train, "rows": self.rows, "vectors": self.vectors}

    def build(self, train: Split, context: Context) -> Any:
        centroids = as_csr(train.Y.T @ train.matrix)
        names = [f"label {n}" for n in range(train.labels)]
        known = context.using(label_names=names, label_rows=lambda: centroids)
        index = self.component().build(train, context=known)
        if index.query_space == "head":
            rng = np.random.default_rng(2)
            index.rebuild(rng.standard_normal((train.labels, WIDTH)).astype(np.float32))
        return index

    def make(self, context: Context) -> Any:
        return self.build(self.train, context)

    @property
    def X(self) -> Matrix:
        return self.queries(self.ready, self.rows)

    def queries(self, index: Any, rows: csr_matrix) -> Matrix:
        """Return what the index takes: these rows, or vectors of a head."""
        return self.vectors if index.query_space == "head" else rows

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return flat(ready.shortlist(self.queries(ready, self.rows), K), "shortlist")

    def assert_well_formed(self, ready: Any, X: Matrix) -> str:
        return _assert_lists(ready, X, K, self.train.labels)

    def assert_accepts(self, train: Split) -> str:
        index = self.build(train, self.context)
        return _assert_lists(index, self.queries(index, train.matrix), K, train.labels)

    def assert_same_answers(self, parts: Sequence[Matrix], what: str) -> None:
        """Compare up to rounding: a candidate may be exchanged only for one of the same score."""
        one = self.ready.shortlist(self.X, K)
        other = csr_matrix(vstack([self.ready.shortlist(part, K) for part in parts]))
        require(one.shape == other.shape, f"{what}: {other.shape} instead of {one.shape}")
        for row in range(one.shape[0]):
            left, right = (dict(zip(m[row].indices.tolist(), m[row].data.tolist(), strict=True)) for m in (one, other))
            ranked = [np.sort(list(scores.values())) for scores in (left, right)]
            same = len(left) == len(right) and np.allclose(ranked[0], ranked[1], RELATIVE, ABSOLUTE)
            require(same, f"{what}: other scores in row {row}")
            last = ranked[0][0] if len(ranked[0]) else 0.0
            edge = last + RELATIVE * max(1.0, abs(last))
            moved = [label for label in left.keys() ^ right.keys() if left.get(label, right.get(label, 0.0)) > edge]
            require(not moved, f"{what}: other candidates in row {row}: {sorted(moved)}")


def index_matches_provides(subject: IndexerSubject) -> str:
    index = subject.ready
    require(index.query_space in ("input", "head"), f"query_space is {index.query_space!r}, expected 'input' or 'head'")
    unknown = sorted(subject.cls.provides - MEMBERS.keys())
    require(not unknown, f"`provides` names {', '.join(unknown)}, expected some of {', '.join(MEMBERS)}")
    wanted = {name for offer in subject.cls.provides for name in MEMBERS[offer]} | {"shortlist", "save"}
    require_none("the index lacks", sorted(name for name in wanted if not hasattr(index, name)))
    named_index(index, "conformance")
    return ", ".join(sorted(subject.cls.provides))


@covers(ClusteredIndex)
def clusters_hold_every_label(subject: IndexerSubject) -> str:
    clusters, label_of = subject.ready.clusters, np.asarray(subject.ready.label_of)
    one_each = issparse(clusters) and (np.diff(csr_matrix(clusters).indptr) == 1).all()
    require(one_each, "clusters needs one non-zero in each row")
    require(clusters.shape[0] == len(label_of), f"{clusters.shape[0]} rows of clusters, {len(label_of)} in label_of")
    every = set(label_of.tolist()) == set(range(subject.train.labels))
    require(every, "label_of does not name every label, and labels only")
    return f"{clusters.shape[1]} clusters"


@covers(RebuildableIndex)
def rebuild_uses_new_vectors(subject: IndexerSubject) -> str:
    """Other vectors give other scores."""
    skip_unless(subject.ready.query_space == "head", "its queries are not vectors of a head")
    index, labels = subject.build(subject.train, subject.context), subject.train.labels
    before = index.shortlist(subject.vectors, K)
    index.rebuild(np.random.default_rng(3).standard_normal((labels, WIDTH)).astype(np.float32))
    after = index.shortlist(subject.vectors, K)
    assert_csr(after, before.shape, "shortlist()")
    require((before != after).nnz > 0, "rebuild() with other vectors changed no candidate and no score")
    return counted(labels, "label")


@covers(ExtensibleIndex)
def added_labels_are_listed(subject: IndexerSubject) -> str:
    skip_unless(subject.ready.query_space != "head", "it takes new labels by rebuild()")
    train, new = subject.train, small_problem(rows=6, labels=2, seed=4).Y
    index, labels = subject.build(train, subject.context), train.labels + new.shape[1]
    index.add_labels(subject.rows[: new.shape[0]], new)
    _assert_lists(index, subject.rows, K, labels)
    listed = np.unique(index.shortlist(subject.rows, labels).indices)
    require_none("never lists what add_labels() gave it:", sorted({*range(train.labels, labels)} - {*listed.tolist()}))
    return counted(labels, "label")


def shortlist_is_well_formed(subject: IndexerSubject) -> str:
    require(subject.ready.shortlist(subject.X, K).nnz > 0, "no candidate for any row")
    return subject.assert_well_formed(subject.ready, subject.X)


def large_k_is_bounded(subject: IndexerSubject) -> str:
    return _assert_lists(subject.ready, subject.X, subject.train.labels + 4, subject.train.labels)


CHECKS = common.checks_in(globals(), *common.REPORTED, *BY_ROW, *LEARNING) + common.STORED


def _assert_lists(index: Any, Q: Matrix, k: int, labels: int) -> str:
    shortlists = index.shortlist(Q, k)
    assert_csr(shortlists, (Q.shape[0], labels), "shortlist()")
    most = int(np.diff(shortlists.indptr).max(initial=0))
    require(most <= k, f"{most} candidates in a row, expected at most {k}")
    return f"{shortlists.nnz} candidates of {Q.shape[0]} rows"
