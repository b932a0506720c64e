"""EAGLE (Shen et al. 2020): derive labels for rows from labels for groups of rows.

Label preprocessors, the head `miml` and the command `labels`. May import `xmckit` and its public packages. Recipes use
the components by name; this module registers them and imports none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import xmckit


@xmckit.hookimpl
def xmckit_label_preprocessors() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "eagle",
        "xmckit_eagle.preprocessor:Eagle",
        summary="Gives each label of a group to the rows of the group that the label is about.",
    )
    yield xmckit.Component(
        "aggregate",
        "xmckit_eagle.grouping:Aggregate",
        summary="Groups labelled rows and keeps only the labels of the groups, for experiments.",
    )


@xmckit.hookimpl
def xmckit_heads() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "miml",
        "xmckit_eagle.miml.head:MIMLHead",
        summary="Learns from bags of rows: Deep-MIML, or co-attention between rows and labels.",
    )


@xmckit.hookimpl
def xmckit_commands() -> Iterator[xmckit.Component]:
    yield xmckit.Component(
        "labels",
        "xmckit_eagle.cli:labels",
        summary="Show which rows of a group got its labels, and how clear each choice was.",
    )
