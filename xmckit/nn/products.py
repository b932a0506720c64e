"""The product of a sparse batch and a table, whose gradient names only the table's rows that the batch uses.

On the processor both ways are `xmckit.sparse.product`. torch's embedding bag would go back by filling a gradient as
large as the table, or by keeping one row per entry of the batch, to be sorted and summed before any optimiser's step.
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

_LEAST_WORK = 1 << 20  # products a piece, some 100 µs; with fewer, waking a thread takes longer than the work


def sparse_product(batch: SparseBatch, table: torch.Tensor) -> torch.Tensor:
    """X·T. Where the batch is on the processor, on the threads of the `threads` block that this runs in."""
    if batch.indices.device.type == "cpu":
        product: torch.Tensor = _Product.apply(table, batch, current_threads())
        return product
    # a batch's own small table first: its gradient is one sum per feature, and already sorted by feature
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

        def turn() -> None:
            ctx.entries = transposed(pointers, columns, values, len(dense))

        if ctx.needs_input_grad[0]:
            # what the way back needs: second, so that another thread wakes up for it while this one multiplies
            tasks.insert(1, turn)
        threads.map(_done, tasks)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        entries: Transposed = ctx.entries
        gradient, tasks = _product(
            entries.pointers, entries.rows, entries.values, np.ascontiguousarray(slopes[0].numpy())
        )
        ctx.threads.map(_done, tasks)
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
    """Room for a product, and what fills it, in parts that may be done at the same time."""
    out = np.empty((len(pointers) - 1, dense.shape[1]), dense.dtype)
    nothing = np.zeros(dense.shape[1], dense.dtype)
    return out, [
        partial(multiply, pointers, indices, values, dense, nothing, out, part.start, part.stop)
        for part in _pieces(len(out), len(indices) * dense.shape[1])
    ]


def _done(task: Callable[[], None]) -> None:
    task()


def _pieces(length: int, work: int) -> list[slice]:
    """Parts of a result of so many rows that takes so many products; depends on nothing else."""
    return stripes(length, least=max(1, length * _LEAST_WORK // max(work, 1))) or [slice(0, 0)]
