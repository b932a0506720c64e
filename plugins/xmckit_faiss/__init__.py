"""Label search with faiss: shortlists for heads, nearest labels, and new labels for trained runs.

`index` and `kinds` hold the index, `embeddings` the label vectors, `library` all calls that need care with faiss,
`label_search` and `cli` the commands. Imports only public names of xmckit; exports its hooks alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import xmckit

# [cpu] and [gpu] install two builds of faiss that exclude each other.
FAISS = "xmckit[cpu]"


@xmckit.hookimpl
def xmckit_indexers() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "faiss",
        "xmckit_faiss.index:FaissIndexer",
        summary="Labels with the embeddings nearest to a row, by exact or approximate faiss search.",
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
        summary="Add labels to the model of a run, from a few examples or a text each, without retraining.",
    )
