"""The limited multi-label (LML) projection of Amos, Koltun and Kolter (2019) as torch operators.

    y = argmin −x·y − H_b(y)  subject to  Σ y = k,     that is  y = σ(x + ν) with the one ν for which Σ y = k.

What the edges mean, for every function here:

- x = −inf is masked: y = 0 there. k ≥ the number of entries that are not masked: y = 1 on those. k = 0: y = 0.
- x = +inf on at least k entries: they share k equally and all others get 0. On fewer: they get 1, and the rest is
  solved with what is left of k.
- A NaN in a row makes that row NaN and no other. A k that is negative or NaN is an error where it is given as a
  number; in a tensor it makes its row NaN.
- Entries at +inf that share k have the gradient of equal logits. Where y does not depend on x (the other cases above),
  and where every y is 0 or 1 to the last bit, gradients are 0.

float16 and bfloat16 are computed in float32 and rounded at the end. Sums over a row are in float64 for every type; the
quick kernel for float32 takes them over blocks of 256 labels. On the CPU rows are spread over threads, and the result
does not depend on their number.
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
from xmckit_heads.lml import careful, fallback, kernels

# entries worth a thread's while
PIECE = 1 << 16
# compiled functions whose arguments come as lists
_quickly: Any = kernels
_carefully: Any = careful
TOLERANCE = {torch.float32: 1e-9, torch.float64: 5e-14}


def lml(x: torch.Tensor, k: float | torch.Tensor) -> torch.Tensor:
    """y of x's shape and type, with Σ y = k over the last dimension.

    k is a number or a tensor that broadcasts over the other dimensions; neither has to be whole. Differentiable any
    number of times, for x and for k; works under `torch.vmap` and `torch.compile`.
    """
    if x.dim() == 0:
        raise UsageError("lml needs at least one dimension, found a single number")
    y: torch.Tensor = _project(x, _per_row(k, x.shape[:-1], x))
    return y


def lml_csr(
    values: torch.Tensor,
    indptr: torch.Tensor,
    k: float | torch.Tensor,
    tail: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """`lml` for ragged rows: row i has the logits values[indptr[i]:indptr[i+1]], and y comes in the same form.

    `tail` = (count, logit), one of each per row: so many further labels outside the row that all have that logit. They
    take their part of k, Σ y + count·σ(logit + ν) = k. Differentiable once, for values, k and the tail's logit.
    """
    rows = _checked_rows(values, indptr)
    count, logit = _tail(tail, rows, values)
    y: torch.Tensor = _project_csr(values, indptr, _per_row(k, (rows,), values), count, logit)[0]
    return y


def lml_loss(
    logits: torch.Tensor, k: float | torch.Tensor, targets: Targets, threads: Threads | None = None
) -> torch.Tensor:
    """−Σ log y over a row's true labels, mean over rows, without y in memory (the paper's algorithm 2).

    A pair's weight multiplies its term. The gradient for logits (and for k where it asks for one) is computed in the
    same pass. A row without true labels adds 0, and so does a pair of weight 0; a true label that is masked makes the
    loss infinite.
    """
    rows, width = _checked_targets(logits, targets)
    result: torch.Tensor = _Loss.apply(
        logits, _even(rows, width, logits), _per_row(k, (rows,), logits), *_tail(None, rows, logits), targets, threads
    )
    return result


def lml_loss_and_slope(
    logits: torch.Tensor, k: float | torch.Tensor, targets: Targets, threads: Threads | None = None
) -> torch.Tensor:
    """The value of `lml_loss`; `logits` is overwritten by its gradient. Not recorded by autograd.

    For losses that compute their own backward pass, where a second matrix of rows × labels would not fit.
    """
    rows, width = _checked_targets(logits, targets)
    with torch.no_grad():
        start = _even(rows, width, logits)
        ks = _per_row(k, (rows,), logits)
        slope, loss, _, _ = _loss_and_slopes(logits, start, ks, *_tail(None, rows, logits), targets, threads)
        if slope.data_ptr() != logits.data_ptr():
            logits.copy_(slope.view_as(logits))
    return loss


def lml_csr_loss(
    values: torch.Tensor,
    indptr: torch.Tensor,
    k: float | torch.Tensor,
    targets: Targets,
    tail: tuple[torch.Tensor, torch.Tensor] | None = None,
    threads: Threads | None = None,
) -> torch.Tensor:
    """`lml_loss` on ragged rows; the labels of `targets` are places within their rows. Mean over all rows.

    A true label outside a row's candidates has no place in it: leave it out of `targets`.
    """
    rows = _checked_rows(values, indptr)
    _check_places(targets, indptr.diff())
    result: torch.Tensor = _Loss.apply(
        values, indptr, _per_row(k, (rows,), values), *_tail(tail, rows, values), targets, threads
    )
    return result


# The operators


@torch.library.custom_op("xmckit::lml", mutates_args=())
def _project(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows, width = math.prod(x.shape[:-1]), x.shape[-1]
    if x.device.type != "cpu":
        return fallback.project(x.reshape(rows, width), k.reshape(rows)).to(x.dtype).reshape(x.shape)
    y, _ = _projected(x, _even(rows, width, x), k, *_tail(None, rows, x))
    return y.reshape(x.shape)


@_project.register_fake
def _(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("xmckit::lml_backward", mutates_args=())
def _pull_back(y: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """h∘(g − d) and d = Σhg/Σh in float64, with h = y(1−y): the derivatives for x and for k."""
    if y.device.type != "cpu":
        h = (y * (1 - y)).double()
        total = h.sum(-1)
        mean = torch.where(total == 0, 0.0, (h * g).sum(-1) / total)
        return (h * (g - mean.unsqueeze(-1))).to(y.dtype), mean
    rows, width = math.prod(y.shape[:-1]), y.shape[-1]
    slope, mean = _pulled_back(y, g, _even(rows, width, y), torch.zeros(rows, dtype=torch.float64))
    return slope.reshape(y.shape), mean.reshape(y.shape[:-1])


@_pull_back.register_fake
def _(y: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.new_empty(y.shape), y.new_empty(y.shape[:-1], dtype=torch.float64)


def _keep_y(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (y,) = ctx.saved_tensors
    slope, mean = _pull_back(y, g)
    return slope, mean


def _keep_all(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward_twice(ctx: Any, u: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For L = u·(h∘(g − d)) + v·d: ∂L/∂h = (u − d_u)(g − d) + v(g − d)/Σh, and ∂L/∂g = h∘(u − d_u) + v·h/Σh."""
    y, g, mean = ctx.saved_tensors
    slope, mean_u = _pull_back(y, u)
    h = (y * (1 - y)).to(torch.promote_types(y.dtype, torch.float32))
    total = h.sum(-1, keepdim=True, dtype=torch.float64)
    per_h = torch.where(total == 0, 0.0, v.unsqueeze(-1) / total)
    off = g - mean.unsqueeze(-1)
    of_h = (u - mean_u.unsqueeze(-1)) * off + per_h * off
    return ((1 - 2 * y) * of_h).to(y.dtype), (slope + per_h * h).to(g.dtype)


