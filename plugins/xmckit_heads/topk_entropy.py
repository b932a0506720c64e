"""Two heads with losses over one softmax: cross-entropy and truncated top-k entropy.

The truncated form is that of Lapin, Hein and Schiele (2016) in the multi-label version of Amos et al. (2019),
appendix B. Cross-entropy is small if a true label outscores all others. The truncated form ignores as many other labels
as fit beside the true ones among the first k, so it is small as soon as the true labels are among the first k.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from xmckit import Params
from xmckit.nn import Classifier, LinearParams, RankingParams, Targets, Threads, TorchHead, linear_loss
from xmckit_heads.losses import loss_named


class SoftmaxParams(RankingParams, LinearParams):
    """The head outputs `k` labels; the loss does not depend on `k`."""


class TopKEntropyParams(RankingParams, LinearParams):
    """`k` is both the number of output labels and the k of the loss."""


class SoftmaxHead(TorchHead):
    """A head that learns by softmax cross-entropy over all labels."""

    Params: ClassVar[type[Params]] = SoftmaxParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return −Σ log softmax(z) over a row's labels, mean over rows."""
        return linear_loss(x, classifier.W, classifier.b, targets, threads, loss_named("softmax", None))


class TopKEntropyHead(TorchHead):
    """A head that learns by truncated top-k entropy."""

    Params: ClassVar[type[Params]] = TopKEntropyParams

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return Σ log(1 + Σ_J exp(z_j − z_p)) over a row's labels p, mean over rows.

        J are the other labels without the k − |y| largest.
        """
        loss = loss_named("topk-entropy", self.sizes["output"])
        return linear_loss(x, classifier.W, classifier.b, targets, threads, loss)
