"""A head whose loss treats labels that a row has and labels that it has not differently (Ridnik et al. 2021)."""

import torch
from pydantic import Field
from torch.nn.functional import softplus

from xmckit import nn


class AsymmetricHead(nn.TorchHead):
    """With p = σ(z), a label of the row costs (1 − p)^f · −log p, with f the positive focus.

    Any other label costs q^g · −log(1 − q), with g the negative focus and q = max(p − shift, 0): one that is improbable
    enough is left alone.
    """

    class Params(nn.LinearThresholdParams):
        positive_focus: float = Field(0.0, ge=0, le=5, description="How little labels count that are found already.")
        negative_focus: float = Field(
            2.0, ge=1, le=8, description="How little labels count that are ruled out already."
        )
        shift: float = Field(0.05, gt=0, lt=0.5, description="The probability below which a wrong label costs nothing.")

    def loss(self, classifier, x, targets, threads):
        def of_rows(x, targets):
            z = x @ classifier.W.T + classifier.b
            true = z[targets.rows, targets.labels]
            weights = 1 if targets.weights is None else targets.weights
            return (
                self._cost_of_others(z).sum() + (weights * self._cost_of_true(true) - self._cost_of_others(true)).sum()
            )

        return nn.in_row_chunks(of_rows, x, targets, [classifier.W, classifier.b], threads)

    def _cost_of_true(self, z):
        return torch.exp(-self.params.positive_focus * softplus(z)) * softplus(-z)

    def _cost_of_others(self, z):
        q = (torch.sigmoid(z) - self.params.shift).clamp(min=0)
        return -(q**self.params.negative_focus) * torch.log1p(-q)
