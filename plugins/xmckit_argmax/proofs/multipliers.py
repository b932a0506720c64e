"""Proofs that rows have a positive combination that is zero, so that no vector is positive on all of them (Gordan).

As in float_bounds.py every rounding error is bounded. The bound γ holds for sums in any order, fused or not, so the
compiler may reorder the sums of these kernels. Rows are padded with zeros to a multiple of the vector length.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

from xmckit_argmax.proofs.float_bounds import SLIGHTLY_MORE, gamma

VECTORS = 32  # numbers that a loop takes at a time; a remainder would go one by one
LEAST = 2.0**-1022  # more than a product can lose by underflow

_ANY_ORDER = {"reassoc", "contract", "nsz"}
_any_order = njit(cache=True, nogil=True, fastmath=_ANY_ORDER, error_model="numpy")
_part = njit(nogil=True, fastmath=_ANY_ORDER, error_model="numpy", forceinline=True)  # see search.active_set


@_any_order
def inverse(L, Q):  # type: ignore[no-untyped-def]
    """Approximate (L·Q)⁻ᵀ for a triangular L and an orthogonal Q.

    Lᵀ·B = Q is solved from the last row of B up, four rows at a time.
    """
    count, B = Q.shape[0], np.empty(Q.shape)
    for j in range(count - 1, -1, -1):
        for c in range(B.shape[1]):
            B[j, c] = Q[j, c]
        whole = count - (count - j - 1) % 4
        for i in range(j + 1, whole, 4):
            l0, l1, l2, l3 = L[i, j], L[i + 1, j], L[i + 2, j], L[i + 3, j]
            for c in range(B.shape[1]):
                B[j, c] -= l0 * B[i, c] + l1 * B[i + 1, c] + l2 * B[i + 2, c] + l3 * B[i + 3, c]
        for i in range(whole, count):
            for c in range(B.shape[1]):
                B[j, c] -= L[i, j] * B[i, c]
        pivot = 1.0 / L[j, j]
        for c in range(B.shape[1]):
            B[j, c] *= pivot
    return B


def positive_multipliers(supports: np.ndarray, inverses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (proved, λ) for each m+1 × m matrix of signed rows.

    `proved` tells that Σ λ_i row_i = 0 for some λ > 0, which is unique up to scale. `inverses` approximate the inverses
    of the transposed first m rows, which solve for λ with λ_m = 1. Matrices without a proof get a second try with the
    inverse of all rows above a row of ones (Σ λ_i = 1), which near-parallel rows spoil less.
    """
    items, rows, _ = supports.shape
    multipliers, proved = np.ones((items, rows)), np.zeros(items, dtype=bool)
    C = np.ascontiguousarray(supports[:, :-1].transpose(0, 2, 1))
    _prove(C, supports[:, -1], inverses, gamma(C.shape[2] + 4), SLIGHTLY_MORE, proved, multipliers)
    again = np.flatnonzero(~proved)
    if len(again):
        C = np.ones((len(again), rows, rows))
        C[:, :-1] = supports[again].transpose(0, 2, 1)
        a = np.zeros((len(again), rows))
        a[:, -1] = -1.0
        B = torch.linalg.inv_ex(torch.from_numpy(C))[0].numpy()
        proved_again, multipliers_again = np.zeros(len(again), dtype=bool), np.empty((len(again), rows))
        _prove(C, a, B, gamma(rows + 4), SLIGHTLY_MORE, proved_again, multipliers_again)
        proved[again], multipliers[again] = proved_again, multipliers_again
    return proved, multipliers


