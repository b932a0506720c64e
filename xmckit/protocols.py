"""The methods that a component of each kind must offer, and those that it may offer.

The first protocol of each kind is required; those below it are optional. The core asks for an optional protocol with
`offers`, so a component need not inherit from it. `xmckit.testing` checks all of them.

Every component also has a pydantic `Params` that forbids unknown keys, takes its parameters as keywords, and offers
`save(folder)` and `load(folder, context=…)` without pickle (`xmckit.Configured` does most of it). The same seed gives
the same result on one machine, for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

from xmckit.records import (
    ARGMAXABLE,
    STATUSES,
    UNARGMAXABLE,
    UNRESOLVED,
    Alternating,
    Evaluation,
    LinearDecision,
    TopK,
    Verdict,
    Verdicts,
)

if TYPE_CHECKING:
    import numpy as np
    import torch
    from pydantic import BaseModel
    from scipy.sparse import csr_matrix

    from xmckit.context import Context
    from xmckit.data.model import Dataset, Groups, Matrix, Split
    from xmckit.exhibits import Exhibit

P = TypeVar("P")


def offers(component: object, protocol: Callable[..., P]) -> TypeGuard[P]:
    """Return whether a component has all methods and attributes of a protocol; a method that is None does not count.

    `isinstance` does not see what a proxy forwards with `__getattr__` (Python 3.12).
    """
    methods = [name for name in vars(protocol) if not name.startswith("_")]
    has_methods = all(getattr(component, name, None) is not None for name in methods)
    return has_methods and all(hasattr(component, name) for name in protocol.__annotations__)


# Optional for several kinds


class SupportsFacts(Protocol):
    """A label preprocessor or an index that adds facts to the report."""

    def facts(self) -> Mapping[str, Any]:
        """Return JSON values by name. The texts under "warnings" are also printed when a run ends."""


class SupportsExhibits(Protocol):
    """A component that adds tables and pictures to the report; see `xmckit.exhibits`."""

    def exhibits(self) -> Sequence[Exhibit]: ...


class SupportsSave(Protocol):
    """A label preprocessor that keeps files with the run, for a command to read."""

    def save(self, folder: Path) -> None:
        """Write into the existing, empty `folder`."""


class SupportsParams(Protocol):
    """A component that holds its parameters, as `xmckit.Configured` does; results record them."""

    params: BaseModel


class SupportsConformance(Protocol):
    """A component that says how `xmckit.testing` should check it; see `xmckit.testing.Case`."""

    conformance: ClassVar[Mapping[str, Any]]


# Data sets and readers


@runtime_checkable
class DatasetSource(Protocol):
    """A data set by name."""

    def fingerprint(self, *, context: Context) -> Mapping[str, str]:
        """Return what the data depends on beyond the parameters: input → checksum. Equal prints mean equal data."""

    def read(self, *, context: Context) -> Dataset:
        """Return the data."""


@runtime_checkable
class Reader(Protocol):
    """A file format."""

    def matches(self, path: Path) -> bool:
        """Return whether `path` (a file or a folder) looks like this format. Cheap; never raises on odd content."""

    def files(self, path: Path) -> Sequence[Path]:
        """Return the files that `read` would open."""

    def read(self, path: Path, *, context: Context) -> Dataset:
        """Return the data exactly as stored, or raise DataError with file and line."""


class Writer(Protocol):
    """A reader that can also write, for `xmckit data convert`."""

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `dataset` into the existing, empty `folder`."""


class ReaderWithHint(Protocol):
    """A reader that names the files of its format, for the error about a path that no reader knows."""

    looks_for: ClassVar[str]


# Features and labels


@runtime_checkable
class Featurizer(Protocol):
    """Turns text or feature blocks into the one matrix that all later stages see."""

    def fit(self, train: Split, *, context: Context) -> None: ...

    def transform(self, split: Split, *, context: Context) -> Matrix:
        """Return CSR float32 or dense float32, one row per row of `split`. Do not use its labels: they may be empty."""

    def save(self, folder: Path) -> None: ...


