"""The plain records that pass between components: rankings, decisions, verdicts, evaluations.

They hold arrays and numbers, import no other part of xmckit, and are public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from scipy.sparse import csr_matrix

# How the rankings of several heads, or of several runs, become one.
Combining: TypeAlias = Literal["average", "rank", "softmax"]


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
        import numpy as np

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
