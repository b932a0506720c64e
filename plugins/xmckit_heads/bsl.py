"""The bottlenecked sigmoid layer (BSL) of Grivas, Vergari and Lopez (2024), "Taming the Sigmoid Bottleneck".

The projection maps the encoder's output e to x = P·e + b_P with d entries, and one vector per label gives its logit,
z = W·x + b. A label is output when z is above the threshold. With d far below the number of labels, no x makes
sign(W·x + b) equal to most label sets: a verifier can prove this bottleneck.
"""

from __future__ import annotations

import torch

from xmckit.nn import Classifier, Targets, Threads, TorchHead, linear_binary_cross_entropy


class BSLHead(TorchHead):
    """A head that learns W and b without constraints, by binary cross-entropy over all labels."""

    def loss(self, classifier: Classifier, x: torch.Tensor, targets: Targets, threads: Threads) -> torch.Tensor:
        """Return −Σ log σ(z) over a row's labels − Σ log σ(−z) over all others, mean over rows."""
        return linear_binary_cross_entropy(x, classifier.W, classifier.b, targets, threads)
