"""What a report shows of a label tree, against counting in the tree itself."""

from __future__ import annotations

import numpy as np
import pytest

from xmckit.exhibits import Branch, Histogram, Outline, Table, stored_all

pytest.importorskip("pecos")

from xmckit_pecos.labels.report import tree_exhibits
from xmckit_pecos.labels.tree import LabelTree, tree_of_leaves


def leaves_below(branch: Branch) -> list[Branch]:
    return [leaf for inner in branch.branches for leaf in leaves_below(inner)] if branch.branches else [branch]


def shown(tree: LabelTree, counts: np.ndarray) -> tuple[Table, Histogram, Outline]:
    levels, sizes, outline = tree_exhibits(tree, counts)
    assert isinstance(levels, Table)
    assert isinstance(sizes, Histogram)
    assert isinstance(outline, Outline)
    stored_all([levels, sizes, outline], "tree")
    return levels, sizes, outline


@pytest.mark.parametrize(("leaves", "branching"), [(1, 4), (4, 4), (16, 4), (32, 2)])
def test_it_is_the_tree(leaves: int, branching: int) -> None:
    rng = np.random.default_rng(leaves)
    labels = 90
    leaf_of = np.concatenate([np.arange(leaves), rng.integers(0, leaves, labels - leaves + 7)]).astype(np.int32)
    # the last seven are second copies
    label_of = np.concatenate([np.arange(labels), np.arange(7)]).astype(np.int32)
    tree, counts = tree_of_leaves(leaf_of, leaves, branching, label_of, labels), rng.integers(0, 50, labels)
    levels, sizes, outline = shown(tree, counts)
    assert [row[1] for row in levels.rows] == tree.level_sizes[:-1]
    assert sum(sizes.counts) == leaves
    found = [leaf for branch in outline.branches for leaf in leaves_below(branch)]
    assert sorted(leaf.size for leaf in found) == sorted(np.bincount(leaf_of, minlength=leaves).tolist())
    for leaf in found:
        if leaves > 1:
            members = set(label_of[leaf_of == int(leaf.title.removeprefix("leaf "))].tolist())
            best = sorted(members, key=lambda label: (-counts[label], label))[: len(leaf.labels)]
            assert list(leaf.labels) == best


def test_a_large_tree_is_cut() -> None:
    labels, leaves = 20_000, 4096
    leaf_of = (np.arange(labels) % leaves).astype(np.int32)
    tree = tree_of_leaves(leaf_of, leaves, 16, np.arange(labels, dtype=np.int32), labels)
    _, _, outline = shown(tree, np.ones(labels, dtype=np.int64))

    def size(branches: tuple[Branch, ...] | list[Branch]) -> int:
        return sum(1 + size(list(branch.branches)) for branch in branches)

    assert 10 < size(list(outline.branches)) <= 300
    assert sum(branch.size for branch in outline.branches) == labels
