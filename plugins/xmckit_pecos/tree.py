"""Indexer `tree`: labels on similar rows share a leaf, and leaves are of about the same size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numba import njit
from pydantic import AfterValidator, Field
from scipy.sparse import csr_matrix

from xmckit import Configured, Context, DataPath, Matrix, Params, Split, UsageError, store
from xmckit.exhibits import Exhibit
from xmckit_pecos.labels.report import tree_exhibits
from xmckit_pecos.labels.tree import LabelTree, read_tree, tree_of_leaves
from xmckit_pecos.linear import isolation
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.linear.options import TOLERANCE, Loss, Negatives, TrainingOptions
from xmckit_pecos.linear.storage import PostProcessor

COUNTS, FACTS, MATCHER = "counts.npz", "facts.json", "matcher"
ROUTING: PostProcessor = "l3-hinge"


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"expected a power of two, found {value}: the tree is built by repeated halving")
    return value


Branching = Annotated[int, Field(ge=2, le=1 << 16), AfterValidator(_power_of_two)]


class LinearParams(Params):
    """Parameters of linear models: of the levels above the leaves in an indexer, of the level of labels in a head."""

    C: float = Field(1.0, gt=0, le=1e6, description="Weight of the training loss against the regularisation.")
    prune: float = Field(0.1, ge=0, le=1e6, description="Drop weights that are closer to 0 than this.")
    loss: Loss = Field("squared-hinge", description="Loss of each linear model.")
    negatives: Negatives = Field(
        "tfn",
        description='Rows that train the models below a node: "tfn" the rows with a label there, "man" the rows that '
        "the levels above send there, rightly or not, or both.",
    )
    beam: int = Field(10, ge=1, le=1 << 20, description="Nodes to follow on each level.")
    isolated: bool = Field(
        False,
        description="Train in a separate process, so that a crash of PECOS becomes an error message. This costs the "
        "start of a process and a copy of the data. A run that crashed in PECOS is always resumed this way.",
    )

    def training_options(self) -> TrainingOptions:
        return TrainingOptions(self.C, self.prune, self.loss, self.negatives, self.beam)


class TreeParams(LinearParams):
    branching: Branching = Field(16, description="Children of a node, a power of two.")
    leaf_size: int = Field(100, ge=2, description="Labels in a leaf, at most.")
    path: DataPath | None = Field(
        None, description="Use the tree in this text file, which has a line `leaf<tab>label` for each label."
    )


@dataclass(eq=False)
class TreeIndex:
    """A tree over the labels, and the matcher: linear models above its leaves that lead a row to some of them.

    A head that trains its own last level below the matcher takes `tree` and `matcher`. It also accepts any other index
    with `clusters` and `label_of`, but is slower then.
    """

    query_space: ClassVar[Literal["input", "head"]] = "input"

    tree: LabelTree
    matcher: LinearModel | None
    counts: np.ndarray  # training rows of each label
    _params: LinearParams
    _workers: int
    _facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def clusters(self) -> csr_matrix:
        return self.tree.clusters

    @property
    def label_of(self) -> np.ndarray:
        return self.tree.label_of

    def facts(self) -> dict[str, Any]:
        """Return facts for the report about how labels moved. A plain tree has none."""
        return dict(self._facts)

    def exhibits(self) -> list[Exhibit]:
        return tree_exhibits(self.tree, self.counts)

    def reached_leaves(self, Q: Matrix, beam: int | None = None) -> csr_matrix:
        """Return rows × leaves as the function `reached_leaves` does. The default is the index's own beam."""
        return reached_leaves(self.matcher, Q, beam or self._params.beam, self._workers)

    def shortlist(self, Q: Matrix, k: int) -> csr_matrix:
        """Return rows × labels: the labels of the leaves that a row reaches, best leaf first, until there are `k`.

        A leaf that does not fit whole gives its most frequent labels. A label has the score of its best leaf.
        """
        if k < 1:
            raise UsageError(f"a shortlist needs k of at least 1, not {k}")
        reached = self.reached_leaves(Q)
        leaf_ends, leaves = reached.indptr.astype(np.int64), reached.indices.astype(np.int32)
        starts, members = self._members
        k = min(k, self.tree.labels)
        indptr, chosen, scores = _fill(leaf_ends, leaves, reached.data, starts, members, k, self.tree.labels)
        return csr_matrix((scores, chosen, indptr), shape=(Q.shape[0], self.tree.labels)).sorted_indices()

    @cached_property
    def _members(self) -> tuple[np.ndarray, np.ndarray]:
        """(where each leaf begins, the labels leaf by leaf, most frequent first)."""
        starts = np.concatenate([[0], np.cumsum(self.tree.leaf_sizes)]).astype(np.int64)
        return starts, self.tree.labels_by_frequency(self.tree.leaf_of, self.counts)

    def save(self, folder: Path) -> None:
        self.tree.save(folder)
        store.write_arrays(folder / COUNTS, {"counts": self.counts})
        store.write_json(folder / "params.json", self._params.model_dump(mode="json"))
        if self._facts:
            store.write_json(folder / FACTS, self._facts)
        if self.matcher is not None:
            self.matcher.save(folder / MATCHER)

    @classmethod
    def load(cls, folder: Path, params: LinearParams, workers: int) -> TreeIndex:
        tree = LabelTree.load(folder)
        counts = read_counts(folder, tree)
        matcher = LinearModel.load(folder / MATCHER) if tree.depth > 1 else None
        if matcher is not None and (matcher.labels, matcher.depth) != (tree.leaves, tree.depth - 1):
            raise store.damaged(folder / MATCHER, f"a matcher over {matcher.labels} leaves, the tree has {tree.leaves}")
        return cls(tree, matcher, counts, params, workers, read_facts(folder))