@_any_order
def _prove(C, a, B, rounding, more, proved, multipliers):  # type: ignore[no-untyped-def]
    """Prove for each matrix C that C·λ = −a has exactly one solution, which is positive, and approximate it.

    For any B ≈ C⁻¹ and any λ̂, with ‖I − B·C‖∞ ≤ α < 1 and r = −a − C·λ̂: C is invertible and
    |λ − λ̂| ≤ |B|·|r| + α/(1 − α)·max(|B|·|r|).
    """
    count = C.shape[1]
    padded = -(-count // VECTORS) * VECTORS
    near_C, near_B, vectors = np.zeros((count, padded)), np.zeros((count, padded)), np.zeros((7, padded))
    minus_a, estimate, residual, sums, wrong = vectors[0], vectors[1], vectors[2], vectors[3], vectors[4]
    lost = count * LEAST
    for at in range(C.shape[0]):
        for i in range(count):
            minus_a[i] = -a[at, i]
            for c in range(count):
                near_C[i, c], near_B[i, c] = C[at, i, c], B[at, i, c]
        for i in range(count):
            sums[i] = _sum_of_magnitudes(near_C[i])
            estimate[i] = _dot(near_B[i], minus_a)
        _subtract(near_C, estimate, minus_a, residual)
        for i in range(count):
            estimate[i] += _dot(near_B[i], residual)
        alpha = _defect(near_C, near_B, sums, rounding, vectors[5], vectors[6]) * more

        _subtract(near_C, estimate, minus_a, residual)
        for i in range(count):
            rounded = rounding * (_dot_of_magnitudes(near_C[i], estimate) + abs(minus_a[i]))
            wrong[i] = (abs(residual[i]) + rounded + lost) * more
        largest = 0.0
        for i in range(count):
            residual[i] = (_dot_of_magnitudes(near_B[i], wrong) + lost) * more  # an upper bound of |B|·|r|
            largest = max(largest, residual[i])
        most = alpha / (1.0 - alpha) * largest
        positive = alpha < 0.5  # nan fails every comparison
        for i in range(count):
            positive &= estimate[i] - (residual[i] + most) * more > 0.0
            multipliers[at, i] = estimate[i]
        proved[at] = positive


@_part
def _defect(C, B, sums, rounding, first, second):  # type: ignore[no-untyped-def]
    """Bound ‖I − B·C‖∞, rounding included; nan if an entry is nan. `sums` are the row sums of |C|.

    Two rows of B·C are computed together, so that each number of C is loaded for both; `first` and `second` hold them.
    """
    count, largest = C.shape[0], 0.0
    whole = count - count % 4
    for start in range(0, count, 2):
        i, j = start, min(start + 1, count - 1)
        for c in range(first.shape[0]):
            first[c] = second[c] = 0.0
        for k in range(0, whole, 4):
            b0, b1, b2, b3 = B[i, k], B[i, k + 1], B[i, k + 2], B[i, k + 3]
            d0, d1, d2, d3 = B[j, k], B[j, k + 1], B[j, k + 2], B[j, k + 3]
            for c in range(first.shape[0]):
                first[c] += b0 * C[k, c] + b1 * C[k + 1, c] + b2 * C[k + 2, c] + b3 * C[k + 3, c]
                second[c] += d0 * C[k, c] + d1 * C[k + 1, c] + d2 * C[k + 2, c] + d3 * C[k + 3, c]
        for k in range(whole, count):
            for c in range(first.shape[0]):
                first[c] += B[i, k] * C[k, c]
                second[c] += B[j, k] * C[k, c]
        first[i] -= 1.0
        second[j] -= 1.0
        # the subtraction of 1 rounds once more, relative to a number of at most 1 + |B·C|
        off = _sum_of_magnitudes(first) + rounding * (_dot_of_magnitudes(B[i], sums) + 1.0)
        also = _sum_of_magnitudes(second) + rounding * (_dot_of_magnitudes(B[j], sums) + 1.0)
        if off != off or also != also:
            return off + also
        largest = max(largest, off, also)
    return largest


@_part
def _subtract(C, estimate, minus_a, residual):  # type: ignore[no-untyped-def]
    """Set residual = −a − C·estimate."""
    for i in range(C.shape[0]):
        residual[i] = minus_a[i] - _dot(C[i], estimate)


@_part
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(a.shape[0]):
        total += a[c] * b[c]
    return total


@_part
def _dot_of_magnitudes(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(a.shape[0]):
        total += abs(a[c]) * abs(b[c])
    return total


@_part
def _sum_of_magnitudes(a):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(a.shape[0]):
        total += abs(a[c])
    return total
