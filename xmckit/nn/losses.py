"""Losses over all labels that never form a dense target matrix, and the linear layer below them.

The fused functions compute loss and gradients together, piece by piece, so that the rows × labels logits of a batch
never exist as a whole. Binary cross-entropy treats each label alone: its pieces are stripes of labels (see `threads`).
A loss that compares the labels of a row has chunks of rows as pieces.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import softplus

from xmckit.nn.batches import Targets
from xmckit.nn.threads import Threads, slices, stripes

TILE = 1024
# Most logits in a chunk of rows, and in a piece that a loss works on, which fits in cache.
CHUNK = 1 << 22
PIECE = 1 << 18
# Most entries of parameter gradients that wait for their sum.
WAITING = 1 << 24


def binary_cross_entropy(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return the mean over rows of Σ −log σ(±z) over the labels of a row: Σ softplus(z) − Σ_{positive} z.

    A pair's weight multiplies its term: w·(softplus(z) − z) replaces softplus(z) − z.
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
    """Return the sum over rows of `binary_cross_entropy`, and turn `logits` into its derivative in place."""
    return _loss_and_slope(logits, targets.rows, targets.labels, targets.weights)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, threads: Threads) -> torch.Tensor:
    """Return x·Wᵀ + b, computed on threads; the bits do not depend on their number."""
    result: torch.Tensor = _Linear.apply(x, weight, bias, threads)
    return result


def linear_binary_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: Targets, threads: Threads
) -> torch.Tensor:
    """Return `binary_cross_entropy(linear(x, W, b), targets)`; forward and backward together, a tile at a time."""
    scale = 1.0 / max(1, targets.shape[0])
    weight_gradient, bias_gradient = torch.empty_like(weight), torch.empty_like(bias)
    by_label = targets.by_label()

    def stripe(part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            x_gradient, loss = torch.zeros_like(x), x.new_zeros((), dtype=torch.float64)
            for tile in slices(part.start, part.stop, TILE):
                logits, true = torch.addmm(bias[tile], x, weight[tile].T), by_label.of_rows(tile)
                loss += _loss_and_slope(logits, true.labels, true.rows, true.weights)
                slope = logits.mul_(scale)
                x_gradient.addmm_(slope, weight[tile])
                torch.mm(slope.T, x, out=weight_gradient[tile])
                torch.sum(slope, 0, out=bias_gradient[tile])
            return x_gradient, loss

    parts = threads.map(stripe, stripes(len(weight)))
    loss, x_gradient = _sum_in_order([loss for _, loss in parts]), _sum_in_order([gradient for gradient, _ in parts])
    return _with_gradients(loss * scale, [(x, x_gradient), (weight, weight_gradient), (bias, bias_gradient)])


def linear_loss(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    targets: Targets,
    threads: Threads,
    loss_and_slope: Callable[[torch.Tensor, Targets], torch.Tensor | float],
) -> torch.Tensor:
    """Return the mean over rows of a loss of `linear(x, W, b)`; forward and backward together, a chunk at a time.

    `loss_and_slope(logits, targets)` gets whole rows; it returns the sum of their losses and turns the logits into that
    sum's derivative in place.
    """
    rows, labels = targets.shape
    # Each chunk reads W and its gradient once, which pays only with enough rows; its logits are no larger than W.
    size = max(CHUNK // labels, min(weight.shape[1], 64))
    logits = x.new_empty(min(size, rows), labels)
    x_gradient, weight_gradient, bias_gradient = (torch.zeros_like(tensor) for tensor in (x, weight, bias))

    def chunk_loss(chunk: slice) -> torch.Tensor:
        x_chunk, true, z = x.detach()[chunk], targets.of_rows(chunk), logits[: chunk.stop - chunk.start]

        @torch.no_grad()
        def fill(part: slice) -> None:
            torch.addmm(bias[part], x_chunk, weight[part].T, out=z[:, part])

        @torch.no_grad()
        def compute_loss(part: slice) -> torch.Tensor:
            return torch.as_tensor(loss_and_slope(z[part], true.of_rows(part)), dtype=torch.float64, device=x.device)

        @torch.no_grad()
        def push_back(part: slice) -> torch.Tensor:
            weight_gradient[part].addmm_(z[:, part].T, x_chunk, alpha=1 / rows)
            bias_gradient[part].add_(z[:, part].sum(0), alpha=1 / rows)
            return z[:, part] @ weight[part]

        threads.map(fill, stripes(labels))
        losses = threads.map(compute_loss, slices(0, len(x_chunk), max(1, PIECE // labels)))
        x_gradient[chunk] = _sum_in_order(threads.map(push_back, stripes(labels))) / rows
        return _sum_in_order(losses)

    losses = [chunk_loss(chunk) / rows for chunk in slices(0, rows, size)]
    loss = _sum_in_order([x.new_zeros((), dtype=torch.float64), *losses])
    return _with_gradients(loss, [(x, x_gradient), (weight, weight_gradient), (bias, bias_gradient)])


def in_row_chunks(
    function: Callable[[torch.Tensor, Targets], torch.Tensor],
    x: torch.Tensor,
    targets: Targets,
    parameters: Sequence[torch.Tensor],
    threads: Threads,
) -> torch.Tensor:
    """Return the mean over rows of any loss that autograd supports; forward and backward together, a chunk at a time.

    `function(x, targets)` gets whole rows and returns the sum of their losses. Only those rows and `parameters` may
    need a gradient in it, and it must not draw random numbers.
    """
    rows, labels = targets.shape
    leaves = [tensor for tensor in parameters if tensor.requires_grad]
    learning = torch.is_grad_enabled()

    def chunk_loss(chunk: slice) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
        with torch.set_grad_enabled(learning):
            x_chunk = x.detach()[chunk].requires_grad_(learning)
            loss = function(x_chunk, targets.of_rows(chunk)) / rows
            # The loss of rows without labels may be a constant 0.
            gradients = torch.autograd.grad(loss, [x_chunk, *leaves], allow_unused=True) if loss.requires_grad else ()
            return loss.detach().double(), gradients

    loss, x_gradient = x.new_zeros((), dtype=torch.float64), torch.zeros_like(x)
    leaf_gradients = [torch.zeros_like(tensor) for tensor in leaves]
    # The logits of a chunk stay in cache, but it has enough rows to make reading the classifier's matrix worth it.
    chunks = slices(0, rows, max(1, PIECE // labels, min(64, CHUNK // labels)))
    at_once = min(16, max(2, WAITING // max(1, sum(tensor.numel() for tensor in leaves))))
    for wave in slices(0, len(chunks), at_once):
        for chunk, (part, gradients) in zip(chunks[wave], threads.map(chunk_loss, chunks[wave]), strict=True):
            loss += part
            for total, gradient in zip([x_gradient[chunk], *leaf_gradients], gradients, strict=False):
                if gradient is not None:
                    total += gradient
    return _with_gradients(loss, [(x, x_gradient), *zip(leaves, leaf_gradients, strict=True)])


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

        def push_back(part: slice) -> torch.Tensor:
            with torch.no_grad():
                torch.mm(slope[:, part].T, x, out=weight_gradient[part])
                return slope[:, part] @ weight[part]

        x_gradient = _sum_in_order(ctx.threads.map(push_back, stripes(len(weight))))
        return x_gradient, weight_gradient, slope.sum(0), None


def _with_gradients(loss: torch.Tensor, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the loss, in the type of the first tensor, as a function of tensors with precomputed gradients."""
    tensors = [tensor for tensor, _ in gradients]
    result: torch.Tensor = _PrecomputedGradients.apply(
        loss.detach().to(tensors[0].dtype), [gradient for _, gradient in gradients], *tensors
    )
    return result


class _PrecomputedGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = slopes
        # Drop the reference: autograd copies a gradient that somebody else holds.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("the first backward pass of this loss used up its gradients: compute the loss again")
        if slope.item() != 1.0:
            gradients = [gradient.mul_(slope) for gradient in gradients]
        return (None, None, *gradients)


def _loss_and_slope(
    logits: torch.Tensor, rows: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """Return the sum of the tile's terms, and turn `logits` into its derivative σ(z) − y in place."""
    positive = logits[rows, labels]
    # softplus(z) = max(z, 0) − log σ(|z|). Row sums in their own type are pairwise: exact enough, and faster.
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


def _sum_in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(operator.add, parts)
