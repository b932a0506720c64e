"""Search among label embeddings with faiss: shortlists, nearest labels, and new labels without training anew."""

from __future__ import annotations

from collections.abc import Iterator

import xmckit

# one of the two forms of faiss, which exclude each other: [gpu] is the other one
FAISS = "xmckit[cpu]"


@xmckit.hookimpl
def xmckit_indexers() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "faiss",
        "xmckit_faiss.index:FaissIndexer",
        summary="The labels whose embeddings are nearest to a row, by faiss: exact or approximate.",
        requires=FAISS,
    )


@xmckit.hookimpl
def xmckit_commands() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "search",
        "xmckit_faiss.cli:search",
        summary="Find the labels of a run that are nearest to a text or to a label.",
    )
    yield xmckit.Component(
        "labels.add",
        "xmckit_faiss.cli:add",
        summary="Give the model of a run new labels, from a few examples or a text each, without training it anew.",
    )
