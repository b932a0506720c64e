"""Measure label search at the size of Amazon-670K: recall and speed of each kind of index against the exact scan.

    python -m benchmarks.shortlists.label_search [--labels 670000] [--queries 10000] [--dim 64]
                                                 [--kinds ivf pq hnsw] [--render]

Embeddings have the structure of real ones: the data are the installed Python packages (each function is a row, the
names it calls are its labels), or with `--source stdlib-calls` the standard library alone. No real set at hand has
that many labels, so further labels are derived from real rows: each takes some rows of a real label, mostly few, and
one random row. The queries are the test rows. One thread is measured in processor seconds, which do not depend on
other work of the machine; two threads are measured by the clock. Results are stored in
benchmarks/results/label_search.json, and the table of docs/label-search.md comes from that file.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from xmckit_faiss import kinds
from xmckit_faiss.embeddings import fit_projection, label_sums

from benchmarks.common import paths
from benchmarks.common.markdown import replace_table
from xmckit import make_context, store
from xmckit.context import Context
from xmckit.data.model import Matrix
from xmckit.runs.provenance import library_versions, machine

RESULTS = paths.RESULTS / "label_search.json"
PAGE = paths.DOCS / "label-search.md"
BEGIN, END = "<!-- table: python -m benchmarks.shortlists.label_search --render -->", "<!-- /table -->"
DEPTHS = (10, 100)
MEASURED = ((100, 2), (100, 1), (10, 1))  # (depth, threads)


def load_rows(source: str, context: Context) -> tuple[Matrix, csr_matrix, Matrix]:
    """Return X and Y of the training rows and X of the test rows."""
    spec = {"use": source} | ({"path": sysconfig.get_paths()["purelib"]} if source == "python-source" else {})
    data = context.build("dataset", spec).read(context=context)
    words = context.build("featurizer", {"use": "tfidf"})
    words.fit(data.train, context=context)
    return words.transform(data.train, context=context), data.train.Y, words.transform(data.test, context=context)


def add_labels(Y: csr_matrix, labels: int, rng: np.random.Generator) -> csr_matrix:
    """Add labels to Y, each with some rows of a real label and one random row."""
    by_label = Y.tocsc()
    sizes = np.diff(by_label.indptr)
    more = labels - Y.shape[1]
    if more <= 0:
        return Y[:, :labels]
    parent = rng.integers(0, Y.shape[1], more)
    # as many rows as some other label has (a power law), but not more than the parent label
    counts = np.minimum(sizes[rng.integers(0, Y.shape[1], more)], sizes[parent])
    column = np.repeat(np.arange(more), counts)
    place = by_label.indptr[parent[column]] + (rng.random(len(column)) * sizes[parent[column]]).astype(np.int64)
    row = np.concatenate([by_label.indices[place], rng.integers(0, Y.shape[0], more)])
    column = np.concatenate([column, np.arange(more)])
    extra = csr_matrix((np.ones(len(row), np.float32), (row, column)), shape=(Y.shape[0], more))
    extra.data[:] = 1
    return csr_matrix(hstack([Y, extra], format="csr"), dtype=np.float32)


def time_call(action: Callable[[], Any], threads: int) -> tuple[Any, float]:
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    result = action()
    return result, clock() - start


def measure(searcher: kinds.Searcher, queries: np.ndarray, exact: np.ndarray | None) -> tuple[dict[str, Any], Any]:
    """Return a cell (seconds by depth and threads, recall by depth) and the exact positions.

    Without `exact`, the searcher itself is the exact one.
    """
    cell: dict[str, Any] = {"settings": searcher.settings.as_dict(), "seconds": {}, "recall": {}}
    for k, threads in MEASURED:
        (_, positions), seconds = time_call(lambda: searcher.search(queries, k, threads), threads)  # noqa: B023
        exact = positions if exact is None else exact
        cell["seconds"][f"{k}/{threads}"] = round(seconds, 3)
        cell["recall"][str(k)] = round(kinds.recall_of(positions, exact, k), 4)
    compared, _ = searcher.count_comparisons(queries[:500], DEPTHS[-1])
    cell["compared"] = round(compared)
    cell["work"] = round(searcher.work(compared, DEPTHS[-1]))
    return cell, exact


def run_study(options: argparse.Namespace) -> None:
    context = make_context(workers=1)
    say = partial(print, file=sys.stderr, flush=True)
    X, Y, tests = load_rows(options.source, context)
    real = Y.shape[1]
    Y = add_labels(Y, options.labels, context.rng("labels"))
    projection = fit_projection(X, Y, options.dim, context)
    embeddings = label_sums(X, Y, projection)
    queries = projection.rows(tests[: options.queries])
    if len(queries) < options.queries:  # a small source: repeat rows, each slightly rotated
        again = context.rng("queries").integers(0, len(queries), options.queries - len(queries))
        queries = np.concatenate([queries, queries[again] + 0.2 * queries[context.rng("turn").permutation(again)]])
    say(f"{real:,} real labels, {len(embeddings):,} in all, {len(queries):,} queries of {queries.shape[1]} numbers")
    flat = kinds.Searcher.build(kinds.SearchSettings("flat"), embeddings, 0, 1)
    scan, exact = measure(flat, queries, None)
    result: dict[str, Any] = {
        "source": options.source, "rows": X.shape[0], "real_labels": real, "labels": len(embeddings),
        "queries": len(queries), "dim": queries.shape[1], "machine": machine(), "versions": library_versions("xmckit"),
        "cells": [scan],
    }  # fmt: skip
    for kind in options.kinds:
        settings = kinds.variants(kind, len(embeddings))
        start = time.process_time()
        searcher = kinds.Searcher.build(settings[0], embeddings, 0, 1)
        built = round(time.process_time() - start, 1)
        say(f"{kind}: built in {built} processor seconds")
        for one in settings:
            searcher.tune(one)
            result["cells"].append({**measure(searcher, queries, exact)[0], "built": built})
            say(f"  {one}: {result['cells'][-1]}")
            result["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
            store.write_json(options.output, result)


def gains(cell: dict[str, Any], exact: dict[str, Any]) -> dict[tuple[int, int], float]:
    """Return the speed relative to the exact scan, by depth and threads."""
    keys = {pair: "/".join(map(str, pair)) for pair in MEASURED}
    return {pair: exact["seconds"][key] / max(cell["seconds"][key], 1e-3) for pair, key in keys.items()}


def table(result: dict[str, Any]) -> list[str]:
    exact = result["cells"][0]
    lines = [
        "| index | compared | built, s | recall@10 | recall@100 | k = 10, s | × exact | k = 100, s | × exact "
        "| two threads, k = 100, s | × exact | rule holds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        gain = gains(cell, exact)
        recall = {k: cell["recall"][str(k)] for k in DEPTHS}
        holds = (recall[100] >= kinds.RECALL and gain[100, 1] >= kinds.DEEP_GAIN) or (
            recall[10] >= kinds.RECALL and gain[10, 1] >= kinds.SHALLOW_GAIN
        )
        settings = ", ".join(f"{name} {value}" if name != "kind" else value for name, value in cell["settings"].items())
        verdict = "exact" if cell is exact else "yes" if holds else "no"
        lines.append(
            f"| {settings} | {cell['compared']:,} | {cell.get('built', '')} | {recall[10]:.3f} | {recall[100]:.3f} "
            f"| {cell['seconds']['10/1']:.1f} | {gain[10, 1]:.1f} "
            f"| {cell['seconds']['100/1']:.1f} | {gain[100, 1]:.1f} "
            f"| {cell['seconds']['100/2']:.1f} | {gain[100, 2]:.1f} | {verdict} |"
        )
    facts = (
        f"{result['queries']:,} queries, {result['labels']:,} labels ({result['real_labels']:,} of them real, from "
        f"{result['rows']:,} rows of {result['source']}), {result['dim']} dimensions; at most {result['peak_gib']} GiB."
    )
    return [facts, "", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=("python-source", "stdlib-calls"), default="python-source", help="data set")
    parser.add_argument("--labels", type=int, default=670_000, help="labels in total (default: %(default)s)")
    parser.add_argument("--queries", type=int, default=10_000, help="queries (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=64, help="dimensions of embeddings (default: %(default)s)")
    parser.add_argument(
        "--kinds", nargs="+", choices=("pq", "ivf", "hnsw"), default=["ivf", "pq", "hnsw"], help="kinds to run"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--render", action="store_true", help="only write the table of the page again")
    options = parser.parse_args()
    if not options.render:
        run_study(options)
    result = json.loads(options.output.read_text("utf-8"))
    print("\n".join(table(result)))
    if options.output == RESULTS and PAGE.exists():
        replace_table(PAGE, BEGIN, END, table(result))


if __name__ == "__main__":
    main()
