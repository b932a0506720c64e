"""Measure a head behind an index, from 10,000 labels to the size of Amazon-670K: rows per second and peak memory.

    python -m benchmarks.shortlists.size [--labels 10000 40000 160000 670000] [--rows 50000] [--head bsl]
    python -m benchmarks.shortlists.size --labels 670000 --rows 490000 --test-rows 150000      the full shape, once
    python -m benchmarks.shortlists.size --render

Each size is stored in benchmarks/results/shortlist.json. The second table of docs/shortlists.md comes from that file;
--render only writes it.

The data are synthetic (benchmarks/common/synthetic.py). Each size builds an index `tree` (timed separately), trains
one epoch of a head with d = 64 on two threads, and predicts the test rows, the better of two times. It runs in its own
process, so the peak memory includes data, index, weights and optimiser. Then the head trains for two epochs: the
second epoch is the cost of the rows, the rest is the cost of the setup. Sizes with the same number of rows show how
the cost grows with labels. The share of the tree in prediction is measured by requesting the same shortlists from it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from benchmarks.common import paths, study
from benchmarks.common.markdown import header, replace_table, row
from benchmarks.common.memory import in_fresh_process, resident
from benchmarks.common.synthetic import amazon

DIM, THREADS = 64, 2
RESULTS = paths.RESULTS / "shortlist.json"
PAGE = paths.DOCS / "shortlists.md"
BEGIN, END = "<!-- table: python -m benchmarks.shortlists.size --render -->", "<!-- /table: size -->"


def measure(labels: int, rows: int, test_rows: int, name: str, sender: Any) -> None:
    from xmckit import make_context
    from xmckit.components.metrics import rank_metrics

    context = make_context(workers=THREADS)
    train, test, truth = amazon(rows, test_rows, labels, context)
    began = time.perf_counter()
    index = context.build("indexer", {"use": "tree"}).build(train, context=context)
    built = time.perf_counter() - began
    search_seconds = seconds(lambda: index.shortlist(train.matrix, 20))
    encoder = {"use": "sparse-linear", "width": DIM}

    def trained(epochs: int) -> tuple[Any, float]:
        head = context.build("head", {"use": name, "epochs": epochs, "encoder": encoder, "dim": DIM})
        return head, seconds(lambda: head.fit(train, indexes=[index], context=context))

    head, first = trained(1)
    predicted = min(seconds(partial(head.predict, test, 5)) for _ in range(2))
    listed = min(seconds(partial(index.shortlist, test, head.params.candidates)) for _ in range(2))
    facts = {
        "head": name, "labels": labels, "rows": rows, "test_rows": test_rows, "index_seconds": built,
        "hard_seconds": search_seconds, "train_seconds": first,
        "predict_microseconds_per_row": 1e6 * predicted / test_rows,
        "list_microseconds_per_row": 1e6 * listed / test_rows, "levels": index.matcher.depth,
        "P@5": rank_metrics(head.predict(test, 5), truth, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
    }  # fmt: skip
    del head  # keep only one head in memory
    further = trained(2)[1] - first
    once = {"train_microseconds_per_row": 1e6 * further / rows, "once_seconds": first - search_seconds - further}
    sender.send(facts | once)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--labels", type=int, nargs="+", default=[10_000, 40_000, 160_000, 670_000], help="sizes to run"
    )
    parser.add_argument("--rows", type=int, default=50_000, help="training rows (default: %(default)s)")
    parser.add_argument("--test-rows", type=int, default=10_000, help="test rows (default: %(default)s)")
    parser.add_argument("--head", default="bsl", help="head to train (default: %(default)s)")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sizes": {}}
    if not options.render:
        in_fresh_process(measure, 2000, 2000, 200, options.head)  # compile before the measurement
    for labels in [] if options.render else options.labels:
        key = f"{options.head} / {labels} labels / {options.rows} rows"
        results["sizes"][key] = in_fresh_process(measure, labels, options.rows, options.test_rows, options.head)
        study.write_results(RESULTS, results)
    lines = list(table(results["sizes"].values()))
    replace_table(PAGE, BEGIN, END, lines)
    print("\n".join(lines))


def table(sizes: Iterable[dict[str, Any]]) -> Iterator[str]:
    names = ["index, s", "first epoch, s", "search, s", "setup, s", "further epochs, µs per row"]
    names += ["prediction, µs per row", "tree, µs per row", "levels", "P@5", "peak GiB"]
    yield from header(["head", "labels", "rows", *names])
    for one in sorted(sizes, key=lambda one: (one["head"], one["rows"], one["labels"])):
        spent = [f"{one['index_seconds']:.0f}"]
        # the setup is a difference of two epochs of unequal length, so it can be negative
        spent += [f"{max(0.0, one[f'{name}_seconds']):.1f}" for name in ("train", "hard", "once")]
        spent += [f"{one[f'{name}_microseconds_per_row']:.0f}" for name in ("train", "predict", "list")]
        rest = [one["levels"], f"{100 * one['P@5']:.1f}", f"{one['peak_gib']:.1f}"]
        yield row([one["head"], f"{one['labels']:,}", f"{one['rows']:,}", *spent, *rest])


if __name__ == "__main__":
    main()
