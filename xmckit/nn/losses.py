"""Losses over all labels that never form a dense target matrix, and the linear layer that they sit on.

Work over labels is cut into stripes (see `threads`): each computes its logits tile by tile in cache, its loss, and
its share of the gradients, so that a batch of rows × labels logits need not exist at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import softplus

from xmckit.nn.batches import Targets
from xmckit.nn.threads import Threads, stripes

TILE = 1024


def binary_cross_entropy(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Σ over the labels of a row of −log σ(±z), mean over rows: Σ softplus(z) − Σ_{positive} z.

    A pair's weight multiplies its term: w·(softplus(z) − z) stands in place of softplus(z) − z.
    """
    positive = logits[targets.rows, targets.labels]
    total = softplus(logits).sum()
    if targets.weights is None:
        total = total - positive.sum()
    else:
        weights = targets.weights.to(logits.dtype)
        total = total + ((weights - 1) * softplus(positive) - weights * positive).sum()
    return total / max(1, targets.shape[0])


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, threads: Threads) -> torch.Tensor:
    """x·Wᵀ + b on threads, with the same bits whatever their number."""
    result: torch.Tensor = _Linear.apply(x, weight, bias, threads)
    return result


def linear_binary_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: Targets, threads: Threads
) -> torch.Tensor:
    """`binary_cross_entropy(linear(x, W, b), targets)` without the logits in memory: forward and backward at once."""
    result: torch.Tensor = _LinearBinaryCrossEntropy.apply(x, weight, bias, targets, threads)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, threads: Threads) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.threads = threads
        logits = x.new_empty(len(x), len(weight))

        def fill(part: slice) -> None:
            with torch.no_grad():
                logits[:, part] = torch.addmm(bias[part], x, weight[part].T)

        threads.map(fill, stripes(len(weight)))
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = gradients
        x, weight = ctx.saved_tensors
        weight_gradient = torch.empty_like(weight)

        def pull(part: slice) -> torch.Tensor:
            with torch.no_grad():
                torch.mm(slope[:, part].T, x, out=weight_gradient[part])
                return slope[:, part] @ weight[part]

        x_gradient = _in_order(ctx.threads.map(pull, stripes(len(weight))))
        return x_gradient, weight_gradient, slope.sum(0), None


class _LinearBinaryCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: Targets, threads: Threads
    ) -> torch.Tensor:
        scale = 1.0 / max(1, targets.shape[0])
        weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
        by_label = _ByLabel(targets)

        def stripe(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                x_gradient, loss = torch.zeros_like(x), x.new_zeros((), dtype=torch.float64)
                for start in range(part.start, part.stop, TILE):
                    tile = slice(start, min(start + TILE, part.stop))
                    logits = torch.addmm(bias[tile], x, weight[tile].T)
                    loss += _loss_and_slope(logits, *by_label.within(tile))
                    slope = logits.mul_(scale)
                    x_gradient.addmm_(slope, weight[tile])
                    torch.mm(slope.T, x, out=weight_gradient[tile])
                    torch.sum(slope, 0, out=bias_gradient[tile])
                return x_gradient, loss

        parts = threads.map(stripe, stripes(len(weight)))
        ctx.gradients = _in_order([gradient for gradient, _ in parts]), weight_gradient, bias_gradient
        return (_in_order([loss for _, loss in parts]) * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = gradients
        kept, ctx.gradients = ctx.gradients, None
        if slope.item() != 1.0:
            kept = tuple(gradient.mul_(slope) for gradient in kept)
        return (*kept, None, None)


class _ByLabel:
    """The true pairs sorted by label, so that a tile of labels finds its own."""

    def __init__(self, targets: Targets):
        order = torch.argsort(targets.labels, stable=True)
        self.rows, self.labels = targets.rows[order], targets.labels[order]
        self.weights = None if targets.weights is None else targets.weights[order]
        self._labels_here = self.labels.cpu().numpy()

    def within(self, tile: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        first, last = (int(place) for place in np.searchsorted(self._labels_here, (tile.start, tile.stop)))
        weights = None if self.weights is None else self.weights[first:last]
        return self.rows[first:last], self.labels[first:last] - tile.start, weights


def _loss_and_slope(
    logits: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """The sum of the tile's terms; `logits` becomes its derivative σ(z) − y in place."""
    positive = logits[rows, labels]
    # softplus(z) = max(z, 0) − log σ(|z|)
    total = logits.clamp(min=0).sum(dtype=torch.float64) - logits.abs().sigmoid_().log_().sum(dtype=torch.float64)
    logits.sigmoid_()
    if weights is None:
        logits[rows, labels] -= 1
        return total - positive.sum(dtype=torch.float64)
    weights = weights.to(logits.dtype)
    logits[rows, labels] = weights * (logits[rows, labels] - 1)
    terms = (weights - 1) * softplus(positive) - weights * positive
    return total + terms.sum(dtype=torch.float64)


def _in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
