"""Compute the margins of the children of the nodes that rows have reached: the first half of a step of `beam`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint64

from xmckit.sparse.lanes import add_rounded_product, address, bit_count, fetch, loader, prefetch, store
from xmckit_pecos.search.levels import Frontier, SearchLevel

LANES = 16  # margins that fit into a register

_load = loader(4 * LANES)


@njit(cache=True, nogil=True)
def row_margins(
    row_ends: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    frontier: Frontier,
    bits: np.ndarray,
    few: int,
    level: SearchLevel,
) -> Any:
    """Return (where the children of each reached node begin, their margins).

    `bits` has one bit for each input, all 0 before and after. If a node has fewer features than `few` times the entries
    to look up, its features are set in `bits`. Otherwise each entry is searched for among them. This kernel stays whole
    because its steps share the scratch arrays that it sets up.
    """
    starts, features, reached = level.starts, level.features, frontier.nodes
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
        for pair in range(frontier.ends[row], frontier.ends[row + 1]):
            order[visits[reached[pair]]], row_of[pair] = pair, row
            visits[reached[pair]] += 1
    margins = np.zeros(first[pairs], np.float32)
    before = np.empty(len(bits), np.int32)
    found, values = np.empty((2, longest), np.int64), np.empty(longest, np.float32)
    begin = 0
    for node in range(nodes):
        end = visits[node]  # by now the end of this node's pairs
        if begin == end:
            continue
        low, high = level.feature_starts[node], level.feature_starts[node + 1]
        lookups = 0
        for i in range(begin, end):
            lookups += row_ends[row_of[order[i]] + 1] - row_ends[row_of[order[i]]]
        listed = high - low < few * lookups
        if listed:
            _set_bits(features, low, high, bits, before)
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
            _locate(level.entry_starts, level.entries, found, count)
            sums = margins[first[order[i]] : first[order[i] + 1]]
            _add_up(found, values, count, level.entries, sums)
            for child in range(len(sums)):
                sums[child] += level.bias[starts[node] + child]
        if listed:
            for i in range(low, high):
                bits[features[i] >> 6] = 0
        begin = end
    return first, margins


# `_look_up` and `_locate` have no branches and go over all features of a row before the next step begins, so that the
# processor reads memory for many of them at the same time.


@njit(cache=True, nogil=True)
def _set_bits(features: np.ndarray, low: int, high: int, bits: np.ndarray, before: np.ndarray) -> None:
    """Set the bits of the sorted `features[low:high]`. `before` gets the number of features before each word in use."""
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
    """Fill `places` and `values` for the features of a row that the node has, and return their number."""
    one, count = uint64(1), np.int64(0)
    for entry in range(uint64(len(indices))):
        word, bit = uint64(indices[entry]) >> uint64(6), uint64(indices[entry]) & uint64(63)
        # a feature that the node lacks is written too, and overwritten by the next one
        places[uint64(count)] = low + before[word] + np.int64(bit_count(bits[word] & ((one << bit) - one)))
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
    """Do the same as `_look_up`, by bisection."""
    own, count = features[low:high], 0
    for entry in range(len(indices)):
        at = np.searchsorted(own, indices[entry])
        if at < len(own) and own[at] == indices[entry]:
            places[count], values[count] = low + at, data[entry]
            count += 1
    return count


@njit(cache=True, nogil=True)
def _locate(entry_starts: np.ndarray, entries: np.ndarray, found: np.ndarray, count: int) -> None:
    """Turn the places of features into the places and sizes of their entries, and prefetch these."""
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
        sums, base = address(margins, margins), address(weights, margins)
        total = _load(sums, margins)
        for i in range(uint64(count)):
            if sizes[i] == LANES:
                total = add_rounded_product(total, values[i], _load(base + 4 * places[i], margins))
            else:
                store(sums, total)
                _add_some(entries, weights, places[i], sizes[i], values[i], margins)
                total = _load(sums, margins)
        store(sums, total)
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
