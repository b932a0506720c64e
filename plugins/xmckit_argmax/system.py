"""The homogeneous form: which signs can the rows of one matrix have?

A label's row is its row of W; the rule "topk" adds a column of ones, whose variable is a free threshold, and a bias
adds the column b, whose variable t has to be positive: one more row says so. A label set asks for a vector v with
s·row·v > 0 for every row, s = +1 for active labels and for the row of t, −1 for the others (Grivas et al. 2024,
definition 1). Multiplying a row or the column of an auxiliary variable by a power of two changes neither the question
nor a bit of the numbers, and puts rows of any scale on an equal footing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import DataError, LinearDecision
from xmckit.data.model import as_csr

ROWS_AT_ONCE = 4096  # are scaled, to bound the memory for it
TYPICAL_ROWS = 1000  # are looked at for the scale of the columns
NO_POWER, LOST = -(1 << 20), -2000  # exponents of zero, and of what is zero once it is scaled
LONG = (np.int64, np.uint64)  # numpy casts them to float64 as if no bit could be lost
LANES = 8  # rows are padded with zeros to a multiple of this, so that the kernels have no remainders


@dataclass(frozen=True)
class System:
    """The rows of a decision, ready for the solver. Row `labels`, the last, is the one of t where there is a bias.

    `rows` is float64 and padded; row i is the original one times 2^−exponents[i] with a length between 1 and 2, or
    zero; `units32` has the rows at length 1. `columns` holds the powers of two that multiply the columns.
    `lossless[i]`: not a bit of row i was lost.
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
        """Variables: x, the threshold of "topk", and t."""
        return self.dim + (self.rule == "topk") + self.biased


def checked_weights(decision: LinearDecision) -> tuple[np.ndarray, np.ndarray | None]:
    """W and b as float64, or DataError with the row that is wrong."""
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
    wrong = np.flatnonzero(~np.isfinite(matrix).all(axis=1))
    if len(wrong):
        row = int(wrong[0])
        found = matrix[row][~np.isfinite(matrix[row])][0]
        raise DataError(f"{name} holds {found}, expected finite numbers", row=row)


def checked_sets(sets: csr_matrix, labels: int, what: str) -> csr_matrix:
    """Label sets in canonical form, or DataError unless they are over the labels of W."""
    if sets.shape[1] != labels:
        raise DataError(f"the {what} are over {sets.shape[1]} labels, but W has {labels} rows")
    return as_csr(sets)


def make_system(W: np.ndarray, b: np.ndarray | None, rule: str, *, plain_columns: bool = False) -> System:
    """`plain_columns` leaves the auxiliary columns as they are, for margins in the geometry of (x, threshold, t)."""
    labels, dim = W.shape
    width, count = dim + (rule == "topk") + (b is not None), labels + (b is not None)
    columns = np.zeros(-(-max(width, 1) // LANES) * LANES, dtype=np.int64)
    if not plain_columns:
        some = plain_rows(W, b, rule, np.arange(0, labels, max(1, labels // TYPICAL_ROWS)))
        for column in range(dim, width):
            columns[column] = _typical_exponent(some[:, :dim]) - _typical_exponent(some[:, column])
    scaled = np.zeros((count, len(columns)))
    exponents, lossless = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for start in range(0, count, ROWS_AT_ONCE):
        part = slice(start, min(count, start + ROWS_AT_ONCE))
        scaled[part, :width], exponents[part], lossless[part] = scaled_rows(
            plain_rows(W, b, rule, np.arange(part.start, part.stop)), columns[:width]
        )
    norms = np.linalg.norm(scaled, axis=1)
    return System(
        rows=scaled,
        units32=units(scaled, norms),
        norms=norms,
        lossless=lossless,
        exponents=exponents,
        columns=columns,
        labels=labels,
        dim=dim,
        rule=rule,
        biased=b is not None,
    )


def units(rows: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Rows at length 1 in single precision, or zero."""
    return np.asarray(rows / np.where(norms > 0, norms, 1.0)[:, None], dtype=np.float32)


def plain_rows(W: np.ndarray, b: np.ndarray | None, rule: str, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Rows of the homogeneous form without any scaling; with a bias, the one after the last label's is that of t."""
    labels = np.asarray(ids)[np.asarray(ids) < len(W)]
    parts = [W[labels]]
    if rule == "topk":
        parts.append(np.ones((len(labels), 1)))
    if b is not None:
        parts.append(b[labels, None])
    width = sum(part.shape[1] for part in parts)
    rows = np.zeros((len(ids), width))
    rows[:, width - 1 :] = 1.0
    rows[np.asarray(ids) < len(W)] = np.concatenate(parts, axis=1)
    return rows


def _typical_exponent(values: np.ndarray) -> int:
    """Of the median of the non-zero magnitudes, as a power of two."""
    magnitudes = np.abs(values[values != 0])
    return int(np.frexp(np.median(magnitudes))[1]) if len(magnitudes) else 0


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """‖row‖ for each, whatever its scale."""
    powers = np.frexp(np.abs(rows).max(axis=1, initial=0.0))[1]
    return np.asarray(np.ldexp(np.linalg.norm(np.ldexp(rows, -powers[:, None]), axis=1), powers))


def scaled_rows(rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows times powers of two, so that their lengths are between 1 and 2; the exponents; where this was exact."""
    mantissas, powers = np.frexp(rows)
    zero = rows == 0
    powers = np.where(zero, NO_POWER, powers + columns)
    largest = powers.max(axis=1, initial=NO_POWER)
    shifted = np.ldexp(mantissas, np.where(zero, 0, np.maximum(powers - largest[:, None], LOST)))
    lengths = np.frexp(np.linalg.norm(shifted, axis=1))[1] - 1
    exponents = np.where(largest > NO_POWER, largest + lengths, 0)
    shifts = np.where(zero, 0, np.maximum(powers - exponents[:, None], LOST))
    scaled = np.ldexp(mantissas, shifts)
    lossless = (np.ldexp(scaled, -shifts) == mantissas).all(axis=1)
    return scaled, exponents, lossless
