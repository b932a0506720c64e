"""The safeguarded solver of the LML projection: it takes any row and any k, in float64 throughout.

`kernels` describes the search. Here every step shrinks a bracket, the threshold is kept as two numbers so that large
logits lose no digits, and sums that must be exact are compensated. Rows are slices of one flat array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

STEPS = 400
NO_STEP = -2.0

# the ways in which a row can be solved
SOLVED, SATURATED, EMPTY, SHARED, UNDEFINED = 0, 1, 2, 3, 4


@njit(cache=True, nogil=True, error_model="numpy")
def gauss_step(f, h0, h1, h2, h3):  # type: ignore[no-untyped-def]
    """Return the ε with f + ε·Σ h/(1+ε·y) = 0 under the quadrature that `kernels` describes, or NO_STEP."""
    spread = h0 * h2 - h1 * h1
    if spread > 1e-5 * h0 * h2:
        inverse = 1.0 / spread
        p, q = (h0 * h3 - h1 * h2) * inverse, (h1 * h3 - h2 * h2) * inverse
        a, b = f * q + (p * h0 - h1), f * p + h0
        inside = b * b - 4.0 * a * f
        if inside >= 0.0 and (f > 0.0 or a > 0.0):
            below = b + math.sqrt(inside)
            if below > 0.0 and 2.0 * f < below:
                return -2.0 * f / below
    below = h0 * h0 + f * h1
    if below > 0.0 and f * h0 < below:
        return -f * h0 / below
    return NO_STEP


@njit(cache=True, nogil=True, error_model="numpy")
def _count_entries(x, start, stop):  # type: ignore[no-untyped-def]
    """Return (whether an entry is NaN, entries at +inf, finite entries, their smallest, their largest)."""
    infinite = finite = 0.0
    smallest, largest = np.inf, -np.inf
    for i in range(start, stop):
        value: Any = np.float64(x[i])
        if value != value:
            return True, 0.0, 0.0, 0.0, 0.0
        if value == np.inf:
            infinite += 1.0
        elif value > -np.inf:
            finite += 1.0
            smallest = value if value < smallest else smallest
            largest = value if value > largest else largest
    return False, infinite, finite, smallest, largest


@njit(cache=True, nogil=True, error_model="numpy")
def _moments(x, start, stop, centre, shift):  # type: ignore[no-untyped-def]
    """Return what `kernels._moments` does, at z = (x − centre) + shift; and the smallest z ≥ 0 and the largest z < 0.

    The excess is summed with compensation: plain sums of three million equal terms drift by more than the tolerance.
    """
    excess = lost = above = h0 = h1 = h2 = h3 = 0.0
    nearest_above, nearest_below = np.inf, -np.inf
    for i in range(start, stop):
        z = (np.float64(x[i]) - centre) + shift
        u = math.exp(-abs(z)) if abs(z) < 745.0 else 0.0
        r = 1.0 / (1.0 + u)
        other = u * r
        h = other * r
        if z < 0.0:
            y, term = other, other
            nearest_below = max(nearest_below, z)
        else:
            y, term = r, -other
            above += 1.0
            nearest_above = min(nearest_above, z)
        total = excess + term
        lost += (excess - total) + term if abs(excess) >= abs(term) else (term - total) + excess
        excess = total
        h0 += h
        h1 += h * y
        h2 += h * y * y
        h3 += h * y * y * y
    return excess, lost, above, h0, h1, h2, h3, nearest_above, nearest_below


@njit(cache=True, nogil=True, error_model="numpy")
def _search(x, start, stop, k, centre, low, high, tolerance):  # type: ignore[no-untyped-def]
    """Return the shift in [low, high] with Σσ((x − centre) + shift) = k, to |Σy − k| ≤ tolerance·Σh; and Σh there."""
    shift = low if high - low < 30.0 else 0.5 * low + 0.5 * high
    width_before = np.inf
    h0 = 0.0
    for _ in range(STEPS):
        excess, lost, above, h0, h1, h2, h3, over, under = _moments(x, start, stop, centre, shift)
        f = (excess + (above - k)) + lost
        if f < 0.0:
            low = shift
        elif f > 0.0:
            high = shift
        elif h0 == 0.0 and over < np.inf and under > -np.inf:
            # the gap is so wide that every y is 0 or 1: the limit is its middle
            middle = shift - 0.5 * (over + under)
            if not abs(over + under) > 1e-9 * (over - under):
                break
            shift = middle
            continue
        if abs(f) <= tolerance * h0:
            break
        step = gauss_step(f, h0, h1, h2, h3) if h0 > 0.0 else NO_STEP
        proposed = shift + math.log1p(step) if step > -1.0 else np.inf
        width = high - low
        if low < proposed < high and width < 0.75 * width_before:
            width_before = max(width, 4.0 * abs(proposed - shift))
        elif not (low < proposed < high):
            proposed = 0.5 * low + 0.5 * high
            width_before = width
        else:
            proposed = 0.5 * low + 0.5 * high
            width_before = np.inf
        if proposed in (low, high, shift):
            break
        shift = proposed
    return shift, h0


@njit(cache=True, nogil=True, error_model="numpy")
def _solve(x, start, stop, k, tolerance):  # type: ignore[no-untyped-def]
    """Return (how, a, b, Σh). SOLVED: y = σ((x − a) + b). SHARED: y = a at +inf, 0 elsewhere."""
    undefined, infinite, finite, smallest, largest = _count_entries(x, start, stop)
    if undefined or not k >= 0.0:
        return UNDEFINED, 0.0, 0.0, 0.0
    if k == 0.0:
        return EMPTY, 0.0, 0.0, 0.0
    if k >= infinite + finite:
        return SATURATED, 0.0, 0.0, 0.0
    if infinite >= k:
        return SHARED, k / infinite, 0.0, 0.0
    rest = k - infinite
    # ν is known if all logits equal the largest, or the smallest: the solution lies between the two
    low = math.log(rest) - math.log(finite - rest)
    high = min(low + (largest - smallest), 1e308)
    shift, _ = _search(x, start, stop, k, largest, low, high, 1e-6)
    # Centred at the threshold, the differences of large logits that matter are exact: −ν = centre + rounded.
    centre = largest - shift
    back = centre - largest
    rounded = (largest - (centre - back)) + (-shift - back)
    shift, h0 = _search(x, start, stop, k, centre, -rounded - 1e-3, -rounded + 1e-3, tolerance)
    return SOLVED, centre, shift, h0


@njit(cache=True, nogil=True, error_model="numpy")
def _y(value, how, a, b):  # type: ignore[no-untyped-def]
    if how == SOLVED:
        z = (value - a) + b
        u = math.exp(-abs(z))
        return u / (1.0 + u) if z < 0.0 else 1.0 / (1.0 + u)
    if how == SATURATED:
        return 1.0 if value > -np.inf else 0.0
    if how == SHARED:
        return a if value == np.inf else 0.0
    return 0.0 if how == EMPTY else np.nan


@njit(cache=True, nogil=True, error_model="numpy")
def _softplus(z):  # type: ignore[no-untyped-def]
    return max(z, 0.0) + math.log1p(math.exp(-abs(z)))


@njit(cache=True, nogil=True, error_model="numpy")
def positives(x, start, labels, factors, begin, end, nu, missing):  # type: ignore[no-untyped-def]
    """Return (Σ factor·(−log σ(z)), Σ factor·(1−y)) over a row's true labels; `missing` stores each factor·(1−y).

    `nu` is (a, b) with z = (x − a) + b.
    """
    loss = slope = 0.0
    for place in range(begin, end):
        z = (np.float64(x[start + labels[place]]) - nu[0]) + nu[1]
        missing[place] = factors[place] / (1.0 + math.exp(z))
        slope += missing[place]
        loss += factors[place] * _softplus(-z) if factors[place] != 0.0 else 0.0
    return loss, slope


@njit(cache=True, nogil=True, error_model="numpy")
def _relative_h(z, nearest):  # type: ignore[no-untyped-def]
    """Return y(1−y)·e^{nearest}."""
    return math.exp(nearest - abs(z)) / (1.0 + math.exp(-abs(z))) ** 2


@njit(cache=True, nogil=True, error_model="numpy")
def project(x, width, ks, tolerance, y, done, first, last):  # type: ignore[no-untyped-def]
    """Fill y for those of the rows first…last−1 that are not done."""
    for row in range(first, last):
        if done[row]:
            continue
        start, stop = row * width, (row + 1) * width
        how, a, b, _ = _solve(x, start, stop, ks[row], tolerance)
        for i in range(start, stop):
            y[i] = _y(np.float64(x[i]), how, a, b)


@njit(cache=True, nogil=True, error_model="numpy")
def _loss_without_search(  # type: ignore[no-untyped-def]
    x, start, stop, k, how, a, labels, factors, begin, end, slope
):
    """Do as `_loss` does. Entries at +inf that share k have the slope of equal logits; nothing else depends on x."""
    loss = missing = 0.0
    for place in range(begin, end):
        y = _y(np.float64(x[start + labels[place]]), how, a, 0.0)
        loss -= factors[place] * math.log(y) if factors[place] != 0.0 else 0.0
        missing += factors[place] * (1.0 - y) if how == SHARED and y > 0.0 else 0.0
    if how != SHARED:
        constant = np.nan if how == UNDEFINED else 0.0
        for i in range(start, stop):
            slope[i] = constant
        return loss, constant
    each = missing * a / k
    for i in range(start, stop):
        slope[i] = each if x[i] == np.inf else 0.0
    for place in range(begin, end):
        if slope[start + labels[place]] != 0.0:
            slope[start + labels[place]] -= factors[place] * (1.0 - a)
    return loss, -missing / (k * (1.0 - a)) if a < 1.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _loss(  # type: ignore[no-untyped-def]
    x, start, stop, k, tolerance, labels, factors, begin, end, missing, slope
):
    """Fill the row of `slope`, which may be the row of x itself, and return (loss, ∂/∂k).

    h/Σh is computed relative to the largest h, so that it survives where every h underflows.
    """
    how, a, b, h0 = _solve(x, start, stop, k, tolerance)
    if how != SOLVED:
        return _loss_without_search(x, start, stop, k, how, a, labels, factors, begin, end, slope)
    loss, total_missing = positives(x, start, labels, factors, begin, end, (a, b), missing)
    nearest = np.inf
    for i in range(start, stop):
        nearest = min(nearest, abs((np.float64(x[i]) - a) + b))
    total = 0.0
    for i in range(start, stop):
        total += _relative_h((np.float64(x[i]) - a) + b, nearest)
    factor = total_missing / total
    for i in range(start, stop):
        slope[i] = factor * _relative_h((np.float64(x[i]) - a) + b, nearest)
    for place in range(begin, end):
        slope[start + labels[place]] -= missing[place]
    return loss, -total_missing / h0 if total_missing != 0.0 else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def loss(  # type: ignore[no-untyped-def]
    x, width, ks, pairs, labels, factors, tolerance, missing, slope, losses, k_slope, done, first, last
):
    """Do as `kernels.loss` does, for the rows that are not done."""
    for row in range(first, last):
        start, stop, begin, end = row * width, (row + 1) * width, pairs[row], pairs[row + 1]
        if begin == end:
            slope[start:stop] = 0.0
            losses[row] = k_slope[row] = 0.0
        elif not done[row]:
            losses[row], k_slope[row] = _loss(
                x, start, stop, ks[row], tolerance, labels, factors, begin, end, missing, slope
            )
