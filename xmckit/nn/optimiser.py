"""Adam with decoupled weight decay that touches only the rows a sparse gradient names."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch

from xmckit.nn.threads import Threads

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8
CHUNK = 1 << 16


class Adam:
    """Dense gradients update every entry; sparse ones (rows of an embedding) only their rows and those rows' moments.

    Rows are worked on in chunks that stay in cache, on the given threads. Every entry's arithmetic is its own, so
    neither the chunks nor the threads change a bit.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        weight_decay: float,
        threads: Threads,
        slower: Collection[torch.nn.Parameter] = (),
        slowness: float = 1.0,
    ):
        """`slower` parameters learn at the learning rate times `slowness`."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        chosen = {id(parameter) for parameter in slower}
        self.factors = [slowness if id(parameter) in chosen else 1.0 for parameter in self.parameters]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.weight_decay, self.threads = weight_decay, threads
        self.steps = 0

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, learning_rate: float) -> None:
        self.steps += 1
        for parameter, moments, factor in zip(self.parameters, self.moments, self.factors, strict=True):
            if parameter.grad is None:
                continue
            rate = factor * learning_rate
            decay = self.weight_decay if parameter.dim() > 1 else 0.0
            if parameter.grad.is_sparse:
                self._step_rows(parameter, moments, rate, decay)
            else:
                self._step_all(parameter, moments, rate, decay)

    def _step_all(
        self, parameter: torch.nn.Parameter, moments: tuple[torch.Tensor, torch.Tensor], rate: float, decay: float
    ) -> None:
        assert parameter.grad is not None
        flat = [tensor.view(-1) for tensor in (parameter.data, *moments)]
        gradient = parameter.grad.reshape(-1)

        def update(part: slice) -> None:
            value, first, second = (tensor[part] for tensor in flat)
            self._update(value, first, second, gradient[part], rate, decay)

        self.threads.map(update, _chunks(len(gradient), CHUNK))

    def _step_rows(
        self, parameter: torch.nn.Parameter, moments: tuple[torch.Tensor, torch.Tensor], rate: float, decay: float
    ) -> None:
        rows, gradient = _unique_rows(parameter.grad)

        def update(part: slice) -> None:
            here = rows[part]
            value, first, second = (tensor[here] for tensor in (parameter.data, *moments))
            self._update(value, first, second, gradient[part], rate, decay)
            for tensor, new in zip((parameter.data, *moments), (value, first, second), strict=True):
                tensor[here] = new

        self.threads.map(update, _chunks(len(rows), max(1, CHUNK // max(1, gradient[0:1].numel()))))

    def _update(
        self,
        value: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        gradient: torch.Tensor,
        rate: float,
        decay: float,
    ) -> None:
        first.lerp_(gradient, 1 - FIRST)
        second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        if decay:
            value.mul_(1 - rate * decay)
        # both bias corrections folded into the step size and the denominator
        root = math.sqrt(1 - SECOND**self.steps)
        denominator = second.sqrt().div_(root).add_(TINY)
        value.addcdiv_(first, denominator, value=-rate / (1 - FIRST**self.steps))


def _unique_rows(gradient: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(row ids, gradient rows) with every id once; `SparseLinear` already gives them so, and pays no second sort."""
    assert gradient is not None
    rows = gradient._indices()[0]
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows = gradient._indices()[0]
    return rows, gradient._values()


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
