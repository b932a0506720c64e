"""Proofs in float64 that hold in exact arithmetic: every rounding error is bounded and counted.

u = 2⁻⁵³ is the unit roundoff; a sum of k products in any order, fused or not, is off by at most γ_k Σ|terms| with
γ_k = k·u/(1 − k·u) (Higham 2002, section 3.1). Rows and vectors are scaled so that underflow is far below that.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit

UNIT = 2.0**-53
NUMBERS_IN_CACHE = 1 << 16
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
def prove_positive(products, norms, error, active, last_is_active, doubtful):  # type: ignore[no-untyped-def]
    """Proves s·row·v > 0, for all rows at once: the rows for which that fails are counted and listed in `doubtful`.

    `products` holds fl(row·v); it is turned into s·fl(row·v).
    """
    for k in range(active.shape[0]):
        products[active[k]] = -products[active[k]]
    if last_is_active:
        products[products.shape[0] - 1] = -products[products.shape[0] - 1]
    failed = 0
    for i in range(products.shape[0]):
        products[i] = -products[i]
        failed += not products[i] > error * norms[i]
    count = 0
    if failed:
        for i in range(products.shape[0]):
            if not products[i] > error * norms[i]:
                doubtful[count] = i
                count += 1
    return failed


@njit(
    cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"}
)  # a minimum in any order; nothing rounds anew
def least_distances(products, error, norms, inverse_norms, inverse_slopes):  # type: ignore[no-untyped-def]
    """(least product over a row's length, least that is sure over the length of its part in W).

    A row whose part in W is zero bounds no distance.
    """
    margin = distance = np.inf
    for i in range(products.shape[0]):
        value = products[i] * inverse_norms[i]
        margin = value if value < margin else margin
        value = (products[i] - error * norms[i]) * inverse_slopes[i]
        value = value if inverse_slopes[i] > 0.0 else np.inf
        distance = value if value < distance else distance
    return margin, distance


def positive_multipliers(supports: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(proved, λ) for each m × m−1 matrix of signed rows a: that exactly one λ has Σ λ_i a_i = 0, Σ λ_i = 1, and λ > 0.

    With C the transposed rows above a row of ones, λ solves C·λ = e. For an approximate inverse B and any λ̂, with
    α ≥ ‖I − B·C‖∞ below 1 and r = e − C·λ̂: C is invertible and |λ − λ̂| ≤ |B|·|r| + α/(1 − α)·max(|B|·|r|).
    """
    count, size, _ = supports.shape
    proved, multipliers = np.empty(count, dtype=bool), np.empty((count, size))
    at_once = max(1, NUMBERS_IN_CACHE // size**2)
    for start in range(0, count, at_once):
        part = slice(start, start + at_once)
        proved[part], multipliers[part] = _positive_multipliers(supports[part])
    return proved, multipliers


def _positive_multipliers(supports: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count, size, _ = supports.shape
    C = torch.ones((count, size, size), dtype=torch.float64)
    C[:, :-1, :] = torch.from_numpy(supports).transpose(1, 2)
    B, singular = torch.linalg.inv_ex(C)
    estimate = B[:, :, -1:].clone()
    rounding = gamma(size + 4)

    defect = torch.bmm(B, C)
    defect.diagonal(dim1=1, dim2=2).sub_(1.0)
    magnitude_B, magnitude_C = B.abs_(), C.abs()
    # the subtraction from 1 rounds once more, relative to a number of at most 1 + |B·C|
    slack = torch.bmm(magnitude_B, magnitude_C.sum(-1, keepdim=True)) + 1.0
    alpha = (defect.abs_().sum(-1) + rounding * slack[..., 0]).amax(-1) * SLIGHTLY_MORE

    residual = -torch.bmm(C, estimate)
    residual[:, -1] += 1.0
    residual_bound = (residual.abs() + rounding * (torch.bmm(magnitude_C, estimate.abs()) + 1.0)) * SLIGHTLY_MORE
    shift = torch.bmm(magnitude_B, residual_bound)[..., 0] * SLIGHTLY_MORE
    most = alpha / (1.0 - alpha) * shift.amax(-1)
    margin = estimate[..., 0] - (shift + most[:, None]) * SLIGHTLY_MORE
    # what is not a number fails every comparison
    proved = (singular == 0) & (alpha < 0.5) & (margin > 0.0).all(-1)
    return proved.numpy(), estimate[..., 0].numpy()
