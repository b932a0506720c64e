"""Encoders: torch modules from features to rows × width, with no activation after the last layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from xmckit.nn.batches import Batch, SparseBatch
from xmckit.nn.products import sparse_product
from xmckit.params import Configured, Params

WIDTH = 256


class EncoderParams(Params):
    width: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = Field(
        "auto",
        description=f'Entries of the vector that a row becomes; "auto": {WIDTH}, or more if the head needs them.',
    )


class MLPParams(EncoderParams):
    hidden: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = Field(
        "auto", description=f'Entries of the layer before the ReLU; "auto": {WIDTH}, or the width if that is more.'
    )


class TorchEncoder(Configured, torch.nn.Module, ABC):
    """Base of encoders: a torch module with `Params`. A subclass creates its weights in `prepare`."""

    Params: ClassVar[type[Params]] = EncoderParams

    def __init__(self, **params: Any):
        torch.nn.Module.__init__(self)
        Configured.__init__(self, **params)

    @property
    def width(self) -> int:
        return WIDTH if self.params.width == "auto" else int(self.params.width)

    @abstractmethod
    def prepare(self, inputs: int, generator: torch.Generator) -> None:
        """Create the weights for `inputs` features, drawn from `generator`."""

    @abstractmethod
    def forward(self, batch: Batch) -> torch.Tensor:
        """Return rows × width."""


class FeatureTable(torch.nn.Module):
    """X·T + b with one row of T per feature. The gradient of a sparse batch has only the rows that the batch uses."""

    def __init__(self, inputs: int, width: int, generator: torch.Generator):
        super().__init__()
        self.table = torch.nn.Parameter(torch.empty(inputs, width).normal_(0.0, width**-0.5, generator=generator))
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, batch: Batch) -> torch.Tensor:
        if not isinstance(batch, SparseBatch):
            return batch @ self.table + self.bias
        return sparse_product(batch, self.table) + self.bias


class SparseLinear(TorchEncoder):
    """One linear layer over the features."""

    def prepare(self, inputs: int, generator: torch.Generator) -> None:
        self.features = FeatureTable(inputs, self.width, generator)

    def forward(self, batch: Batch) -> torch.Tensor:
        vectors: torch.Tensor = self.features(batch)
        return vectors


class SparseMLP(TorchEncoder):
    """A linear layer over the features, ReLU, and a second linear layer.

    It is never wider than its hidden layer: more outputs would be linear combinations that fill no larger space.
    """

    Params: ClassVar[type[Params]] = MLPParams

    @property
    def width(self) -> int:
        return super().width if self.params.hidden == "auto" else min(super().width, int(self.params.hidden))

    def prepare(self, inputs: int, generator: torch.Generator) -> None:
        hidden = max(WIDTH, self.width) if self.params.hidden == "auto" else int(self.params.hidden)
        self.features = FeatureTable(inputs, hidden, generator)
        self.second = initialised_linear(hidden, self.width, generator)

    def forward(self, batch: Batch) -> torch.Tensor:
        vectors: torch.Tensor = self.second(torch.relu(self.features(batch)))
        return vectors


def initialised_linear(inputs: int, outputs: int, generator: torch.Generator) -> torch.nn.Linear:
    """Return a linear layer that keeps the variance of its input, drawn from `generator`."""
    layer = torch.nn.Linear(inputs, outputs, device="meta")  # draws no numbers; torch's skip_init takes 0.5 s to import
    layer.weight = torch.nn.Parameter(torch.empty(outputs, inputs).normal_(0.0, inputs**-0.5, generator=generator))
    layer.bias = torch.nn.Parameter(torch.zeros(outputs))
    return layer
