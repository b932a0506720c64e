"""What an alternating layer can output as it is defined, before its numbers are rounded: a matter of counting arcs.

An arc is a cyclic run of active labels in the label order. The rows of such a layer are points on a curve, in a cyclic
order. A hyperplane meets the curve at most 2·degree times, and at any chosen 2·degree points (Grivas et al. 2024,
theorem 3; trigonometric polynomials of that degree are one case). So sign(W·x) changes at most 2·degree times around
the circle: it has at most `degree` arcs, and every set with at most `degree` arcs is sign(W·x) for some x. A set and
its complement have equally many arcs: if x gives one of them, −x gives the other.

- Slack columns: x may be zero there, so `degree` arcs are always possible; more arcs prove nothing.
- Biases: a large multiple of x outweighs them, so `degree` arcs are possible. One bias for all labels is a multiple of
  the curve's constant, so more arcs stay impossible; with unequal biases more arcs prove nothing.
- Rule "topk": the active labels are above some threshold and the others below. A threshold is one more bias, equal for
  all labels. So the statuses are those of the rule "sign": `degree` arcs can be ranked first, and with slack 0 and
  equal biases more arcs cannot.
- Ties: a zero that the curve only touches counts twice, so zeros at labels add no arc: where the polynomial is not 0
  everywhere, at most `degree` arcs are output. Where it is, all labels are tied, which x = 0 does if the biases are
  equal. The rule "sign" then outputs no label, and "topk" those with the lowest ids, in however many arcs they are.

These are statements about the ideal layer. A float32 copy of its matrix may not reach a set that the layer reaches.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import DataError, LinearDecision
from xmckit.data.model import as_csr
from xmckit.records import ARGMAXABLE, UNARGMAXABLE, Alternating


def ideal_statuses(
    decision: LinearDecision, assignments: csr_matrix, candidates: csr_matrix | None = None
) -> list[str | None]:
    """Return the status of each assignment for the layer as defined; None if its structure proves nothing.

    With `candidates` (a CSR row for each assignment) the status is for these labels alone, since some of the points of
    the curve are an alternating layer too. An active label outside the candidates makes the set unargmaxable.
    """
    structure = decision.structure
    if structure is None:
        return [None] * assignments.shape[0]
    _check(structure, decision.W.shape[1])
    equal_biases = decision.b is None or len(np.unique(decision.b)) <= 1
    beyond = UNARGMAXABLE if structure.slack == 0 and equal_biases else None
    if candidates is None:
        arcs, missed = cyclic_arcs(assignments, structure.order), np.zeros(assignments.shape[0], dtype=bool)
    else:
        arcs, missed = _arcs_among(assignments, candidates, structure.order)
    possible = arcs <= structure.degree
    if decision.rule == "topk" and equal_biases:
        possible |= _are_lowest(assignments, candidates)
    return [
        UNARGMAXABLE if misses else ARGMAXABLE if can else beyond
        for can, misses in zip(possible.tolist(), missed.tolist(), strict=True)
    ]


def _are_lowest(assignments: csr_matrix, candidates: csr_matrix | None) -> np.ndarray:
    """Return for each row whether its active labels are those with the lowest ids, among the candidates if any."""
    rows, active = _entries(assignments)
    ranks = active.astype(np.int64)
    if candidates is not None:  # the number of candidates of the row with a lower id
        listed_rows, listed = _entries(candidates)
        labels = assignments.shape[1]
        keys = listed_rows * labels + listed
        ranks = np.searchsorted(keys, rows * labels + active) - np.searchsorted(keys, rows * labels)
    counts = np.bincount(rows, minlength=assignments.shape[0])
    return np.asarray(np.bincount(rows[ranks >= counts[rows]], minlength=assignments.shape[0]) == 0)


def cyclic_arcs(assignments: csr_matrix, order: np.ndarray) -> np.ndarray:
    """Count the arcs of each row around the circle; 0 if no label or every label is active.

    `order` holds the place of each label.
    """
    rows, active = _entries(assignments)
    labels = assignments.shape[1]
    places = _permutation(order, labels)[active]
    starts = ~np.isin(rows * labels + (places - 1) % labels, rows * labels + places)
    return np.bincount(rows[starts], minlength=assignments.shape[0])


def _arcs_among(assignments: csr_matrix, candidates: csr_matrix, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the arcs of each row on the circle of its candidates; also return whether they miss an active label."""
    count, labels = assignments.shape
    rows, listed = _entries(candidates)
    active_rows, active = _entries(assignments)
    around = np.lexsort((_permutation(order, labels)[listed], rows))
    is_active = np.isin(rows * labels + listed[around], active_rows * labels + active)
    # the candidate before the first one of a row is its last one
    before = np.arange(len(rows)) - 1
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    before[first] = np.append(first[1:], len(rows)) - 1
    arcs = np.bincount(rows[is_active & ~is_active[before]], minlength=count)
    covered = np.bincount(rows[is_active], minlength=count)
    return arcs, covered < np.bincount(active_rows, minlength=count)


def _entries(matrix: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and the label of each entry, row by row."""
    matrix = as_csr(matrix)
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices


def _check(structure: Alternating, columns: int) -> None:
    """Raise DataError unless the structure is possible for a matrix with this number of columns."""
    what = f"an alternating structure of degree {structure.degree} with slack {structure.slack}"
    if structure.degree < 0 or structure.slack < 0:
        raise DataError(f"{what} is impossible: expected 0 or more of both")
    expected = 2 * structure.degree + 1 + structure.slack
    if columns != expected:
        # with fewer columns Cover's count makes the claim impossible, more columns are hidden slack
        raise DataError(f"{what} needs 2·degree + 1 + slack = {expected} columns, but W has {columns}")


def _permutation(order: np.ndarray, labels: int) -> np.ndarray:
    """Return `order` as int64, or raise DataError unless it holds every place from 0 to labels − 1 once."""
    places = np.asarray(order)
    if places.shape != (labels,) or (labels and places.dtype.kind not in "iu"):
        raise DataError(
            f"the label order of an alternating structure has {places.dtype} values of shape {places.shape}, "
            f"expected one whole number for each of the {labels} labels"
        )
    places = places.astype(np.int64)
    outside = np.flatnonzero((places < 0) | (places >= labels))
    if len(outside):
        label = outside[0]
        raise DataError(f"label {label} has place {places[label]} in the label order, expected 0 to {labels - 1}")
    shared = np.flatnonzero(np.bincount(places, minlength=labels) > 1)
    if len(shared):
        one, other = np.flatnonzero(places == shared[0])[:2]
        raise DataError(f"the label order is not a permutation: labels {one} and {other} both have place {shared[0]}")
    return places
