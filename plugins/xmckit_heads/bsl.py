"""The bottlenecked sigmoid layer (BSL) of Grivas, Vergari and Lopez (2024), "Taming the Sigmoid Bottleneck".

From the encoder's e, the projection makes x = P·e + b_P with d entries, and one vector per label gives its logit,
z = W·x + b; a label is output when z is above the threshold. With d far below the number of labels, sign(W·x + b)
leaves most label sets out of reach whatever x is: the bottleneck that a verifier can prove.
"""

from __future__ import annotations

import torch

from xmckit.nn import Classifier, Targets, Threads, TorchHead, linear_binary_cross_entropy


class BSLHead(TorchHead):
    """W and b are learned without constraint, by binary cross-entropy over all labels."""

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """−Σ log σ(z) over a row's labels − Σ log σ(−z) over all others."""
        return linear_binary_cross_entropy(x, classifier.W, classifier.b, targets, threads)
