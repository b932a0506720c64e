"""The options of training linear models down a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xmckit_pecos.linear.storage import PostProcessor

Negatives = Literal["tfn", "man", "tfn+man"]
Loss = Literal["squared-hinge", "hinge"]
TOLERANCE = 0.1  # PECOS's own: the stopping tolerance of the solver


@dataclass(frozen=True)
class TrainingOptions:
    """How to train the linear models of a level. The defaults are PECOS's own."""

    C: float = 1.0
    prune: float = 0.1
    loss: Loss = "squared-hinge"
    negatives: Negatives = "tfn"
    beam: int = 10
    post_processor: PostProcessor = "l3-hinge"
    tolerance: float = TOLERANCE
