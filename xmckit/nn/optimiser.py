"""Adam with decoupled weight decay that updates only the rows of a sparse gradient."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numba import njit

from xmckit.nn.threads import Threads, slices
from xmckit.sparse.lanes import fetch

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8
CHUNK = 1 << 16
AHEAD = 4  # rows between the prefetch of a row and its use


class Adam:
    """Dense gradients update every entry; sparse ones (rows of an embedding) only their rows and those rows' moments.

    Threads update chunks of entries. Entries are independent, so neither chunks nor threads change a bit.
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
        """Prepare the moments; `slower` parameters learn at the learning rate times `slowness`."""
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        slower_ids = {id(parameter) for parameter in slower}
        self.factors = [slowness if id(parameter) in slower_ids else 1.0 for parameter in self.parameters]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.weight_decay, self.threads = weight_decay, threads
        self.steps = 0

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, learning_rate: float) -> None:
        self.steps += 1
        for parameter, moments, factor in zip(self.parameters, self.moments, self.factors, strict=True):
            if parameter.grad is None or not parameter.numel():
                continue
            decay = self.weight_decay if parameter.dim() > 1 else 0.0
            step = _Step.at(self.steps, factor * learning_rate, decay)
            if parameter.grad.is_sparse:
                self._step_rows(parameter, moments, step)
            else:
                self._step_all(parameter, moments, step)

    def _step_all(self, parameter: torch.nn.Parameter, moments: tuple[torch.Tensor, torch.Tensor], step: _Step) -> None:
        assert parameter.grad is not None
        flat = [tensor.view(-1) for tensor in (parameter.data, *moments)]
        gradient = parameter.grad.reshape(-1).contiguous()

        def update(part: slice) -> None:
            tensors = [tensor[part] for tensor in (*flat, gradient)]
            if _has_kernel(parameter):
                _update_entries(_numbers(step, parameter), *(tensor.numpy() for tensor in tensors))
            else:
                _update(step, *tensors)

        self.threads.map(update, slices(0, len(gradient), CHUNK))

    def _step_rows(
        self, parameter: torch.nn.Parameter, moments: tuple[torch.Tensor, torch.Tensor], step: _Step
    ) -> None:
        rows, gradient = _unique_rows(parameter.grad)
        width = math.prod(parameter.shape[1:])
        tables = [tensor.view(-1, width) for tensor in (parameter.data, *moments)]
        gradient = gradient.reshape(-1, width).contiguous()

        def update(part: slice) -> None:
            part_rows = rows[part]
            if _has_kernel(parameter) and all(table.is_contiguous() for table in tables):
                arrays = (tensor.numpy() for tensor in (*tables, gradient[part]))
                _update_rows(_numbers(step, parameter), part_rows.numpy(), *arrays)
                return
            value, first, second = (table[part_rows] for table in tables)
            _update(step, value, first, second, gradient[part])
            for table, new in zip(tables, (value, first, second), strict=True):
                table[part_rows] = new

        self.threads.map(update, slices(0, len(rows), max(1, CHUNK // width)))


class _Step(NamedTuple):
    """The constants of one step; the bias corrections are part of its size and of the denominator's root."""

    kept: float
    size: float
    root: float

    @classmethod
    def at(cls, step: int, rate: float, decay: float) -> _Step:
        return cls(1 - rate * decay, rate / (1 - FIRST**step), math.sqrt(1 - SECOND**step))


def _has_kernel(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _numbers(step: _Step, parameter: torch.Tensor) -> np.ndarray:
    """Return the constants of the kernels in the parameter's own type; a wider type would make them slower."""
    return np.array([*step, 1 - FIRST, SECOND, 1 - SECOND, TINY], dtype=parameter.detach().numpy().dtype)


def _update(
    step: _Step, value: torch.Tensor, first: torch.Tensor, second: torch.Tensor, gradient: torch.Tensor
) -> None:
    """Make a step in place, on any device."""
    first.lerp_(gradient, 1 - FIRST)
    second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
    value.mul_(step.kept).addcdiv_(first, second.sqrt().div_(step.root).add_(TINY), value=-step.size)


@njit(cache=True, nogil=True, error_model="numpy")
def _update_entries(
    numbers: np.ndarray, value: np.ndarray, first: np.ndarray, second: np.ndarray, gradient: np.ndarray
) -> None:
    """Do the same as `_update` in one pass over memory."""
    kept, size, root, new_first, old_second, new_second, tiny = numbers
    for place in range(len(value)):
        slope = gradient[place]
        first[place] += new_first * (slope - first[place])
        second[place] = old_second * second[place] + new_second * slope * slope
        value[place] = kept * value[place] - size * first[place] / (np.sqrt(second[place]) / root + tiny)


@njit(cache=True, nogil=True, error_model="numpy")
def _update_rows(
    numbers: np.ndarray,
    rows: np.ndarray,
    value: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    gradient: np.ndarray,
) -> None:
    """Call `_update_entries` on some rows; `gradient` has one row for each of them."""
    width = value.shape[1]
    for nth, row in enumerate(rows):
        if nth + AHEAD < len(rows):
            later = rows[nth + AHEAD]
            fetch(value, later * width, (later + 1) * width)
            fetch(first, later * width, (later + 1) * width)
            fetch(second, later * width, (later + 1) * width)
        _update_entries(numbers, value[row], first[row], second[row], gradient[nth])


def _unique_rows(gradient: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (row ids, gradient rows) with unique ids; gradients of `SparseLinear` are unique and not sorted again."""
    assert gradient is not None
    rows = gradient._indices()[0]
    if not bool((rows[1:] > rows[:-1]).all()):
        gradient = gradient.coalesce()
        rows = gradient._indices()[0]
    return rows, gradient._values()
