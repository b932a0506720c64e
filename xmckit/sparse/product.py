"""Multiply CSR matrices, or their transposes, with dense matrices, over any rows of the result, for use in threads.

Every number of a result is one sum in the order of the rows, so the division of work does not change a bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, uint64

from xmckit.sparse.lanes import LINE as _LINE
from xmckit.sparse.lanes import add_product, address, bit_count, loader, prefetch, store, trailing_zeros

_WIDE, _HALF = 256, 128  # bytes of a row that fit into registers
_AHEAD = 16  # entries between the prefetch of a row of the dense matrix and its use
_NEAR = 1 << 18  # bytes that fit into the cache of a core, so that prefetching is useless
_TOGETHER = 64  # entries with rows of the dense matrix that stay in the cache for all parts of the columns


class Entries(NamedTuple):
    """The entries of a CSR matrix."""

    pointers: np.ndarray
    indices: np.ndarray
    values: np.ndarray


def _adder(size: int) -> Any:
    load = loader(size)

    @njit(nogil=True, error_model="numpy")
    def add(
        entries: Entries,
        dense: np.ndarray,
        zeros: np.ndarray,
        out: np.ndarray,
        rows: slice,
        end_of_all: int,
        column: int,
    ) -> None:
        """Do the work of `multiply` for `size` bytes of every row from byte `column` on."""
        indptr, indices, values = entries
        step, far = dense.shape[1] * dense.itemsize, dense.nbytes > _NEAR
        base, target = address(dense, dense) + column, address(out, dense) + rows.start * step + column
        place = indptr[rows.start]
        for row in range(rows.start, rows.stop):
            total = load(address(zeros, dense) + column, dense)
            while place < indptr[row + 1]:
                if far and place + _AHEAD < end_of_all:
                    for line in range(0, size, _LINE):
                        prefetch(base + indices[place + _AHEAD] * step + line)
                total = add_product(total, values[place], load(base + indices[place] * step, dense))
                place += 1
            store(target, total)
            target += step

    return add


_add_wide, _add_half, _add_line = _adder(_WIDE), _adder(_HALF), _adder(_LINE)


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(entries: Entries, dense: np.ndarray, out: np.ndarray, rows: slice) -> None:
    """Set out[i] = Σ_j values[j] · dense[indices[j]] over the entries of row i, for some rows."""
    indptr, first, last = entries.pointers, rows.start, rows.stop
    step, end, zeros = dense.shape[1] * dense.itemsize, indptr[last], np.zeros(dense.shape[1], dense.dtype)
    if step < _LINE:
        _add_few(entries, dense, out, rows)
        return
    while first < last:
        stop = first + 1
        while stop < last and (step <= _WIDE or indptr[stop + 1] - indptr[first] <= _TOGETHER):
            stop += 1
        column = 0
        while column + _WIDE <= step:
            _add_wide(entries, dense, zeros, out, slice(first, stop), end, column)
            column += _WIDE
        if column + _HALF <= step:
            _add_half(entries, dense, zeros, out, slice(first, stop), end, column)
            column += _HALF
        if column + _LINE <= step:
            _add_line(entries, dense, zeros, out, slice(first, stop), end, column)
            column += _LINE
        if column < step:
            # This repeats some columns that are done, with the same result.
            _add_line(entries, dense, zeros, out, slice(first, stop), end, step - _LINE)
        first = stop


@njit(nogil=True, error_model="numpy")
def _add_few(entries: Entries, dense: np.ndarray, out: np.ndarray, rows: slice) -> None:
    indptr, indices, values = entries
    for row in range(rows.start, rows.stop):
        for column in range(dense.shape[1]):
            total = dense.dtype.type(0)
            for place in range(indptr[row], indptr[row + 1]):
                total += values[place] * dense[indices[place], column]
            out[row, column] = total


@njit(cache=True, nogil=True)
def transpose(entries: Entries, columns: int) -> tuple[np.ndarray, Entries]:
    """Return the ascending columns that have entries, and the entries by column and ascending row.

    It takes time and memory for the entries, and one bit per column.
    """
    indptr, indices, values = entries
    # Unsigned, so that numba does not check for negative indices.
    one, low, count = uint64(1), uint64(63), uint64(len(indices))
    bits = np.zeros((columns >> 6) + 1, np.uint64)
    for place in range(count):
        column = uint64(indices[place])
        bits[column >> uint64(6)] |= one << (column & low)
    # The number of columns before each word of bits.
    before = np.empty(len(bits), np.uint64)
    used = np.empty(min(columns, len(indices)), np.int64)
    size = uint64(0)
    for word in range(uint64(len(bits))):
        before[word] = size
        rest = bits[word]
        while rest != 0:
            used[size] = word << uint64(6) | trailing_zeros(rest)
            rest &= rest - one
            size += one
    pointers = np.zeros(size + uint64(2), np.int64)
    nth_of = np.empty(len(indices), np.uint32)
    for place in range(count):
        column = uint64(indices[place])
        word = column >> uint64(6)
        nth = before[word] + bit_count(bits[word] & ((one << (column & low)) - one))
        nth_of[place] = nth
        pointers[nth + uint64(2)] += 1
    for nth in range(size):
        pointers[nth + uint64(2)] += pointers[nth + one]
    rows, ordered = np.empty(len(indices), np.int32), np.empty(len(indices), values.dtype)
    for row in range(len(indptr) - 1):
        for place in range(uint64(indptr[row]), uint64(indptr[row + 1])):
            nth = nth_of[place] + one
            target = uint64(pointers[nth])
            pointers[nth] = target + one
            rows[target], ordered[target] = row, values[place]
    return used[:size], Entries(pointers[: size + one], rows, ordered)
