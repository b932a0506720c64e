"""A tree over the labels, stored as arrays of parents, so that a node cannot have two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import DataError, store

FILE, LEAF_NAMES = "tree.npz", "leaf-names.npz"


@dataclass(frozen=True)
class LabelTree:
    """Levels from the root down: `parents[t][i]` is the node of level t above node i of level t + 1.

    Level 0 is the root alone, the last level holds the pseudo-labels, and the level above it the leaves (clusters).
    `label_of` gives the label of each pseudo-label. A label with several pseudo-labels is in several leaves.
    """

    parents: tuple[np.ndarray, ...]
    label_of: np.ndarray
    labels: int
    leaf_names: Sequence[str] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        above = 1
        for level, parents in enumerate(self.parents):
            if parents.ndim != 1 or parents.dtype != np.int32:
                raise DataError(f"level {level + 1} of a label tree is {parents.dtype} of {parents.ndim} dimensions")
            if len(parents) and not 0 <= parents.min() <= parents.max() < above:
                raise DataError(f"level {level + 1} of a label tree has parents beyond the {above} of level {level}")
            above = len(parents)
        if not self.parents or self.label_of.shape != (above,) or self.label_of.dtype != np.int32:
            raise DataError(f"a label tree over {above} pseudo-labels needs one int32 label for each of them")
        if above and not 0 <= self.label_of.min() <= self.label_of.max() < self.labels:
            raise DataError(f"a label tree has a label beyond the {self.labels} that exist")
        if self.leaf_names is not None and len(self.leaf_names) != self.leaves:
            raise DataError(f"a label tree has {self.leaves} leaves but {len(self.leaf_names)} names of leaves")

    @property
    def depth(self) -> int:
        """The steps from the root to a label, which are the levels of a model over this tree."""
        return len(self.parents)

    @property
    def leaves(self) -> int:
        return len(self.parents[-2]) if self.depth > 1 else 1

    @property
    def leaf_of(self) -> np.ndarray:
        """The leaf of each pseudo-label."""
        return self.parents[-1]

    @property
    def level_sizes(self) -> list[int]:
        """The number of nodes on each level: the root, …, the leaves, the pseudo-labels."""
        return [1, *(len(parents) for parents in self.parents)]

    @cached_property
    def leaf_sizes(self) -> np.ndarray:
        return self.child_counts(self.depth - 1)

    @cached_property
    def plain(self) -> bool:
        """Whether the pseudo-labels are the labels themselves."""
        return len(self.label_of) == self.labels and bool((self.label_of == np.arange(self.labels)).all())

    @cached_property
    def most_copies(self) -> int:
        """The largest number of pseudo-labels that a label has."""
        return int(np.bincount(self.label_of, minlength=1).max())

    @cached_property
    def clusters(self) -> csr_matrix:
        """Pseudo-labels × leaves, with one non-zero in each row."""
        return self.step(self.depth - 1)

    def step(self, level: int) -> csr_matrix:
        """Return nodes of level + 1 × nodes of level, with one non-zero in each row."""
        parents = self.parents[level]
        ones, indptr = np.ones(len(parents), dtype=np.float32), np.arange(len(parents) + 1, dtype=np.int32)
        return csr_matrix((ones, parents, indptr), shape=(len(parents), self.level_sizes[level]))

    def child_counts(self, level: int) -> np.ndarray:
        """Return the number of children of each node of a level."""
        return np.bincount(self.parents[level], minlength=self.level_sizes[level])

    def keep(self, kept: np.ndarray) -> LabelTree:
        """Return the tree with the same leaves and only the pseudo-labels where `kept` is true."""
        return replace(self, parents=(*self.parents[:-1], self.leaf_of[kept]), label_of=self.label_of[kept])

    def over_pseudo_labels(self, Y: csr_matrix) -> csr_matrix:
        """Return Y with a column for each pseudo-label: the column of its label."""
        return Y if self.plain else csr_matrix(Y[:, self.label_of]).sorted_indices()

    def members(self, leaf: int) -> np.ndarray:
        """Return the labels in a leaf, in the order of their pseudo-labels."""
        return self.label_of[self.leaf_of == leaf]

    def labels_by_frequency(self, node_of: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Sort the pseudo-labels by node, then by the training rows of their labels, and return their labels."""
        return self.label_of[np.lexsort((self.label_of, -counts[self.label_of], node_of))]

    def leaves_of(self, label: int) -> np.ndarray:
        return np.unique(self.leaf_of[self.label_of == label])

    def path(self, leaf: int) -> list[int]:
        """Return the nodes from below the root to `leaf`, each by its number on its level."""
        nodes = [leaf]
        for level in range(self.depth - 2, 0, -1):
            nodes.append(int(self.parents[level][nodes[-1]]))
        return nodes[::-1] if self.depth > 1 else []

    def leaf_name(self, leaf: int) -> str:
        if self.leaf_names is not None:
            return self.leaf_names[leaf]
        return "/".join(str(node) for node in self.path(leaf)) or "root"

    def save(self, folder: Path) -> None:
        arrays = {f"parents{level}": parents for level, parents in enumerate(self.parents)}
        store.write_arrays(folder / FILE, {**arrays, "label_of": self.label_of, "labels": np.asarray(self.labels)})
        if self.leaf_names is not None:
            store.write_strings(folder / LEAF_NAMES, self.leaf_names)

    @classmethod
    def load(cls, folder: Path) -> LabelTree:
        arrays = store.read_arrays(folder / FILE)
        levels = len(arrays) - 2
        expected = {f"parents{level}" for level in range(levels)} | {"label_of", "labels"}
        if arrays.keys() != expected or arrays["labels"].shape != () or arrays["labels"].dtype.kind != "i":
            raise store.damaged(folder / FILE, "expected the levels of a label tree, label_of and labels")
        names = store.read_strings(folder / LEAF_NAMES) if (folder / LEAF_NAMES).is_file() else None
        try:
            parents = tuple(arrays[f"parents{level}"] for level in range(levels))
            return cls(parents, arrays["label_of"], int(arrays["labels"]), names)
        except DataError as error:
            raise store.damaged(folder / FILE, str(error)) from None


