"""The training loop: seeded mini-batches and early stopping, which keeps the weights of the best epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Matrix, Split, as_csr
from xmckit.errors import DataError, XmckitError
from xmckit.nn.batches import Batch, Targets, as_batch, as_inputs
from xmckit.nn.head_params import TorchHeadParams
from xmckit.nn.optimiser import Adam
from xmckit.nn.threads import Threads, slices

# Adam moves every entry of a matrix by about the learning rate, so a matrix with entries that act together on all rows,
# such as the projection's, moves its output far more per step than the table of features or one label's row.
SLOWNESS = 0.03

Drawn = TypeVar("Drawn")
DrawnOut = TypeVar("DrawnOut", covariant=True)


class Examples(Protocol[DrawnOut]):
    """What the loop counts, shuffles and draws batches from: rows, or anything else with labels."""

    def __len__(self) -> int: ...

    def batches(self, order: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[DrawnOut, Targets]]:
        """Yield the examples in this order, `size` at a time."""


@dataclass(frozen=True)
class RowExamples:
    """Training rows as examples: features in the form of `as_inputs`, labels, and weights of pairs."""

    X: Matrix
    Y: csr_matrix
    weights: csr_matrix | None = None

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def batches(self, order: np.ndarray, size: int, device: torch.device) -> Iterator[tuple[Batch, Targets]]:
        for part in slices(0, len(order), size):
            rows = order[part]
            weights = None if self.weights is None else self.weights[rows]
            yield as_batch(self.X[rows], device), Targets.from_csr(self.Y[rows], weights, device)


def without_stored_zeros(train: Split) -> Split:
    """Return the split with labels in canonical form. A removed pair also loses its weight, which may itself be 0."""
    if train.weights is None:
        return replace(train, Y=as_csr(train.Y))
    train.check("train")
    true = train.Y.data != 0
    if true.all():
        return train
    starts = np.concatenate([[0], np.cumsum(true)])[train.Y.indptr]
    Y, weights = (
        csr_matrix((matrix.data[true], matrix.indices[true], starts), matrix.shape)
        for matrix in (train.Y, train.weights)
    )
    return replace(train, Y=Y, weights=weights)


def training_rows(train: Split) -> RowExamples:
    """Return the rows of a split as examples; DataError if they have nothing to learn from."""
    X = as_inputs(train.matrix)
    train.check("train")
    if not train.rows or not X.shape[1] or not train.Y.nnz:
        raise DataError(
            f"nothing to learn from: {train.rows} training rows with {X.shape[1]} features and "
            f"{train.Y.nnz} labels among them"
        )
    return RowExamples(X, train.Y, train.weights)


class Epoch(NamedTuple):
    """One pass over the examples: `number` counts from 1, `seconds` from the start, `score` is for validation."""

    number: int
    loss: float
    score: float | None
    seconds: float


def best_epoch(history: Sequence[Epoch]) -> int:
    """Return the number of the epoch with the best validation score; without scores, of the last epoch."""
    scores = [(epoch.score, -epoch.number) for epoch in history if epoch.score is not None]
    return -max(scores)[1] if scores else len(history)


def train(
    network: torch.nn.Module,
    examples: Examples[Drawn],
    loss: Callable[[Drawn, Targets], torch.Tensor],
    *,
    params: TorchHeadParams,
    slower: Collection[torch.nn.Parameter] = (),
    validate: Callable[[], float] | None,
    context: Context,
    threads: Threads,
    device: torch.device,
) -> tuple[Epoch, ...]:
    """Minimise `loss` over `examples` and return the epochs; `network` gets the weights of the best epoch.

    `slower` parameters learn at the learning rate times `SLOWNESS`. Without `validate`, all epochs run and the last
    weights stay.
    """
    optimiser = Adam(
        network.parameters(), weight_decay=params.weight_decay, threads=threads, slower=slower, slowness=SLOWNESS
    )
    rng = context.rng("training order")
    best, history, began = _Best(), list[Epoch](), time.perf_counter()
    count = len(examples)
    steps = -(-count // params.batch)
    with context.progress("training", total=params.epochs * steps) as bar:
        for epoch in range(1, params.epochs + 1):
            losses = []
            for batch, targets in examples.batches(rng.permutation(count), params.batch, device):
                optimiser.zero_grad()
                value = loss(batch, targets)
                losses.append(value.item())
                if not math.isfinite(losses[-1]):
                    raise _divergence_error(epoch, f"the loss became {losses[-1]}", params, best, context)
                value.backward()
                optimiser.step(params.learning_rate)
                bar.advance(1, epoch=epoch, loss=f"{losses[-1]:.4g}", **best.latest_score())
            if not all(math.isfinite(parameter.detach().sum()) for parameter in network.parameters()):
                what = f"a weight is no longer finite, at a loss of {np.mean(losses):.5g}"
                raise _divergence_error(epoch, what, params, best, context)
            score = None if validate is None else validate()
            best.consider(epoch, score, network)
            history.append(Epoch(epoch, float(np.mean(losses)), score, time.perf_counter() - began))
            if score is not None:
                context.log(f"epoch {epoch}: loss {np.mean(losses):.5g}, validation nDCG@5 {score:.4f}")
            if epoch - best.epoch >= params.patience:
                break
        if best.epoch != epoch:
            network.load_state_dict(best.weights)
    return tuple(history)


class _Best:
    """The best epoch so far, or the latest without scores, and a copy of its weights."""

    def __init__(self) -> None:
        self.epoch = 0
        self.score: float | None = None
        self.latest = math.nan
        self.weights: dict[str, torch.Tensor] = {}

    def consider(self, epoch: int, score: float | None, network: torch.nn.Module) -> None:
        if score is not None:
            self.latest = score
        if score is None or self.score is None or score > self.score:
            self.epoch, self.score = epoch, score
            state = network.state_dict()
            # Reuse the memory: allocating costs more than the copy.
            self.weights = self.weights or {name: torch.empty_like(tensor) for name, tensor in state.items()}
            for name, tensor in state.items():
                self.weights[name].copy_(tensor)

    def latest_score(self) -> dict[str, str]:
        """Return the latest score for the progress bar; nothing before the first validation."""
        return {} if self.score is None else {"nDCG@5": f"{self.latest:.4f}"}


def _divergence_error(epoch: int, what: str, params: TorchHeadParams, best: _Best, context: Context) -> XmckitError:
    return XmckitError(
        f"training diverged in epoch {epoch}: {what}. Try a learning_rate below {params.learning_rate:g}, and check "
        f"that no feature is far larger than the others. {_save_last_good(best, context)}"
    )


def _save_last_good(best: _Best, context: Context) -> str:
    """Store the last good weights, and return a sentence that says where they are."""
    if not best.epoch:
        return "No epoch was completed before, so there are no good weights to keep."
    if context.folder is None:
        return f"The weights of epoch {best.epoch} were good, but this context has no folder to keep them in."
    path = context.folder / "last-good.safetensors"
    store.write_tensors(path, best.weights)
    return f"The weights of epoch {best.epoch} are in {path}."
