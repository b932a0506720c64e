"""A head behind an index, from ten thousand labels to the size of Amazon-670K: rows per second and peak memory.

    python benchmarks/shortlist.py [--labels 10000 40000 160000 670000] [--rows 50000] [--head bsl] [--json]
    python benchmarks/shortlist.py --labels 670000 --rows 490000 --test-rows 150000      the full shape, once

Synthetic data with 136,000 features and 5.45 labels a row; an index `tree` (timed by itself), one epoch of a head with
d = 64 on two threads, and prediction of the test rows. Each size runs in a process of its own, whose peak memory is
that of everything: data, index, weights and optimiser. Training at one size after the other with the same number of
rows shows what a row costs as labels grow.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

from memory import apart, resident

FEATURES, LABELS_PER_ROW, WORDS_PER_ROW, DIM, THREADS = 136_000, 5.45, 75, 64, 2
GIB = 12


def measure(labels: int, rows: int, test_rows: int, name: str, sender: Any) -> None:
    from xmckit import make_context
    from xmckit.metrics import rank_metrics

    context = make_context(workers=THREADS)
    data = context.build(
        "dataset",
        {
            "use": "synthetic", "rows": rows, "test_rows": test_rows, "features": FEATURES, "labels": labels,
            "topics": max(50, labels // 100), "labels_per_row": LABELS_PER_ROW, "words_per_row": WORDS_PER_ROW,
        },
    ).read(context=context)  # fmt: skip
    featurizer = context.build("featurizer", {"use": "blocks", "normalise": "l2"})
    featurizer.fit(data.train, context=context)
    train = replace(data.train, X=featurizer.transform(data.train, context=context))
    test = featurizer.transform(data.test, context=context)
    began = time.perf_counter()
    index = context.build("indexer", {"use": "tree"}).build(train, context=context)
    built = time.perf_counter() - began
    began = time.perf_counter()
    index.shortlist(train.matrix, 20)
    searched = time.perf_counter() - began
    encoder = {"use": "sparse-linear", "width": DIM}
    head = context.build("head", {"use": name, "epochs": 1, "encoder": encoder, "dim": DIM})
    began = time.perf_counter()
    head.fit(train, indexes=[index], context=context)
    trained = time.perf_counter() - began
    began = time.perf_counter()
    found = head.predict(test, 5)
    predicted = time.perf_counter() - began
    sender.send(
        {
            "labels": labels, "rows": rows, "test_rows": test_rows, "index_seconds": built,
            "hard_seconds": searched, "train_seconds": trained, "predict_seconds": predicted,
            "train_microseconds_per_row": 1e6 * (trained - searched) / rows,
            "predict_microseconds_per_row": 1e6 * predicted / test_rows,
            "P@5": rank_metrics(found, data.test.Y, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[10_000, 40_000, 160_000, 670_000])
    parser.add_argument("--rows", type=int, default=50_000, help="training rows (default: %(default)s)")
    parser.add_argument("--test-rows", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--head", default="bsl", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    found = [apart(measure, labels, options.rows, options.test_rows, options.head) for labels in options.labels]
    if options.json:
        print(json.dumps({"benchmark": "shortlist", "head": options.head, "most_gib": GIB, "sizes": found}, indent=2))
        return
    print(f"{'labels':>8}{'rows':>8}{'index s':>9}{'epoch s':>9}{'µs a row':>10}{'predict µs':>12}{'P@5':>7}{'GiB':>7}")
    for entry in found:
        print(
            f"{entry['labels']:>8}{entry['rows']:>8}{entry['index_seconds']:>9.1f}{entry['train_seconds']:>9.1f}"
            f"{entry['train_microseconds_per_row']:>10.0f}{entry['predict_microseconds_per_row']:>12.0f}"
            f"{100 * entry['P@5']:>7.1f}{entry['peak_gib']:>7.2f}"
        )


if __name__ == "__main__":
    main()
