"""A dual active-set method (Goldfarb and Idnani 1983) for min ½‖v‖² subject to s_i·row_i·v ≥ ‖row_i‖, in numba.

The method starts at v = 0, the optimum without constraints. Each step takes about the most violated row p of a small
working set, moves v along the part z of p that is orthogonal to the active rows, and drops an active row when its
multiplier would turn negative. The active rows are stored as a thin factorisation Aᵀ = QᵀR: q rows of Q, and column j
of R stored as row j. If p depends on the active rows and no multiplier blocks, p is minus a non-negative combination of
them: no v satisfies all rows, and the combination is the reason (Gordan).

Nothing here is a proof: the compiler may reorder the arithmetic, and prover.py proves the results.
"""

from __future__ import annotations

import functools

import numpy as np
from numba import njit

SATISFIED, INFEASIBLE, STUCK = 0, 1, 2

BLOCKING = 1e-13
# Rows with a product of at least this (of 1) need no further step; FULLY takes twice as many steps as ENOUGH.
ENOUGH, FULLY = 0.1, 1 - 1e-9
DEPENDENT, CAREFULLY_DEPENDENT = 1e-22, 1e-27  # a unit row with a smaller squared orthogonal part is dependent
STEPS_PER_COLUMN, LEAST_STEPS = 200, 5000  # the limit on the steps of a slot
CANCELLED = 0.01  # a smaller share of the squared length is projected a second time
CACHED = 12  # violated rows that are tried again before the whole working set is scanned
FAR = 0.5  # rows up to this far from the worst product to the required one are cached
ROUGHLY = 2e-7  # times columns and length of v: the error bound of products in single precision
SHORT = 1e30  # longer vectors do not fit single precision
VECTORS = 32  # numbers that a loop takes at a time

# Parts are inlined by force. Otherwise a process that compiles a kernel calls its parts, and one that loads it from
# numba's cache uses the copies in it, which LLVM has optimised once more: their sums differ in the last bits.
_part = functools.partial(njit, nogil=True, error_model="numpy", forceinline=True)
_FAST = {"reassoc", "contract", "arcp", "nsz"}
_fast = _part(fastmath=_FAST)
_least = _part(fastmath={"reassoc", "nnan", "nsz"})  # vectorises minima


