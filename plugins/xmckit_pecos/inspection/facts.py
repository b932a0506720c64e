"""Collect facts about the label tree of a run, and about one label of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix
from typing_extensions import TypedDict

from xmckit import Matrix, UsageError, store
from xmckit.data.saved import load_split
from xmckit.errors import nearest
from xmckit.exhibits import Branch
from xmckit.params import PARAMS
from xmckit.runs import Run
from xmckit_pecos.labels.neighbours import similarities, visitors
from xmckit_pecos.labels.report import outline, size_facts
from xmckit_pecos.labels.tree import FILE, LabelTree, label_number
from xmckit_pecos.linear.model import LinearModel
from xmckit_pecos.tree import MATCHER, reached_leaves, read_facts
from xmckit_pecos.xrlinear import MODEL


class _BeamParams(TypedDict):
    """The parameters of an index or head with a tree that matter here."""

    beam: Annotated[int, Field(ge=1)]


class TreeInspector:
    """The label tree of a run: of the index `name`, or of the first index or head that has one."""

    def __init__(self, run: Run, name: str | None = None):
        self.run = run
        self.stage, self.folder = _find_tree(run, name)
        self.tree = LabelTree.load(self.folder)
        self.names = run.label_names()

    def tree_facts(self, most: int) -> dict[str, Any]:
        """Return the levels, nodes and leaf sizes. A node names up to `most` of its most frequent labels."""
        facts = read_facts(self.folder)
        return self._source() | _shape(self.tree) | self._nodes(most) | ({"facts": facts} if facts else {})

    def label_facts(self, name: str, most: int, examples: int) -> dict[str, Any]:
        """Return the leaves of a label, each with its nearest labels and rows, and the nearest of all labels."""
        label = _label(name, self.names)
        X, Y = self.run.training_rows(self.stage)
        counts = np.bincount(Y.indices, minlength=Y.shape[1])
        own = np.flatnonzero(Y[:, [label]].toarray().ravel())
        train = load_split(self.run.train_folder)

        def nearest_labels(labels: np.ndarray, near: np.ndarray) -> list[dict[str, Any]]:
            best = np.lexsort((labels, -near))[: most + 1]
            return [
                {"label": self.names[other], "cosine": round(float(cosine), 4), "rows": int(counts[other])}
                for other, cosine in zip(labels[best].tolist(), near[best], strict=True)
                if other != label
            ][:most]

        def example(row: int) -> dict[str, Any]:
            others = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
            return {
                "row": row,
                **({"name": train.names[row]} if train.names is not None else {}),
                **({"text": train.texts[row]} if train.texts is not None else {}),
                "other_labels": [self.names[other] for other in others if other != label],
            }

        leaves = self.tree.leaves_of(label)
        copies: list[dict[str, Any]] = []
        for leaf, (visiting, first) in zip(
            leaves.tolist(), visitors(self._reached_leaves(X[own]), leaves), strict=True
        ):
            rows, members = own[visiting], np.unique(self.tree.members(leaf))
            near = similarities(X, Y, label, members, rows[:first] if first else None)
            copies.append(
                {
                    "leaf": int(leaf),
                    "path": self.tree.leaf_name(leaf),
                    "size": int(self.tree.leaf_sizes[leaf]),
                    "rows": len(rows),
                    "rows_first": first,
                    "nearest": nearest_labels(members, near),
                    "examples": [example(row) for row in rows[: min(examples, first)].tolist()],
                }
            )
        near = similarities(X, Y, label)
        return self._source() | {
            "label": self.names[label],
            "number": label,
            "rows": len(own),
            "leaves": sorted(copies, key=lambda copy: (-copy["rows_first"], copy["leaf"])),
            "nearest": nearest_labels(np.flatnonzero(near > 0), near[near > 0]),
        }

    def _source(self) -> dict[str, Any]:
        return {"run": str(self.run.path), "index": self.stage.partition("-")[2]}

    def _nodes(self, most: int) -> dict[str, Any]:
        """Return the upper nodes, as many as a report shows."""

        def nodes(branches: Sequence[Branch]) -> list[dict[str, Any]]:
            return [
                {
                    "node": branch.title,
                    "labels": branch.size,
                    "frequent": [self.names[label] for label in branch.labels[:most]],
                    "below": nodes(branch.branches),
                    "more_below": max(0, (branch.of or 0) - len(branch.branches)),
                }
                for branch in branches
            ]

        _, Y = self.run.training_rows()
        branches = outline(self.tree, np.bincount(Y.indices, minlength=self.tree.labels)).branches
        at_top = self.tree.level_sizes[1] if self.tree.depth > 1 else 1
        return {"tree": nodes(branches), "more_nodes": at_top - len(branches)}

    def _reached_leaves(self, X: Matrix) -> csr_matrix:
        """Return rows × leaves, with as many leaves as are searched for a shortlist."""
        depth, params = self.tree.depth, store.read_json(self.folder / PARAMS, _BeamParams)
        matcher = None
        if depth > 1:
            # the model of a head has the level of the labels below its matcher
            stored = self.folder / (MATCHER if (self.folder / MATCHER).is_dir() else MODEL)
            matcher = LinearModel(LinearModel.load(stored).levels[: depth - 1])
        return reached_leaves(matcher, X, params["beam"], 1)


def _find_tree(run: Run, wanted: str | None) -> tuple[str, Path]:
    """Return (stage, folder) of the run's tree: of an index, or of a head that built its own."""
    trees: dict[str, tuple[str, Path]] = {}
    folders = [(stage, run.index_folder(stage.section)) for stage in run.index_stages]
    folders += [(stage, run.head_folder(stage)) for stage in run.head_stages]
    for stage, folder in folders:
        if (folder / FILE).is_file():
            trees.setdefault(stage.section, (stage.name, folder))
    if not trees:
        raise UsageError(f'{run.path} has no label tree: it comes with [index] use = "tree" or a head such as xrlinear')
    if wanted is not None and wanted not in trees:
        raise UsageError(f"{run.path} has no label tree '{wanted}'{nearest(wanted, trees)} (known: {', '.join(trees)})")
    return trees[wanted if wanted is not None else next(iter(trees))]


def _label(name: str, names: Sequence[str]) -> int:
    if name in names:
        return names.index(name)
    if (number := label_number(name, len(names))) is not None:
        return number
    raise UsageError(f"there is no label '{name}'{nearest(name, names)}")


def _shape(tree: LabelTree) -> dict[str, Any]:
    sizes, counts = np.unique(tree.leaf_sizes, return_counts=True)
    return {
        "labels": tree.labels,
        "pseudo_labels": len(tree.label_of),
        "labels_in_several_leaves": int((np.bincount(tree.label_of, minlength=tree.labels) > 1).sum()),
        "depth": tree.depth,
        "leaves": tree.leaves,
        "levels": [
            {"level": level, "nodes": size, "children": size_facts(tree.child_counts(level))}
            for level, size in enumerate(tree.level_sizes[:-1])
        ],
        "leaf_sizes": [
            {"labels": size, "leaves": count} for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)
        ],
    }
