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
from xmckit.sparse.product import Transposed, all_below, multiply, transposed

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
        pointers, columns, values = batch.offsets.numpy(), batch.indices.numpy(), batch.values.numpy()
        if not all_below(columns, len(dense)):
            raise DataError(f"a row of the batch names a feature that a table of {len(dense)} features does not have")
        out, tasks = _product(pointers, columns, values, dense)

        def transpose() -> None:
            ctx.entries = transposed(pointers, columns, values, len(dense))

        if ctx.needs_input_grad[0]:
            # The backward pass needs it. It comes second, so that another thread takes it while this one multiplies.
            tasks.insert(1, transpose)
        threads.map(lambda task: task(), tasks)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        entries: Transposed = ctx.entries
        gradient, tasks = _product(
            entries.pointers, entries.rows, entries.values, np.ascontiguousarray(slopes[0].numpy())
        )
        ctx.threads.map(lambda task: task(), tasks)
        sparse = torch.sparse_coo_tensor(
            torch.from_numpy(entries.columns)[None],
            torch.from_numpy(gradient),
            ctx.shape,
            check_invariants=False,
        )
        return sparse, None, None


def _product(
    pointers: np.ndarray, indices: np.ndarray, values: np.ndarray, dense: np.ndarray
) -> tuple[np.ndarray, list[Callable[[], None]]]:
    """Return an empty product and the tasks that fill it, which may run at the same time."""
    out = np.empty((len(pointers) - 1, dense.shape[1]), dense.dtype)
    zero = np.zeros(dense.shape[1], dense.dtype)
    return out, [
        partial(multiply, pointers, indices, values, dense, zero, out, part.start, part.stop)
        for part in _pieces(len(out), len(indices) * dense.shape[1])
    ]


def _pieces(length: int, work: int) -> list[slice]:
    """Cut a result of `length` rows and `work` products into pieces; they depend on nothing else."""
    return stripes(length, least=max(1, length * _LEAST_WORK // max(work, 1))) or [slice(0, 0)]
