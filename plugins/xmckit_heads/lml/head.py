"""The LML layer of Amos, Koltun and Kolter (2019), "The Limited Multi-Label Projection Layer", as a head.

p = Π(z) is the point of {0 < p < 1, Σp = k} nearest to the logits z = W·x + b in binary entropy: σ(z + ν) with one ν
per row. Training minimises −Σ log p over a row's observed labels (Algorithm 2). Labels that were not observed are not
pushed down one by one; they only compete for the k places. Prediction outputs the k best labels.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch

from xmckit import Params
from xmckit.nn import Classifier, LinearParams, RankingParams, Targets, Threads, TorchHead, linear_loss
from xmckit_heads.lml.operator import summed_lml_loss_and_slope


class LMLParams(RankingParams, LinearParams):
    """`k` is both the sum of the projection and the number of output labels."""


class LMLHead(TorchHead):
    """A head that learns by the LML loss and outputs its k best labels."""

    Params: ClassVar[type[Params]] = LMLParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return −Σ log σ(z + ν) over a row's labels, mean over rows, where Σσ(z + ν) over all labels is k."""
        loss = partial(summed_lml_loss_and_slope, self.sizes["output"])
        return linear_loss(x, classifier.W, classifier.b, targets, threads, loss)
