"""Give labels further copies: to those with a second meaning, up to a number for all, or in random leaves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numba import njit

from xmckit_pecos.labels.assignment import CandidateLeaves, Placement, Reachability, contains

SWEEPS = 4  # how often labels look for another leaf when the one that they wanted has filled up


class MeaningRule(NamedTuple):
    """When a label gets one more copy. Compiled kernels take it as it is.

    At least `rows` of its rows, and this `share` of them, reach the new leaf and none of the leaves that hold the
    label already. A label has at most `most` copies in the end.
    """

    rows: int = 1
    share: float = 0.05
    most: int = 2


def add_meanings(
    reach: Reachability, placement: Placement, room: np.ndarray, budget: int, rule: MeaningRule, workers: int
) -> Placement:
    """Add up to `budget` copies, each where it covers most rows of its label that no copy of it covers yet.

    The strongest evidence comes first: rows won, divided by the square root of the label's rows, which is how much such
    a number varies by chance. Leaves take copies until they are full. Labels that come too late look for another leaf.
    """
    left = placement.room_left(room)
    variation = np.sqrt(np.maximum(np.diff(reach.starts), 1))
    unlimited = np.full(reach.labels, budget)
    for _ in range(SWEEPS):
        wanted = partial(_find_copies, reach, placement.starts(reach.labels), placement.leaf_of, left, rule)
        label, leaf, gain = np.concatenate(reach.map_blocks(wanted, workers), axis=1)
        order = np.lexsort((leaf, label, -gain / variation[label]))
        taken, full = _take(label, leaf, order, left, unlimited, budget)
        placement = placement.add(label[taken], leaf[taken])
        budget -= len(taken)
        if not full or not budget:
            break
    return placement


@njit(cache=True, nogil=True)
def _find_copies(
    reach: Reachability,
    copy_starts: np.ndarray,
    copy_leaves: np.ndarray,
    left: np.ndarray,
    rule: MeaningRule,
    first: int,
    last: int,
) -> np.ndarray:
    """Return (label, leaf, rows won) of the copies that labels would take one by one, each the best of them."""
    used, wanted = 0, np.empty((3, (last - first) * rule.most), np.int32)
    owner = np.full(reach.leaves, -1, np.int64)
    count_of, touched = np.zeros(reach.leaves, np.int32), np.empty(reach.leaves, np.int32)
    open_rows = np.empty(np.diff(reach.starts[first : last + 1]).max(), np.int32)
    for label in range(first, last):
        size, copies = reach.starts[label + 1] - reach.starts[label], copy_starts[label + 1] - copy_starts[label]
        least = max(rule.rows, int(np.ceil(rule.share * size)))
        if size < least:
            continue
        for leaf in copy_leaves[copy_starts[label] : copy_starts[label + 1]]:
            owner[leaf] = label
        open_rows[:size] = reach.rows[reach.starts[label] : reach.starts[label + 1]]
        waiting = _drop_covered(reach, open_rows, size, owner, label)
        while copies < rule.most and waiting >= least:
            gain, leaf = _best_leaf(reach, open_rows[:waiting], left, count_of, touched)
            if gain < least:
                break
            wanted[0, used], wanted[1, used], wanted[2, used] = label, leaf, gain
            used += 1
            copies += 1
            owner[leaf] = label
            waiting = _drop_covered(reach, open_rows, waiting, owner, label)
    return wanted[:, :used].copy()


@njit(cache=True, nogil=True)
def _drop_covered(reach: Reachability, rows: np.ndarray, size: int, owner: np.ndarray, label: int) -> int:
    """Move the rows that reach no leaf of `label` to the front of `rows[:size]`, and count them."""
    kept = 0
    for i in range(size):
        row, covered = rows[i], False
        for path in range(reach.row_starts[row], reach.row_starts[row + 1]):
            covered |= owner[reach.row_leaves[path]] == label
        if not covered:
            rows[kept] = row
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _best_leaf(
    reach: Reachability, rows: np.ndarray, left: np.ndarray, count_of: np.ndarray, touched: np.ndarray
) -> tuple[int, int]:
    """Return (rows, leaf): the leaf with room that most rows reach, the first of equals. `count_of` stays all zeros."""
    seen = 0
    for row in rows:
        for path in range(reach.row_starts[row], reach.row_starts[row + 1]):
            leaf = reach.row_leaves[path]
            if left[leaf] > 0:
                if count_of[leaf] == 0:
                    touched[seen] = leaf
                    seen += 1
                count_of[leaf] += 1
    best, chosen = 0, -1
    for leaf in touched[:seen]:
        if count_of[leaf] > best or (count_of[leaf] == best and leaf < chosen):
            best, chosen = count_of[leaf], leaf
        count_of[leaf] = 0
    return best, chosen


@njit(cache=True, nogil=True)
def _take(
    label: np.ndarray, leaf: np.ndarray, order: np.ndarray, left: np.ndarray, wanted: np.ndarray, budget: int
) -> tuple[np.ndarray, bool]:
    """Take copies in `order`, up to `budget` in all and `wanted[l]` of label l, while their leaves have room.

    Return the copies taken, and whether one found its leaf full.
    """
    taken, full, used = np.empty(len(order), np.int64), False, 0
    for copy in order:
        if used == budget:
            break
        if left[leaf[copy]] <= 0:
            full = True
        elif wanted[label[copy]] > 0:
            left[leaf[copy]] -= 1
            wanted[label[copy]] -= 1
            taken[used] = copy
            used += 1
    return taken[:used].copy(), full


def fill_up(candidates: CandidateLeaves, placement: Placement, copies: int, room: np.ndarray) -> Placement:
    """Add copies, the largest of YᵀM first, until labels have `copies` or leaves are full."""
    labels, leaf = len(candidates.starts) - 1, candidates.leaves
    label = np.repeat(np.arange(labels, dtype=np.int32), np.diff(candidates.starts))
    pairs, held = (numbers.astype(np.int64) * len(room) for numbers in (label, placement.label_of))
    new = np.flatnonzero(~np.isin(pairs + leaf, held + placement.leaf_of))
    order = new[np.lexsort((leaf[new], label[new], -candidates.counts[new]))]
    wanted = copies - np.bincount(placement.label_of, minlength=labels)
    taken, _ = _take(label, leaf, order, placement.room_left(room), wanted, len(order))
    return placement.add(label[taken], leaf[taken])


def scatter_copies(placement: Placement, room: np.ndarray, rng: np.random.Generator) -> Placement:
    """Keep the first copy of each label and move its further copies to random leaves with room."""
    first, label_of = placement.first_copies, placement.label_of
    left = room - np.bincount(placement.leaf_of[first], minlength=len(room))
    further = rng.permutation(np.flatnonzero(~first))
    leaf_of = placement.leaf_of.copy()
    leaf_of[~first] = -1
    starts, ends = (np.searchsorted(label_of, label_of[further], side=side) for side in ("left", "right"))
    _scatter(leaf_of, further, starts, ends, rng.random(len(further)), left)
    kept = leaf_of >= 0
    return replace(placement, label_of=label_of[kept], leaf_of=leaf_of[kept])


@njit(cache=True, nogil=True)
def _scatter(
    leaf_of: np.ndarray, further: np.ndarray, starts: np.ndarray, ends: np.ndarray, draws: np.ndarray, left: np.ndarray
) -> None:
    """Move each copy to the leaf that was drawn or, if it is full or holds the label already, to the next one free."""
    for i in range(len(further)):
        drawn = int(draws[i] * len(left))
        for away in range(len(left)):
            leaf = (drawn + away) % len(left)
            if left[leaf] > 0 and not contains(leaf_of, starts[i], ends[i], leaf):
                leaf_of[further[i]] = leaf
                left[leaf] -= 1
                break
