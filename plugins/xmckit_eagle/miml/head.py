"""A head for bags of rows (multi-instance multi-label learning), after section 6 of Shen et al. (2020).

It learns from the labels of groups and ranks labels for groups or for single rows. The networks are in `network`; label
embeddings come from `assign.choice`, which gives labels to rows. The head is meant for up to some thousands of labels:
with more, let the label preprocessor `eagle` give labels to rows, and use any head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_matrix, diags, issparse, vstack

from xmckit import Context, DataError, Groups, Matrix, Params, Split, TopK, UsageError, store
from xmckit.data.model import as_csr
from xmckit.nn import (
    Network,
    Targets,
    Threads,
    ThresholdParams,
    TorchHead,
    as_inputs,
    binary_cross_entropy,
    softmax_cross_entropy,
    use_threads,
    without_stored_zeros,
)
from xmckit.protocols import LabelIndex
from xmckit.sparse import topk_dense
from xmckit_eagle.assign.choice import assign
from xmckit_eagle.miml.network import (
    BagBatch,
    Bags,
    ConceptLayer,
    FixedEmbeddings,
    LabelledBags,
    TrainedEmbeddings,
    row_lengths,
)

# Largest number of entries in the concepts of one training step, and in trained embeddings.
LARGEST_STEP = 1 << 29
LARGEST_EMBEDDINGS = 1 << 27
SCORES_AT_ONCE = 1 << 22


class MIMLParams(ThresholdParams):
    """A bag's logits are maxima over its rows, weighted by the attention of labels to rows."""

    tau: float = Field(
        0.3, ge=0, le=1000, description="Sharpness of the attention of labels to rows; 0: none, as in Deep-MIML."
    )
    direct: float = Field(
        0.0, ge=0, le=1000, description="Initial weight of a row's similarity to a label; 0: none, as in the paper."
    )
    concepts: int = Field(4, ge=1, le=1000, description="Concepts per label; the strongest one counts.")
    dim: int = Field(256, ge=1, le=65536, description="Width of the vectors that concepts are computed from.")
    loss: Literal["bce", "softmax"] = Field(
        "bce", description='Training loss; "softmax" if the repetitions of a label are its share of the bag.'
    )
    bias: bool = Field(True, description="Learn a bias per label; without it, as in the paper, logits are at least 0.")
    repeats: bool = Field(True, description="Count a label as often as the group has it; false: once.")
    embeddings: Literal["fixed", "trained"] = Field(
        "fixed", description="Keep the label embeddings of EAGLE, or train them with the network."
    )
    iterations: int = Field(20, ge=0, le=1000, description="Iterations of EAGLE for the label embeddings.")
    background: bool = Field(True, description="Ignore the part of rows along the mean row in the attention.")
    alone: bool = Field(False, description="Without groups, learn from bags of one row instead of raising an error.")
    batch: int = Field(64, ge=1, description="Bags per training step.")
    epochs: int = Field(40, ge=1, description="Largest number of passes over the bags.")


@dataclass(frozen=True)
class BagTrainingData:
    """The input of a fit: the bags, and the label embeddings with the direction of the mean row."""

    bags: LabelledBags
    facts: dict[str, int]
    embeddings: csr_matrix
    background: np.ndarray


