"""Label orders in which the active labels of a row form few cyclic arcs, on which the degree of a DFT layer depends.

Labels stand on a circle, label l at position `position[l]`. An arc is a maximal set of neighbours that are all active.
A row with c active labels has c arcs less the number of its labels that are followed by an active one, so over all rows

    Σ arcs = Σ c − Σ c_ij over neighbours i, j        (c_ij: rows in which both are active)

and the least sum is a heaviest tour. Joining labels to paths, strongest pair first, comes close to it. But the row with
the most arcs sets the degree. Rows therefore get weights that grow with their arcs, the paths are rebuilt from weighted
counts in several rounds, and the order with the lowest maximum of all rounds is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from xmckit import DataError, UsageError
from xmckit.data.model import as_csr

OrderKind = Literal["cooccurrence", "given"]

ROUNDS = 12
# A row weighs (its arcs ÷ the most arcs)^POWER + LEAST_WEIGHT; docs/label-orders.md compares powers.
POWER, LEAST_WEIGHT = 2, 1e-3
# A row of c labels has c²/2 pairs. With more pairs than this in all rows, a label is paired with fewer labels per row.
MOST_PAIRS = 1 << 24


def label_order(Y: csr_matrix, kind: OrderKind = "cooccurrence") -> np.ndarray:
    """Return the position of every label, from the label sets of training rows; labels without a row come last.

    "given" keeps the label ids as positions. The result depends on Y's pattern only.
    """
    if kind == "given":
        return np.arange(Y.shape[1], dtype=np.int64)
    if kind != "cooccurrence":
        raise UsageError(f'no label order is called {kind!r}, expected "cooccurrence" or "given"')
    return cooccurrence_order(as_csr(Y))


def cyclic_arcs(Y: csr_matrix, position: np.ndarray) -> np.ndarray:
    """Return the number of arcs of active labels in each row; 0 where no label or every label is active."""
    Y = as_csr(Y)
    position = check_position(position, Y.shape[1])
    return _count_arcs(Y.indptr.astype(np.int64), Y.indices.astype(np.int32), position, len(position))


def sign_rank_bound(Y: csr_matrix, position: np.ndarray) -> int:
    """Return 2·(most arcs) + 1: this many dimensions are enough for a linear layer that can output every row of Y."""
    return 2 * int(cyclic_arcs(Y, position).max(initial=0)) + 1


def check_position(position: Any, labels: int) -> np.ndarray:
    """Return `position` as int64; raise DataError unless it holds every number from 0 to labels − 1 once."""
    position = np.asarray(position)
    if position.shape != (labels,) or not (position.dtype.kind in "iu" or labels == 0):
        raise DataError(
            f"a label order needs one whole number for each of the {labels} labels, "
            f"found {position.dtype} values of shape {position.shape}"
        )
    outside = np.flatnonzero((position < 0) | (position >= labels))
    if len(outside):
        label = int(outside[0])
        raise DataError(
            f"this label order is not a permutation: label {label} has position {position[label]}, "
            f"expected 0 to {labels - 1}"
        )
    position = position.astype(np.int64)
    counts = np.bincount(position, minlength=labels)
    if labels and counts.max() > 1:
        repeated = int(np.argmax(counts > 1))
        first, second = np.flatnonzero(position == repeated)[:2]
        raise DataError(
            f"this label order is not a permutation: labels {first} and {second} both have position {repeated}"
        )
    return np.asarray(position)


def read_order(path: Path, labels: int) -> np.ndarray:
    """Read the positions of labels from a text file with one label id per line, in cyclic order."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"this label order cannot be read: {error}", path=path) from None
    position = np.full(labels, -1, dtype=np.int64)
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) >= labels:
            raise DataError(f"found {text[:40]!r}, expected a label id from 0 to {labels - 1}", path=path, line=number)
        label = int(text)
        if position[label] >= 0:
            raise DataError(f"label {text} is already in line {position[label] + 1}", path=path, line=number)
        position[label] = number - 1
    if len(lines) != labels:
        missing = int(np.argmin(position))
        raise DataError(f"found {len(lines)} of {labels} labels, label {missing} is missing", path=path)
    return position


def cooccurrence_order(
    Y: csr_matrix, *, rounds: int = ROUNDS, power: float = POWER, most_pairs: int = MOST_PAIRS
) -> np.ndarray:
    """Return positions by the method of this module's text. With 0 rounds, all rows weigh 1.

    `Y` is in the form that `as_csr` returns.
    """
    by_frequency, rows = _by_frequency(Y)
    pairs = label_pairs(rows, most_pairs)
    weights = np.ones(Y.shape[0])
    smoothed = np.zeros(Y.shape[0])
    best, best_key = np.arange(len(by_frequency)), (np.inf, np.inf, np.inf)
    for step in range(rounds + 1):
        order = heaviest_paths(rows, pairs, weights)
        arcs = _count_arcs(rows.indptr, rows.indices, _inverse(order), Y.shape[1])
        most = arcs.max(initial=0)
        key = (float(most), float(np.percentile(arcs, 99)) if len(arcs) else 0.0, float(arcs.sum()))
        if key < best_key:
            best, best_key = order, key
        if most <= 1:
            break
        # Without smoothing, two rows can alternate as the worst one for ever.
        smoothed = arcs.astype(np.float64) if step == 0 else (smoothed + arcs) / 2
        weights = (smoothed / smoothed.max()) ** power + LEAST_WEIGHT
    without_rows = np.setdiff1d(np.arange(Y.shape[1]), by_frequency)
    return _inverse(np.concatenate([by_frequency[best], without_rows]))


