"""Label trees and linear models on PECOS: XR-Linear, and clusters that overlap (Liu et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator

import xmckit

PECOS = "libpecos==1.2.8"


@xmckit.hookimpl
def xmckit_indexers() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "tree",
        "xmckit_pecos.tree:TreeIndexer",
        summary="A balanced tree over the labels, by the training rows that have them.",
        requires=PECOS,
    )
    yield xmckit.Component(
        "overlap",
        "xmckit_pecos.overlap:OverlapIndexer",
        summary="A tree in which a label may stand in several leaves: those that its rows reach.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_datasets() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "entangled",
        "xmckit_pecos.entangled:Entangled",
        summary="Another data set in which every few labels are made one, to see whether meanings are told apart.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_heads() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "xrlinear",
        "xmckit_pecos.xrlinear:XRLinearHead",
        summary="PECOS's XR-Linear: linear rankers down a label tree, by beam search.",
        requires=PECOS,
    )


@xmckit.hookimpl
def xmckit_commands() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "index",
        "xmckit_pecos.cli:index",
        summary="Show the label tree of a run.",
    )
