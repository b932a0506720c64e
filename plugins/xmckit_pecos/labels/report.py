"""What a report shows of a label tree: its levels, the sizes of its leaves, and an outline to unfold."""

from __future__ import annotations

import numpy as np

from xmckit.exhibits import Branch, Cell, Exhibit, Outline, Table, leaf_exhibits
from xmckit_pecos.labels.tree import LabelTree

MOST_CHILDREN = 16
MOST_NODES = 300
LABELS_SHOWN = 8


def tree_exhibits(tree: LabelTree, counts: np.ndarray) -> list[Exhibit]:
    """`counts` are the training rows of each label: a node is told by those of its labels that have most of them."""
    return [_levels(tree), *leaf_exhibits(tree.clusters, tree.label_of), outline(tree, counts)]


def _levels(tree: LabelTree) -> Table:
    rows: list[list[Cell]] = []
    for level, size in enumerate(tree.level_sizes[:-1]):
        children = np.bincount(tree.parents[level], minlength=size)
        name = "root" if level == 0 else "leaves" if level == tree.depth - 1 else f"level {level}"
        rows.append([name, size, int(children.min()), float(np.median(children)), int(children.max())])
    return Table("Levels of the tree", ["level", "nodes", "fewest below one", "median", "most"], rows)


def outline(tree: LabelTree, counts: np.ndarray) -> Outline:
    """The upper nodes, as many as fit; a node names its labels that most training rows have."""
    nodes = _nodes_above(tree)
    widths = tree.level_sizes[:-1]
    frequent = [_MostFrequent(of, tree.label_of, counts, width) for of, width in zip(nodes, widths, strict=True)]
    sizes = [np.bincount(of, minlength=width) for of, width in zip(nodes, widths, strict=True)]
    shown = MOST_NODES

    def below(level: int, node: int) -> tuple[list[Branch], int]:
        nonlocal shown
        children = np.flatnonzero(tree.parents[level] == node)
        chosen = children[np.argsort(-sizes[level + 1][children], kind="stable")][: min(MOST_CHILDREN, shown)]
        shown -= len(chosen)
        branches = []
        for child in chosen.tolist():
            inner, of = below(level + 1, child) if level + 2 < tree.depth else ([], 0)
            leaf = level + 2 == tree.depth
            title = (
                tree.leaf_names[child]
                if leaf and tree.leaf_names is not None
                else f"{'leaf' if leaf else 'node'} {child}"
            )
            branches.append(Branch(title, int(sizes[level + 1][child]), frequent[level + 1](child), inner, of))
        return branches, len(children)

    if tree.depth > 1:
        branches, of = below(0, 0)
    else:
        branches, of = [Branch("the only leaf", int(sizes[0][0]), frequent[0](0))], 1
    note = "Each node with the number of labels below it and those of them that most training rows have."
    if of > len(branches):
        note += f" The {len(branches)} largest of {of:,} nodes below the root."
    return Outline("The label tree", branches, note)


def _nodes_above(tree: LabelTree) -> list[np.ndarray]:
    """For each level but the last: the node above each pseudo-label."""
    found = [tree.leaf_of]
    for parents in tree.parents[-2::-1]:
        found.append(parents[found[-1]])
    return found[::-1]


class _MostFrequent:
    """Of a level: the labels below a node, the most frequent first."""

    def __init__(self, node_of: np.ndarray, label_of: np.ndarray, counts: np.ndarray, nodes: int):
        order = np.lexsort((label_of, -counts[label_of], node_of))
        self._labels = label_of[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(node_of, minlength=nodes))])

    def __call__(self, node: int) -> list[int]:
        labels = self._labels[self._starts[node] : self._starts[node + 1]]
        # a label with several copies below one node is named once
        return list(dict.fromkeys(labels[: 2 * LABELS_SHOWN].tolist()))[:LABELS_SHOWN]
