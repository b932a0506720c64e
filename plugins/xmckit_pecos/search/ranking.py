"""Turn margins into scores and keep the best of them: the second half of a step of `beam`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from xmckit_pecos.search.levels import Frontier, LabelCopies, SearchLevel

SPARE = 4  # keys kept in addition to twice the number wanted
HINGE, LOG_HINGE, SIGMOID, LOG_SIGMOID, NOOP = range(5)


def _same_bits(source: Any, target: Any) -> Any:
    """Make an intrinsic that reinterprets the bits of a number as another type."""

    @intrinsic
    def cast(typing: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return cast


_bits, _float = _same_bits(types.float32, types.uint32), _same_bits(types.uint32, types.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def _score(margin: Any, above: Any, kind: int, exponent: int) -> Any:
    """Compute the score of a child from its margin and the score of the node above, rounding where PECOS does."""
    if kind in (HINGE, LOG_HINGE):
        below = np.float64(np.float32(1.0 - np.float64(margin)))
        if not below > 0.0:
            below = np.float64(0.0)
        power = below
        for _ in range(exponent - 1):
            power *= below
        if kind == HINGE:
            return np.float32(np.float32(math.exp(-power)) * above)
        return np.float32(np.float32(-power) + above)
    if kind == SIGMOID:
        return np.float32(np.float32(1.0 / (1.0 + np.float64(np.exp(-np.float32(margin))))) * above)
    if kind == LOG_SIGMOID:
        return np.float32(np.float32(-math.log(1.0 + np.float64(np.exp(-np.float32(margin))))) + above)
    return np.float32(margin)


@njit(cache=True, nogil=True)
def best_children(  # noqa: C901  # a kernel, see below
    frontier: Frontier,
    first: np.ndarray,
    margins: np.ndarray,
    level: SearchLevel,
    most: int,
    kind: int,
    exponent: int,
    mean: bool,
    copies: LabelCopies | None,
) -> Frontier:
    """Return, for each row, the `most` best children of its nodes, best first.

    With `copies`, return labels instead of nodes. No label is better than its best copy, so a copy that is not good
    enough by itself is skipped. Keys are collected until `kept` is full. Then all but the best are dropped, and from
    then on only keys that are better than the worst of these are taken. This kernel stays whole: the loop over a row
    shares most of its arrays and scalars with the loops around it.
    """
    row_ends, reached, scores, starts = frontier.ends, frontier.nodes, frontier.scores, level.starts
    rows, bound, widest = len(row_ends) - 1, 0, 0
    ends = np.zeros(rows + 1, np.int64)
    for row in range(rows):
        width = first[row_ends[row + 1]] - first[row_ends[row]]
        bound, widest = bound + min(most, width), max(widest, width)
    best, values = np.empty(bound, np.int32), np.empty(bound, np.float32)
    kept = np.empty(min(widest, 2 * most + SPARE), np.uint64)
    if copies is not None:
        row_of_label = np.full(len(copies.starts) - 1, -1, np.int64)  # the last row that has looked at the label
        pair_of, row_of = np.empty(len(starts) - 1, np.int64), np.full(len(starts) - 1, -1, np.int64)
    for row in range(rows):
        begin, end = row_ends[row], row_ends[row + 1]
        if copies is not None:
            for pair in range(begin, end):
                pair_of[reached[pair]], row_of[reached[pair]] = pair, row
        size, least = 0, np.uint64(0)
        for pair in range(begin, end):
            failed = np.float32(np.nan)  # the largest margin below this node that was not good enough
            for place in range(first[pair], first[pair + 1]):
                margin = margins[place]
                if margin <= failed:
                    continue
                value = _score(margin, scores[pair], kind, exponent)
                key = rank_key(value, place - first[begin] if copies is None else 0)
                if key < least:
                    failed = margin
                    continue
                if copies is not None:
                    label = copies.label_of[level.children[starts[reached[pair]] + place - first[pair]]]
                    if row_of_label[label] == row:
                        continue
                    row_of_label[label] = row
                    if copies.starts[label + 1] - copies.starts[label] > 1:
                        value = _score_of_copies(
                            label, copies, row, row_of, pair_of, scores, first, margins, kind, exponent, mean
                        )
                    key = rank_key(value, label)
                    if key < least:
                        continue
                if size == len(kept):
                    size = keep_best(kept, size, most)
                    least = kept[0]
                    if key < least:
                        continue
                kept[size] = key
                size += 1
        if size > most:
            size = keep_best(kept, size, most)
        kept[:size].sort()
        for i in range(size):
            item = key_place(kept[size - 1 - i])
            if copies is None:
                at = first[begin] + item
                pair = begin + np.searchsorted(first[begin:end], at, side="right") - 1
                item = np.int64(level.children[starts[reached[pair]] + at - first[pair]])
            best[ends[row] + i], values[ends[row] + i] = item, key_score(kept[size - 1 - i])
        ends[row + 1] = ends[row] + size
    return Frontier(ends, best[: ends[rows]], values[: ends[rows]])


@njit(cache=True, nogil=True)
def _score_of_copies(
    label: int,
    copies: LabelCopies,
    row: int,
    row_of: np.ndarray,
    pair_of: np.ndarray,
    scores: np.ndarray,
    first: np.ndarray,
    margins: np.ndarray,
    kind: int,
    exponent: int,
    mean: bool,
) -> Any:
    """Return the mean score, or the largest, over the copies of a label in leaves that the row reached."""
    total, largest, times = 0.0, np.float32(-np.inf), 0
    for copy in copies.copies[copies.starts[label] : copies.starts[label + 1]]:
        leaf = copies.leaf_of[copy]
        if leaf >= 0 and row_of[leaf] == row:
            pair = pair_of[leaf]
            score = _score(margins[first[pair] + copies.place_of[copy]], scores[pair], kind, exponent)
            total, largest, times = total + score, max(largest, score), times + 1
    return np.float32(total / times) if mean else largest


@njit(cache=True, nogil=True)
def rank_key(score: Any, place: int) -> Any:
    """Return a number that is larger for a better score and, of equal ones, for an earlier place. NaN is the worst."""
    if np.isnan(score):
        score = np.float32(-np.inf)
    bits = np.uint64(_bits(np.float32(score + np.float32(0.0))))  # −0 counts as 0
    bits = bits ^ np.uint64(0xFFFFFFFF) if bits >> np.uint64(31) else bits | np.uint64(0x80000000)
    return (bits << np.uint64(32)) | np.uint64(0xFFFFFFFF - place)


@njit(cache=True, nogil=True)
def key_score(key: Any) -> Any:
    bits = key >> np.uint64(32)
    bits = bits & np.uint64(0x7FFFFFFF) if bits >> np.uint64(31) else bits ^ np.uint64(0xFFFFFFFF)
    return _float(np.uint32(bits))


@njit(cache=True, nogil=True)
def key_place(key: Any) -> Any:
    return np.int64(np.uint64(0xFFFFFFFF) - (key & np.uint64(0xFFFFFFFF)))


@njit(cache=True, nogil=True)
def keep_best(kept: np.ndarray, size: int, most: int) -> int:
    """Move the `most` largest of the first `size` keys to the front, the least of them first, and return `most`."""
    low, high, wanted = 0, size - 1, size - most  # in rising order the key at `wanted` would be the least one kept
    while low < high:
        middle = kept[(low + high) // 2]
        left, right = low, high
        while left <= right:
            while kept[left] < middle:
                left += 1
            while kept[right] > middle:
                right -= 1
            if left <= right:
                kept[left], kept[right] = kept[right], kept[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    for i in range(most):
        kept[i] = kept[wanted + i]
    return most
