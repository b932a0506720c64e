"""Compare label orders by the arcs that the active labels of rows form, and write docs/label-orders.md.

    python -m benchmarks.heads.label_orders [--data DIR] [--json] [--render]

DIR (or $XMCKIT_DATA) holds a folder with Y.trn.npz and Y.tst.npz per data set; without it, only the built-in
`stdlib-calls` is measured. Every order sees the training labels only. "cooccurrence" is the order of the plugin; the
others are defined here for comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import coo_matrix, csr_matrix, load_npz
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import eigsh
from xmckit_heads.dft.ordering import cooccurrence_order, cyclic_arcs, join_paths, label_order, sign_rank_bound

import xmckit
from benchmarks.common import paths
from benchmarks.common.markdown import header, row, versions_text
from benchmarks.common.memory import extra_memory
from xmckit.data.model import as_csr
from xmckit.runs.provenance import library_versions, machine

PAGE, RESULTS = paths.DOCS / "label-orders.md", paths.RESULTS / "label_orders.json"
LIBRARIES = ("numba", "numpy", "python", "scipy")
SCALE = {"rows": 500_000, "labels": 670_000, "topics": 20_000, "labels_per_row": 5.0}
NEIGHBOURS = 10

Order = Callable[[csr_matrix], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, not the page")
    parser.add_argument("--render", action="store_true", help="only write the page again, from the stored results")
    options = parser.parse_args()
    folder = Path(options.data) if options.data else None
    if folder and not any(folder.glob("*/Y.trn.npz")):
        parser.error(f"{folder} has no folder with a file Y.trn.npz")
    if not options.render:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(measure(folder), indent=2) + "\n", "utf-8")
    PAGE.write_text("\n".join(page(json.loads(RESULTS.read_text("utf-8")))) + "\n", "utf-8")
    print((RESULTS if options.json else PAGE).read_text("utf-8"), end="")


def measure(folder: Path | None) -> dict[str, Any]:
    warm = csr_matrix(np.tri(8))
    for order in ORDERS.values():
        cyclic_arcs(warm, order(warm))
    versions = {name: version for name, version in library_versions().items() if name in LIBRARIES}
    sets = {name: compare(train, test) for name, train, test in data_sets(folder)}
    return {"machine": machine(), "versions": versions, "sets": sets, "scale": at_scale()}


def data_sets(folder: Path | None) -> Iterator[tuple[str, csr_matrix, csr_matrix]]:
    context = xmckit.make_context()
    built_in = context.build("dataset", {"use": "stdlib-calls"}).read(context=context)
    yield "stdlib-calls", as_csr(built_in.train.Y), as_csr(built_in.test.Y)
    for labels in sorted(folder.glob("*/Y.trn.npz")) if folder else ():
        yield labels.parent.name, as_csr(load_npz(labels)), as_csr(load_npz(labels.with_name("Y.tst.npz")))


def compare(train: csr_matrix, test: csr_matrix) -> dict[str, Any]:
    facts: dict[str, Any] = {"labels": train.shape[1], "orders": {}}
    for name, Y in (("train", train), ("test", test)):
        facts[name] = {"rows": Y.shape[0], "most_labels": int(np.diff(Y.indptr).max())}
    for name, order in ORDERS.items():
        start = time.perf_counter()
        position = order(train)
        seconds = time.perf_counter() - start
        facts["orders"][name] = {"seconds": round(seconds, 4), **arcs_of(train, test, position)}
    facts["sign_rank_bound"] = sign_rank_bound(train, label_order(train))
    return facts


def arcs_of(train: csr_matrix, test: csr_matrix, position: np.ndarray) -> dict[str, Any]:
    """Count arcs. `beyond`: test rows with more arcs than any training row, outside the guarantee of that degree."""
    seen, unseen = cyclic_arcs(train, position), cyclic_arcs(test, position)
    return {"train": summary(seen), "test": summary(unseen), "beyond": int(np.count_nonzero(unseen > seen.max()))}


def summary(arcs: np.ndarray) -> dict[str, float]:
    return {
        "mean": round(float(arcs.mean()), 3),
        "p99": round(float(np.percentile(arcs, 99)), 1),
        "largest": int(arcs.max()),
    }


def at_scale() -> dict[str, Any]:
    """Measure seconds and memory of the plugin's order on power-law labels."""
    from xmckit.data.synthetic import Synthetic

    source = Synthetic(**SCALE, test_rows=50_000, features=100, words_per_row=1.0)
    data = source.read(context=xmckit.make_context())
    size = {"labels": data.labels, "rows": data.train.rows, "pairs": int(data.train.Y.nnz)}
    facts: dict[str, Any] = {**size, "orders": {}}
    for name in ("given", "cooccurrence"):
        start = time.perf_counter()
        position = ORDERS[name](data.train.Y)
        seconds = time.perf_counter() - start
        facts["orders"][name] = {"seconds": round(seconds, 4), **arcs_of(data.train.Y, data.test.Y, position)}
    facts["extra_mib"] = round(extra_memory(lambda: label_order(data.train.Y)))
    return facts


