"""The limited multi-label (LML) projection of Amos, Koltun and Kolter (2019) as torch operators.

    y = argmin −x·y − H_b(y)  subject to  Σ y = k,     that is  y = σ(x + ν) with the one ν for which Σ y = k.

All functions here agree on the edge cases:

- x = −inf is masked: y = 0 there. k ≥ the number of entries that are not masked: y = 1 on those. k = 0: y = 0.
- x = +inf on at least k entries: they share k equally and all others get 0. On fewer: they get 1, and the other entries
  share the rest of k.
- A NaN in a row makes that row NaN and no other. A negative or NaN k raises an error if k is a number; in a tensor it
  makes its row NaN.
- Entries at +inf that share k have the gradient of equal logits. Gradients are 0 where y does not depend on x (the
  other cases above), and where every y is exactly 0 or 1.

float16 and bfloat16 are computed in float32 and rounded at the end. Sums over a row are float64 for every type; the
fast float32 kernel sums blocks of 256 labels in float32. On the CPU rows are spread over threads, and the result does
not depend on their number.
"""

from __future__ import annotations

import collections
import functools
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from xmckit.errors import UsageError
from xmckit.nn import Targets, Threads
from xmckit_heads.lml import fallback, kernels, safeguarded

# Fewer entries than this are not worth a thread.
PIECE = 1 << 16
# Compiled functions take their arguments as unpacked lists, which mypy cannot check.
_fast: Any = kernels
_safeguarded: Any = safeguarded
TOLERANCE = {torch.float32: 1e-9, torch.float64: 5e-14}


def lml(x: torch.Tensor, k: float | torch.Tensor) -> torch.Tensor:
    """Return y of x's shape and type, with Σ y = k over the last dimension.

    k is a number or a tensor that broadcasts over the other dimensions; it need not be whole. The result is
    differentiable any number of times, for x and for k, and works under `torch.vmap` and `torch.compile`.
    """
    if x.dim() == 0:
        raise UsageError("lml needs at least one dimension, found a single number")
    y: torch.Tensor = _project(x, _per_row(k, x.shape[:-1], x))
    return y


def lml_loss(
    logits: torch.Tensor, k: float | torch.Tensor, targets: Targets, threads: Threads | None = None
) -> torch.Tensor:
    """Return −Σ log y over a row's true labels, mean over rows, without storing y (the paper's algorithm 2).

    A pair's weight multiplies its term. The gradients for logits and k are computed in the same pass. A row without
    true labels adds 0, and so does a pair of weight 0; a masked true label makes the loss infinite.
    """
    _check_targets(logits, targets)
    result: torch.Tensor = _Loss.apply(logits, _per_row(k, logits.shape[:1], logits), targets, threads)
    return result


def lml_loss_and_slope(
    logits: torch.Tensor, k: float | torch.Tensor, targets: Targets, threads: Threads | None = None
) -> torch.Tensor:
    """Return the value of `lml_loss` and overwrite `logits` by its gradient. Autograd does not record it.

    It serves losses that compute their own backward pass, where a second matrix of rows × labels would not fit.
    """
    _check_targets(logits, targets)
    with torch.no_grad():
        slope, loss, _ = _loss_and_slopes(logits, _per_row(k, logits.shape[:1], logits), targets, threads)
        if slope.data_ptr() != logits.data_ptr():
            logits.copy_(slope)
    return loss


