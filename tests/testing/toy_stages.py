"""Small correct label preprocessors, featurizers and encoders, and some that each break one rule of the contract."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_matrix, issparse

import xmckit
from xmckit import nn, store

# Label preprocessors


class DropRare(xmckit.Configured):
    """Takes away labels that too few rows have."""

    class Params(xmckit.Params):
        least: int = Field(3, ge=1, description="Rows that a label must have to stay.")

    def apply(self, train, *, context):
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        Y = train.Y.multiply(counts >= self.params.least).tocsr().astype(np.float32)
        self.lost = int(train.Y.nnz - Y.nnz)
        return replace(train, Y=Y, weights=None)

    def facts(self):
        return {"lost": self.lost}


class DropsRows(DropRare):
    def apply(self, train, *, context):
        return super().apply(train, context=context).take(np.arange(train.rows - 1))


class ScalesFeatures(DropRare):
    def apply(self, train, *, context):
        changed = super().apply(train, context=context)
        return replace(changed, X=changed.matrix * np.float32(2))


class LooksAtTheForm(DropRare):
    def apply(self, train, *, context):
        changed = super().apply(train, context=context)
        return changed if issparse(train.X) else replace(changed, Y=csr_matrix(train.Y.shape, dtype=np.float32))


class ChangesDenseFeatures(DropRare):
    def apply(self, train, *, context):
        if not issparse(train.X):
            train.X[:] = 0
        return super().apply(train, context=context)


class KeepsATable(DropRare):
    """Correct: what a stage keeps is for a command, and nobody loads the stage again."""

    def save(self, folder):
        store.write_json(folder / "lost.json", self.lost)


class WantsFeaturesEverywhere(DropRare):
    def apply(self, train, *, context):
        if (np.diff(train.matrix.indptr) == 0).any():
            raise ZeroDivisionError("a row of length 0")
        return super().apply(train, context=context)


class StageNeedsTwoLabels(DropRare):
    def apply(self, train, *, context):
        train.Y[:, 1]
        return super().apply(train, context=context)


class StageNeedsTwoRows(DropRare):
    def apply(self, train, *, context):
        train.Y[1]
        return super().apply(train, context=context)


class TellsArrays(DropRare):
    def facts(self):
        return {"lost": np.arange(self.lost)}


class ShowsText(DropRare):
    def exhibits(self):
        return "a picture"


class KeepsAPickle(DropRare):
    def save(self, folder):
        super().save(folder)
        np.save(folder / "lost.npy", np.array([{"lost": self.lost}], dtype=object), allow_pickle=True)


# Featurizers


class Scaled(xmckit.Configured):
    """The matrix, each column divided by its largest value in training."""

    def fit(self, train, *, context):
        self.factors = 1 / np.maximum(abs(train.matrix).max(axis=0).toarray().ravel(), np.float32(1e-6))

    def transform(self, split, *, context):
        X = csr_matrix(split.matrix, dtype=np.float32)
        return X.multiply(self.factors).tocsr().astype(np.float32)

    def save(self, folder):
        super().save(folder)
        store.write_arrays(folder / "factors.npz", {"factors": self.factors})

    @classmethod
    def load(cls, folder, *, context):
        featurizer = super().load(folder, context=context)
        featurizer.factors = store.read_arrays(folder / "factors.npz", "factors")["factors"]
        return featurizer


class TransformsInFloat64(Scaled):
    def transform(self, split, *, context):
        return super().transform(split, context=context).astype(np.float64)


class LooksAtLabels(Scaled):
    def transform(self, split, *, context):
        return super().transform(split, context=context) * np.float32(1 + split.Y.nnz)


class TransformsDenseRowsOtherwise(Scaled):
    def transform(self, split, *, context):
        return super().transform(split, context=context) * np.float32(1 if issparse(split.X) else 2)


class ScalesEachBatch(Scaled):
    def transform(self, split, *, context):
        X = super().transform(split, context=context)
        return X * np.float32(1 / max(1e-6, X.max() if X.shape[0] else 1))


class FeaturizerNeedsARow(Scaled):
    def transform(self, split, *, context):
        split.matrix[0]
        return super().transform(split, context=context)


class FeaturizerDividesByTheNorm(Scaled):
    def transform(self, split, *, context):
        X = super().transform(split, context=context).toarray()
        with np.errstate(invalid="ignore"):
            return X / np.linalg.norm(X, axis=1, keepdims=True)


class FeaturizerNeedsTwoRows(Scaled):
    def fit(self, train, *, context):
        train.matrix[1]
        super().fit(train, context=context)


# Encoders


class Linear(nn.TorchEncoder):
    """One layer."""

    def prepare(self, inputs, generator):
        self.features = nn.FeatureTable(inputs, self.width, generator)

    def forward(self, batch):
        return self.features(batch)


class TooNarrow(Linear):
    def forward(self, batch):
        return super().forward(batch)[:, 1:]


class StartsTheSame(Linear):
    def prepare(self, inputs, generator):
        super().prepare(inputs, torch.Generator().manual_seed(0))


class EncodesDenseRowsOtherwise(Linear):
    def forward(self, batch):
        return super().forward(batch) * (2 if isinstance(batch, torch.Tensor) else 1)


class CentresBatches(Linear):
    def forward(self, batch):
        vectors = super().forward(batch)
        return vectors - vectors.mean(dim=0) if len(vectors) else vectors


class EncoderNeedsARow(Linear):
    def forward(self, batch):
        return super().forward(batch) / super().forward(batch).abs().max().clamp(min=1e9) * 1e9


class NeedsTwoFeatures(Linear):
    def prepare(self, inputs, generator):
        super().prepare(inputs, generator)
        self.features.table[1]


class EndsInReLU(Linear):
    def forward(self, batch):
        return torch.relu(super().forward(batch))


class EndsInTanh(Linear):
    def forward(self, batch):
        return torch.tanh(super().forward(batch))


class LosesItsSlope(Linear):
    def forward(self, batch):
        vectors = super().forward(batch)
        return 2 * vectors - vectors.detach()


class KeepsWeightsToItself(Linear):
    def prepare(self, inputs, generator):
        super().prepare(inputs, generator)
        self.shift = torch.randn(self.width, generator=generator)

    def forward(self, batch):
        return super().forward(batch) + self.shift.to(self.features.bias.dtype)