@dataclass(frozen=True)
class LabelPairs:
    """Pairs of labels that occur together, and their occurrences.

    Row r has the occurrences from `starts[r]` to `starts[r + 1]`; `pair_of` gives the pair (`first`, `second`) of each.
    """

    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray
    pair_of: np.ndarray


def label_pairs(rows: csr_matrix, most: int) -> LabelPairs:
    """Return every pair of labels of every row; if these are more than `most`, only of labels close in the row."""
    sizes = np.diff(rows.indptr)
    reach = int(sizes.max(initial=0))
    while reach > 1 and _pair_counts(sizes, reach).sum() > most:
        reach //= 2
    starts = np.concatenate([[0], np.cumsum(_pair_counts(sizes, reach))])
    labels = rows.shape[1]
    keys, pair_of = np.unique(_pair_keys(rows.indptr, rows.indices, starts, reach, labels), return_inverse=True)
    first, second = np.divmod(keys, max(labels, 1))
    return LabelPairs(first.astype(np.int32), second.astype(np.int32), starts, pair_of.astype(np.int32).ravel())


def heaviest_paths(rows: csr_matrix, pairs: LabelPairs, weights: np.ndarray) -> np.ndarray:
    """Order labels by joining pairs, largest first by the weight of their common rows ÷ the weight of either's rows."""
    single = _weight_sums(rows.indptr, rows.indices, weights, rows.shape[1])
    both = _weight_sums(pairs.starts, pairs.pair_of, weights, len(pairs.first))
    either = single[pairs.first] + single[pairs.second] - both
    strongest_first = np.argsort(-both / either, kind="stable")
    return join_paths(pairs.first, pairs.second, strongest_first, rows.shape[1])


def _by_frequency(Y: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """Return (the labels that have rows, most frequent first; Y with these as columns in this order)."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    labels = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    column_of = np.zeros(Y.shape[1], dtype=np.int32)
    column_of[labels] = np.arange(len(labels))
    rows = csr_matrix((Y.data, column_of[Y.indices], Y.indptr.astype(np.int64)), shape=(Y.shape[0], len(labels)))
    rows.sort_indices()
    # scipy narrows index arrays where it can; with one type the kernels are compiled once.
    rows.indptr = rows.indptr.astype(np.int64)
    return labels, rows


def _inverse(order: np.ndarray) -> np.ndarray:
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position


def _pair_counts(sizes: np.ndarray, reach: int) -> np.ndarray:
    """Return the number of pairs at most `reach` apart in rows of these sizes."""
    near = np.minimum(sizes.astype(np.int64) - 1, reach).clip(0)
    return near * sizes - near * (near + 1) // 2


@njit(cache=True, nogil=True)
def _count_arcs(indptr: np.ndarray, indices: np.ndarray, position: np.ndarray, labels: int) -> np.ndarray:
    """Count the last labels of arcs: those followed by a label that is not active."""
    last_row_at = np.full(labels, -1, dtype=np.int64)
    arcs = np.zeros(len(indptr) - 1, dtype=np.int64)
    for row in range(len(arcs)):
        for slot in range(indptr[row], indptr[row + 1]):
            last_row_at[position[indices[slot]]] = row
        for slot in range(indptr[row], indptr[row + 1]):
            after = position[indices[slot]] + 1
            if last_row_at[after if after < labels else 0] != row:
                arcs[row] += 1
    return arcs


@njit(cache=True, nogil=True)
def _pair_keys(indptr: np.ndarray, indices: np.ndarray, starts: np.ndarray, reach: int, labels: int) -> np.ndarray:
    keys = np.empty(starts[-1], dtype=np.int64)
    for row in range(len(indptr) - 1):
        slot, end = starts[row], indptr[row + 1]
        for i in range(indptr[row], end):
            for j in range(i + 1, min(i + reach + 1, end)):
                keys[slot] = np.int64(indices[i]) * labels + indices[j]
                slot += 1
    return keys


@njit(cache=True, nogil=True)
def _weight_sums(starts: np.ndarray, members: np.ndarray, weights: np.ndarray, size: int) -> np.ndarray:
    """Return for each member the sum of the weights of its rows."""
    sums = np.zeros(size)
    for row in range(len(starts) - 1):
        for slot in range(starts[row], starts[row + 1]):
            sums[members[slot]] += weights[row]
    return sums


@njit(cache=True, nogil=True)
def _root(parent: np.ndarray, label: int) -> int:
    while parent[label] != label:
        parent[label] = parent[parent[label]]
        label = parent[label]
    return label


@njit(cache=True, nogil=True)
def join_paths(first: np.ndarray, second: np.ndarray, edges: np.ndarray, labels: int) -> np.ndarray:
    """Join the two labels of each edge if both are ends of different paths; return the labels path after path."""
    neighbours = np.full((labels, 2), -1, dtype=np.int64)
    degree = np.zeros(labels, dtype=np.int64)
    parent = np.arange(labels)
    for edge in edges:
        i, j = first[edge], second[edge]
        if degree[i] == 2 or degree[j] == 2:
            continue
        root_i, root_j = _root(parent, i), _root(parent, j)
        if root_i == root_j:
            continue
        parent[root_j] = root_i
        neighbours[i, degree[i]], neighbours[j, degree[j]] = j, i
        degree[i] += 1
        degree[j] += 1
    order = np.empty(labels, dtype=np.int64)
    visited = np.zeros(labels, dtype=np.bool_)
    position = 0
    for start in range(labels):
        if visited[start] or degree[start] == 2:
            continue
        before, label = -1, start
        while label >= 0:
            order[position] = label
            visited[label] = True
            position += 1
            after = neighbours[label, 0] if neighbours[label, 0] != before else neighbours[label, 1]
            before, label = label, after
    return order
