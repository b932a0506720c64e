"""Compare ranking metrics and top-k selection with other implementations on the same arrays.

    python -m benchmarks.speed.metrics [--rows 100000] [--json]

Metrics: wall time, the best of several rounds in which all take turns (napkinXC, the slowest, runs once). All run on
one thread unless the name says otherwise, and all numbers must agree.

- "scipy, by metric": the usual way to write such metrics. The rankings become a CSR matrix with sorted rows, once, and
  one function per metric multiplies it by the truth. It checks nothing.
- "scipy, matrix given": the same, without the time to build the matrix.
- "shared hits": the fastest way we found with numpy and scipy. Hits are computed once for all metrics and cutoffs.
  "checked" adds the checks that xmckit always makes: ids, order, NaN.
- napkinXC gets its fastest input form (lists), built beforehand.

Top k: CPU seconds, the best of a few.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.common.memory import extra_memory
from benchmarks.common.timing import best_of
from xmckit.components.metrics import inverse_propensity, rank_metrics
from xmckit.context import cpu_count
from xmckit.records import TopK
from xmckit.sparse.topk import topk_csr, topk_dense

LABELS, WIDTH, PER_ROW = 670_091, 100, 5
ROUNDS = 9
CUTOFFS = {"k ≤ 100": [1, 3, 5, 10, 50, 100], "k ≤ 5": [1, 3, 5]}


def power_law(rng: np.random.Generator, size: tuple[int, ...], labels: int) -> np.ndarray:
    return (labels * rng.random(size) ** 3).astype(np.int32)


def make_truth(rng: np.random.Generator, rows: int) -> csr_matrix:
    indptr = np.concatenate([[0], np.cumsum(rng.poisson(PER_ROW, rows))])
    truth = csr_matrix(
        (np.ones(indptr[-1], dtype=np.float32), power_law(rng, (indptr[-1],), LABELS), indptr), shape=(rows, LABELS)
    )
    truth.sum_duplicates()
    truth.data[:] = 1
    return truth


def make_rankings(rng: np.random.Generator, truth: csr_matrix) -> TopK:
    """Draw distinct power-law labels in random order, and insert over half of the true labels at random places."""
    rows = truth.shape[0]
    # Sorted numbers plus 0, 1, 2 … are distinct.
    indices = np.sort(power_law(rng, (rows, WIDTH), LABELS - WIDTH), axis=1) + np.arange(WIDTH, dtype=np.int32)
    indices = rng.permuted(indices, axis=1)
    for nth in range(int(np.diff(truth.indptr).max())):
        place = truth.indptr[:-1] + nth
        here = np.flatnonzero((place < truth.indptr[1:]) & (rng.random(rows) < 0.6))
        label = truth.indices[place[here]]
        absent = ~(indices[here] == label[:, None]).any(axis=1)
        indices[here[absent], rng.integers(0, WIDTH, int(absent.sum()))] = label[absent]
    scores = -np.sort(rng.standard_normal((rows, WIDTH), dtype=np.float32), axis=1)
    return TopK(np.ascontiguousarray(indices), scores)


def discounts(truth: csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (discount of each rank from 0, norm of each row at k)."""
    sizes = np.diff(truth.indptr)
    discount = 1 / np.log2(np.arange(max(WIDTH, sizes.max())) + 2)
    return discount, np.concatenate([[0], np.cumsum(discount)])[np.minimum(k, sizes)]


