"""Numba kernels for `xmckit.sparse.text`: they turn UTF-8 bytes into terms, terms into counts, counts into rows.

A kernel first cuts a document into items (words or characters). It writes them one after the other into a buffer, so
that every term, a sequence of items, is a slice of the buffer.

A table of terms has a power of two slots and is at most half full. A slot holds a key, and length · 2³² + id + 1 (0 if
the slot is empty). The key of a term of up to eight bytes is the term itself, so that key and length identify it. The
key of a longer term is a hash: terms with equal keys and lengths are compared byte by byte.

numba counts references, atomically, to every array that it passes on, which takes longer than looking up a word.
Functions that run once per term therefore take addresses of arrays that the caller of the kernel holds. They read eight
bytes at once, so `PADDING` bytes must follow texts and terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit

from xmckit.sparse.lanes import address, eight_bytes, trailing_zeros, uint64_at
from xmckit.sparse.parse_kernels import PADDING as PADDING

# Kinds of characters.
OTHER, WORD, MARK, UNSPACED, SPACE = range(5)

# Entries of the array in which `count` keeps its state between two calls.
DOCUMENT, LENGTH, ITEM, BEGIN, SIZE, TERMS, LACKING = range(7)
# What `count` has no room for: state[LACKING].
NOTHING, ENTRIES, NEW_TERMS, NEW_BYTES = range(4)

# mypy does not know the types of decorated functions.
uint64: Any = numba.uint64
_kernel: Any = njit(cache=True, nogil=True)
_helper: Any = njit(nogil=True)
_inlined: Any = njit(nogil=True, inline="always")

_BLANK = 32  # between words, in the buffer and in a vocabulary's terms
_LOW = uint64(0xFFFFFFFF)
_ODD = uint64(0x9E3779B97F4A7C15)


class TermTable(NamedTuple):
    """Terms utf8[offsets[i]:offsets[i + 1]] and the table in which they are looked up."""

    slots: np.ndarray
    utf8: np.ndarray
    offsets: np.ndarray


class ItemRules(NamedTuple):
    """How a text becomes items.

    `kinds` is the kind of each code point. `cases` maps a byte to the byte that is written, `plain` does so for bytes
    that are word characters by themselves and is 0 for others. Terms have `shortest` to `longest` items: words that are
    not among the `stop_words`, or with `characters` single characters.
    """

    kinds: np.ndarray
    cases: np.ndarray
    plain: np.ndarray
    characters: bool
    shortest: int
    longest: int
    stop_words: TermTable


class Items(NamedTuple):
    """The items buffer[starts[i]:ends[i]] of a document. No term goes beyond item lasts[i]."""

    buffer: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    lasts: np.ndarray


class TermCounts(NamedTuple):
    """The entries of documents: `sizes` says how many a document has, `terms` and `counts` hold them."""

    sizes: np.ndarray
    terms: np.ndarray
    counts: np.ndarray


@_inlined
def _address(array: np.ndarray) -> Any:
    return address(array, array)


@_helper
def _bytes_at(address: int, size: int) -> Any:
    """Return up to eight bytes as one integer."""
    return eight_bytes(address) & (~uint64(0) >> uint64(64 - 8 * size)) if size else uint64(0)


@_helper
def _key(begin: int, end: int) -> Any:
    """Return the key of the term between two addresses."""
    if end - begin <= 8:
        return _bytes_at(begin, end - begin)
    key = uint64(end - begin)
    for place in range(begin, end - 8, 8):
        key = (key ^ eight_bytes(place)) * _ODD
        key ^= key >> uint64(32)
    key = (key ^ eight_bytes(end - 8)) * _ODD
    return key ^ (key >> uint64(32))


@_helper
def _slot_of(key: int, mask: int) -> Any:
    return (((key ^ (key >> uint64(32))) * _ODD) >> uint64(32)) & mask


@_helper
def _same(begin: int, end: int, other: int) -> bool:
    """Tell whether the bytes between two addresses, more than eight, are also at a third one."""
    for place in range(begin, end - 8, 8):
        if eight_bytes(place) != eight_bytes(other + place - begin):
            return False
    return eight_bytes(end - 8) == eight_bytes(other + end - 8 - begin)


@_helper
def _find(begin: int, end: int, key: int, table: int, mask: int, utf8: int, offsets: int) -> Any:
    """Return the slot of the term between two addresses, or the empty slot where it belongs."""
    size, slot = uint64(end - begin), _slot_of(key, mask)
    while True:
        entry = uint64_at(table + np.int64(slot) * 16 + 8)
        if entry == 0:
            return slot
        if entry >> uint64(32) == size and uint64_at(table + np.int64(slot) * 16) == key:
            term = np.int64(entry & _LOW) - 1
            if size <= 8 or _same(begin, end, utf8 + np.int64(uint64_at(offsets + 8 * term))):
                return slot
        slot = (slot + uint64(1)) & mask


@_helper
def _contains(begin: int, end: int, table: int, mask: int, utf8: int, offsets: int) -> Any:
    """Tell whether the term between two addresses is in the table."""
    slot = _find(begin, end, _key(begin, end), table, mask, utf8, offsets)
    return uint64_at(table + np.int64(slot) * 16 + 8) != 0


@_helper
def term_hash(begin: int, end: int) -> Any:
    """Return MurmurHash3 (32 bits, seed 0), the hash of scikit-learn's HashingVectorizer."""
    state = uint64(0)
    for place in range(begin, end, 4):
        block = _bytes_at(place, min(4, end - place))
        block = (block * uint64(0xCC9E2D51)) & _LOW
        block = ((block << uint64(15)) | (block >> uint64(17))) & _LOW
        state ^= (block * uint64(0x1B873593)) & _LOW
        if place + 4 <= end:
            state = ((state << uint64(13)) | (state >> uint64(19))) & _LOW
            state = (state * uint64(5) + uint64(0xE6546B64)) & _LOW
    state ^= uint64(end - begin)
    state ^= state >> uint64(16)
    state = (state * uint64(0x85EBCA6B)) & _LOW
    state ^= state >> uint64(13)
    state = (state * uint64(0xC2B2AE35)) & _LOW
    return state ^ (state >> uint64(16))


