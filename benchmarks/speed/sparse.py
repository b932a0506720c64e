"""Compare the kernels of `xmckit.sparse` with the fastest alternatives on the same arrays.

    python -m benchmarks.speed.sparse [--data DIR] [--json]

Texts: the functions of Python's standard library, as in the data set `stdlib-calls`, and the articles of reuters21578
(from DIR or $XMCKIT_DATA; left out without it). "tf-idf" learns the vocabulary and weighs the texts in one pass, as
`fit` and `transform` of the same texts do; scikit-learn runs `fit_transform` on one thread, its only way. The matrices
are compared.

CSR × dense: forward and backward of X·T for 256 rows. The gradient must contain each used row of T once, as the
optimiser requires. torch's EmbeddingBag (sparse=True) returns one row per entry, and `coalesce` sums them; its time
without that counts too, although it does less. scipy multiplies by X and by the used rows of Xᵀ.

Other kernels: 100,000 rows × 670,091 labels with 100 stored scores per row. Seconds are the least of several rounds in
which all take turns: processor time for one thread, wall time for two.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits
from torch.nn.functional import embedding_bag

from benchmarks.common.timing import Timing, best_of
from xmckit import make_context
from xmckit.context import map_on_threads
from xmckit.nn import SparseBatch
from xmckit.nn.products import sparse_product
from xmckit.nn.threads import use_threads
from xmckit.sparse import (
    cooccurrence,
    label_centroids,
    merge_shortlists,
    random_projection,
    topk_csr,
    weigh_rows,
)
from xmckit.sparse.text import Terms, count_terms, learn_terms

FEATURES, LABELS, STORED = 136_000, 670_091, 100
THREADS = (1, 2)
CUTS = {
    "words": (Terms(), {}),
    "words and pairs of words": (Terms(longest=2), {"ngram_range": (1, 2)}),
    "3 to 5 characters": (
        Terms(characters=True, shortest=3, longest=5),
        {"analyzer": "char_wb", "ngram_range": (3, 5)},
    ),
}


def least(*measurements: dict[str, Timing]) -> dict[str, Timing]:
    """Return the least seconds of each call over several measurements."""
    names = {who for one in measurements for who in one}
    every = {who: [one[who] for one in measurements if who in one] for who in names}
    return {
        who: Timing(min(s.wall for s in spent), min(s.processor for s in spent), spent[-1].result)
        for who, spent in every.items()
    }


def entry(task: str, threads: int, timings: dict[str, Timing]) -> dict[str, Any]:
    """Compare by processor time for one thread, which a busy machine does not stretch, and by wall time for several."""
    seconds = {who: spent.processor if threads == 1 else spent.wall for who, spent in timings.items()}
    ratios = {who: spent / seconds["xmckit"] for who, spent in seconds.items() if who != "xmckit"}
    strongest = min(ratios, key=ratios.__getitem__)
    print(f"{task:<52}{threads:>2} threads {ratios[strongest]:7.2f} × {strongest}", file=sys.stderr)
    return {"task": task, "threads": threads, "seconds": seconds, "strongest": strongest, "ratio": ratios[strongest]}


def on_threads(workers: int) -> Any:
    return lambda function, items: map_on_threads(function, items, workers=workers)


def tfidf(texts: list[str], terms: Terms, workers: int) -> csr_matrix:
    _, counted = learn_terms(texts, terms, min_documents=2, spread=on_threads(workers))
    return counted.weighted(np.log((1 + len(texts)) / (1 + counted.documents())) + 1, sublinear=True)


def compare_texts(name: str, texts: list[str], rounds: int) -> list[dict[str, Any]]:
    table = []
    for what, (terms, options) in CUTS.items():
        theirs = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32, **options)
        calls: dict[str, Callable[[], Any]] = {f"xmckit, {n}": partial(tfidf, texts, terms, n) for n in THREADS}
        timings = best_of(calls | {"scikit-learn": partial(theirs.fit_transform, texts)}, rounds)
        check_equal(timings["xmckit, 1"].result, timings["scikit-learn"].result)
        for workers in THREADS:
            pair = {"xmckit": timings[f"xmckit, {workers}"], "scikit-learn": timings["scikit-learn"]}
            table.append(entry(f"tf-idf of {name}, {what}", workers, pair))
    hashing = HashingVectorizer(n_features=1 << 18, alternate_sign=False, dtype=np.float32)

    def hashed() -> csr_matrix:
        return count_terms(texts, Terms(), 1 << 18).weighted(np.ones(1 << 18), sublinear=False)

    timings = best_of({"xmckit": hashed, "scikit-learn": partial(hashing.transform, texts)}, rounds)
    check_equal(timings["xmckit"].result, timings["scikit-learn"].result)
    return [*table, entry(f"hashed counts of {name}, words", 1, timings)]


def check_equal(ours: csr_matrix, theirs: csr_matrix) -> None:
    if ours.shape != theirs.shape or abs(ours - theirs).max() > 1e-6:
        raise AssertionError("xmckit and scikit-learn return different matrices")


def compare_products(rounds: int) -> list[dict[str, Any]]:
    table = []
    rng = np.random.default_rng(0)
    for width in (64, 256):
        T = torch.nn.Parameter(torch.from_numpy(rng.standard_normal((FEATURES, width), dtype=np.float32)))
        for stored in (60, 300):
            X = power_law_rows(rng, 256, stored, FEATURES)
            slope = torch.from_numpy(rng.standard_normal((256, width), dtype=np.float32))
            for workers in THREADS:
                table.append(
                    entry(f"X·T and back, {stored} a row, d = {width}", workers, products(X, T, slope, workers, rounds))
                )
    return table


def products(X: csr_matrix, T: torch.nn.Parameter, slope: torch.Tensor, workers: int, rounds: int) -> dict[str, Timing]:
    batch = SparseBatch.from_csr(X)

    def ours() -> Any:
        T.grad = None
        sparse_product(batch, T).backward(slope)
        return T.grad

    def bag() -> Any:
        T.grad = None
        embedding_bag(
            batch.indices, T, batch.offsets, mode="sum", per_sample_weights=batch.values, include_last_offset=True,
            sparse=True,
        ).backward(slope)  # fmt: skip
        return T.grad

    def scipys() -> Any:
        product, back = X @ T.detach().numpy(), X.T.tocsr()
        return product, back[np.flatnonzero(np.diff(back.indptr))] @ slope.numpy()

    others = {"EmbeddingBag": lambda: bag().coalesce(), "EmbeddingBag, not summed": bag, "scipy": scipys}
    timings: dict[str, Timing] = {}
    with use_threads(workers):
        for _ in range(rounds):
            torch.set_num_threads(1)
            timings = least(timings, best_of({"xmckit": ours}, 4))
            torch.set_num_threads(workers)
            timings = least(timings, best_of(others, 4))
    if not torch.allclose(timings["xmckit"].result.to_dense(), timings["EmbeddingBag"].result.to_dense(), atol=1e-4):
        raise AssertionError("xmckit and EmbeddingBag have different gradients")
    return timings


def power_law_rows(rng: np.random.Generator, rows: int, stored: int, columns: int) -> csr_matrix:
    # sorted numbers plus 0, 1, 2 … are distinct
    indices = np.sort(((columns - stored) * rng.random((rows, stored)) ** 3).astype(np.int32), axis=1)
    indices += np.arange(stored, dtype=np.int32)
    values = rng.random(indices.size, dtype=np.float32)
    return csr_matrix((values, indices.ravel(), np.arange(rows + 1) * stored), shape=(rows, columns))


def argpartition_rows(scores: csr_matrix, k: int) -> np.ndarray:
    """Take the best labels of CSR rows with numpy, row by row, because rows differ in length."""
    best = np.full((scores.shape[0], k), -1, np.int32)
    for row, (start, end) in enumerate(zip(scores.indptr[:-1], scores.indptr[1:], strict=True)):
        here = scores.data[start:end]
        top = np.argpartition(here, len(here) - k)[len(here) - k :]
        best[row] = scores.indices[start:end][top[np.argsort(-here[top])]]
    return best


def argpartition_block(scores: csr_matrix, k: int) -> np.ndarray:
    """Take the best labels of CSR rows of equal length with numpy, all rows at once."""
    rows, stored = scores.shape[0], scores.nnz // scores.shape[0]
    values = scores.data.reshape(rows, stored)
    top = np.argpartition(values, stored - k, axis=1)[:, stored - k :]
    order = np.argsort(-np.take_along_axis(values, top, axis=1), axis=1)
    return np.take_along_axis(scores.indices.reshape(rows, stored), np.take_along_axis(top, order, axis=1), axis=1)


def compare_rows(rows: int, rounds: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    scores = power_law_rows(rng, rows, STORED, LABELS)
    scores.data = rng.permutation(scores.nnz).astype(np.float32)  # no ties below 2²⁴
    table = []
    calls: dict[str, Callable[[], Any]] = {
        "xmckit": lambda: topk_csr(scores, 5).indices,
        "argpartition, row by row": lambda: argpartition_rows(scores, 5),
        "argpartition, all rows at once": lambda: argpartition_block(scores, 5),
    }
    table.append(entry(f"top 5 of {STORED}", 1, best_of(calls, rounds)))
    for workers in THREADS:
        copy = scores.copy()
        calls = {
            "xmckit": lambda: weigh_rows(copy, workers=workers),  # noqa: B023
            "scikit-learn": lambda: normalize(copy, copy=False),  # noqa: B023
        }
        table.append(entry("rows of length 1", workers, best_of(calls, rounds)))
    return table + compare_unions(rows, rounds, rng) + compare_labels(rows, rounds, rng)


def compare_unions(rows: int, rounds: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    table = []
    for stored in (STORED, 5 * STORED):
        lists = [power_law_rows(rng, rows * STORED // stored, stored, LABELS) for _ in range(2)]
        for workers in THREADS:
            calls: dict[str, Callable[[], Any]] = {
                "xmckit": lambda: merge_shortlists(lists, how="sum", order="label", workers=workers),  # noqa: B023
                "scipy, sum": lambda: lists[0] + lists[1],  # noqa: B023
            }
            table.append(entry(f"union of two shortlists of {stored}", workers, best_of(calls, rounds)))
    return table


def compare_labels(rows: int, rounds: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    table = []
    Y, X = power_law_rows(rng, rows, 5, LABELS), power_law_rows(rng, rows, 60, FEATURES)
    Y.data[:] = 1
    R = random_projection(FEATURES, 64, rng)
    for workers in THREADS:
        calls: dict[str, Callable[[], Any]] = {
            "xmckit": lambda: cooccurrence(Y, 20, workers=workers),  # noqa: B023
            "scipy, YᵀY not truncated": lambda: Y.T.tocsr() @ Y,
        }
        table.append(entry("co-occurrence, 20 a label", workers, best_of(calls, rounds)))
        calls = {
            "xmckit": lambda: label_centroids(X, Y, projection=R, workers=workers),  # noqa: B023
            "scipy": lambda: normalize(normalize(Y).T @ (X @ R)),
        }
        table.append(entry("centroids, projected to 64", workers, best_of(calls, rounds)))
    return table


def stdlib_texts() -> list[str]:
    context = make_context()
    data = context.build("dataset", {"use": "stdlib-calls"}).read(context=context)
    return [*data.train.texts, *data.test.texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("XMCKIT_DATA"), help="folder of data sets")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the other kernels (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with threadpool_limits(1):
        table = compare_texts("stdlib-calls", stdlib_texts(), options.rounds)
        if options.data is not None and (path := Path(options.data, "reuters21578", "texts.trn.txt.gz")).exists():
            articles = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
            table += compare_texts("reuters21578", articles, options.rounds)
        table += compare_products(options.rounds) + compare_rows(options.rows, options.rounds)
    if options.json:
        print(json.dumps({"rows": options.rows, "results": table}, indent=2))
        return
    for line in table:
        seconds = ", ".join(f"{who} {spent:.4f}" for who, spent in line["seconds"].items())
        print(f"{line['task']:<52}{line['threads']:>2} threads {line['ratio']:7.2f} × ({seconds} s)")


if __name__ == "__main__":
    main()
