"""The numba kernels of `xmckit.sparse.parse`: bytes in, arrays out, errors as a code and a position."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# How many bytes must follow the text that a kernel is given, because it looks at eight at once.
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
# What stands for any larger number: it is beyond every index.
LARGEST_INTEGER = 2**40

# Eight bytes side by side, for `_digits_at`.
_ASCII_ZEROS = np.uint64(0x3030303030303030)
_OVER_NINE = np.uint64(0x7676767676767676)
_TOP_BITS = np.uint64(0x8080808080808080)
_EVERY_FOURTH = np.uint64(0x000000FF000000FF)
_HUNDREDS = np.uint64(100 + (1_000_000 << 32))
_UNITS = np.uint64(1 + (10_000 << 32))

# Wider than the three roundings (2^-53 each) between the digits and the product in `_value`.
_BELOW, _ABOVE = 1 - 2.0**-50, 1 + 2.0**-50

OK = 0
BAD_LABEL, NEGATIVE_LABEL, LABEL_RANGE, LABEL_END = 1, 2, 3, 4
BAD_INDEX, NEGATIVE_INDEX, INDEX_RANGE, NO_COLON = 5, 6, 7, 8
BAD_VALUE, NOT_FINITE, VALUE_END, STRAY_RETURN = 9, 10, 11, 12
DUPLICATE_LABEL, DUPLICATE_INDEX = 13, 14
BAD_INTEGER, COLUMNS = 15, 16

_UNDECIDED = -1

_kernel = njit(cache=True, nogil=True)
# Called once per number: a call that is left in place costs a third of the time.
_inlined = njit(nogil=True, inline="always")

# Places in the array with which the kernel reports.
CODE, POSITION, ROWS, LABELS, FEATURES, UNDECIDEDS, UNSORTED_LABELS, UNSORTED_FEATURES = range(8)


@_kernel
def count(text: np.ndarray) -> tuple[int, int, int]:
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


@_inlined
def _is_digit(character: int) -> np.bool_:
    return np.uint8(character - _ZERO) <= 9


@_inlined
def _is_blank(character: int) -> bool:
    return character in (_SPACE, _TAB)


@_inlined
def _is_sign(character: int) -> bool:
    return character in (_PLUS, _MINUS)


@intrinsic
def _word(typing: Any, text: Any, at: Any) -> Any:
    """Eight bytes of `text` as one integer, the first byte lowest. There must be eight."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return builder.bswap(word) if sys.byteorder == "big" else word

    return types.uint64(text, at), generate


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """The number of zero bits below the lowest one; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@_inlined
def _digits_at(text: np.ndarray, at: int) -> tuple[int, int]:
    """(how many digits stand at `at`, up to 8; the number they spell), without a branch per digit.

    A digit is a byte that becomes 0 to 9 by ^ 0x30; adding 0x76 carries into the top bit of every larger one. The
    digits are shifted to the end of the word, so that zeros stand before them, and joined to pairs, then to eight.
    """
    word = _word(text, at) ^ _ASCII_ZEROS  # type: ignore[call-arg]  # numba passes the first argument
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
def _integer(text: np.ndarray, at: int) -> tuple[int, int]:
    """(position behind the digits, their number); the position does not move when there is no digit.

    Numbers beyond any index come back as LARGEST_INTEGER.
    """
    digits, number = _digits_at(text, at)
    at += digits
    if digits == 8:
        while _is_digit(text[at]):
            number = min(number * 10 + (text[at] - _ZERO), LARGEST_INTEGER)
            at += 1
    return at, number


@_inlined
def _leading_digits(text: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The first 18 significant digits of a long number and how many digits were left out behind them."""
    mantissa = kept = dropped = 0
    for place in range(start, end):
        if text[place] == _DOT:
            continue
        if kept == _MOST_DIGITS:
            dropped += 1
        else:
            mantissa = mantissa * 10 + (text[place] - _ZERO)
            kept += mantissa > 0
    return mantissa, dropped


