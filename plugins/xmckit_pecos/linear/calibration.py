"""Turn scores of beam search into logits, and calibrate the logits: Platt or isotonic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numba import njit

CalibrationMethod = Literal["none", "platt", "isotonic"]
BINS = 15
FOLDS = 5
NEWTON_STEPS = 100
# logits of products in float32 that underflow to 0, and that are closer to 1 than float32 can express
LOWEST, HIGHEST = -103.0, 16.0


def logits(scores: np.ndarray, post_processor: str) -> np.ndarray:
    """Turn PECOS's scores into log-odds, keeping their order: products of probabilities p become log(p / (1 − p)).

    Margins ("noop") stay as they are.
    """
    if post_processor == "noop":
        return scores.astype(np.float32)
    values = scores.astype(np.float64)
    with np.errstate(divide="ignore"):
        if post_processor.startswith("log-"):
            values = np.minimum(values, 0)
            return np.minimum(values - np.log(-np.expm1(values)), HIGHEST).astype(np.float32)
        values = np.minimum(values, 1)
        return np.clip(np.log(values) - np.log1p(-values), LOWEST, HIGHEST).astype(np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Compute σ without overflow."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


@dataclass(frozen=True)
class Uncalibrated:
    def __call__(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def state(self) -> dict[str, Any]:
        return {"method": "none"}


@dataclass(frozen=True)
class Platt:
    """slope · logit + offset, with a slope of at least 0."""

    slope: float
    offset: float

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        moved = self.slope * logits.astype(np.float64) + self.offset
        return np.clip(moved, np.finfo(np.float32).min, HIGHEST).astype(np.float32)

    def state(self) -> dict[str, Any]:
        return {"method": "platt", "slope": self.slope, "offset": self.offset}


@dataclass(frozen=True)
class Isotonic:
    """A rising curve through (logit, logit of the share of true labels), straight between its points."""

    at: np.ndarray
    values: np.ndarray

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        return np.interp(logits.astype(np.float64), self.at, self.values).astype(np.float32)

    def state(self) -> dict[str, Any]:
        return {"method": "isotonic", "at": self.at.tolist(), "values": self.values.tolist()}


# maps from logits to logits that never swap two of them
Calibration: TypeAlias = Uncalibrated | Platt | Isotonic


def fit(method: CalibrationMethod, logits: np.ndarray, hits: np.ndarray) -> Calibration:
    """Fit a calibration to logits. `hits` says which of them belong to true labels."""
    if method == "none" or not len(logits):
        return Uncalibrated()
    return _platt(logits, hits) if method == "platt" else _isotonic(logits, hits)


def from_state(state: Any) -> Calibration:
    """Rebuild a calibration from its stored `state`. ValueError says what is wrong with the state."""
    method = state.get("method") if isinstance(state, dict) else None
    if method == "none":
        return Uncalibrated()
    if method == "platt":
        slope, offset = (_finite_numbers(state, name, 0) for name in ("slope", "offset"))
        if slope < 0:
            raise ValueError("expected a slope of at least 0")
        return Platt(float(slope), float(offset))
    if method == "isotonic":
        at, values = (_finite_numbers(state, name, 1) for name in ("at", "values"))
        if at.shape != values.shape or not len(at):
            raise ValueError("expected as many values as points")
        if (np.diff(at) <= 0).any() or (np.diff(values) < 0).any():
            raise ValueError("expected a curve that rises")
        return Isotonic(at, values)
    raise ValueError(f"expected a method of calibration, found {method!r}")


def _finite_numbers(state: dict[str, Any], name: str, dimensions: int) -> np.ndarray:
    try:
        values = np.asarray(state.get(name), dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"expected numbers as {name}") from None
    if values.ndim != dimensions or not np.isfinite(values).all():
        raise ValueError(f"expected {'a list of finite numbers' if dimensions else 'a finite number'} as {name}")
    return values


def _platt(logits: np.ndarray, hits: np.ndarray) -> Platt:
    """Maximise the likelihood of Platt's targets, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2), by Newton with halved steps."""
    x = logits.astype(np.float64)
    centre, scale = x.mean(), x.std() or 1.0
    x = (x - centre) / scale
    positive = int(hits.sum())
    wanted = np.where(hits, (positive + 1) / (positive + 2), 1 / (len(hits) - positive + 2))

    def loss(slope: float, offset: float) -> float:
        z = slope * x + offset
        return float(np.mean(np.logaddexp(0, z) - wanted * z))

    slope, offset = 1.0, float(np.log((positive + 1) / (len(hits) - positive + 1)))
    current = loss(slope, offset)
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(slope * x + offset)))
        h = p * (1 - p)
        gradient = np.asarray([np.mean((p - wanted) * x), np.mean(p - wanted)])
        hessian = np.asarray([[np.mean(h * x * x), np.mean(h * x)], [np.mean(h * x), np.mean(h)]])
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        size = 1.0
        while size > 1e-8 and loss(slope - size * step[0], offset - size * step[1]) > current:
            size /= 2
        slope, offset = slope - size * step[0], offset - size * step[1]
        after = loss(slope, offset)
        if current - after < 1e-12:
            break
        current = after
    if slope <= 0:  # the scores carry no information, or the opposite: use the share of true labels alone
        mean = float(np.clip(wanted.mean(), 1e-12, 1 - 1e-12))
        return Platt(0.0, float(np.log(mean / (1 - mean))))
    return Platt(float(slope / scale), float(offset - slope * centre / scale))


