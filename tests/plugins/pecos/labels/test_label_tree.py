"""Trees as arrays of parents, and trees that people write into files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xmckit_pecos.labels.tree import FILE, LEAF_NAMES, LabelTree, read_tree, tree_of_clusters, tree_of_leaves

from xmckit import DataError, StorageError

NAMES = ["robin", "hawk", "cat", "oak", "a tab\tinside"]
GOOD = "# a comment\nanimals/birds\trobin\nanimals/birds\thawk\n\nanimals\tcat\r\nplants\toak\nplants\ta tab\tinside\n"


def write(tmp_path, text):
    path = tmp_path / "tree.txt"
    path.write_bytes(text.encode())
    return path


def test_a_tree_of_ones_own(tmp_path):
    tree = read_tree(write(tmp_path, GOOD), 5, NAMES)
    assert [tree.leaf_name(leaf) for leaf in tree.leaf_of.tolist()] == [
        "animals/birds", "animals/birds", "animals", "plants", "plants",
    ]  # fmt: skip
    assert tree.level_sizes == [1, 2, 3, 5]  # animals and plants, their leaves, the labels
    assert tree.path(int(tree.leaf_of[2]))[0] == tree.path(int(tree.leaf_of[0]))[0]
    assert tree.plain


def test_labels_without_names_go_by_number(tmp_path):
    path = write(tmp_path, "a\t1\nb\t0\nb\t 2 \n")
    for names in (None, ["same", "same", "other"]):
        assert read_tree(path, 3, names).leaf_of.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("plants\toak\n", ""), "1 of 5 labels have no line: 'oak'"),
        (("plants\toak\n", "plants\toak\nplants\trobin\n"), "line 7: label 'robin' is also on line 2"),
        (("plants\toak\n", "plants\toaks\n"), "line 6: there is no label 'oaks'"),
        (("plants\toak\n", "plants oak\n"), "line 6: expected `leaf<tab>label`"),
        (("plants\toak\n", "plants//trees\toak\n"), "line 6: expected `leaf<tab>label`"),
        (("plants\toak\n", "\toak\n"), "line 6: expected `leaf<tab>label`"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, change, why):
    with pytest.raises(DataError) as error:
        read_tree(write(tmp_path, GOOD.replace(*change)), 5, NAMES)
    assert why in str(error.value)
    assert "tree.txt" in str(error.value)


@pytest.mark.parametrize("number", ["3", "-1", "1.0", "x", "²", "", "9" * 5000])
def test_numbers_beyond_the_labels(tmp_path, number):
    with pytest.raises(DataError, match="line 1: there is no label"):
        read_tree(write(tmp_path, f"a\t{number}\nb\t1\n"), 3, None)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "tree.txt"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        read_tree(path, 1, None)
    with pytest.raises(DataError, match="cannot be read"):
        read_tree(tmp_path / "absent", 1, None)


part = st.text(
    st.characters(exclude_characters="/\t\n\r#", exclude_categories=["Cs", "Z", "C"]), min_size=1, max_size=3
)


@settings(deadline=None)
@given(st.lists(st.lists(part, min_size=1, max_size=4), min_size=1, max_size=12))
def test_every_label_is_in_the_leaf_of_its_line(tmp_path_factory, leaves):
    folder = tmp_path_factory.mktemp("tree")
    lines = [f"{'/'.join(leaf)}\t{label}\n" for label, leaf in enumerate(leaves)]
    tree = read_tree(write(folder, "".join(reversed(lines))), len(leaves), None)
    assert [tree.leaf_name(leaf) for leaf in tree.leaf_of.tolist()] == ["/".join(leaf) for leaf in leaves]
    assert tree.leaves == len({tuple(leaf) for leaf in leaves})
    # two labels below the same written node are below the same node of the tree, on its level
    for level in range(1, tree.depth - 1):
        nodes = [tuple(tree.path(leaf)[:level]) for leaf in tree.leaf_of.tolist()]
        written = [tuple(leaf[:level]) for leaf in leaves]
        assert len(set(zip(nodes, written, strict=True))) == len(set(nodes)) == len(set(written))
    tree.save(folder)
    assert LabelTree.load(folder).level_sizes == tree.level_sizes


@settings(deadline=None)
@given(st.integers(1, 200), st.sampled_from([2, 4, 16]))
def test_neighbours_share_parents(leaves, branching):
    tree = tree_of_leaves(np.arange(leaves), leaves, branching, np.arange(leaves), leaves)
    for level in range(tree.depth - 1):
        children = np.bincount(tree.parents[level])
        assert children.max() <= branching
        assert (np.diff(tree.parents[level]) >= 0).all()
    assert (tree.leaves, tree.level_sizes[0]) == (leaves, 1)
    assert (np.diff(tree.clusters.indptr) == 1).all()


def test_members_and_leaves_of_a_label_with_copies():
    tree = tree_of_leaves(np.asarray([0, 1, 2, 2]), 3, 2, np.asarray([0, 1, 2, 0]), 3)
    assert not tree.plain
    assert tree.leaves_of(0).tolist() == [0, 2]
    assert tree.members(2).tolist() == [2, 0]
    assert tree.leaf_sizes.tolist() == [1, 1, 2]


def test_clusters_of_an_index(tmp_path):
    expected = tree_of_leaves(np.asarray([1, 0, 1]), 2, 2, np.arange(3), 3)
    tree = tree_of_clusters(expected.clusters, expected.label_of, 3, 2)
    assert np.array_equal(tree.leaf_of, expected.leaf_of)
    tree.save(tmp_path)
    again = LabelTree.load(tmp_path)
    assert all(np.array_equal(one, other) for one, other in zip(again.parents, tree.parents, strict=True))


@pytest.mark.parametrize(
    ("parents", "label_of", "labels"),
    [
        ([[0, 0], [0, 2]], [0, 1], 2),  # a parent that is not there
        ([[0, 1], [0, 1]], [0, 1], 2),  # two roots
        ([[0, 0], [0, 1]], [0, 2], 2),  # a label that is not there
        ([[0, 0], [0, 1]], [0], 2),
        ([[0, 0], [-1, 1]], [0, 1], 2),
        ([], [], 0),
    ],
)
def test_malformed_trees_are_rejected(parents, label_of, labels):
    arrays = tuple(np.asarray(level, dtype=np.int32) for level in parents)
    with pytest.raises(DataError, match="label tree"):
        LabelTree(arrays, np.asarray(label_of, dtype=np.int32), labels)


def test_damaged_files_are_named(tmp_path):
    tree = read_tree(write(tmp_path, GOOD), 5, NAMES)
    tree.save(tmp_path)
    for name in (FILE, LEAF_NAMES):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
        with pytest.raises(StorageError, match=name):
            LabelTree.load(tmp_path)
        (tmp_path / name).write_bytes(content)
    with np.load(tmp_path / FILE) as archive:
        arrays = dict(archive)
    np.savez(tmp_path / FILE, **{**arrays, "parents1": arrays["parents1"] + 9})
    with pytest.raises(StorageError, match="has parents beyond"):
        LabelTree.load(tmp_path)
