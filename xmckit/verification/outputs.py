"""Compare the label sets that a head outputs with its decision, before and after a verifier judges the decision.

A verdict is about W·x + b; it says something about a head only if the head outputs what W·x + b says. So labels() and
`replay` are compared with the decision on real rows, up to the rounding that `xmckit.decisions` allows the scorer. A
head that fails is not verifiable. A label set that was output and is called unargmaxable is a contradiction if W·x + b
gives it in exact arithmetic, and otherwise one that the head outputs only by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from xmckit import store
from xmckit.data.model import Matrix, as_csr
from xmckit.decisions import Comparison, compare, contested_labels, excess_of_bounds
from xmckit.errors import DataError, PluginError, VerificationError
from xmckit.protocols import Head, ShortlistHead, offers
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, LinearDecision, Verdict
from xmckit.runs import HeadVerdicts, Mismatch

NOT_ITS_OUTPUT = "its decision is not what it outputs"
ROWS = 256
LEAST_ROWS = 16
PRODUCTS = 1 << 32  # rows × labels × columns of one comparison
REPLAYS = 256


@dataclass(frozen=True)
class RealRows:
    """Rows of a split on which decisions are compared with outputs: their numbers, and their features for each head."""

    split: str
    numbers: np.ndarray
    X: Mapping[str, Matrix]

    def affordable(self, decision: LinearDecision) -> slice:
        """Leave out rows, evenly, if comparing all would take too long for the size of W."""
        most = max(LEAST_ROWS, PRODUCTS // max(1, decision.W.size))
        return slice(None, None, max(1, -(-len(self.numbers) // most)))


def sample_rows(rows: int) -> np.ndarray:
    """Return the numbers of up to `ROWS` rows, evenly spread."""
    return np.unique(np.linspace(0, max(0, rows - 1), min(rows, ROWS)).astype(np.int64))


def not_its_output(head: str, mismatch: Mismatch) -> HeadVerdicts:
    """Return the result of a head whose decision is not what it outputs."""
    why = f"{NOT_ITS_OUTPUT}: {mismatch['detail']}"
    return {"head": head, "scope": "full", "verifiable": False, "why": why, "mismatch": mismatch}


def find_mismatch(name: str, head: Head, decision: LinearDecision, real: RealRows) -> Mismatch | None:
    """Compare labels() and `replay` with the decision on real rows; return the first difference beyond rounding."""
    some = real.affordable(decision)
    X, numbers = real.X[name][some], real.numbers[some]
    vectors, expected = head.features(X), (X.shape[0], decision.W.shape[1])
    if vectors is None or np.shape(vectors) != expected:
        given = "None" if vectors is None else f"of size {np.shape(vectors)}"
        return _mismatch("features", f"features() is {given}, expected vectors of size {expected}")
    output = label_sets(name, head, X, len(decision.W))
    where = f"{real.split} rows"
    among = candidates_of(name, head, X, len(decision.W))
    found = compare(decision, vectors, output, among)
    mismatch = _difference("labels", found, where, numbers)
    if mismatch is None and (excess := excess_of_bounds(decision, found, len(numbers))):
        return _mismatch("rounding", excess)
    if mismatch is None and decision.replay is not None:
        replayed = _replay(decision, vectors, np.diff(output.indptr))
        mismatch = _difference("replay", compare(decision, vectors, replayed), where, numbers)
    return mismatch


def find_false_replay(decision: LinearDecision, verdicts: Sequence[Verdict], sets: csr_matrix) -> Mismatch | None:
    """Compare `replay` with the decision for witnesses that it did not confirm, which only rounding may explain."""
    if decision.replay is None:
        return None
    lost = [row for row, one in enumerate(verdicts) if one.status == ARGMAXABLE and one.replayed is False]
    lost = [row for row in lost if verdicts[row].witness is not None][:REPLAYS]
    with np.errstate(over="ignore"):
        vectors = np.asarray([verdicts[row].witness for row in lost], dtype=np.float32)
    finite = np.flatnonzero(np.isfinite(vectors).all(axis=-1)) if lost else np.empty(0, np.int64)
    if not len(finite):
        return None
    numbers = np.asarray(lost)[finite]
    replayed = _replay(decision, vectors[finite], np.diff(sets.indptr)[numbers])
    return _difference("replay", compare(decision, vectors[finite], replayed), "witnesses", numbers)


def find_rounded(
    who: str, decision: LinearDecision, verdicts: Sequence[Verdict], sets: csr_matrix, own: OwnOutputs
) -> tuple[np.ndarray, Mismatch | None]:
    """Return the positions of sets that the head output only by rounding, and a difference that is more than that.

    `who` names head and verifier for the VerificationError about a set that is called unargmaxable although W·x + b
    gives it in exact arithmetic for the row on which the head output it.
    """
    from xmckit.testing.brute_force import outputs

    contested = [row for row in own.positions.tolist() if verdicts[row].status == UNARGMAXABLE]
    if not contested:
        return np.empty(0, np.int64), None
    vectors = own.vectors(np.asarray(contested))
    for x, row in zip(vectors, contested, strict=True):
        labels, among = _row(sets, row), None if own.candidates is None else _row(own.candidates, row)
        active = np.zeros(sets.shape[1], dtype=bool)
        active[labels] = True
        decided_by = contested_labels(decision, x, labels, among)
        if outputs(decision, np.asarray(x, dtype=np.float64), active, decided_by):
            raise VerificationError(
                f"{who} contradict each other: on row {own.numbers[row]} the head outputs the labels "
                f"{labels.tolist()}, as W·x + b does in exact arithmetic, and the verifier calls this set "
                "unargmaxable. One of the two is wrong: no verdict was written"
            )
    among = None if own.candidates is None else own.candidates[contested]
    found = compare(decision, vectors, sets[contested], among)
    return np.asarray(contested), _difference("labels", found, "rows", own.numbers[contested])


@dataclass(frozen=True)
class OwnOutputs:
    """The verified label sets that a head itself output: at which positions, from which rows, among which candidates.

    `numbers` has the row of each position.
    """

    head: Head
    X: Matrix
    rows: np.ndarray  # of X, for each position
    positions: np.ndarray
    numbers: np.ndarray
    candidates: csr_matrix | None

    def vectors(self, positions: np.ndarray) -> np.ndarray:
        """Return the vectors of some positions, computed with those of all rows of X, as labels() does."""
        vectors = self.head.features(self.X)
        if vectors is None:
            raise PluginError("features() is None although there is a decision")
        return vectors[self.rows[positions]]


def label_sets(name: str, head: Head, X: Matrix, labels: int) -> csr_matrix:
    """Return labels(X) in canonical form; PluginError unless it is a sparse matrix of rows × labels."""
    return _checked(head.labels(X), (X.shape[0], labels), f"labels() of head {name}")


def candidates_of(name: str, head: Any, X: Matrix, labels: int) -> csr_matrix | None:
    """Return the labels that a head behind a shortlist can output for each row; None for a head without a shortlist."""
    candidates = head.candidates(X) if offers(head, ShortlistHead) else None
    if candidates is None:
        return None
    what = f"candidates() of head {name}"
    if getattr(candidates, "format", "") != "csr":
        raise PluginError(f"{what} gave a {type(candidates).__name__}, expected a CSR matrix")
    _check_sound(candidates, what)
    # A candidate may have the score 0; what counts is that it is listed.
    ones = np.ones(candidates.nnz, np.float32)
    listed = csr_matrix((ones, candidates.indices, candidates.indptr), candidates.shape)
    return _checked(listed, (X.shape[0], labels), what)


def pattern(matrix: csr_matrix) -> csr_matrix:
    """Return ones where `matrix` has entries, in canonical form."""
    matrix = as_csr(matrix)
    return csr_matrix((np.ones(matrix.nnz, np.float32), matrix.indices, matrix.indptr), matrix.shape)


def same_rows(one: csr_matrix, other: csr_matrix) -> np.ndarray:
    """Return the numbers of the rows in which two patterns are equal."""
    return np.flatnonzero((one != other).getnnz(axis=1) == 0)


def _checked(matrix: Any, shape: tuple[int, int], what: str) -> csr_matrix:
    if not issparse(matrix) or matrix.shape != shape:
        found = f"a {type(matrix).__name__} of size {getattr(matrix, 'shape', None)}"
        raise PluginError(f"{what} gave {found}, expected a CSR matrix of size {shape}")
    _check_sound(matrix, what)
    return pattern(matrix)


def _check_sound(matrix: Any, what: str) -> None:
    try:
        store.check_matrix(matrix, f"the matrix of {what}")
    except DataError as error:
        raise PluginError(str(error)) from None


def _replay(decision: LinearDecision, vectors: np.ndarray, counts: np.ndarray) -> csr_matrix:
    assert decision.replay is not None
    given = [counts] if decision.rule == "topk" else []
    return _checked(decision.replay(vectors, *given), (len(vectors), len(decision.W)), "replay of the decision")


def _difference(check: str, found: Comparison, where: str, numbers: np.ndarray) -> Mismatch | None:
    if found.first is None:
        return None
    first = replace(found.first, row=int(numbers[found.first.row]))
    what = "labels()" if check == "labels" else check
    detail = f"{what} differs from W·x + b in {len(found.wrong)} of {len(numbers)} {where}, first in {first}"
    return _mismatch(check, detail, first.row, first.label)


def _mismatch(check: str, detail: str, row: int | None = None, label: int | None = None) -> Mismatch:
    return {"check": check, "row": row, "label": label, "detail": detail}


def _row(matrix: csr_matrix, row: int) -> np.ndarray:
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]