def _isotonic(logits: np.ndarray, hits: np.ndarray) -> Isotonic:
    """Pool neighbours until the share of true labels rises.

    Each pool gets half a true and half a false pair, because a share of 0 or 1 among a few pairs is no certainty. Pools
    that no longer rise after that are pooled again.
    """
    points, inverse, pairs = np.unique(logits.astype(np.float64), return_inverse=True, return_counts=True)
    true = np.bincount(inverse.ravel(), hits, minlength=len(points))
    starts = pool_neighbours(true, pairs.astype(np.float64))
    hit, tried = np.add.reduceat(true, starts) + 0.5, np.add.reduceat(pairs, starts) + 1.0
    again = pool_neighbours(hit, tried)
    hit, tried, starts = np.add.reduceat(hit, again), np.add.reduceat(tried, again), starts[again]
    ends = np.append(starts[1:], len(points))
    # the curve is flat from the first score of a pool to its last, and straight from there to the next pool
    at = np.stack([points[starts], points[ends - 1]], axis=1).ravel()
    kept, first = np.unique(at, return_index=True)
    return Isotonic(kept, np.repeat(np.log(hit / (tried - hit)), 2)[first])


@njit(cache=True, nogil=True)
def pool_neighbours(totals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Pool neighbours until totals ÷ weights rises strictly, and return where the pools begin."""
    starts = np.empty(len(totals), np.int64)
    total, weight = np.empty(len(totals)), np.empty(len(totals))
    pools = 0
    for i in range(len(totals)):
        starts[pools], total[pools], weight[pools] = i, totals[i], weights[i]
        pools += 1
        while pools > 1 and total[pools - 2] * weight[pools - 1] >= total[pools - 1] * weight[pools - 2]:
            total[pools - 2] += total[pools - 1]
            weight[pools - 2] += weight[pools - 1]
            pools -= 1
    return starts[:pools].copy()


def calibration_error(probabilities: np.ndarray, hits: np.ndarray) -> float:
    """Compute the expected calibration error: |mean probability − share of true labels| over 15 bins of equal width,
    weighted by their pairs.
    """
    if not len(probabilities):
        return 0.0
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    errors = np.bincount(bins, probabilities.astype(np.float64) - hits, minlength=BINS)
    return float(np.abs(errors).sum() / len(probabilities))


def calibrate_held_out(method: CalibrationMethod, logits: np.ndarray, hits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Calibrate the logits of each fifth of the rows by a calibration fitted to the other rows."""
    result = np.empty_like(logits)
    for fold in range(FOLDS):
        out = rows % FOLDS == fold
        result[out] = fit(method, logits[~out], hits[~out])(logits[out])
    return result


def best_threshold(logits: np.ndarray, hits: np.ndarray, true_pairs: int) -> tuple[float, float]:
    """Return (the cut above which labels are output, its micro-F1): the best cut, the highest of equally good ones."""
    order = np.argsort(-logits, kind="stable")
    scores, right = logits[order].astype(np.float32), np.cumsum(hits[order])
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)) if len(scores) else np.empty(0, np.int64)
    f1 = 2 * right[last] / (last + 1 + true_pairs)
    if not len(f1) or f1.max() <= 0:
        return 0.0, 0.0
    place = last[int(np.argmax(f1))]
    kept = scores[place]
    below = scores[place + 1] if place + 1 < len(scores) else kept - np.float32(1)
    middle = np.float32(0.5) * (kept + below)
    return float(middle if below <= middle < kept else below), float(f1.max())