# Orders to compare


def random_order(Y: csr_matrix) -> np.ndarray:
    return np.random.default_rng(0).permutation(Y.shape[1])


def by_row_sets(Y: csr_matrix) -> np.ndarray:
    """Sort labels by the lists of their rows, rows with the most labels first."""
    ranked = Y[np.argsort(-np.diff(Y.indptr), kind="stable")].tocsc()
    ranked.sort_indices()
    rows_of = [ranked.indices[start:end].tolist() for start, end in zip(ranked.indptr, ranked.indptr[1:], strict=False)]
    return positions(np.array(sorted(range(Y.shape[1]), key=lambda label: rows_of[label]), dtype=np.int64))


def cuthill_mckee(Y: csr_matrix) -> np.ndarray:
    return positions(reverse_cuthill_mckee(cooccurrence(Y), symmetric_mode=True).astype(np.int64))


def fiedler(Y: csr_matrix) -> np.ndarray:
    """Sort labels by the second eigenvector of the normalised co-occurrence."""
    together = cooccurrence(Y)
    scale = 1 / np.sqrt(np.maximum(np.asarray(together.sum(axis=1)).ravel(), 1))
    normalised = together.multiply(scale[:, None]).multiply(scale[None, :]).tocsr()
    start = np.random.default_rng(0).standard_normal(Y.shape[1])
    _, vectors = eigsh(normalised, k=2, which="LA", v0=start, tol=1e-3)
    return positions(np.argsort(vectors[:, 0] * scale, kind="stable"))


def bisection(Y: csr_matrix) -> np.ndarray:
    """Halve all parts at the median of the direction in which their labels differ most, until each has one label."""
    columns = Y.tocsc()
    labels, rows = np.repeat(np.arange(Y.shape[1]), np.diff(columns.indptr)), columns.indices.astype(np.int64)
    values = 1 / np.sqrt(np.maximum(np.diff(columns.indptr), 1))[labels]
    order, part = np.arange(Y.shape[1]), np.zeros(Y.shape[1], dtype=np.int64)
    rng = np.random.default_rng(0)
    while len(np.unique(part)) < Y.shape[1]:
        _, cell = np.unique(part[labels] * Y.shape[0] + rows, return_inverse=True)
        score, sizes = rng.standard_normal(Y.shape[1]), np.bincount(part)
        for _ in range(10):
            score -= (np.bincount(part, score) / sizes)[part]
            score /= np.maximum(np.sqrt(np.bincount(part, score**2)), 1e-30)[part]
            score = np.bincount(labels, values * np.bincount(cell, values * score[labels])[cell], minlength=len(score))
        order = np.lexsort((score, part))
        first = np.cumsum(sizes) - sizes
        within = np.arange(len(order)) - first[part[order]]
        halved = 2 * part[order] + (2 * within >= sizes[part[order]])
        part[order] = np.unique(halved, return_inverse=True)[1]
    return positions(order)


