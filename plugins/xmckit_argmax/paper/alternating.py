"""What an alternating layer can output as it is defined, before its numbers are rounded: by counting runs.

The rows of such a layer are points on a curve, in a cyclic order, that a hyperplane meets at most 2·degree times and
can meet anywhere it likes (Grivas et al. 2024, theorem 3; trigonometric polynomials of that degree are one case). So
sign(W·x) changes at most 2·degree times around the circle, which is at most `degree` runs of active labels, and every
set with so few runs is some sign(W·x). A set and its complement have equally many runs: −x serves for the other.

- Slack columns: x may be zero there, so few runs are enough whatever they hold; many runs prove nothing.
- Biases: a large multiple of x outweighs them, so few runs are enough. One bias for all labels is a multiple of the
  constant that the curve has anyway, so that many runs stay out of reach; unequal biases prove nothing.
- Rule "topk": the active labels are above some threshold and the others below. A threshold is one more bias, equal for
  all labels. So the answers are those of rule "sign": few runs can be ranked first, and with slack 0 and equal biases
  many runs cannot.

These are statements about the ideal layer. A float32 copy of its matrix may not reach a set that the layer reaches.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit import DataError, LinearDecision
from xmckit.data.model import as_csr
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, Alternating


def ideal_answers(
    decision: LinearDecision, assignments: csr_matrix, candidates: csr_matrix | None = None
) -> list[str | None]:
    """For each row of `assignments` the answer of the layer as defined; None where its structure proves nothing.

    With `candidates` (a CSR row for each assignment) the answer is for these labels alone: some points of the curve
    are an alternating layer too. An active label outside them is out of reach.
    """
    structure = decision.structure
    if structure is None:
        return [None] * assignments.shape[0]
    _check(structure, decision.W, assignments)
    beyond = UNARGMAXABLE if structure.slack == 0 and _equal(decision.b) else None
    if candidates is None:
        runs, missed = cyclic_runs(assignments, structure.order), np.zeros(assignments.shape[0], dtype=bool)
    else:
        runs, missed = _runs_among(assignments, candidates, structure.order)
    return [
        UNARGMAXABLE if out else ARGMAXABLE if count <= structure.degree else beyond
        for count, out in zip(runs.tolist(), missed.tolist(), strict=True)
    ]


def cyclic_runs(assignments: csr_matrix, order: np.ndarray) -> np.ndarray:
    """The runs of active labels of each row around the circle; 0 where no label or every label is active.

    `order` has the place of each label. The time is that of looking at the active labels once.
    """
    Y = as_csr(assignments)
    places = _permutation(order, Y.shape[1])
    return _count_runs(Y.indptr.astype(np.int64), Y.indices.astype(np.int64), places)


@njit(cache=True, nogil=True)
def _count_runs(indptr: np.ndarray, indices: np.ndarray, places: np.ndarray) -> np.ndarray:
    rows = len(indptr) - 1
    runs = np.zeros(rows, dtype=np.int64)
    last_row_at = np.full(len(places), -1, dtype=np.int64)
    for row in range(rows):
        for entry in range(indptr[row], indptr[row + 1]):
            last_row_at[places[indices[entry]]] = row
        for entry in range(indptr[row], indptr[row + 1]):
            # place 0 comes after the last place: −1 is the last entry
            runs[row] += last_row_at[places[indices[entry]] - 1] != row
    return runs


def _runs_among(assignments: csr_matrix, candidates: csr_matrix, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The runs of each row on a circle of its candidates alone, and whether an active label is not among them."""
    if candidates.shape != assignments.shape:
        raise DataError(f"the candidates are {candidates.shape}, expected the shape of the assignments")
    rows, labels = assignments.shape
    active, circle = as_csr(assignments), as_csr(_pattern(candidates))
    places = _permutation(order, labels)
    row_of = np.repeat(np.arange(rows), np.diff(circle.indptr))
    around = np.lexsort((places[circle.indices], row_of))
    wanted = np.repeat(np.arange(rows), np.diff(active.indptr)) * labels + active.indices
    is_active = np.isin(row_of * labels + circle.indices[around], wanted)
    # the candidate before the first one of a row is its last one
    before = np.arange(circle.nnz) - 1
    filled = np.flatnonzero(np.diff(circle.indptr))
    before[circle.indptr[filled]] = circle.indptr[filled + 1] - 1
    runs = np.bincount(row_of[is_active & ~is_active[before]], minlength=rows)
    found = np.bincount(row_of[is_active], minlength=rows)
    return runs, found < np.diff(active.indptr)


def _pattern(matrix: csr_matrix) -> csr_matrix:
    """Ones at every stored place: a candidate whose score is 0 is still one."""
    return csr_matrix((np.ones(matrix.nnz, dtype=np.float32), matrix.indices, matrix.indptr), shape=matrix.shape)


def _check(structure: Alternating, W: np.ndarray, assignments: csr_matrix) -> None:
    """DataError unless the structure can be true of this matrix, and the assignments are about its labels."""
    labels, columns = W.shape
    if assignments.shape[1] != labels:
        raise DataError(f"the assignments have {assignments.shape[1]} labels, expected the {labels} rows of W")
    if structure.degree < 0 or structure.slack < 0:
        raise DataError(
            f"an alternating structure of degree {structure.degree} with slack {structure.slack} cannot be: "
            "expected 0 or more of both"
        )
    expected = 2 * structure.degree + 1 + structure.slack
    if columns != expected:
        # with fewer columns Cover's count makes the promise impossible, with more there is hidden slack
        raise DataError(
            f"an alternating structure of degree {structure.degree} with slack {structure.slack} needs "
            f"2·degree + 1 + slack = {expected} columns, but W has {columns}"
        )


def _permutation(order: np.ndarray, labels: int) -> np.ndarray:
    """`order` as int64, or DataError unless it has every place from 0 to labels − 1 once."""
    places = np.asarray(order)
    if places.shape != (labels,) or (labels and places.dtype.kind not in "iu"):
        raise DataError(
            f"the label order of an alternating structure has {places.dtype} values of shape {places.shape}, "
            f"expected one whole number for each of the {labels} labels"
        )
    places = places.astype(np.int64)
    label_at = np.full(labels, -1, dtype=np.int64)
    inside = (places >= 0) & (places < labels)
    if not inside.all():
        label = int(np.argmin(inside))
        raise DataError(f"label {label} has place {places[label]} in the label order, expected 0 to {labels - 1}")
    label_at[places] = np.arange(labels)
    twice = np.flatnonzero(label_at[places] != np.arange(labels))
    if len(twice):
        place = int(places[twice[0]])
        raise DataError(
            f"the label order is no permutation: labels {twice[0]} and {label_at[place]} both have place {place}"
        )
    return places


def _equal(b: np.ndarray | None) -> bool:
    return b is None or len(b) == 0 or bool((np.asarray(b) == b[0]).all())
