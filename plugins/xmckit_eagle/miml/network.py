"""The networks of section 6 of Shen et al. (2020), for bags of rows with labels for the bag only.

A row's vector x becomes V₁ = ReLU(W·ReLU(x) + c), one number per concept and label, and V₂ = max V₁ over the concepts.
The mask M = g·softmax(τ⟨x_i, e_l⟩) over the g rows i of the bag says how much label l belongs to row i, for a label
embedding e_l in the space of the features. The bag's logit is z_l = max_i M_il·V₂_il + b_l. With τ = 0, or for a bag of
one row, M is 1 and the network is Deep-MIML (Feng and Zhou 2017). V₂ is not negative, so that a small M does not make a
row the maximum.

Two parts are not in the paper. The bias b lets the sigmoid be below ½. And as M is 1 for a single row, its ranking
knows of the embeddings only what V₂ has learned from them, which is little if bags are large: with `direct`, a row's
value is V₂ + α·max(⟨x_i, e_l⟩, 0), where α starts at `direct` and is learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse

from xmckit import DataError, Matrix, store
from xmckit.data.model import as_csr
from xmckit.nn import Batch, FeatureTable, Targets, Threads, as_batch, linear

# Entries of V₁ that are computed at a time without gradients.
CONCEPTS_AT_ONCE = 1 << 24
# A matrix with more than this share of its entries stored is faster as a dense one.
DENSE = 0.3
# With `direct`, V₂ starts this much smaller, so that the embeddings lead at first.
SMALL = 0.1


@dataclass(frozen=True)
class Bags:
    """Ragged bags of rows: bag j holds `rows[starts[j] : starts[j + 1]]`, at least one; rows may be in several."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def from_membership(cls, membership: csr_matrix) -> tuple[Bags, np.ndarray]:
        """Return the groups that have rows, from a matrix rows × groups, and the ids of these groups."""
        store.check_matrix(membership, "the groups' membership")
        by_group = as_csr(membership.T)
        sizes = np.diff(by_group.indptr)
        kept = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64)
        return cls(by_group.indices.astype(np.int64), starts), kept

    @classmethod
    def single(cls, rows: int) -> Bags:
        """Return bags of one row each."""
        return cls(np.arange(rows, dtype=np.int64), np.arange(rows + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    def take(self, bags: np.ndarray) -> Bags:
        sizes = self.sizes[bags]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        positions = np.arange(starts[-1]) + np.repeat(self.starts[bags] - starts[:-1], sizes)
        return Bags(self.rows[positions], starts)

    def blocks(self, most: int) -> Iterator[slice]:
        """Yield consecutive bags with at most `most` rows together, or a single bag with more."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.starts, self.starts[start] + most, "right")) - 1
            yield slice(start, max(stop, start + 1))
            start = max(stop, start + 1)


@dataclass(frozen=True)
class BagBatch:
    """The rows of some bags, bag after bag: `X` as stored, `features` for the encoder, and the bags' `sizes`."""

    X: Matrix
    features: Batch
    sizes: torch.Tensor

    @classmethod
    def from_rows(cls, X: Matrix, bags: Bags, device: torch.device) -> BagBatch:
        rows = X[bags.rows]
        return cls(rows, as_batch(rows, device), torch.from_numpy(bags.sizes).to(device))


@dataclass(frozen=True)
class LabelledBags:
    """The examples of the training loop: `Y` and `weights` have one row per bag."""

    X: Matrix
    bags: Bags
    Y: csr_matrix
    weights: csr_matrix | None = None

    def __len__(self) -> int:
        return len(self.bags)

    def batches(self, order: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[BagBatch, Targets]]:
        for start in range(0, len(order), size):
            some = order[start : start + size]
            weights = None if self.weights is None else self.weights[some]
            yield (
                BagBatch.from_rows(self.X, self.bags.take(some), device),
                Targets.from_csr(self.Y[some], weights, device),
            )


def attention_mask(affinity: torch.Tensor, sizes: torch.Tensor, tau: float) -> torch.Tensor:
    """Return M = g·softmax(τ·affinity) over the rows of each bag, label by label; its mean over a bag is 1."""
    bag = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    scaled = tau * affinity
    largest = torch.segment_reduce(scaled.detach(), "max", lengths=sizes, axis=0)
    powers = (scaled - largest[bag]).exp()
    means = torch.segment_reduce(powers, "sum", lengths=sizes, axis=0) / sizes[:, None]
    return powers / means[bag]


def row_lengths(X: Matrix) -> np.ndarray:
    """Return the Euclidean lengths of the rows, 1 for a row of zeros."""
    if isinstance(X, np.ndarray):
        squares = np.einsum("ij,ij->i", X, X)
    else:
        squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
    return np.sqrt(np.where(squares > 0, squares, 1)).astype(np.float32)


class FixedEmbeddings(torch.nn.Module):
    """The label embeddings of Algorithm 1, stored as CSR so that sparse features need no dense labels × features.

    The affinity is ⟨x, e⟩ − ⟨x, μ⟩⟨e, μ⟩ over the length of x: the cosine without the part along μ, the direction of
    the mean row. μ = 0 leaves the plain cosine.
    """

    starts: torch.Tensor
    columns: torch.Tensor
    values: torch.Tensor
    background: torch.Tensor

    def __init__(self, labels: int, inputs: int, entries: int):
        super().__init__()
        self.shape = (labels, inputs)
        self.register_buffer("starts", torch.zeros(labels + 1, dtype=torch.int64))
        self.register_buffer("columns", torch.zeros(entries, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(entries))
        self.register_buffer("background", torch.zeros(inputs))
        self._matrix: Matrix | None = None

    def start(self, embeddings: csr_matrix, background: np.ndarray) -> None:
        self.starts.copy_(torch.from_numpy(embeddings.indptr.astype(np.int64)))
        self.columns.copy_(torch.from_numpy(embeddings.indices.astype(np.int64)))
        self.values.copy_(torch.from_numpy(embeddings.data))
        self.background.copy_(torch.from_numpy(background))
        self._matrix = None

    def check(self) -> None:
        """Raise DataError unless the stored numbers are a CSR matrix of the right shape."""
        starts, columns = self.starts.cpu().numpy(), self.columns.cpu().numpy()
        if starts[0] != 0 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
            raise DataError("the label embeddings' rows do not fit their entries")
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            raise DataError(f"a label embedding has an entry outside the {self.shape[1]} features")

    def matrix(self) -> Matrix:
        """Return the embeddings, labels × features."""
        if self._matrix is None:
            parts = (part.cpu().numpy() for part in (self.values, self.columns, self.starts))
            sparse = csr_matrix(tuple(parts), self.shape)
            self._matrix = sparse.toarray() if sparse.nnz > DENSE * math.prod(self.shape) else sparse
        return self._matrix

    def affinity(self, X: Matrix, batch: Batch) -> torch.Tensor:
        matrix, mean = self.matrix(), self.background.cpu().numpy()
        products = X @ matrix.T
        products = products.toarray() if issparse(products) else np.asarray(products)
        if mean.any():
            products = products - np.outer(X @ mean, matrix @ mean)
        return torch.from_numpy(products / row_lengths(X)[:, None]).to(self.values.device)


class TrainedEmbeddings(torch.nn.Module):
    """Label embeddings that start at those of Algorithm 1 and are learned with the network, as a dense matrix."""

    def __init__(self, labels: int, inputs: int, entries: int):
        super().__init__()
        self.table = FeatureTable(inputs, labels, torch.Generator().manual_seed(0))
        # A bias is the same for all rows of a bag, and the softmax over them ignores it.
        self.table.bias.requires_grad_(False)

    def start(self, embeddings: csr_matrix, background: np.ndarray) -> None:
        dense = embeddings.toarray()
        contrast = dense - np.outer(dense @ background, background)
        with torch.no_grad():
            self.table.table.copy_(torch.from_numpy(contrast.T))

    def matrix(self) -> Matrix:
        """Return the embeddings, labels × features."""
        return self.table.table.detach().cpu().numpy().T

    def affinity(self, X: Matrix, batch: Batch) -> torch.Tensor:
        products: torch.Tensor = self.table(batch)
        return products / torch.from_numpy(row_lengths(X)).to(products.device)[:, None]


class ConceptLayer(torch.nn.Module):
    """The output layer: it maps the vectors of rows, and their affinities to label embeddings, to logits of bags.

    With `shares` the logits are z − log mean exp(z): above 0 if the softmax gives a label more than an equal share.
    """

    def __init__(
        self,
        labels: int,
        width: int,
        concepts: int,
        *,
        tau: float = 0.0,
        direct: float = 0.0,
        bias: bool = True,
        shares: bool = False,
        embeddings: FixedEmbeddings | TrainedEmbeddings | None = None,
    ):
        super().__init__()
        self.labels, self.concepts, self.tau, self.direct, self.shares = labels, concepts, tau, direct, shares
        self.W = torch.nn.Parameter(torch.zeros(concepts * labels, width))
        self.c = torch.nn.Parameter(torch.zeros(concepts * labels))
        self.b = torch.nn.Parameter(torch.zeros(labels), requires_grad=bias)
        self.alpha = torch.nn.Parameter(torch.tensor([float(direct)]), requires_grad=direct > 0)
        self.embeddings = embeddings

    @property
    def width(self) -> int:
        return int(self.W.shape[1])

    def begin(self, biases: np.ndarray, generator: torch.Generator) -> None:
        with torch.no_grad():
            self.W.normal_(0.0, (2 / self.width) ** 0.5, generator=generator)
            if self.direct:
                self.W.mul_(SMALL)
            if self.b.requires_grad:
                self.b.copy_(torch.from_numpy(biases))

    def affinity(self, batch: BagBatch) -> torch.Tensor | None:
        """Return the affinity of rows to labels, rows × labels; None without label embeddings."""
        return None if self.embeddings is None else self.embeddings.affinity(batch.X, batch.features)

    def forward(
        self, x: torch.Tensor, affinity: torch.Tensor | None, sizes: torch.Tensor, threads: Threads
    ) -> torch.Tensor:
        """Return the logits of bags of these sizes; `x` holds the vectors of their rows, bag after bag."""
        values = self.instances(x, threads)
        if affinity is not None:
            if self.direct:
                values = values + self.alpha.clamp(min=0) * torch.relu(affinity)
            if self.tau:
                values = values * attention_mask(affinity, sizes, self.tau)
        logits = torch.segment_reduce(values, "max", lengths=sizes, axis=0) + self.b
        return logits - logits.logsumexp(1, keepdim=True) + math.log(self.labels) if self.shares else logits

    def instances(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """Return V₂, rows × labels."""
        size = max(1, CONCEPTS_AT_ONCE // len(self.W))
        if torch.is_grad_enabled() or len(x) <= size:
            return self._strongest(x, threads)
        return torch.cat([self._strongest(part, threads) for part in x.split(size)])

    def _strongest(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        concepts = linear(torch.relu(x), self.W, self.c, threads).view(len(x), self.concepts, self.labels)
        return torch.relu(concepts.amax(1))  # equals the maximum over ReLUs