def paths_by(score: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Order:
    """Join labels to paths in the order of a score of (rows of both, rows of the first, rows of the second)."""

    def order(Y: csr_matrix) -> np.ndarray:
        together = upper(cooccurrence(Y))
        counts = np.bincount(Y.indices, minlength=Y.shape[1]).astype(np.float64)
        scores = score(together.data, counts[together.row], counts[together.col])
        strongest_first = np.argsort(-scores, kind="stable")
        return positions(join_paths(together.row, together.col, strongest_first, Y.shape[1]))

    return order


def with_local_search(order: Order) -> Order:
    """Improve an order by 2-opt and moves of single labels until the sum of arcs stops falling."""

    def improved(Y: csr_matrix) -> np.ndarray:
        together, tour = cooccurrence(Y), np.argsort(order(Y))
        near = nearest(together)
        improve(tour, together.indptr, together.indices, together.data, near)
        return positions(tour)

    return improved


def cooccurrence(Y: csr_matrix) -> csr_matrix:
    """Return labels × labels: the number of rows in which both are active, without the diagonal."""
    together = csr_matrix(Y.T @ Y, dtype=np.float64).tocoo()
    different = together.row != together.col
    entries = together.data[different], (together.row[different], together.col[different])
    return as_csr(csr_matrix(entries, shape=together.shape), np.float64)


def upper(matrix: csr_matrix) -> coo_matrix:
    entries = matrix.tocoo()
    above = entries.row < entries.col
    return coo_matrix((entries.data[above], (entries.row[above], entries.col[above])), shape=matrix.shape)


def positions(order: np.ndarray) -> np.ndarray:
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return position


def nearest(together: csr_matrix) -> np.ndarray:
    """Return the labels that each label occurs with most often, in descending order, padded with −1."""
    near = np.full((together.shape[0], NEIGHBOURS), -1, dtype=np.int64)
    for label in range(together.shape[0]):
        own = slice(together.indptr[label], together.indptr[label + 1])
        best = np.argsort(-together.data[own], kind="stable")[:NEIGHBOURS]
        near[label, : len(best)] = together.indices[own][best]
    return near


@njit(cache=True)
def count_of(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, i: int, j: int) -> float:
    low, high = indptr[i], indptr[i + 1]
    place = low + np.searchsorted(indices[low:high], j)
    return data[place] if place < high and indices[place] == j else 0.0


@njit(cache=True)
def improve(tour: np.ndarray, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, near: np.ndarray) -> None:
    n = len(tour)
    place = np.empty(n, dtype=np.int64)
    for p in range(n):
        place[tour[p]] = p
    moved = n > 4
    while moved:
        moved = False
        for a in range(n):
            for c in near[a]:
                if c < 0:
                    break
                moved |= reverse_between(tour, place, indptr, indices, data, a, c)
                moved |= move_beside(tour, place, indptr, indices, data, a, c)


@njit(cache=True)
def reverse_between(
    tour: np.ndarray, place: np.ndarray, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, a: int, c: int
) -> bool:
    """Apply 2-opt without wrapping: … a b … c d … becomes … a c … b d …"""
    n = len(tour)
    low, high = min(place[a], place[c]), max(place[a], place[c])
    a, b, c, d = tour[low], tour[low + 1], tour[high], tour[(high + 1) % n]
    if b == c or d == a:
        return False
    gain = count_of(indptr, indices, data, a, c) + count_of(indptr, indices, data, b, d)
    gain -= count_of(indptr, indices, data, a, b) + count_of(indptr, indices, data, c, d)
    if gain <= 0:
        return False
    tour[low + 1 : high + 1] = tour[low + 1 : high + 1][::-1].copy()
    for p in range(low + 1, high + 1):
        place[tour[p]] = p
    return True


@njit(cache=True)
def move_beside(
    tour: np.ndarray, place: np.ndarray, indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, a: int, c: int
) -> bool:
    """Move label a behind c."""
    n = len(tour)
    before, after, d = tour[place[a] - 1], tour[(place[a] + 1) % n], tour[(place[c] + 1) % n]
    if c in (before, after) or d == a:
        return False
    gain = count_of(indptr, indices, data, a, c) + count_of(indptr, indices, data, a, d)
    gain += count_of(indptr, indices, data, before, after) - count_of(indptr, indices, data, c, d)
    gain -= count_of(indptr, indices, data, before, a) + count_of(indptr, indices, data, a, after)
    if gain <= 0:
        return False
    start, end = place[a], place[c]
    step = 1 if start < end else -1
    stop = end if start < end else end + 1
    for p in range(start, stop, step):
        tour[p] = tour[p + step]
        place[tour[p]] = p
    tour[stop] = a
    place[a] = stop
    return True


def jaccard(both: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return both / (first + second - both)


ORDERS: dict[str, Order] = {
    "given": lambda Y: label_order(Y, "given"),
    "random": random_order,
    "row sets": by_row_sets,
    "reverse Cuthill–McKee": cuthill_mckee,
    "Fiedler vector": fiedler,
    "recursive bisection": bisection,
    "paths by count": paths_by(lambda both, first, second: both),
    "paths by cosine": paths_by(lambda both, first, second: both / np.sqrt(first * second)),
    "paths by Jaccard": paths_by(jaccard),
    "paths by Jaccard, local search": with_local_search(paths_by(jaccard)),
    "cooccurrence, power 1": lambda Y: cooccurrence_order(Y, power=1),
    "cooccurrence, power 3": lambda Y: cooccurrence_order(Y, power=3),
    "cooccurrence": label_order,
}


# The page

INTRODUCTION = """\
Written by `python -m benchmarks.heads.label_orders --data DIR`.

A DFT layer of degree k has 2k + 1 columns and can output every label set with active labels that form at most k arcs
on the circle of labels. The order of the labels on the circle is free. An order that puts labels that occur together
side by side lowers the number of arcs, and with it the degree. All orders are computed from the training labels only;
arcs are counted on both splits.

**cooccurrence** is the order of the `dft` head. It joins labels to paths, the pair with the highest Jaccard index
first. Then, in several rounds, rows with more arcs get a higher weight (arcs to the power 2), and the paths are built
again. The order with the fewest arcs in the worst training row is kept. What the rounds gain for the worst training
row, they gain only in part, or not at all, for unseen rows: compare "paths by Jaccard", which is the first round
except for ties. The power and the number of rounds were chosen on some of these data sets.

"""

WORST_ROW = """\
Largest number of arcs, train / test. *labels*: the most active labels of a row, which is the degree needed if labels
were counted instead of arcs. *beyond*: test rows with more arcs in the order cooccurrence than any training row, which
a degree read from the training labels does not cover (the head also counts the arcs of its validation rows, which
leaves fewer). *sign rank*: at most 2·(largest number of arcs) + 1 for the training labels, because the DFT layer of
that degree is a linear layer with this number of dimensions that can output each of the rows.

"""


def page(results: dict[str, Any]) -> Iterator[str]:
    where = results["machine"]
    yield from ["# Label orders", ""]
    yield from INTRODUCTION.splitlines()
    yield f"Measured on {where['processor']}, one thread, {versions_text(results['versions'], LIBRARIES)}."
    yield from ["", "## The worst row", ""]
    yield from WORST_ROW.splitlines()
    columns = ("given", "recursive bisection", "paths by Jaccard", "cooccurrence")
    yield from header(["data", "labels", *columns, "beyond", "sign rank"])
    for name, facts in results["sets"].items():
        cells = [f"{facts['train']['most_labels']} / {facts['test']['most_labels']}"]
        beyond = f"{facts['orders']['cooccurrence']['beyond']} of {facts['test']['rows']:,}"
        for order in columns:
            counts = facts["orders"][order]
            cells.append(f"{counts['train']['largest']} / {counts['test']['largest']}")
        yield row([name, *cells, beyond, facts["sign_rank_bound"]])
    scale = results["scale"]
    yield from ["", "## At scale", ""]
    yield f"Synthetic power-law labels: {scale['rows']:,} training rows, {scale['labels']:,} labels, {scale['pairs']:,}"
    yield f"(row, label) pairs. Memory beyond the data: {scale['extra_mib']} MiB."
    yield from ["", *table(scale["orders"])]
    for name, facts in results["sets"].items():
        yield from ["", f"## {name}", ""]
        rows = f"{facts['train']['rows']:,} training rows, {facts['test']['rows']:,} test rows"
        yield f"{rows}, {facts['labels']:,} labels."
        yield from ["", *table(facts["orders"])]


def table(orders: dict[str, Any]) -> Iterator[str]:
    yield from header(["order", "train: mean", "99 %", "largest", "test: mean", "99 %", "largest", "seconds"])
    for name, facts in orders.items():
        cells: list[Any] = []
        for part in ("train", "test"):
            counts = facts[part]
            cells += [f"{counts['mean']:.2f}", f"{counts['p99']:g}", counts["largest"]]
        yield row([name, *cells, f"{facts['seconds']:.2f}"])


if __name__ == "__main__":
    main()
