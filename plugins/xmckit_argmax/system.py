"""The homogeneous linear system of a decision: which signs can the rows of one matrix take?

The row of a label is its row of W. The rule "topk" adds a column of ones, for a free threshold. A bias adds the column
b, for a variable t that must be positive, and one more row that says so. An assignment requires a vector v with
s·row·v ≥ 0 for every row, where s = +1 for active labels and for the row of t, and s = −1 for the other labels. The
search asks for > 0 on every row, as the paper does (Grivas et al. 2024, definition 1). Where that is impossible, the
head's own rule decides which rows may be 0 together: `LinearSystem.clash`. Scaling a row, or the column of an auxiliary
variable, by a power of two changes neither the problem nor any mantissa, and makes rows of different scales comparable.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import DataError, LinearDecision
from xmckit.data.model import as_csr

ROWS_AT_ONCE = 4096  # rows scaled in one step, which bounds the memory
TYPICAL_ROWS = 1000  # rows sampled to choose the scale of the columns
NO_POWER, LOST = -(1 << 20), -2000  # the exponent of zero, and an exponent that scales any number to zero
LONG = (np.int64, np.uint64)  # numpy allows the cast to float64, although it can lose bits
LANES = 8  # rows are padded with zeros to a multiple of this, so that the kernels have no remainders


@dataclass(frozen=True)
class LinearSystem:
    """The rows of a decision, ready for the solver. With a bias, row `labels` (the last one) is the row of t.

    `rows` is float64 and padded. Row i is the original row times 2^−exponents[i], so that its length is between 1 and
    2, or zero. `units32` holds the rows with length 1. `columns` holds the exponents that scale the columns.
    `lossless[i]` tells whether row i was scaled without losing a bit.
    """

    rows: np.ndarray
    units32: np.ndarray
    norms: np.ndarray
    lossless: np.ndarray
    exponents: np.ndarray
    columns: np.ndarray
    labels: int
    dim: int
    rule: str
    biased: bool

    @property
    def width(self) -> int:
        """The number of variables: x, the threshold of "topk", and t."""
        return self.dim + (self.rule == "topk") + self.biased

    def signs(self, ids: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Return the sign that each of the rows `ids` must have for these active labels."""
        return np.where(np.isin(ids, active) | (ids == self.labels), 1.0, -1.0)

    def clash(self, ids: Collection[int], active: Collection[int]) -> list[int]:
        """Return one or two of the rows `ids` that must not be 0 at the same time; empty if all of them may be 0.

        t is positive. Rule "sign": an active logit is positive. Rule "topk": equal logits are ranked by label id, so
        an active label must not be equal to another label with a lower id.
        """
        if self.labels in ids:
            return [self.labels]
        last = max((index for index in ids if index in active), default=-1)
        if last < 0 or self.rule == "sign":
            return [last] if last >= 0 else []
        first = min((index for index in ids if index not in active), default=last)
        return [last, first] if first < last else []


def check_weights(decision: LinearDecision) -> tuple[np.ndarray, np.ndarray | None]:
    """Return W and b as float64, or raise DataError with the row that is wrong."""
    W = np.asarray(decision.W)
    if W.ndim != 2 or not _exact_in_float64(W):
        raise DataError(f"W is {W.dtype} of shape {W.shape}, expected numbers that float64 holds exactly, labels × d")
    if decision.rule not in ("sign", "topk"):
        raise DataError(f"the rule is {decision.rule!r}, expected 'sign' or 'topk'")
    _check_finite(W, "W")
    if decision.b is None:
        return W.astype(np.float64), None
    b = np.asarray(decision.b)
    if b.shape != (len(W),) or not _exact_in_float64(b):
        raise DataError(f"b is {b.dtype} of shape {b.shape}, expected one float64 for each of {len(W)} labels")
    _check_finite(b[:, None], "b")
    return W.astype(np.float64), b.astype(np.float64)


def _exact_in_float64(array: np.ndarray) -> bool:
    return bool(np.can_cast(array.dtype, np.float64)) and array.dtype.kind in "fiu" and array.dtype not in LONG


def _check_finite(matrix: np.ndarray, name: str) -> None:
    wrong = np.argwhere(~np.isfinite(matrix))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(f"{name} holds {matrix[row, column]}, expected finite numbers", row=row)


def check_sets(sets: csr_matrix, labels: int, what: str) -> csr_matrix:
    """Return label sets in canonical form, or raise DataError unless their columns are the labels of W."""
    if sets.shape[1] != labels:
        raise DataError(f"the {what} are over {sets.shape[1]} labels, but W has {labels} rows")
    return as_csr(sets)


