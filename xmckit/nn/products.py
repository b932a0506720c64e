"""The product of a sparse batch and a table; its gradient has only the table's rows that the batch uses.

On the CPU, forward and backward use `xmckit.sparse.product`. The backward pass of torch's embedding bag would fill a
gradient as large as the table, or keep one row per entry of the batch, to sort and sum before each optimiser step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, embedding_bag

from xmckit.errors import DataError
from xmckit.nn.batches import SparseBatch
from xmckit.nn.threads import Threads, current_threads, stripes
from xmckit.sparse.product import Entries, multiply, transpose

_LEAST_WORK = 1 << 20  # products per piece, about 100 µs; for fewer, waking a thread takes longer than the work


def sparse_product(batch: SparseBatch, table: torch.Tensor) -> torch.Tensor:
    """Return X·T. On the CPU, use the threads of the surrounding `threads` block."""
    if batch.indices.device.type == "cpu":
        product: torch.Tensor = _Product.apply(table, batch, current_threads())
        return product
    # A small table of the batch's own features first: its gradient has one sum per feature, sorted by feature.
    used, places = torch.unique(batch.indices, return_inverse=True)
    return embedding_bag(
        places, embedding(used, table, sparse=True), batch.offsets, mode="sum", per_sample_weights=batch.values,
        include_last_offset=True,
    )  # fmt: skip


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, batch: SparseBatch, threads: Threads) -> torch.Tensor:
        ctx.threads, ctx.shape = threads, table.shape
        dense = np.ascontiguousarray(table.detach().numpy())
        entries = Entries(batch.offsets.numpy(), batch.indices.numpy(), batch.values.numpy())
        if entries.indices.min(initial=0) < 0 or entries.indices.max(initial=-1) >= len(dense):
            raise DataError(f"a row of the batch names a feature that a table of {len(dense)} features does not have")
        out, tasks = _product(entries, dense)

        def prepare_backward() -> None:
            ctx.columns, ctx.by_column = transpose(entries, len(dense))

        if ctx.needs_input_grad[0]:
            # It comes second, so that another thread takes it while this one multiplies.
            tasks.insert(1, prepare_backward)
        threads.map(lambda task: task(), tasks)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gradient, tasks = _product(ctx.by_column, np.ascontiguousarray(slopes[0].numpy()))
        ctx.threads.map(lambda task: task(), tasks)
        columns, values = torch.from_numpy(ctx.columns)[None], torch.from_numpy(gradient)
        return torch.sparse_coo_tensor(columns, values, ctx.shape, check_invariants=False), None, None


def _product(entries: Entries, dense: np.ndarray) -> tuple[np.ndarray, list[Callable[[], None]]]:
    """Return an empty product and the tasks that fill it, which may run at the same time."""
    out = np.empty((len(entries.pointers) - 1, dense.shape[1]), dense.dtype)
    pieces = _pieces(len(out), len(entries.indices) * dense.shape[1])
    return out, [partial(multiply, entries, dense, out, piece) for piece in pieces]


def _pieces(length: int, work: int) -> list[slice]:
    """Cut a result of `length` rows and `work` products into pieces; they depend on nothing else."""
    return stripes(length, least=max(1, length * _LEAST_WORK // max(work, 1))) or [slice(0, 0)]