@runtime_checkable
class LabelPreprocessor(Protocol):
    """Gives the same training rows new labels, and optionally weights.

    After `apply` it may offer `SupportsFacts`, `SupportsExhibits` and `SupportsSave`.
    """

    def apply(self, train: Split, *, context: Context) -> Split: ...


# Indexes


@runtime_checkable
class LabelIndex(Protocol):
    """Shortlists labels. `query_space` says what a query is: "input" features or "head" vectors.

    An index in head space must be a `RebuildableIndex`. It may also offer `SupportsFacts` and `SupportsExhibits`.
    """

    query_space: Literal["input", "head"]

    def shortlist(self, Q: Matrix, k: int) -> csr_matrix:
        """Return rows × labels: up to `k` candidate labels per row, with their scores as values."""

    def save(self, folder: Path) -> None: ...


@runtime_checkable
class Indexer(Protocol):
    """Builds a LabelIndex. `provides` names what its index offers: "shortlist", "clusters", "rebuild"."""

    provides: ClassVar[frozenset[str]]

    def build(self, train: Split, *, context: Context) -> LabelIndex: ...

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> LabelIndex:
        """Return the index that `LabelIndex.save` wrote into `folder`."""


class NamedIndex(Protocol):
    """An index as the pipeline hands it to a head: `indexer` is the name of the component that can load it."""

    indexer: str


class RebuildableIndex(Protocol):
    """An index that follows a head's vectors; `provides` names it "rebuild"."""

    def rebuild(self, label_vectors: np.ndarray) -> None:
        """Use these vectors from now on: one row per label. Its product with a query is the label's logit."""


class ClusteredIndex(Protocol):
    """A tree of labels; `provides` names it "clusters".

    `clusters` is pseudo-labels × clusters with one non-zero per row, `label_of` maps a pseudo-label to its label.
    """

    clusters: csr_matrix
    label_of: np.ndarray


class ExtensibleIndex(Protocol):
    """An index over input features that takes labels which it was not built with."""

    def add_labels(self, X: Matrix, Y: csr_matrix) -> None:
        """Append the labels of `Y` (rows × new labels), given rows `X` that have them."""


# Heads


@runtime_checkable
class Head(Protocol):
    """A classifier over all labels. `needs` names what each index given to it must provide.

    It may also offer `SupportsExhibits`.
    """

    needs: ClassVar[frozenset[str]]

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None: ...

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK: ...

    def features(self, X: Matrix) -> np.ndarray | None:
        """Return rows × d, the vectors that `decision().W` multiplies; None for a head that has no decision."""

    def labels(self, X: Matrix) -> csr_matrix:
        """Return rows × labels: the set that the decision rule outputs."""

    def decision(self) -> LinearDecision | None:
        """Return the decision; None means "not verifiable": not linear, or not one matrix. Never a guess."""

    def save(self, folder: Path) -> None: ...


class IndexOptionalHead(Protocol):
    """A head that can do without the index that `needs` describes, if `index_optional` is true."""

    index_optional: ClassVar[bool]


class RefittableHead(Protocol):
    """A head that can be used in recipes with `refit = true`."""

    def refit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None:
        """Train again on all rows, with what the validation rows of `fit` decided."""


class OnePassHead(Protocol):
    """A head for which ranking and label sets share most of the work."""

    def rank_and_label(self, X: Matrix, k: int) -> tuple[TopK, csr_matrix]:
        """Return the results of `predict(X, k)` and of `labels(X)`."""


class ShortlistHead(Protocol):
    """A head that outputs only labels that its indexes list."""

    def candidates(self, X: Matrix) -> csr_matrix | None:
        """Return rows × labels with an entry for each label that a row can get; None if a row can get any label."""


