"""Vector registers and other processor instructions that numba does not offer.

numba loads and stores a sum over matrix rows at every step if it is an array. A sum of the type `Lanes` stays in
registers until it is stored.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
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


def _instruction(signature: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of a function (builder, *values) that emits the instructions of a call.

    `signature` maps the types of the arguments to the signature of the call.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)  # numba takes the parameters of `emit` behind the first one
        def define(typing: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                result = emit(builder, *values)
                return context.get_dummy_value() if result is None else result

            return signature(*arguments), generate

        return intrinsic(define)

    return decorate


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


@_instruction(lambda lanes, factor, others: lanes(lanes, lanes.dtype, lanes))
def add_product(builder: Any, lanes: Any, factor: Any, others: Any) -> Any:
    """Return lanes + factor · others, rounded once if the processor can fuse the operations."""
    product = builder.fmul(_everywhere(builder, factor, lanes.type), others, flags=("contract",))
    return builder.fadd(lanes, product, flags=("contract",))


@_instruction(lambda lanes, factor, others: lanes(lanes, lanes.dtype, lanes))
def add_rounded_product(builder: Any, lanes: Any, factor: Any, others: Any) -> Any:
    """Return lanes + factor · others with a rounded product, the same on every processor."""
    return builder.fadd(lanes, builder.fmul(_everywhere(builder, factor, lanes.type), others))


@_instruction(lambda number, like: like(like.dtype, like))
def everywhere(builder: Any, number: Any, like: Any) -> Any:
    """Return lanes of the type of `like` that all hold one number."""
    return _everywhere(builder, number, like.type)


@_instruction(lambda lanes, others: lanes(lanes, lanes))
def larger(builder: Any, lanes: Any, others: Any) -> Any:
    """Return the larger number of each lane; that of `others` if one is NaN."""
    return builder.select(builder.fcmp_ordered(">", lanes, others), lanes, others)


@_instruction(lambda counts, lanes, number: lanes(lanes, lanes, lanes.dtype))
def count_below(builder: Any, counts: Any, lanes: Any, number: Any) -> Any:
    """Return counts + 1 in the lanes that are below a number."""
    below = builder.fcmp_ordered("<", lanes, _everywhere(builder, number, lanes.type))
    return builder.fadd(counts, builder.select(below, _constant(1.0, counts.type), _constant(0.0, counts.type)))


@_instruction(lambda lanes, counts, number: lanes.dtype(lanes, lanes, lanes.dtype))
def least_where_below(builder: Any, lanes: Any, counts: Any, number: Any) -> Any:
    """Return the least of the lanes with a count below a number, ∞ if there is none."""
    below = builder.fcmp_ordered("<", counts, _everywhere(builder, number, counts.type))
    least = builder.select(below, lanes, _constant(float("inf"), lanes.type))
    while (half := least.type.count // 2) > 0:
        low, high = (
            builder.shuffle_vector(least, least, _indices(part)) for part in (range(half), range(half, 2 * half))
        )
        least = builder.select(builder.fcmp_ordered("<", low, high), low, high)
    return builder.extract_element(least, ir.Constant(ir.IntType(32), 0))


@_instruction(lambda lanes, number: types.uint64(lanes, lanes.dtype))
def not_below(builder: Any, lanes: Any, number: Any) -> Any:
    """Return a bit for each of up to 64 lanes, the first one lowest: 1 if it is not below a number, or NaN."""
    bits = builder.fcmp_unordered(">=", lanes, _everywhere(builder, number, lanes.type))
    return builder.zext(builder.bitcast(bits, ir.IntType(lanes.type.count)), ir.IntType(64))


def _everywhere(builder: Any, number: Any, kind: Any) -> Any:
    nothing = ir.Constant(kind, ir.Undefined)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, _indices([0] * kind.count))


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


@_instruction(lambda place: types.void(types.int64))
def prefetch(builder: Any, place: Any) -> None:
    """Tell the processor to load an address into its caches."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    # flags: read, keep in all caches, data
    builder.call(function, [builder.inttoptr(place, byte), *(ir.Constant(number, flag) for flag in (0, 3, 1))])


@njit(nogil=True)
def fetch(array: Any, begin: int, end: int) -> None:
    """Prefetch the numbers `begin` to `end` of an array in C order."""
    base = address(array, array)
    for place in range(begin * array.itemsize, end * array.itemsize, LINE):
        prefetch(base + place)


@_instruction(lambda word: types.uint64(types.uint64))
def bit_count(builder: Any, word: Any) -> Any:
    """Return the number of bits that are set."""
    return builder.ctpop(word)


@_instruction(lambda word: types.uint64(types.uint64))
def trailing_zeros(builder: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest one; 64 for 0."""
    return builder.cttz(word, ir.Constant(ir.IntType(1), 0))


@_instruction(lambda place: types.uint8(types.int64))
def byte_at(builder: Any, place: Any) -> Any:
    """Return the byte at an address."""
    return builder.load(builder.inttoptr(place, ir.IntType(8).as_pointer()))


def _word_at(builder: Any, place: Any) -> Any:
    return builder.load(builder.inttoptr(place, ir.IntType(64).as_pointer()), align=1)


@_instruction(lambda place: types.uint64(types.int64))
def uint64_at(builder: Any, place: Any) -> Any:
    """Return the 64-bit integer at an address."""
    return _word_at(builder, place)


@_instruction(lambda place: types.uint64(types.int64))
def eight_bytes(builder: Any, place: Any) -> Any:
    """Return the eight bytes of text at an address as one integer, the first byte lowest."""
    word = _word_at(builder, place)
    return builder.bswap(word) if sys.byteorder == "big" else word