def zero_rows(W: np.ndarray, b: np.ndarray | None, rule: str) -> np.ndarray:
    """Return for each label whether its row is zero, so that its logit is 0 for every x; never for the rule "topk"."""
    if rule == "topk":
        return np.zeros(len(W), dtype=bool)
    return np.asarray(~W.any(axis=1) & (True if b is None else b == 0))


def make_system(W: np.ndarray, b: np.ndarray | None, rule: str, *, plain_columns: bool = False) -> LinearSystem:
    """Build the system of a decision.

    `plain_columns` leaves the auxiliary columns unscaled, so that margins are those in the space (x, threshold, t).
    """
    labels, dim = W.shape
    width, count = dim + (rule == "topk") + (b is not None), labels + (b is not None)
    columns = np.zeros(-(-max(width, 1) // LANES) * LANES, dtype=np.int64)
    if not plain_columns:
        sample = plain_rows(W, b, rule, np.arange(0, labels, max(1, labels // TYPICAL_ROWS)))
        for column in range(dim, width):
            columns[column] = _typical_exponent(sample[:, :dim]) - _typical_exponent(sample[:, column])
    scaled = np.zeros((count, len(columns)))
    exponents, lossless = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for start in range(0, count, ROWS_AT_ONCE):
        part = slice(start, min(count, start + ROWS_AT_ONCE))
        scaled[part, :width], exponents[part], lossless[part] = scaled_rows(
            plain_rows(W, b, rule, np.arange(part.start, part.stop)), columns[:width]
        )
    norms = np.linalg.norm(scaled, axis=1)
    units32 = unit_rows(scaled, norms)
    return LinearSystem(scaled, units32, norms, lossless, exponents, columns, labels, dim, rule, b is not None)


def unit_rows(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Return the rows with length 1 in single precision; zero rows stay zero."""
    return np.asarray(rows / np.where(norms > 0, norms, 1.0)[:, None], dtype=np.float32)


def plain_rows(W: np.ndarray, b: np.ndarray | None, rule: str, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return rows of the homogeneous form without scaling; with a bias, id `len(W)` stands for the row of t."""
    is_label = np.asarray(ids) < len(W)
    labels = np.asarray(ids)[is_label]
    bias = np.empty((len(labels), 0)) if b is None else b[labels, None]
    parts = np.concatenate([W[labels], np.ones((len(labels), int(rule == "topk"))), bias], axis=1)
    rows = np.zeros((len(ids), parts.shape[1]))
    rows[:, -1:] = 1.0
    rows[is_label] = parts
    return rows


def _typical_exponent(values: np.ndarray) -> int:
    """Return the binary exponent of the median magnitude of the non-zero values."""
    magnitudes = np.abs(values[values != 0])
    return int(np.frexp(np.median(magnitudes))[1]) if len(magnitudes) else 0


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """Return ‖row‖ for each row, without overflow or underflow of the squares."""
    powers = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(rows, -powers[:, None]), axis=1), powers))


def scaled_rows(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale rows by powers of two to lengths between 1 and 2; return them, the exponents, and where this was exact."""
    mantissas, powers = _binary_parts(rows, columns)
    largest = powers.max(axis=1, initial=NO_POWER)
    lengths = np.frexp(np.linalg.norm(_shift(mantissas, powers, largest)[0], axis=1))[1] - 1
    exponents = np.where(largest > NO_POWER, largest + lengths, 0)
    scaled, lossless = _shift(mantissas, powers, exponents)
    return scaled, exponents, lossless


def scaled_vectors(vectors: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Undo the scaling of the columns, and scale each vector to a largest entry of about 1; also tell which are sound.

    A sound vector is finite, not zero, and was scaled without losing a bit.
    """
    finite = np.isfinite(vectors).all(axis=1)
    mantissas, powers = _binary_parts(np.where(finite[:, None], vectors, 0.0), -columns)
    scaled, lossless = _shift(mantissas, powers, powers.max(axis=1))
    return scaled, finite & lossless & (scaled != 0).any(axis=1)


def _binary_parts(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mantissas and binary exponents of the entries times 2^columns."""
    mantissas, powers = np.frexp(rows)
    return mantissas, np.where(rows == 0, NO_POWER, powers + columns)


def _shift(mantissas: np.ndarray, powers: np.ndarray, exponents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows times 2^−exponents, and whether each lost no bit."""
    shifts = np.where(mantissas == 0, 0, np.maximum(powers - exponents[:, None], LOST))
    shifted = np.ldexp(mantissas, shifts)
    return shifted, (np.ldexp(shifted, -shifts) == mantissas).all(axis=1)
