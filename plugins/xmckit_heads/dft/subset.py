"""Logits of the truncated DFT at some slots of each row, for shortlists, without the logits of all."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit

from xmckit.errors import UsageError
from xmckit.nn import Threads
from xmckit_heads.dft.fourier import BLOCK, Grid, check_columns, matrix_on, row_chunks


def dft_logits_at(x: torch.Tensor, slots: torch.Tensor, grid: Grid, threads: Threads | None = None) -> torch.Tensor:
    """`dft_logits(x, grid)` at `slots` (rows × candidates, int64) only; −1 pads a row and gives a logit of −inf."""
    check_columns(x, grid)
    if slots.dtype != torch.int64 or slots.ndim != 2 or len(slots) != len(x):
        raise UsageError(f"slots must be int64, {len(x)} × candidates, found {slots.dtype} {tuple(slots.shape)}")
    if slots.numel() and (int(slots.min()) < -1 or int(slots.max()) >= grid.labels):
        raise UsageError(f"slots must be from 0 to {grid.labels - 1}, or −1 where there is none")
    if x.device.type != "cpu":
        rows = matrix_on(grid, x.dtype, x.device)[slots.clamp(min=0)]
        return (rows @ x.unsqueeze(2)).squeeze(2).masked_fill(slots < 0, -math.inf)
    logits: torch.Tensor = _LogitsAt.apply(x, slots, grid, threads or Threads(), -math.inf)
    return logits


class _LogitsAt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, slots: torch.Tensor, grid: Grid, threads: Threads, padding: float
    ) -> torch.Tensor:
        ctx.save_for_backward(slots)
        ctx.grid, ctx.threads = grid, threads
        coefficients = _coefficients(x.detach(), grid).numpy()
        logits = x.new_empty(slots.shape)
        places, out, waves = slots.contiguous().numpy(), logits.numpy(), _slot_waves(grid)
        threads.map(
            lambda rows: _evaluate(coefficients[rows], places[rows], waves, padding, out[rows]), row_chunks(len(x))
        )
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slots,) = ctx.saved_tensors
        return _PullbackAt.apply(gradients[0], slots, ctx.grid, ctx.threads), None, None, None, None


class _PullbackAt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: torch.Tensor, slots: torch.Tensor, grid: Grid, threads: Threads) -> torch.Tensor:
        ctx.save_for_backward(slots)
        ctx.grid, ctx.threads = grid, threads
        sums = torch.zeros(len(slots), grid.columns + 1, dtype=torch.float64)
        slopes, places = slope.detach().contiguous().numpy(), slots.contiguous().numpy()
        out, waves = sums.numpy(), _slot_waves(grid)
        threads.map(lambda rows: _accumulate(slopes[rows], places[rows], waves, out[rows]), row_chunks(len(slots)))
        return _coefficients_transposed(sums, grid).to(slope.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slots,) = ctx.saved_tensors
        return _LogitsAt.apply(gradients[0], slots, ctx.grid, ctx.threads, 0.0), None, None, None


def _coefficients(x: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Scaled pairs (α_f, β_f) for f = 0 … k in float64; β₀ = 0."""
    scaled = torch.cat([x[:, :1], x.new_zeros(len(x), 1), x[:, 1:]], 1).double() * (math.sqrt(2) * grid.constant)
    scaled[:, 0] /= math.sqrt(2)
    return scaled


def _coefficients_transposed(sums: torch.Tensor, grid: Grid) -> torch.Tensor:
    scaled = sums * (math.sqrt(2) * grid.constant)
    return torch.cat([scaled[:, :1] / math.sqrt(2), scaled[:, 2:]], 1)


@lru_cache(maxsize=8)
def _slot_waves(grid: Grid) -> np.ndarray:
    """(cos θ, sin θ) of each slot."""
    angles = grid.angles()
    return np.stack([np.cos(angles), np.sin(angles)], 1)


@njit(cache=True, nogil=True)
def _evaluate(coefficients: np.ndarray, slots: np.ndarray, waves: np.ndarray, padding: float, out: np.ndarray) -> None:
    """Re Σ_f (α_f − iβ_f) e^{ifθ} by Horner's rule, for BLOCK slots at a time."""
    cosine, sine, real, imaginary = np.empty((4, BLOCK))
    for row in range(slots.shape[0]):
        for start in range(0, slots.shape[1], BLOCK):
            count = min(BLOCK, slots.shape[1] - start)
            for lane in range(count):
                slot = max(0, slots[row, start + lane])
                cosine[lane], sine[lane] = waves[slot, 0], waves[slot, 1]
                real[lane] = imaginary[lane] = 0
            for column in range(coefficients.shape[1] - 2, -1, -2):
                alpha, beta = coefficients[row, column], coefficients[row, column + 1]
                for lane in range(count):
                    x, y, c, s = real[lane], imaginary[lane], cosine[lane], sine[lane]
                    real[lane] = x * c - y * s + alpha
                    imaginary[lane] = x * s + y * c - beta
            for lane in range(count):
                out[row, start + lane] = real[lane] if slots[row, start + lane] >= 0 else padding


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _accumulate(slopes: np.ndarray, slots: np.ndarray, waves: np.ndarray, out: np.ndarray) -> None:
    """out[f] += Σ slope·(cos fθ, sin fθ) over the slots of a row."""
    cosine, sine, real, imaginary = np.empty((4, BLOCK))
    for row in range(slots.shape[0]):
        for start in range(0, slots.shape[1], BLOCK):
            count = min(BLOCK, slots.shape[1] - start)
            for lane in range(count):
                slot = slots[row, start + lane]
                cosine[lane], sine[lane] = waves[max(0, slot), 0], waves[max(0, slot), 1]
                real[lane] = slopes[row, start + lane] if slot >= 0 else 0.0
                imaginary[lane] = 0
            for column in range(0, out.shape[1], 2):
                alpha = beta = 0.0
                for lane in range(count):
                    x, y, c, s = real[lane], imaginary[lane], cosine[lane], sine[lane]
                    alpha += x
                    beta += y
                    real[lane] = x * c - y * s
                    imaginary[lane] = x * s + y * c
                out[row, column] += alpha
                out[row, column + 1] += beta
