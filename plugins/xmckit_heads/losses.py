"""The training losses of heads, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from xmckit.nn import (
    Targets,
    Threads,
    binary_cross_entropy_and_slope,
    in_row_chunks,
    softmax_cross_entropy_and_slope,
    truncated_topk_entropy_and_slope,
)
from xmckit_heads.lml.operator import summed_lml_loss_and_slope

LossName: TypeAlias = Literal["bce", "lml", "topk-entropy", "softmax"]
# A loss maps (logits, targets) to the sum over rows, and overwrites the logits by its derivative.
Loss: TypeAlias = Callable[[torch.Tensor, Targets], torch.Tensor]


def loss_named(name: LossName, k: int | None) -> Loss:
    """Return a loss; "lml" and "topk-entropy" need `k`, the number of labels to output."""
    if name == "bce":
        return binary_cross_entropy_and_slope
    if name == "softmax":
        return softmax_cross_entropy_and_slope
    assert k is not None
    if name == "lml":
        return partial(summed_lml_loss_and_slope, k)
    return partial(_topk_entropy, k)


def _topk_entropy(k: int, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    if k >= logits.shape[1]:  # all labels are output, so that every order is right
        logits.zero_()
        return logits.new_zeros(())
    return truncated_topk_entropy_and_slope(logits, targets, k)


def chunked_loss(
    logits: Callable[[torch.Tensor, Threads], torch.Tensor],
    parameters: Sequence[torch.Tensor],
    x: torch.Tensor,
    targets: Targets,
    loss: Loss,
    threads: Threads,
) -> torch.Tensor:
    """Return the mean over rows of the loss of any layer that autograd can differentiate."""
    single = Threads()  # threads take chunks; the work inside a chunk is not spread

    def chunk_loss(rows: torch.Tensor, true: Targets) -> torch.Tensor:
        result: torch.Tensor = _InPlaceLoss.apply(logits(rows, single), true, loss)
        return result

    return in_row_chunks(chunk_loss, x, targets, parameters, threads)


class _InPlaceLoss(torch.autograd.Function):
    """A loss that overwrites its logits with their slope; nothing else may use them."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: Targets, loss: Loss) -> torch.Tensor:
        ctx.slope = logits.detach()
        return loss(ctx.slope, targets).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slope, ctx.slope = ctx.slope, None
        return slope.mul_(gradients[0]), None, None
