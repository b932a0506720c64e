"""Losses over one softmax, as heads: cross-entropy, and its truncated top-k form of Lapin, Hein and Schiele (2016) in
the multi-label version of Amos et al. (2019), appendix B.

Cross-entropy asks a true label to outscore all others; the truncated form forgives as many of the others as the first k
places have room for beside the true labels, so that it is small as soon as the true labels are among the first k.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from xmckit import Params
from xmckit.nn import Classifier, LinearParams, RankingParams, Targets, Threads, TorchHead
from xmckit_heads.losses import linear_loss_named


class SoftmaxParams(RankingParams, LinearParams):
    """`k` labels are output; the loss does not depend on it."""


class TopKEntropyParams(RankingParams, LinearParams):
    """`k` is both the number of labels that is output and the k of the loss."""


class SoftmaxHead(TorchHead):
    Params: ClassVar[type[Params]] = SoftmaxParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """−Σ log softmax(z) over a row's labels."""
        return linear_loss_named("softmax", None, classifier, x, targets, threads)


class TopKEntropyHead(TorchHead):
    Params: ClassVar[type[Params]] = TopKEntropyParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Σ log(1 + Σ_J exp(z_j − z_p)) over a row's labels p, with J the other labels without the k − |y| largest."""
        return linear_loss_named("topk-entropy", self.sizes["output"], classifier, x, targets, threads)
