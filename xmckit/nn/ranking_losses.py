"""Losses that compare the labels of a row with each other: softmax cross-entropy and the truncated top-k entropy.

Each has a plain form for autograd and a form `…_and_slope` for training. The latter returns the sum over rows and turns
the logits into that sum's derivative in place, so that a batch never holds two matrices of rows × labels.

With y the true labels of a row and J the labels that they are compared with, the truncated top-k entropy is
Σ_{p∈y} log(1 + Σ_{j∈J} exp(x_j − x_p)) (appendices A and B of Amos et al. 2019, after Lapin et al. 2016). J holds the
m − k smallest of the m − |y| labels that are not true; the k − |y| largest are left out. If all true labels are among
the first k, the labels above them therefore cost nothing. With one true label, k − 1 are left out and k = 1 is
cross-entropy; with k or more true labels nothing is left out.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch.nn.functional import softplus

from xmckit.errors import UsageError
from xmckit.nn.batches import Targets
from xmckit.sparse.topk import keep_best


def softmax_cross_entropy(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return the mean over rows of −Σ_{true} log softmax(x)_p; a pair's weight multiplies its term."""
    terms = -torch.log_softmax(logits, 1)[targets.rows, targets.labels]
    return _weigh(terms, targets).sum() / max(1, targets.shape[0])


def truncated_topk_entropy(logits: torch.Tensor, targets: Targets, k: int) -> torch.Tensor:
    """Return the mean over rows of Σ_{true} log(1 + Σ_J exp(x_j − x_p)); a pair's weight multiplies its term."""
    rest = logits.detach().clone(memory_format=torch.contiguous_format)
    _leave_out(rest, targets, k)
    others = logits.masked_fill(rest == -torch.inf, -torch.inf)
    largest = _largest(rest)
    # For a row with an empty J, autograd would make NaN of −inf − (−inf); its derivative is 0.
    log_sum = torch.where(rest.isneginf().all(1), -torch.inf, (others - largest).exp().sum(1).log())
    positive = logits[targets.rows, targets.labels]
    gaps = log_sum[targets.rows] + (largest[targets.rows, 0] - positive)
    return _weigh(softplus(gaps), targets).sum() / max(1, targets.shape[0])


def softmax_cross_entropy_and_slope(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return the sum over rows of `softmax_cross_entropy`, and turn `logits` into its derivative in place."""
    positive = logits[targets.rows, targets.labels]
    largest, sums = _exponentials(logits)
    terms = sums.log()[targets.rows] + (largest[targets.rows] - positive)
    weights = _weigh(torch.ones_like(positive), targets)
    logits.mul_((_by_row(weights, targets) / sums)[:, None])
    logits.index_put_((targets.rows, targets.labels), -weights, accumulate=True)
    return (weights * terms).sum(dtype=torch.float64)


def truncated_topk_entropy_and_slope(logits: torch.Tensor, targets: Targets, k: int) -> torch.Tensor:
    """Return the sum over rows of `truncated_topk_entropy`, and turn `logits` into its derivative in place."""
    positive = logits[targets.rows, targets.labels]
    _leave_out(logits, targets, k)
    largest, sums = _exponentials(logits)
    gaps = sums.log()[targets.rows] + (largest[targets.rows] - positive)
    slopes = _weigh(torch.sigmoid(gaps), targets)
    # If J is empty, the sum is 0 and so are the slopes.
    logits.mul_((_by_row(slopes, targets) / sums.clamp(min=1))[:, None])
    logits[targets.rows, targets.labels] = -slopes
    return _weigh(softplus(gaps), targets).sum(dtype=torch.float64)


def _weigh(terms: torch.Tensor, targets: Targets) -> torch.Tensor:
    return terms if targets.weights is None else terms * targets.weights.to(terms.dtype)


def _by_row(terms: torch.Tensor, targets: Targets) -> torch.Tensor:
    return terms.new_zeros(targets.shape[0]).index_add_(0, targets.rows, terms)


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """Return the largest logit of each row, rows × 1; 0 for a row of −inf only."""
    largest = logits.amax(1, keepdim=True)
    return largest.masked_fill_(largest == -torch.inf, 0.0)


def _exponentials(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn `logits` into exp(x − largest of its row) in place, and return each row's largest logit and sum."""
    largest = _largest(logits)
    logits.sub_(largest).exp_()
    return largest[:, 0], logits.sum(1)


def _leave_out(logits: torch.Tensor, targets: Targets, k: int) -> None:
    """Set the true labels to −inf, and then the k − |y| largest others of each row."""
    labels = logits.shape[1]
    if not 1 <= k < labels:
        raise UsageError(f"the top-k entropy of {labels} labels needs k from 1 to {labels - 1}, not {k}")
    logits[targets.rows, targets.labels] = -torch.inf
    true = torch.bincount(targets.rows, minlength=logits.shape[0])
    hide_largest(logits, torch.where(true > 0, k - true, 0))


def hide_largest(logits: torch.Tensor, counts: torch.Tensor) -> None:
    """Set the `counts` largest entries of each row to −inf in place; NaN stays."""
    most = min(max(counts.tolist(), default=0), logits.shape[1])
    if most < 1:
        return
    if _has_kernel(logits):
        _hide_largest(logits.numpy(), counts.numpy(), most)
        return
    values, places = torch.topk(logits, most, dim=1)
    hidden = torch.arange(most, device=logits.device) < counts[:, None]
    logits.scatter_(1, places, values.masked_fill(hidden & ~values.isnan(), -torch.inf))


def _has_kernel(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


@njit(cache=True, nogil=True)
def _hide_largest(logits: np.ndarray, counts: np.ndarray, most: int) -> None:
    """Do the same as `hide_largest`; no count is above `most`, or a row is not longer than that."""
    kept, kept_labels = np.empty(most, logits.dtype), np.empty(most, np.int32)
    for row in range(len(logits)):
        if counts[row] > 0:
            size, _ = keep_best(logits[row], kept[: counts[row]], kept_labels[: counts[row]])
            for place in range(size):
                logits[row, kept_labels[place]] = -np.inf
