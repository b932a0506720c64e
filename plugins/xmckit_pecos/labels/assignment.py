"""Which labels stand in which leaves, once a matcher is there: C* of Liu et al. 2021, with room for so many in a leaf.

M says which leaves each training row reaches, so that (YᵀM)[l, k] counts the rows of label l that reach leaf k. Nothing
here is labels × leaves: a label's counts are made in a scratch line of its thread, and only its best leaves are kept.
What is computed label by label is spread over threads, and the result is the same whatever their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csc_matrix, csr_matrix

BLOCKS_PER_WORKER = 4  # labels are not all as much work
SMALL = 1000  # copies up to which the optimum is looked for
FINEST = 0.01  # bids for more copies rise by at least this many rows
PATIENCE, LEAST_PATIENCE = 5, 1 << 17  # bids per copy, and in all, after which they rise in larger steps
COARSER = 4.0
SWEEPS = 4  # how often labels look again when a leaf that they wanted has filled up


@dataclass(frozen=True)
class Reached:
    """The rows of each label (Y by column) and the leaves that each row reaches (M by row)."""

    starts: np.ndarray
    rows: np.ndarray
    row_starts: np.ndarray
    row_leaves: np.ndarray
    labels: int
    leaves: int

    @classmethod
    def of(cls, Y: csr_matrix, M: csr_matrix) -> Reached:
        by_label = csc_matrix(Y)
        return cls(
            by_label.indptr.astype(np.int64),
            by_label.indices.astype(np.int32),
            M.indptr.astype(np.int64),
            M.indices.astype(np.int32),
            Y.shape[1],
            M.shape[1],
        )

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.starts, self.rows, self.row_starts, self.row_leaves

    def blocks(self, workers: int) -> list[tuple[int, int]]:
        """Ranges of labels with about as many pairs in each."""
        pairs = self.starts[-1]
        cuts = np.searchsorted(self.starts, np.linspace(0, pairs, workers * BLOCKS_PER_WORKER + 1)[1:-1])
        edges = np.unique(np.concatenate([[0], cuts, [self.labels]])).tolist()
        return list(itertools.pairwise(edges))

    def each(self, function: Callable[[int, int], Any], workers: int) -> list[Any]:
        """`function` over ranges of labels, on threads; results in the order of the labels."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda block: function(*block), self.blocks(workers)))


@dataclass(frozen=True)
class Candidates:
    """The best entries of each row of YᵀM, best first and of equal ones the first leaf first.

    `cut[l]` is an upper bound of what was left out of label l's row, 0 where nothing was.
    """

    starts: np.ndarray
    leaves: np.ndarray
    counts: np.ndarray
    cut: np.ndarray


def candidates(reached: Reached, start: np.ndarray, most: int, workers: int) -> Candidates:
    """Up to `most` leaves of each label, among them the one where it `start`s, if a row of it gets there."""

    def some(first: int, last: int) -> tuple[np.ndarray, ...]:
        return _candidates(*reached.arrays, start, first, last, most, reached.leaves)

    parts = reached.each(some, workers)
    sizes, leaves, counts, cut = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Candidates(np.concatenate([[0], np.cumsum(sizes)]), leaves, counts, cut)


