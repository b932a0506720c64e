"""Show a label tree in a report: its levels, the sizes of its leaves, and an outline to unfold."""

from __future__ import annotations

from typing import Any

import numpy as np

from xmckit.exhibits import Branch, Cell, Exhibit, Outline, Table, leaf_exhibits
from xmckit_pecos.labels.tree import LabelTree

MOST_CHILDREN = 16
MOST_NODES = 300
LABELS_SHOWN = 8


def size_facts(sizes: np.ndarray) -> dict[str, Any]:
    return {"smallest": int(sizes.min()), "median": float(np.median(sizes)), "largest": int(sizes.max())}


def leaf_size_facts(tree: LabelTree) -> dict[str, Any]:
    return {**size_facts(tree.leaf_sizes), "empty": int((tree.leaf_sizes == 0).sum())}


def tree_exhibits(tree: LabelTree, counts: np.ndarray) -> list[Exhibit]:
    """Return the exhibits of a tree. `counts` holds the training rows of each label, to name the most frequent ones."""
    return [_levels(tree), *leaf_exhibits(tree.clusters, tree.label_of), outline(tree, counts)]


def _levels(tree: LabelTree) -> Table:
    rows: list[list[Cell]] = []
    for level, size in enumerate(tree.level_sizes[:-1]):
        name = "root" if level == 0 else "leaves" if level == tree.depth - 1 else f"level {level}"
        rows.append([name, size, *size_facts(tree.child_counts(level)).values()])
    return Table("Levels of the tree", ["level", "nodes", "fewest children", "median", "most"], rows)


def outline(tree: LabelTree, counts: np.ndarray) -> Outline:
    """Outline the upper nodes, as many as fit. A node lists its most frequent labels."""
    nodes = _nodes_above(tree)
    widths = tree.level_sizes[:-1]
    sizes = [np.bincount(above, minlength=width) for above, width in zip(nodes, widths, strict=True)]
    labels = [tree.labels_by_frequency(above, counts) for above in nodes]
    left = MOST_NODES

    def frequent(level: int, node: int) -> list[int]:
        end = sizes[level][: node + 1].sum()
        below = labels[level][end - sizes[level][node] : end]
        # a label with several copies below one node is named once
        return list(dict.fromkeys(below[: 2 * LABELS_SHOWN].tolist()))[:LABELS_SHOWN]

    def children(level: int, node: int) -> tuple[list[Branch], int]:
        """Return (the branches below a node that fit, the number of all its children)."""
        nonlocal left
        below = np.flatnonzero(tree.parents[level] == node)
        chosen = below[np.argsort(-sizes[level + 1][below], kind="stable")][: min(MOST_CHILDREN, left)]
        left -= len(chosen)
        leaves = level + 2 == tree.depth
        branches = []
        for child in chosen.tolist():
            inner, total = ([], 0) if leaves else children(level + 1, child)
            if leaves and tree.leaf_names is not None:
                title = tree.leaf_names[child]
            else:
                title = f"{'leaf' if leaves else 'node'} {child}"
            branches.append(Branch(title, int(sizes[level + 1][child]), frequent(level + 1, child), inner, total))
        return branches, len(below)

    if tree.depth > 1:
        branches, total = children(0, 0)
    else:
        branches, total = [Branch("the only leaf", int(sizes[0][0]), frequent(0, 0))], 1
    note = "Each node with the number of labels below it and the most frequent of them in the training rows."
    if total > len(branches):
        note += f" The {len(branches)} largest of {total:,} nodes below the root."
    return Outline("The label tree", branches, note)


def _nodes_above(tree: LabelTree) -> list[np.ndarray]:
    """Return, for each level but the last, the node above each pseudo-label."""
    nodes = [tree.leaf_of]
    for parents in tree.parents[-2::-1]:
        nodes.append(parents[nodes[-1]])
    return nodes[::-1]
