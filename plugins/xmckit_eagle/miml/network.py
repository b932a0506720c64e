"""The networks of section 6 of Shen et al. (2020), for bags of rows of which only the bag's labels are known.

A row's vector x becomes V₁ = ReLU(W·ReLU(x) + c), one number per concept and label, and V₂ = max V₁ over the concepts.
The mask M = g·softmax(τ⟨x_i, e_l⟩) over the g rows i of the bag says how much label l is row i's affair, for a label
embedding e_l in the space of the features; the bag's logit is z_l = max_i M_il·V₂_il + b_l. With τ = 0, or for a bag of
one row, M is 1 and the network is Deep-MIML (Feng and Zhou 2017). V₂ is not negative, so that a row that the mask turns
away (M near 0) does not become the maximum by it.

Two things are not in the paper. The bias b lets a sigmoid say "no". And as M is 1 for a single row, all its ranking can
know of the embeddings is what V₂ has taken over from them, which is little where bags are large: with `direct`, a row's
value is V₂ + α·max(⟨x_i, e_l⟩, 0), where α starts at `direct` and is learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse

from xmckit import DataError, Matrix
from xmckit.data.model import as_csr
from xmckit.nn import Batch, FeatureTable, Targets, Threads, linear
from xmckit.nn.batches import as_batch
from xmckit_eagle.assign.choice import check_sound

# Entries of V₁ at a time where no gradient is needed.
CONCEPTS_AT_ONCE = 1 << 24
# A matrix with more than this share of its entries stored is faster as a dense one.
DENSE = 0.3
# Where the embeddings count by themselves, V₂ starts this much smaller, and they lead.
SMALL = 0.1


@dataclass(frozen=True)
class Bags:
    """Ragged bags of rows: bag j holds `rows[starts[j] : starts[j + 1]]`, at least one; rows may be in several."""

    rows: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, membership: csr_matrix) -> tuple[Bags, np.ndarray]:
        """The groups that have rows, of a matrix rows × groups, and which groups these are."""
        check_sound(membership, "the groups' membership")
        by_group = as_csr(membership.T)
        sizes = np.diff(by_group.indptr)
        kept = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[kept])]).astype(np.int64)
        return cls(by_group.indices.astype(np.int64), starts), kept

    @classmethod
    def single(cls, rows: int) -> Bags:
        """Every row a bag of its own."""
        return cls(np.arange(rows, dtype=np.int64), np.arange(rows + 1, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    def take(self, bags: np.ndarray) -> Bags:
        sizes = self.sizes[bags]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        places = np.arange(starts[-1]) + np.repeat(self.starts[bags] - starts[:-1], sizes)
        return Bags(self.rows[places], starts)

    def blocks(self, most: int) -> Iterator[slice]:
        """Consecutive bags with at most `most` rows together, or a single bag with more."""
        start = 0
        while start < len(self):
            stop = int(np.searchsorted(self.starts, self.starts[start] + most, "right")) - 1
            yield slice(start, max(stop, start + 1))
            start = max(stop, start + 1)


@dataclass(frozen=True)
class BagBatch:
    """The rows of some bags, one bag after the other: as stored, as an encoder takes them, and the bags' sizes."""

    X: Matrix
    features: Batch
    sizes: torch.Tensor

    @classmethod
    def of(cls, X: Matrix, bags: Bags, device: torch.device) -> BagBatch:
        rows = X[bags.rows]
        return cls(rows, as_batch(rows, device), torch.from_numpy(bags.sizes).to(device))


@dataclass(frozen=True)
class LabelledBags:
    """Bags as the training loop takes them: `Y` and `weights` have one row per bag."""

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
            yield BagBatch.of(self.X, self.bags.take(some), device), Targets.from_csr(self.Y[some], weights, device)


def attention_mask(affinity: torch.Tensor, sizes: torch.Tensor, tau: float) -> torch.Tensor:
    """M = g·softmax(τ·affinity) over the rows of each bag, label by label; its mean over a bag is 1."""
    bag = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes)
    scaled = tau * affinity
    largest = torch.segment_reduce(scaled.detach(), "max", lengths=sizes, axis=0)
    powers = (scaled - largest[bag]).exp()
    means = torch.segment_reduce(powers, "sum", lengths=sizes, axis=0) / sizes[:, None]
    return powers / means[bag]


