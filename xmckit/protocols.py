"""What a component of each kind must offer. `xmckit.testing` checks these promises.

Every component also has a pydantic `Params` with unknown keys forbidden, takes its parameters as keywords, and
offers `save(folder)` and `load(folder, context=…)` without pickle (`xmckit.Configured` does most of it). The same
seed gives the same result on one machine, and work spread over workers gives it whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.data.model import Dataset, Features, Groups, Matrix, Split

if TYPE_CHECKING:
    import torch

    from xmckit.context import Context


@dataclass(frozen=True)
class TopK:
    """The best labels of each row, best first: `indices` int32 and `scores` float32, rows × k, padded with −1.

    Scores are logits unless the head says that it is calibrated; a padded place has score −inf.
    """

    indices: np.ndarray
    scores: np.ndarray

    @classmethod
    def of_blocks(cls, blocks: Sequence[TopK]) -> TopK:
        """One ranking of the rows of all `blocks`, which have the same k."""
        return cls(np.concatenate([one.indices for one in blocks]), np.concatenate([one.scores for one in blocks]))

    @property
    def rows(self) -> int:
        return int(self.indices.shape[0])

    @property
    def k(self) -> int:
        return int(self.indices.shape[1])


@dataclass(frozen=True)
class Alternating:
    """Rows of W are points on a curve of which any hyperplane meets at most 2·degree points (the Gr⁺ family; DFT is
    one). Labels in `order` (cyclic positions of label ids) with at most `degree` runs of active labels are
    argmaxable by construction, whatever the bias; with `slack` = 0 and one bias for all labels, no other set is.
    """

    degree: int
    slack: int
    order: np.ndarray


@dataclass(frozen=True)
class LinearDecision:
    """How a head tells the truth about itself: the matrix its prediction really uses.

    `W` is labels × d with rows in label-id order, always; `b` has one entry per label or is None. Rule `sign`: a
    label is output when W·x + b > 0. Rule `topk`: some input ranks exactly the active labels first. The space is the
    widest one that the head can really fill (see `Head.features`). `replay` runs vectors of that space through the
    head's own scorer (its float32, its FFT) and returns the label sets it outputs; for `topk` it also takes the
    number of labels to output per row. `inputs`: how many features the vectors are made of, where a head knows; fewer
    than d means that some vectors belong to no row.
    """

    W: np.ndarray
    b: np.ndarray | None
    rule: Literal["sign", "topk"] = "sign"
    structure: Alternating | None = None
    replay: Callable[..., csr_matrix] | None = None
    inputs: int | None = None


ARGMAXABLE, UNARGMAXABLE, UNRESOLVED = "argmaxable", "unargmaxable", "unresolved"
STATUSES = (ARGMAXABLE, UNARGMAXABLE, UNRESOLVED)


@dataclass(frozen=True)
class Verdict:
    """The answer for one assignment and its proof.

    *argmaxable*: proved for some feature vector (`witness`), not for some document. *unargmaxable*: proved for every
    input, by `certificate` = (label ids, multipliers) of a Gordan combination. `replayed`: the witness, run through
    the head's own scorer, gave the assignment. `margin` is the witness's; `radius` bounds the Chebyshev radius. `ideal`
    is the answer for the layer as defined (a structure's own proof), `eps` the one for the paper's tolerance and box;
    the status is about the stored matrix. Of an argmaxable set the certificate bounds the radius, by weak duality.
    `missed`: active labels outside the candidates.
    """

    status: str
    proof: Literal["float-certified", "exact", "none"] = "none"
    witness: np.ndarray | None = None
    certificate: tuple[np.ndarray, np.ndarray] | None = None
    replayed: bool | None = None
    margin: float | None = None
    radius: tuple[float, float] | None = None
    ideal: str | None = None
    eps: str | None = None
    missed: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdicts:
    """One verdict per assignment, in the order of the input."""

    verdicts: Sequence[Verdict]

    def __len__(self) -> int:
        return len(self.verdicts)

    def __getitem__(self, row: int) -> Verdict:
        return self.verdicts[row]

    def counts(self) -> dict[str, int]:
        return {status: sum(verdict.status == status for verdict in self.verdicts) for status in STATUSES}


@dataclass(frozen=True)
class Evaluation:
    """What a metric sees: the ranking, the label sets, the truth, and the training labels' frequencies.

    `sets` is what the decision rule outputs (None when the head has no rule); `filtered` pairs do not count.
    `train_counts` and `train_rows` are taken before any label stage; `propensity` is (A, B).
    """

    topk: TopK
    truth: csr_matrix
    train_counts: np.ndarray
    train_rows: int
    propensity: tuple[float, float]
    sets: csr_matrix | None = None
    filtered: csr_matrix | None = None
    workers: int = 1


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
