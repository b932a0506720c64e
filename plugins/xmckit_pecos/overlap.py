"""Indexer `overlap`: a tree in which a label may be in several leaves (Liu et al. 2021, Algorithm 1).

A tree over the labels and its matcher come first. The matcher gives the leaves that each training row reaches, M, and
labels move to the leaves that their rows reach: C* = Proj_λ(YᵀM). Then the matcher is trained for these leaves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import Context, Params, Split
from xmckit_pecos.labels import assignment, auction, meanings
from xmckit_pecos.labels.assignment import Placement, Reachability
from xmckit_pecos.labels.report import leaf_size_facts
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import TrainingRows
from xmckit_pecos.linear.options import TOLERANCE
from xmckit_pecos.tree import TreeIndex, TreeIndexer, TreeParams

RULE = meanings.MeaningRule()
STAYED = "labels had to stay where they started"
ROUGH = 1.0  # tolerance of a matcher that only moves labels: the counts of rows hardly depend on it
CONSIDERED = 64  # leaves of a label that compete, the best of them


class OverlapParams(TreeParams):
    copies_per_label: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description='Leaves that hold a label, at most (λ of the paper); never more than there are leaves. "auto": '
        "one, and a second if enough rows of the label reach that leaf and not the first, as far as `average` allows.",
    )
    average: float = Field(
        1.3, ge=1, description='With "auto": copies per label on average, at most. Leaves have room for as many.'
    )
    cap: Annotated[float, Field(ge=1)] | Literal["none"] = Field(
        1.5,
        description='Limit on the labels in a leaf, as a multiple of the average over all leaves. "none": no limit, '
        "as in the paper.",
    )
    rounds: int = Field(
        1,
        ge=0,
        le=100,
        description="How often labels move and the matcher is retrained. 0: labels move once, the matcher stays.",
    )
    reach: int = Field(3, ge=1, le=1 << 20, description="Leaves that a training row reaches when labels move.")
    placement: Literal["matched", "random"] = Field(
        "matched", description='"random": the same number of copies, the further ones in random leaves; a baseline.'
    )


class OverlapIndexer(TreeIndexer):
    """Build the tree of indexer `tree`, move labels to one or more of its leaves, and train its matcher."""

    Params: ClassVar[type[Params]] = OverlapParams

    def build(self, train: Split, *, context: Context) -> TreeIndex:
        rows, rounds = TrainingRows.from_split(train), self.params.rounds
        first, counts = self._tree(rows, context), rows.label_counts
        matcher = self._matcher(rows, first, context, ROUGH if rounds else TOLERANCE)
        warnings = self._warnings(first.leaves)
        index = TreeIndex(first, matcher, counts, self.params, context.workers, warnings)
        if first.leaves == 1:
            return index
        for turn in range(max(1, rounds)):
            with context.progress("finding the leaves that rows reach"):
                M = index.reached_leaves(rows.X, self.params.reach)
            with context.progress("moving labels to the leaves of their rows"):
                tree, facts = move_labels(first, rows.Y, M, self.params, context.using(seed=context.seed_for(turn)))
            context.log(_summary(facts))
            if rounds:
                tolerance = ROUGH if turn + 1 < rounds else TOLERANCE
                matcher = self._matcher(rows, tree, context, tolerance)
            index = TreeIndex(tree, matcher, counts, self.params, context.workers, {**facts, **warnings})
        return index

    def _warnings(self, leaves: int) -> dict[str, list[str]]:
        copies = self.params.copies_per_label
        if leaves == 1:
            return {"warnings": ["the tree has one leaf only: a label has no other leaf to be in"]}
        if copies == "auto" or copies <= leaves:
            return {}
        return {
            "warnings": [
                f"copies_per_label = {copies} is more than the {leaves} leaves: each label has {leaves} at most"
            ]
        }


def move_labels(
    tree: LabelTree, Y: csr_matrix, M: csr_matrix, params: OverlapParams, context: Context
) -> tuple[LabelTree, dict[str, Any]]:
    """Return a tree with the same leaves and other labels in them, and facts about the move.

    `tree` has each label once, in the leaf where it starts. Labels on no row stay there. All labels stay if C* covers
    fewer pairs.
    """
    copies = None if params.copies_per_label == "auto" else min(params.copies_per_label, tree.leaves)
    workers = context.workers
    start = np.empty(tree.labels, dtype=np.int32)
    start[tree.label_of] = tree.leaf_of
    reach = Reachability.from_matrices(Y, M)
    seen = np.diff(reach.starts) > 0
    room = room_in_leaves(np.bincount(start[seen], minlength=tree.leaves), params, copies)
    partition = Placement(np.flatnonzero(seen).astype(np.int32), start[seen])
    before = assignment.evaluate(reach, partition, workers)
    candidates = assignment.candidate_leaves(reach, start, max(CONSIDERED, 4 * (copies or 1)), workers)
    if params.cap == "none":
        placement = assignment.best_leaves(candidates, copies or 1)
    else:
        placement = auction.place_remaining(auction.auction(candidates, copies or 1, room), start, seen, room)
    fell_back = assignment.evaluate(reach, placement, workers).covered < before.covered
    if fell_back:
        placement = replace(partition, bound=placement.bound)
        if copies is not None:
            placement = meanings.fill_up(candidates, placement, copies, room)
    if copies is None:
        budget = int(params.average * seen.sum()) - len(placement.label_of)
        placement = meanings.add_meanings(reach, placement, room, budget, RULE, workers)
    if params.placement == "random":
        placement = meanings.scatter_copies(placement, room, context.rng("overlap"))
    after = assignment.evaluate(reach, placement, workers)
    placement = placement.best_first(after.rows)
    result = _tree_with_copies(tree, placement, start)
    several = np.bincount(placement.label_of, minlength=tree.labels) > 1
    facts = {
        "copies per label": len(placement.label_of) / int(seen.sum()),
        "share of labels with several copies": float(several.sum() / seen.sum()),
        "labels in a leaf": {"before": leaf_size_facts(tree), "after": leaf_size_facts(result)},
        "pairs of a row and its label": Y.nnz,
        "pairs within reach": {"before": before.covered, "after": after.covered},
        "paths to labels": {"before": before.paths, "after": after.paths},
        STAYED: fell_back,
    }
    if copies is not None and params.placement == "matched":
        facts["paths to labels"]["at most"] = placement.bound
    return result, facts


def room_in_leaves(sizes: np.ndarray, params: OverlapParams, copies: int | None) -> np.ndarray:
    """Return how many labels each leaf may hold. A leaf that starts larger than that may stay as large."""
    if params.cap == "none":
        return np.full(len(sizes), sizes.sum(), dtype=np.int64)
    balanced = sizes.sum() * (params.average if copies is None else copies) / len(sizes)
    return np.maximum(sizes, math.ceil(params.cap * balanced - 1e-9))


def _tree_with_copies(tree: LabelTree, placement: Placement, start: np.ndarray) -> LabelTree:
    """Number the first copy of each label as the label itself, and further copies from the number of labels on."""
    first, label_of, placed_in = placement.first_copies, placement.label_of, placement.leaf_of
    leaf_of = start.copy()
    leaf_of[label_of[first]] = placed_in[first]
    return replace(
        tree,
        parents=(*tree.parents[:-1], np.concatenate([leaf_of, placed_in[~first]]).astype(np.int32)),
        label_of=np.concatenate([np.arange(tree.labels), label_of[~first]]).astype(np.int32),
    )


def _summary(facts: dict[str, Any]) -> str:
    pairs, leaves = facts["pairs within reach"], facts["labels in a leaf"]
    stayed = "; all labels stayed in their first leaves: no better leaves were found" if facts[STAYED] else ""
    return (
        f"{facts['copies per label']:.2f} copies per label; of {facts['pairs of a row and its label']:,} pairs of a "
        f"row and its label {pairs['after']:,} are within reach, {pairs['before']:,} before; the largest leaf has "
        f"{leaves['after']['largest']:,} labels, {leaves['before']['largest']:,} before{stayed}"
    )