class MIMLHead(TorchHead):
    """The paper's co-attention; Deep-MIML if `tau` is 0; `direct` adds to both.

    The head is not linear, so it cannot be verified.
    """

    Params: ClassVar[type[Params]] = MIMLParams
    conformance: ClassVar[Mapping[str, Any]] = {"params": {"alone": True}}  # the checks use rows without groups

    def __init__(self, **params: Any):
        super().__init__(**params)
        self._data: BagTrainingData | None = None

    def embeddings(self) -> Matrix | None:
        """Return the embeddings that rows are compared with, labels × features; None if the head uses none."""
        embeddings = self.network.classifier.embeddings
        return None if embeddings is None else embeddings.matrix()

    # Overrides of TorchHead

    @property
    def probabilistic(self) -> bool:
        return bool(self.params.loss != "softmax")

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        self._data = self._prepare(train, context)
        try:
            validation = _with_group_labels(context.validation)
            super().fit(train, indexes=indexes, context=context.using(validation=validation))
        finally:
            self._data = None

    def plan(self, train: Split, context: Context) -> dict[str, int]:
        data = self._training_data
        return {
            **super().plan(train, context),
            "width": self.params.dim,
            "concepts": self.params.concepts,
            "entries": data.embeddings.nnz,
            **data.facts,
        }

    def size_names(self) -> set[str]:
        return super().size_names() | {"concepts", "entries", "bags", "groups without rows", "rows in no bag"}

    def make_classifier(self, sizes: dict[str, int]) -> ConceptLayer:
        kind = FixedEmbeddings if self.params.embeddings == "fixed" else TrainedEmbeddings
        shape = sizes["labels"], sizes["inputs"], sizes["entries"]
        return ConceptLayer(
            sizes["labels"],
            sizes["width"],
            sizes["concepts"],
            tau=self.params.tau,
            direct=self.params.direct,
            bias=self.params.bias,
            shares=self.params.loss == "softmax",
            embeddings=kind(*shape) if self._uses_embeddings else None,
        )

    def start(self, network: Network, train: Split, generator: torch.Generator) -> None:
        data = self._training_data
        Y = data.bags.Y
        if self.params.loss == "softmax":
            weights = Y.data if data.bags.weights is None else data.bags.weights.data
            biases = np.log(np.bincount(Y.indices, weights=weights, minlength=Y.shape[1]) + 0.5)
            biases -= biases.mean()
        else:
            counts = np.bincount(Y.indices, minlength=Y.shape[1])
            biases = np.log((counts + 0.5) / (Y.shape[0] - counts + 0.5))
        network.classifier.begin(biases, generator)
        if network.classifier.embeddings is not None:
            network.classifier.embeddings.start(data.embeddings, data.background)

    def examples(self, train: Split) -> LabelledBags:
        return self._training_data.bags

    def loss(self, classifier: Any, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        raise NotImplementedError("the loss of bags needs more than vectors: see batch_loss")

    def batch_loss(
        self,
        network: Network,
        batch: BagBatch,
        targets: Targets,
        drop: Callable[[torch.Tensor], torch.Tensor],
        threads: Threads,
    ) -> torch.Tensor:
        layer: ConceptLayer = network.classifier
        x = network.projection(drop(network.encoder(batch.features)))
        logits = layer(x, layer.affinity(batch), batch.sizes, threads)
        return (softmax_cross_entropy if self.params.loss == "softmax" else binary_cross_entropy)(logits, targets)

    def validation_scores(self, validation: Split, threads: Threads) -> Iterator[tuple[np.ndarray, csr_matrix]]:
        if validation.groups is None:
            bags, truth = Bags.single(validation.rows), validation.Y
        else:
            bags, kept = Bags.from_membership(validation.groups.membership)
            truth = as_csr(validation.groups.labels)[kept]
        for block, scores in self._bag_scores(self.check_inputs(validation.matrix), bags, threads):
            yield scores, truth[block]

    def check_stored(self, classifier: ConceptLayer) -> None:
        if isinstance(classifier.embeddings, FixedEmbeddings):
            classifier.embeddings.check()

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK:
        """Return the best labels of each group, or of each row without `groups`; a group without rows gets none."""
        if k < 1:
            raise UsageError(f"predict needs k of at least 1, not {k}")
        X = self.check_inputs(X)
        if groups is None:
            bags, kept, count = Bags.single(X.shape[0]), np.arange(X.shape[0]), X.shape[0]
        else:
            rows, count = groups.membership.shape
            if rows != X.shape[0]:
                raise DataError(f"the groups are about {rows} rows, but there are {X.shape[0]} rows of features")
            bags, kept = Bags.from_membership(groups.membership)
        indices, values = np.full((count, k), -1, dtype=np.int32), np.full((count, k), -np.inf, dtype=np.float32)
        with use_threads(self.workers) as pool:
            for block, scores in self._bag_scores(X, bags, pool):
                best = topk_dense(scores, k)
                indices[kept[block]], values[kept[block]] = best.indices, best.scores
        return TopK(indices, values)

    def labels(self, X: Matrix) -> csr_matrix:
        X = self.check_inputs(X)
        with use_threads(self.workers) as pool:
            blocks = [
                as_csr(scores > np.float32(self.threshold))
                for _, scores in self._bag_scores(X, Bags.single(X.shape[0]), pool)
            ]
        return as_csr(vstack([csr_matrix((0, self.sizes["labels"]), dtype=np.float32), *blocks]))

    def facts(self, truth: csr_matrix) -> dict[str, Any]:
        known = ("bags", "groups without rows", "rows in no bag")
        return {**{name: self.sizes[name] for name in known}, **super().facts(truth)}

    # Steps of fit and predict

    @property
    def _uses_embeddings(self) -> bool:
        return bool(self.params.tau or self.params.direct)

    def _bag_scores(self, X: Matrix, bags: Bags, pool: Threads) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of bags with their logits."""
        network = self.network
        layer: ConceptLayer = network.classifier
        most = max(1, SCORES_AT_ONCE // max(self.sizes["labels"], self.sizes["width"]))
        for block in bags.blocks(most):
            batch = BagBatch.from_rows(X, bags.take(np.arange(block.start, block.stop)), self.device)
            with torch.no_grad():
                x = network.projection(network.encoder(batch.features))
                yield block, layer(x, layer.affinity(batch), batch.sizes, pool).cpu().numpy()

    @property
    def _training_data(self) -> BagTrainingData:
        assert self._data is not None, "only within fit"
        return self._data

    def _prepare(self, train: Split, context: Context) -> BagTrainingData:
        train.check("train")
        train, X = without_stored_zeros(train), as_inputs(train.matrix)
        labelled, facts = self._labelled_bags(train, X)
        self._check_size(labelled.bags, train.labels, X.shape[1])
        if not self._uses_embeddings:
            empty = csr_matrix((train.labels, X.shape[1]), dtype=np.float32)
            return BagTrainingData(labelled, facts, empty, np.empty(0))
        unit = unit_rows(X)
        counts = labelled.Y if labelled.weights is None or train.groups is None else labelled.weights
        embeddings = label_embeddings(
            unit, labelled.bags, counts, iterations=self.params.iterations, background=self.params.background,
            seed=context.seed_for("embeddings"), workers=context.workers,
        )  # fmt: skip
        mean = mean_direction(unit) if self.params.background else np.zeros(X.shape[1], dtype=np.float32)
        return BagTrainingData(labelled, facts, embeddings, mean)

    def _check_size(self, bags: Bags, labels: int, features: int) -> None:
        """Raise UsageError if a training step or the trained embeddings would be too large."""
        step = int(np.sort(bags.sizes)[-self.params.batch :].sum()) * self.params.concepts * labels
        if step > LARGEST_STEP:
            raise UsageError(
                f"a training step would hold {step:,} numbers (rows of {self.params.batch} bags × "
                f"{self.params.concepts} concepts × {labels} labels), above {LARGEST_STEP:,}: lower batch or concepts, "
                "or let the label preprocessor eagle give labels to rows and use another head"
            )
        trained = self._uses_embeddings and self.params.embeddings == "trained"
        if trained and labels * features > LARGEST_EMBEDDINGS:
            raise UsageError(
                f"embeddings of {labels} labels × {features} features are too many to train: leave embeddings at "
                '"fixed", which stores only numbers other than 0'
            )

    def _labelled_bags(self, train: Split, X: Matrix) -> tuple[LabelledBags, dict[str, int]]:
        """Return the bags with their labels, and facts about them."""
        if train.groups is None:
            if not self.params.alone:
                raise DataError(
                    "the head miml learns from groups of rows, but the training rows have none: add groups to the "
                    "data, make some with the label stage aggregate, or set alone = true to learn from single rows"
                )
            bags, empty = Bags.single(train.rows), 0
            Y, weights = train.Y, train.weights
        else:
            bags, kept = Bags.from_membership(train.groups.membership)
            store.check_matrix(train.groups.labels, "the groups' labels")
            counts = as_csr(train.groups.labels)
            empty = counts.shape[0] - len(kept)
            if not (np.isfinite(counts.data) & (counts.data > 0)).all():
                raise DataError("the counts of a group's labels must be finite and above 0")
            counts = counts[kept]
            Y = csr_matrix((np.ones_like(counts.data), counts.indices, counts.indptr), counts.shape)
            weights = counts if self.params.repeats and (counts.data != 1).any() else None
        if not len(bags) or not X.shape[1] or not Y.nnz:
            raise DataError(
                f"nothing to learn from: {len(bags)} bags with rows, {X.shape[1]} features and {Y.nnz} labels of bags"
            )
        outside = train.rows - len(np.unique(bags.rows))
        facts = {"bags": len(bags), "groups without rows": empty, "rows in no bag": outside}
        return LabelledBags(X, bags, Y, weights), facts


def unit_rows(X: Matrix) -> Matrix:
    """Return the rows scaled to unit length; rows of zeros stay."""
    scale = 1 / row_lengths(X)
    return csr_matrix(diags(scale) @ X, dtype=np.float32) if issparse(X) else X * scale[:, None]


def mean_direction(unit: Matrix) -> np.ndarray:
    """Return the direction of the mean of rows of unit length; 0 if they cancel out."""
    mean = np.asarray(unit.mean(axis=0), dtype=np.float64).ravel()
    length = np.linalg.norm(mean)
    return (mean / length if length > 1e-6 else np.zeros_like(mean)).astype(np.float32)


def label_embeddings(
    unit: Matrix, bags: Bags, counts: csr_matrix, *, iterations: int, background: bool, seed: int, workers: int
) -> csr_matrix:
    """Return label embeddings, labels × features, with rows of unit length or 0.

    Without iterations an embedding is the sum of all rows of the label's bags (EAGLE-0), otherwise the sum of the rows
    chosen after that many iterations, one per bag: the iterate of (26) in the paper. A bag counts as often as it has
    the label.
    """
    membership = csr_matrix(
        (np.ones(len(bags.rows), dtype=np.float32), bags.rows, bags.starts), (len(bags), unit.shape[0])
    )
    if iterations:
        choice = assign(
            unit, csr_matrix(membership.T), counts, iterations=iterations, background=background,
            counts=True, seed=seed, workers=workers,
        )  # fmt: skip
        weights = np.asarray(counts[choice.groups, choice.labels]).ravel() if len(choice) else np.empty(0)
        chosen = csr_matrix((weights, (choice.labels, choice.rows)), (counts.shape[1], unit.shape[0]), dtype=np.float32)
        sums = chosen @ unit
    else:
        sums = csr_matrix(counts.T) @ (membership @ unit)
    return as_csr(unit_rows(csr_matrix(sums, dtype=np.float32)))


def _with_group_labels(validation: Split | None) -> Split | None:
    """Return validation rows with the labels of their groups, None if no group has a label.

    Rows without groups stay as they are.
    """
    if validation is None or validation.groups is None:
        return validation
    Y = as_csr(validation.groups.membership @ validation.groups.labels)
    return replace(validation, Y=Y, weights=None) if Y.nnz else None
