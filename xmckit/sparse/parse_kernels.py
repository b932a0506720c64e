"""Numba kernels for `xmckit.sparse.parse`: they take bytes and fill arrays, and report errors by code and position.

Helpers take the address of a byte, `at`, and not the text: numba counts references, atomically, to every array that it
passes on, even to a helper that is inlined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from xmckit.sparse.lanes import address, byte_at, eight_bytes, trailing_zeros

# Bytes that must follow the text, because kernels read eight bytes at once.
PADDING = 8

_LINE_FEED, _RETURN, _TAB, _SPACE, _HASH, _PLUS, _COMMA, _MINUS, _DOT, _ZERO, _COLON = b"\n\r\t #+,-.0:"
_LOWER_E, _LOWER_I, _LOWER_N = b"ein"
_TO_LOWER = 32

# 18 digits always fit into an int64.
_MOST_DIGITS = 18
_EXACT_INTEGERS = 2**53
_EXACT_POWERS = 22
_LARGEST_POWER = 280
_POWERS_OF_TEN = np.array([float(f"1e{power}") for power in range(_LARGEST_POWER + 1)])
_POWERS_UP_TO_EIGHT = 10 ** np.arange(9)
_EXPONENT_LIMIT = 10**17
LARGEST_INDEX = 2**31 - 2
# Larger integers are cut to this one, which is beyond every index.
LARGEST_INTEGER = 2**40

# Eight bytes side by side, for `_digits_at`.
_ASCII_ZEROS = np.uint64(0x3030303030303030)
_OVER_NINE = np.uint64(0x7676767676767676)
_TOP_BITS = np.uint64(0x8080808080808080)
_EVERY_FOURTH = np.uint64(0x000000FF000000FF)
_HUNDREDS = np.uint64(100 + (1_000_000 << 32))
_UNITS = np.uint64(1 + (10_000 << 32))

# Wider than the three roundings (2^-53 each) between the digits and the product in `_round`.
_BELOW, _ABOVE = 1 - 2.0**-50, 1 + 2.0**-50

OK = 0
BAD_LABEL, NEGATIVE_LABEL, LABEL_RANGE, LABEL_END = 1, 2, 3, 4
BAD_INDEX, NEGATIVE_INDEX, INDEX_RANGE, NO_COLON = 5, 6, 7, 8
BAD_VALUE, NOT_FINITE, VALUE_END, STRAY_RETURN = 9, 10, 11, 12
DUPLICATE_LABEL, DUPLICATE_INDEX = 13, 14
BAD_INTEGER, COLUMNS = 15, 16

_UNDECIDED = -1

_kernel = njit(cache=True, nogil=True)
# Helpers run once per number or line: a real call per number would cost a third of the time.
_inlined = njit(nogil=True, inline="always")

# Entries of `RowArrays.report`.
CODE, POSITION, ROWS, LABELS, FEATURES, UNDECIDED_VALUES, UNSORTED_LABELS, UNSORTED_FEATURES = range(8)


class Grammar(NamedTuple):
    """What a line holds. `labels` and `features` are numbers of columns, by default all that fit an index.

    `first_label` and `first_feature` are the numbers of column 0. With `annotated`, `#` starts a comment, and a line
    without labels and features is no row; otherwise an empty line is an empty row.
    """

    has_labels: bool = True
    labels: int = LARGEST_INDEX + 1
    features: int = LARGEST_INDEX + 1
    first_label: int = 0
    first_feature: int = 0
    annotated: bool = False


class RowArrays(NamedTuple):
    """The arrays that `parse` fills.

    `undecided` holds (feature, start, end) of each value that `parse` cannot round; the `unsorted_…` arrays hold (row,
    position) of each row with indices out of order.
    """

    label_ends: np.ndarray
    label_indices: np.ndarray
    feature_ends: np.ndarray
    feature_indices: np.ndarray
    values: np.ndarray
    undecided: np.ndarray
    unsorted_labels: np.ndarray
    unsorted_features: np.ndarray
    report: np.ndarray


@_kernel
def count(text: np.ndarray) -> tuple[int, int, int]:
    """Return the numbers of line feeds, commas and colons.

    Counters of one byte, for 128 bytes at a time, let the compiler use vector instructions.
    """
    lines = commas = colons = 0
    for start in range(0, len(text), 128):
        block = text[start : start + 128]
        few_lines = few_commas = few_colons = np.uint8(0)
        for character in block:
            few_lines += np.uint8(character == _LINE_FEED)
            few_commas += np.uint8(character == _COMMA)
            few_colons += np.uint8(character == _COLON)
        lines += few_lines
        commas += few_commas
        colons += few_colons
    return lines, commas, colons


@_kernel
def after_line(text: np.ndarray, position: int) -> int:
    """Return the position behind the first line feed at or after `position`, or the length of the text."""
    while position < len(text) and text[position] != _LINE_FEED:
        position += 1
    return min(position + 1, len(text))


@_kernel
def after_last_line(text: np.ndarray, start: int, end: int) -> int:
    """Return the position behind the last line feed of text[start:end], or `start` if there is none."""
    while end > start and text[end - 1] != _LINE_FEED:
        end -= 1
    return end


@_inlined
def _is_digit(character: int) -> np.bool_:
    return np.uint8(character - _ZERO) <= 9


@_inlined
def _is_blank(character: int) -> bool:
    return character in (_SPACE, _TAB)


@_inlined
def _is_sign(character: int) -> bool:
    return character in (_PLUS, _MINUS)


@_inlined
def _digits_at(at: int) -> Any:
    """Return (the number of digits at `at`, up to 8; their value), without a branch per digit.

    A digit is a byte that becomes 0 to 9 by ^ 0x30; adding 0x76 carries into the top bit of every larger one. The
    digits are shifted to the end of the word, so that zeros stand before them, and joined to pairs, then to eight.
    """
    word = eight_bytes(at) ^ _ASCII_ZEROS
    others = ((word + _OVER_NINE) | word) & _TOP_BITS
    digits = np.int64(trailing_zeros(others) >> np.uint64(3))
    if digits == 0:
        return 0, 0
    word <<= np.uint64(64 - 8 * digits)
    word = word * np.uint64(10) + (word >> np.uint64(8))
    high = (word & _EVERY_FOURTH) * _HUNDREDS
    low = ((word >> np.uint64(16)) & _EVERY_FOURTH) * _UNITS
    return digits, np.int64((high + low) >> np.uint64(32))


@_inlined
def _integer(at: int) -> tuple[int, int]:
    """Return (position behind the digits, their value); the position is `at` if there is no digit.

    Values above LARGEST_INTEGER become LARGEST_INTEGER.
    """
    digits, number = _digits_at(at)
    at += digits
    if digits == 8:
        while _is_digit(byte_at(at)):
            number = min(number * 10 + (byte_at(at) - _ZERO), LARGEST_INTEGER)
            at += 1
    return at, number


@_inlined
def _leading_digits(start: int, end: int) -> tuple[int, int]:
    """Return the first 18 significant digits of a long number, and the number of digits that follow them."""
    mantissa = kept = dropped = 0
    for place in range(start, end):
        if byte_at(place) == _DOT:
            continue
        if kept == _MOST_DIGITS:
            dropped += 1
        else:
            mantissa = mantissa * 10 + (byte_at(place) - _ZERO)
            kept += mantissa > 0
    return mantissa, dropped


@_inlined
def _value(at: int) -> tuple[int, np.float32, int]:
    """Return (position behind the number, its float32, OK or an error or _UNDECIDED)."""
    negative = byte_at(at) == _MINUS
    if negative or byte_at(at) == _PLUS:
        at += 1
    start = at
    mantissa = fraction = 0
    while _is_digit(byte_at(at)):
        mantissa = mantissa * 10 + (byte_at(at) - _ZERO)
        at += 1
    digits = at - start
    if byte_at(at) == _DOT:
        at += 1
        more = 8
        while more == 8:
            more, number = _digits_at(at)
            mantissa = mantissa * _POWERS_UP_TO_EIGHT[more] + number
            at += more
            fraction += more
        digits += fraction
    if digits == 0:
        return at, np.float32(0), BAD_VALUE
    exponent = -fraction
    if digits > _MOST_DIGITS:
        mantissa, dropped = _leading_digits(start, at)
        exponent += dropped
    if byte_at(at) | _TO_LOWER == _LOWER_E:
        at, power, valid = _exponent(at + 1)
        if not valid:
            return at, np.float32(0), BAD_VALUE
        exponent += power
    value, outcome = _round(mantissa, exponent, negative)
    return at, value, outcome


@_inlined
def _exponent(at: int) -> tuple[int, int, bool]:
    """Return (position behind sign and digits, their value, whether there is a digit).

    A value beyond `_EXPONENT_LIMIT` stays at some value beyond it.
    """
    negative = byte_at(at) == _MINUS
    if _is_sign(byte_at(at)):
        at += 1
    start, power = at, 0
    while _is_digit(byte_at(at)):
        if power < _EXPONENT_LIMIT:
            power = power * 10 + (byte_at(at) - _ZERO)
        at += 1
    return at, -power if negative else power, at > start


@_inlined
def _round(mantissa: int, exponent: int, negative: bool) -> tuple[np.float32, int]:
    """Return ±mantissa · 10^exponent as float32, and OK, NOT_FINITE or _UNDECIDED.

    An integer below 2^53 times or over a power of ten up to 10^22 is one correctly rounded operation (Clinger). For
    anything else the product may be off by a few units of the last place, so the correctly rounded double lies
    between the product's two neighbours `_BELOW` and `_ABOVE`; rounding to float32 is monotone, so when both give
    the same float32, that is the answer.
    """
    if mantissa == 0:
        return np.float32(0), OK
    if exponent < -_LARGEST_POWER or exponent > _LARGEST_POWER:
        return np.float32(0), _UNDECIDED
    if exponent < 0:
        product = np.float64(mantissa) / _POWERS_OF_TEN[-exponent]
    else:
        product = np.float64(mantissa) * _POWERS_OF_TEN[exponent]
    if negative:
        product = -product
    value = np.float32(product)
    exact = mantissa < _EXACT_INTEGERS and -_EXACT_POWERS <= exponent <= _EXACT_POWERS
    if not exact and np.float32(product * _BELOW) != np.float32(product * _ABOVE):
        return value, _UNDECIDED
    return value, OK if np.isfinite(value) else NOT_FINITE


@_inlined
def _value_error(at: int, code: int) -> int:
    """Return NOT_FINITE in place of BAD_VALUE for words like nan and inf."""
    first = byte_at(at)
    if _is_sign(first):
        first = byte_at(at + 1)
    if code == BAD_VALUE and (first | _TO_LOWER == _LOWER_N or first | _TO_LOWER == _LOWER_I):
        return NOT_FINITE
    return code


@_inlined
def _labels(line: int, grammar: Grammar, indices: np.ndarray, size: int) -> tuple[int, int, bool, int]:
    """Append the labels at the start of a line to `indices`, which holds `size` labels.

    Return (position behind the labels or of the error, new size, whether the labels ascend, error code).
    """
    at, previous, ascending = line, -1, True
    while True:
        start = at
        at, number = _integer(at)
        stop = byte_at(at)
        if at == start:
            return start, size, ascending, _label_error(stop, start > line, grammar.annotated)
        if stop == _COLON:
            # The line has no labels and starts with its first feature.
            return (line, size, ascending, OK) if start == line else (start, size, ascending, LABEL_END)
        number -= grammar.first_label
        if number < 0 or number >= grammar.labels:
            return start, size, ascending, LABEL_RANGE
        ascending &= number > previous
        previous = number
        indices[size] = number
        size += 1
        if stop != _COMMA:
            return at, size, ascending, LABEL_END if stop > _SPACE else OK
        at += 1


@_inlined
def _label_error(stop: int, after_comma: bool, annotated: bool) -> int:
    """Return the error of a label that starts with `stop`, which is no digit; OK if the line has no labels."""
    if stop == _MINUS:
        return NEGATIVE_LABEL
    return BAD_LABEL if after_comma or (stop > _SPACE and not (annotated and stop == _HASH)) else OK


@_inlined
def _features(
    at: int,
    grammar: Grammar,
    indices: np.ndarray,
    values: np.ndarray,
    size: int,
    undecided: np.ndarray,
    report: np.ndarray,
    origin: int,
) -> tuple[int, int, bool, int]:
    """Append the features from `at` to the end of the line to `indices` and `values`, which hold `size` features.

    Return (position of the line feed or of the error, new size, whether the indices ascend, error code).
    """
    previous, ascending = -1, True
    while True:
        while _is_blank(byte_at(at)):
            at += 1
        end = _line_end(at, grammar.annotated)
        if end >= 0:
            return end, size, ascending, OK
        start = at
        at, number = _integer(at)
        if at == start:
            return start, size, ascending, _index_error(byte_at(at))
        if byte_at(at) != _COLON:
            return start, size, ascending, NO_COLON
        number -= grammar.first_feature
        if number < 0 or number >= grammar.features:
            return start, size, ascending, INDEX_RANGE
        start = at + 1
        at, value, outcome = _value(start)
        if outcome > OK:
            return start, size, ascending, _value_error(start, outcome)
        if byte_at(at) > _SPACE:
            return start, size, ascending, VALUE_END
        if outcome == _UNDECIDED:
            place = report[UNDECIDED_VALUES]
            undecided[place, 0], undecided[place, 1], undecided[place, 2] = size, start - origin, at - origin
            report[UNDECIDED_VALUES] += 1
        ascending &= number > previous
        previous = number
        indices[size] = number
        values[size] = value
        size += 1


@_inlined
def _line_end(at: int, annotated: bool) -> int:
    """Return the position of the line feed if nothing but a carriage return or a comment precedes it, or −1."""
    if byte_at(at) == _LINE_FEED:
        return at
    if byte_at(at) == _RETURN and byte_at(at + 1) == _LINE_FEED:
        return at + 1
    if annotated and byte_at(at) == _HASH:
        while byte_at(at) != _LINE_FEED:
            at += 1
        return at
    return -1


@_inlined
def _index_error(stop: int) -> int:
    """Return the error of an index that starts with `stop`, which is no digit."""
    return NEGATIVE_INDEX if stop == _MINUS else STRAY_RETURN if stop == _RETURN else BAD_INDEX


@_inlined
def _note_row(rows: np.ndarray, report: np.ndarray, counter: int, row: int, line: int) -> None:
    """Append (row, line) to `rows`; report[counter] is their number."""
    rows[report[counter], 0], rows[report[counter], 1] = row, line
    report[counter] += 1


@_kernel
def parse(text: np.ndarray, length: int, grammar: Grammar, out: RowArrays) -> None:
    """Fill `out` from `length` bytes of complete lines, up to the first error.

    The last of these bytes is a line feed, at which every loop stops.
    """
    # Local names, since numba also counts references to an array that is taken out of a tuple.
    label_ends, label_indices, feature_ends, feature_indices, values, undecided, _, _, report = out
    origin = at = error = address(text, text)
    row = label = feature = 0
    code = OK
    while at < origin + length and code == OK:
        line, first_label, first_feature = at, label, feature
        sorted_labels = sorted_features = True
        if grammar.has_labels and not _is_blank(byte_at(at)):
            at, label, sorted_labels, code = _labels(at, grammar, label_indices, label)
        if code == OK:
            at, feature, sorted_features, code = _features(
                at, grammar, feature_indices, values, feature, undecided, report, origin
            )
        if code != OK:
            error = at
        at += 1
        if grammar.annotated and label == first_label and feature == first_feature:
            continue
        if not sorted_labels:
            _note_row(out.unsorted_labels, report, UNSORTED_LABELS, row, line - origin)
        if not sorted_features:
            _note_row(out.unsorted_features, report, UNSORTED_FEATURES, row, line - origin)
        label_ends[row], feature_ends[row] = label, feature
        row += 1
    report[CODE], report[POSITION] = code, error - origin
    report[ROWS], report[LABELS], report[FEATURES] = row, label, feature


@_kernel
def sort_rows(rows: np.ndarray, ends: np.ndarray, indices: np.ndarray, values: np.ndarray) -> int:
    """Sort each row in `rows` by index. Return the place in `rows` of the first row that has an index twice, or −1.

    Merge sort, because quicksort can take quadratic time. `values` is empty for rows without values.
    """
    for place in range(len(rows)):
        row = rows[place, 0]
        start, end = ends[row - 1] if row > 0 else 0, ends[row]
        order = np.argsort(indices[start:end], kind="mergesort")
        indices[start:end] = indices[start:end][order]
        if len(values):
            values[start:end] = values[start:end][order]
        for entry in range(start + 1, end):
            if indices[entry] == indices[entry - 1]:
                return place
    return -1


@_kernel
def parse_integers(text: np.ndarray, length: int, columns: int, numbers: np.ndarray) -> tuple[int, int, int, int]:
    """Fill `numbers` from lines of `columns` integers; with 0 the first line decides. Blank lines are skipped.

    Return (error code, its position, the number of integers, columns).
    """
    origin = at = address(text, text)
    size = width = 0
    while at < origin + length:
        start, stop = at, byte_at(at)
        if stop == _LINE_FEED:
            if width and not columns:
                columns = width
            if width and width != columns:
                return COLUMNS, start - origin, size, columns
            width = 0
            at += 1
        elif _is_blank(stop) or (stop == _RETURN and byte_at(at + 1) == _LINE_FEED):
            at += 1
        else:
            at, number = _integer(at)
            if at == start or byte_at(at) > _SPACE:
                return BAD_INTEGER, start - origin, size, columns
            numbers[size] = number
            size += 1
            width += 1
    return OK, 0, size, columns