def read_counts(folder: Path, tree: LabelTree) -> np.ndarray:
    """Read the number of training rows of each label."""
    return store.read_array(folder / COUNTS, "counts", "i", (tree.labels,), low=0)


def read_facts(folder: Path) -> dict[str, Any]:
    """Read the facts of an index, if it has any."""
    facts = store.read_json(folder / FACTS) if (folder / FACTS).is_file() else {}
    if not isinstance(facts, dict):
        raise store.damaged(folder / FACTS, "expected facts by name")
    return facts


def reached_leaves(matcher: LinearModel | None, Q: Matrix, beam: int, workers: int) -> csr_matrix:
    """Return rows × leaves: the leaves that each row reaches, best first.

    The value is the product of exp(−max(1 − margin, 0)³) down the tree, in (0, 1]. Without a matcher there is one leaf.
    """
    if matcher is None:
        ones = np.ones(Q.shape[0], dtype=np.float32)
        return csr_matrix((ones, np.zeros(Q.shape[0]), np.arange(Q.shape[0] + 1)), shape=(Q.shape[0], 1))
    reached = matcher.predict(Q, beam, beam, workers, ROUTING)
    # a leaf with a product that underflows is still reached, and a stored 0 would mean that it is not
    np.maximum(reached.data, np.finfo(np.float32).tiny, out=reached.data)
    return reached


