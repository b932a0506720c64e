"""Vector registers and other processor instructions that numba does not offer.

numba loads and stores a sum over matrix rows at every step if it is an array. A sum of the type `Lanes` stays in
registers until it is stored.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numba.extending
from llvmlite import ir
from numba import njit, types
from numba.core.errors import TypingError
from numba.extending import models, register_model

intrinsic: Any = numba.extending.intrinsic
LINE = 64  # bytes of a cache line


class Lanes(types.Type):
    """A vector register of `count` numbers of one type."""

    def __init__(self, dtype: Any, count: int):
        super().__init__(name=f"Lanes({dtype}, {count})")
        self.dtype, self.count = dtype, count

    @property
    def bytes_each(self) -> int:
        return int(self.dtype.bitwidth) // 8


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes):
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, lanes.count))


def loader(size: int) -> Any:
    """Return a function (address, array) that loads `size` bytes as numbers of the type of the array."""

    @intrinsic
    def load(typing: Any, address: Any, array: Any) -> Any:
        lanes = Lanes(array.dtype, size * 8 // array.dtype.bitwidth)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = builder.inttoptr(arguments[0], context.get_value_type(lanes).as_pointer())
            return builder.load(place, align=lanes.bytes_each)

        return lanes(types.int64, array), generate

    return load


@intrinsic
def store(typing: Any, address: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], context.get_value_type(lanes).as_pointer())
        builder.store(arguments[1], place, align=lanes.bytes_each)
        return context.get_dummy_value()

    return types.void(types.int64, lanes), generate


@intrinsic
def add_product(typing: Any, lanes: Any, factor: Any, others: Any) -> Any:
    """Return lanes + factor · others, rounded once if the processor can fuse the operations."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, number, rest = arguments
        factors = _everywhere(builder, number, total.type)
        return builder.fadd(total, builder.fmul(factors, rest, flags=("contract",)), flags=("contract",))

    return lanes(lanes, lanes.dtype, lanes), generate


@intrinsic
def add_rounded_product(typing: Any, lanes: Any, factor: Any, others: Any) -> Any:
    """Return lanes + factor · others with a rounded product, the same on every processor."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, number, rest = arguments
        return builder.fadd(total, builder.fmul(_everywhere(builder, number, total.type), rest))

    return lanes(lanes, lanes.dtype, lanes), generate


@intrinsic
def everywhere(typing: Any, number: Any, like: Any) -> Any:
    """Return lanes of the type of `like` that all hold one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, arguments[0], arguments[1].type)

    return like(like.dtype, like), generate


@intrinsic
def larger(typing: Any, lanes: Any, others: Any) -> Any:
    """Return the larger number of each lane; that of `others` if one is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return lanes(lanes, lanes), generate


@intrinsic
def count_below(typing: Any, counts: Any, lanes: Any, number: Any) -> Any:
    """Return counts + 1 in the lanes that are below a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        total, vector, limit = arguments
        below = builder.fcmp_ordered("<", vector, _everywhere(builder, limit, vector.type))
        return builder.fadd(total, builder.select(below, _constant(1.0, total.type), _constant(0.0, total.type)))

    return lanes(lanes, lanes, lanes.dtype), generate


@intrinsic
def least_where_below(typing: Any, lanes: Any, counts: Any, number: Any) -> Any:
    """Return the least of the lanes with a count below a number, ∞ if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        least, totals, limit = arguments
        below = builder.fcmp_ordered("<", totals, _everywhere(builder, limit, totals.type))
        least = builder.select(below, least, _constant(float("inf"), least.type))
        while (half := least.type.count // 2) > 0:
            low, high = (
                builder.shuffle_vector(least, least, _indices(part)) for part in (range(half), range(half, 2 * half))
            )
            least = builder.select(builder.fcmp_ordered("<", low, high), low, high)
        return builder.extract_element(least, ir.Constant(ir.IntType(32), 0))

    return lanes.dtype(lanes, lanes, lanes.dtype), generate


@intrinsic
def not_below(typing: Any, lanes: Any, number: Any) -> Any:
    """Return a bit for each of up to 64 lanes, the first one lowest: 1 if it is not below a number, or NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, limit = arguments
        bits = builder.fcmp_unordered(">=", vector, _everywhere(builder, limit, vector.type))
        return builder.zext(builder.bitcast(bits, ir.IntType(vector.type.count)), ir.IntType(64))

    return types.uint64(lanes, lanes.dtype), generate


def _everywhere(builder: Any, number: Any, kind: Any) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    )


def _constant(number: float, kind: Any) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def _indices(places: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))


@intrinsic
def address(typing: Any, array: Any, like: Any) -> Any:
    """Return the address of a contiguous array of the type of `like`."""
    if array.layout != "C" or array.dtype != like.dtype:
        raise TypingError(f"this kernel needs arrays of {like.dtype} that are contiguous in C order, not {array}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, ir.IntType(64))

    return types.int64(array, like), generate


@intrinsic
def prefetch(typing: Any, place: Any) -> Any:
    """Tell the processor to load an address into its caches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # flags: read, keep in all caches, data
        builder.call(
            function, [builder.inttoptr(arguments[0], byte), *(ir.Constant(number, flag) for flag in (0, 3, 1))]
        )
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(nogil=True)
def fetch(array: Any, begin: int, end: int) -> None:
    """Prefetch the numbers `begin` to `end` of an array in C order."""
    base = address(array, array)
    for place in range(begin * array.itemsize, end * array.itemsize, LINE):
        prefetch(base + place)


@intrinsic
def bit_count(typing: Any, word: Any) -> Any:
    """Return the number of bits that are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest one; 64 for 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def byte_at(typing: Any, place: Any) -> Any:
    """Return the byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer()))

    return types.uint8(types.int64), generate


@intrinsic
def uint64_at(typing: Any, place: Any) -> Any:
    """Return the 64-bit integer at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def eight_bytes(typing: Any, place: Any) -> Any:
    """Return the eight bytes of text at an address as one integer, the first byte lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)
        return builder.bswap(word) if sys.byteorder == "big" else word

    return types.uint64(types.int64), generate