@_inlined
def _value(text: np.ndarray, at: int) -> tuple[int, np.float32, int]:
    """(position behind the number, its float32, OK or an error or "undecided").

    An integer below 2^53 times or over a power of ten up to 10^22 is one correctly rounded operation (Clinger). For
    anything else the product may be off by a few units of the last place, so the correctly rounded double lies
    between the product's two neighbours `_BELOW` and `_ABOVE`; rounding to float32 is monotone, so when both give
    the same float32, that is the answer.
    """
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    start = at
    mantissa = fraction = 0
    while _is_digit(text[at]):
        mantissa = mantissa * 10 + (text[at] - _ZERO)
        at += 1
    digits = at - start
    if text[at] == _DOT:
        at += 1
        more = 8
        while more == 8:
            more, number = _digits_at(text, at)
            mantissa = mantissa * _POWERS_UP_TO_EIGHT[more] + number
            at += more
            fraction += more
        digits += fraction
    if digits == 0:
        return at, np.float32(0), BAD_VALUE
    exponent = -fraction
    if digits > _MOST_DIGITS:
        mantissa, dropped = _leading_digits(text, start, at)
        exponent += dropped
    if text[at] | _TO_LOWER == _LOWER_E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        if not _is_digit(text[at]):
            return at, np.float32(0), BAD_VALUE
        power = 0
        while _is_digit(text[at]):
            if power < _EXPONENT_LIMIT:
                power = power * 10 + (text[at] - _ZERO)
            at += 1
        exponent += -power if down else power
    if mantissa == 0:
        return at, np.float32(0), OK
    if exponent < -_LARGEST_POWER or exponent > _LARGEST_POWER:
        return at, np.float32(0), _UNDECIDED
    if exponent < 0:
        product = np.float64(mantissa) / _POWERS_OF_TEN[-exponent]
    else:
        product = np.float64(mantissa) * _POWERS_OF_TEN[exponent]
    if negative:
        product = -product
    value = np.float32(product)
    exact = mantissa < _EXACT_INTEGERS and -_EXACT_POWERS <= exponent <= _EXACT_POWERS
    if not exact and np.float32(product * _BELOW) != np.float32(product * _ABOVE):
        return at, value, _UNDECIDED
    if not np.isfinite(value):
        return at, value, NOT_FINITE
    return at, value, OK


@_inlined
def _value_error(text: np.ndarray, at: int, code: int) -> int:
    """A word like nan or inf is a number that is not finite; everything else is not a number."""
    first = text[at]
    if _is_sign(first):
        first = text[at + 1]
    if code == BAD_VALUE and (first | _TO_LOWER == _LOWER_N or first | _TO_LOWER == _LOWER_I):
        return NOT_FINITE
    return code


