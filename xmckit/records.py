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

# Rules to combine the rankings of several heads or runs.
Combining: TypeAlias = Literal["average", "rank", "softmax"]


@dataclass(frozen=True)
class TopK:
    """The best labels of each row, best first: `indices` int32 and `scores` float32, rows × k, padded with −1.

    Scores are logits unless the head is calibrated; padding has the score −inf.
    """

    indices: np.ndarray
    scores: np.ndarray

    @classmethod
    def of_blocks(cls, blocks: Sequence[TopK]) -> TopK:
        """Join the rankings of blocks of rows, which have the same k."""
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
    """The structure of a W with rows on a curve that any hyperplane meets in at most 2·degree points (the Gr⁺ family).

    The DFT layer is one. `order` arranges the label ids in a cycle. A label set that forms at most `degree` arcs of
    active labels in it is argmaxable by construction, for any bias; with `slack` = 0 and one bias for all labels, no
    other set is.
    """

    degree: int
    slack: int
    order: np.ndarray


@dataclass(frozen=True)
class LinearDecision:
    """The decision of a head: the layer that its prediction really uses, and its rule.

    `W` is labels × d with rows in label-id order; `b` has one entry per label or is None. Rule `sign`: a label is
    output if W·x + b > 0, so a logit of exactly 0 is off. Rule `topk`: the labels with the largest W·x + b are output,
    and of equal ones those with the lower id (see `xmckit.sparse.topk`), so a label set is argmaxable if some x ranks
    exactly its labels first. The space of x is the widest one that the head can fill (see `Head.features`). `replay`
    runs vectors x through the head's own scorer (its float32, its FFT) and returns the label sets; for `topk` it also
    takes the number of labels to output per row. `inputs` is the number of features that vectors are computed from, if
    the head knows it; if it is less than d, some vectors belong to no row.

    `threshold` and `rounding` say how far that scorer may be from W·x + b: see `xmckit.decisions`. A scorer that adds a
    bias and compares with a threshold gives their difference as `b` and the threshold as `threshold`. `rounding` is for
    a scorer that is no float32 product of W and x, such as an FFT.
    """

    W: np.ndarray
    b: np.ndarray | None
    rule: Literal["sign", "topk"] = "sign"
    structure: Alternating | None = None
    replay: Callable[..., csr_matrix] | None = None
    inputs: int | None = None
    threshold: float = 0.0
    rounding: float | None = None


ARGMAXABLE, UNARGMAXABLE, UNRESOLVED = "argmaxable", "unargmaxable", "unresolved"
STATUSES = (ARGMAXABLE, UNARGMAXABLE, UNRESOLVED)


@dataclass(frozen=True)
class Verdict:
    """The answer for one assignment, and its proof.

    The status is about the stored matrix and the rule of `LinearDecision`, ties included. *argmaxable* is proved for a
    feature vector (`witness`), not for a document. If float64 cannot hold the vector that proves it, `exact_witness`
    holds it as integers, the numerators of its entries and then their common denominator, and `witness` is the nearest
    float64 vector. *unargmaxable* is proved for every input, by `certificate` = (label ids, multipliers) of a positive
    combination that is zero and ties labels that must not be tied. `replayed`: the head's own scorer output the
    assignment for `witness`. `margin` is that of the witness; it is 0 if the set is output by a tie only. `radius`
    bounds the Chebyshev radius; for an argmaxable set the certificate proves the upper bound, by weak duality. `ideal`
    is the answer for the layer as defined (from its structure), `eps` the one for the paper's tolerance and box, where
    ties do not count. `missed` are active labels outside the candidates.
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
    exact_witness: tuple[int, ...] | None = None


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
    """The input of a metric: the ranking, the label sets, the truth, and the label frequencies in training.

    `sets` are the outputs of the decision rule, None if the head has no rule. `filtered` pairs do not count.
    `train_counts` and `train_rows` are from before the label stage; `propensity` is (A, B).
    """

    topk: TopK
    truth: csr_matrix
    train_counts: np.ndarray
    train_rows: int
    propensity: tuple[float, float]
    sets: csr_matrix | None = None
    filtered: csr_matrix | None = None
    workers: int = 1
