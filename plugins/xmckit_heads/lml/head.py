"""The LML layer of Amos, Koltun and Kolter (2019), "The Limited Multi-Label Projection Layer", as a head.

p = Π(z) is the point of {0 < p < 1, Σp = k} that is nearest to the logits z = W·x + b in binary entropy: σ(z + ν) with
one ν a row. Training maximises the likelihood of the labels that were observed, −Σ log p over a row's labels
(Algorithm 2): labels that were not observed are not pushed down one by one, they only compete for the k places.
Prediction outputs the k best labels.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from xmckit import Params
from xmckit.nn import Classifier, LinearParams, RankingParams, Targets, Threads, TorchHead
from xmckit_heads.losses import linear_loss_named


class LMLParams(RankingParams, LinearParams):
    """`k` is both the number of labels that the projection shares out and the number that is output."""


class LMLHead(TorchHead):
    Params: ClassVar[type[Params]] = LMLParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """−Σ log σ(z + ν) over a row's labels, where Σσ(z + ν) over all labels is k."""
        return linear_loss_named("lml", self.sizes["output"], classifier, x, targets, threads)