def row_lengths(X: Matrix) -> np.ndarray:
    """Euclidean lengths of the rows, 1 for a row of zeros."""
    if isinstance(X, np.ndarray):
        squares = np.einsum("ij,ij->i", X, X)
    else:
        squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
    return np.sqrt(np.where(squares > 0, squares, 1)).astype(np.float32)


class FixedEmbeddings(torch.nn.Module):
    """Label embeddings as Algorithm 1 left them, stored as CSR so that sparse features need no dense labels × features.

    The affinity is ⟨x, e⟩ − ⟨x, μ⟩⟨e, μ⟩ over the length of x: the cosine, without what all rows have in common where
    μ, the direction of their mean, is not 0.
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
        """DataError unless the stored numbers are a CSR matrix of the right shape."""
        starts, columns = self.starts.cpu().numpy(), self.columns.cpu().numpy()
        if starts[0] != 0 or starts[-1] != len(columns) or (np.diff(starts) < 0).any():
            raise DataError("the label embeddings' rows do not fit their entries")
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            raise DataError(f"a label embedding has an entry outside the {self.shape[1]} features")

    def matrix(self) -> Matrix:
        """Labels × features."""
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
    """Label embeddings that start where Algorithm 1 ends and are then learned with the rest: a dense matrix."""

    def __init__(self, labels: int, inputs: int, entries: int):
        super().__init__()
        self.table = FeatureTable(inputs, labels, torch.Generator().manual_seed(0))
        # it would be the same for all rows of a bag, which a softmax over them ignores
        self.table.bias.requires_grad_(False)

    def start(self, embeddings: csr_matrix, background: np.ndarray) -> None:
        dense = embeddings.toarray()
        contrast = dense - np.outer(dense @ background, background)
        with torch.no_grad():
            self.table.table.copy_(torch.from_numpy(contrast.T))

    def check(self) -> None:
        """Nothing that shapes and finite numbers do not already say."""

    def matrix(self) -> Matrix:
        """Labels × features."""
        return self.table.table.detach().cpu().numpy().T

    def affinity(self, X: Matrix, batch: Batch) -> torch.Tensor:
        products: torch.Tensor = self.table(batch)
        return products / torch.from_numpy(row_lengths(X)).to(products.device)[:, None]


class ConceptLayer(torch.nn.Module):
    """From vectors, and affinities to the label embeddings where these are used, to the logits of bags.

    With `shares` the logits are z − log mean exp(z): above 0 where the softmax gives a label more than an even share.
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
        """Rows × labels: how near rows are to labels; None where that is not asked."""
        return None if self.embeddings is None else self.embeddings.affinity(batch.X, batch.features)

    def forward(
        self, x: torch.Tensor, affinity: torch.Tensor | None, sizes: torch.Tensor, threads: Threads
    ) -> torch.Tensor:
        """Logits of bags of these sizes, from the vectors of their rows one after the other."""
        values = self.instances(x, threads)
        if affinity is not None:
            if self.direct:
                values = values + self.alpha.clamp(min=0) * torch.relu(affinity)
            if self.tau:
                values = values * attention_mask(affinity, sizes, self.tau)
        logits = torch.segment_reduce(values, "max", lengths=sizes, axis=0) + self.b
        return logits - logits.logsumexp(1, keepdim=True) + math.log(self.labels) if self.shares else logits

    def instances(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        """V₂, rows × labels."""
        size = max(1, CONCEPTS_AT_ONCE // len(self.W))
        if torch.is_grad_enabled() or len(x) <= size:
            return self._strongest(x, threads)
        return torch.cat([self._strongest(part, threads) for part in x.split(size)])

    def _strongest(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        concepts = linear(torch.relu(x), self.W, self.c, threads).view(len(x), self.concepts, self.labels)
        return torch.relu(concepts.amax(1))  # the same as the maximum over ReLUs
