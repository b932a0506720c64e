"""Kernels behind `xmckit.sparse.text`: UTF-8 bytes to terms, terms to counts, counts to weighted rows.

A document is first cut into items (words or characters), which are written one after the other into a buffer in such a
way that every term, a sequence of items, is a slice of it.

A table of terms has a power of two slots, at most half of them taken: a key, and the length · 2³² + id + 1 (0: empty).
The key of up to eight bytes is the term itself, so that keys and lengths decide. That of a longer one is a hash: where
keys and lengths are equal, the bytes are compared.

numba counts references, atomically, to every array that it passes on, which takes longer than to look up a word:
functions that are called once per term take addresses, of arrays that the kernel's caller holds. Eight bytes are read
at once, so that `PADDING` more must follow texts and terms.
"""

from __future__ import annotations

import sys
from typing import Any

import numba.extending
import numpy as np
from llvmlite import ir
from numba import njit, types

from xmckit.sparse.lanes import trailing_zeros
from xmckit.sparse.parse_kernels import PADDING as PADDING

OTHER, WORD, MARK, UNSPACED, SPACE = range(5)

# Places in the array with which `count` goes on where it stopped.
DOCUMENT, LENGTH, ITEM, BEGIN, SIZE, TERMS, LACKING = range(7)
# What there was no room for.
NOTHING, ENTRIES, NEW_TERMS, NEW_BYTES = range(4)

# mypy does not know what these make of functions
uint64: Any = numba.uint64
intrinsic: Any = numba.extending.intrinsic
_kernel: Any = njit(cache=True, nogil=True)
_helper: Any = njit(nogil=True)

_BLANK = 32  # between words, in the buffer and in a vocabulary's terms
_LOW = uint64(0xFFFFFFFF)
_ODD = uint64(0x9E3779B97F4A7C15)


@intrinsic
def _number_at(typing: Any, address: Any) -> Any:
    """The 64-bit integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def _word_at(typing: Any, address: Any) -> Any:
    """Eight bytes of text as one integer, the first byte lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)
        return builder.bswap(word) if sys.byteorder == "big" else word

    return types.uint64(types.int64), generate


@_helper
def _address(array: np.ndarray) -> Any:
    return np.int64(array.ctypes.data)


@_helper
def _bytes_at(address: int, size: int) -> Any:
    """Up to eight bytes as one integer."""
    return _word_at(address) & (~uint64(0) >> uint64(64 - 8 * size)) if size else uint64(0)


@_helper
def _key(begin: int, end: int) -> Any:
    """The key of the term between two addresses."""
    if end - begin <= 8:
        return _bytes_at(begin, end - begin)
    key = uint64(end - begin)
    for place in range(begin, end - 8, 8):
        key = (key ^ _word_at(place)) * _ODD
        key ^= key >> uint64(32)
    key = (key ^ _word_at(end - 8)) * _ODD
    return key ^ (key >> uint64(32))


@_helper
def _slot_of(key: int, mask: int) -> Any:
    return (((key ^ (key >> uint64(32))) * _ODD) >> uint64(32)) & mask


@_helper
def _same(begin: int, end: int, other: int) -> bool:
    """Whether the bytes between two addresses, more than eight, are also at a third one."""
    for place in range(begin, end - 8, 8):
        if _word_at(place) != _word_at(other + place - begin):
            return False
    return _word_at(end - 8) == _word_at(other + end - 8 - begin)


@_helper
def _find(begin: int, end: int, key: int, table: int, mask: int, utf8: int, offsets: int) -> Any:
    """The slot of the term between two addresses, or the empty one where it belongs."""
    size, slot = uint64(end - begin), _slot_of(key, mask)
    while True:
        entry = _number_at(table + np.int64(slot) * 16 + 8)
        if entry == 0:
            return slot
        if entry >> uint64(32) == size and _number_at(table + np.int64(slot) * 16) == key:
            term = np.int64(entry & _LOW) - 1
            if size <= 8 or _same(begin, end, utf8 + np.int64(_number_at(offsets + 8 * term))):
                return slot
        slot = (slot + uint64(1)) & mask


@_helper
def term_hash(begin: int, end: int) -> Any:
    """MurmurHash3 (32 bits, seed 0): the hash that scikit-learn's HashingVectorizer takes."""
    found = uint64(0)
    for place in range(begin, end, 4):
        block = _bytes_at(place, min(4, end - place))
        block = (block * uint64(0xCC9E2D51)) & _LOW
        block = ((block << uint64(15)) | (block >> uint64(17))) & _LOW
        found ^= (block * uint64(0x1B873593)) & _LOW
        if place + 4 <= end:
            found = ((found << uint64(13)) | (found >> uint64(19))) & _LOW
            found = (found * uint64(5) + uint64(0xE6546B64)) & _LOW
    found ^= uint64(end - begin)
    found ^= found >> uint64(16)
    found = (found * uint64(0x85EBCA6B)) & _LOW
    found ^= found >> uint64(13)
    found = (found * uint64(0xC2B2AE35)) & _LOW
    return found ^ (found >> uint64(16))


