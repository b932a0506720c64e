"""Ranking metrics and top-k selection against other implementations, in one run on the same arrays.

    python benchmarks/metrics.py [--rows 100000] [--json]

napkinXC gets the input form that it is fastest with (lists), and the time to make it is not counted. xmckit checks
its input (ids, repeated labels, order, NaN), and so does "scipy"; the others do not. All numbers must agree. Every
competitor runs on one thread; times are CPU seconds, best of a few, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit.metrics import inverse_propensity, rank_metrics
from xmckit.protocols import TopK
from xmckit.sparse.topk import topk_csr, topk_dense

LABELS, WIDTH, PER_ROW = 670_091, 100, 5
NAMES = ["P", "nDCG", "R", "F1", "PSP", "PSnDCG", "coverage"]
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
    """Distinct power-law labels in random order; over half of the true ones are put somewhere among them."""
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


def from_hits(
    rows: np.ndarray, labels: np.ndarray, ranks: np.ndarray, truth: csr_matrix, ks: list[int], weights: np.ndarray
) -> dict[str, float]:
    """All metrics by vectorised operations, given the row, label and rank of every hit."""
    total, sizes = truth.shape[0], np.diff(truth.indptr)
    discount = 1 / np.log2(np.arange(max(WIDTH, sizes.max())) + 2)
    ideal = np.concatenate([[0], np.cumsum(discount)])
    row_of_pair = np.repeat(np.arange(total), sizes)
    best = np.lexsort((-weights[truth.indices], row_of_pair))
    best_weight = weights[truth.indices[best]]
    best_rank = np.arange(len(best)) - np.repeat(truth.indptr[:-1], sizes)
    occurring = len(np.unique(truth.indices))
    values: dict[str, dict[int, float]] = {name: {} for name in NAMES}
    for k in ks:
        top, best_top = ranks < k, best_rank < k
        row, label, rank = rows[top], labels[top], ranks[top]
        norm = ideal[np.minimum(k, sizes)]
        precision, recall = len(row) / k / total, np.sum(1 / sizes[row]) / total
        weighted = weights[label] * discount[rank] / norm[row]
        best_weighted = best_weight[best_top] * discount[best_rank[best_top]] / norm[row_of_pair[best_top]]
        values["P"][k], values["R"][k] = precision, recall
        values["F1"][k] = 2 * precision * recall / (precision + recall)
        values["nDCG"][k] = np.sum(discount[rank] / norm[row]) / total
        values["PSP"][k] = weights[label].sum() / best_weight[best_top].sum()
        values["PSnDCG"][k] = weighted.sum() / best_weighted.sum()
        values["coverage"][k] = len(np.unique(label)) / occurring
    return {f"{name}@{k}": float(value) for name, at in values.items() for k, value in at.items()}


def as_matrix(topk: TopK, width: int, labels: int) -> csr_matrix:
    """Rankings as a sparse matrix whose values are ranks from 1."""
    ranks = np.tile(np.arange(1, width + 1, dtype=np.float32), topk.rows)
    indptr = np.arange(topk.rows + 1) * width
    return csr_matrix((ranks, topk.indices[:, :width].ravel(), indptr), shape=(topk.rows, labels))


def check_rankings(topk: TopK, labels: int) -> None:
    """What xmckit checks, too: ids, NaN, order, and labels that come twice (which takes a sort)."""
    matrix = as_matrix(topk, topk.k, labels)
    matrix.check_format(full_check=True)
    matrix = matrix.sorted_indices()
    if not matrix.has_canonical_format or not (topk.scores[:, :-1] >= topk.scores[:, 1:]).all():
        raise ValueError("these are no rankings")


def scipy_metrics(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    """Hits by the product of two sparse matrices: the truth, and the ranks."""
    hits = truth.multiply(as_matrix(topk, min(max(ks), topk.k), truth.shape[1])).tocoo()
    return from_hits(hits.row, hits.col, hits.data.astype(np.int64) - 1, truth, ks, weights)


def checked_scipy_metrics(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    check_rankings(topk, truth.shape[1])
    return scipy_metrics(topk, truth, ks, weights)


def numpy_metrics(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> dict[str, float]:
    """Hits by comparing every true pair with its whole row: fast for few labels a row, and large: pairs × k."""
    rows = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr))
    pair, ranks = np.nonzero(topk.indices[:, : max(ks)][rows] == truth.indices[:, None])
    return from_hits(rows[pair], truth.indices[pair], ranks, truth, ks, weights)


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
    times, result = [], None
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
    return min(times), result


def extra_memory(call: Callable[[], Any]) -> float:
    """MiB that `call` needs at its peak beyond what is there already, seen by the system in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def measure() -> None:
        before = resident("VmRSS")
        call()
        sender.send(resident("VmHWM") - before)

    child = context.Process(target=measure)
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"the measured process ended with {child.exitcode}")
    return float(receiver.recv())


