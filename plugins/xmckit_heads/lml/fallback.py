"""The LML projection in torch operations, for devices on which numba kernels do not run.

The search is that of `safeguarded`, over all rows at once, in float64.
"""

from __future__ import annotations

import torch

STEPS = 400


def project(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return y, rows × labels, in float64."""
    return _SolvedRows(x, k).y()


def log_loss_and_slopes(
    x: torch.Tensor, k: torch.Tensor, pairs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (Σ factor·(−log y) over the pairs, its derivative for x, and for k); pairs = (rows, labels, factors)."""
    rows, labels, factors = pairs
    solved = _SolvedRows(x, k)
    z = solved.z()
    y = solved.y()[rows, labels]
    ordinary, shared = solved.ordinary[rows], solved.shared[rows] & (y > 0)
    at = z[rows, labels]
    terms = torch.where(ordinary, -torch.nn.functional.logsigmoid(at), -torch.log(y))
    missing = torch.where(ordinary, factors * torch.sigmoid(-at), torch.where(shared, factors * (1 - y), 0.0))
    per_row = torch.zeros_like(solved.k).index_add_(0, rows, missing)
    log_h = torch.nn.functional.logsigmoid(z) + torch.nn.functional.logsigmoid(-z)
    equal = (solved.x == torch.inf) * (solved.share / solved.k)[:, None]
    part = torch.where(solved.ordinary[:, None], torch.nan_to_num(torch.softmax(log_h, -1)), equal)
    slope = torch.where((solved.ordinary | solved.shared)[:, None], part * per_row[:, None], 0.0)
    slope.index_put_((rows, labels), -missing, accumulate=True)
    slope = torch.where(solved.undefined[:, None], torch.nan, slope)
    h = torch.where(solved.ordinary, torch.exp(torch.logsumexp(log_h, -1)), solved.k * (1 - solved.share))
    k_slope = torch.where(per_row == 0, 0.0, -per_row / h)
    has_pairs = torch.zeros_like(solved.undefined).index_fill_(0, rows, True)[:, None]
    return torch.where(factors == 0, 0.0, factors * terms).sum(), torch.where(has_pairs, slope, 0.0), k_slope


class _SolvedRows:
    """The solution that `safeguarded` finds for a row, for all rows at once."""

    def __init__(self, x: torch.Tensor, k: torch.Tensor):
        self.x, self.k = x.double(), k.double()
        finite = self.x.isfinite()
        infinite = (self.x == torch.inf).double().sum(-1)
        count = finite.double().sum(-1)
        self.undefined = self.x.isnan().any(-1) | ~(self.k >= 0)
        self.saturated = ~self.undefined & (self.k >= infinite + count) & (self.k > 0)
        self.shared = ~self.undefined & ~self.saturated & (infinite >= self.k) & (self.k > 0)
        self.ordinary = ~self.undefined & ~self.saturated & ~self.shared & (self.k > 0)
        self.share = self.k / infinite.clamp(min=1)
        if self.ordinary.any():
            self._solve(infinite, count, finite)
        else:
            self.centre = self.shift = torch.zeros_like(self.k)

    def z(self) -> torch.Tensor:
        return (self.x - self.centre[:, None]) + self.shift[:, None]

    def y(self) -> torch.Tensor:
        y = torch.sigmoid(self.z())
        y = torch.where(self.ordinary[:, None], y, 0.0)
        y = torch.where(self.saturated[:, None], (self.x > -torch.inf).double(), y)
        y = torch.where(self.shared[:, None], self.share[:, None] * (self.x == torch.inf), y)
        return torch.where(self.undefined[:, None], torch.nan, y)

    def _solve(self, infinite: torch.Tensor, count: torch.Tensor, finite: torch.Tensor) -> None:
        rest = torch.where(self.ordinary, self.k - infinite, 0.5)
        low = torch.where(self.ordinary, torch.log(rest) - torch.log(count - rest), 0.0)
        zero = self.x.new_zeros(())
        largest = torch.where(self.ordinary, torch.where(finite, self.x, -torch.inf).amax(-1), zero)
        smallest = torch.where(self.ordinary, torch.where(finite, self.x, torch.inf).amin(-1), zero)
        shift = self._search(largest, low, low + (largest - smallest), 1e-6)
        self.centre = largest - shift
        back = self.centre - largest
        rounded = (largest - (self.centre - back)) + (-shift - back)
        self.shift = self._search(self.centre, -rounded - 1e-3, -rounded + 1e-3, 5e-14)

    def _search(self, centre: torch.Tensor, low: torch.Tensor, high: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Return the shift in [low, high] with Σσ((x − centre) + shift) = k."""
        shift = torch.where(high - low < 30.0, low, 0.5 * low + 0.5 * high)
        open_ = self.ordinary.clone()
        before = torch.full_like(low, torch.inf)
        for _ in range(STEPS):
            z = (self.x - centre[:, None]) + shift[:, None]
            above = z >= 0
            y, other = torch.sigmoid(z), torch.sigmoid(-z.abs())
            h = other * torch.sigmoid(z.abs())
            f = torch.where(above, -other, other).sum(-1) + (above.double().sum(-1) - self.k)
            h0, h1, h2, h3 = (part.sum(-1) for part in (h, h * y, h * y * y, h * y * y * y))
            low, high = torch.where(f < 0, shift, low), torch.where(f > 0, shift, high)
            over, under = torch.where(above, z, torch.inf).amin(-1), torch.where(above, -torch.inf, z).amax(-1)
            gap = (f == 0) & (h0 == 0) & over.isfinite() & under.isfinite()
            centred = gap & ~((over + under).abs() > 1e-9 * (over - under))
            open_ = open_ & ~((f.abs() <= tolerance * h0) & ~gap) & ~centred
            proposed = shift + torch.log1p(_gauss_step(f, h0, h1, h2, h3))
            inside, narrower = (low < proposed) & (proposed < high), high - low < 0.75 * before
            middle = 0.5 * low + 0.5 * high
            used = inside & narrower
            width = torch.maximum(high - low, 4 * (proposed - shift).abs())
            before = torch.where(used, width, torch.where(inside, torch.inf, high - low))
            proposed = torch.where(used, proposed, middle)
            proposed = torch.where(gap, shift - 0.5 * (over + under), proposed)
            open_ = open_ & (gap | ~((proposed == low) | (proposed == high) | (proposed == shift)))
            shift = torch.where(open_, proposed, shift)
            if not open_.any():
                break
        return shift


def _gauss_step(
    f: torch.Tensor, h0: torch.Tensor, h1: torch.Tensor, h2: torch.Tensor, h3: torch.Tensor
) -> torch.Tensor:
    """Do as `safeguarded.gauss_step` does, with NaN for no step."""
    spread = h0 * h2 - h1 * h1
    p, q = (h0 * h3 - h1 * h2) / spread, (h1 * h3 - h2 * h2) / spread
    a, b = f * q + (p * h0 - h1), f * p + h0
    inside = b * b - 4.0 * a * f
    two = -2.0 * f / (b + torch.sqrt(inside))
    usable = (spread > 1e-5 * h0 * h2) & (inside >= 0) & ((f > 0) | (a > 0)) & (b + torch.sqrt(inside) > 0) & (two > -1)
    below = h0 * h0 + f * h1
    one = torch.where((below > 0) & (-f * h0 / below > -1), -f * h0 / below, torch.nan)
    return torch.where(usable, two, one)
