"""What a component of each kind must offer. `xmckit.testing` checks these promises.

Every component also has a pydantic `Params` with unknown keys forbidden, takes its parameters as keywords, and
offers `save(folder)` and `load(folder, context=…)` without pickle (`xmckit.Configured` does most of it). The same
seed gives the same result on one machine, and work spread over workers gives it whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data.model import Dataset, Features, Groups, Matrix, Split
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
    import torch

    from xmckit.context import Context


@runtime_checkable
class DatasetSource(Protocol):
    """A data set by name."""

    def fingerprint(self, *, context: Context) -> Mapping[str, str]:
        """What the data depends on beyond the parameters: input → checksum. Equal prints mean equal data."""

    def read(self, *, context: Context) -> Dataset:
        """The data."""


@runtime_checkable
class Reader(Protocol):
    """A file format."""

    def matches(self, path: Path) -> bool:
        """Whether `path` (a file or a folder) looks like this format. Cheap, and never raises on odd content."""

    def files(self, path: Path) -> Sequence[Path]:
        """The files that `read` would open."""

    def read(self, path: Path, *, context: Context) -> Dataset:
        """The data, exactly as stored, or DataError with file and line."""


@runtime_checkable
class Writer(Protocol):
    """A reader that can also write, for `xmckit data convert`."""

    def write(self, dataset: Dataset, folder: Path) -> None:
        """Write `dataset` into the existing, empty `folder`."""


@runtime_checkable
class Featurizer(Protocol):
    """Text or feature blocks to the one matrix that the rest sees."""

    def fit(self, train: Split, *, context: Context) -> None: ...

    def transform(self, split: Split, *, context: Context) -> Matrix:
        """CSR float32 or dense float32, one row per row of `split` (whose labels may be empty: do not use them)."""

    def save(self, folder: Path) -> None: ...


@runtime_checkable
class LabelPreprocessor(Protocol):
    """New labels, and optionally weights, for the same training rows.

    It may also offer, for use after `apply`: `facts()`, what the report says about the labels, by name (texts under
    "warnings" are also shown when a run ends), `exhibits()`, the tables and pictures that go with them (see
    `xmckit.exhibits`), and `save(folder)`, to keep with the run what a command then reads.
    """

    def apply(self, train: Split, *, context: Context) -> Split: ...


@runtime_checkable
class LabelIndex(Protocol):
    """Shortlists of labels. `query_space` says what a query is: "input" features or "head" vectors.

    An index in head space also has `rebuild(label_vectors)`: one row a label, whose product with a query is the logit.
    The pipeline sets `indexer` to the name of the component, by which a head that keeps an index can load it. A tree
    also has `clusters` (pseudo-labels × clusters, one non-zero a row) and `label_of` (pseudo-label → label). For the
    report it may offer `facts()` and `exhibits()`, as label preprocessors do.
    """

    query_space: Literal["input", "head"]

    def shortlist(self, Q: Matrix, k: int) -> csr_matrix:
        """Rows × labels: up to `k` candidate labels a row, with their scores as values."""

    def save(self, folder: Path) -> None: ...


@runtime_checkable
class Indexer(Protocol):
    """Builds a LabelIndex. `provides` names what its index offers: "shortlist", "clusters", "rebuild"."""

    provides: ClassVar[frozenset[str]]

    def build(self, train: Split, *, context: Context) -> LabelIndex: ...

    @classmethod
    def load(cls, folder: Path, *, context: Context) -> LabelIndex:
        """The index that `LabelIndex.save` left in `folder`."""


@runtime_checkable
class Head(Protocol):
    """A classifier over all labels. `needs` names what each index given to it must provide; one that can do without
    any says so by `index_optional`.

    It may also offer `facts(truth)`: what the report says about it, by name; `truth` holds the test rows' label sets,
    and texts under "warnings" are also shown when a run ends; and `exhibits()`, tables and pictures (see
    `xmckit.exhibits`). And `rank_and_label(X, k)`: what `predict(X, k)` and `labels(X)` give, as a pair, where both
    share most of the work. And `refit(train, indexes=…, context=…)`, for recipes with `refit = true`: it trains anew on
    all rows, with what the validation rows of `fit` decided. `probabilistic` is False where σ(score) is not meant as
    the probability of a label, so that nothing asks whether it comes true.
    """

    needs: ClassVar[frozenset[str]]

    def fit(self, train: Split, *, indexes: Sequence[LabelIndex] = (), context: Context) -> None: ...

    def predict(self, X: Matrix, k: int, *, groups: Groups | None = None) -> TopK: ...

    def features(self, X: Matrix) -> np.ndarray | None:
        """Rows × d: the vectors that `decision().W` multiplies. None for a head that has no decision."""

    def labels(self, X: Matrix) -> csr_matrix:
        """Rows × labels: the set that the decision rule outputs."""

    def decision(self) -> LinearDecision | None:
        """None means "not verifiable": not linear, or not one matrix. Never a guess."""

    def save(self, folder: Path) -> None: ...


@runtime_checkable
class Verifier(Protocol):
    """Decides for label sets whether a decision can ever produce them, with proofs."""

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
    """Scores of one evaluation, by name."""

    def compute(self, evaluation: Evaluation) -> Mapping[str, float]: ...


@runtime_checkable
class Executor(Protocol):
    """Spreads independent work; results in order, whatever the number of workers."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], *, workers: int) -> list[Any]: ...


class Encoder(Protocol):
    """A torch module from features to rows × width, with no activation after its last layer.

    Built from its parameters, then told the number of input features by `prepare`. It takes a dense tensor or a
    `xmckit.nn.SparseBatch`.
    """

    width: int

    def prepare(self, inputs: int, generator: torch.Generator) -> None:
        """Create the weights for `inputs` features, drawn from `generator`."""

    def __call__(self, batch: Any) -> torch.Tensor: ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...


PROTOCOLS: dict[str, type] = {
    "head": Head,
    "label-preprocessor": LabelPreprocessor,
    "indexer": Indexer,
    "verifier": Verifier,
    "dataset": DatasetSource,
    "reader": Reader,
    "featurizer": Featurizer,
    "encoder": Encoder,
    "metric": Metric,
    "executor": Executor,
}

# The records that the promises speak of can be imported from here too.
__all__ = [
    "ARGMAXABLE",
    "PROTOCOLS",
    "STATUSES",
    "UNARGMAXABLE",
    "UNRESOLVED",
    "Alternating",
    "DatasetSource",
    "Encoder",
    "Evaluation",
    "Executor",
    "Features",
    "Featurizer",
    "Groups",
    "Head",
    "Indexer",
    "LabelIndex",
    "LabelPreprocessor",
    "LinearDecision",
    "Matrix",
    "Metric",
    "Reader",
    "Split",
    "TopK",
    "Verdict",
    "Verdicts",
    "Verifier",
    "Writer",
]  # fmt: skip