_project.register_autograd(_backward, setup_context=_keep_y)
_pull_back.register_autograd(_backward_twice, setup_context=_keep_all)


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


@torch.library.custom_op("xmckit::lml_csr", mutates_args=())
def _project_csr(
    values: torch.Tensor, indptr: torch.Tensor, k: torch.Tensor, count: torch.Tensor, logit: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, σ of the tails' logits in float64)."""
    if values.device.type == "cpu":
        return _projected(values, indptr, k, count, logit)
    padded = _Padded(values, indptr, count, logit)
    y = fallback.project(padded.x, k, padded.times)
    return y[:, 1:][padded.filled].to(values.dtype), torch.where(count > 0, y[:, 0], 0.0)


@_project_csr.register_fake
def _(
    values: torch.Tensor, indptr: torch.Tensor, k: torch.Tensor, count: torch.Tensor, logit: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return values.new_empty(values.shape), torch.empty_like(count)


@torch.library.custom_op("xmckit::lml_csr_backward", mutates_args=())
def _pull_back_csr(
    y: torch.Tensor, g: torch.Tensor, indptr: torch.Tensor, tail_h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if y.device.type == "cpu":
        return _pulled_back(y, g, indptr, tail_h)
    rows = torch.repeat_interleave(torch.arange(len(tail_h), device=y.device), indptr.diff())
    h = (y * (1 - y)).double()
    total = tail_h.index_add(0, rows, h)
    product = torch.zeros_like(tail_h).index_add_(0, rows, h * g)
    mean = torch.where(total == 0, 0.0, product / total)
    return (h * (g - mean[rows])).to(y.dtype), mean


@_pull_back_csr.register_fake
def _(
    y: torch.Tensor, g: torch.Tensor, indptr: torch.Tensor, tail_h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return y.new_empty(y.shape), torch.empty_like(tail_h)


def _keep_csr(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, indptr, _, count, _ = inputs
    ctx.save_for_backward(*output, indptr, count)


def _backward_csr(ctx: Any, g: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    y, tail_y, indptr, count = ctx.saved_tensors
    tail_h = count * tail_y * (1 - tail_y)
    slope, mean = _pull_back_csr(y, g, indptr, tail_h)
    return slope, None, mean, None, -mean * tail_h


_project_csr.register_autograd(_backward_csr, setup_context=_keep_csr)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        indptr: torch.Tensor,
        k: torch.Tensor,
        count: torch.Tensor,
        logit: torch.Tensor,
        targets: Targets,
        threads: Threads | None,
    ) -> torch.Tensor:
        slope, loss, *others = _loss_and_slopes(values, indptr, k, count, logit, targets, threads, in_place=False)
        ctx.save_for_backward(slope.view_as(values), *others)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (outer,) = gradients
        slope, of_k, of_tail = ctx.saved_tensors
        if outer.item() != 1.0:
            slope, of_k, of_tail = slope * outer, of_k * outer, of_tail * outer
        return slope, None, of_k, None, of_tail, None, None


# The CPU kernels over pieces of rows


def _projected(
    values: torch.Tensor, indptr: torch.Tensor, k: torch.Tensor, count: torch.Tensor, logit: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = _computable(values)
    y, tail_y = torch.empty_like(x), torch.empty(count.shape, dtype=torch.float64)
    given = [_array(part) for part in (x, indptr, k, count, logit)]
    filled = [_array(part) for part in (y, tail_y)]
    done, longest, tolerance = np.zeros(len(indptr) - 1, dtype=np.bool_), _longest(indptr), TOLERANCE[x.dtype]

    def work(first: int, last: int) -> None:
        if x.dtype == torch.float32:
            _quickly.project(*given, *filled, done, _room(longest), first, last)
        if not done[first:last].all():
            _carefully.project(*given, tolerance, *filled, done, first, last)

    _over_rows(work, indptr, None)
    return y.to(values.dtype), tail_y


def _pulled_back(
    y: torch.Tensor, g: torch.Tensor, indptr: torch.Tensor, tail_h: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    flat_y = _computable(y)
    slope, mean = torch.empty_like(flat_y), torch.empty_like(tail_h)
    arguments = [_array(part) for part in (flat_y, _computable(g.to(flat_y.dtype)), indptr, tail_h, slope, mean)]
    _over_rows(lambda first, last: _quickly.pull_back(*arguments, first, last), indptr, None)
    return slope.to(y.dtype), mean


def _loss_and_slopes(
    values: torch.Tensor,
    indptr: torch.Tensor,
    k: torch.Tensor,
    count: torch.Tensor,
    logit: torch.Tensor,
    targets: Targets,
    threads: Threads | None,
    in_place: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(the derivative for the flat values, the loss, the derivatives for k and for the tails' logits)."""
    pairs = _pairs(targets)
    rows = len(count)
    if values.device.type != "cpu":
        padded = _Padded(values.reshape(-1), indptr, count, logit)
        places = (targets.rows, padded.place_of(targets.labels), pairs[2])
        loss, slope, of_k = fallback.log_loss_and_slopes(padded.x, k, padded.times, places)
        flat = slope[:, 1:][padded.filled]
        return flat.to(values.dtype), loss.to(values.dtype), of_k, slope[:, 0]
    x = _computable(values)
    slope = x if in_place else torch.empty_like(x)
    losses, of_k, of_tail = (torch.empty(rows, dtype=torch.float64) for _ in range(3))
    missing = torch.empty(len(targets.labels), dtype=torch.float64)
    given = [_array(part) for part in (x, indptr, k, count, logit, *pairs)]
    filled = [_array(part) for part in (missing, slope, losses, of_k, of_tail)]
    done, longest, tolerance = np.zeros(rows, dtype=np.bool_), _longest(indptr), TOLERANCE[x.dtype]

    def work(first: int, last: int) -> None:
        if x.dtype == torch.float32:
            _quickly.loss(*given, *filled, done, _room(longest), first, last)
        if not done[first:last].all():
            _carefully.loss(*given, tolerance, *filled, done, first, last)

    _over_rows(work, indptr, threads)
    return slope.to(values.dtype), losses.sum().to(values.dtype), of_k, of_tail


def _over_rows(work: Callable[[int, int], None], indptr: torch.Tensor, threads: Threads | None) -> None:
    """Do `work(first, last)` for pieces of rows. Every row's arithmetic is its own: pieces change no bit."""
    rows, entries, workers = len(indptr) - 1, max(1, int(indptr[-1])), torch.get_num_threads()
    if threads is not None:
        threads.map(lambda piece: work(*piece), _pieces(rows, PIECE * rows // entries))
    elif workers == 1 or entries < PIECE:
        work(0, rows)
    else:
        _with_helpers(work, collections.deque(_pieces(rows, -(-rows // (2 * workers)))), workers - 1)


def _pieces(rows: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + max(1, size), rows)) for first in range(0, rows, max(1, size))]


def _with_helpers(work: Callable[[int, int], None], pieces: collections.deque[tuple[int, int]], helpers: int) -> None:
    """The calling thread works too: pieces are short, and a thread that only waits leaves its core unused for long."""

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
    """By process, because the threads of a pool do not survive a fork."""
    return ThreadPoolExecutor(count, thread_name_prefix="lml")


class _Local(threading.local):
    room: tuple[np.ndarray, ...] = ()
    longest = -1


_local = _Local()


def _room(longest: int) -> tuple[np.ndarray, ...]:
    """The calling thread's room for one row. It is kept: fresh memory for every piece costs as much as the work."""
    if _local.longest < longest:
        _local.room, _local.longest = kernels.room_for(longest), longest
    return _local.room


def _computable(x: torch.Tensor) -> torch.Tensor:
    """x flat, contiguous, in a type that kernels know."""
    if not x.dtype.is_floating_point:
        raise UsageError(f"lml needs floating-point logits, found {x.dtype}")
    return x.detach().to(torch.promote_types(x.dtype, torch.float32)).contiguous().view(-1)


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().contiguous().view(-1).numpy()


def _longest(indptr: torch.Tensor) -> int:
    return int(indptr.diff().max()) if len(indptr) > 1 else 0


# Arguments in the one form that kernels take


def _per_row(k: float | torch.Tensor, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """k in float64, one per row."""
    if isinstance(k, torch.Tensor):
        try:
            return k.to(device=like.device, dtype=torch.float64).expand(shape)
        except RuntimeError:
            raise UsageError(f"k of shape {tuple(k.shape)} does not fit rows of shape {tuple(shape)}") from None
    if not k >= 0:
        raise UsageError(f"k must be a number of at least 0, not {k}")
    return torch.full((), k, dtype=torch.float64, device=like.device).expand(shape)


def _even(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Where the rows of a dense matrix start."""
    return torch.arange(rows + 1, dtype=torch.int64, device=like.device) * width


def _tail(
    tail: tuple[torch.Tensor, torch.Tensor] | None, rows: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(counts, logits) in float64; counts 0 for no tail."""
    if tail is None:
        none = torch.zeros((), dtype=torch.float64, device=like.device).expand(rows)
        return none, none
    count, logit = (part.to(device=like.device, dtype=torch.float64) for part in tail)
    if count.shape != (rows,) or logit.shape != (rows,):
        raise UsageError(
            f"a tail is a count and a logit for each of the {rows} rows, found {tuple(count.shape)} and "
            f"{tuple(logit.shape)}"
        )
    if not bool((count >= 0).all()):
        raise UsageError("a tail stands for a negative number of labels, or for no number at all")
    return count, logit


def _checked_rows(values: torch.Tensor, indptr: torch.Tensor) -> int:
    """The number of rows of a sound ragged batch."""
    if values.dim() != 1 or indptr.dim() != 1 or len(indptr) < 1 or indptr.dtype != torch.int64:
        raise UsageError("ragged rows need flat values and a flat int64 indptr with one entry more than rows")
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(values) or bool((indptr.diff() < 0).any()):
        raise UsageError(f"indptr has to rise from 0 to {len(values)}, the number of values")
    return len(indptr) - 1


def _checked_targets(logits: torch.Tensor, targets: Targets) -> tuple[int, int]:
    if logits.dim() != 2 or tuple(logits.shape) != tuple(targets.shape):
        raise UsageError(f"logits of shape {tuple(logits.shape)} do not fit targets of shape {tuple(targets.shape)}")
    _check_places(targets, torch.full((logits.shape[0],), logits.shape[1], device=targets.labels.device))
    return int(logits.shape[0]), int(logits.shape[1])


def _check_places(targets: Targets, lengths: torch.Tensor) -> None:
    if targets.shape[0] != len(lengths):
        raise UsageError(f"targets for {targets.shape[0]} rows do not fit {len(lengths)} rows of logits")
    if not len(targets.rows):
        return
    if bool((targets.rows[1:] < targets.rows[:-1]).any()) or not 0 <= int(targets.rows[0]) <= int(targets.rows[-1]):
        raise UsageError("the pairs of targets have to be in row order")
    if int(targets.rows[-1]) >= len(lengths):
        raise UsageError(f"targets name row {int(targets.rows[-1])}, there are {len(lengths)} rows")
    outside = (targets.labels < 0) | (targets.labels >= lengths[targets.rows])
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        raise UsageError(f"row {int(targets.rows[first])} has no place for label {int(targets.labels[first])}")


def _pairs(targets: Targets) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(where each row's pairs start, labels, weights divided by the number of rows)."""
    rows = targets.shape[0]
    starts = torch.searchsorted(targets.rows.contiguous(), torch.arange(rows + 1, device=targets.rows.device))
    weights = torch.ones(len(targets.rows), dtype=torch.float64, device=targets.rows.device)
    if targets.weights is not None:
        weights = targets.weights.double()
    return starts, targets.labels, weights / max(1, rows)


class _Padded:
    """Ragged rows as a dense matrix with the tail in the first column, for devices without the kernels."""

    def __init__(self, values: torch.Tensor, indptr: torch.Tensor, count: torch.Tensor, logit: torch.Tensor):
        lengths = indptr.diff()
        width = int(lengths.max()) if len(lengths) else 0
        self.filled = torch.arange(width, device=values.device) < lengths[:, None]
        x = torch.full(self.filled.shape, -torch.inf, dtype=torch.float64, device=values.device)
        x[self.filled] = values.double()
        self.x = torch.cat([logit[:, None], x], 1)
        self.times = torch.cat([count[:, None], self.filled.double()], 1)

    def place_of(self, labels: torch.Tensor) -> torch.Tensor:
        return labels + 1
