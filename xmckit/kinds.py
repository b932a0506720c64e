"""The kinds of components: everything that differs between kinds, in one table.

Hooks, recipe sections and their schema, the conformance suite, the scaffolds and the reference pages read this table. A
new kind is one entry here, with its protocol, its checks and a page in `docs/kinds`. Classes are named by strings
`package.module:attribute`, so that the table imports nothing; `load` imports one.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import reduce
from typing import Any


@dataclass(frozen=True)
class RecipeSection:
    """A section of recipes that names a component of the kind.

    `path` has dots below other tables. `keys` is the model of the keys that are the stage's, not the component's.
    `default` is the component of a recipe without the section. `repeats` allows `[[head]]` several times.
    """

    path: str
    summary: str
    keys: str = ""
    default: str | None = None
    optional: bool = False
    repeats: bool = False


@dataclass(frozen=True)
class Example:
    """What `xmckit plugins new KIND` writes: what it does, and how a recipe uses it.

    Its templates are `xmckit/scaffold/templates/KIND.py.j2` and `test_KIND.py.j2`.
    """

    summary: str
    usage: str


@dataclass(frozen=True)
class Kind:
    """One kind of component; its name is what people write in `xmckit plugins show KIND:NAME`.

    `protocol` is what a component must offer, `related` are protocols of what it returns, `optional` those that it may
    offer; a name without a module is one of `xmckit.protocols`. `used_in` says where a recipe names a component, for a
    kind without a section of its own. `checks` is the subject of the conformance suite; the module of that class lists
    the `CHECKS`. `deprecated` says what to use instead.
    """

    name: str
    summary: str
    protocol: str = ""
    related: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    sections: tuple[RecipeSection, ...] = ()
    used_in: str = ""
    checks: str = ""
    example: Example | None = None
    deprecated: str = ""

    @property
    def plural(self) -> str:
        return f"{self.name.replace('-', ' ')}s"

    @property
    def hook(self) -> str:
        return f"xmckit_{self.plural.replace(' ', '_')}"

    @property
    def usage(self) -> str:
        """Where a recipe names a component of this kind."""
        if not self.sections:
            return self.used_in
        first = self.sections[0]
        return f"[[{first.path}]]" if first.repeats else f"[{first.path}]"


def load(target: str) -> Any:
    """Import what a string `package.module:attribute` names; without an attribute, the module."""
    module, _, attribute = target.partition(":")
    return reduce(getattr, filter(None, attribute.split(".")), importlib.import_module(module))


def load_protocol(name: str) -> type:
    """Import a protocol: a name of `xmckit.protocols`, or `package.module:attribute`."""
    return load(name if ":" in name else f"xmckit.protocols:{name}")


_TABLE = (
    Kind(
        "executor",
        "Ways to spread work over workers",
        "Executor",
        sections=(RecipeSection("executor", "How work is spread over workers.", default="threads"),),
        checks="xmckit.testing.executors:ExecutorSubject",
    ),
    Kind(
        "dataset",
        "Data sets by name",
        "DatasetSource",
        sections=(RecipeSection("data", "The data set.", keys="xmckit.recipe.sections:DataKeys"),),
        checks="xmckit.testing.datasets:DatasetSubject",
        example=Example(
            "Notes with #tags, from a folder of text files.",
            '[data]\nuse = "{name}"\npath = "notes"\n\n[features]\nuse = "tfidf"',
        ),
    ),
    Kind(
        "reader",
        "File formats",
        "Reader",
        optional=("Writer", "ReaderWithHint"),
        used_in='[data] use = "files"',
        checks="xmckit.testing.readers:ReaderSubject",
        example=Example(
            "Rows of labels, a tab and a text.",
            '[data]\nuse = "files"\npath = "news"\nreader = "{name}"\n\n[features]\nuse = "tfidf"',
        ),
    ),
    Kind(
        "featurizer",
        "Converters from texts or feature blocks to one matrix",
        "Featurizer",
        sections=(
            RecipeSection(
                "features",
                "Featurizers, which turn texts or feature blocks into a matrix; label stages see the first.",
                keys="xmckit.recipe.sections:NamedKeys",
                default="blocks",
                repeats=True,
            ),
        ),
        checks="xmckit.testing.featurizers:FeaturizerSubject",
    ),
    Kind(
        "label-preprocessor",
        "Stages that give training rows new labels",
        "LabelPreprocessor",
        optional=("SupportsFacts", "SupportsExhibits", "SupportsSave"),
        sections=(
            RecipeSection(
                "labels",
                "Stages that give the training rows new labels, in order.",
                keys="xmckit.recipe.sections:NamedKeys",
                optional=True,
                repeats=True,
            ),
        ),
        checks="xmckit.testing.label_preprocessors:PreprocessorSubject",
        example=Example("Removes labels that too few rows have.", '[[labels]]\nuse = "{name}"\nleast = 3'),
    ),
    Kind(
        "indexer",
        "Structures that shortlist labels for a row",
        "Indexer",
        related=("LabelIndex", "NamedIndex"),
        optional=("RebuildableIndex", "ClusteredIndex", "ExtensibleIndex", "SupportsFacts", "SupportsExhibits"),
        sections=(
            RecipeSection(
                "index",
                "Structures that shortlist labels for a row.",
                keys="xmckit.recipe.sections:IndexKeys",
                optional=True,
                repeats=True,
            ),
        ),
        checks="xmckit.testing.indexers:IndexerSubject",
        example=Example(
            "Candidates by the centroids of the labels' training rows, found exactly.",
            '[index]\nuse = "{name}"\n\n[head]\nuse = "bsl"',
        ),
    ),
    Kind(
        "head",
        "Classifiers over all labels",
        "Head",
        optional=(
            "IndexOptionalHead",
            "RefittableHead",
            "OnePassHead",
            "ShortlistHead",
            "ExtensibleHead",
            "IndexedHead",
            "HeadWithFacts",
            "HeadWithHistory",
            "ProbabilisticHead",
            "SupportsExhibits",
        ),
        sections=(
            RecipeSection(
                "head",
                "The classifiers; several form an ensemble.",
                keys="xmckit.recipe.sections:HeadKeys",
                repeats=True,
            ),
            RecipeSection(
                "score.baseline",
                "A head that every table shows for comparison; false is none.",
                default="popularity",
                optional=True,
            ),
        ),
        checks="xmckit.testing.heads:HeadSubject",
        example=Example(
            "A linear layer with a loss that gives less weight to easy labels.",
            '[head]\nuse = "{name}"\nfocus = 2.0',
        ),
    ),
    Kind(
        "encoder",
        "Torch modules from features to vectors",
        "Encoder",
        used_in="[head.encoder]",
        checks="xmckit.testing.encoders:EncoderSubject",
        example=Example(
            "A linear layer, followed by small residual layers.",
            '[head]\nuse = "bsl"\n[head.encoder]\nuse = "{name}"\nlayers = 2',
        ),
    ),
    Kind(
        "metric",
        "Scores of predictions",
        "Metric",
        sections=(
            RecipeSection("score.metrics", "Metrics to compute from the predictions.", optional=True, repeats=True),
        ),
        checks="xmckit.testing.metrics:MetricSubject",
        example=Example(
            "The agreement of label sets with the true ones, row by row.",
            '[[score.metrics]]\nuse = "ranking"\n[[score.metrics]]\nuse = "{name}"',
        ),
    ),
    Kind(
        "verifier",
        "Provers of what an output layer can and cannot produce",
        "Verifier",
        optional=("SupportsParams",),
        sections=(
            RecipeSection(
                "verify",
                "Proofs of what the output layer can and cannot produce; false is none.",
                keys="xmckit.recipe.sections:VerifyKeys",
                optional=True,
            ),
        ),
        checks="xmckit.testing.verifiers:VerifierSubject",
        example=Example(
            "A random search for witnesses, which proves nothing else.",
            '[verify]\nuse = "{name}"\ntries = 1000',
        ),
    ),
    Kind(
        "command",
        "Commands of the `xmckit` program, each a click command. A name with a dot puts the command into a group, "
        "which any plugin may offer: `labels.add` is `xmckit labels add`",
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _TABLE}
