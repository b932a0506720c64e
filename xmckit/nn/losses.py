"""Losses over all labels that never form a dense target matrix, and the linear layer that they sit on.

The fused ones compute loss and gradients at once, piece by piece, so that a batch of rows × labels logits need not
exist. Binary cross-entropy treats labels one by one: its work is cut into stripes of labels (see `threads`). A loss
that compares the labels of a row with each other is cut into chunks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import softplus

from xmckit.nn.batches import Targets
from xmckit.nn.threads import Threads, slices, stripes

TILE = 1024
# Logits that a chunk of rows may have, and those on which a loss works at a time, in cache.
CHUNK = 1 << 22
PIECE = 1 << 18
# Parameter gradients of chunks that may wait to be added up, in entries.
WAITING = 1 << 24


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


def binary_cross_entropy_and_slope(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """The sum over rows of `binary_cross_entropy`; `logits` becomes its derivative in place."""
    return _loss_and_slope(logits, targets.rows, targets.labels, targets.weights)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, threads: Threads) -> torch.Tensor:
    """x·Wᵀ + b on threads, with the same bits whatever their number."""
    result: torch.Tensor = _Linear.apply(x, weight, bias, threads)
    return result


def linear_binary_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: Targets, threads: Threads
) -> torch.Tensor:
    """`binary_cross_entropy(linear(x, W, b), targets)` without the logits in memory: forward and backward at once."""
    scale = 1.0 / max(1, targets.shape[0])
    weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
    by_label = _ByLabel(targets)

    def stripe(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            x_gradient, loss = torch.zeros_like(x), x.new_zeros((), dtype=torch.float64)
            for tile in slices(part.start, part.stop, TILE):
                logits = torch.addmm(bias[tile], x, weight[tile].T)
                loss += _loss_and_slope(logits, *by_label.within(tile))
                slope = logits.mul_(scale)
                x_gradient.addmm_(slope, weight[tile])
                torch.mm(slope.T, x, out=weight_gradient[tile])
                torch.sum(slope, 0, out=bias_gradient[tile])
            return x_gradient, loss

    parts = threads.map(stripe, stripes(len(weight)))
    loss, x_gradient = _in_order([loss for _, loss in parts]), _in_order([gradient for gradient, _ in parts])
    return _known(loss * scale, [(x, x_gradient), (weight, weight_gradient), (bias, bias_gradient)])


def linear_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: Targets,
    threads: Threads,
    loss_and_slope: Callable[[torch.Tensor, Targets], torch.Tensor | float],
) -> torch.Tensor:
    """The mean over rows of a loss of `linear(x, W, b)`, forward and backward at once, with one chunk of logits.

    `loss_and_slope(logits, targets)` gets some whole rows; it returns the sum of their losses and turns the logits into
    that sum's derivative in place.
    """
    rows, labels = targets.shape
    # A chunk passes over W and its gradient, which only pays when it has rows enough; its logits are no larger than W.
    size = max(CHUNK // labels, min(weight.shape[1], 64))
    logits = x.new_empty(min(size, rows), labels)
    x_gradient, weight_gradient, bias_gradient = (torch.zeros_like(tensor) for tensor in (x, weight, bias))

    def chunk_loss(chunk: slice) -> torch.Tensor:
        here, true, z = x.detach()[chunk], targets.of_rows(chunk), logits[: chunk.stop - chunk.start]

        @torch.no_grad()
        def fill(part: slice) -> None:
            torch.addmm(bias[part], here, weight[part].T, out=z[:, part])

        @torch.no_grad()
        def judge(part: slice) -> torch.Tensor:
            return torch.as_tensor(loss_and_slope(z[part], true.of_rows(part)), dtype=torch.float64, device=x.device)

        @torch.no_grad()
        def pull(part: slice) -> torch.Tensor:
            weight_gradient[part].addmm_(z[:, part].T, here, alpha=1 / rows)
            bias_gradient[part].add_(z[:, part].sum(0), alpha=1 / rows)
            return z[:, part] @ weight[part]

        threads.map(fill, stripes(labels))
        losses = threads.map(judge, slices(0, len(here), max(1, PIECE // labels)))
        x_gradient[chunk] = _in_order(threads.map(pull, stripes(labels))) / rows
        return _in_order(losses)

    losses = [chunk_loss(chunk) / rows for chunk in slices(0, rows, size)]
    loss = _in_order([x.new_zeros((), dtype=torch.float64), *losses])
    return _known(loss, [(x, x_gradient), (weight, weight_gradient), (bias, bias_gradient)])


def in_row_chunks(
    function: Callable[[torch.Tensor, Targets], torch.Tensor],
    x: torch.Tensor,
    targets: Targets,
    parameters: Sequence[torch.Tensor],
    threads: Threads,
) -> torch.Tensor:
    """The mean over rows of any loss that autograd understands, forward and backward at once, on chunks of rows.

    `function(x, targets)` gets some whole rows and returns the sum of their losses. It must depend on nothing that
    needs a gradient but those rows and `parameters`, and draw no random numbers.
    """
    rows, labels = targets.shape
    leaves = [tensor for tensor in parameters if tensor.requires_grad]
    learning = torch.is_grad_enabled()

    def chunk_loss(chunk: slice) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        with torch.set_grad_enabled(learning):
            here = x.detach()[chunk].requires_grad_(learning)
            loss = function(here, targets.of_rows(chunk)) / rows
            # a loss of rows without any label may be a plain 0
            found = torch.autograd.grad(loss, [here, *leaves], allow_unused=True) if loss.requires_grad else ()
            return loss.detach().double(), found

    loss, x_gradient = x.new_zeros((), dtype=torch.float64), torch.zeros_like(x)
    gradients = [torch.zeros_like(tensor) for tensor in leaves]
    # logits that stay in cache, but rows enough for a product with the classifier's matrix to be worth its passing by
    chunks = slices(0, rows, max(1, PIECE // labels, min(64, CHUNK // labels)))
    at_once = min(16, max(2, WAITING // max(1, sum(tensor.numel() for tensor in leaves))))
    for wave in slices(0, len(chunks), at_once):
        for chunk, (part, found) in zip(chunks[wave], threads.map(chunk_loss, chunks[wave]), strict=True):
            loss += part
            for gradient, more in zip([x_gradient[chunk], *gradients], found, strict=False):
                if more is not None:
                    gradient += more
    return _known(loss, [(x, x_gradient), *zip(leaves, gradients, strict=True)])


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


def _known(loss: torch.Tensor, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The loss, in the type of the first tensor, as a function of tensors whose gradients are already there."""
    tensors = [tensor for tensor, _ in gradients]
    result: torch.Tensor = _Known.apply(
        loss.detach().to(tensors[0].dtype), [gradient for _, gradient in gradients], *tensors
    )
    return result


class _Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = slopes
        # given away, not kept: autograd copies a gradient that somebody else holds
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the gradients of this loss were used up by its first backward pass: compute it anew")
        if slope.item() != 1.0:
            gradients = [gradient.mul_(slope) for gradient in gradients]
        return (None, None, *gradients)


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
    # softplus(z) = max(z, 0) − log σ(|z|); torch sums a row in pairs, exact enough in its own type, and faster
    by_row = logits.clamp(min=0).sum(1) - logits.abs().sigmoid_().log_().sum(1)
    total = by_row.sum(dtype=torch.float64)
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
