"""The truncated DFT matrix of Grivas, Vergari and Lopez (2024), section 4.3, as a fast operator.

Row θ of the matrix is [1, √2 cos θ, √2 sin θ, …, √2 cos kθ, √2 sin kθ] times a scale. With n distinct angles in
[0, 2π), sign(W·x) outputs a set of labels for some x exactly when its members form at most k arcs around the circle.
The angles need not be equally spaced, so the n labels may take any n points of an N-point grid, and N is chosen to suit
the arithmetic. The grid here is closed under θ → −θ and under θ → θ + 2π/R. One matrix product gives, on a 2R-th of the
circle, the parts of z that these symmetries send to ± themselves (frequencies by their remainder mod R, even and odd
parts), with about R times fewer multiplications than W·x; additions and a real DFT of length R then give z on all 2R
images. All work is done on tiles that stay in cache. The logits are in the order of memory slots, and `Grid` gives the
angle of each slot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch.nn.functional import softplus

from xmckit.decisions import float32_error
from xmckit.errors import UsageError
from xmckit.nn import Threads

ROWS_AT_ONCE = 32  # half as many for batches that would otherwise leave a second thread idle
NUMBERS_AT_ONCE = 3 << 16  # per tile, so that it stays in the second-level cache
BLOCK = 128  # lanes: 2R·BLOCK float32 numbers fit into the first-level cache
PRODUCT_WIDTH = 6  # with fewer frequencies per remainder, a larger R saves no time
LARGEST_ROTATION = 32
SMALLEST_GAP = 1e-3


@dataclass(frozen=True)
class Grid:
    """The angles of `labels` memory slots on the circle, for frequencies up to `degree`.

    `scale` sets the lengths, on which the guarantee does not depend: "rows" makes every row of the matrix a unit
    vector, so that logits do not shrink as labels are added; "columns" is the paper's 1/√n and √(2/n).
    """

    labels: int
    degree: int
    scale: Literal["rows", "columns"] = "rows"

    def __post_init__(self) -> None:
        if self.labels < 3:
            raise UsageError(f"a DFT layer needs at least 3 labels, found {self.labels}")
        if not 1 <= self.degree <= (self.labels - 1) // 2:
            raise UsageError(
                f"degree {self.degree} is not possible with {self.labels} labels: it must be from 1 to "
                f"{(self.labels - 1) // 2}"
            )
        if self.scale not in ("rows", "columns"):
            raise UsageError(f'scale must be "rows" or "columns", found {self.scale!r}')

    @property
    def columns(self) -> int:
        """Return 2k+1: the constant, then a cosine and a sine for each frequency."""
        return 2 * self.degree + 1

    @property
    def constant(self) -> float:
        """Return the entries of the first column; those of the others are √2·cos and √2·sin times this."""
        return 1 / math.sqrt(self.columns if self.scale == "rows" else self.labels)

    @property
    def rotations(self) -> int:
        """Return R, a power of two: the grid is closed under rotation by 2π/R."""
        return min(LARGEST_ROTATION, 1 << max(0, (self.degree // PRODUCT_WIDTH).bit_length() - 1))

    @property
    def lanes(self) -> int:
        """Return the number of points between angle 0 and π/R. All other points are their images.

        Slots are ordered by block of lanes, then image, then lane.
        """
        return -(-self.labels // (2 * self.rotations))

    @property
    def points(self) -> int:
        """Return N ≥ n; the last N − n images in slot order are not used."""
        return 2 * self.rotations * self.lanes

    def half_steps(self) -> np.ndarray:
        """Return the angle of each slot as an odd multiple of π/N, int64."""
        turns = 4 * self.lanes * np.array(_inverse_dft(self.rotations)[2], dtype=np.int64)[:, None]
        lanes = np.split(2 * np.arange(self.lanes, dtype=np.int64) + 1, range(BLOCK, self.lanes, BLOCK))
        blocks = [np.ravel([turns + block, turns - block]) for block in lanes]
        return (np.concatenate(blocks) % (2 * self.points))[: self.labels]

    def angles(self) -> np.ndarray:
        """Return the angle of each slot, in [0, 2π), float64."""
        return self.half_steps() * (np.pi / self.points)

    def cyclic_position(self) -> np.ndarray:
        """Return the rank of each slot's angle, int64: slots of consecutive ranks are neighbours on the circle."""
        position = np.empty(self.labels, dtype=np.int64)
        position[np.argsort(self.half_steps())] = np.arange(self.labels)
        return position


