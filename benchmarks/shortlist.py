"""A head behind an index, from ten thousand labels to the size of Amazon-670K: rows per second and peak memory.

    python benchmarks/shortlist.py [--labels 10000 40000 160000 670000] [--rows 50000] [--head bsl]
    python benchmarks/shortlist.py --labels 670000 --rows 490000 --test-rows 150000      the full shape, once
    python benchmarks/shortlist.py --render

Each size goes to benchmarks/results/shortlist.json when it is measured, and from there to the table of
docs/shortlists.md (--render does only this).

Made-up data (made_up.py), an index `tree` (timed by itself), one epoch of a head with d = 64 on two threads, and
prediction of the test rows. Each size runs in a process of its own, whose peak memory is that of everything: data,
index, weights and optimiser. Training at one size after the other with the same number of rows shows what a row costs
as labels grow. What the tree takes of the prediction is measured by asking it for the same shortlists once more.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from made_up import amazon
from memory import apart, resident
from study import replace_table, row

from xmckit.provenance import library_versions, machine

DIM, THREADS = 64, 2
PER_ROW = ("train_microseconds_per_row", "predict_microseconds_per_row")
RESULTS = Path(__file__).resolve().parent / "results" / "shortlist.json"
PAGE = RESULTS.parents[2] / "docs" / "shortlists.md"
BEGIN, END = "<!-- table: python benchmarks/shortlist.py --render -->", "<!-- /table: size -->"


def measure(labels: int, rows: int, test_rows: int, name: str, sender: Any) -> None:
    from xmckit import make_context
    from xmckit.metrics import rank_metrics

    context = make_context(workers=THREADS)
    train, test, truth = amazon(rows, test_rows, labels, context)
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
    began = time.perf_counter()
    index.shortlist(test, head.params.candidates)
    listed = time.perf_counter() - began
    sender.send(
        {
            "head": name, "labels": labels, "rows": rows, "test_rows": test_rows, "index_seconds": built,
            "hard_seconds": searched, "train_seconds": trained, "predict_seconds": predicted,
            "train_microseconds_per_row": 1e6 * (trained - searched) / rows,
            "predict_microseconds_per_row": 1e6 * predicted / test_rows,
            "list_microseconds_per_row": 1e6 * listed / test_rows, "levels": index.matcher.depth,
            "P@5": rank_metrics(found, truth, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[10_000, 40_000, 160_000, 670_000])
    parser.add_argument("--rows", type=int, default=50_000, help="training rows (default: %(default)s)")
    parser.add_argument("--test-rows", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--head", default="bsl", help="default: %(default)s")
    parser.add_argument("--render", action="store_true", help="only write the table anew")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sizes": {}}
    for labels in [] if options.render else options.labels:
        key = f"{options.head} / {labels} labels / {options.rows} rows"
        found["sizes"][key] = apart(measure, labels, options.rows, options.test_rows, options.head)
        found |= {"machine": machine(), "versions": library_versions()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    lines = list(table(found["sizes"].values()))
    replace_table(PAGE, BEGIN, END, lines)
    print("\n".join(lines))


def table(sizes: Iterable[dict[str, Any]]) -> Iterator[str]:
    names = ["index, s", "epoch, s", "µs a row", "prediction, µs a row", "of it the tree", "its levels", "P@5"]
    yield row(["head", "labels", "rows", *names, "peak GiB"])
    yield row(["---"] * 11)
    for one in sorted(sizes, key=lambda one: (one["head"], one["rows"], one["labels"])):
        numbers = [f"{one[name]:.0f}" for name in ("index_seconds", "train_seconds", *PER_ROW)]
        named = [one["head"], f"{one['labels']:,}", f"{one['rows']:,}"]
        tree = [f"{one['list_microseconds_per_row']:.0f}", str(one["levels"])] if "levels" in one else ["", ""]
        yield row([*named, *numbers, *tree, f"{100 * one['P@5']:.1f}", f"{one['peak_gib']:.1f}"])


if __name__ == "__main__":
    main()
