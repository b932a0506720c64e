"""Training and prediction on shortlists, for label spaces too large to compute all logits of a row.

The loss of a batch covers its candidates: the true labels of its rows, the labels that the indexes find for its rows,
and labels drawn uniformly from all others. Every row is compared with all candidates of the batch, which is one dense
product. A drawn label represents (number of others) / (number drawn) labels; the logarithm of this factor is added to
its logit. On average, a softmax then has the same sum as over all labels, and so have the small probabilities of a
sigmoid and of the LML layer. Logits therefore mean the same as after training on all labels, and a drawn label that has
a large logit by chance is not multiplied up.

Only the candidates' rows and their optimiser state change. Prediction scores the candidates that the indexes find for a
row, and outputs no other label.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.data.model import Matrix, as_csr
from xmckit.errors import DataError, PluginError, attribute_errors_to
from xmckit.nn.batches import Batch, Targets, as_batch
from xmckit.nn.threads import Threads, slices
from xmckit.nn.training import RowExamples
from xmckit.protocols import ExtensibleIndex, LabelIndex, NamedIndex, RebuildableIndex, offers
from xmckit.sparse.lanes import fetch

AHEAD = 8  # candidates between the prefetch of a label's weights and their use


class Indexes:
    """Several indexes as one: a shortlist is the union of theirs.

    An index that cannot take labels that were added later keeps listing the earlier ones: `known` counts for each index
    the labels, from the first, that it knows; by default all.
    """

    def __init__(self, indexes: Sequence[LabelIndex], labels: int, known: Sequence[int] | None = None):
        self.all, self.labels = tuple(indexes), labels
        self.known = tuple(known) if known is not None else (labels,) * len(self.all)
        for index in self.all:
            if index.query_space == "head" and not offers(index, RebuildableIndex):
                with _errors_of(index):
                    raise PluginError(f"the index {type(index).__name__} is in head space but lacks rebuild()")

    @property
    def in_head_space(self) -> bool:
        """Whether an index depends on the head's weights."""
        return any(index.query_space == "head" for index in self.all)

    @property
    def can_add(self) -> bool:
        """Whether an index can list labels that were added after it was built."""
        return any(map(_takes_labels, self.all))

    def with_labels(self, X: Matrix, Y: csr_matrix) -> Indexes:
        """Add labels from rows that have them (`Y`: rows × new labels); indexes in head space get them by `rebuild`."""
        labels = self.labels + int(Y.shape[1])
        known = [labels if _takes_labels(index) else known for index, known in zip(self.all, self.known, strict=True)]
        for index in self.all:
            with _errors_of(index):
                if index.query_space != "head" and offers(index, ExtensibleIndex):
                    index.add_labels(X, Y)
        return Indexes(self.all, labels, known)

    def beside(self, index: LabelIndex) -> Indexes:
        """Return these indexes and one more, which knows all labels."""
        return Indexes([*self.all, index], self.labels, [*self.known, self.labels])

    def rebuild(self, label_vectors: Callable[[], np.ndarray]) -> None:
        """Give the current label vectors to the indexes in head space."""
        for index in self.all:
            if index.query_space == "head":
                vectors = label_vectors()
                with _errors_of(index):
                    index.rebuild(vectors)  # type: ignore[attr-defined]

    def find(self, X: Matrix, vectors: Callable[[], np.ndarray], k: int) -> csr_matrix:
        """Return rows × labels with a 1 for each label that an index has among its best `k`."""
        union = csr_matrix((X.shape[0], self.labels), dtype=np.float32)
        for index, known in zip(self.all, self.known, strict=True) if k else ():
            Q = vectors() if index.query_space == "head" else X
            with _errors_of(index):
                listed = _listed_labels(index.shortlist(Q, min(k, known)), (X.shape[0], known), type(index).__name__)
            listed.resize(union.shape)
            union = _ones(union + listed if union.nnz else listed)
        return union


def _takes_labels(index: LabelIndex) -> bool:
    return index.query_space == "head" or offers(index, ExtensibleIndex)


def _errors_of(index: LabelIndex) -> contextlib.AbstractContextManager[None]:
    """Attribute errors to the component that built the index, if the index names it as `indexer`."""
    return attribute_errors_to("indexer", index.indexer) if offers(index, NamedIndex) else contextlib.nullcontext()


@dataclass(frozen=True)
class Shortlisted:
    """A batch and its candidates: label ids in increasing order, and the shift of each label's logit."""

    rows: Batch
    labels: torch.Tensor
    shift: torch.Tensor


