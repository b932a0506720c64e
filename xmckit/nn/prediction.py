"""Vectors and logits of rows from a fitted network, in blocks of rows that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from xmckit.data.model import Matrix
from xmckit.nn import outputs
from xmckit.nn.batches import as_batch
from xmckit.nn.losses import linear
from xmckit.nn.network import Classifier, Network
from xmckit.nn.shortlist import Indexes, all_labels, pair_logits
from xmckit.nn.threads import Threads, slices

ROWS_AT_ONCE = 1 << 14
LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Predictor:
    """Compute logits of all labels or, with indexes, of the candidates that the indexes list for a row.

    The vectors of a row are what the decision's matrix W multiplies: outputs of the encoder if projection and
    classifier are folded into one matrix, and of the projection otherwise.
    """

    network: Network
    indexes: Indexes | None
    labels: int
    candidates: int
    device: torch.device
    classify: Callable[[Any, torch.Tensor, Threads], torch.Tensor]  # (classifier, vectors, threads) to logits

    @property
    def width(self) -> int:
        """Entries of a vector."""
        return int(self.network.encoder.width if self.network.folded else self.network.classifier.width)

    def vectors(self, X: Matrix, *, projected: bool = False) -> np.ndarray:
        """Return the vectors of rows, bit for bit those that `logits` multiplies.

        With `projected`, return the outputs of the projection, even if it is folded.
        """
        width = int(self.network.classifier.width) if projected else self.width
        # The bits of a matrix product can depend on the number of rows, so the blocks are those of `logits`.
        numbers = self.labels if self.indexes is None and not projected else width
        blocks = [block.cpu().numpy() for _, block in self._vector_blocks(X, numbers, projected)]
        return np.concatenate(blocks) if blocks else np.empty((0, width), dtype=np.float32)

    def logits(self, X: Matrix, threads: Threads) -> Iterator[tuple[slice, Any]]:
        """Yield blocks of rows with the logits that decide the output: dense, or CSR over the candidates."""
        return self.all_logits(X, threads) if self.indexes is None else self.candidate_logits(X, threads)

    def all_logits(self, X: Matrix, threads: Threads) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of rows with the logits of all labels."""
        for rows, vectors in self._vector_blocks(X, self.labels):
            yield rows, self._classify_vectors(vectors, threads)

    def candidate_logits(
        self, X: Matrix, threads: Threads, known: csr_matrix | None = None
    ) -> Iterator[tuple[slice, csr_matrix]]:
        """Yield blocks of rows with the logits of their candidates; `known` saves looking up the candidates."""
        assert self.indexes is not None
        layer = self.layer() if self.network.folded or isinstance(self.network.classifier, Classifier) else None
        for rows in self._blocks(X.shape[0], self.width):
            x = self.vectors(X[rows])
            if known is not None:
                candidates = known[rows]
            else:
                candidates = self.indexes.find(X[rows], lambda: _with_one(x), self.candidates)  # noqa: B023
            if layer is None and candidates.nnz < self.labels:
                yield rows, self._logits_without_layer(x, candidates, threads)
            else:
                layer = layer or self.layer()
                yield rows, pair_logits(x, *layer, candidates, threads)

    def replay_logits(self, vectors: np.ndarray, threads: Threads) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the logits of all labels for vectors, computed as `logits` does; with indexes, all are candidates."""
        for rows in self._blocks(len(vectors), self.labels):
            block = vectors[rows]
            if self.indexes is None:
                yield rows, self._classify_vectors(torch.from_numpy(block).to(self.device), threads)
            else:
                candidates = all_labels(len(block), self.labels)
                yield rows, pair_logits(block, *self.layer(), candidates, threads).toarray()

    def list_candidates(self, X: Matrix, k: int) -> csr_matrix:
        """Return rows × labels with a 1 for each label that an index has among its best `k`."""
        assert self.indexes is not None
        blocks = []
        for rows in self._blocks(X.shape[0], self.width):
            part = X[rows]
            blocks.append(self.indexes.find(part, lambda: _with_one(self.vectors(part)), k))  # noqa: B023
        return outputs.stack_rows(blocks, self.labels)

    def layer(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (W, b) of the matrix that multiplies the vectors."""
        W, b = self.network.layer()
        return W.detach().cpu().numpy(), b.detach().cpu().numpy()

    def label_vectors(self) -> np.ndarray:
        """Return one row (w, b) per label; its product with (x, 1) is the label's logit."""
        W, b = self.layer()
        return np.concatenate([W, b[:, None]], axis=1)

    def _vector_blocks(self, X: Matrix, numbers: int, projected: bool = False) -> Iterator[tuple[slice, torch.Tensor]]:
        for rows in self._blocks(X.shape[0], numbers):
            with torch.no_grad():
                vectors = self.network.encoder(as_batch(X[rows], self.device))
                if projected or not self.network.folded:
                    vectors = self.network.projection(vectors)
            yield rows, vectors

    def _blocks(self, rows: int, numbers: int) -> list[slice]:
        """Cut rows into blocks that fit in memory with `numbers` entries per row, and with the rows' vectors."""
        return slices(0, rows, min(ROWS_AT_ONCE, max(1, LOGITS_AT_ONCE // max(1, numbers, self.width))))

    def _classify_vectors(self, vectors: torch.Tensor, threads: Threads) -> np.ndarray:
        with torch.no_grad():
            if self.network.folded:
                scores = linear(vectors, *self.network.layer(), threads)
            else:
                scores = self.classify(self.network.classifier, vectors, threads)
        return scores.cpu().numpy()

    def _logits_without_layer(self, x: np.ndarray, candidates: csr_matrix, threads: Threads) -> csr_matrix:
        """Compute `pair_logits` from the candidates' rows of W only, for a classifier that must compute W."""
        labels = np.unique(candidates.indices)
        with torch.no_grad():
            W, b = self.network.classifier.rows(torch.from_numpy(labels.astype(np.int64)).to(self.device))
        local = csr_matrix(
            (candidates.data, np.searchsorted(labels, candidates.indices), candidates.indptr),
            (candidates.shape[0], len(labels)),
        )
        logits = pair_logits(x, W.cpu().numpy(), b.cpu().numpy(), local, threads)
        return csr_matrix((logits.data, candidates.indices, candidates.indptr), shape=candidates.shape)


def _with_one(vectors: np.ndarray) -> np.ndarray:
    """Return (x, 1) for each row x."""
    return np.concatenate([vectors, np.ones((len(vectors), 1), dtype=np.float32)], axis=1)