@_kernel
def table_of(utf8: np.ndarray, offsets: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """The table of the terms utf8[offsets[i]:offsets[i + 1]], and in `firsts` for each one the first equal to it."""
    terms, slots = len(offsets) - 1, 8
    while slots < 2 * terms:
        slots *= 2
    table = np.zeros((slots, 2), np.uint64)
    for term in range(terms):
        begin, end = _address(utf8) + offsets[term], _address(utf8) + offsets[term + 1]
        key = _key(begin, end)
        slot = _find(begin, end, key, _address(table), uint64(slots - 1), _address(utf8), _address(offsets))
        if table[slot, 1] == 0:
            table[slot, 0], table[slot, 1] = key, uint64(end - begin) << uint64(32) | uint64(term + 1)
        firsts[term] = np.int64(table[slot, 1] & _LOW) - 1
    return table


@_kernel
def doubled(table: np.ndarray) -> np.ndarray:
    larger = np.zeros((2 * len(table), 2), np.uint64)
    mask = uint64(len(larger) - 1)
    for place in range(len(table)):
        if table[place, 1] != 0:
            slot = _slot_of(table[place, 0], mask)
            while larger[slot, 1] != 0:
                slot = (slot + uint64(1)) & mask
            larger[slot, 0], larger[slot, 1] = table[place, 0], table[place, 1]
    return larger


@_helper
def _character(address: int) -> Any:
    """(code point, bytes) of the character at an address of sound UTF-8."""
    word = np.int64(_word_at(address) & _LOW)
    if word & 0x80 == 0:
        return word & 0x7F, 1
    second = (word >> 8) & 0x3F
    if word & 0xE0 == 0xC0:
        return (word & 0x1F) << 6 | second, 2
    third = (word >> 16) & 0x3F
    if word & 0xF0 == 0xE0:
        return (word & 0x0F) << 12 | second << 6 | third, 3
    return (word & 0x07) << 18 | second << 12 | third << 6 | (word >> 24) & 0x3F, 4


@_kernel
def _cut_words(
    text: np.ndarray,
    start: int,
    end: int,
    kinds: np.ndarray,
    cases: np.ndarray,
    plain: np.ndarray,
    stop_table: np.ndarray,
    stop_utf8: np.ndarray,
    stop_offsets: np.ndarray,
    buffer: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
) -> int:
    """Write the words of text[start:end], a blank behind each, and where they are; the number of words.

    Scripts that are written without spaces give every two neighbouring characters as a word.
    """
    words, size, begin, latest, characters, inside = 0, 0, 0, 0, 0, OTHER
    place = start
    while place <= end:
        # most characters by far are in the middle of a word in ASCII
        if inside == WORD:
            before = size
            while plain[text[place]] and place < end:
                buffer[size] = plain[text[place]]
                size, place = size + 1, place + 1
            characters += size - before
        code, width = _BLANK, 1  # behind the text, so that its last word ends
        if place < end:
            code, width = _character(_address(text) + place)
        kind = kinds[code]
        if kind == MARK and inside != OTHER:
            kind = inside
        else:
            if inside != OTHER and (kind != inside or (kind == UNSPACED and characters == 2)):
                after = size
                kept = characters > 1 or inside == UNSPACED
                if kept and len(stop_offsets) > 1:
                    first, last = _address(buffer) + begin, _address(buffer) + size
                    slot = _find(
                        first, last, _key(first, last), _address(stop_table), uint64(len(stop_table) - 1),
                        _address(stop_utf8), _address(stop_offsets),
                    )  # fmt: skip
                    kept = stop_table[slot, 1] == 0
                if kept:
                    starts[words], ends[words] = begin, size
                    words += 1
                    buffer[size] = _BLANK
                    begin = size + 1
                size, characters = begin, 0
                if kind == inside:  # the last character also begins the next word
                    for nth in range(latest, after):
                        buffer[size] = buffer[nth]
                        size += 1
                    characters = 1
            latest = size
            characters += 1
        inside = kind if kind in (WORD, UNSPACED) else OTHER
        if inside != OTHER:
            for nth in range(width):
                buffer[size] = cases[text[place + nth]]
                size += 1
        else:
            characters = 0
        place += width
    return words


@_kernel
def _cut_characters(
    text: np.ndarray,
    start: int,
    end: int,
    kinds: np.ndarray,
    cases: np.ndarray,
    buffer: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    lasts: np.ndarray,
) -> int:
    """Write the characters of text[start:end] with one blank around each stretch without spaces; their number.

    The blanks count as characters of both stretches beside them. `lasts`: the last character of each one's stretch.
    """
    buffer[0] = _BLANK
    items, size, first = 0, 1, 0
    place = start
    while place <= end:
        code, width = _BLANK, 1
        if place < end:
            code, width = _character(_address(text) + place)
        blank = kinds[code] == SPACE
        if not blank and items == first:
            starts[items], ends[items] = size - 1, size
            items += 1
        if not blank or items > first:
            starts[items] = size
            for nth in range(width if not blank else 1):
                buffer[size] = cases[text[place + nth]] if not blank else _BLANK
                size += 1
            ends[items] = size
            items += 1
        if blank:
            for item in range(first, items):
                lasts[item] = items - 1
            first = items
        place += width
    return items


@_kernel
def _cut(
    text: np.ndarray,
    start: int,
    end: int,
    kinds: np.ndarray,
    cases: np.ndarray,
    plain: np.ndarray,
    characters: bool,
    stop_table: np.ndarray,
    stop_utf8: np.ndarray,
    stop_offsets: np.ndarray,
    buffer: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    lasts: np.ndarray,
) -> int:
    if characters:
        return _cut_characters(text, start, end, kinds, cases, buffer, starts, ends, lasts)
    words = _cut_words(text, start, end, kinds, cases, plain, stop_table, stop_utf8, stop_offsets, buffer, starts, ends)
    lasts[:words] = words - 1
    return words


@_kernel
def longest_of(bounds: np.ndarray) -> int:
    longest = 0
    for document in range(len(bounds) - 1):
        longest = max(longest, bounds[document + 1] - bounds[document])
    return longest


@_kernel
def count(
    text: np.ndarray,
    bounds: np.ndarray,
    kinds: np.ndarray,
    cases: np.ndarray,
    plain: np.ndarray,
    characters: bool,
    shortest: int,
    longest: int,
    stop_table: np.ndarray,
    stop_utf8: np.ndarray,
    stop_offsets: np.ndarray,
    buffer: np.ndarray,
    state: np.ndarray,
    table: np.ndarray,
    utf8: np.ndarray,
    offsets: np.ndarray,
    place_of: np.ndarray,
    learning: bool,
    buckets: int,
    sizes: np.ndarray,
    entries: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Fill `sizes` (entries of each document), `entries` (their terms) and `counts`.

    Documents are text[bounds[i]:bounds[i + 1]]. Their terms are those of the table and, with `learning`, every other
    one too, numbered as they come. With `buckets`, a term's number is |hash| mod `buckets` instead. `place_of` holds −1
    at first, or where an entry of the term is. The kernel stops before a new term, or before a document, for which
    there is no room.
    """
    starts, ends = np.empty(len(buffer), np.int64), np.empty(len(buffer), np.int64)
    lasts = np.empty(len(buffer), np.int64)
    mask, origin, known = uint64(len(table) - 1), _address(buffer), state[TERMS]
    table_at, utf8_at, offsets_at = _address(table), _address(utf8), _address(offsets)
    begin, size, length, first = state[BEGIN], state[SIZE], state[LENGTH], state[ITEM]
    document, lacking = state[DOCUMENT], NOTHING
    while document < len(sizes):
        items = _cut(
            text, bounds[document], bounds[document + 1], kinds, cases, plain, characters,
            stop_table, stop_utf8, stop_offsets, buffer, starts, ends, lasts,
        )  # fmt: skip
        most = min(longest, max(items, shortest))  # no term has more items than there are
        lacking = ENTRIES if size + (most + 1 - length) * items - first > len(entries) else NOTHING
        while length <= most and lacking == NOTHING:
            for item in range(first, items):
                last = item + length - 1
                if last > lasts[item]:
                    # of characters, a stretch that is shorter than all terms is one itself
                    if not characters or length > shortest or (item > 0 and lasts[item - 1] == lasts[item]):
                        continue
                    last = lasts[item]
                here, after = origin + starts[item], origin + ends[last]
                if buckets:
                    term = abs(np.int64(np.int32(term_hash(here, after)))) % buckets
                else:
                    key = _key(here, after)
                    slot = _find(here, after, key, table_at, mask, utf8_at, offsets_at)
                    term = np.int64(table[slot, 1] & _LOW) - 1
                if term < 0:
                    if not learning:
                        continue
                    end = offsets[known] + after - here
                    if known + 1 == len(offsets):  # the table, with twice as many slots, is then half full
                        lacking = NEW_TERMS
                    elif end + PADDING > len(utf8):
                        lacking = NEW_BYTES
                    if lacking != NOTHING:
                        first = item
                        break
                    for nth in range(after - here):
                        utf8[offsets[known] + nth] = buffer[starts[item] + nth]
                    term = known
                    known += 1
                    offsets[known] = end
                    table[slot, 0], table[slot, 1] = key, uint64(after - here) << uint64(32) | uint64(known)
                if place_of[term] < begin:
                    place_of[term] = size
                    entries[size], counts[size] = term, 0
                    size += 1
                counts[place_of[term]] += 1
            if lacking == NOTHING:
                length, first = length + 1, 0
        if lacking != NOTHING:
            break
        sizes[document] = size - begin
        document, begin, length = document + 1, size, shortest
    state[DOCUMENT], state[LENGTH], state[ITEM] = document, length, first
    state[BEGIN], state[SIZE], state[TERMS], state[LACKING] = begin, size, known, lacking


@_kernel
def totals(entries: np.ndarray, counts: np.ndarray, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """(documents, occurrences) of each term."""
    documents, occurrences = np.zeros(terms, np.int64), np.zeros(terms, np.int64)
    for place in range(len(entries)):
        documents[entries[place]] += 1
        occurrences[entries[place]] += counts[place]
    return documents, occurrences


@_kernel
def kept_sizes(sizes: np.ndarray, entries: np.ndarray, column_of: np.ndarray) -> np.ndarray:
    """How many entries of each document have a column."""
    kept = np.zeros(len(sizes), np.int64)
    place = 0
    for document in range(len(sizes)):
        for _ in range(sizes[document]):
            kept[document] += column_of[entries[place]] >= 0
            place += 1
    return kept


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(
    sizes: np.ndarray,
    entries: np.ndarray,
    counts: np.ndarray,
    column_of: np.ndarray,
    weights: np.ndarray,
    sublinear: bool,
    unit: bool,
    pointers: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
    """Fill `columns`, rising in each row, and `values`, counts × weights, of rows from pointers[i] to pointers[i + 1].

    A row's columns are set as bits, with a second level that says which words of bits are not 0, and read in order.
    """
    first = pointers[0]
    amounts = np.zeros(len(weights), np.int32)
    bits = np.zeros((len(weights) >> 6) + 1, np.uint64)
    words = np.zeros((len(bits) >> 6) + 1, np.uint64)
    entry = size = 0
    for row in range(len(sizes)):
        for _ in range(sizes[row]):
            column = column_of[entries[entry]]
            if column >= 0:
                amounts[column] = counts[entry]
                bits[column >> 6] |= uint64(1) << uint64(column & 63)
                words[column >> 12] |= uint64(1) << uint64((column >> 6) & 63)
            entry += 1
        squares = 0.0
        for top in range(len(words)):
            while words[top] != 0:
                word = top << 6 | np.int64(trailing_zeros(words[top]))
                words[top] &= words[top] - uint64(1)
                while bits[word] != 0:
                    column = word << 6 | np.int64(trailing_zeros(bits[word]))
                    bits[word] &= bits[word] - uint64(1)
                    value = np.float64(amounts[column])
                    if sublinear and amounts[column] > 1:
                        value = 1.0 + np.log(value)
                    value *= weights[column]
                    squares += value * value
                    columns[size], values[size] = column, value
                    size += 1
        if unit and squares > 0.0:
            factor = 1.0 / np.sqrt(squares)
            for place in range(pointers[row] - first, size):
                values[place] *= factor


@_kernel
def leading_words(utf8: np.ndarray, offsets: np.ndarray, places: np.ndarray, width: int) -> np.ndarray:
    """The first 8 · `width` bytes of some terms, zeros behind shorter ones: numbers that compare as the bytes do."""
    words = np.zeros((width, len(places)), np.uint64)
    for nth, place in enumerate(places):
        for byte in range(min(8 * width, offsets[place + 1] - offsets[place])):
            words[byte >> 3, nth] |= uint64(utf8[offsets[place] + byte]) << uint64(56 - 8 * (byte & 7))
    return words


@_kernel
def gathered(utf8: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(utf8, offsets) of some terms, in this order."""
    ends = np.zeros(len(places) + 1, np.int64)
    for nth, place in enumerate(places):
        ends[nth + 1] = ends[nth] + offsets[place + 1] - offsets[place]
    content = np.zeros(ends[-1] + PADDING, np.uint8)
    for nth, place in enumerate(places):
        for byte in range(ends[nth + 1] - ends[nth]):
            content[ends[nth] + byte] = utf8[offsets[place] + byte]
    return content, ends
