"""CSR × dense and its transpose × dense, over any part of the result, so that threads can share the work.

Every number of a result is one sum in the order of the rows: how the work is cut does not change a bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types, uint64
from numba.extending import intrinsic

from xmckit.sparse.parse_kernels import trailing_zeros

_AHEAD = 8  # entries between asking for a row of the dense matrix and using it


class Transposed(NamedTuple):
    """The columns of a CSR matrix that have entries, rising, and those entries column by column, rows rising."""

    columns: np.ndarray
    pointers: np.ndarray
    rows: np.ndarray
    values: np.ndarray


def transposed(indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int) -> Transposed:
    """In time and memory for the entries and one bit per column."""
    return Transposed(*_transpose(indptr, indices, values, columns))


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask the processor to bring what is at an address near, before it is needed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # to read, to be kept in all caches, data
        builder.call(
            function, [builder.inttoptr(arguments[0], byte), *(ir.Constant(number, flag) for flag in (0, 3, 1))]
        )
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(cache=True, nogil=True, error_model="numpy")
def multiply(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    dense: np.ndarray,
    start: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    """out[i] = start + Σ_j values[j] · dense[indices[j]] over the entries of row i, for rows first … last − 1.

    With a `Transposed`, `indptr` are its pointers and `indices` its rows: then it is the transpose that is multiplied.
    """
    width, line = dense.shape[1], 64 // dense.itemsize
    base, step = np.int64(dense.ctypes.data), dense.shape[1] * dense.itemsize
    end_of_all = indptr[last]
    for row in range(first, last):
        place, end = indptr[row], indptr[row + 1]
        if place == end:
            for column in range(width):
                out[row, column] = start[column]
        begin = place
        while place < end:
            for ahead in range(place + _AHEAD, min(place + _AHEAD + 4, end_of_all)):
                for column in range(0, width, line):
                    prefetch(base + indices[ahead] * step + column * dense.itemsize)  # type: ignore[call-arg]
            a, factor_a = indices[place], values[place]
            if place == begin:
                for column in range(width):
                    out[row, column] = start[column] + factor_a * dense[a, column]
                place += 1
            elif place + 3 < end:
                b, c, d = indices[place + 1], indices[place + 2], indices[place + 3]
                factor_b, factor_c, factor_d = values[place + 1], values[place + 2], values[place + 3]
                for column in range(width):
                    out[row, column] += (factor_a * dense[a, column] + factor_b * dense[b, column]) + (
                        factor_c * dense[c, column] + factor_d * dense[d, column]
                    )
                place += 4
            else:
                for column in range(width):
                    out[row, column] += factor_a * dense[a, column]
                place += 1


@njit(cache=True, nogil=True)
def _transpose(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    bits = np.zeros((columns >> 6) + 1, np.uint64)
    for place in range(len(indices)):
        bits[indices[place] >> 6] |= uint64(1) << uint64(indices[place] & 63)
    # the number of columns before each word of bits
    before = np.empty(len(bits), np.int64)
    used = np.empty(min(columns, len(indices)), np.int64)
    size = 0
    for word in range(len(bits)):
        before[word] = size
        rest = bits[word]
        while rest != 0:
            used[size] = word << 6 | np.int64(trailing_zeros(rest))  # type: ignore[call-arg]
            rest &= rest - uint64(1)
            size += 1
    pointers = np.zeros(size + 2, np.int64)
    nth_of = np.empty(len(indices), np.int32)
    for place in range(len(indices)):
        column = indices[place]
        below = bits[column >> 6] & ((uint64(1) << uint64(column & 63)) - uint64(1))
        nth_of[place] = before[column >> 6] + _ones(below)
        pointers[nth_of[place] + 2] += 1
    for nth in range(size):
        pointers[nth + 2] += pointers[nth + 1]
    rows, ordered = np.empty(len(indices), np.int32), np.empty(len(indices), values.dtype)
    for row in range(len(indptr) - 1):
        for place in range(indptr[row], indptr[row + 1]):
            target = pointers[nth_of[place] + 1]
            pointers[nth_of[place] + 1] += 1
            rows[target], ordered[target] = row, values[place]
    return used[:size].copy(), pointers[: size + 1].copy(), rows, ordered


@njit(nogil=True)
def _ones(word: Any) -> Any:
    """The number of bits that are set."""
    word -= (word >> uint64(1)) & uint64(0x5555555555555555)
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * uint64(0x0101010101010101)) >> uint64(56))