@_kernel
def parse(
    text: np.ndarray, length: int,
    has_labels: bool, annotated: bool, first_label: int, labels: int, first_feature: int, features: int,
    label_ends: np.ndarray, label_indices: np.ndarray,
    feature_ends: np.ndarray, feature_indices: np.ndarray, values: np.ndarray,
    undecided: np.ndarray, unsorted_labels: np.ndarray, unsorted_features: np.ndarray, report: np.ndarray,
) -> None:  # fmt: skip
    """Fill the arrays from `length` bytes of complete lines. Every loop stops at a line feed at the latest, and the
    last of these bytes is one."""
    at = row = label = feature = open_values = 0
    disordered_labels = disordered_features = 0
    code = OK
    place = 0
    while at < length and code == OK:
        line = at
        label_start = label
        feature_start = feature
        previous = -1
        sorted_labels = sorted_features = True
        if has_labels and not _is_blank(text[at]):
            while True:
                place = at
                at, number = _integer(text, at)
                stop = text[at]
                if at == place:
                    if stop == _MINUS:
                        code = NEGATIVE_LABEL
                    elif place > line or (stop > _SPACE and not (annotated and stop == _HASH)):
                        code = BAD_LABEL
                    break
                if stop == _COLON:
                    # The line has no labels and starts with its first feature.
                    if place > line:
                        code = LABEL_END
                    at = line
                    break
                number -= first_label
                if number < 0 or number >= labels:
                    code = LABEL_RANGE
                    break
                sorted_labels &= number > previous
                previous = number
                label_indices[label] = number
                label += 1
                if stop != _COMMA:
                    if stop > _SPACE:
                        place = at
                        code = LABEL_END
                    break
                at += 1
        previous = -1
        while code == OK:
            stop = text[at]
            while _is_blank(stop):
                at += 1
                stop = text[at]
            place = at
            if stop == _LINE_FEED:
                break
            if stop == _RETURN and text[at + 1] == _LINE_FEED:
                at += 1
                break
            if annotated and stop == _HASH:
                while text[at] != _LINE_FEED:
                    at += 1
                break
            at, number = _integer(text, at)
            if at == place:
                code = NEGATIVE_INDEX if stop == _MINUS else STRAY_RETURN if stop == _RETURN else BAD_INDEX
                break
            if text[at] != _COLON:
                code = NO_COLON
                break
            number -= first_feature
            if number < 0 or number >= features:
                code = INDEX_RANGE
                break
            place = at + 1
            at, value, outcome = _value(text, place)
            if outcome > OK:
                code = _value_error(text, place, outcome)
                break
            if text[at] > _SPACE:
                code = VALUE_END
                break
            if outcome == _UNDECIDED:
                undecided[open_values, 0] = feature
                undecided[open_values, 1] = place
                undecided[open_values, 2] = at
                open_values += 1
            sorted_features &= number > previous
            previous = number
            feature_indices[feature] = number
            values[feature] = value
            feature += 1
        at += 1
        if annotated and code == OK and label == label_start and feature == feature_start:
            continue
        if not sorted_labels:
            unsorted_labels[disordered_labels, 0] = row
            unsorted_labels[disordered_labels, 1] = line
            disordered_labels += 1
        if not sorted_features:
            unsorted_features[disordered_features, 0] = row
            unsorted_features[disordered_features, 1] = line
            disordered_features += 1
        label_ends[row] = label
        feature_ends[row] = feature
        row += 1
    report[CODE], report[POSITION] = code, place
    report[ROWS], report[LABELS], report[FEATURES] = row, label, feature
    report[UNDECIDEDS] = open_values
    report[UNSORTED_LABELS], report[UNSORTED_FEATURES] = disordered_labels, disordered_features


@_kernel
def _sift_down(indices: np.ndarray, values: np.ndarray, with_values: bool, start: int, parent: int, size: int) -> None:
    while True:
        child = 2 * parent + 1
        if child >= size:
            return
        if child + 1 < size and indices[start + child + 1] > indices[start + child]:
            child += 1
        if indices[start + parent] >= indices[start + child]:
            return
        _swap(indices, values, with_values, start + parent, start + child)
        parent = child


@_kernel
def _swap(indices: np.ndarray, values: np.ndarray, with_values: bool, one: int, other: int) -> None:
    indices[one], indices[other] = indices[other], indices[one]
    if with_values:
        values[one], values[other] = values[other], values[one]


@_kernel
def sort_rows(rows: np.ndarray, ends: np.ndarray, indices: np.ndarray, values: np.ndarray) -> int:
    """Heap sort, which needs no room and never degenerates, of each row in `rows`; the place in `rows` of the first
    row that has an index twice, or −1."""
    with_values = len(values) > 0
    for place in range(len(rows)):
        row = rows[place, 0]
        start = ends[row - 1] if row > 0 else 0
        size = ends[row] - start
        for parent in range(size // 2 - 1, -1, -1):
            _sift_down(indices, values, with_values, start, parent, size)
        for last in range(size - 1, 0, -1):
            _swap(indices, values, with_values, start, start + last)
            _sift_down(indices, values, with_values, start, 0, last)
        for entry in range(start + 1, start + size):
            if indices[entry] == indices[entry - 1]:
                return place
    return -1


@_kernel
def parse_integers(text: np.ndarray, length: int, columns: int, numbers: np.ndarray) -> tuple[int, int, int, int]:
    at = size = width = 0
    while at < length:
        stop = text[at]
        place = at
        if stop == _LINE_FEED:
            if width and not columns:
                columns = width
            if width and width != columns:
                return COLUMNS, place, size, columns
            width = 0
            at += 1
        elif _is_blank(stop) or (stop == _RETURN and text[at + 1] == _LINE_FEED):
            at += 1
        else:
            at, number = _integer(text, at)
            if at == place or text[at] > _SPACE:
                return BAD_INTEGER, place, size, columns
            numbers[size] = number
            size += 1
            width += 1
    return OK, 0, size, columns
