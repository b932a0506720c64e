"""Mini-batches from CSR rows: the inputs of encoders and the true labels for losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse

from xmckit.data.model import Matrix, as_csr, check_entries, stored_values
from xmckit.errors import DataError


@dataclass(frozen=True)
class SparseBatch:
    """CSR rows in the form of `torch.nn.functional.embedding_bag`: `offsets` has one entry more than rows."""

    indices: torch.Tensor
    offsets: torch.Tensor
    values: torch.Tensor
    inputs: int

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_csr(cls, X: csr_matrix, device: torch.device | None = None) -> SparseBatch:
        return cls(
            torch.from_numpy(X.indices.astype(np.int64)).to(device),
            torch.from_numpy(X.indptr.astype(np.int64)).to(device),
            torch.from_numpy(X.data.astype(np.float32)).to(device),
            int(X.shape[1]),
        )


Batch: TypeAlias = "SparseBatch | torch.Tensor"


@dataclass(frozen=True)
class Targets:
    """The true labels of a batch as pairs (row, label), in row order; `weights` multiply the loss of each pair."""

    rows: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor | None
    shape: tuple[int, int]

    @classmethod
    def from_csr(cls, Y: csr_matrix, weights: csr_matrix | None, device: torch.device | None = None) -> Targets:
        rows = np.repeat(np.arange(Y.shape[0], dtype=np.int64), np.diff(Y.indptr))
        return cls(
            torch.from_numpy(rows).to(device),
            torch.from_numpy(Y.indices.astype(np.int64)).to(device),
            None if weights is None else torch.from_numpy(weights.data.astype(np.float32)).to(device),
            (int(Y.shape[0]), int(Y.shape[1])),
        )

    def by_label(self) -> Targets:
        """Return the pairs with rows and labels swapped, in the order of the labels."""
        order = torch.argsort(self.labels, stable=True)
        weights = None if self.weights is None else self.weights[order]
        return Targets(self.labels[order], self.rows[order], weights, self.shape[::-1])

    def of_rows(self, part: slice) -> Targets:
        """Return the pairs of the rows from `part.start` to `part.stop`, numbered from 0."""
        bounds = torch.tensor([part.start, part.stop], device=self.rows.device)
        first, last = torch.searchsorted(self.rows, bounds).tolist()
        weights = None if self.weights is None else self.weights[first:last]
        rows, labels = self.rows[first:last] - part.start, self.labels[first:last]
        return Targets(rows, labels, weights, (part.stop - part.start, self.shape[1]))


def as_inputs(X: Matrix) -> Matrix:
    """Return X as canonical CSR float32 or as a dense float32 array, all finite; the argument does not change."""
    with np.errstate(over="ignore"):  # values too large for float32 become infinite and raise below
        inputs: Any = as_csr(X, what="the feature matrix") if issparse(X) else np.asarray(X, dtype=np.float32)
    if inputs.ndim != 2:
        raise DataError(f"features must have two dimensions, rows × features, found {inputs.ndim}")
    check_entries(inputs, np.isfinite(stored_values(inputs)), "a feature is not a finite number of 32 bits")
    return inputs


def as_batch(X: Matrix, device: torch.device | None = None) -> Batch:
    """Return rows of `as_inputs(X)` in the form that encoders take."""
    if issparse(X):
        return SparseBatch.from_csr(X, device)
    # torch cannot share memory that numpy marks as read-only.
    return torch.from_numpy(np.require(X, requirements=["C", "W"]) if X.flags.writeable else X.copy()).to(device)