@njit(cache=True, nogil=True)
def _candidates(
    starts: np.ndarray,
    rows: np.ndarray,
    row_starts: np.ndarray,
    row_leaves: np.ndarray,
    start: np.ndarray,
    first: int,
    last: int,
    most: int,
    all_leaves: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    bound = 0
    for label in range(first, last):
        paths = 0
        for place in range(starts[label], starts[label + 1]):
            paths += row_starts[rows[place] + 1] - row_starts[rows[place]]
        bound += min(paths, most)
    sizes, cut = np.zeros(last - first, np.int64), np.zeros(last - first, np.int32)
    leaves, counts = np.empty(bound, np.int32), np.empty(bound, np.int32)
    count_of = np.zeros(all_leaves, np.int32)
    touched = np.empty(all_leaves, np.int32)
    keys = np.empty(all_leaves, np.int64)
    used = 0
    for label in range(first, last):
        found = 0
        for place in range(starts[label], starts[label + 1]):
            row = rows[place]
            for path in range(row_starts[row], row_starts[row + 1]):
                leaf = row_leaves[path]
                if count_of[leaf] == 0:
                    touched[found] = leaf
                    found += 1
                count_of[leaf] += 1
        # sorted upwards, the most rows come first, and of equal ones the first leaf
        for place in range(found):
            keys[place] = (-np.int64(count_of[touched[place]])) * all_leaves + touched[place]
        keys[:found].sort()
        kept = min(found, most)
        for place in range(kept):
            leaf = keys[place] % all_leaves
            leaves[used + place], counts[used + place] = leaf, count_of[leaf]
        if kept < found:
            cut[label - first] = count_of[keys[kept] % all_leaves]
            own = start[label]
            if count_of[own] and not _among(leaves, used, used + kept, own):
                cut[label - first] = counts[used + kept - 1]
                leaves[used + kept - 1], counts[used + kept - 1] = own, count_of[own]
        sizes[label - first] = kept
        used += kept
        for place in range(found):
            count_of[touched[place]] = 0
    return sizes, leaves[:used].copy(), counts[:used].copy(), cut


@njit(cache=True, nogil=True)
def _among(leaves: np.ndarray, start: int, end: int, leaf: int) -> bool:
    for place in range(start, end):  # noqa: SIM110, numba has no any()
        if leaves[place] == leaf:
            return True
    return False


# What an assignment is worth -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """Copies (label, leaf), by label. `bound`: no assignment that keeps the same limits has more of Σ C∘(YᵀM)."""

    label_of: np.ndarray
    leaf_of: np.ndarray
    bound: float = np.inf

    def starts(self, labels: int) -> np.ndarray:
        """Where the copies of each label begin."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.label_of, minlength=labels))])

    def plus(self, label_of: np.ndarray, leaf_of: np.ndarray) -> Placed:
        """With more copies, those of a label behind the ones that it has."""
        label_of = np.concatenate([self.label_of, label_of])
        order = np.argsort(label_of, kind="stable")
        return replace(self, label_of=label_of[order], leaf_of=np.concatenate([self.leaf_of, leaf_of])[order])

    def left_of(self, room: np.ndarray) -> np.ndarray:
        return room - np.bincount(self.leaf_of, minlength=len(room))


@dataclass(frozen=True)
class Worth:
    """`covered`: Tr(YᵀBinary(MCᵀ)), pairs of a row and its label where the row reaches a leaf of the label.
    `rows`: for each copy, the rows of its label that reach its leaf; they sum up to Σ C∘(YᵀM).
    """

    covered: int
    rows: np.ndarray

    @property
    def paths(self) -> int:
        return int(self.rows.sum())


def worth(reached: Reached, placed: Placed, workers: int) -> Worth:
    starts = placed.starts(reached.labels)

    def some(first: int, last: int) -> tuple[int, np.ndarray]:
        return _worth(*reached.arrays, starts, placed.leaf_of, first, last, reached.leaves)

    found = reached.each(some, workers)
    return Worth(sum(part[0] for part in found), np.concatenate([part[1] for part in found]))


@njit(cache=True, nogil=True)
def _worth(
    starts: np.ndarray,
    rows: np.ndarray,
    row_starts: np.ndarray,
    row_leaves: np.ndarray,
    copy_starts: np.ndarray,
    copy_leaves: np.ndarray,
    first: int,
    last: int,
    all_leaves: int,
) -> tuple[int, np.ndarray]:
    before = copy_starts[first]
    copy_at = np.full(all_leaves, -1, np.int64)
    hits = np.zeros(copy_starts[last] - before, np.int64)
    covered = 0
    for label in range(first, last):
        for copy in range(copy_starts[label], copy_starts[label + 1]):
            copy_at[copy_leaves[copy]] = copy - before
        for place in range(starts[label], starts[label + 1]):
            row, hit = rows[place], False
            for path in range(row_starts[row], row_starts[row + 1]):
                copy = copy_at[row_leaves[path]]
                if copy >= 0:
                    hits[copy] += 1
                    hit = True
            covered += hit
        for copy in range(copy_starts[label], copy_starts[label + 1]):
            copy_at[copy_leaves[copy]] = -1
    return covered, hits


def best_first(placed: Placed, rows: np.ndarray) -> tuple[Placed, np.ndarray]:
    """The copies of a label by the rows that reach them, most first, and these numbers."""
    order = np.lexsort((placed.leaf_of, -rows, placed.label_of))
    return replace(placed, label_of=placed.label_of[order], leaf_of=placed.leaf_of[order]), rows[order]


# Room for so many labels in a leaf -----------------------------------------------------------------------------------


def best_leaves(found: Candidates, copies: int) -> Placed:
    """Proj_λ(YᵀM), equation (10): the first `copies` candidates of each label."""
    sizes = np.minimum(np.diff(found.starts), copies)
    places = np.arange(sizes.sum()) + np.repeat(found.starts[:-1] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    label_of = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return Placed(label_of, found.leaves[places], float(found.counts[places].sum()))


def auction(found: Candidates, copies: int, room: np.ndarray) -> Placed:
    """The largest Σ C∘(YᵀM) with at most `copies` leaves a label and `room[k]` labels in leaf k, nearly.

    Greedy, with a repair that has a price: each copy bids for the leaf that gives it most, up to what makes its second
    best as good; a full leaf gives up its lowest bidder, who bids again, and costs its lowest bid from then on
    (Bertsekas's auction for transportation problems). A copy that finds no leaf worth its price stays out. The result
    is at most one step of the bids per copy below the optimum, and with steps below 1 / copies it is the optimum,
    because the counts are whole; the prices also give an upper bound, whatever the steps were.
    """
    wanted = np.minimum(np.diff(found.starts), copies).astype(np.int64)
    slots = int(wanted.sum())
    patience = max(PATIENCE * slots, LEAST_PATIENCE)
    # steps below 1 / copies are only for the small: prices of rows that all want the same rise by one step at a time
    step = 1 / (slots + 1) if slots < SMALL else FINEST
    leaf_of, price = _auction(found.starts, found.leaves, found.counts, wanted, room.astype(np.int64), step, patience)
    label_of = np.repeat(np.arange(len(wanted), dtype=np.int32), wanted)
    bound = _dual(found.starts, found.leaves, found.counts, found.cut, copies, price) + float((price * room).sum())
    inside = leaf_of >= 0
    return Placed(label_of[inside], leaf_of[inside], bound)


@njit(cache=True, nogil=True)
def _auction(
    starts: np.ndarray,
    leaves: np.ndarray,
    counts: np.ndarray,
    wanted: np.ndarray,
    room: np.ndarray,
    step: float,
    patience: int,
) -> tuple[np.ndarray, np.ndarray]:
    labels, all_leaves = len(wanted), len(room)
    slot_starts = np.zeros(labels + 1, np.int64)
    slot_starts[1:] = np.cumsum(wanted)
    slots = slot_starts[-1]
    label_of = np.empty(slots, np.int32)
    for label in range(labels):
        label_of[slot_starts[label] : slot_starts[label + 1]] = label
    leaf_of = np.full(slots, -1, np.int32)
    bids = np.zeros(slots)
    # the bidders of each leaf as a heap, the lowest bid first
    heap_starts = np.zeros(all_leaves + 1, np.int64)
    heap_starts[1:] = np.cumsum(np.minimum(room, slots))
    heap = np.empty(heap_starts[-1], np.int64)
    sizes = np.zeros(all_leaves, np.int64)
    price = np.zeros(all_leaves)
    queue = np.arange(slots)
    head, waiting, made = 0, slots, 0
    while waiting:
        slot = queue[head]
        head = head + 1 if head + 1 < slots else 0
        waiting -= 1
        label = label_of[slot]
        best, second, chosen, value = 0.0, 0.0, -1, 0.0
        for place in range(starts[label], starts[label + 1]):
            leaf = leaves[place]
            profit = counts[place] - price[leaf]
            if profit <= second or _among(leaf_of, slot_starts[label], slot_starts[label + 1], leaf):
                continue
            if profit > best:
                best, second, chosen, value = profit, best, leaf, counts[place]
            else:
                second = profit
        if chosen < 0:
            continue
        made += 1
        if made > patience:
            made, step = 0, step * COARSER
        leaf_of[slot], bids[slot] = chosen, value - second + step
        begin = heap_starts[chosen]
        if sizes[chosen] < heap_starts[chosen + 1] - begin:
            _sift_up(heap, begin, sizes[chosen], slot, bids)
            sizes[chosen] += 1
        else:
            out = heap[begin]
            leaf_of[out] = -1
            _sift_down(heap, begin, sizes[chosen], slot, bids)
            queue[(head + waiting) % slots] = out
            waiting += 1
        if sizes[chosen] == heap_starts[chosen + 1] - begin:
            price[chosen] = bids[heap[begin]]
    return leaf_of, price


@njit(cache=True, nogil=True)
def _sift_up(heap: np.ndarray, begin: int, size: int, slot: int, bids: np.ndarray) -> None:
    """Add `slot` to a heap of `size`."""
    place = size
    while place:
        above = (place - 1) // 2
        if bids[heap[begin + above]] <= bids[slot]:
            break
        heap[begin + place] = heap[begin + above]
        place = above
    heap[begin + place] = slot


@njit(cache=True, nogil=True)
def _sift_down(heap: np.ndarray, begin: int, size: int, slot: int, bids: np.ndarray) -> None:
    """Put `slot` in the place of the lowest."""
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and bids[heap[begin + below + 1]] < bids[heap[begin + below]]:
            below += 1
        if bids[heap[begin + below]] >= bids[slot]:
            break
        heap[begin + place] = heap[begin + below]
        place = below
    heap[begin + place] = slot


@njit(cache=True, nogil=True)
def _dual(
    starts: np.ndarray, leaves: np.ndarray, counts: np.ndarray, cut: np.ndarray, copies: int, price: np.ndarray
) -> float:
    """What all labels gain at these prices, each in the best `copies` leaves; what was cut costs nothing."""
    total = 0.0
    for label in range(len(starts) - 1):
        size = starts[label + 1] - starts[label]
        profits = np.empty(size + copies)
        for place in range(size):
            profits[place] = counts[starts[label] + place] - price[leaves[starts[label] + place]]
        profits[size:] = cut[label]
        profits.sort()
        for place in range(size, size + copies):
            total += max(profits[place], 0.0)
    return total


def with_a_place(placed: Placed, start: np.ndarray, wanted: np.ndarray, room: np.ndarray) -> Placed:
    """Labels that are `wanted` and stayed out stand where they did at the start or, where that is full, next to it."""
    inside = np.bincount(placed.label_of, minlength=len(start)) > 0
    outside = np.flatnonzero(wanted & ~inside).astype(np.int32)
    return placed.plus(outside, _next_to(start[outside], placed.left_of(room)))


@njit(cache=True, nogil=True)
def _next_to(start: np.ndarray, left: np.ndarray) -> np.ndarray:
    """For each label a leaf with room, as near to its own as there is: neighbours share a parent."""
    result = np.empty(len(start), np.int32)
    for place in range(len(start)):
        for away in range(len(left)):
            low, high = start[place] - away, start[place] + away
            if low >= 0 and left[low] > 0:
                chosen = low
                break
            if high < len(left) and left[high] > 0:
                chosen = high
                break
        else:
            raise ValueError("there is not enough room for every label")
        result[place] = chosen
        left[chosen] -= 1
    return result


# Further copies ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """When a label gets one more copy: at least `rows` of its rows, and this `share` of them, reach a leaf and none of
    those where it stands already. `most` is how many copies it has in the end, at most.
    """

    rows: int = 1
    share: float = 0.05
    most: int = 2


def with_meanings(
    reached: Reached, placed: Placed, room: np.ndarray, budget: int, rule: Meaning, workers: int
) -> Placed:
    """Up to `budget` further copies, each where it covers most rows of its label that no copy of it covers yet.

    The strongest evidence comes first: rows won, divided by the root of the label's rows, by which such a number varies
    anyway. Leaves take copies until they are full, and labels that come too late look for another one.
    """
    left = placed.left_of(room)
    variation = np.sqrt(np.maximum(np.diff(reached.starts), 1))
    for _ in range(SWEEPS):
        label, leaf, gain = _meanings_of_all(reached, placed, left, rule, workers)
        order = np.lexsort((leaf, label, -gain / variation[label]))
        taken, full = _take(leaf, order, left, budget)
        placed = placed.plus(label[taken], leaf[taken])
        budget -= len(taken)
        if not full or not budget:
            break
    return placed


def _meanings_of_all(
    reached: Reached, placed: Placed, left: np.ndarray, rule: Meaning, workers: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    starts, leaves = placed.starts(reached.labels), placed.leaf_of

    def some(first: int, last: int) -> tuple[np.ndarray, ...]:
        return _meanings(
            *reached.arrays, starts, leaves, left, first, last, rule.rows, rule.share, rule.most, reached.leaves
        )

    parts = reached.each(some, workers)
    label, leaf, gain = (np.concatenate(part) for part in zip(*parts, strict=True))
    return label, leaf, gain


@njit(cache=True, nogil=True)
def _meanings(
    starts: np.ndarray,
    rows: np.ndarray,
    row_starts: np.ndarray,
    row_leaves: np.ndarray,
    copy_starts: np.ndarray,
    copy_leaves: np.ndarray,
    left: np.ndarray,
    first: int,
    last: int,
    least_rows: int,
    least_share: float,
    most: int,
    all_leaves: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(label, leaf, rows won) of the copies that labels would take one after the other, each the best of them."""
    found = 0
    labels, leaves, gains = np.empty(1024, np.int32), np.empty(1024, np.int32), np.empty(1024, np.int32)
    owner = np.full(all_leaves, -1, np.int64)
    count_of, touched = np.zeros(all_leaves, np.int32), np.empty(all_leaves, np.int32)
    longest = 0
    for label in range(first, last):
        longest = max(longest, starts[label + 1] - starts[label])
    open_rows = np.empty(longest, np.int32)
    for label in range(first, last):
        size, copies = starts[label + 1] - starts[label], copy_starts[label + 1] - copy_starts[label]
        least = max(least_rows, int(np.ceil(least_share * size)))
        if size < least:
            continue
        for copy in range(copy_starts[label], copy_starts[label + 1]):
            owner[copy_leaves[copy]] = label
        waiting = 0
        for place in range(starts[label], starts[label + 1]):
            row, covered = rows[place], False
            for path in range(row_starts[row], row_starts[row + 1]):
                covered |= owner[row_leaves[path]] == label
            if not covered:
                open_rows[waiting] = row
                waiting += 1
        while copies < most and waiting >= least:
            seen = 0
            for place in range(waiting):
                row = open_rows[place]
                for path in range(row_starts[row], row_starts[row + 1]):
                    leaf = row_leaves[path]
                    if left[leaf] > 0:
                        if count_of[leaf] == 0:
                            touched[seen] = leaf
                            seen += 1
                        count_of[leaf] += 1
            best, chosen = 0, -1
            for place in range(seen):
                leaf = touched[place]
                if count_of[leaf] > best or (count_of[leaf] == best and leaf < chosen):
                    best, chosen = count_of[leaf], leaf
                count_of[leaf] = 0
            if best < least:
                break
            if found == len(labels):
                labels = np.concatenate((labels, np.empty_like(labels)))
                leaves = np.concatenate((leaves, np.empty_like(leaves)))
                gains = np.concatenate((gains, np.empty_like(gains)))
            labels[found], leaves[found], gains[found] = label, chosen, best
            found += 1
            copies += 1
            kept = 0
            for place in range(waiting):
                row, covered = open_rows[place], False
                for path in range(row_starts[row], row_starts[row + 1]):
                    covered |= row_leaves[path] == chosen
                if not covered:
                    open_rows[kept] = row
                    kept += 1
            waiting = kept
    return labels[:found].copy(), leaves[:found].copy(), gains[:found].copy()


@njit(cache=True, nogil=True)
def _take(leaf: np.ndarray, order: np.ndarray, left: np.ndarray, budget: int) -> tuple[np.ndarray, bool]:
    """The first `budget` of the order for which there is room, and whether one found its leaf full."""
    taken, full, used = np.empty(len(order), np.int64), False, 0
    for place in order:
        if used == budget:
            break
        if left[leaf[place]] > 0:
            left[leaf[place]] -= 1
            taken[used] = place
            used += 1
        else:
            full = True
    return taken[:used].copy(), full


def filled_up(found: Candidates, placed: Placed, copies: int, room: np.ndarray) -> Placed:
    """Further copies, the largest of YᵀM first, until labels have `copies` or leaves are full."""
    label = np.repeat(np.arange(len(found.starts) - 1, dtype=np.int32), np.diff(found.starts))
    pairs, held = (of.astype(np.int64) * len(room) for of in (label, placed.label_of))
    new = np.flatnonzero(~np.isin(pairs + found.leaves, held + placed.leaf_of))
    order = new[np.lexsort((found.leaves[new], label[new], -found.counts[new]))]
    wanted = copies - np.bincount(placed.label_of, minlength=len(found.starts) - 1)
    taken = _fill_up(label, found.leaves, order, placed.left_of(room), wanted)
    return placed.plus(label[taken], found.leaves[taken])


@njit(cache=True, nogil=True)
def _fill_up(
    label: np.ndarray, leaf: np.ndarray, order: np.ndarray, left: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    taken, used = np.empty(len(order), np.int64), 0
    for place in order:
        if left[leaf[place]] > 0 and wanted[label[place]] > 0:
            left[leaf[place]] -= 1
            wanted[label[place]] -= 1
            taken[used] = place
            used += 1
    return taken[:used].copy()


def elsewhere(placed: Placed, room: np.ndarray, rng: np.random.Generator) -> Placed:
    """As many copies of each label, the first where it was and the further ones in random leaves with room."""
    first = np.ones(len(placed.label_of), dtype=bool)
    first[1:] = placed.label_of[1:] != placed.label_of[:-1]
    left = room - np.bincount(placed.leaf_of[first], minlength=len(room))
    further = rng.permutation(np.flatnonzero(~first))
    leaf_of = placed.leaf_of.copy()
    leaf_of[~first] = -1
    starts = np.searchsorted(placed.label_of, placed.label_of[further])
    ends = np.searchsorted(placed.label_of, placed.label_of[further], side="right")
    _scatter(leaf_of, further, starts, ends, rng.random(len(further)), left)
    kept = leaf_of >= 0
    return replace(placed, label_of=placed.label_of[kept], leaf_of=leaf_of[kept])


@njit(cache=True, nogil=True)
def _scatter(
    leaf_of: np.ndarray, further: np.ndarray, starts: np.ndarray, ends: np.ndarray, lots: np.ndarray, left: np.ndarray
) -> None:
    """Each copy goes to the leaf of its lot or, where that is full or has its label, the next one that will do."""
    for place in range(len(further)):
        drawn = int(lots[place] * len(left))
        for away in range(len(left)):
            leaf = (drawn + away) % len(left)
            if left[leaf] > 0 and not _among(leaf_of, starts[place], ends[place], leaf):
                leaf_of[further[place]] = leaf
                left[leaf] -= 1
                break
