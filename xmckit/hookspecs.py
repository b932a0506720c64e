"""The map of the toolkit: one hook per kind of component.

A plugin is a module that implements some of these hooks and is named by an entry point in the group `xmckit`
(or by `--plugin FILE.py`):

    import xmckit

    @xmckit.hookimpl
    def xmckit_heads():
        yield xmckit.Component("mine", "my_package.my_head:MyHead", summary="What it does, in one line.")

Hooks return light records whose `target` is a string, so that listing plugins imports neither torch nor any other
heavy library. What each target must offer is in `xmckit.protocols`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pluggy

PROJECT = "xmckit"
ENTRY_POINT_GROUP = "xmckit"

# The version of everything in this file and in protocols.py. It grows when a plugin has to change.
API_VERSION = 1
# The oldest version whose plugins still work as they are.
OLDEST_API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class Component:
    """One thing a plugin offers: its name in recipes, where it lives, and what it is for.

    `target` is `"package.module:attribute"`. `requires` names what has to be installed besides the plugin, as one
    would give it to pip; it is shown when the target cannot be imported. `api_version` is the version of the
    contracts that the component was written for.
    """

    name: str
    target: str
    summary: str = ""
    requires: str = ""
    api_version: int = 1


@hookspec
def xmckit_heads() -> Iterable[Component]:  # type: ignore[empty-body]
    """Classifiers over all labels (`protocols.Head`), used by `[[head]]`."""


@hookspec
def xmckit_label_preprocessors() -> Iterable[Component]:  # type: ignore[empty-body]
    """Stages that give training rows new labels (`protocols.LabelPreprocessor`), used by `[[labels]]`."""


@hookspec
def xmckit_indexers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Structures that shortlist labels for a row (`protocols.Indexer`), used by `[[index]]`."""


@hookspec
def xmckit_verifiers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Provers of what an output layer can and cannot produce (`protocols.Verifier`), used by `[verify]`."""


@hookspec
def xmckit_datasets() -> Iterable[Component]:  # type: ignore[empty-body]
    """Data sets by name (`protocols.DatasetSource`), used by `[data]`."""


@hookspec
def xmckit_readers() -> Iterable[Component]:  # type: ignore[empty-body]
    """File formats (`protocols.Reader`), used by `[data] use = "files"` and `xmckit data`."""


@hookspec
def xmckit_featurizers() -> Iterable[Component]:  # type: ignore[empty-body]
    """Text or feature blocks to one matrix (`protocols.Featurizer`), used by `[features]`."""


@hookspec
def xmckit_encoders() -> Iterable[Component]:  # type: ignore[empty-body]
    """Torch modules from features to vectors (`protocols.Encoder`), used by `[head.encoder]`."""


@hookspec
def xmckit_metrics() -> Iterable[Component]:  # type: ignore[empty-body]
    """Scores of predictions (`protocols.Metric`), used by `[[score.metrics]]`."""


@hookspec
def xmckit_executors() -> Iterable[Component]:  # type: ignore[empty-body]
    """Ways to spread work over workers (`protocols.Executor`), used by `[executor]`."""


@hookspec
def xmckit_commands() -> Iterable[Component]:  # type: ignore[empty-body]
    """Commands of the `xmckit` program: each target is a click command.

    A name with a dot puts the command into a group, whoever offers the group: `labels.add` is `xmckit labels add`.
    """


# kind as written in `xmckit plugins show KIND:NAME` -> its hook
KINDS: dict[str, str] = {
    "head": "xmckit_heads",
    "label-preprocessor": "xmckit_label_preprocessors",
    "indexer": "xmckit_indexers",
    "verifier": "xmckit_verifiers",
    "dataset": "xmckit_datasets",
    "reader": "xmckit_readers",
    "featurizer": "xmckit_featurizers",
    "encoder": "xmckit_encoders",
    "metric": "xmckit_metrics",
    "executor": "xmckit_executors",
    "command": "xmckit_commands",
}
