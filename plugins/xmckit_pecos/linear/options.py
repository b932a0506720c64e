"""How linear models down a tree are trained, whoever does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xmckit_pecos.linear.storage import PostProcessor

Negatives = Literal["tfn", "man", "tfn+man"]
Loss = Literal["squared-hinge", "hinge"]
TOLERANCE = 0.1  # how far from its optimum a linear model may be left


@dataclass(frozen=True)
class Training:
    """How the linear models of a level are trained; the defaults are PECOS's own."""

    C: float = 1.0
    prune: float = 0.1
    loss: Loss = "squared-hinge"
    negatives: Negatives = "tfn"
    beam: int = 10
    post_processor: PostProcessor = "l3-hinge"
    tolerance: float = TOLERANCE
