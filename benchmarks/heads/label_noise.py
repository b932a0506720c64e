"""Add what the study of heads needs to xmckit: hidden labels, class noise, and Fashion-MNIST.

This file is a plugin: `xmckit run … --plugin benchmarks/heads/label_noise.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from pydantic import Field
from scipy.sparse import csr_matrix

import xmckit
from xmckit import Component, store


class HideLabels(xmckit.Configured):
    """Remove each label of each training row with probability `share`, by the seed of the run."""

    class Params(xmckit.Params):
        share: float = Field(0.2, ge=0, le=1, description="Share of the (row, label) pairs to hide.")

    def apply(self, train: xmckit.Split, *, context: xmckit.Context) -> xmckit.Split:
        kept = train.Y.copy()
        kept.data = (context.rng("hidden").random(kept.nnz) >= self.params.share).astype(np.float32)
        kept.eliminate_zeros()
        return replace(train, Y=kept)


class ClassNoise(xmckit.Configured):
    """Replace the label of a row, with probability `share`, by a label of its group, all equally likely."""

    class Params(xmckit.Params):
        share: float = Field(0.2, ge=0, le=1, description="Share of the rows with a redrawn label.")
        groups: list[list[int]] = Field(description="Groups of labels that may replace each other.")

    def apply(self, train: xmckit.Split, *, context: xmckit.Context) -> xmckit.Split:
        rng = context.rng("class noise")
        group_of = {label: group for group in self.params.groups for label in group}
        labels = [
            int(rng.choice(group_of[label])) if drawn else label
            for label, drawn in zip(train.Y.indices.tolist(), rng.random(train.rows) < self.params.share, strict=True)
        ]
        return replace(train, Y=_one_label_per_row(np.array(labels), train.labels))


class FashionMNIST(xmckit.Configured):
    """Read images as dense rows with one label each from an .npz with X_trn, y_trn, X_tst and y_tst."""

    class Params(xmckit.Params):
        path: xmckit.DataPath = Field(description="The .npz file.")

    def fingerprint(self, *, context: xmckit.Context) -> Mapping[str, str]:
        return {self.params.path.name: store.file_sha256(self.params.path)}

    def read(self, *, context: xmckit.Context) -> xmckit.Dataset:
        with np.load(self.params.path) as arrays:
            train, test = (
                xmckit.Split(
                    (arrays[f"X_{part}"].reshape(len(arrays[f"y_{part}"]), -1) / 255).astype(np.float32),
                    _one_label_per_row(arrays[f"y_{part}"], 10),
                )
                for part in ("trn", "tst")
            )
        return xmckit.Dataset(name="fashion_mnist", train=train, test=test)


def _one_label_per_row(labels: np.ndarray, count: int) -> csr_matrix:
    ones = np.ones(len(labels), dtype=np.float32)
    return csr_matrix((ones, labels.astype(np.int32), np.arange(len(labels) + 1)), shape=(len(labels), count))


@xmckit.hookimpl
def xmckit_label_preprocessors() -> Iterator[Component]:
    yield Component("hide-labels", f"{__name__}:HideLabels", summary="Removes labels at random.")
    yield Component("class-noise", f"{__name__}:ClassNoise", summary="Redraws labels within their group.")


@xmckit.hookimpl
def xmckit_datasets() -> Iterator[Component]:
    yield Component("fashion-mnist", f"{__name__}:FashionMNIST", summary="Clothing images of ten classes.")
