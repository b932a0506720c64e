"""The losses that heads can be trained with, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch

from xmckit.nn import (
    Chosen,
    Classifier,
    Targets,
    Threads,
    binary_cross_entropy_and_slope,
    in_row_chunks,
    linear_loss,
    softmax_cross_entropy_and_slope,
    truncated_topk_entropy_and_slope,
)
from xmckit_heads.lml.operator import lml_loss_and_slope

LossName: TypeAlias = Literal["bce", "lml", "topk-entropy", "softmax"]
# (logits, targets) → the sum over rows; the logits become its derivative
Loss: TypeAlias = Callable[[torch.Tensor, Targets], torch.Tensor]


def loss_named(name: LossName, k: int | None) -> Loss:
    """`k` is for the losses that depend on the number of labels to output."""
    if name == "bce":
        return binary_cross_entropy_and_slope
    if name == "softmax":
        return softmax_cross_entropy_and_slope
    assert k is not None
    if name == "lml":
        return partial(_lml, k)
    return partial(_topk_entropy, k)


def _lml(k: int, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    loss = lml_loss_and_slope(logits, k, targets)
    logits.mul_(targets.shape[0])
    return loss * targets.shape[0]


def _topk_entropy(k: int, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """With as many labels to output as there are, every order is right."""
    if k >= logits.shape[1]:
        logits.zero_()
        return logits.new_zeros(())
    return truncated_topk_entropy_and_slope(logits, targets, k)


def linear_loss_named(
    name: LossName,
    k: int | None,
    classifier: Classifier | Chosen,
    x: torch.Tensor,
    targets: Targets,
    threads: Threads,
) -> torch.Tensor:
    """The mean over rows of the loss of W·x + b."""
    return linear_loss(x, classifier.W, classifier.b, targets, threads, loss_named(name, k))


def chunked_loss(
    logits: Callable[[torch.Tensor, Threads], torch.Tensor],
    parameters: Sequence[torch.Tensor],
    x: torch.Tensor,
    targets: Targets,
    loss: Loss,
    threads: Threads,
) -> torch.Tensor:
    """The mean over rows of the loss of any layer that autograd understands."""
    alone = Threads()  # chunks are spread over the threads, not the work inside one

    def chunk_loss(rows: torch.Tensor, true: Targets) -> torch.Tensor:
        result: torch.Tensor = _Judged.apply(logits(rows, alone), true, loss)
        return result

    return in_row_chunks(chunk_loss, x, targets, parameters, threads)


class _Judged(torch.autograd.Function):
    """A loss whose slope takes the memory of the logits, which nothing else may use."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: Targets, loss: Loss) -> torch.Tensor:
        ctx.slope = logits.detach()
        return loss(ctx.slope, targets).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slope, ctx.slope = ctx.slope, None
        return slope.mul_(gradients[0]), None, None
