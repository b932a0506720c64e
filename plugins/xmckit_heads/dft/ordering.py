"""Label orders in which the active labels of a row form few cyclic runs: what the degree of a DFT layer depends on.

Labels stand on a circle, label l at place `position[l]`. A row with c active labels has c runs less the number of its
labels whose next place is active too, so over all rows

    Σ runs = Σ c − Σ c_ij over neighbours i, j        (c_ij: rows in which both are active)

and the least sum is a heaviest tour. Joining labels to paths, strongest pair first, comes close to it. What sets the
degree, though, is the row with the most runs: rows therefore get weights that grow with their runs, the paths are
built anew from weighted counts, and the order with the lowest maximum of all rounds is kept.
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
# A row weighs (its runs ÷ the most runs)^POWER + LEAST_WEIGHT; docs/label-orders.md compares powers.
POWER, LEAST_WEIGHT = 2, 1e-3
# A row of c labels has c²/2 pairs. Beyond this many over all rows, a label is paired with fewer labels of each row.
MOST_PAIRS = 1 << 24


def label_order(Y: csr_matrix, kind: OrderKind = "cooccurrence") -> np.ndarray:
    """The place of every label, from the label sets of training rows; labels without a row come last.

    "given" keeps the label ids as places. The result depends on nothing but Y's pattern.
    """
    if kind == "given":
        return np.arange(Y.shape[1], dtype=np.int64)
    if kind != "cooccurrence":
        raise UsageError(f'no label order is called {kind!r}, expected "cooccurrence" or "given"')
    return cooccurrence_order(as_csr(Y))


def cyclic_runs(Y: csr_matrix, position: np.ndarray) -> np.ndarray:
    """The number of cyclic runs of active labels in each row; 0 where no label or every label is active."""
    Y = as_csr(Y)
    places = checked_position(position, Y.shape[1])
    return _count_runs(Y.indptr.astype(np.int64), Y.indices.astype(np.int32), places, len(places))


def sign_rank_bound(Y: csr_matrix, position: np.ndarray) -> int:
    """2·(most runs) + 1: so many dimensions are enough for a linear layer that can output every row of Y."""
    return 2 * int(cyclic_runs(Y, position).max(initial=0)) + 1


def checked_position(position: Any, labels: int) -> np.ndarray:
    """`position` as int64, or DataError unless it holds every place from 0 to labels − 1 once."""
    places = np.asarray(position)
    if places.shape != (labels,) or not (places.dtype.kind in "iu" or labels == 0):
        raise DataError(
            f"a label order needs one whole number for each of the {labels} labels, "
            f"found {places.dtype} values of shape {places.shape}"
        )
    outside = np.flatnonzero((places < 0) | (places >= labels))
    if len(outside):
        label = int(outside[0])
        raise DataError(
            f"this label order is no permutation: label {label} has place {places[label]}, expected 0 to {labels - 1}"
        )
    places = places.astype(np.int64)
    counts = np.bincount(places, minlength=labels)
    if labels and counts.max() > 1:
        place = int(np.argmax(counts > 1))
        first, second = np.flatnonzero(places == place)[:2]
        raise DataError(f"this label order is no permutation: labels {first} and {second} both have place {place}")
    return places


def read_order(path: Path, labels: int) -> np.ndarray:
    """The places of labels from a text file with one label id a line, in cyclic order."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"this label order cannot be read: {error}", path=path) from None
    position = np.full(labels, -1, dtype=np.int64)
    for place, line in enumerate(lines):
        text = line.strip()
        if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) >= labels:
            raise DataError(
                f"found {text[:40]!r}, expected a label id from 0 to {labels - 1}", path=path, line=place + 1
            )
        if position[int(text)] >= 0:
            seen = position[int(text)] + 1
            raise DataError(f"label {text} again, it is in line {seen} already", path=path, line=place + 1)
        position[int(text)] = place
    if len(lines) != labels:
        missing = int(np.argmin(position))
        raise DataError(f"found {len(lines)} of {labels} labels, label {missing} is missing", path=path)
    return position


