"""Neural heads over sparse features: the base class TorchHead, encoders, batches, losses and threads.

It may import components, data, sparse and the root modules below them; importing it imports torch. The names in
`__all__` are public: plugins derive their heads from TorchHead.
"""

from __future__ import annotations

from xmckit.nn.batches import Batch, SparseBatch, Targets, as_batch, as_inputs
from xmckit.nn.encoders import FeatureTable, SparseLinear, SparseMLP, TorchEncoder
from xmckit.nn.head import TorchHead
from xmckit.nn.head_params import (
    LinearParams,
    LinearThresholdParams,
    RankingParams,
    ThresholdParams,
    TorchHeadParams,
)
from xmckit.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_and_slope,
    in_row_chunks,
    linear,
    linear_binary_cross_entropy,
    linear_loss,
)
from xmckit.nn.network import Classifier, Network
from xmckit.nn.ranking_losses import (
    softmax_cross_entropy,
    softmax_cross_entropy_and_slope,
    truncated_topk_entropy,
    truncated_topk_entropy_and_slope,
)
from xmckit.nn.shortlist import Chosen, rows_of
from xmckit.nn.threads import Threads, stripes, use_threads
from xmckit.nn.training import without_stored_zeros

__all__ = [
    "Batch", "Chosen", "Classifier", "FeatureTable", "LinearParams", "LinearThresholdParams", "Network",
    "RankingParams", "SparseBatch", "SparseLinear", "SparseMLP", "Targets", "Threads", "ThresholdParams",
    "TorchEncoder", "TorchHead", "TorchHeadParams", "as_batch", "as_inputs", "binary_cross_entropy",
    "binary_cross_entropy_and_slope", "in_row_chunks", "linear",
    "linear_binary_cross_entropy", "linear_loss", "rows_of", "softmax_cross_entropy",
    "softmax_cross_entropy_and_slope", "stripes", "truncated_topk_entropy", "truncated_topk_entropy_and_slope",
    "use_threads", "without_stored_zeros",
]  # fmt: skip