def summed_lml_loss_and_slope(k: int, logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Return the LML loss summed over rows, and overwrite the logits by its derivative."""
    loss = lml_loss_and_slope(logits, k, targets)
    logits.mul_(targets.shape[0])
    return loss * targets.shape[0]


# The operators


@torch.library.custom_op("xmckit::lml", mutates_args=())
def _project(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    if x.device.type != "cpu":
        return fallback.project(x.reshape(rows, width), k.reshape(rows)).to(x.dtype).reshape(x.shape)
    logits = _flat(x)
    y = torch.empty_like(logits)
    arguments, result = [_array(logits), width, _array(k)], _array(y)
    done, tolerance = np.zeros(rows, dtype=np.bool_), TOLERANCE[logits.dtype]

    def work(first: int, last: int) -> None:
        if logits.dtype == torch.float32:
            _fast.project(*arguments, result, done, _workspace(width), first, last)
        if not done[first:last].all():
            _safeguarded.project(*arguments, tolerance, result, done, first, last)

    _over_rows(work, rows, width, None)
    return y.to(x.dtype).reshape(x.shape)


@_project.register_fake
def _(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("xmckit::lml_backward", mutates_args=())
def _pull_back(y: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return h∘(g − d) and d = Σhg/Σh in float64, with h = y(1−y): the derivatives for x and for k."""
    if y.device.type != "cpu":
        h = (y * (1 - y)).double()
        total = h.sum(-1)
        mean = torch.where(total == 0, 0.0, (h * g).sum(-1) / total)
        return (h * (g - mean.unsqueeze(-1))).to(y.dtype), mean
    rows, width = math.prod(y.shape[:-1]), y.shape[-1]
    flat_y = _flat(y)
    slope, mean = torch.empty_like(flat_y), torch.empty(rows, dtype=torch.float64)
    arrays = [_array(part) for part in (flat_y, _flat(g.to(flat_y.dtype)), slope, mean)]
    _over_rows(lambda first, last: _fast.pull_back(*arrays, width, first, last), rows, width, None)
    return slope.to(y.dtype).reshape(y.shape), mean.reshape(y.shape[:-1])


@_pull_back.register_fake
def _(y: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.new_empty(y.shape), y.new_empty(y.shape[:-1], dtype=torch.float64)


def _save_y(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (y,) = ctx.saved_tensors
    slope, mean = _pull_back(y, g)
    return slope, mean


def _save_inputs_and_mean(
    ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward_twice(ctx: Any, u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Differentiate L = u·(h∘(g − d)) + v·d.

    ∂L/∂h = (u − d_u)(g − d) + v(g − d)/Σh, and ∂L/∂g = h∘(u − d_u) + v·h/Σh.
    """
    y, g, mean = ctx.saved_tensors
    slope, mean_u = _pull_back(y, u)
    h = (y * (1 - y)).to(torch.promote_types(y.dtype, torch.float32))
    total = h.sum(-1, keepdim=True, dtype=torch.float64)
    per_h = torch.where(total == 0, 0.0, v.unsqueeze(-1) / total)
    off = g - mean.unsqueeze(-1)
    h_slope = (u - mean_u.unsqueeze(-1)) * off + per_h * off
    return ((1 - 2 * y) * h_slope).to(y.dtype), (slope + per_h * h).to(g.dtype)


_project.register_autograd(_backward, setup_context=_save_y)
_pull_back.register_autograd(_backward_twice, setup_context=_save_inputs_and_mean)


@_project.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, int]:
    return _project(*_batch_first(info, dims, tensors)), 0


@_pull_back.register_vmap
def _(info: Any, dims: tuple[int | None, ...], *tensors: torch.Tensor) -> tuple[Any, tuple[int, int]]:
    return _pull_back(*_batch_first(info, dims, tensors)), (0, 0)


def _batch_first(info: Any, dims: tuple[int | None, ...], tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, k: torch.Tensor, targets: Targets, threads: Threads | None
    ) -> torch.Tensor:
        slope, loss, k_slope = _loss_and_slopes(logits, k, targets, threads, in_place=False)
        ctx.save_for_backward(slope, k_slope)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (outer,) = gradients
        slope, k_slope = ctx.saved_tensors
        if outer.item() != 1.0:
            slope, k_slope = slope * outer, k_slope * outer
        return slope, k_slope, None, None


def _loss_and_slopes(
    logits: torch.Tensor, k: torch.Tensor, targets: Targets, threads: Threads | None, in_place: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (the derivative for logits, the loss, the derivative for k)."""
    rows, width = logits.shape
    starts, factors = _pair_starts(targets), _pair_factors(targets)
    if logits.device.type != "cpu":
        loss, slope, k_slope = fallback.log_loss_and_slopes(logits, k, (targets.rows, targets.labels, factors))
        return slope.to(logits.dtype), loss.to(logits.dtype), k_slope
    x = _flat(logits)
    slope = x if in_place else torch.empty_like(x)
    losses, k_slope = (torch.empty(rows, dtype=torch.float64) for _ in range(2))
    missing = torch.empty(len(targets.labels), dtype=torch.float64)
    arguments = [_array(x), width, *(_array(part) for part in (k, starts, targets.labels, factors))]
    results = [_array(part) for part in (missing, slope, losses, k_slope)]
    done, tolerance = np.zeros(rows, dtype=np.bool_), TOLERANCE[x.dtype]

    def work(first: int, last: int) -> None:
        if x.dtype == torch.float32:
            _fast.loss(*arguments, *results, done, _workspace(width), first, last)
        if not done[first:last].all():
            _safeguarded.loss(*arguments, tolerance, *results, done, first, last)

    _over_rows(work, rows, width, threads)
    return slope.to(logits.dtype).view_as(logits), losses.sum().to(logits.dtype), k_slope


# Pieces of rows for the CPU kernels


def _over_rows(work: Callable[[int, int], None], rows: int, width: int, threads: Threads | None) -> None:
    """Call `work(first, last)` for pieces of rows. Rows are computed independently, so pieces change no bit."""
    entries, workers = max(1, rows * width), torch.get_num_threads()
    if threads is not None:
        threads.map(lambda piece: work(*piece), _pieces(rows, PIECE * rows // entries))
    elif workers == 1 or entries < PIECE:
        work(0, rows)
    else:
        _with_helpers(work, collections.deque(_pieces(rows, -(-rows // (2 * workers)))), workers - 1)


def _pieces(rows: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + max(1, size), rows)) for first in range(0, rows, max(1, size))]


def _with_helpers(work: Callable[[int, int], None], pieces: collections.deque[tuple[int, int]], helpers: int) -> None:
    """Work on the pieces in the calling thread too: a thread that only waits leaves its core idle for too long."""

    def take() -> None:
        while True:
            try:
                first, last = pieces.popleft()
            except IndexError:
                return
            work(first, last)

    pool = _helpers(helpers, os.getpid())
    waiting = [pool.submit(take) for _ in range(helpers)]
    take()
    for helper in waiting:
        helper.result()


@functools.lru_cache(maxsize=4)
def _helpers(count: int, process: int) -> ThreadPoolExecutor:
    """Return one pool per process, because the threads of a pool do not survive a fork."""
    return ThreadPoolExecutor(count, thread_name_prefix="lml")


class _Local(threading.local):
    workspace: tuple[np.ndarray, ...] = ()
    width = -1


_local = _Local()


def _workspace(width: int) -> tuple[np.ndarray, ...]:
    """Return the calling thread's memory for one row; it is reused, as allocating it costs as much as the work."""
    if _local.width < width:
        _local.workspace, _local.width = kernels.make_workspace(width), width
    return _local.workspace


# Arguments in the one form that kernels take


def _flat(x: torch.Tensor) -> torch.Tensor:
    """Return x flat and contiguous, in float32 or float64."""
    if not x.dtype.is_floating_point:
        raise UsageError(f"lml needs floating-point logits, found {x.dtype}")
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)).contiguous().view(-1)


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().contiguous().view(-1).numpy()


def _per_row(k: float | torch.Tensor, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return k in float64, one number per row."""
    if isinstance(k, torch.Tensor):
        try:
            return k.to(device=like.device, dtype=torch.float64).expand(shape)
        except RuntimeError:
            raise UsageError(f"k of shape {tuple(k.shape)} does not fit rows of shape {tuple(shape)}") from None
    if not k >= 0:
        raise UsageError(f"k must be a number of at least 0, not {k}")
    return torch.full((), k, dtype=torch.float64, device=like.device).expand(shape)


def _check_targets(logits: torch.Tensor, targets: Targets) -> None:
    """Raise UsageError unless the pairs of `targets` are in row order and lie inside `logits`."""
    if logits.dim() != 2 or tuple(logits.shape) != tuple(targets.shape):
        raise UsageError(f"logits of shape {tuple(logits.shape)} do not fit targets of shape {tuple(targets.shape)}")
    if not len(targets.rows):
        return
    rows, labels = logits.shape
    if bool((targets.rows[1:] < targets.rows[:-1]).any()) or not 0 <= int(targets.rows[0]) <= int(targets.rows[-1]):
        raise UsageError("the pairs of targets must be in row order")
    if int(targets.rows[-1]) >= rows:
        raise UsageError(f"targets name row {int(targets.rows[-1])}, but there are {rows} rows")
    outside = (targets.labels < 0) | (targets.labels >= labels)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise UsageError(
            f"targets give row {int(targets.rows[first])} the label {int(targets.labels[first])}, "
            f"but there are {labels} labels"
        )


def _pair_starts(targets: Targets) -> torch.Tensor:
    """Return the position of each row's first pair, and the number of pairs."""
    rows = torch.arange(targets.shape[0] + 1, device=targets.rows.device)
    return torch.searchsorted(targets.rows.contiguous(), rows)


def _pair_factors(targets: Targets) -> torch.Tensor:
    """Return the weight of each pair divided by the number of rows."""
    weights = torch.ones(len(targets.rows), dtype=torch.float64, device=targets.rows.device)
    if targets.weights is not None:
        weights = targets.weights.double()
    return weights / max(1, targets.shape[0])