def cooccurrence_order(
    Y: csr_matrix, *, rounds: int = ROUNDS, power: float = POWER, most_pairs: int = MOST_PAIRS
) -> np.ndarray:
    """Places by the method of this module's text; `Y` is in the form of `as_csr`. Without rounds, all rows weigh 1."""
    by_frequency, rows = _by_frequency(Y)
    pairs = label_pairs(rows, most_pairs)
    weights = np.ones(Y.shape[0])
    smoothed = np.zeros(Y.shape[0])
    best, best_key = np.arange(len(by_frequency)), (np.inf, np.inf, np.inf)
    for step in range(rounds + 1):
        order = heaviest_paths(rows, pairs, weights)
        runs = _count_runs(rows.indptr, rows.indices, _inverse(order), Y.shape[1])
        most = runs.max(initial=0)
        key = (float(most), float(np.percentile(runs, 99)) if len(runs) else 0.0, float(runs.sum()))
        if key < best_key:
            best, best_key = order, key
        if most <= 1:
            break
        # half of what was before: rows that take turns in being the worst would otherwise do so for ever
        smoothed = runs.astype(np.float64) if step == 0 else (smoothed + runs) / 2
        weights = (smoothed / smoothed.max()) ** power + LEAST_WEIGHT
    without_rows = np.setdiff1d(np.arange(Y.shape[1]), by_frequency)
    return _inverse(np.concatenate([by_frequency[best], without_rows]))


@dataclass(frozen=True)
class Pairs:
    """Pairs of labels that occur together. Row r has the occurrences from `starts[r]` to `starts[r + 1]`, and `pair_of`
    says of each which pair (`first`, `second`) it is.
    """

    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray
    pair_of: np.ndarray


def label_pairs(rows: csr_matrix, most: int) -> Pairs:
    """Every pair of labels of every row. Where these are more than `most`, only labels near each other in the row."""
    sizes = np.diff(rows.indptr)
    reach = int(sizes.max(initial=0))
    while reach > 1 and _pair_counts(sizes, reach).sum() > most:
        reach //= 2
    starts = np.concatenate([[0], np.cumsum(_pair_counts(sizes, reach))])
    labels = rows.shape[1]
    keys, pair_of = np.unique(_pair_keys(rows.indptr, rows.indices, starts, reach, labels), return_inverse=True)
    first, second = np.divmod(keys, max(labels, 1))
    return Pairs(first.astype(np.int32), second.astype(np.int32), starts, pair_of.astype(np.int32).ravel())


def heaviest_paths(rows: csr_matrix, pairs: Pairs, weights: np.ndarray) -> np.ndarray:
    """Labels in an order that joins pairs by the weight of their common rows ÷ the weight of the rows of either."""
    single = _weight_sums(rows.indptr, rows.indices, weights, rows.shape[1])
    both = _weight_sums(pairs.starts, pairs.pair_of, weights, len(pairs.first))
    either = single[pairs.first] + single[pairs.second] - both
    strongest_first = np.argsort(-both / either, kind="stable")
    return join_paths(pairs.first, pairs.second, strongest_first, rows.shape[1])


def _by_frequency(Y: csr_matrix) -> tuple[np.ndarray, csr_matrix]:
    """(labels that have rows, most frequent first; Y with these as columns in this order)."""
    counts = np.bincount(Y.indices, minlength=Y.shape[1])
    labels = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    column_of = np.zeros(Y.shape[1], dtype=np.int32)
    column_of[labels] = np.arange(len(labels))
    rows = csr_matrix((Y.data, column_of[Y.indices], Y.indptr.astype(np.int64)), shape=(Y.shape[0], len(labels)))
    rows.sort_indices()
    # scipy narrows index arrays where it can; one type of each keeps the kernels to one compilation
    rows.indptr = rows.indptr.astype(np.int64)
    return labels, rows


def _inverse(order: np.ndarray) -> np.ndarray:
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position


def _pair_counts(sizes: np.ndarray, reach: int) -> np.ndarray:
    """Pairs at most `reach` apart among so many labels."""
    near = np.minimum(sizes.astype(np.int64) - 1, reach).clip(0)
    return near * sizes - near * (near + 1) // 2


@njit(cache=True, nogil=True)
def _count_runs(indptr: np.ndarray, indices: np.ndarray, position: np.ndarray, places: int) -> np.ndarray:
    """A run on the circle of so many places has one last label: one whose next place is not active."""
    last_row_at = np.full(places, -1, dtype=np.int64)
    runs = np.zeros(len(indptr) - 1, dtype=np.int64)
    for row in range(len(runs)):
        for slot in range(indptr[row], indptr[row + 1]):
            last_row_at[position[indices[slot]]] = row
        for slot in range(indptr[row], indptr[row + 1]):
            after = position[indices[slot]] + 1
            if last_row_at[after if after < places else 0] != row:
                runs[row] += 1
    return runs


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
    """For each member, the weights of the rows that it is in."""
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
    """Join the two labels of each edge if both are ends of paths, and not of one path; then path after path."""
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
    placed = np.zeros(labels, dtype=np.bool_)
    place = 0
    for start in range(labels):
        if placed[start] or degree[start] == 2:
            continue
        before, label = -1, start
        while label >= 0:
            order[place] = label
            placed[label] = True
            place += 1
            after = neighbours[label, 0] if neighbours[label, 0] != before else neighbours[label, 1]
            before, label = label, after
    return order