def resident(field: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def time_napkin(topk: TopK, truth: csr_matrix, ks: list[int], weights: np.ndarray) -> tuple[float, Any]:
    rankings = topk.indices[:, : max(ks)].tolist()
    lists = [labels.tolist() for labels in np.split(truth.indices, truth.indptr[1:-1])]
    return best_time(lambda: napkin_metrics(rankings, lists, ks, weights), 1)


def compare_metrics(rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    truth = make_truth(rng, rows)
    topk = make_rankings(rng, truth)
    train_counts = np.bincount(make_truth(rng, 4 * rows).indices, minlength=LABELS)
    weights = inverse_propensity(train_counts, 4 * rows, 0.6, 2.6)
    bandwidth = (topk.indices.nbytes + topk.scores.nbytes) / best_time(
        lambda: (topk.indices.max(), topk.scores.max()), 5
    )[0]
    table = []
    for name, ks in CUTOFFS.items():
        calls: dict[str, Callable[[], dict[str, float]]] = {
            "xmckit": partial(rank_metrics, topk, truth, ks=ks, inverse_propensity=weights),
            "scipy": partial(checked_scipy_metrics, topk, truth, ks, weights),
            "scipy, unchecked": partial(scipy_metrics, topk, truth, ks, weights),
            "numpy, unchecked": partial(numpy_metrics, topk, truth, ks, weights),
        }
        calls["xmckit"]()
        results = {who: best_time(call, 9 if who == "xmckit" else 3) for who, call in calls.items()}
        memory = {who: extra_memory(call) for who, call in calls.items()}
        results["napkinXC"] = time_napkin(topk, truth, ks, weights)
        ours, expected = results["xmckit"]
        for who, (seconds, values) in results.items():
            difference = max(abs(values[key] - expected[key]) for key in expected)
            if not difference < 1e-9 or values.keys() != expected.keys():
                raise AssertionError(f"{who} and xmckit differ by {difference:g}")
            table.append(
                {
                    "task": f"metrics, {name}",
                    "who": who,
                    "cpu_seconds": seconds,
                    "ratio": seconds / ours,
                    "extra_mib": memory.get(who),
                    "bandwidth_floors": seconds / ((topk.indices.nbytes + topk.scores.nbytes) / bandwidth),
                }
            )
    return table


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
        table += rows_of(f"top {k} of {LABELS} dense, {len(dense)} rows", results, floor)
    ranked = best_time(lambda: topk_csr(scores, 5), 3)
    by_sort = best_time(lambda: np.argsort(-scores.data.reshape(rows, WIDTH), axis=1, kind="stable")[:, :5], 1)
    return table + rows_of(f"top 5 of {WIDTH} stored, {rows} rows", {"xmckit": ranked, "np.argsort": by_sort}, None)


def rows_of(task: str, results: dict[str, tuple[float, Any]], floor: float | None) -> list[dict[str, Any]]:
    ours = results["xmckit"][0]
    return [
        {
            "task": task,
            "who": who,
            "cpu_seconds": seconds,
            "ratio": seconds / ours,
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
    print(f"{'task':<40}{'who':<18}{'CPU s':>9}{'÷ xmckit':>10}{'÷ floor':>9}{'extra MiB':>11}")
    for entry in table:
        floors, memory = (entry[key] for key in ("bandwidth_floors", "extra_mib"))
        print(
            f"{entry['task']:<40}{entry['who']:<18}{entry['cpu_seconds']:>9.4f}{entry['ratio']:>10.1f}"
            f"{'' if floors is None else f'{floors:.1f}':>9}{'' if memory is None else f'{memory:.0f}':>11}"
        )


if __name__ == "__main__":
    main()
