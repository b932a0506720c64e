"""Proofs in float64 that hold in exact arithmetic: every rounding error is bounded and counted.

u = 2⁻⁵³ is the unit roundoff; a sum of k products in any order, fused or not, is off by at most γ_k Σ|terms| with
γ_k = k·u/(1 − k·u) (Higham 2002, section 3.1). Rows and vectors are scaled so that underflow is far below that.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

UNIT = 2.0**-53
ROWS_IN_CACHE = 1 << 9
SLIGHTLY_MORE = 1 + 1e-9  # pays for the roundings in the bounds themselves


def gamma(terms: int) -> float:
    """An upper bound of γ_terms."""
    return terms * UNIT / (1 - terms * UNIT) * SLIGHTLY_MORE


def all_products(rows: torch.Tensor, vectors: np.ndarray) -> np.ndarray:
    """Vectors × rows: fl(row·v) for every row; what vectors have beyond a row's columns meets zeros."""
    return torch.mm(torch.from_numpy(vectors[:, : rows.shape[1]]), rows.T).numpy()


def error_per_length(vectors: np.ndarray) -> np.ndarray:
    """For each v a bound on |fl(row·v) − row·v|/‖row‖, for rows and vectors whose lengths are far from underflow."""
    lengths = np.sqrt((vectors * vectors).sum(axis=1)) * SLIGHTLY_MORE
    return gamma(vectors.shape[1] + 4) * lengths


@njit(cache=True, nogil=True, error_model="numpy")
def weigh(  # type: ignore[no-untyped-def]
    products, active, ends, last_is_active, errors, caution, norms, inverse_norms, inverse_slopes, failed, least,
    distance
):  # fmt: skip
    """For each vector t: how many rows are not proved to have s·row·v > 0, and the least products of its labels.

    products[t] holds fl(row·v), and is turned into s·fl(row·v); `active` lists the rows with s = +1, those of t up to
    ends[t]. least[t] is the least product over a row's length, distance[t] the least that is sure, with `caution` times
    the error, over the length of a row's part in W; a row whose part in W is zero bounds no distance.
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
    for first in range(0, products.shape[1], ROWS_IN_CACHE):  # what belongs to the rows stays in the cache
        end = min(products.shape[1], first + ROWS_IN_CACHE)
        last = min(labels, end)
        for t in range(products.shape[0]):
            part, error = products[t, first:end], errors[t]
            _negate(part)
            failed[t] += _failures(part, error, norms[first:end])
            part, error = products[t, first:last], caution * error
            if _nearer(
                part, error, norms[first:], inverse_norms[first:], inverse_slopes[first:], least[t], distance[t]
            ):
                nearest = _least(part, error, norms[first:], inverse_norms[first:], inverse_slopes[first:])
                least[t], distance[t] = min(least[t], nearest[0]), min(distance[t], nearest[1])


@njit(cache=True, nogil=True)
def _negate(products):  # type: ignore[no-untyped-def]
    for i in range(products.shape[0]):
        products[i] = -products[i]


@njit(cache=True, nogil=True)
def _failures(products, error, norms):  # type: ignore[no-untyped-def]
    failed = 0
    for i in range(products.shape[0]):
        failed += not products[i] > error * norms[i]
    return failed


@njit(cache=True, nogil=True)
def _nearer(products, error, norms, inverse_norms, inverse_slopes, least, distance):  # type: ignore[no-untyped-def]
    """How many values are below the least ones so far: counts compile to vector instructions, minima do not."""
    nearer = 0
    for i in range(products.shape[0]):
        nearer += products[i] * inverse_norms[i] < least
        nearer += ((products[i] - error * norms[i]) * inverse_slopes[i] < distance) & (inverse_slopes[i] > 0.0)
    return nearer


@njit(cache=True, nogil=True)
def _least(products, error, norms, inverse_norms, inverse_slopes):  # type: ignore[no-untyped-def]
    margin = distance = np.inf
    for i in range(products.shape[0]):
        margin = min(margin, products[i] * inverse_norms[i])
        if inverse_slopes[i] > 0.0:
            distance = min(distance, (products[i] - error * norms[i]) * inverse_slopes[i])
    return margin, distance