def tree_of_leaves(leaf_of: np.ndarray, leaves: int, branching: int, label_of: np.ndarray, labels: int) -> LabelTree:
    """Build the tree over given leaves in which each `branching` neighbours share a parent, up to the root."""
    parents = [leaf_of.astype(np.int32)]
    nodes = leaves
    while nodes > 1:
        above = -(-nodes // branching) if nodes > branching else 1
        parents.append((np.arange(nodes) // (branching if above > 1 else nodes)).astype(np.int32))
        nodes = above
    return LabelTree(tuple(parents[::-1]), label_of.astype(np.int32), labels)


def tree_of_clusters(clusters: csr_matrix, label_of: np.ndarray, labels: int, branching: int) -> LabelTree:
    """Build the tree over the clusters (pseudo-labels × clusters) of an index from another plugin."""
    clusters = csr_matrix(clusters)
    entries = np.diff(clusters.indptr)
    if len(wrong := np.flatnonzero(entries != 1)):
        raise DataError(
            f"pseudo-label {wrong[0]} is in {entries[wrong[0]]} clusters, expected exactly one: a label in several "
            "clusters needs a pseudo-label for each of them (`label_of`)"
        )
    return tree_of_leaves(clusters.indices, clusters.shape[1], branching, np.asarray(label_of), labels)


# A tree from a text file ---------------------------------------------------------------------------------------------

SEPARATOR = "/"


def read_tree(path: Path, labels: int, label_names: Sequence[str] | None) -> LabelTree:
    """Read the tree of a text file with one line `leaf<tab>label` for each label.

    A leaf is a path such as `animals/birds`: the nodes from the root down. A label is its name or, if labels have no
    names or share some, its number, from 0. Blank lines and lines that begin with `#` are ignored. Leaves may be at
    different depths, and a node may hold both labels and further nodes. DataError names the line of a mistake.
    """
    leaf_of, line_of = _read_lines(path, labels, label_names)
    if (missing := np.flatnonzero(line_of == 0)).size:
        names = ", ".join(str(i) if label_names is None else repr(label_names[i]) for i in missing[:5].tolist())
        more = f" and {missing.size - 5} more" if missing.size > 5 else ""
        raise DataError(f"{missing.size} of {labels} labels have no line: {names}{more}", path=path)
    return _tree_of_paths(leaf_of, labels)


def _read_lines(path: Path, labels: int, label_names: Sequence[str] | None) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Return the path of each label's leaf, and the line of each label (0 for a label without one)."""
    number_of = {name: number for number, name in enumerate(label_names or ())}
    by_name = len(number_of) >= labels
    leaf_of: list[tuple[str, ...]] = [()] * labels
    line_of = np.zeros(labels, dtype=np.int64)
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"this tree cannot be read as UTF-8 text: {error}", path=path) from None
    for line, text in enumerate(lines, 1):
        text = text.rstrip("\r")
        if not text.strip() or text.startswith("#"):
            continue
        leaf, tab, name = text.partition("\t")
        nodes = tuple(part.strip() for part in leaf.split(SEPARATOR))
        if not tab or not all(nodes):
            raise DataError("expected `leaf<tab>label`, with a leaf such as animals/birds", path=path, line=line)
        if by_name:
            label = number_of.get(name, number_of.get(name.strip()))
        else:
            label = label_number(name.strip(), labels)
        if label is None:
            known = "the name of a label of the data" if by_name else f"a number below {labels}"
            raise DataError(f"there is no label {name!r}, expected {known}", path=path, line=line)
        if line_of[label]:
            raise DataError(f"label {name!r} is also on line {line_of[label]}", path=path, line=line)
        leaf_of[label], line_of[label] = nodes, line
    return leaf_of, line_of


def label_number(text: str, labels: int) -> int | None:
    """Parse the number of a label, from 0 to `labels` − 1. Return None for any other text."""
    # int() raises an error on thousands of digits
    digits = text.isascii() and text.isdigit() and len(text) < 20
    return int(text) if digits and int(text) < labels else None


def _tree_of_paths(leaf_of: Sequence[tuple[str, ...]], labels: int) -> LabelTree:
    """Build the tree of these leaves.

    PECOS needs all labels on one level, so a leaf higher up gets a chain of single nodes, named "", below it.
    """
    depth = max(map(len, leaf_of))
    paths = sorted({leaf + ("",) * (depth - len(leaf)) for leaf in leaf_of})
    parents: list[np.ndarray] = []
    above: dict[tuple[str, ...], int] = {(): 0}
    for level in range(1, depth + 1):
        nodes = sorted({path[:level] for path in paths})
        parents.append(np.asarray([above[node[:-1]] for node in nodes], dtype=np.int32))
        above = {node: number for number, node in enumerate(nodes)}
    if len(paths) == 1:
        parents = []  # one leaf is the root
    parents.append(np.asarray([above[leaf + ("",) * (depth - len(leaf))] for leaf in leaf_of], dtype=np.int32))
    names = [SEPARATOR.join(part for part in path if part) for path in paths]
    return LabelTree(tuple(parents), np.arange(labels, dtype=np.int32), labels, names)
