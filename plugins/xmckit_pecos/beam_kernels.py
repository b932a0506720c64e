"""The inner loops of `beam_search`: margins of what is below the nodes that rows reached, and the best of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types, uint64
from numba.extending import intrinsic

from xmckit.sparse.lanes import add_rounded_product, address, loader, ones, prefetch, store

SPARE = 4  # keys that are held beyond twice as many as are wanted
LINE, LANES = 64, 16  # bytes of a cache line, and margins whose sums are kept in a register
HINGE, LOG_HINGE, SIGMOID, LOG_SIGMOID, NOOP = range(5)


def _same_bits(source: Any, target: Any) -> Any:
    """An intrinsic that takes the bits of a number for one of another type."""

    @intrinsic
    def cast(typing: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return cast


_load = loader(4 * LANES)
_bits, _float = _same_bits(types.float32, types.uint32), _same_bits(types.uint32, types.float32)


@njit(cache=True, nogil=True)
def by_feature(
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    bias: Any,
    inputs: int,
) -> Any:
    """`Level.bias` to `Level.features`, and what `packed` takes: the columns below each node, turned."""
    entries = 0
    for child in children:
        entries += indptr[child + 1] - indptr[child]
    constants = np.zeros(len(children), np.float32)
    places, weights = np.empty(entries, np.int32), np.empty(entries, np.float32)
    features, ends = np.empty(entries, np.int32), np.empty(entries + 1, np.int64)
    feature_starts = np.zeros(len(starts), np.int64)
    count, where = np.zeros(inputs, np.int32), np.empty(inputs, np.int64)
    used = filled = 0
    ends[0] = 0
    for node in range(len(starts) - 1):
        first = used
        for place in range(starts[node], starts[node + 1]):
            for entry in range(indptr[children[place]], indptr[children[place] + 1]):
                feature = indices[entry]
                if feature == inputs:
                    constants[place] = bias * data[entry]
                    continue
                if not count[feature]:
                    features[used] = feature
                    used += 1
                count[feature] += 1
        features[first:used].sort()
        for i in range(first, used):
            where[features[i]] = filled
            filled += count[features[i]]
            ends[i + 1] = filled
            count[features[i]] = 0
        for place in range(starts[node], starts[node + 1]):
            for entry in range(indptr[children[place]], indptr[children[place] + 1]):
                feature = indices[entry]
                if feature != inputs:
                    places[where[feature]], weights[where[feature]] = place - starts[node], data[entry]
                    where[feature] += 1
        feature_starts[node + 1] = used
    return constants, feature_starts, features[:used].copy(), ends[: used + 1].copy(), places[:filled], weights[:filled]


@njit(cache=True, nogil=True)
def packed(
    starts: np.ndarray,
    feature_starts: np.ndarray,
    entry_starts: np.ndarray,
    places: np.ndarray,
    weights: np.ndarray,
    filled: int,
) -> Any:
    """(`Level.entry_starts`, `Level.entries`). A weight of every child is stored where one in `filled` has one."""
    ends = np.zeros(len(entry_starts), np.int64)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            count = entry_starts[i + 1] - entry_starts[i]
            ends[i + 1] = ends[i] + (width if count * filled >= width else 2 * count)
    entries = np.zeros(ends[-1], np.uint32)
    numbers = entries.view(np.float32)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            every = ends[i + 1] - ends[i] == width
            for nth in range(entry_starts[i + 1] - entry_starts[i]):
                place, weight = places[entry_starts[i] + nth], weights[entry_starts[i] + nth]
                if every:
                    numbers[ends[i] + place] = weight
                else:
                    entries[ends[i] + 2 * nth], numbers[ends[i] + 2 * nth + 1] = place, weight
    return ends, entries


@njit(cache=True, nogil=True)
def row_margins(
    row_ends: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    reached_ends: np.ndarray,
    reached: np.ndarray,
    bits: np.ndarray,
    few: int,
    starts: np.ndarray,
    bias: np.ndarray,
    feature_starts: np.ndarray,
    features: np.ndarray,
    entry_starts: np.ndarray,
    entries: np.ndarray,
) -> Any:
    """(where the children of each reached node begin, their margins).

    `bits` has one for each input, none of them set, before and after. A node's features are set in it where they are
    fewer than `few` times what is looked up; else each is searched for among them.
    """
    nodes, pairs = len(starts) - 1, len(reached)
    first = np.zeros(pairs + 1, np.int64)
    visits = np.zeros(nodes + 1, np.int64)
    for pair in range(pairs):
        first[pair + 1] = first[pair] + starts[reached[pair] + 1] - starts[reached[pair]]
        visits[reached[pair] + 1] += 1
    for node in range(nodes):
        visits[node + 1] += visits[node]
    order, row_of = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    longest = 0
    for row in range(len(row_ends) - 1):
        longest = max(longest, row_ends[row + 1] - row_ends[row])
        for pair in range(reached_ends[row], reached_ends[row + 1]):
            order[visits[reached[pair]]], row_of[pair] = pair, row
            visits[reached[pair]] += 1
    margins = np.zeros(first[pairs], np.float32)
    before = np.empty(len(bits), np.int64)
    found = np.empty((2, longest + 1), np.int64)
    values = np.empty(longest + 1, np.float32)
    begin = 0
    for node in range(nodes):
        end = visits[node]  # the last of this node's pairs, by now
        if begin == end:
            continue
        low, high = feature_starts[node], feature_starts[node + 1]
        asked = 0
        for i in range(begin, end):
            asked += row_ends[row_of[order[i]] + 1] - row_ends[row_of[order[i]]]
        listed = high - low < few * asked
        if listed:
            _list(features, low, high, bits, before)
        for i in range(begin, end):
            row = row_of[order[i]]
            if i + 1 < end:
                next_row = row_of[order[i + 1]]
                _fetch(indices, row_ends[next_row], row_ends[next_row + 1])
                _fetch(data, row_ends[next_row], row_ends[next_row + 1])
            ours = indices[row_ends[row] : row_ends[row + 1]], data[row_ends[row] : row_ends[row + 1]]
            if listed:
                count = _look_up(*ours, bits, before, found[0], values)
            else:
                count = _search(*ours, features, low, high, found[0], values)
            _locate(entry_starts, entries, found, count)
            theirs = margins[first[order[i]] : first[order[i] + 1]]
            _add_up(found, values, count, entries, theirs)
            for child in range(len(theirs)):
                theirs[child] += bias[starts[node] + child]
        if listed:
            for i in range(low, high):
                bits[features[i] >> 6] = 0
        begin = end
    return first, margins


# What is done for one row is done in steps without branches, one for all its features before the next, so that memory
# is read for many of them at the same time.


@njit(cache=True, nogil=True)
def _list(features: np.ndarray, low: int, high: int, bits: np.ndarray, before: np.ndarray) -> None:
    """Set the bits of `features[low:high]`, which rise; `before` says of a word with some where its first one is."""
    i = low
    while i < high:
        word, mask = features[i] >> 6, uint64(0)
        before[word] = i
        while i < high and features[i] >> 6 == word:
            mask |= uint64(1) << uint64(features[i] & 63)
            i += 1
        bits[word] = mask


@njit(cache=True, nogil=True)
def _fetch(array: np.ndarray, begin: int, end: int) -> None:
    """Ask for a part of an array before it is needed."""
    base = address(array, array)
    for place in range(begin * array.itemsize, end * array.itemsize, LINE):
        prefetch(base + place)


@njit(cache=True, nogil=True)
def _look_up(
    indices: np.ndarray, data: np.ndarray, bits: np.ndarray, before: np.ndarray, places: np.ndarray, values: np.ndarray
) -> int:
    """The places among the listed features of those that a row has, and what it has of them; how many there are."""
    one, count = uint64(1), uint64(0)
    for entry in range(uint64(len(indices))):
        word, bit = uint64(indices[entry]) >> uint64(6), uint64(indices[entry]) & uint64(63)
        places[count] = before[word] + np.int64(ones(bits[word] & ((one << bit) - one)))  # unless it is not listed,
        values[count] = data[entry]
        count += (bits[word] >> bit) & one  # and the next one comes instead
    return int(count)


@njit(cache=True, nogil=True)
def _search(
    indices: np.ndarray,
    data: np.ndarray,
    features: np.ndarray,
    low: int,
    high: int,
    places: np.ndarray,
    values: np.ndarray,
) -> int:
    """As `_look_up`, by bisection."""
    count = 0
    for entry in range(len(indices)):
        at = _find(features, low, high, indices[entry])
        if at >= low:
            places[count], values[count] = at, data[entry]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _locate(entry_starts: np.ndarray, entries: np.ndarray, found: np.ndarray, count: int) -> None:
    """Turn the places of features into those of their entries, and how much there is of each; ask for these."""
    begin, places, sizes = address(entries, entries), found[0], found[1]
    for i in range(uint64(count)):
        at = uint64(places[i])
        places[i], sizes[i] = entry_starts[at], entry_starts[at + uint64(1)] - entry_starts[at]
        prefetch(begin + places[i] * entries.itemsize)


@njit(cache=True, nogil=True)
def _add_up(found: np.ndarray, values: np.ndarray, count: int, entries: np.ndarray, margins: np.ndarray) -> None:
    """Add the weights of features, times what a row has of them, to the margins of a node's children."""
    places, sizes, weights, width = found[0], found[1], entries.view(np.float32), len(margins)
    if width == LANES:
        ours, theirs = address(margins, margins), address(weights, margins)
        total = _load(ours, margins)
        for i in range(uint64(count)):
            if sizes[i] == LANES:
                total = add_rounded_product(total, values[i], _load(theirs + 4 * places[i], margins))
            else:
                store(ours, total)
                _add_some(entries, weights, places[i], sizes[i], values[i], margins)
                total = _load(ours, margins)
        store(ours, total)
        return
    for i in range(uint64(count)):
        if sizes[i] == width:
            every = weights[places[i] : places[i] + width]
            for child in range(width):
                margins[child] += values[i] * every[child]
        else:
            _add_some(entries, weights, places[i], sizes[i], values[i], margins)


