"""First-party heads."""

from __future__ import annotations

from collections.abc import Iterator

import xmckit


@xmckit.hookimpl
def xmckit_heads() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "bsl",
        "xmckit_heads.bsl:BSLHead",
        summary="Bottlenecked sigmoid layer: one learned vector and bias per label, thresholded one by one.",
    )
