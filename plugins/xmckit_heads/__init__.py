"""The linear heads `bsl`, `dft`, `lml`, `softmax` and `topk-entropy`, and the losses they are trained with.

May import `xmckit`, `xmckit.nn`, `xmckit.data.model` and `xmckit.errors`. Recipes use the heads by name; this module
registers them and imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import xmckit


@xmckit.hookimpl
def xmckit_heads() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "bsl",
        "xmckit_heads.bsl:BSLHead",
        summary="Bottlenecked sigmoid layer: one learned vector and bias per label; labels are thresholded one by one.",
    )
    yield xmckit.Component(
        "dft",
        "xmckit_heads.dft.head:DFTHead",
        summary="DFT layer: fixed waves that can output every sparse label set, and learned slack columns.",
    )
    yield xmckit.Component(
        "lml",
        "xmckit_heads.lml.head:LMLHead",
        summary="Limited multi-label projection: labels compete for k places; for recall at k when labels are missing.",
    )
    yield xmckit.Component(
        "softmax",
        "xmckit_heads.topk_entropy:SoftmaxHead",
        summary="Softmax cross-entropy over all labels.",
    )
    yield xmckit.Component(
        "topk-entropy",
        "xmckit_heads.topk_entropy:TopKEntropyHead",
        summary="Truncated top-k entropy: cross-entropy that is small once the true labels are among the first k.",
    )
