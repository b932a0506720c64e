"""The checks of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.context import Context
from xmckit.data.model import Matrix
from xmckit.nn.batches import Batch, as_batch
from xmckit.testing import common
from xmckit.testing.assertions import assert_close, require
from xmckit.testing.gradients import assert_gradient, in_float64, perturb
from xmckit.testing.problems import small_problem
from xmckit.testing.rows import BY_ROW, RowSubject

WEIGHTS = "weights.safetensors"


class EncoderSubject(RowSubject):
    """An encoder with weights. They are saved as a head saves them: by the module's state."""

    @cached_property
    def X(self) -> csr_matrix:
        return small_problem(rows=30, empty=True).matrix

    def inputs(self) -> dict[str, Any]:
        return {"X": self.X}

    def prepare_encoder(self, inputs: int, seed: int) -> Any:
        encoder = self.component()
        encoder.prepare(inputs, torch.Generator().manual_seed(seed))
        return encoder

    def make(self, context: Context) -> Any:
        return self.prepare_encoder(self.X.shape[1], context.seed_for("weights"))

    def answers(self, ready: Any, context: Context) -> dict[str, np.ndarray]:
        return {"vectors": encode(ready, as_batch(self.X))}

    def save(self, ready: Any, folder: Path) -> None:
        store.write_tensors(folder / WEIGHTS, ready.state_dict())

    def restore(self, folder: Path) -> Any:
        encoder = self.prepare_encoder(self.X.shape[1], seed=99)
        encoder.load_state_dict(store.read_tensors(folder / WEIGHTS))
        return encoder

    def assert_well_formed(self, ready: Any, X: Matrix) -> str:
        vectors = encode(ready, as_batch(X))
        require(isinstance(ready.width, int) and ready.width > 0, f"width is {ready.width!r}, expected a number")
        expected = (X.shape[0], ready.width)
        require(vectors.shape == expected, f"{vectors.shape}, expected rows × width = {expected}")
        require(vectors.dtype == np.float32, f"{vectors.dtype}, expected float32")
        require(np.isfinite(vectors).all(), "an entry is not finite")
        return f"{expected[0]} × {expected[1]}"

    def assert_same_answers(self, parts: Sequence[Matrix], what: str) -> None:
        vectors = [encode(self.ready, as_batch(part)) for part in parts]
        assert_close(encode(self.ready, as_batch(self.X)), np.vstack(vectors), what)


def encode(encoder: Any, batch: Batch) -> np.ndarray:
    with torch.no_grad():
        return encoder(batch).numpy()


def vectors_are_well_formed(subject: EncoderSubject) -> str:
    require(isinstance(subject.ready, torch.nn.Module), "it is not a torch module")
    return subject.assert_well_formed(subject.ready, subject.X)


def weights_follow_generator(subject: EncoderSubject) -> None:
    inputs, batch = subject.X.shape[1], as_batch(subject.X)
    first, again, other = (encode(subject.prepare_encoder(inputs, seed), batch) for seed in (0, 0, 1))
    require(np.array_equal(first, again), "the same generator gives other weights")
    require(not np.array_equal(first, other), "another generator gives the same weights")


def accepts_single_feature(subject: EncoderSubject) -> str:
    rows = csr_matrix(np.array([[1.0], [0.0]], dtype=np.float32))
    return subject.assert_well_formed(subject.prepare_encoder(1, seed=0), rows)


def no_final_activation(subject: EncoderSubject) -> None:
    """Its vectors have entries of both signs, and grow with the features."""
    vectors = encode(subject.ready, as_batch(subject.X))
    require(bool((vectors < 0).any() and (vectors > 0).any()), "all its entries have one sign")
    larger = encode(subject.ready, as_batch((subject.X * np.float32(1e4)).tocsr()))
    grown = np.abs(larger).max() > 10 * np.abs(vectors).max()
    require(grown, "its entries stay small for features that are ten thousand times as large")


def gradient_is_correct(subject: EncoderSubject) -> str:
    """Check gradients with respect to its weights, for sparse and dense rows."""
    encoder = perturb(in_float64(subject.prepare_encoder(subject.X.shape[1], seed=0)))
    draw = torch.Generator().manual_seed(1)
    scale = torch.randn(subject.X.shape[0], encoder.width, generator=draw, dtype=torch.float64)

    def total(X: Matrix) -> torch.Tensor:
        return (encoder(in_float64(as_batch(X))) * scale).sum()

    parameters = dict(encoder.named_parameters())
    assert_gradient(lambda: total(subject.X), parameters)
    return assert_gradient(lambda: total(subject.X.toarray()), parameters)


CHECKS = common.checks_in(globals(), *BY_ROW)
