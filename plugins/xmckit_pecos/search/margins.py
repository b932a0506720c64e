"""The first half of a step of `beam`: the margins of what is below the nodes that rows reached."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint64

from xmckit.sparse.lanes import add_rounded_product, address, fetch, loader, ones, prefetch, store

LANES = 16  # margins whose sums are kept in a register

_load = loader(4 * LANES)


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
    share: int,
) -> Any:
    """(`Level.entry_starts`, `Level.entries`). Weights of all children are stored where one in `share` has one."""
    packed_starts = np.zeros(len(entry_starts), np.int64)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            count = entry_starts[i + 1] - entry_starts[i]
            packed_starts[i + 1] = packed_starts[i] + (width if count * share >= width else 2 * count)
    entries = np.zeros(packed_starts[-1], np.uint32)
    numbers = entries.view(np.float32)
    for node in range(len(starts) - 1):
        width = starts[node + 1] - starts[node]
        for i in range(feature_starts[node], feature_starts[node + 1]):
            first, every = packed_starts[i], packed_starts[i + 1] - packed_starts[i] == width
            for nth in range(entry_starts[i + 1] - entry_starts[i]):
                place, weight = places[entry_starts[i] + nth], weights[entry_starts[i] + nth]
                if every:
                    numbers[first + place] += weight
                else:
                    entries[first + 2 * nth], numbers[first + 2 * nth + 1] = place, weight
    return packed_starts, entries


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
    before = np.empty(len(bits), np.int32)
    found, values = np.empty((2, longest), np.int64), np.empty(longest, np.float32)
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
                fetch(indices, row_ends[next_row], row_ends[next_row + 1])
                fetch(data, row_ends[next_row], row_ends[next_row + 1])
            own = indices[row_ends[row] : row_ends[row + 1]], data[row_ends[row] : row_ends[row + 1]]
            if listed:
                count = _look_up(*own, low, bits, before, found[0], values)
            else:
                count = _search(*own, features, low, high, found[0], values)
            _locate(entry_starts, entries, found, count)
            ours = margins[first[order[i]] : first[order[i] + 1]]
            _add_up(found, values, count, entries, ours)
            for child in range(len(ours)):
                ours[child] += bias[starts[node] + child]
        if listed:
            for i in range(low, high):
                bits[features[i] >> 6] = 0
        begin = end
    return first, margins


# `_look_up` and `_locate` have no branches and go over all features of a row before the next step begins, so that
# memory is read for many of them at the same time.


@njit(cache=True, nogil=True)
def _list(features: np.ndarray, low: int, high: int, bits: np.ndarray, before: np.ndarray) -> None:
    """Set the bits of `features[low:high]`, which rise; `before` has how many come before those of a word with some."""
    i = low
    while i < high:
        word, mask = features[i] >> 6, uint64(0)
        before[word] = i - low
        while i < high and features[i] >> 6 == word:
            mask |= uint64(1) << uint64(features[i] & 63)
            i += 1
        bits[word] = mask


@njit(cache=True, nogil=True)
def _look_up(
    indices: np.ndarray,
    data: np.ndarray,
    low: int,
    bits: np.ndarray,
    before: np.ndarray,
    places: np.ndarray,
    values: np.ndarray,
) -> int:
    """The places among the listed features of those that a row has, and what it has of them; how many there are."""
    one, count = uint64(1), np.int64(0)
    for entry in range(uint64(len(indices))):
        word, bit = uint64(indices[entry]) >> uint64(6), uint64(indices[entry]) & uint64(63)
        # a feature that is not listed is written too, and the next one in its place
        places[uint64(count)] = low + before[word] + np.int64(ones(bits[word] & ((one << bit) - one)))
        values[uint64(count)] = data[entry]
        count += np.int64((bits[word] >> bit) & one)
    return count  # type: ignore[return-value]  # compiled, an int is an np.int64


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
    base, places, sizes = address(entries, entries), found[0], found[1]
    for i in range(uint64(count)):
        at = uint64(places[i])
        places[i], sizes[i] = entry_starts[at], entry_starts[at + uint64(1)] - entry_starts[at]
        prefetch(base + places[i] * entries.itemsize)


@njit(cache=True, nogil=True)
def _add_up(found: np.ndarray, values: np.ndarray, count: int, entries: np.ndarray, margins: np.ndarray) -> None:
    """Add the weights of features, times what a row has of them, to the margins of a node's children."""
    places, sizes, weights, width = found[0], found[1], entries.view(np.float32), len(margins)
    if width == LANES:
        ours, base = address(margins, margins), address(weights, margins)
        total = _load(ours, margins)
        for i in range(uint64(count)):
            if sizes[i] == LANES:
                total = add_rounded_product(total, values[i], _load(base + 4 * places[i], margins))
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
