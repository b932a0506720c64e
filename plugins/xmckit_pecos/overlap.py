"""Indexer `overlap`: a label may stand in several leaves (Liu et al. 2021, Algorithm 1).

A tree over the labels and its matcher come first. The matcher says which leaves each training row reaches, M, and
labels move to the leaves that their rows reach: C* = Proj_λ(YᵀM). The matcher is then trained for these leaves.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

from xmckit import Context, Params, Split
from xmckit_pecos.labels import assignment
from xmckit_pecos.labels.assignment import Meaning, Placed, Reached, Worth
from xmckit_pecos.labels.tree import LabelTree
from xmckit_pecos.linear.matrices import features, targets
from xmckit_pecos.linear.options import TOLERANCE
from xmckit_pecos.tree import TreeIndex, TreeIndexer, TreeParams, leaves_facts

MEANING = Meaning()
STAYED = "labels had to stay where they started"
ROUGH = 1.0  # tolerance of a matcher that only says where labels move, by counts of rows that it hardly changes
CONSIDERED = 64  # leaves of a label that compete, the best of them


class OverlapParams(TreeParams):
    copies_per_label: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description='Leaves that a label stands in, at most (λ of the paper); never more than there are. "auto": one, '
        "and a second for labels of which enough rows reach that leaf and not the first, as far as `average` goes.",
    )
    average: float = Field(
        1.3, ge=1, description='With "auto": copies per label on average, at most; leaves have room for as many.'
    )
    cap: Annotated[float, Field(ge=1)] | Literal["none"] = Field(
        1.5,
        description='A leaf holds at most so many times the labels of a leaf if all were equally full. "none": any '
        "number, as in the paper.",
    )
    rounds: int = Field(
        1, ge=0, le=100, description="How often labels move and the matcher is trained anew; 0 moves labels only."
    )
    reach: int = Field(3, ge=1, le=1 << 20, description="Leaves that a training row reaches when labels move.")
    placement: Literal["matched", "random"] = Field(
        "matched", description='"random": as many copies of each label, the further ones in random leaves; to compare.'
    )


class OverlapIndexer(TreeIndexer):
    """The tree of indexer `tree`, in whose leaves labels then stand once or more often, and its matcher."""

    Params: ClassVar[type[Params]] = OverlapParams

    def build(self, train: Split, *, context: Context) -> TreeIndex:
        X, (Y, weights) = features(train.matrix), targets(train)
        first, counts = self._tree(X, Y, context)
        rounds = self.params.rounds
        matcher = self._matcher(X, Y, weights, first, context, ROUGH if rounds else TOLERANCE)
        warnings = self._warnings(first.leaves)
        index = TreeIndex(first, matcher, counts, self.params, context.workers, warnings)
        if first.leaves == 1:
            return index
        copies = None if self.params.copies_per_label == "auto" else min(self.params.copies_per_label, first.leaves)
        for turn in range(max(1, rounds)):
            with context.progress("finding the leaves that rows reach"):
                M = index.reached(X, self.params.reach)
            with context.progress("moving labels to the leaves of their rows"):
                tree, told = moved(first, Y, M, self.params, copies, context.using(seed=context.seed_for(turn)))
            context.log(_summary(told))
            if rounds:
                tolerance = ROUGH if turn + 1 < rounds else TOLERANCE
                matcher = self._matcher(X, Y, weights, tree, context, tolerance)
            index = TreeIndex(tree, matcher, counts, self.params, context.workers, {**told, **warnings})
        return index

    def _warnings(self, leaves: int) -> dict[str, list[str]]:
        copies = self.params.copies_per_label
        if leaves == 1:
            return {"warnings": ["the tree has one leaf only: there is nowhere else for a label to stand"]}
        if copies == "auto" or copies <= leaves:
            return {}
        return {
            "warnings": [
                f"copies_per_label = {copies} is more than the {leaves} leaves: each label has {leaves} at most"
            ]
        }


def moved(
    tree: LabelTree, Y: csr_matrix, M: csr_matrix, params: OverlapParams, copies: int | None, context: Context
) -> tuple[LabelTree, dict[str, Any]]:
    """The same leaves with other labels in them, and what there is to say about the move.

    `tree` has each label once: where labels start, and where those stay that no row reaches.
    """
    start = np.empty(tree.labels, dtype=np.int32)
    start[tree.label_of] = tree.leaf_of
    reached = Reached.of(Y, M)
    seen = np.diff(reached.starts) > 0
    room = room_in(np.bincount(start[seen], minlength=tree.leaves), params, copies)
    beginning = Placed(np.flatnonzero(seen).astype(np.int32), start[seen])
    before = assignment.worth(reached, beginning, context.workers)
    placed, fell_back = _matched(reached, beginning, before, start, seen, room, params, copies, context.workers)
    if params.placement == "random":
        placed = assignment.elsewhere(placed, room, context.rng("overlap"))
    after = assignment.worth(reached, placed, context.workers)
    placed, _ = assignment.best_first(placed, after.rows)
    result = _with_copies(tree, placed, start)
    several = np.bincount(placed.label_of, minlength=tree.labels) > 1
    told = {
        "copies per label": len(placed.label_of) / int(seen.sum()),
        "share of labels with several copies": float(several.sum() / seen.sum()),
        "labels in a leaf": {"before": leaves_facts(tree.leaf_sizes), "after": leaves_facts(result.leaf_sizes)},
        "pairs of a row and its label": Y.nnz,
        "pairs within reach": {"before": before.covered, "after": after.covered},
        "paths to labels": {"before": before.paths, "after": after.paths},
        STAYED: fell_back,
    }
    if copies is not None and params.placement == "matched":
        told["paths to labels"]["at most"] = placed.bound
    return result, told


def room_in(sizes: np.ndarray, params: OverlapParams, copies: int | None) -> np.ndarray:
    """How many labels each leaf may hold; one that starts larger than others may stay as large."""
    if params.cap == "none":
        return np.full(len(sizes), sizes.sum(), dtype=np.int64)
    balanced = sizes.sum() * (params.average if copies is None else copies) / len(sizes)
    return np.maximum(sizes, math.ceil(params.cap * balanced - 1e-9))


def _matched(
    reached: Reached,
    beginning: Placed,
    before: Worth,
    start: np.ndarray,
    seen: np.ndarray,
    room: np.ndarray,
    params: OverlapParams,
    copies: int | None,
    workers: int,
) -> tuple[Placed, bool]:
    """C*, and whether labels had to stay where they started because nothing better was found."""
    found = assignment.candidates(reached, start, max(CONSIDERED, 4 * (copies or 1)), workers)
    if params.cap == "none":
        placed = assignment.best_leaves(found, copies or 1)
    else:
        placed = assignment.with_a_place(assignment.auction(found, copies or 1, room), start, seen, room)
    fell_back = assignment.worth(reached, placed, workers).covered < before.covered
    if fell_back:
        placed = replace(beginning, bound=placed.bound)
        if copies is not None:
            placed = assignment.filled_up(found, placed, copies, room)
    if copies is None:
        budget = int(params.average * seen.sum()) - len(placed.label_of)
        placed = assignment.with_meanings(reached, placed, room, budget, MEANING, workers)
    return placed, fell_back


def _with_copies(tree: LabelTree, placed: Placed, start: np.ndarray) -> LabelTree:
    """The first copy of a label keeps its number, further ones come behind all labels."""
    first = np.ones(len(placed.label_of), dtype=bool)
    first[1:] = placed.label_of[1:] != placed.label_of[:-1]
    leaf_of = start.copy()
    leaf_of[placed.label_of[first]] = placed.leaf_of[first]
    return replace(
        tree,
        parents=(*tree.parents[:-1], np.concatenate([leaf_of, placed.leaf_of[~first]]).astype(np.int32)),
        label_of=np.concatenate([np.arange(tree.labels), placed.label_of[~first]]).astype(np.int32),
    )


def _summary(told: dict[str, Any]) -> str:
    pairs, leaves = told["pairs within reach"], told["labels in a leaf"]
    stayed = "; labels had to stay where they started: no better places were found" if told[STAYED] else ""
    return (
        f"{told['copies per label']:.2f} copies per label; of {told['pairs of a row and its label']:,} pairs of a row "
        f"and its label {pairs['after']:,} are within reach, {pairs['before']:,} before; the largest leaf has "
        f"{leaves['after']['largest']:,} labels, {leaves['before']['largest']:,} before{stayed}"
    )
