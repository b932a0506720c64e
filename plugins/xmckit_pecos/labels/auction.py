"""Assign labels to leaves that have room for a limited number of labels."""

from __future__ import annotations

import numpy as np
from numba import njit

from xmckit_pecos.labels.assignment import CandidateLeaves, Placement, contains

SMALL = 1000  # copies below which the auction finds the optimum
FINEST = 0.01  # with more copies, bids rise by at least this many rows
PATIENCE, LEAST_PATIENCE = 5, 1 << 17  # bids per copy, and in all, after which they rise in larger steps
COARSER = 4.0


def auction(candidates: CandidateLeaves, copies: int, room: np.ndarray) -> Placement:
    """Maximise Σ C∘(YᵀM), nearly, with at most `copies` leaves per label and `room[k]` labels in leaf k.

    This is Bertsekas's auction for transportation problems. Each copy bids for the leaf that gains it most, up to the
    price that makes its second best as good. A full leaf drops its lowest bidder, which bids again, and from then on
    costs its lowest bid. A copy that finds no leaf worth its price is left out. The result is at most one step of the
    bids per copy below the optimum. Steps below 1 / copies reach the optimum, because counts are whole numbers. The
    prices give an upper bound for any size of the steps.
    """
    wanted = np.minimum(np.diff(candidates.starts), copies).astype(np.int64)
    slots = int(wanted.sum())
    patience = max(PATIENCE * slots, LEAST_PATIENCE)
    # steps below 1 / copies are for small problems only: among labels that want the same, prices rise one step a bid
    step = 1 / (slots + 1) if slots < SMALL else FINEST
    label_of = np.repeat(np.arange(len(wanted), dtype=np.int32), wanted)
    leaf_of, price = _auction(candidates, label_of, wanted, room.astype(np.int64), step, patience)
    bound = _dual(candidates, copies, price) + float((price * room).sum())
    inside = leaf_of >= 0
    return Placement(label_of[inside], leaf_of[inside], bound)


@njit(cache=True, nogil=True)
def _auction(
    candidates: CandidateLeaves,
    label_of: np.ndarray,
    wanted: np.ndarray,
    room: np.ndarray,
    step: float,
    patience: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (leaf of each slot or −1, price of each leaf). A slot is a copy that a label may get."""
    starts, leaves, counts = candidates.starts, candidates.leaves, candidates.counts
    slots, all_leaves = len(label_of), len(room)
    slot_starts = np.zeros(len(wanted) + 1, np.int64)
    slot_starts[1:] = np.cumsum(wanted)
    leaf_of = np.full(slots, -1, np.int32)
    bids = np.zeros(slots)
    # the bidders of each leaf are a heap, lowest bid first
    heap_starts = np.zeros(all_leaves + 1, np.int64)
    heap_starts[1:] = np.cumsum(np.minimum(room, slots))
    heap = np.empty(heap_starts[-1], np.int64)
    sizes = np.zeros(all_leaves, np.int64)
    price = np.zeros(all_leaves)
    queue = np.arange(slots)
    head, waiting, bids_made = 0, slots, 0
    while waiting:
        slot = queue[head]
        head = head + 1 if head + 1 < slots else 0
        waiting -= 1
        label = label_of[slot]
        best, second, chosen, value = 0.0, 0.0, -1, 0.0
        for i in range(starts[label], starts[label + 1]):
            leaf = leaves[i]
            profit = counts[i] - price[leaf]
            if profit <= second or contains(leaf_of, slot_starts[label], slot_starts[label + 1], leaf):
                continue
            if profit > best:
                best, second, chosen, value = profit, best, leaf, counts[i]
            else:
                second = profit
        if chosen < 0:
            continue
        bids_made += 1
        if bids_made > patience:
            bids_made, step = 0, step * COARSER
        leaf_of[slot], bids[slot] = chosen, value - second + step
        begin = heap_starts[chosen]
        if sizes[chosen] < heap_starts[chosen + 1] - begin:
            _push(heap, begin, sizes[chosen], slot, bids)
            sizes[chosen] += 1
        else:
            out = heap[begin]
            leaf_of[out] = -1
            _replace_lowest(heap, begin, sizes[chosen], slot, bids)
            queue[(head + waiting) % slots] = out
            waiting += 1
        if sizes[chosen] == heap_starts[chosen + 1] - begin:
            price[chosen] = bids[heap[begin]]
    return leaf_of, price


@njit(cache=True, nogil=True)
def _push(heap: np.ndarray, begin: int, size: int, slot: int, bids: np.ndarray) -> None:
    """Add `slot` to a heap of `size`."""
    position = size
    while position:
        above = (position - 1) // 2
        if bids[heap[begin + above]] <= bids[slot]:
            break
        heap[begin + position] = heap[begin + above]
        position = above
    heap[begin + position] = slot


@njit(cache=True, nogil=True)
def _replace_lowest(heap: np.ndarray, begin: int, size: int, slot: int, bids: np.ndarray) -> None:
    """Replace the lowest bidder of a heap by `slot`."""
    position = 0
    while 2 * position + 1 < size:
        below = 2 * position + 1
        if below + 1 < size and bids[heap[begin + below + 1]] < bids[heap[begin + below]]:
            below += 1
        if bids[heap[begin + below]] >= bids[slot]:
            break
        heap[begin + position] = heap[begin + below]
        position = below
    heap[begin + position] = slot


@njit(cache=True, nogil=True)
def _dual(candidates: CandidateLeaves, copies: int, price: np.ndarray) -> float:
    """Sum what all labels gain at these prices in their best `copies` leaves. Leaves that were cut cost nothing."""
    total = 0.0
    for label in range(len(candidates.starts) - 1):
        begin, end = candidates.starts[label], candidates.starts[label + 1]
        size = end - begin
        profits = np.empty(size + copies)
        for i in range(size):
            profits[i] = candidates.counts[begin + i] - price[candidates.leaves[begin + i]]
        profits[size:] = candidates.cut[label]
        profits.sort()
        for i in range(size, size + copies):
            total += max(profits[i], 0.0)
    return total


def place_remaining(placement: Placement, start: np.ndarray, wanted: np.ndarray, room: np.ndarray) -> Placement:
    """Place `wanted` labels that were left out in their `start` leaf or, if it is full, in the nearest with room."""
    placed = np.bincount(placement.label_of, minlength=len(start)) > 0
    remaining = np.flatnonzero(wanted & ~placed).astype(np.int32)
    return placement.add(remaining, _nearest_leaves(start[remaining], placement.room_left(room)))


@njit(cache=True, nogil=True)
def _nearest_leaves(start: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Find for each label the leaf with room that has the nearest number to its own: neighbours share a parent."""
    result = np.empty(len(start), np.int32)
    for i in range(len(start)):
        for away in range(len(left)):
            low, high = start[i] - away, start[i] + away
            if low >= 0 and left[low] > 0:
                chosen = low
                break
            if high < len(left) and left[high] > 0:
                chosen = high
                break
        else:
            raise ValueError("there is not enough room for every label")
        result[i] = chosen
        left[chosen] -= 1
    return result