@_fast
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@_fast
def _row_dot(rows, row, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for i in range(b.shape[0]):
        total += rows[row, i] * b[i]
    return total


@_fast
def _up_to(last, end):  # type: ignore[no-untyped-def]
    """Return the first multiple of VECTORS behind `last`, at most `end`: other loop ends leave a slow remainder."""
    return min((last | (VECTORS - 1)) + 1, end)


@_fast
def _gather(units, ids, signs, count, near):  # type: ignore[no-untyped-def]
    """Copy the unit rows of the working set, times their signs, into `near`."""
    for j in range(count):
        row, sign = ids[j], np.float32(signs[j])
        for i in range(units.shape[1]):
            near[j, i] = units[row, i] * sign


@_fast
def _rough_products(near, count, v, short, products):  # type: ignore[no-untyped-def]
    """Set products[j] = near[j]·v in single precision, four rows at a time; `short` holds v."""
    for i in range(v.shape[0]):
        short[i] = v[i]
    whole = count - count % 4
    for j in range(0, whole, 4):
        t0 = t1 = t2 = t3 = np.float32(0.0)
        for i in range(short.shape[0]):
            t0 += near[j, i] * short[i]
            t1 += near[j + 1, i] * short[i]
            t2 += near[j + 2, i] * short[i]
            t3 += near[j + 3, i] * short[i]
        products[j], products[j + 1], products[j + 2], products[j + 3] = t0, t1, t2, t3
    for j in range(whole, count):
        products[j] = _row_dot(near, np.uint64(j), short)


@_fast
def _project(Q, count, v, along, z):  # type: ignore[no-untyped-def]
    """Set along = Q[:count]·v and z −= Q[:count]ᵀ·along in one pass: four rows are used twice while in the cache."""
    whole = count - count % 4
    for j in range(0, whole, 4):
        t0 = t1 = t2 = t3 = 0.0
        for i in range(v.shape[0]):
            t0 += Q[j, i] * v[i]
            t1 += Q[j + 1, i] * v[i]
            t2 += Q[j + 2, i] * v[i]
            t3 += Q[j + 3, i] * v[i]
        along[j], along[j + 1], along[j + 2], along[j + 3] = t0, t1, t2, t3
        for i in range(z.shape[0]):
            z[i] -= t0 * Q[j, i] + t1 * Q[j + 1, i] + t2 * Q[j + 2, i] + t3 * Q[j + 3, i]
    for j in range(whole, count):
        along[j] = _row_dot(Q, np.uint64(j), v)
        for i in range(z.shape[0]):
            z[i] -= along[j] * Q[j, i]


@_fast
def _orthogonal_part(Q, q, a, along, z, again, rest):  # type: ignore[no-untyped-def]
    """Set along = Q·a and z = a − Qᵀ·along, projected twice if cancellation is strong; return ‖z‖²."""
    for i in range(z.shape[0]):  # a slice assignment would take seconds to compile
        z[i] = a[i]
    _project(Q, q, a, along, z)
    left = _dot(z, z)
    if q and left < CANCELLED * _dot(a, a):
        for i in range(z.shape[0]):
            rest[i] = z[i]
        _project(Q, q, rest, again, z)
        for j in range(q):
            along[j] += again[j]
        left = _dot(z, z)
    return left


@_fast
def _solve_upper(R, pivots, q, along, r):  # type: ignore[no-untyped-def]
    """Solve R·r = along. The entries of R behind its diagonal are zero."""
    for j in range(r.shape[0]):
        r[j] = along[j] if j < q else 0.0
    for j in range(q - 1, -1, -1):
        value = r[j] * pivots[j]
        for i in range(_up_to(j, r.shape[0])):
            r[i] -= value * R[j, i]
        r[j] = value


@_fast
def _rotate_column(R, j, first, end, cosines, sines):  # type: ignore[no-untyped-def]
    """Apply the rotations from `first` up to `end` to column j of R."""
    above = R[j, first]
    for i in range(first, end):
        below = R[j, i + 1]
        R[j, i] = cosines[i] * above + sines[i] * below
        above = cosines[i] * below - sines[i] * above
    R[j, end] = above


@_fast
def _rotate_four_columns(R, j, first, end, cosines, sines):  # type: ignore[no-untyped-def]
    """Apply the rotations to columns j to j + 3: rotations wait for each other, and four columns share the wait."""
    above0, above1, above2, above3 = R[j, first], R[j + 1, first], R[j + 2, first], R[j + 3, first]
    for i in range(first, end):
        c, s = cosines[i], sines[i]
        below0, below1, below2, below3 = R[j, i + 1], R[j + 1, i + 1], R[j + 2, i + 1], R[j + 3, i + 1]
        R[j, i], above0 = c * above0 + s * below0, c * below0 - s * above0
        R[j + 1, i], above1 = c * above1 + s * below1, c * below1 - s * above1
        R[j + 2, i], above2 = c * above2 + s * below2, c * below2 - s * above2
        R[j + 3, i], above3 = c * above3 + s * below3, c * below3 - s * above3
    R[j, end], R[j + 1, end], R[j + 2, end], R[j + 3, end] = above0, above1, above2, above3


@_fast
def _drop(Q, R, pivots, q, k, active, multipliers, along, z, cosines, sines):  # type: ignore[no-untyped-def]
    """Remove active row k: shift, make R triangular again by rotations, and return the last row of Q to z."""
    last = q - 1
    for j in range(k, last):
        active[j] = active[j + 1]
        multipliers[j] = multipliers[j + 1]
        for i in range(_up_to(j + 1, R.shape[1])):
            R[j, i] = R[j + 1, i]
    for start in range(k, last, 4):
        end = min(start + 4, last)
        done = k
        if end == start + 4:
            _rotate_four_columns(R, start, k, start, cosines, sines)
            done = start
        for j in range(start, end):
            _rotate_column(R, j, done, j, cosines, sines)
            length = np.sqrt(R[j, j] * R[j, j] + R[j, j + 1] * R[j, j + 1])
            pivots[j] = 1.0 / length
            cosines[j], sines[j] = R[j, j] * pivots[j], R[j, j + 1] * pivots[j]
            R[j, j], R[j, j + 1] = length, 0.0
    for j in range(k, last):
        c, s = cosines[j], sines[j]
        above, below = along[j], along[j + 1]
        along[j], along[j + 1] = c * above + s * below, c * below - s * above
        for i in range(z.shape[0]):
            above, below = Q[j, i], Q[j + 1, i]
            Q[j, i] = c * above + s * below
            Q[j + 1, i] = c * below - s * above
    freed = along[last]
    for i in range(z.shape[0]):
        z[i] += freed * Q[last, i]
    return freed * freed


@_least
def _least_of(values, count):  # type: ignore[no-untyped-def]
    least = np.float32(np.inf)
    for j in range(count):
        least = values[j] if values[j] < least else least
    return least


@_fast
def _list_worst(products, count, enough, cache):  # type: ignore[no-untyped-def]
    """List in `cache` the first rows with about the least products below `enough`; its last entry is their number."""
    least, listed = _least_of(products, count), 0
    if least < enough:
        cut = least + np.float32(FAR) * (enough - least)
        for j in range(count):
            if products[j] <= cut:
                cache[listed] = j
                listed += 1
                if listed == CACHED:
                    break
    cache[CACHED] = listed


@_fast
def _worst_listed(rows, norms, ids, signs, v, is_active, cache, enough):  # type: ignore[no-untyped-def]
    """Return the position of the listed row with the least product over its length, or −1 if none is below `enough`."""
    best, where = enough, -1
    for c in range(cache[CACHED]):
        j = cache[c]
        if is_active[j] == 0:
            value = signs[j] * _row_dot(rows, ids[j], v) / norms[ids[j]]
            if value < best:
                best, where = value, j
    return where


@_fast
def _worst_of_all(rows, norms, ids, signs, count, v, is_active, enough):  # type: ignore[no-untyped-def]
    best, where = enough, -1
    for j in range(count):
        value = signs[j] * _row_dot(rows, ids[j], v) / norms[ids[j]]
        if value < best and is_active[j] == 0:
            best, where = value, j
    return where


@_fast
def _most_violated(  # type: ignore[no-untyped-def]
    rows, norms, ids, signs, count, v, active, q, is_active, near, short, cache, products, enough, closely
):  # fmt: skip
    """Return the position of a row with about the least product over its length, or −1 if none is below `enough`.

    Rows that the last scan of the whole set found far below `enough` come first. A scan uses single precision, and
    double precision where single precision does not decide. `closely` always uses double precision and finds the very
    least product: it takes longer, and yields combinations of near-parallel rows that are easier to prove.
    """
    where = _worst_listed(rows, norms, ids, signs, v, is_active, cache, enough)
    if where >= 0:
        return where
    length = np.sqrt(_dot(v, v))
    if length < SHORT and not closely:
        _rough_products(near, count, v, short, products)
        for k in range(q):
            products[active[k]] = np.inf
        doubt = ROUGHLY * near.shape[1] * length
        _list_worst(products, count, np.float32(enough + doubt), cache)
        where = _worst_listed(rows, norms, ids, signs, v, is_active, cache, enough)
        if where >= 0 or cache[CACHED] == 0:
            return where
    return _worst_of_all(rows, norms, ids, signs, count, v, is_active, enough)


@_least
def _first_blocker(multipliers, r, q, steps):  # type: ignore[no-untyped-def]
    """Return the dual step at which an active multiplier turns negative, and its position; behind q, r is zero."""
    step = np.inf
    for j in range(_up_to(q - 1, r.shape[0])):
        steps[j] = multipliers[j] / r[j] if r[j] > BLOCKING else np.inf
        step = steps[j] if steps[j] < step else step
    if step < np.inf:
        for j in range(q):
            if steps[j] == step:
                return step, j
    return np.inf, -1


@_fast
def _solve(  # type: ignore[no-untyped-def]  # noqa: C901  # a kernel, see below
    rows, norms, ids, signs, count, width, v, Q, R, active, multipliers, is_active, state, enough, most, dependent,
    closely, work, near, short, products
):  # fmt: skip
    """Continue from `state` = (active rows, steps) until the working set is satisfied or infeasible.

    If it is infeasible, `active` lists the rows of the combination, the violated row last. The loop stays in one
    function: its steps share a dozen arrays and scalars, and a call per step would cost time.
    """
    a, along, z, r, again = work[0], work[1], work[2], work[3], work[4]
    cosines, sines, pivots = work[5], work[6], work[7]
    cache = np.zeros(CACHED + 1, dtype=np.int64)
    q, steps = state[0], state[1]
    for j in range(q):
        pivots[j] = 1.0 / R[j, j]
    while True:
        p = _most_violated(
            rows, norms, ids, signs, count, v, active, q, is_active, near, short, cache, products, enough, closely
        )
        if p < 0:
            state[0], state[1] = q, steps
            return SATISFIED
        row, sign, wanted = ids[p], signs[p], norms[ids[p]]
        for i in range(v.shape[0]):
            a[i] = sign * rows[row, i]
        left = _orthogonal_part(Q, q, a, along, z, again, cosines)
        if q == width:
            left = 0.0
        added = 0.0
        while True:
            steps += 1
            if steps > most:
                state[0], state[1] = q, steps
                return STUCK
            _solve_upper(R, pivots, q, along, r)
            dual_step, blocker = _first_blocker(multipliers, r, q, again)
            if left < dependent * wanted * wanted:
                if blocker < 0:
                    active[q] = p
                    state[0], state[1] = q, steps
                    return INFEASIBLE
                step = dual_step
                left = 0.0
                for i in range(z.shape[0]):
                    z[i] = 0.0
            else:
                primal_step = (wanted - _dot(a, v)) / left
                step = min(primal_step, dual_step)
                for i in range(v.shape[0]):
                    v[i] += step * z[i]
            for j in range(q):
                multipliers[j] = max(multipliers[j] - step * r[j], 0.0)
            added += step
            if left > 0.0 and primal_step <= dual_step:
                length = np.sqrt(left)
                for i in range(v.shape[0]):
                    Q[q, i] = z[i] / length
                for j in range(R.shape[1]):
                    R[q, j] = along[j] if j < q else 0.0
                R[q, q], pivots[q] = length, 1.0 / length
                active[q], multipliers[q], is_active[p] = p, added, 1
                q += 1
                break
            is_active[active[blocker]] = 0
            left += _drop(Q, R, pivots, q, blocker, active, multipliers, along, z, cosines, sines)
            q -= 1


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def solve_batch(  # type: ignore[no-untyped-def]
    rows, norms, units, ids, signs, counts, width, v, Q, R, active, multipliers, is_active, state, enough, most,
    dependent, closely, slots, outcome
):  # fmt: skip
    """Call `_solve` for each of `slots`; the arrays from `ids` on have one entry per slot."""
    work = np.zeros((8, v.shape[1]))
    most_rows = max([counts[slot] for slot in slots])
    near, short = np.empty((most_rows, units.shape[1]), dtype=np.float32), np.empty(units.shape[1], dtype=np.float32)
    products = np.empty(most_rows, dtype=np.float32)
    for at in range(slots.shape[0]):
        slot = slots[at]
        _gather(units, ids[slot], signs[slot], counts[slot], near)
        outcome[slot] = _solve(
            rows, norms, ids[slot], signs[slot], counts[slot], width, v[slot], Q[slot], R[slot], active[slot],
            multipliers[slot], is_active[slot], state[slot], enough, most, dependent, closely, work, near,
            short, products,
        )  # fmt: skip


class Slots:
    """The arrays of the solvers that run side by side, each with room for `room` rows out of `count`."""

    def __init__(self, slots: int, room: int, count: int, width: int, padded: int):
        self.ids = np.zeros((slots, room), dtype=np.uint32)
        self.signs = np.zeros((slots, room))
        self.counts = np.zeros(slots, dtype=np.int64)
        self.v = np.zeros((slots, padded))
        self.Q = np.zeros((slots, max(1, width), padded))
        self.R = np.zeros((slots, max(1, width), padded))
        self.active = np.zeros((slots, width + 1), dtype=np.int64)
        self.multipliers = np.zeros((slots, padded))
        self.is_active = np.zeros((slots, room), dtype=np.uint8)
        self.state = np.zeros((slots, 2), dtype=np.int64)
        self.outcome = np.zeros(slots, dtype=np.int64)
        self.in_set = np.zeros((slots, count), dtype=np.uint8)
        self.width = width

    def start(self, slot: int, ids: np.ndarray, signs: np.ndarray) -> None:
        """Reset the slot and give it these rows as its first working set."""
        self.counts[slot] = len(ids)
        self.ids[slot, : len(ids)], self.signs[slot, : len(ids)] = ids, signs
        self.v[slot], self.is_active[slot], self.state[slot], self.in_set[slot] = 0.0, 0, 0, 0
        self.in_set[slot, ids] = 1

    def drop_inactive_rows(self, slot: int) -> None:
        """Shrink a full working set to its active rows; the others return if they are violated again."""
        count, active_count = self.counts[slot], self.state[slot, 0]
        is_active = self.is_active[slot, :count] > 0
        kept = int(is_active.sum())
        self.in_set[slot, self.ids[slot, :count][~is_active]] = 0
        for array in (self.ids, self.signs):
            array[slot, :kept] = array[slot, :count][is_active]
        new_positions = np.cumsum(is_active) - 1
        self.active[slot, :active_count] = new_positions[self.active[slot, :active_count]]
        self.is_active[slot, :count] = np.arange(count) < kept
        self.counts[slot] = kept

    def solve(
        self, rows: np.ndarray, norms: np.ndarray, units: np.ndarray, slots: np.ndarray, enough: float,
        dependent: float, closely: bool,
    ) -> None:  # fmt: skip
        """Continue with the working sets of `slots`; `outcome` tells how each ended."""
        most = STEPS_PER_COLUMN * self.width + LEAST_STEPS
        solve_batch(
            rows, norms, units, self.ids, self.signs, self.counts, self.width, self.v, self.Q, self.R, self.active,
            self.multipliers, self.is_active, self.state, enough, most, dependent, closely, slots,
            self.outcome,
        )  # fmt: skip
