"""Label trees and linear models on PECOS: XR-Linear, and overlapping clusters (Liu et al. 2021).

This package holds the components `tree`, `overlap`, `xrlinear`, `entangled` and the command `index`. `labels` has
trees over labels, `linear` the models down a tree, `search` the beam search. It imports public names of xmckit only.
Public are the components; all other names may change.
"""

from __future__ import annotations

from collections.abc import Iterator

import xmckit

PECOS = "libpecos==1.2.8"


@xmckit.hookimpl
def xmckit_indexers() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "tree",
        "xmckit_pecos.tree:TreeIndexer",
        summary="Balanced tree over the labels, by the similarity of their training rows.",
        requires=PECOS,
    )
    yield xmckit.Component(
        "overlap",
        "xmckit_pecos.overlap:OverlapIndexer",
        summary="Tree in which a label may be in several leaves: those that its rows reach.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_datasets() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "entangled",
        "xmckit_pecos.entangled:Entangled",
        summary="Another data set with every few labels merged into one, to test how an index separates meanings.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_heads() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "xrlinear",
        "xmckit_pecos.xrlinear:XRLinearHead",
        summary="PECOS's XR-Linear: linear rankers down a label tree, with beam search.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_commands() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "index",
        "xmckit_pecos.cli:index",
        summary="Show the label tree of a run.",
    )