class TreeIndexer(Configured):
    """Cluster PIFA embeddings by PECOS's balanced hierarchical k-means, or read a tree, and train its matcher."""

    Params: ClassVar[type[Params]] = TreeParams
    provides: ClassVar[frozenset[str]] = frozenset({"shortlist", "clusters"})

    def build(self, train: Split, *, context: Context) -> TreeIndex:
        rows = TrainingRows.from_split(train)
        tree = self._tree(rows, context)
        return TreeIndex(tree, self._matcher(rows, tree, context), rows.label_counts, self.params, context.workers)

    def _tree(self, rows: TrainingRows, context: Context) -> LabelTree:
        params, labels = self.params, rows.Y.shape[1]
        if params.path is not None:
            tree = read_tree(params.path, labels, context.label_names)
        else:
            with context.progress("building the label tree"):
                tree = build_tree(rows, params.branching, params.leaf_size, context, isolated=params.isolated)
        if unseen := int((rows.label_counts == 0).sum()):
            context.log(f"{unseen:,} of {labels:,} labels are on no training row: they go to the smallest leaves")
        return tree

    def _matcher(
        self, rows: TrainingRows, tree: LabelTree, context: Context, tolerance: float = TOLERANCE
    ) -> LinearModel | None:
        if tree.depth == 1:
            return None
        options = replace(self.params.training_options(), tolerance=tolerance)
        with context.progress("training the levels above the leaves"):
            return isolation.train(rows, tree, options, context, isolated=self.params.isolated, to_leaves=True)

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> Any:
        params = super().load(folder, context=context).params
        return TreeIndex.load(folder, params, context.workers)


def build_tree(
    rows: TrainingRows, branching: int, leaf_size: int, context: Context, *, isolated: bool = False
) -> LabelTree:
    """Build the tree of the labels that occur, and spread the others over its leaves, the smallest first."""
    labels, counts = rows.Y.shape[1], rows.label_counts
    seen = np.flatnonzero(counts)
    depth = max(0, math.ceil(math.log2(labels / leaf_size)))
    depth = min(depth, int(math.log2(len(seen))))  # no empty leaf
    leaf_of = np.zeros(labels, dtype=np.int32)
    if depth:
        present = rows.Y if len(seen) == labels else rows.Y[:, seen]
        codes = isolation.leaf_codes(rows.X, present, depth, context.seed_for("tree"), context, isolated=isolated)
        leaf_of[seen] = codes
        leaf_of[counts == 0] = _smallest_leaves(np.bincount(codes, minlength=1 << depth), labels - len(seen))
    return tree_of_leaves(leaf_of, 1 << depth, branching, np.arange(labels), labels)


def _smallest_leaves(sizes: np.ndarray, count: int) -> np.ndarray:
    """Choose leaves for `count` more labels: each goes to the smallest leaf, the first of equal ones."""
    # a leaf offers places numbered by its size when they are taken: size, size + 1, …; the lowest `count` are taken
    room = -(-(sizes.sum() + count) // len(sizes)) + 1 - sizes
    leaves = np.repeat(np.arange(len(sizes)), np.maximum(room, 0))
    within = np.concatenate([np.arange(max(0, places)) for places in room])
    order = np.lexsort((leaves, sizes[leaves] + within))
    return leaves[order[:count]].astype(np.int32)


@njit(cache=True, nogil=True)
def _fill(
    indptr: np.ndarray,
    leaves: np.ndarray,
    values: np.ndarray,
    starts: np.ndarray,
    labels: np.ndarray,
    k: int,
    all_labels: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the CSR arrays of the first `k` labels of each row's leaves, each label once."""
    rows = len(indptr) - 1
    ends = np.zeros(rows + 1, np.int64)
    last_row = np.full(all_labels, -1, np.int64)
    longest = 0
    for row in range(rows):
        count = 0
        for place in range(indptr[row], indptr[row + 1]):
            count += starts[leaves[place] + 1] - starts[leaves[place]]
        longest += min(count, k)
    chosen, scores = np.empty(longest, np.int32), np.empty(longest, np.float32)
    used = 0
    for row in range(rows):
        end = used + k
        for place in range(indptr[row], indptr[row + 1]):
            for member in range(starts[leaves[place]], starts[leaves[place] + 1]):
                label = labels[member]
                if used == end:
                    break
                if last_row[label] != row:
                    last_row[label] = row
                    chosen[used], scores[used] = label, values[place]
                    used += 1
        ends[row + 1] = used
    return ends, chosen[:used], scores[:used]