class ExtensibleHead(Protocol):
    """A head that takes labels which it was not trained on."""

    def add_labels(
        self, X: Matrix, Y: csr_matrix, train: Split, *, listed_by: Callable[[], LabelIndex] | None = None
    ) -> None:
        """Append the labels of `Y` (rows × new labels), given rows `X` that have them and some training rows.

        If none of the head's indexes can take the labels, `listed_by` makes one more that lists them. Raise UsageError
        if the head cannot take new labels.
        """


class IndexedHead(Protocol):
    """A head that keeps its indexes."""

    def index_labels(self) -> Sequence[tuple[str, int]]:
        """Return for each index its name and how many labels, from the first, it knows."""


class HeadWithFacts(Protocol):
    """A head that adds facts to the report."""

    def facts(self, truth: csr_matrix) -> Mapping[str, Any]:
        """Return JSON values by name, given the label sets of the test rows.

        The texts under "warnings" are also printed when a run ends.
        """


class TrainingEpoch(Protocol):
    """One pass over the training rows, as a named tuple; `seconds` count from the start."""

    number: int
    loss: float
    score: float | None
    seconds: float

    def _asdict(self) -> dict[str, Any]: ...


class HeadWithHistory(Protocol):
    """A head that was trained in epochs, which the report plots."""

    history: Sequence[TrainingEpoch]


class ProbabilisticHead(Protocol):
    """A head that says whether σ(score) is meant as the probability of a label; without this, it is.

    If `probabilistic` is false, the report shows no calibration.
    """

    probabilistic: bool


def needs_index(head: Any) -> bool:
    """Return whether a head, or its class, cannot be fitted without an index."""
    optional = offers(head, IndexOptionalHead) and head.index_optional
    return bool(getattr(head, "needs", ())) and not optional


class Encoder(Protocol):
    """A torch module from features to rows × width, with no activation after its last layer.

    It is built from its parameters; `prepare` then gives it the number of input features. It takes a dense tensor or a
    `xmckit.nn.SparseBatch`.
    """

    width: int

    def prepare(self, inputs: int, generator: torch.Generator) -> None:
        """Create the weights for `inputs` features, drawn from `generator`."""

    def __call__(self, batch: Any) -> torch.Tensor: ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...


# Scores, proofs, workers


@runtime_checkable
class Verifier(Protocol):
    """Decides, with proofs, which label sets a decision can ever produce."""

    def verify(
        self,
        decision: LinearDecision,
        assignments: csr_matrix,
        *,
        candidates: csr_matrix | None = None,
        context: Context,
    ) -> Verdicts: ...


@runtime_checkable
class Metric(Protocol):
    """Computes the scores of one evaluation, by name."""

    def compute(self, evaluation: Evaluation) -> Mapping[str, float]: ...


@runtime_checkable
class Executor(Protocol):
    """Spreads independent work and returns the results in order, for any number of workers."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]: ...


# The records that the protocols mention can be imported from here too.
__all__ = [
    "ARGMAXABLE", "STATUSES", "UNARGMAXABLE", "UNRESOLVED", "Alternating", "ClusteredIndex",
    "DatasetSource", "Encoder", "Evaluation", "Executor", "ExtensibleHead", "ExtensibleIndex",
    "Featurizer", "Head", "HeadWithFacts", "HeadWithHistory", "IndexOptionalHead", "IndexedHead", "Indexer",
    "LabelIndex", "LabelPreprocessor", "LinearDecision", "Metric", "NamedIndex", "OnePassHead",
    "ProbabilisticHead", "Reader", "ReaderWithHint", "RebuildableIndex", "RefittableHead", "ShortlistHead",
    "SupportsConformance", "SupportsExhibits", "SupportsFacts", "SupportsParams", "SupportsSave", "TopK",
    "TrainingEpoch", "Verdict", "Verdicts", "Verifier", "Writer", "needs_index", "offers",
]  # fmt: skip
