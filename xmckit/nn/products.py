"""The product of a sparse batch and a table, whose gradient names only the table's rows that the batch uses.

Forward is torch's embedding bag, the fastest there is. Backward is `xmckit.sparse.product`, where torch would either
fill a gradient as large as the table or keep one row per entry of the batch and have them sorted and summed later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding, embedding_bag

from xmckit.nn.batches import SparseBatch
from xmckit.nn.threads import Threads, current_threads, stripes
from xmckit.sparse.product import multiply, transposed

_LEAST_WORK = 1 << 17  # products a piece; with fewer, waking a thread takes longer than the work


def sparse_product(batch: SparseBatch, table: torch.Tensor) -> torch.Tensor:
    """X·T. Where the batch is on the processor, on the threads of the `threads` block that this runs in."""
    if batch.indices.device.type == "cpu":
        product: torch.Tensor = _Product.apply(table, batch, current_threads())
        return product
    # a batch's own small table first: its gradient is one sum per feature, and already sorted by feature
    used, places = torch.unique(batch.indices, return_inverse=True)
    return _bags(places, embedding(used, table, sparse=True), batch.offsets, batch.values)


def _bags(indices: torch.Tensor, table: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return embedding_bag(indices, table, offsets, mode="sum", per_sample_weights=values, include_last_offset=True)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, batch: SparseBatch, threads: Threads) -> torch.Tensor:
        ctx.batch, ctx.threads, ctx.shape = batch, threads, table.shape

        def rows(part: slice) -> torch.Tensor:
            offsets = batch.offsets[part.start : part.stop + 1]
            entries = slice(int(offsets[0]), int(offsets[-1]))
            return _bags(batch.indices[entries], table, offsets - offsets[0], batch.values[entries])

        parts = threads.map(rows, _pieces(batch.rows, len(batch.indices) * table.shape[1]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        batch, slope = ctx.batch, np.ascontiguousarray(slopes[0].numpy())
        entries = transposed(batch.offsets.numpy(), batch.indices.numpy(), batch.values.numpy(), ctx.shape[0])
        gradient = np.empty((len(entries.columns), ctx.shape[1]), slope.dtype)
        nothing = np.zeros(ctx.shape[1], slope.dtype)

        def sums(part: slice) -> None:
            multiply(entries.pointers, entries.rows, entries.values, slope, nothing, gradient, part.start, part.stop)

        ctx.threads.map(sums, _pieces(len(gradient), len(batch.indices) * ctx.shape[1]))
        sparse = torch.sparse_coo_tensor(
            torch.from_numpy(entries.columns)[None],
            torch.from_numpy(gradient),
            ctx.shape,
            check_invariants=False,
        )
        return sparse, None, None


def _pieces(length: int, work: int) -> list[slice]:
    """Parts of a result of so many rows that takes so many products; depends on nothing else."""
    return stripes(length, least=max(1, length * _LEAST_WORK // max(work, 1))) or [slice(0, 0)]
