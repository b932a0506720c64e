"""Encoder, projection and classifier as one torch module, and the device and dropout that it is trained with."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from xmckit.data.model import Split
from xmckit.errors import UsageError
from xmckit.nn.losses import linear
from xmckit.nn.shortlist import rows_of
from xmckit.nn.threads import Threads
from xmckit.protocols import offers


class SupportsMatrix(Protocol):
    """A linear classifier. A classifier without `matrix` is not linear: nothing is folded, and no label is added."""

    def matrix(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (W, b): a dense matrix with rows in label-id order, and a bias."""


class SupportsRows(Protocol):
    """A linear classifier that can learn from the labels of a shortlist alone."""

    def rows(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W and b of some labels, with sparse gradients for what is learned."""


class Classifier(torch.nn.Module):
    """z = W·x + b with one row of W per label."""

    def __init__(self, labels: int, width: int):
        super().__init__()
        self.W = torch.nn.Parameter(torch.zeros(labels, width))
        self.b = torch.nn.Parameter(torch.zeros(labels))

    @property
    def width(self) -> int:
        return int(self.W.shape[1])

    def start(self, train: Split, generator: torch.Generator) -> None:
        """Set small random rows, and biases at the log odds of each label's frequency."""
        counts = np.bincount(train.Y.indices, minlength=train.labels)
        odds = np.log((counts + 0.5) / (train.rows - counts + 0.5))
        with torch.no_grad():
            self.W.normal_(0.0, self.width**-0.5, generator=generator)
            self.b.copy_(torch.from_numpy(odds))

    def forward(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        return linear(x, self.W, self.b, threads)

    def rows(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rows_of(self.W, labels), rows_of(self.b, labels)

    def matrix(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.W, self.b


class Widened(torch.nn.Module):
    """A linear classifier of `known` labels, and rows for labels that were added later; it is not trained again."""

    def __init__(self, trained: Any, known: int, more: Classifier):
        super().__init__()
        self.trained, self.known, self.more = trained, known, more

    @property
    def width(self) -> int:
        return self.more.width

    def forward(self, x: torch.Tensor, threads: Threads) -> torch.Tensor:
        return torch.cat([self.trained(x, threads), self.more(x, threads)], dim=1)

    def rows(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W and b of some labels."""
        later = labels >= self.known
        W, b = self.more.W.new_empty(len(labels), self.width), self.more.b.new_empty(len(labels))
        W[~later], b[~later] = self.trained.rows(labels[~later])
        W[later], b[later] = self.more.rows(labels[later] - self.known)
        return W, b

    def matrix(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (W, b) with the later labels after the others."""
        (W, b), (more_W, more_b) = self.trained.matrix(), self.more.matrix()
        return torch.cat([W, more_W]), torch.cat([b, more_b])


def with_new_labels(classifier: Any, known: int, W: torch.Tensor, b: torch.Tensor) -> Any:
    """Return a linear classifier of `known` labels with these rows appended."""
    if isinstance(classifier, Widened):
        more = with_new_labels(classifier.more, known - classifier.known, W, b)
        return Widened(classifier.trained, classifier.known, more)
    plain = type(classifier) is Classifier
    if plain:
        W, b = torch.cat([classifier.W.detach(), W]), torch.cat([classifier.b.detach(), b])
    result = Classifier(*W.shape)
    result.W, result.b = torch.nn.Parameter(W), torch.nn.Parameter(b)
    return result if plain else Widened(classifier, known, result)


class Network(torch.nn.Module):
    """The three parts in order, and the folded layer (W·P, W·b_P + b) if the encoder is narrower than W."""

    folded_W: torch.Tensor | None
    folded_b: torch.Tensor | None

    def __init__(self, encoder: Any, projection: torch.nn.Linear, classifier: Any):
        super().__init__()
        self.encoder, self.projection, self.classifier = encoder, projection, classifier
        self.register_buffer("folded_W", None)
        self.register_buffer("folded_b", None)

    @property
    def linear(self) -> bool:
        return offers(self.classifier, SupportsMatrix)

    @property
    def narrow(self) -> bool:
        """Whether the encoder cannot fill the classifier's space; W·P then has at most the rank of its width."""
        return self.linear and bool(self.encoder.width < self.classifier.width)

    @property
    def folded(self) -> bool:
        """Whether prediction uses the folded layer."""
        return self.folded_W is not None

    def layer(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (W, b) that prediction uses."""
        if self.folded_W is not None and self.folded_b is not None:
            return self.folded_W, self.folded_b
        W, b = self.classifier.matrix()
        return W, b

    def fold(self) -> None:
        """Multiply projection and classifier into the layer that prediction uses from now on."""
        if self.narrow:
            W, b = (part.detach().double() for part in self.classifier.matrix())
            P, shift = self.projection.weight.detach().double(), self.projection.bias.detach().double()
            self.folded_W, self.folded_b = (W @ P).float(), (W @ shift + b).float()


def choose_device(name: str) -> torch.device:
    """Return the device for the parameter `device`: "cpu", "cuda" or "auto"."""
    on_gpu = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not on_gpu:
        raise UsageError('device is "cuda" but torch finds none here: use "cpu" or "auto"')
    return torch.device("cuda" if on_gpu else "cpu")


def drop_out(vectors: torch.Tensor, share: float, noise: torch.Generator) -> torch.Tensor:
    """Set a share of the entries to 0 and scale the others, so that the mean stays."""
    if not share:
        return vectors
    kept = torch.rand(vectors.shape, generator=noise, device=vectors.device) >= share
    return vectors * kept / (1 - share)