def best_ranking(truth: csr_matrix, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (row, rank from 0, weight) of every true pair, ranked by weight in its row."""
    sizes = np.diff(truth.indptr)
    row = np.repeat(np.arange(truth.shape[0]), sizes)
    weight = weights[truth.indices]
    order = np.argsort(row - weight / (2 * weights.max()))  # sorting by one key is faster than lexsort by two
    return row, np.arange(len(row)) - np.repeat(truth.indptr[:-1], sizes), weight[order]


def as_matrix(topk: TopK, labels: int) -> csr_matrix:
    """Return rankings as a sparse matrix with sorted rows; its values are ranks from 1."""
    ranks = np.tile(np.arange(1, topk.k + 1, dtype=np.float32), topk.rows)
    indptr = np.arange(topk.rows + 1) * topk.k
    matrix = csr_matrix((ranks, topk.indices.ravel(), indptr), shape=(topk.rows, labels)).sorted_indices()
    assert matrix.has_canonical_format  # scipy caches the answer
    return matrix


def hits_by_product(ranks: csr_matrix, truth: csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hits = truth.multiply(ranks).tocoo()
    return hits.row, hits.col, hits.data.astype(np.int64) - 1


def precision_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int]) -> list[float]:
    _, _, rank = hits_by_product(ranks, truth)
    return [np.count_nonzero(rank < k) / k / truth.shape[0] for k in ks]


def recall_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int]) -> list[float]:
    row, _, rank = hits_by_product(ranks, truth)
    share = 1 / np.diff(truth.indptr)[row]
    return [share[rank < k].sum() / truth.shape[0] for k in ks]


def f1_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int]) -> list[float]:
    pairs = zip(precision_at(ranks, truth, ks), recall_at(ranks, truth, ks), strict=True)
    return [2 * precision * recall / (precision + recall) for precision, recall in pairs]


def ndcg_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int]) -> list[float]:
    row, _, rank = hits_by_product(ranks, truth)
    values = []
    for k in ks:
        top, (discount, norm) = rank < k, discounts(truth, k)
        values.append(np.sum(discount[rank[top]] / norm[row[top]]) / truth.shape[0])
    return values


def psp_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> list[float]:
    _, label, rank = hits_by_product(ranks, truth)
    _, best_rank, best_weight = best_ranking(truth, weights)
    return [weights[label[rank < k]].sum() / best_weight[best_rank < k].sum() for k in ks]


def psndcg_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> list[float]:
    hits, best = hits_by_product(ranks, truth), best_ranking(truth, weights)
    return [weighted_dcg(hits[0], hits[2], weights[hits[1]], truth, k) / weighted_dcg(*best, truth, k) for k in ks]


def weighted_dcg(row: np.ndarray, rank: np.ndarray, weight: np.ndarray, truth: csr_matrix, k: int) -> float:
    top, (discount, norm) = rank < k, discounts(truth, k)
    return float(np.sum(weight[top] * discount[rank[top]] / norm[row[top]]))


def coverage_at(ranks: csr_matrix, truth: csr_matrix, ks: list[int]) -> list[float]:
    _, label, rank = hits_by_product(ranks, truth)
    occurring = len(np.unique(truth.indices))
    return [len(np.unique(label[rank < k])) / occurring for k in ks]


def scipy_by_metric(ranks: csr_matrix, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    """Compute every metric with its own hits."""
    columns = {
        "P": precision_at(ranks, truth, ks),
        "nDCG": ndcg_at(ranks, truth, ks),
        "R": recall_at(ranks, truth, ks),
        "F1": f1_at(ranks, truth, ks),
        "PSP": psp_at(ranks, truth, ks, weights),
        "PSnDCG": psndcg_at(ranks, truth, ks, weights),
        "coverage": coverage_at(ranks, truth, ks),
    }
    return {f"{name}@{k}": float(value) for name, at in columns.items() for k, value in zip(ks, at, strict=True)}


def scipy_from_arrays(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    return scipy_by_metric(as_matrix(topk, truth.shape[1]), truth, ks, weights)


def shared_hits(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    """Compute hits by comparing every true pair with its whole row: pairs × k, but faster than a sparse product."""
    total, sizes = truth.shape[0], np.diff(truth.indptr)
    best_row, best_rank, best_weight = best_ranking(truth, weights)
    same = topk.indices[:, : max(ks)][best_row] == truth.indices[:, None]
    places = same.argmax(axis=1)
    hit = same[np.arange(len(places)), places]
    rows, labels, ranks = best_row[hit], truth.indices[hit], places[hit]
    hit_weight, share = weights[labels], 1 / sizes[rows]
    occurring = np.count_nonzero(np.bincount(truth.indices))
    values: dict[str, float] = {}
    for k in ks:
        discount, norm = discounts(truth, k)
        top, best_top = ranks < k, best_rank < k
        gain, weight = discount[ranks[top]] / norm[rows[top]], hit_weight[top]
        best_gain = discount[best_rank[best_top]] / norm[best_row[best_top]]
        precision, recall = np.count_nonzero(top) / k / total, share[top].sum() / total
        values |= {
            f"P@{k}": precision,
            f"R@{k}": recall,
            f"F1@{k}": 2 * precision * recall / (precision + recall),
            f"nDCG@{k}": gain.sum() / total,
            f"PSP@{k}": weight.sum() / best_weight[best_top].sum(),
            f"PSnDCG@{k}": weight @ gain / (best_weight[best_top] @ best_gain),
            f"coverage@{k}": np.count_nonzero(np.bincount(labels[top])) / occurring,
        }
    return {name: float(value) for name, value in values.items()}


def checked_shared_hits(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    sound = topk.indices.min() >= 0 and topk.indices.max() < truth.shape[1]
    truth.check_format(full_check=True)
    if not sound or not (topk.scores[:, :-1] >= topk.scores[:, 1:]).all():
        raise ValueError("the rankings are not valid")
    return shared_hits(topk, truth, ks, weights)


def napkin_metrics(
    rankings: list[list[int]], truth: list[list[int]], ks: list[int], weights: np.ndarray
) -> dict[str, float]:
    from napkinxc import metrics as napkin  # type: ignore[import-untyped]

    deepest = max(ks)
    at = {
        "P": napkin.precision_at_k(truth, rankings, k=deepest),
        "nDCG": napkin.ndcg_at_k(truth, rankings, k=deepest),
        "R": napkin.recall_at_k(truth, rankings, k=deepest),
        "PSP": napkin.psprecision_at_k(truth, rankings, weights, k=deepest),
        "PSnDCG": napkin.psndcg_at_k(truth, rankings, weights, k=deepest),
        "coverage": napkin.coverage_at_k(truth, rankings, k=deepest),
    }
    at["F1"] = 2 * at["P"] * at["R"] / (at["P"] + at["R"])
    return {f"{name}@{k}": float(values[k - 1]) for name, values in at.items() for k in ks}


def best_time(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the least CPU seconds and the last result."""
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return min(times), result


def compare_metrics(rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    truth = make_truth(rng, rows)
    topk = make_rankings(rng, truth)
    train_counts = np.bincount(make_truth(rng, 4 * rows).indices, minlength=LABELS)
    weights = inverse_propensity(train_counts, 4 * rows, 0.6, 2.6)
    matrix, lists = as_matrix(topk, LABELS), [labels.tolist() for labels in np.split(truth.indices, truth.indptr[1:-1])]
    several = f"xmckit, {cpu_count()} threads"
    table = []
    for name, ks in CUTOFFS.items():
        ours = partial(rank_metrics, topk, truth, ks=ks, inverse_propensity=weights)
        calls: dict[str, Callable[[], Any]] = {
            "xmckit": ours,
            several: partial(ours, workers=cpu_count()),
            "scipy, by metric": partial(scipy_from_arrays, topk, truth, ks, weights),
            "scipy, matrix given": partial(scipy_by_metric, matrix, truth, ks, weights),
            "shared hits, checked": partial(checked_shared_hits, topk, truth, ks, weights),
            "shared hits": partial(shared_hits, topk, truth, ks, weights),
        }
        memory = {who: extra_memory(call) for who, call in calls.items()}
        reading = {"reading the input": lambda: (topk.indices.max(), topk.scores.max())}
        results = {who: (best.wall, best.result) for who, best in best_of(calls | reading, ROUNDS).items()}
        floor, _ = results.pop("reading the input")
        rankings = topk.indices[:, : max(ks)].tolist()
        start = time.perf_counter()
        values = napkin_metrics(rankings, lists, ks, weights)
        results["napkinXC"] = time.perf_counter() - start, values
        check_agreement({who: values for who, (_, values) in results.items()})
        for who, (seconds, _) in results.items():
            table.append(
                {
                    "task": f"metrics, {name}",
                    "who": who,
                    "seconds": seconds,
                    "ratio": seconds / results["xmckit"][0],
                    "ratio_threads": seconds / results[several][0],
                    "extra_mib": memory.get(who),
                    "bandwidth_floors": seconds / floor,
                }
            )
    return table


def check_agreement(results: dict[str, dict[str, float]]) -> None:
    expected = results["xmckit"]
    for who, values in results.items():
        difference = max(abs(values[key] - expected[key]) for key in expected)
        if not difference < 1e-9 or values.keys() != expected.keys():
            raise AssertionError(f"{who} and xmckit differ by {difference:g}")


def compare_topk(rows: int) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    dense = rng.standard_normal((max(1, rows // 500), LABELS), dtype=np.float32)
    floor = best_time(lambda: dense.max(axis=1), 3)[0]
    sparse = make_rankings(rng, make_truth(rng, rows))
    scores = csr_matrix(
        (rng.random(sparse.indices.size, dtype=np.float32), sparse.indices.ravel(), np.arange(rows + 1) * WIDTH),
        shape=(rows, LABELS),
    )
    topk_dense(dense[:2], 2)
    topk_csr(scores[:2], 2)
    table = []
    for k in (5, 100):
        tensor = torch.from_numpy(dense)
        results = {
            "xmckit": best_time(partial(topk_dense, dense, k), 3),
            "torch.topk": best_time(partial(torch.topk, tensor, k), 2),
            "np.argpartition": best_time(partial(np.argpartition, dense, LABELS - k, axis=1), 1),
        }
        if not np.array_equal(results["xmckit"][1].scores, results["torch.topk"][1].values.numpy()):
            raise AssertionError("torch and xmckit have different top scores")
        table += entries(f"top {k} of {LABELS} dense, {len(dense)} rows", results, floor)
    ranked = best_time(lambda: topk_csr(scores, 5), 3)
    by_sort = best_time(lambda: np.argsort(-scores.data.reshape(rows, WIDTH), axis=1, kind="stable")[:, :5], 1)
    return table + entries(f"top 5 of {WIDTH} stored, {rows} rows", {"xmckit": ranked, "np.argsort": by_sort}, None)


def entries(task: str, results: dict[str, tuple[float, Any]], floor: float | None) -> list[dict[str, Any]]:
    ours = results["xmckit"][0]
    return [
        {
            "task": task,
            "who": who,
            "seconds": seconds,
            "ratio": seconds / ours,
            "ratio_threads": None,
            "extra_mib": None,
            "bandwidth_floors": None if floor is None else seconds / floor,
        }
        for who, (seconds, _) in results.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of predictions (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    table = compare_metrics(options.rows) + compare_topk(options.rows)
    if options.json:
        print(json.dumps({"rows": options.rows, "labels": LABELS, "width": WIDTH, "results": table}, indent=2))
        return
    print(f"{options.rows} rows × {LABELS} labels, top {WIDTH}; floor: the time to read the input once\n")
    print(f"{'task':<40}{'who':<22}{'seconds':>9}{'÷ xmckit':>10}{'÷ threads':>11}{'÷ floor':>9}{'extra MiB':>11}")
    for entry in table:
        threads, floors, memory = (
            "" if entry[key] is None else f"{entry[key]:.{digits}f}"
            for key, digits in (("ratio_threads", 1), ("bandwidth_floors", 1), ("extra_mib", 0))
        )
        numbers = f"{entry['seconds']:>9.4f}{entry['ratio']:>10.1f}{threads:>11}{floors:>9}{memory:>11}"
        print(f"{entry['task']:<40}{entry['who']:<22}{numbers}")


if __name__ == "__main__":
    main()