@njit(cache=True, nogil=True)
def _add_some(entries: np.ndarray, weights: np.ndarray, begin: int, size: int, value: Any, margins: np.ndarray) -> None:
    for i in range(uint64(begin), uint64(begin + size), uint64(2)):
        margins[uint64(entries[i])] += value * weights[i + uint64(1)]


@njit(cache=True, nogil=True)
def _find(features: np.ndarray, low: int, high: int, feature: int) -> int:
    """Where a feature is between `low` and `high`, or −1."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if features[middle] < feature:
            low = middle + 1
        else:
            high = middle
    return low if low < end and features[low] == feature else -1


@njit(cache=True, nogil=True, error_model="numpy")
def _score(margin: Any, above: Any, kind: int, exponent: int) -> Any:
    """The score of a child from its margin and the score of the node above; PECOS rounds where this does."""
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
def best_nodes(
    reached_ends: np.ndarray,
    reached: np.ndarray,
    scores: np.ndarray,
    first: np.ndarray,
    margins: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    most: int,
    kind: int,
    exponent: int,
) -> Any:
    """(ends of rows, children, scores): the `most` best children of the nodes that each row reached, best first."""
    rows = len(reached_ends) - 1
    ends = np.zeros(rows + 1, np.int64)
    for row in range(rows):
        ends[row + 1] = ends[row] + min(most, first[reached_ends[row + 1]] - first[reached_ends[row]])
    best, values = np.empty(ends[rows], np.int32), np.empty(ends[rows], np.float32)
    kept = np.empty(min(_widest(reached_ends, first), 2 * most + SPARE), np.uint64)
    for row in range(rows):
        begin, end = reached_ends[row], reached_ends[row + 1]
        size = _select(scores, first, margins, begin, end, most, kind, exponent, kept)
        for i in range(size):
            pair, place = _found(kept[size - 1 - i], first, begin, end)
            best[ends[row] + i] = children[starts[reached[pair]] + place]
            values[ends[row] + i] = _number(kept[size - 1 - i])
    return ends, best, values


@njit(cache=True, nogil=True)
def _widest(reached_ends: np.ndarray, first: np.ndarray) -> int:
    """The children of the nodes that a row reached, in the row with most of them."""
    widest = 0
    for row in range(len(reached_ends) - 1):
        widest = max(widest, first[reached_ends[row + 1]] - first[reached_ends[row]])
    return widest


@njit(cache=True, nogil=True)
def best_labels(
    reached_ends: np.ndarray,
    reached: np.ndarray,
    scores: np.ndarray,
    first: np.ndarray,
    margins: np.ndarray,
    starts: np.ndarray,
    children: np.ndarray,
    most: int,
    kind: int,
    exponent: int,
    mean: bool,
    label_of: np.ndarray,
    copy_starts: np.ndarray,
    copies: np.ndarray,
    leaf_of: np.ndarray,
    place_of: np.ndarray,
) -> Any:
    """(ends of rows, labels, scores): `best_nodes` of labels.

    No label is better than its best copy. So the labels of the best copies are looked at, of so many that the last of
    them is worse than enough labels.
    """
    rows, labels, widest = len(reached_ends) - 1, len(copy_starts) - 1, _widest(reached_ends, first)
    ends = np.zeros(rows + 1, np.int64)
    bound = 0
    for row in range(rows):
        bound += min(most, first[reached_ends[row + 1]] - first[reached_ends[row]])
    best, values = np.empty(bound, np.int32), np.empty(bound, np.float32)
    kept, ours = np.empty(widest, np.uint64), np.empty(widest, np.uint64)
    seen, turn = np.zeros(labels, np.int64), 0
    pair_of, row_of = np.empty(len(starts) - 1, np.int64), np.full(len(starts) - 1, -1, np.int64)
    for row in range(rows):
        begin, end = reached_ends[row], reached_ends[row + 1]
        for pair in range(begin, end):
            pair_of[reached[pair]], row_of[reached[pair]] = pair, row
        asked, everything = 2 * most + SPARE, first[end] - first[begin]
        while True:
            size = _select(scores, first, margins, begin, end, asked, kind, exponent, kept)
            turn, count = turn + 1, 0
            for i in range(size - 1, -1, -1):
                pair, place = _found(kept[i], first, begin, end)
                label = label_of[children[starts[reached[pair]] + place]]
                if seen[label] == turn:
                    continue
                seen[label] = turn
                value = _number(kept[i])
                if mean and copy_starts[label + 1] - copy_starts[label] > 1:
                    total, times = 0.0, 0
                    for copy in copies[copy_starts[label] : copy_starts[label + 1]]:
                        leaf = leaf_of[copy]
                        if leaf >= 0 and row_of[leaf] == row:
                            there = pair_of[leaf]
                            total += _score(margins[first[there] + place_of[copy]], scores[there], kind, exponent)
                            times += 1
                    value = np.float32(total / times)
                ours[count] = _key(value, label)
                count += 1
            if count >= most:
                count = _keep_best(ours, count, most)
            if size == everything or (count == most and _number(ours[0]) > _number(kept[0])):
                break
            asked *= 4
        ours[:count].sort()
        for i in range(count):
            best[ends[row] + i] = 0xFFFFFFFF - np.int64(ours[count - 1 - i] & np.uint64(0xFFFFFFFF))
            values[ends[row] + i] = _number(ours[count - 1 - i])
        ends[row + 1] = ends[row] + count
    return ends, best[: ends[rows]], values[: ends[rows]]


@njit(cache=True, nogil=True)
def _select(
    scores: np.ndarray,
    first: np.ndarray,
    margins: np.ndarray,
    begin: int,
    end: int,
    most: int,
    kind: int,
    exponent: int,
    kept: np.ndarray,
) -> int:
    """Fill `kept` with the keys of the `most` best children of reached nodes, worst first; how many there are.

    Keys are collected until there is no more room; then all but the best are dropped, and none is taken any more that
    is not better than the worst of these.
    """
    size, least = 0, np.uint64(0)
    limit = min(len(kept), 2 * most + SPARE)
    for pair in range(begin, end):
        failed = np.float32(np.nan)  # the largest margin below this node that was not good enough
        for place in range(first[pair], first[pair + 1]):
            margin = margins[place]
            if margin <= failed:
                continue
            key = _key(_score(margin, scores[pair], kind, exponent), place - first[begin])
            if key < least:
                failed = margin
                continue
            if size == limit:
                size = _keep_best(kept, size, most)
                least = kept[0]
                if key < least:
                    failed = margin
                    continue
            kept[size] = key
            size += 1
    if size > most:
        size = _keep_best(kept, size, most)
    kept[:size].sort()
    return size


@njit(cache=True, nogil=True)
def _key(score: Any, place: int) -> Any:
    """A number that is larger for a better score and, of equal ones, for an earlier place. No number is the worst."""
    if np.isnan(score):
        score = np.float32(-np.inf)
    bits = np.uint64(_bits(np.float32(score + np.float32(0.0))))  # −0 counts as 0
    bits = bits ^ np.uint64(0xFFFFFFFF) if bits >> np.uint64(31) else bits | np.uint64(0x80000000)
    return (bits << np.uint64(32)) | np.uint64(0xFFFFFFFF - place)


@njit(cache=True, nogil=True)
def _number(key: Any) -> Any:
    """The score in a key."""
    bits = key >> np.uint64(32)
    bits = bits & np.uint64(0x7FFFFFFF) if bits >> np.uint64(31) else bits ^ np.uint64(0xFFFFFFFF)
    return _float(np.uint32(bits))


@njit(cache=True, nogil=True)
def _found(key: Any, first: np.ndarray, begin: int, end: int) -> Any:
    """(the reached node, which of its children) in a key."""
    at = first[begin] + np.int64(np.uint64(0xFFFFFFFF) - (key & np.uint64(0xFFFFFFFF)))
    low, high = begin, end - 1
    while low < high:
        middle = (low + high + 1) // 2
        if first[middle] <= at:
            low = middle
        else:
            high = middle - 1
    return low, at - first[low]


@njit(cache=True, nogil=True)
def _keep_best(kept: np.ndarray, size: int, most: int) -> int:
    """Move the `most` largest of the first `size` keys to the front, the least of them first; how many there are."""
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
