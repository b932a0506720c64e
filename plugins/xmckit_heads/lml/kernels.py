"""Kernels of the limited multi-label (LML) projection: find the ν of every row with Σ_j σ(x_j + ν) = k.

Rows are slices of one flat array.

The search. With v = e^{x+ν}, y = v/(1+v) and h = y(1−y), the sum at t·(1+ε) instead of t = e^ν is

    Σy + ε·Σ h/(1 + ε·y),

a Stieltjes function of ε. Two points of Gauss quadrature that match Σh, Σhy, Σhy², Σhy³ turn Σ = k into a quadratic
equation for ε: convergence of order five, also where the k-th and the next logit are far apart (one point at each end).
At t = 0 the same step takes the power sums of e^x.

Two solvers. The fast one, in this file, is for float32 and reads x once: it stores blocks of labels as e^{x−max} with
their first four power sums, and blocks far below the threshold enter the search by those sums only. It reports the rows
that it cannot solve: masks that leave fewer than k labels, infinities, NaN, logits so far apart that e^{x−max}
underflows, tiny k. Those rows, and float64, go to `safeguarded`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

from xmckit_heads.lml.safeguarded import NO_STEP, gauss_step, positives

BLOCK = 256
LANES = 32
# Rows of up to one block are solved this many at a time: alone, each would wait for its own sums and roots.
GROUP = 8
# columns of the table of blocks: power sums, maximum, e^{maximum − row's maximum}, and a list of blocks
TOP, SCALE, NEAR, COLUMNS = 4, 5, 6, 7
# columns of the table of a group of rows: four sums, Σy as in _moments, t (0: not solved), Σh there, and the maximum
EXCESS, ABOVE, ROOT, SLOPE, HIGHEST, ROW_COLUMNS = 4, 5, 6, 7, 8, 9
# Below this logit the four-term series v − v² + v³ − v⁴ of v/(1+v) is exact in float32.
SERIES = -4.2
SERIES_LIMIT = math.exp(SERIES - 1.0)
# e^{x−max} underflows 87 below the maximum. That loss must not matter: at this ν + max it is below e^{−47}.
LARGEST_T = math.exp(40.0)
LOWEST_EXPONENT = np.float32(-87.0)
TINY_K = 1e-20
# Numbers with a subnormal fourth power slow a processor down a hundredfold and add nothing.
UNDERFLOW = np.float32(1e-8)
STEPS = 16
# After a step ε below these, t is accurate enough: the error is of fifth order where Σy is checked while y is written,
# and of fourth order in the Σh of the loss.
SMALL_STEP_FOR_Y, SMALL_STEP_FOR_LOSS = 0.3, 0.03

# Kernels count with unsigned numbers: numba gives signed indices Python's meaning of a negative index, and the test for
# it in every access keeps loops from being vectorised.
_EXACT = {"contract", "nsz"}
_SUMS = {"contract", "nsz", "reassoc"}
# Parts are inlined by force. Otherwise a process that compiles a kernel calls its parts, and one that loads it from
# numba's cache uses the copies in it, which LLVM has optimised once more: their sums differ in the last bits.
_part = functools.partial(njit, nogil=True, error_model="numpy", forceinline=True)
intrinsic: Any = extending.intrinsic  # mypy takes its typing context for an argument of the call
_one = np.float32(1.0)
_zero = np.float32(0.0)


def make_workspace(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return one thread's memory for rows of up to `width` labels.

    It holds e^{x−max} of a row with a spare block, a table of blocks, and the same two for a group of short rows.
    """
    blocks = -(-width // BLOCK)
    return (
        np.empty((blocks + 1) * BLOCK, dtype=np.float32),
        np.empty((blocks, COLUMNS), dtype=np.float64),
        np.empty((GROUP + 1) * BLOCK, dtype=np.float32),
        np.empty((GROUP, ROW_COLUMNS), dtype=np.float64),
    )


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _maximum(typing_context: Any, left: Any, right: Any) -> Any:
    """Return the larger number, in the one form that LLVM reduces with vectors; undefined for NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.FloatType()
        signed = ir.FunctionType(number, (number, number))
        function = builder.module.declare_intrinsic("llvm.maxnum", (number,), signed)
        return builder.call(function, arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _borrow(typing_context: Any, array: Any) -> Any:
    """Return the array without an owner; the caller keeps the owner alive.

    Arrays with an owner are reference-counted, atomically, in every call that takes them: for rows of a hundred labels
    that takes most of the time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        view.parent = ir.Constant(view.parent.type, None)
        return view._getvalue()

    return array(array), generate


@_part(fastmath=_EXACT)
def _exp(x):  # type: ignore[no-untyped-def]
    """Return e^x for x ≤ 0 in float32 with relative error 2e-7, without branches; 0 below −87, NaN for NaN.

    x = twos·log 2 + r: the product is not rounded where the processor fuses it with the sum. A polynomial gives e^r,
    and NaN passes through it.
    """
    twos = np.floor(x * np.float32(1.4426950408889634) + np.float32(0.5))
    twos = twos if twos > np.float32(-126.0) else np.float32(-126.0)
    r = x - twos * np.float32(0.6931471805599453)
    p = np.float32(0.008290223777294159)
    p = p * r + np.float32(0.041898392140865326)
    p = p * r + np.float32(0.16667640209197998)
    p = p * r + np.float32(0.49999144673347473)
    p = p * r + np.float32(0.9999997019767761)
    p = p * r + _one
    power = _float_of_bits(np.int32((np.int32(twos) << np.int32(23)) + np.int32(127 << 23)))
    return _zero if x < LOWEST_EXPONENT else p * power


@_part()
def _largest(x, start, count):  # type: ignore[no-untyped-def]
    """Return the maximum. It may be anything if there is a NaN: the sums detect that."""
    top = np.float32(-3e38)
    for i in range(np.uint64(start), np.uint64(start + count)):
        top = _maximum(top, x[i])
    return top


@_part(fastmath=_SUMS)
def _powers(x, start, count, top, weights, at):  # type: ignore[no-untyped-def]
    """Store w = e^{x−top} and return Σw, Σw², Σw³, Σw⁴."""
    first = second = third = fourth = _zero
    source, target = np.uint64(start), np.uint64(at)
    for i in range(np.uint64(count)):
        w = _exp(x[source + i] - top)
        weights[target + i] = w
        large = w if w > UNDERFLOW else _zero
        square = large * large
        first += w
        second += square
        third += square * large
        fourth += square * square
    return first, second, third, fourth


@_part(fastmath=_SUMS)
def _moments(weights, at, count, t):  # type: ignore[no-untyped-def]
    """Return, at v = t·w: Σy over v < 1 less Σ(1−y) over v ≥ 1, the number of v ≥ 1, Σh, Σhy, Σhy², Σhy³."""
    excess = above = h0 = h1 = h2 = h3 = _zero
    for i in range(np.uint64(at), np.uint64(at + count)):
        v = t * weights[i]
        r = _one / (_one + v)
        y = v * r
        h = y * r
        below = v < _one
        excess += y if below else -r
        above += _zero if below else _one
        large = y if y > UNDERFLOW else _zero
        square = large * large
        h0 += h
        h1 += h * large
        h2 += h * square
        h3 += (h * large) * square
    return excess, above, h0, h1, h2, h3


@_part(fastmath=_SUMS)
def _write_block(weights, at, count, t, y, start):  # type: ignore[no-untyped-def]
    total = _zero
    source, target = np.uint64(at), np.uint64(start)
    for i in range(np.uint64(count)):
        v = t * weights[source + i]
        value = v / (_one + v)
        y[target + i] = value
        total += value
    return total


@_part(fastmath=_SUMS)
def _write_slope_block(weights, at, count, t, factor, slope, start):  # type: ignore[no-untyped-def]
    source, target = np.uint64(at), np.uint64(start)
    for i in range(np.uint64(count)):
        v = t * weights[source + i]
        r = _one / (_one + v)
        slope[target + i] = (v * r) * (r * factor)


@_part()
def _next_t(t, step, low, high):  # type: ignore[no-untyped-def]
    """Return t·(1+step) if it is inside the bracket, otherwise a t that halves it (in ν) or widens the search."""
    proposed = t * (1.0 + step)
    if step > NO_STEP and low < proposed < high:
        return proposed
    if high < np.inf:
        return math.sqrt(low) * math.sqrt(high) if low > 0.0 else 0.05 * high
    return 20.0 * t


@_part()
def _round_up(count):  # type: ignore[no-untyped-def]
    """Round `count` up, so that vectorised loops over it have no remainder. Padding has weight 0."""
    return (count + LANES - 1) // LANES * LANES


@_part()
def _fill_edge(x, start, count, weights, edge):  # type: ignore[no-untyped-def]
    """Copy the last block of a row to the spare one, fill that up with masked labels, and return the maximum."""
    source, target = np.uint64(start), np.uint64(edge)
    top = np.float32(-3e38)
    for i in range(np.uint64(count)):
        weights[target + i] = x[source + i]
        top = _maximum(top, x[source + i])
    for i in range(np.uint64(edge + count), np.uint64(edge + _round_up(count))):
        weights[i] = np.float32(-np.inf)
    return top


@_part()
def _summarise(x, start, stop, weights, table):  # type: ignore[no-untyped-def]
    """Fill the blocks' weights, maxima and power sums, and return the largest maximum."""
    highest = np.float32(-3e38)
    for b in range((stop - start + BLOCK - 1) // BLOCK):
        at = b * BLOCK
        count = stop - start - at
        if count >= BLOCK:
            top = _largest(x, start + at, BLOCK)
            powers = _powers(x, start + at, BLOCK, top, weights, at)
        else:
            edge = len(weights) - BLOCK
            top = _fill_edge(x, start + at, count, weights, edge)
            powers = _powers(weights, edge, _round_up(count), top, weights, at)
        table[b, TOP] = top
        table[b, 0], table[b, 1], table[b, 2], table[b, 3] = powers
        highest = max(highest, top)
    return highest


@_part()
def _rescale(blocks, highest, table):  # type: ignore[no-untyped-def]
    """Make the blocks' power sums relative to `highest`, and return their totals."""
    p1 = p2 = p3 = p4 = 0.0
    for b in range(blocks):
        scale = math.exp(table[b, TOP] - highest) if table[b, TOP] < highest else 1.0
        square = scale * scale
        table[b, SCALE] = scale
        table[b, 0] *= scale
        table[b, 1] *= square
        table[b, 2] *= square * scale
        table[b, 3] *= square * square
        p1 += table[b, 0]
        p2 += table[b, 1]
        p3 += table[b, 2]
        p4 += table[b, 3]
    return p1, p2, p3, p4


@_part()
def _split(blocks, t, table):  # type: ignore[no-untyped-def]
    """List the blocks that the series does not cover at t, with a reserve; return their number and the power sums of
    all the others.
    """
    p1 = p2 = p3 = p4 = 0.0
    listed = 0
    for b in range(blocks):
        if t * table[b, SCALE] > SERIES_LIMIT:
            table[listed, NEAR] = b
            listed += 1
        else:
            p1 += table[b, 0]
            p2 += table[b, 1]
            p3 += table[b, 2]
            p4 += table[b, 3]
    return listed, p1, p2, p3, p4


@_part()
def _solve(x, start, stop, k, small, weights, table):  # type: ignore[no-untyped-def]
    """Return (whether it succeeded, t = e^{ν+m}, m, Σh there).

    `weights` and the table's SCALE give v = t·scale·weight.
    """
    blocks = (stop - start + BLOCK - 1) // BLOCK
    highest = np.float64(_summarise(x, start, stop, weights, table))
    p1, p2, p3, p4 = _rescale(blocks, highest, table)
    if not (0.0 < p1 < np.inf and TINY_K < k < np.inf):
        return False, 0.0, 0.0, 0.0
    t = gauss_step(-k, p1, p2, p3, p4)
    if t <= 0.0:
        t = 20.0 * k / p1
    low, high, split_at = 0.0, np.inf, -1.0
    listed = 0
    s1 = s2 = s3 = s4 = 0.0
    for _ in range(STEPS):
        if not t < LARGEST_T:
            break
        if not (0.2 * split_at < t < 2.5 * split_at):
            listed, s1, s2, s3, s4 = _split(blocks, t, table)
            split_at = t
        square = t * t
        v1, v2, v3, v4 = t * s1, square * s2, square * t * s3, square * square * s4
        excess, above = v1 - v2 + v3 - v4, 0.0
        h0, h1, h2, h3 = v1 - 2.0 * v2 + 3.0 * v3 - 4.0 * v4, v2 - 3.0 * v3 + 6.0 * v4, v3 - 4.0 * v4, v4
        for place in range(listed):
            b = np.int64(table[place, NEAR])
            count = min(BLOCK, stop - start - b * BLOCK)
            e, c, m0, m1, m2, m3 = _moments(weights, b * BLOCK, _round_up(count), np.float32(t * table[b, SCALE]))
            excess += e
            above += c
            h0 += m0
            h1 += m1
            h2 += m2
            h3 += m3
        f = excess + (above - k)
        if f < 0.0:
            low = t
        else:
            high = t
        step = gauss_step(f, h0, h1, h2, h3)
        if abs(step) < small or abs(f) <= 1e-6 * h0:
            return True, t * (1.0 + step), highest, _slope_after(step, h0, h1, h2, h3)
        t = _next_t(t, step, low, high)
    return False, 0.0, 0.0, 0.0


@_part()
def _solve_group(x, width, ks, row, size, small, weights, table):  # type: ignore[no-untyped-def]
    """Solve `size` rows of one block at once, with one evaluation of Σy each. ROOT is 0 where that is not enough.

    A row's numbers do not depend on its neighbours. Every loop but the sums is over rows, so that their divisions and
    roots overlap.
    """
    edge = GROUP * BLOCK
    for r in range(size):
        table[r, HIGHEST] = _fill_edge(x, (row + r) * width, width, weights, edge)
        top = np.float32(table[r, HIGHEST])
        table[r, 0], table[r, 1], table[r, 2], table[r, 3] = _powers(
            weights, edge, _round_up(width), top, weights, r * BLOCK
        )
    for r in range(size):
        k = ks[row + r]
        sound = 0.0 < table[r, 0] < np.inf and TINY_K < k < np.inf
        table[r, ROOT] = gauss_step(-k, table[r, 0], table[r, 1], table[r, 2], table[r, 3]) if sound else 0.0
    for r in range(size):
        if not 0.0 < table[r, ROOT] < LARGEST_T:
            table[r, ROOT] = 0.0
        table[r, EXCESS], table[r, ABOVE], table[r, 0], table[r, 1], table[r, 2], table[r, 3] = _moments(
            weights, r * BLOCK, _round_up(width), np.float32(table[r, ROOT])
        )
    for r in range(size):
        h0, h1, h2, h3 = table[r, 0], table[r, 1], table[r, 2], table[r, 3]
        f = table[r, EXCESS] + (table[r, ABOVE] - ks[row + r])
        step = gauss_step(f, h0, h1, h2, h3)
        table[r, SLOPE] = _slope_after(step, h0, h1, h2, h3)
        table[r, ROOT] = table[r, ROOT] * (1.0 + step) if abs(step) < small or abs(f) <= 1e-6 * h0 else 0.0


@_part()
def _slope_after(step, h0, h1, h2, h3):  # type: ignore[no-untyped-def]
    """Return Σh at t·(1+step), to third order."""
    return h0 + step * (h0 - 2.0 * h1 + step * (3.0 * h2 - 2.0 * h1) + step * step * (3.0 * h2 - 4.0 * h3))


@_part()
def _project_short(start, stop, k, t, slope, y, weights, at):  # type: ignore[no-untyped-def]
    """Fill y and return whether its sum is k."""
    for _ in range(3):
        total = np.float64(_write_block(weights, at, stop - start, np.float32(t), y, start))
        if abs(total - k) <= 5e-7 * k:
            return True
        t *= 1.0 - (total - k) / slope
    return False


@_part()
def _project(x, start, stop, k, y, weights, table):  # type: ignore[no-untyped-def]
    """Fill y and return whether its sum is k."""
    solved, t, _, slope = _solve(x, start, stop, k, SMALL_STEP_FOR_Y, weights, table)
    if not solved:
        return False
    for _ in range(3):
        total = 0.0
        for b in range((stop - start + BLOCK - 1) // BLOCK):
            count = min(BLOCK, stop - start - b * BLOCK)
            total += _write_block(weights, b * BLOCK, count, np.float32(t * table[b, SCALE]), y, start + b * BLOCK)
        if abs(total - k) <= 5e-7 * k:
            return True
        t *= 1.0 - (total - k) / slope
    return False


@_part(fastmath=_SUMS)
def _weighted_sums(y, g, start, stop):  # type: ignore[no-untyped-def]
    """Return Σh and Σhg over a block."""
    one = y.dtype.type(1.0)
    total = product = y.dtype.type(0.0)
    for i in range(np.uint64(start), np.uint64(stop)):
        h = y[i] * (one - y[i])
        total += h
        product += h * g[i]
    return total, product


@_part(fastmath=_SUMS)
def _pull_back(y, g, start, stop, mean, slope):  # type: ignore[no-untyped-def]
    one = y.dtype.type(1.0)
    for i in range(np.uint64(start), np.uint64(stop)):
        slope[i] = y[i] * (one - y[i]) * (g[i] - mean)


@njit(cache=True, nogil=True, error_model="numpy")
def pull_back(y, g, slope, means, width, first, last):  # type: ignore[no-untyped-def]
    """Fill `slope` with h∘(g − d) and `means` with d = Σhg/Σh, the mean of g weighted by h; 0 where Σh is 0."""
    y, g, slope = _borrow(y), _borrow(g), _borrow(slope)
    for row in range(first, last):
        start, stop = row * width, (row + 1) * width
        total = product = 0.0
        for at in range(start, stop, BLOCK):
            here, there = _weighted_sums(y, g, at, min(at + BLOCK, stop))
            total += here
            product += there
        means[row] = product / total if total != 0.0 else 0.0
        _pull_back(y, g, start, stop, y.dtype.type(means[row]), slope)


@_part()
def _loss(  # type: ignore[no-untyped-def]
    x, start, stop, k, labels, factors, begin, end, missing, slope, weights, table
):
    """Fill the row of `slope`, which may be the row of x itself, and return (whether it succeeded, loss, ∂/∂k).

    A row without true labels has loss and derivatives 0.
    """
    if begin == end:
        for i in range(start, stop):
            slope[i] = _zero
        return True, 0.0, 0.0
    solved, t, highest, h0 = _solve(x, start, stop, k, SMALL_STEP_FOR_LOSS, weights, table)
    if not solved:
        return False, 0.0, 0.0
    loss, total_missing = positives(x, start, labels, factors, begin, end, (highest, math.log(t)), missing)
    factor = total_missing / h0
    for b in range((stop - start + BLOCK - 1) // BLOCK):
        count = min(BLOCK, stop - start - b * BLOCK)
        scale = np.float32(t * table[b, SCALE])
        _write_slope_block(weights, b * BLOCK, count, scale, np.float32(factor), slope, start + b * BLOCK)
    for place in range(begin, end):
        slope[start + labels[place]] -= missing[place]
    return True, loss, -factor


@njit(cache=True, nogil=True, error_model="numpy")
def project(x, width, ks, y, done, workspace, first, last):  # type: ignore[no-untyped-def]
    """Fill y for the rows first…last−1 of the flat x; `done` marks the rows that could be solved."""
    x, y, ks = _borrow(x), _borrow(y), _borrow(ks)
    weights, table = _borrow(workspace[0]), _borrow(workspace[1])
    group_weights, group_table = _borrow(workspace[2]), _borrow(workspace[3])
    row = first
    while row < last:
        size = min(GROUP, last - row) if 0 < width <= BLOCK else 0
        _solve_group(x, width, ks, row, size, SMALL_STEP_FOR_Y, group_weights, group_table)
        for r in range(max(1, size)):
            start, stop, k = row * width, (row + 1) * width, ks[row]
            done[row] = r < size and group_table[r, ROOT] > 0.0
            if done[row]:
                t, slope = group_table[r, ROOT], group_table[r, SLOPE]
                done[row] = _project_short(start, stop, k, t, slope, y, group_weights, r * BLOCK)
            if not done[row]:
                done[row] = _project(x, start, stop, k, y, weights, table)
            row += 1


@njit(cache=True, nogil=True, error_model="numpy")
def loss(  # type: ignore[no-untyped-def]
    x, width, ks, pairs, labels, factors, missing, slope, losses, k_slope, done, workspace, first, last
):
    """Compute per row Σ factor·(−log y) over its true labels (pairs[row]…), and the derivatives for x and k.

    `slope` may be x itself: a row that cannot be solved stays as it was. `missing` is scratch, one number per pair.
    """
    x, slope, labels, factors, missing = (
        _borrow(x), _borrow(slope), _borrow(labels), _borrow(factors), _borrow(missing)
    )  # fmt: skip
    weights, table = _borrow(workspace[0]), _borrow(workspace[1])
    for row in range(first, last):
        done[row], losses[row], k_slope[row] = _loss(
            x, row * width, (row + 1) * width, ks[row],
            labels, factors, pairs[row], pairs[row + 1], missing, slope,
            weights, table,
        )  # fmt: skip