def matrix(grid: Grid, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the explicit matrix, n × (2k+1), rows in slot order, each entry rounded once."""
    rows = np.empty((grid.labels, grid.columns))
    rows[:, 0] = grid.constant
    phases = _phases(np.arange(1, grid.degree + 1), grid.half_steps()[:, None], grid.points)
    rows[:, 1::2] = math.sqrt(2) * grid.constant * np.cos(phases)
    rows[:, 2::2] = math.sqrt(2) * grid.constant * np.sin(phases)
    return torch.from_numpy(rows).to(dtype)


def dft_logits(x: torch.Tensor, grid: Grid, threads: Threads | None = None) -> torch.Tensor:
    """Return x·Wᵀ for W = matrix(grid), rows × slots, without W. The number of threads changes no bit."""
    _check_columns(x, grid)
    if x.device.type != "cpu":
        return x @ matrix_on(grid, x.dtype, x.device).T
    logits: torch.Tensor = _Linear.apply(x, False, grid, threads or Threads())
    return logits


@lru_cache(maxsize=8)
def dft_error(grid: Grid) -> float:
    """Return c: in float32, each logit of `dft_logits` is within c·‖x‖ of x·Wᵀ, for W = matrix(grid) in float32.

    An entry of x is rounded with its weight, with its wave, in the sum of a part's terms, and in the steps of the DFT.
    The error of a logit is at most γ of all these roundings times Σ_j g_j·|x_j|, where g_j adds up the absolute values
    of all paths from x_j to the logit; c follows by Cauchy and Schwarz. W itself has one rounding per entry.
    """
    plan = _plan(grid, torch.float64)
    doubles, members, terms = plan.parts
    half, images = doubles // 2, doubles * members
    # paths from a part to an image: even and odd parts go to both directions, then come the steps of the DFT
    paths, steps = np.zeros((images, images)), np.zeros(images, dtype=np.int64)
    for part, member in itertools.product(range(doubles), range(members)):
        for direction in (0, half):
            paths[(direction + part % half) * members + member, part * members + member] = 1
    for (one, other), (cosine, sine) in zip(plan.pairs.astype(np.int64).tolist(), np.abs(plan.turns), strict=True):
        turn = [[1.0, 1.0], [1.0, 1.0]] if sine == 0 else [[cosine, sine], [sine, cosine]]
        paths[[one, other]] = np.asarray(turn) @ paths[[one, other]]
        steps[[one, other]] = steps[[one, other]].max() + (1 if sine == 0 else 3)
    # from entries of x to parts
    weights = np.zeros((images, grid.columns))
    rows = np.repeat(np.arange(images), terms)
    np.add.at(weights, (rows, plan.columns.reshape(-1)), np.abs(plan.weights).reshape(-1))
    gains = (paths @ weights).max(axis=0)
    roundings = 2 + 1 + terms + 1 + int(steps.max(initial=0))  # weight, wave, sum of terms, both directions, steps
    return float32_error(roundings) * float(np.linalg.norm(gains)) + float32_error(1)


def learned_angles(gaps: torch.Tensor) -> torch.Tensor:
    """Return angles 0 = t₁ < t₂ < … < 2π in float64, with differences proportional to softplus(gaps)."""
    spaces = softplus(gaps.double()) + SMALLEST_GAP
    ends = spaces.cumsum(0)
    return 2 * math.pi * (ends - spaces) / ends[-1]


def learned_rows(gaps: torch.Tensor, degree: int, scale: float) -> torch.Tensor:
    """Return rows like those of `matrix` at `learned_angles(gaps)`, n × (2·degree + 1), differentiable in `gaps`.

    `scale` multiplies the constant column, √2·scale the others.
    """
    angles = learned_angles(gaps)
    kind = torch.complex64 if gaps.dtype == torch.float32 else torch.complex128
    waves = _wave(angles, 1, kind)
    while (done := waves.shape[1]) < degree:
        # Each factor is computed from the angle itself, so that errors grow with log k and not with k.
        waves = torch.cat([waves, waves[:, : degree - done] * _wave(angles, done, kind)], 1)
    sines = torch.view_as_real(waves).flatten(1) * (math.sqrt(2) * scale)
    return torch.cat([sines.new_full((len(gaps), 1), scale), sines], 1).to(gaps.dtype)


def _wave(angles: torch.Tensor, frequency: int, kind: torch.dtype) -> torch.Tensor:
    return torch.polar(torch.ones_like(angles), frequency * angles).to(kind).unsqueeze(1)


def _check_columns(x: torch.Tensor, grid: Grid) -> None:
    if x.ndim != 2 or x.shape[1] != grid.columns:
        raise UsageError(f"x must be rows × {grid.columns} for degree {grid.degree}, found {tuple(x.shape)}")
    if x.dtype not in (torch.float32, torch.float64):
        raise UsageError(f"x must be float32 or float64, found {x.dtype}")


def _phases(frequencies: np.ndarray, half_steps: np.ndarray, points: int) -> np.ndarray:
    """Return frequency·angle, reduced to [0, 2π) in integers, so that large frequencies lose no digits."""
    return (frequencies * half_steps % (2 * points)) * (np.pi / points)


@lru_cache(maxsize=4)
def matrix_on(grid: Grid, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return `matrix` on a device, from a cache."""
    return matrix(grid, dtype).to(device)


# The transform


class _Linear(torch.autograd.Function):
    """Apply `_synthesise` or its transpose `_analyse`; the derivative of either is the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, transposed: bool, grid: Grid, threads: Threads) -> torch.Tensor:
        ctx.arguments = not transposed, grid, threads
        return (_analyse if transposed else _synthesise)(x.detach().contiguous(), grid, threads)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _Linear.apply(gradients[0], *ctx.arguments), None, None, None


@dataclass(frozen=True)
class _Plan:
    """The constant arrays of a grid. A part is a (cosine or sine, remainder, member) with up to K terms.

    `columns` and `weights` (one entry per part and term) turn x into the left factors of the products; `tiles` holds
    the right factors, each with its first lane. `pairs` and `turns` are the steps of the DFT of length R, for both
    directions around the circle.
    """

    parts: tuple[int, int, int]
    columns: np.ndarray
    weights: np.ndarray
    tiles: tuple[tuple[int, torch.Tensor], ...]
    pairs: np.ndarray
    turns: np.ndarray


def _synthesise(x: torch.Tensor, grid: Grid, threads: Threads) -> torch.Tensor:
    plan = _plan(grid, x.dtype)
    doubles, members, terms = plan.parts
    # numpy asks the system for huge pages, torch does not: the first touch of small pages costs more than arithmetic.
    into, out = x.numpy(), np.empty((len(x), grid.labels), dtype=plan.weights.dtype)

    def fill(rows: slice) -> None:
        count = rows.stop - rows.start
        left = x.new_empty(doubles, count * members, terms)
        _enter(into[rows], plan.columns, plan.weights, left.view(doubles, count, -1).numpy())
        for first, table, parts, by_member in _tiles(plan, count, x):
            torch.bmm(left, table, out=parts)
            _spread(by_member, plan.pairs, plan.turns, out[rows], first)

    threads.map(fill, _row_chunks(len(x)))
    return torch.from_numpy(out)


def _analyse(slope: torch.Tensor, grid: Grid, threads: Threads) -> torch.Tensor:
    plan = _plan(grid, slope.dtype)
    doubles, members, terms = plan.parts
    gradient = slope.new_zeros(len(slope), grid.columns)
    into, out = slope.numpy(), gradient.numpy()

    def pull(rows: slice) -> None:
        count = rows.stop - rows.start
        sums = slope.new_zeros(doubles, count * members, terms)
        for first, table, parts, by_member in _tiles(plan, count, slope):
            _collect(into[rows], plan.pairs, plan.turns, by_member, first)
            sums.baddbmm_(parts, table.transpose(1, 2))
        _leave(sums.view(doubles, count, -1).numpy(), plan.columns, plan.weights, out[rows])

    threads.map(pull, _row_chunks(len(slope)))
    return gradient


def _tiles(plan: _Plan, rows: int, like: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, np.ndarray]]:
    """Yield the first lane and table of each tile, and its parts twice: for products and by member.

    All tiles of one width share the memory of their parts.
    """
    doubles, members, _ = plan.parts
    parts = like.new_empty(0, 0, 0)
    for first, table in plan.tiles:
        if parts.shape[2] != table.shape[2]:
            parts = like.new_empty(doubles, rows * members, table.shape[2])
            by_member = parts.view(doubles, rows, members, -1).numpy()
        yield first, table, parts, by_member


def _row_chunks(rows: int) -> list[slice]:
    """Cut a batch into pieces of work, independently of the number of threads, so that it changes no bit."""
    size = ROWS_AT_ONCE if rows > ROWS_AT_ONCE else ROWS_AT_ONCE // 2
    return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]


@lru_cache(maxsize=8)
def _plan(grid: Grid, dtype: torch.dtype) -> _Plan:
    R = grid.rotations
    remainders, members = max(1, R // 2), min(2, R)
    frequencies = [_frequencies(grid, remainder) for remainder in range(remainders)]
    terms = max(map(len, frequencies))
    columns = np.zeros((2, remainders, members, terms), dtype=np.int64)
    weights = np.zeros(columns.shape)
    for remainder, group in enumerate(frequencies):
        for term, frequency in enumerate(group):
            for trig, member, column, sign in _uses(frequency, remainder, R):
                columns[trig, remainder, member, term] = column
                weights[trig, remainder, member, term] = sign * grid.constant * (math.sqrt(2) if frequency else 1)
    pairs, turns, _ = _inverse_dft(R)
    both_directions = np.concatenate([np.reshape(pairs, (-1, 2)), np.reshape(pairs, (-1, 2)) + R])
    return _Plan(
        (2 * remainders, members, terms),
        columns.reshape(2 * remainders, -1),
        torch.from_numpy(weights.reshape(2 * remainders, -1)).to(dtype).numpy(),
        tuple((first, torch.from_numpy(table).to(dtype)) for first, table in _tables(grid, frequencies, terms)),
        both_directions.astype(np.uint64),
        torch.tensor([*turns, *turns], dtype=dtype).view(-1, 2).numpy(),
    )


def _frequencies(grid: Grid, remainder: int) -> list[int]:
    """Return the frequencies ≡ ±remainder mod R. Remainder 0 also takes those ≡ R/2: both need only one member."""
    R = grid.rotations
    wanted = {remainder, R - remainder} if remainder else {0, R // 2}
    return [frequency for frequency in range(grid.degree + 1) if frequency % R in wanted]


def _uses(frequency: int, remainder: int, R: int) -> list[tuple[int, int, int, int]]:
    """Return (0 cosine or 1 sine, member, column of x, sign) for each part that a frequency enters.

    With y_r = Σ (α_f − iβ_f) e^{ifφ} over f ≡ r mod R, member 0 is Re(y_r + y_{R−r}) and member 1 Im(y_r − y_{R−r});
    for remainder 0 they are Re y_0 and Re y_{R/2}. Cosines carry the even part in φ, sines the odd one.
    """
    cosine, sine = 2 * frequency - 1, 2 * frequency
    if frequency == 0:
        return [(0, 0, 0, 1)]
    if remainder == 0:
        member = int(frequency % R != 0)
        return [(0, member, cosine, 1), (1, member, sine, 1)]
    sign = 1 if frequency % R == remainder else -1
    return [(0, 0, cosine, 1), (1, 0, sine, 1), (0, 1, sine, -sign), (1, 1, cosine, sign)]


def _tables(grid: Grid, frequencies: list[list[int]], terms: int) -> list[tuple[int, np.ndarray]]:
    """Return, per tile, cos fφ and then sin fφ for the frequencies of each remainder × the lanes of the tile."""
    tiles = -(-grid.points * ROWS_AT_ONCE // NUMBERS_AT_ONCE)
    width = BLOCK * -(-grid.lanes // (tiles * BLOCK))
    tables = []
    for start in range(0, grid.lanes, width):
        lanes = 2 * np.arange(start, min(start + width, grid.lanes), dtype=np.int64) + 1
        table = np.zeros((2, len(frequencies), terms, len(lanes)))
        for remainder, group in enumerate(frequencies):
            phases = _phases(np.array(group)[:, None], lanes, grid.points)
            table[0, remainder, : len(group)] = np.cos(phases)
            table[1, remainder, : len(group)] = np.sin(phases)
        tables.append((start, table.reshape(-1, terms, len(lanes))))
    return tables


@lru_cache(maxsize=8)
def _inverse_dft(size: int) -> tuple[list[tuple[int, int]], list[tuple[float, float]], list[int]]:
    """Return the steps of the in-place transform to z_r, r = 0 … R − 1, for R a power of two:

        z_r = y₀ + (−1)^r y_{R/2} + Σ_ρ u_ρ cos(2πρr/R) − v_ρ sin(2πρr/R)

    The rows are y₀, y_{R/2}, u₁, v₁, u₂, v₂, …. A step takes a pair of rows (x, y) to (x + y, x − y) if its turn is
    (1, 0) and otherwise rotates it by (cos, sin). The results are the pairs, the turns, and the r of each final row.
    """
    pairs: list[tuple[int, int]] = []
    turns: list[tuple[float, float]] = []
    ends = [0] * size

    def step(one: int, other: int, angle: float = 0.0) -> None:
        pairs.append((one, other))
        turns.append((math.cos(angle), math.sin(angle)))

    def split(mean: int, nyquist: int, negated: bool, waves: list[tuple[int, int]], first: int, stride: int) -> None:
        """Split into the two transforms of half the length that give the even and the odd r."""
        step(mean, nyquist)
        even, odd = (nyquist, mean) if negated else (mean, nyquist)
        if not waves:
            ends[even], ends[odd] = first, first + stride
            return
        quarter = len(waves) // 2
        even_waves, odd_waves = [], []
        for rho in range(quarter):
            (u, v), (mirror_u, mirror_v) = waves[rho], waves[-1 - rho]
            step(u, mirror_u)
            step(v, mirror_v)
            step(mirror_u, v, math.pi * (rho + 1) / (len(waves) + 1))
            even_waves.append((u, mirror_v))
            odd_waves.append((mirror_u, v))
        u, v = waves[quarter]
        split(even, u, False, even_waves, first, 2 * stride)
        split(odd, v, True, odd_waves, first + stride, 2 * stride)

    if size > 1:
        split(0, 1, False, [(row, row + 1) for row in range(2, size, 2)], 0, 1)
    return pairs, turns, ends


# Kernels count with unsigned numbers: numba checks signed indices for negative ones, and then does not vectorise loops.


@njit(cache=True, nogil=True)
def _enter(x: np.ndarray, columns: np.ndarray, weights: np.ndarray, factors: np.ndarray) -> None:
    """Fill the left factors of the products from the rows of x."""
    for part in range(factors.shape[0]):
        for row in range(factors.shape[1]):
            for term in range(factors.shape[2]):
                factors[part, row, term] = weights[part, term] * x[row, columns[part, term]]


@njit(cache=True, nogil=True)
def _leave(factors: np.ndarray, columns: np.ndarray, weights: np.ndarray, out: np.ndarray) -> None:
    """Add the transpose of `_enter`."""
    for part in range(factors.shape[0]):
        for row in range(factors.shape[1]):
            for term in range(factors.shape[2]):
                out[row, columns[part, term]] += weights[part, term] * factors[part, row, term]


@njit(cache=True, nogil=True)
def _spread(parts: np.ndarray, pairs: np.ndarray, turns: np.ndarray, out: np.ndarray, first: int) -> None:
    """Write the logits of the lanes from `first` on: even and odd parts to both directions, then a DFT of length R."""
    half, members, lanes = parts.shape[0] // 2, parts.shape[2], parts.shape[3]
    images = 2 * half * members
    block = np.empty(images * BLOCK, parts.dtype)
    for row in range(parts.shape[1]):
        for start in range(0, lanes, BLOCK):
            count = min(BLOCK, lanes - start)
            slot = (first + start) * images
            used = min(images * count, out.shape[1] - slot)
            begin, width, begin_slot = np.uint64(start), np.uint64(count), np.uint64(slot)
            for part in range(half):
                for member in range(members):
                    forth = np.uint64(part * members + member) * width
                    back = np.uint64((half + part) * members + member) * width
                    for lane in range(width):
                        even = parts[part, row, member, begin + lane]
                        odd = parts[half + part, row, member, begin + lane]
                        block[forth + lane] = even + odd
                        block[back + lane] = even - odd
            for step in range(len(pairs)):
                _turn(block, pairs[step, 0], pairs[step, 1], turns[step, 0], turns[step, 1], width)
            for place in range(np.uint64(used)):
                out[row, begin_slot + place] = block[place]


@njit(cache=True, nogil=True)
def _collect(slope: np.ndarray, pairs: np.ndarray, turns: np.ndarray, parts: np.ndarray, first: int) -> None:
    """Apply the transpose of `_spread`: every step transposed, in reverse order."""
    half, members, lanes = parts.shape[0] // 2, parts.shape[2], parts.shape[3]
    images = 2 * half * members
    block = np.empty(images * BLOCK, parts.dtype)
    for row in range(parts.shape[1]):
        for start in range(0, lanes, BLOCK):
            count = min(BLOCK, lanes - start)
            slot = (first + start) * images
            used = min(images * count, slope.shape[1] - slot)
            begin, width, begin_slot = np.uint64(start), np.uint64(count), np.uint64(slot)
            for place in range(np.uint64(used)):
                block[place] = slope[row, begin_slot + place]
            block[used:] = 0
            for step in range(len(pairs) - 1, -1, -1):
                _turn(block, pairs[step, 0], pairs[step, 1], turns[step, 0], -turns[step, 1], width)
            for part in range(half):
                for member in range(members):
                    forth = np.uint64(part * members + member) * width
                    back = np.uint64((half + part) * members + member) * width
                    for lane in range(width):
                        x, y = block[forth + lane], block[back + lane]
                        parts[part, row, member, begin + lane] = x + y
                        parts[half + part, row, member, begin + lane] = x - y


@njit(cache=True, nogil=True)
def _turn(block: np.ndarray, one: int, other: int, cosine: float, sine: float, width: np.uint64) -> None:
    """Apply one step of `_inverse_dft` to a pair of rows."""
    one_start, other_start = one * width, other * width
    if sine == 0:
        for lane in range(width):
            x, y = block[one_start + lane], block[other_start + lane]
            block[one_start + lane] = x + y
            block[other_start + lane] = x - y
    else:
        for lane in range(width):
            x, y = block[one_start + lane], block[other_start + lane]
            block[one_start + lane] = cosine * x - sine * y
            block[other_start + lane] = sine * x + cosine * y