@_kernel
def build_table(utf8: np.ndarray, offsets: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Return the table of the terms utf8[offsets[i]:offsets[i + 1]]; write the first equal term of each to `firsts`."""
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
def double_table(table: np.ndarray) -> np.ndarray:
    """Return the table with twice as many slots."""
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
    """Return (code point, number of bytes) of the character at an address of valid UTF-8."""
    word = np.int64(eight_bytes(address) & _LOW)
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
def _cut_words(text: np.ndarray, start: int, end: int, rules: ItemRules, items: Items) -> int:
    """Write the words of text[start:end], a blank behind each, and their bounds to `items`. Return their number.

    In scripts that are written without spaces, every two neighbouring characters are a word.

    This kernel stays whole: it is one state machine, and every part of it reads and writes the same seven variables.
    """
    # Local names, since numba also counts references to an array that is taken out of a tuple.
    kinds, cases, plain = rules.kinds, rules.cases, rules.plain
    buffer, starts, ends, lasts = items
    slots, utf8, offsets = rules.stop_words
    stop_words, mask, utf8_at, offsets_at = _address(slots), uint64(len(slots) - 1), _address(utf8), _address(offsets)
    text_at, buffer_at = _address(text), _address(buffer)
    words, size, begin, latest, characters, inside = 0, 0, 0, 0, 0, OTHER
    place = start
    while place <= end:
        # Most characters by far are in the middle of a word in ASCII.
        if inside == WORD:
            before = size
            while plain[text[place]] and place < end:
                buffer[size] = plain[text[place]]
                size, place = size + 1, place + 1
            characters += size - before
        code, width = _BLANK, 1  # behind the text, so that its last word ends
        if place < end:
            code, width = _character(text_at + place)
        kind = kinds[code]
        if kind == MARK and inside != OTHER:
            kind = inside
        else:
            if inside != OTHER and (kind != inside or (kind == UNSPACED and characters == 2)):
                after = size
                kept = characters > 1 or inside == UNSPACED
                if kept and len(offsets) > 1:
                    kept = not _contains(buffer_at + begin, buffer_at + size, stop_words, mask, utf8_at, offsets_at)
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
    lasts[:words] = words - 1
    return words


@_kernel
def _cut_characters(text: np.ndarray, start: int, end: int, rules: ItemRules, items: Items) -> int:
    """Write the characters of text[start:end] to `items`, one blank around each stretch without spaces.

    The blanks count as characters of both stretches beside them. Return the number of characters.
    """
    kinds, cases, text_at = rules.kinds, rules.cases, _address(text)
    buffer, starts, ends, lasts = items
    buffer[0] = _BLANK
    count, size, first = 0, 1, 0
    place = start
    while place <= end:
        code, width = _BLANK, 1
        if place < end:
            code, width = _character(text_at + place)
        blank = kinds[code] == SPACE
        if not blank and count == first:
            starts[count], ends[count] = size - 1, size
            count += 1
        if not blank or count > first:
            starts[count] = size
            for nth in range(width if not blank else 1):
                buffer[size] = cases[text[place + nth]] if not blank else _BLANK
                size += 1
            ends[count] = size
            count += 1
        if blank:
            for item in range(first, count):
                lasts[item] = count - 1
            first = count
        place += width
    return count


@_inlined
def _last_item(lasts: np.ndarray, item: int, length: int, short_stretches: bool) -> int:
    """Return the last item of the term of `length` items that starts with `item`, or −1 if no term does.

    With `short_stretches`, a stretch of fewer items is a term too.
    """
    last = item + length - 1
    if last <= lasts[item]:
        return last
    if short_stretches and (item == 0 or lasts[item - 1] != lasts[item]):
        return lasts[item]
    return -1


@_inlined
def _room_lacking(offsets: np.ndarray, utf8: np.ndarray, terms: int, size: int) -> int:
    """Return what a table with `terms` terms has no room for when a term of `size` bytes is added."""
    if terms + 1 == len(offsets):  # the table, with twice as many slots, is then half full
        return NEW_TERMS
    return NEW_BYTES if offsets[terms] + size + PADDING > len(utf8) else NOTHING


@_kernel
def count(
    text: np.ndarray,
    bounds: np.ndarray,
    rules: ItemRules,
    buffer: np.ndarray,
    state: np.ndarray,
    known: TermTable,
    learning: bool,
    buckets: int,
    out: TermCounts,
    place_of: np.ndarray,
) -> None:
    """Count the terms of the documents text[bounds[i]:bounds[i + 1]] and fill `out`.

    Terms are those of the table `known` and, with `learning`, every other one too, numbered in the order in which they
    come. With `buckets`, the number of a term is |hash| mod `buckets` instead. `place_of` is the latest entry of each
    term, −1 before the first one. The kernel stops before a new term, or
    before a document, for which it has no room; a call with larger arrays continues there.

    This kernel stays whole: the state of a call is in local variables, and passing arrays to a function once per term
    would cost more than the lookup of the term.
    """
    # Local names, since numba also counts references to an array that is taken out of a tuple.
    starts, ends = np.empty(len(buffer), np.int64), np.empty(len(buffer), np.int64)
    lasts = np.empty(len(buffer), np.int64)
    cut_items = Items(buffer, starts, ends, lasts)
    sizes, entries, counts = out
    slots, utf8, offsets = known
    shortest = rules.shortest
    mask, origin, terms = uint64(len(slots) - 1), _address(buffer), state[TERMS]
    slots_at, utf8_at, offsets_at = _address(slots), _address(utf8), _address(offsets)
    begin, size, length, first = state[BEGIN], state[SIZE], state[LENGTH], state[ITEM]
    document, lacking = state[DOCUMENT], NOTHING
    while document < len(sizes):
        if rules.characters:
            items = _cut_characters(text, bounds[document], bounds[document + 1], rules, cut_items)
        else:
            items = _cut_words(text, bounds[document], bounds[document + 1], rules, cut_items)
        most = min(rules.longest, max(items, shortest))  # no term has more items than the document
        lacking = ENTRIES if size + (most + 1 - length) * items - first > len(entries) else NOTHING
        while length <= most and lacking == NOTHING:
            short_stretches = rules.characters and length == shortest
            for item in range(first, items):
                last = _last_item(lasts, item, length, short_stretches)
                if last < 0:
                    continue
                here, after = origin + starts[item], origin + ends[last]
                if buckets:
                    term = abs(np.int64(np.int32(term_hash(here, after)))) % buckets
                else:
                    key = _key(here, after)
                    slot = _find(here, after, key, slots_at, mask, utf8_at, offsets_at)
                    term = np.int64(slots[slot, 1] & _LOW) - 1
                if term < 0:
                    if not learning:
                        continue
                    lacking = _room_lacking(offsets, utf8, terms, after - here)
                    if lacking != NOTHING:
                        first = item
                        break
                    for nth in range(after - here):
                        utf8[offsets[terms] + nth] = buffer[starts[item] + nth]
                    term = terms
                    terms += 1
                    offsets[terms] = offsets[term] + after - here
                    slots[slot, 0], slots[slot, 1] = key, uint64(after - here) << uint64(32) | uint64(terms)
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
    state[BEGIN], state[SIZE], state[TERMS], state[LACKING] = begin, size, terms, lacking


@_kernel
def totals(part: TermCounts, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of documents and the number of occurrences of each term."""
    _, entries, counts = part
    documents, occurrences = np.zeros(terms, np.int64), np.zeros(terms, np.int64)
    for place in range(len(entries)):
        documents[entries[place]] += 1
        occurrences[entries[place]] += counts[place]
    return documents, occurrences


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(
    part: TermCounts,
    column_of: np.ndarray,
    weights: np.ndarray,
    sublinear: bool,
    unit: bool,
    pointers: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
) -> None:
    """Fill rows pointers[i] to pointers[i + 1] of `columns`, ascending, and of `values`: counts × weights.

    The kernel sets a bit for each column of a row, and a second level of bits for words that are not 0, and reads the
    columns from them in order.
    """
    sizes, entries, counts = part
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
    """Return the first 8 · `width` bytes of some terms, padded with zeros, as numbers that compare as the bytes do."""
    words = np.zeros((width, len(places)), np.uint64)
    for nth, place in enumerate(places):
        for byte in range(min(8 * width, offsets[place + 1] - offsets[place])):
            words[byte >> 3, nth] |= uint64(utf8[offsets[place] + byte]) << uint64(56 - 8 * (byte & 7))
    return words


@_kernel
def take_terms(utf8: np.ndarray, offsets: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (utf8, offsets) of some terms, in this order."""
    ends = np.zeros(len(places) + 1, np.int64)
    for nth, place in enumerate(places):
        ends[nth + 1] = ends[nth] + offsets[place + 1] - offsets[place]
    content = np.zeros(ends[-1] + PADDING, np.uint8)
    for nth, place in enumerate(places):
        for byte in range(ends[nth + 1] - ends[nth]):
            content[ends[nth] + byte] = utf8[offsets[place] + byte]
    return content, ends
