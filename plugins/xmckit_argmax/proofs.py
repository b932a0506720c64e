"""Proofs in float64 that hold in exact arithmetic: every rounding error is bounded and counted.

u = 2⁻⁵³ is the unit roundoff; a sum of k products in any order, fused or not, is off by at most γ_k Σ|terms| with
γ_k = k·u/(1 − k·u) (Higham 2002, section 3.1). Rows and vectors are scaled so that underflow is far below that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numba import njit

UNIT = 2.0**-53
NUMBERS_IN_CACHE = 1 << 16
ROWS_IN_CACHE = 1 << 9
SLIGHTLY_MORE = 1 + 1e-9  # pays for the roundings in the bounds themselves


def gamma(terms: int) -> float:
    """An upper bound of γ_terms."""
    return terms * UNIT / (1 - terms * UNIT) * SLIGHTLY_MORE


def all_products(rows: torch.Tensor, vectors: np.ndarray) -> np.ndarray:
    """Vectors × rows: fl(row·v) for every row."""
    return torch.mm(torch.from_numpy(vectors), rows.T).numpy()


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


def in_cache(items: list[Any], width: int) -> Iterator[list[Any]]:
    """The items in parts of which each has as many as there may be matrices of this width at once."""
    at_once = max(1, NUMBERS_IN_CACHE // max(1, width) ** 2)
    for start in range(0, len(items), at_once):
        yield items[start : start + at_once]


def inverses(lower: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """About (Lᵢ·Qᵢ)⁻ᵀ for triangular L and orthogonal Q; not a number where L is singular."""
    return torch.linalg.solve_triangular(
        torch.from_numpy(lower).transpose(1, 2), torch.from_numpy(Q), upper=True
    ).numpy()


def positive_multipliers(supports: np.ndarray, inverses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(proved, λ) for each m+1 × m matrix of signed rows: that Σ λ_i row_i = 0 for a λ > 0, and no other but for scale.

    `inverses` are about those of the transposed first m rows, which solve for λ with λ_m = 1. Where they do not serve,
    all rows above a row of ones (Σ λ_i = 1) may: another inverse, of a matrix that near-parallel rows spoil less.
    """
    rows = torch.from_numpy(supports)
    proved, multipliers = _proved(rows[:, :-1].transpose(1, 2), rows[:, -1, :, None], torch.from_numpy(inverses))
    multipliers = torch.nn.functional.pad(multipliers, (0, 1), value=1.0)
    again = ~proved
    if again.any():
        C = torch.nn.functional.pad(rows[again].transpose(1, 2), (0, 0, 0, 1), value=1.0)
        a = torch.zeros_like(C[..., :1])
        a[:, -1] = -1.0
        proved[again], multipliers[again] = _proved(C, a, torch.linalg.inv_ex(C)[0])
    return proved.numpy(), multipliers.numpy()


def _proved(C: torch.Tensor, a: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether C·λ = −a has one solution, which is positive, and about that solution.

    For B ≈ C⁻¹, from wherever it comes, and any λ̂, with α ≥ ‖I − B·C‖∞ below 1 and r = −a − C·λ̂: C is invertible and
    |λ − λ̂| ≤ |B|·|r| + α/(1 − α)·max(|B|·|r|).
    """
    rounding = gamma(C.shape[-1] + 4)
    estimate = -torch.bmm(B, a)
    estimate += torch.bmm(B, -a - torch.bmm(C, estimate))

    defect = torch.bmm(B, C)
    defect.diagonal(dim1=1, dim2=2).sub_(1.0)
    magnitude_B, magnitude_C = B.abs(), C.abs()
    # the subtraction from 1 rounds once more, relative to a number of at most 1 + |B·C|
    slack = torch.bmm(magnitude_B, magnitude_C.sum(-1, keepdim=True)) + 1.0
    alpha = (defect.abs_().sum(-1) + rounding * slack[..., 0]).amax(-1) * SLIGHTLY_MORE

    residual = -a - torch.bmm(C, estimate)
    rounded = rounding * (torch.bmm(magnitude_C, estimate.abs()) + a.abs())
    shift = torch.bmm(magnitude_B, (residual.abs() + rounded) * SLIGHTLY_MORE)[..., 0] * SLIGHTLY_MORE
    most = alpha / (1.0 - alpha) * shift.amax(-1)
    margin = estimate[..., 0] - (shift + most[:, None]) * SLIGHTLY_MORE
    # what is not a number fails every comparison
    return (alpha < 0.5) & (margin > 0.0).all(-1), estimate[..., 0]