@dataclass
class ShortlistedRows:
    """Training rows that come in batches with candidates.

    `find` returns the hard labels of each row. It is called again every `refresh` epochs, or never if that is None.
    """

    rows: RowExamples
    find: Callable[[], csr_matrix]
    uniform: int
    refresh: int | None
    rng: np.random.Generator
    _epoch: int = 0
    _hard: csr_matrix | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, order: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[Shortlisted, Targets]]:
        if self._hard is None or (self.refresh is not None and self._epoch % self.refresh == 0):
            self._hard = self.find()
        self._epoch += 1
        X, Y, weights = self.rows.X, self.rows.Y, self.rows.weights
        for part in slices(0, len(order), size):
            chosen = order[part]
            true = Y[chosen]
            labels, shift = batch_candidates(true, self._hard[chosen], self.uniform, self.rng)
            places = np.searchsorted(labels, true.indices)
            local = csr_matrix((true.data, places, true.indptr), shape=(len(chosen), len(labels)))
            candidates = Shortlisted(
                as_batch(X[chosen], device), torch.from_numpy(labels).to(device), torch.from_numpy(shift).to(device)
            )
            yield candidates, Targets.from_csr(local, None if weights is None else weights[chosen], device)


def batch_candidates(
    true: csr_matrix, hard: csr_matrix, uniform: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the candidates of a batch, in increasing order, and the shifts of their logits."""
    count = true.shape[1]
    certain = np.unique(np.concatenate([true.indices, hard.indices]))
    left = count - len(certain)
    if left <= uniform:
        return np.arange(count, dtype=np.int64), np.zeros(count, dtype=np.float32)
    drawn = _others(certain, rng.choice(left, uniform, replace=False, shuffle=False) if uniform else np.empty(0, int))
    labels = np.concatenate([certain, drawn])
    shift = np.zeros(len(labels), dtype=np.float32)
    shift[len(certain) :] = np.log(left / max(1, uniform))
    order = np.argsort(labels, kind="stable")
    return labels[order].astype(np.int64), shift[order]


def _others(certain: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the labels at these ranks among all labels that are not in `certain`, which is in increasing order."""
    # certain[i] − i other labels come before the i-th certain label
    return ranks + np.searchsorted(certain - np.arange(len(certain)), ranks, side="right")


class Chosen:
    """W·x + b for some of the labels, in the form that a loss takes a linear classifier. Gradients are sparse rows."""

    def __init__(self, W: torch.Tensor, b: torch.Tensor):
        self.W, self.b = W, b

    def __call__(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        return torch.addmm(self.b, x, self.W.T)


def rows_of(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return table[places] for different places; the table's gradient is sparse."""
    result: torch.Tensor = _RowsOf.apply(table, places)
    return result


class _RowsOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.shape = table.shape
        return table.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(places[None], gradients[0], ctx.shape, check_invariants=False), None


def pair_logits(
    vectors: np.ndarray, W: np.ndarray, b: np.ndarray, candidates: csr_matrix, threads: Threads
) -> csr_matrix:
    """Return W·x + b of the candidates of each row x, in CSR with the same pattern."""
    logits = np.empty(candidates.nnz, dtype=np.float32)
    indptr, labels = candidates.indptr.astype(np.int64), candidates.indices.astype(np.int32, copy=False)
    W = np.ascontiguousarray(W)
    parts = slices(0, len(vectors), 256)
    threads.map(lambda part: _dots(vectors, W, b, indptr, labels, part.start, part.stop, logits), parts)
    return csr_matrix((logits, labels, indptr), shape=candidates.shape)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _dots(  # type: ignore[no-untyped-def]
    vectors, W, b, indptr, labels, first, last, out
):
    width = vectors.shape[1]
    for row in range(first, last):
        for place in range(indptr[row], indptr[row + 1]):
            if place + AHEAD < indptr[last]:
                later = np.int64(labels[place + AHEAD])
                fetch(W, later * width, (later + 1) * width)
            label = labels[place]
            total = np.float32(0)
            for i in range(width):
                total += vectors[row, i] * W[label, i]
            out[place] = total + b[label]


def all_labels(rows: int, labels: int) -> csr_matrix:
    """Return rows × labels with every label as a candidate of every row."""
    indices = np.tile(np.arange(labels, dtype=np.int32), rows)
    return csr_matrix((np.ones(rows * labels, np.float32), indices, np.arange(rows + 1) * labels), (rows, labels))


def _listed_labels(shortlists: Any, shape: tuple[int, int], index: str) -> csr_matrix:
    """Return the labels that an index listed, each once, with values above 0; PluginError if the matrix is wrong.

    A label with a score of −inf is no candidate, as in `topk_csr`.
    """
    if not issparse(shortlists):
        raise PluginError(f"the index {index} gave a {type(shortlists).__name__}, expected shortlists as a CSR matrix")
    if shortlists.shape != shape:
        raise PluginError(f"the index {index} gave shortlists of size {shortlists.shape}, expected {shape}")
    try:
        store.check_matrix(shortlists, f"the matrix that the index {index} gave")
    except DataError as error:
        raise PluginError(str(error)) from None
    listed = csr_matrix(shortlists)
    if np.isnan(listed.data).any():
        raise PluginError(f"the index {index} gave a score that is not a number (NaN)")
    return as_csr(csr_matrix((listed.data != -np.inf, listed.indices, listed.indptr), shape=shape))


def _ones(matrix: csr_matrix) -> csr_matrix:
    ones = csr_matrix((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)
    ones.has_canonical_format = True  # sums of canonical matrices are canonical
    return ones
