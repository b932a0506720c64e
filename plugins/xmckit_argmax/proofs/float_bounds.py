"""Proofs in float64 that hold in exact arithmetic, because every rounding error is bounded.

u = 2⁻⁵³ is the unit roundoff. A sum of k products in any order, fused or not, is off by at most γ_k Σ|terms| with
γ_k = k·u/(1 − k·u) (Higham 2002, section 3.1). Rows and vectors are scaled so that underflow is far below that.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

UNIT = 2.0**-53
ROWS_IN_CACHE = 1 << 9
MOST_TIGHT = 64  # rows that bound a margin
MOST_THIRDS = 2000  # steps of the search for a threshold; (2/3)^2000 of an interval is negligible at any scale
SLIGHTLY_MORE = 1 + 1e-9  # covers the roundings in the bounds themselves


def gamma(terms: int) -> float:
    """Return an upper bound of γ_terms."""
    return terms * UNIT / (1 - terms * UNIT) * SLIGHTLY_MORE


def all_products(rows: torch.Tensor, vectors: np.ndarray) -> np.ndarray:
    """Return fl(row·v), vectors × rows; entries of the vectors beyond the columns of `rows` are padding."""
    return torch.mm(torch.from_numpy(vectors[:, : rows.shape[1]]), rows.T).numpy()


def error_per_length(vectors: np.ndarray) -> np.ndarray:
    """Bound |fl(row·v) − row·v|/‖row‖ for each v; the lengths of rows and vectors must be far from underflow."""
    lengths = np.sqrt((vectors * vectors).sum(axis=1)) * SLIGHTLY_MORE
    return gamma(vectors.shape[1] + 4) * lengths


@njit(cache=True, nogil=True, error_model="numpy")
def check_products(  # type: ignore[no-untyped-def]
    products, active, ends, last_is_active, errors, caution, norms, inverse_norms, inverse_slopes, failed, least,
    distance
):  # fmt: skip
    """Count for each vector t the rows without a proof of s·row·v > 0, and find the least products of its labels.

    products[t] holds fl(row·v) and becomes s·fl(row·v). `active` lists the rows with s = +1; those of t end at ends[t].
    least[t] is the least product divided by the length of the row. distance[t] is the least product minus `caution`
    times its error bound, divided by the length of the row's part in W; rows with a zero part in W are left out.
    """
    labels = products.shape[1] - last_is_active
    begin = 0
    for t in range(products.shape[0]):
        for k in range(begin, ends[t]):
            products[t, active[k]] = -products[t, active[k]]
        begin = ends[t]
        if last_is_active:
            products[t, labels] = -products[t, labels]
        failed[t], least[t], distance[t] = 0, np.inf, np.inf
    for first in range(0, products.shape[1], ROWS_IN_CACHE):  # the data of these rows stays in the cache
        end = min(products.shape[1], first + ROWS_IN_CACHE)
        last = min(labels, end)
        for t in range(products.shape[0]):
            part, error = products[t, first:end], errors[t]
            _negate(part)
            failed[t] += _count_unproved(part, error, norms[first:end])
            part, error = products[t, first:last], caution * error
            if _count_smaller(
                part, error, norms[first:], inverse_norms[first:], inverse_slopes[first:], least[t], distance[t]
            ):
                nearest = _least_values(part, error, norms[first:], inverse_norms[first:], inverse_slopes[first:])
                least[t], distance[t] = min(least[t], nearest[0]), min(distance[t], nearest[1])


@njit(cache=True, nogil=True)
def _negate(products):  # type: ignore[no-untyped-def]
    for i in range(products.shape[0]):
        products[i] = -products[i]


@njit(cache=True, nogil=True)
def _count_unproved(products, error, norms):  # type: ignore[no-untyped-def]
    failed = 0
    for i in range(products.shape[0]):
        failed += not products[i] > error * norms[i]
    return failed


@njit(cache=True, nogil=True)
def _count_smaller(  # type: ignore[no-untyped-def]
    products, error, norms, inverse_norms, inverse_slopes, least, distance
):  # fmt: skip
    """Count the values below the least ones so far: counts compile to vector instructions, minima do not."""
    smaller = 0
    for i in range(products.shape[0]):
        smaller += products[i] * inverse_norms[i] < least
        smaller += ((products[i] - error * norms[i]) * inverse_slopes[i] < distance) & (inverse_slopes[i] > 0.0)
    return smaller


@njit(cache=True, nogil=True)
def _least_values(products, error, norms, inverse_norms, inverse_slopes):  # type: ignore[no-untyped-def]
    margin = distance = np.inf
    for i in range(products.shape[0]):
        margin = min(margin, products[i] * inverse_norms[i])
        if inverse_slopes[i] > 0.0:
            distance = min(distance, (products[i] - error * norms[i]) * inverse_slopes[i])
    return margin, distance


@njit(cache=True, nogil=True, error_model="numpy")
def best_margin(values, slopes, rest):  # type: ignore[no-untyped-def]
    """Return the largest min_i (values_i + slopes_i·c)/√(rest² + c²) over all thresholds c.

    The quotient rises and then falls with c, for any rows. It is maximised for a few rows, at first one, and the least
    row at the best c joins them.
    """
    low, high = -np.inf, np.inf
    for i in range(values.shape[0]):
        if slopes[i] > 0.0:
            low = max(low, -values[i] / slopes[i])
        elif slopes[i] < 0.0:
            high = min(high, -values[i] / slopes[i])
    best, c = 0.0, 0.5 * low + 0.5 * high
    chosen = np.empty(MOST_TIGHT, dtype=np.int64)
    for count in range(MOST_TIGHT):
        chosen[count] = _least_row(values, slopes, c)
        best = max(best, _quotient(values, slopes, rest, chosen[count : count + 1], c))
        if (chosen[:count] == chosen[count]).any():
            break
        left, right, rows = low, high, chosen[: count + 1]
        for _ in range(MOST_THIRDS):
            a, b = left + (right - left) / 3.0, right - (right - left) / 3.0
            if not left < a < b < right:
                break
            if _quotient(values, slopes, rest, rows, a) < _quotient(values, slopes, rest, rows, b):
                left = a
            else:
                right = b
        c = left + (right - left) / 2.0
    return best


@njit(cache=True, nogil=True)
def _least_row(values, slopes, c):  # type: ignore[no-untyped-def]
    least, where = np.inf, 0
    for i in range(values.shape[0]):
        value = values[i] + slopes[i] * c
        if value < least:
            least, where = value, i
    return where


@njit(cache=True, nogil=True, error_model="numpy")
def _quotient(values, slopes, rest, rows, c):  # type: ignore[no-untyped-def]
    least = np.inf
    for i in rows:
        least = min(least, values[i] + slopes[i] * c)
    return least / np.hypot(rest, c)
