"""A head behind an index, from ten thousand labels to the size of Amazon-670K: rows per second and peak memory.

    python -m benchmarks.shortlists.size [--labels 10000 40000 160000 670000] [--rows 50000] [--head bsl]
    python -m benchmarks.shortlists.size --labels 670000 --rows 490000 --test-rows 150000      the full shape, once
    python -m benchmarks.shortlists.size --render

Each size goes to benchmarks/results/shortlist.json when it is measured, and from there to the table of
docs/shortlists.md (--render does only this).

Made-up data (made_up.py), an index `tree` (timed by itself), one epoch of a head with d = 64 on two threads, and
prediction of the test rows, the better of two. Each size runs in a process of its own, whose peak memory is that of
everything: data, index, weights and optimiser. Then the head is trained for two epochs: the second one is what rows
cost, the rest what is made once. One size after the other with the same number of rows shows how that grows with
labels. What the tree takes of the prediction is measured by asking it for the same shortlists.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from benchmarks.common import paths
from benchmarks.common.memory import apart, resident
from benchmarks.common.study import replace_table, row
from benchmarks.common.synthetic import amazon
from xmckit.runs.provenance import library_versions, machine

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
    searched = seconds(lambda: index.shortlist(train.matrix, 20))
    encoder = {"use": "sparse-linear", "width": DIM}

    def trained(epochs: int) -> tuple[Any, float]:
        head = context.build("head", {"use": name, "epochs": epochs, "encoder": encoder, "dim": DIM})
        return head, seconds(lambda: head.fit(train, indexes=[index], context=context))

    head, first = trained(1)
    predicted = min(seconds(partial(head.predict, test, 5)) for _ in range(2))
    listed = min(seconds(partial(index.shortlist, test, head.params.candidates)) for _ in range(2))
    found = {
        "head": name, "labels": labels, "rows": rows, "test_rows": test_rows, "index_seconds": built,
        "hard_seconds": searched, "train_seconds": first,
        "predict_microseconds_per_row": 1e6 * predicted / test_rows,
        "list_microseconds_per_row": 1e6 * listed / test_rows, "levels": index.matcher.depth,
        "P@5": rank_metrics(head.predict(test, 5), truth, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
    }  # fmt: skip
    del head  # memory need not hold two
    further = trained(2)[1] - first
    once = {"train_microseconds_per_row": 1e6 * further / rows, "once_seconds": first - searched - further}
    sender.send(found | once)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[10_000, 40_000, 160_000, 670_000])
    parser.add_argument("--rows", type=int, default=50_000, help="training rows (default: %(default)s)")
    parser.add_argument("--test-rows", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--head", default="bsl", help="default: %(default)s")
    parser.add_argument("--render", action="store_true", help="only write the table anew")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sizes": {}}
    if not options.render:
        apart(measure, 2000, 2000, 200, options.head)  # so that nothing is compiled while it is measured
    for labels in [] if options.render else options.labels:
        key = f"{options.head} / {labels} labels / {options.rows} rows"
        found["sizes"][key] = apart(measure, labels, options.rows, options.test_rows, options.head)
        found |= {"machine": machine(), "versions": library_versions()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    lines = list(table(found["sizes"].values()))
    replace_table(PAGE, BEGIN, END, lines)
    print("\n".join(lines))


def table(sizes: Iterable[dict[str, Any]]) -> Iterator[str]:
    names = ["index, s", "first epoch, s", "of it the search", "made once", "further epochs, µs a row"]
    names += ["prediction, µs a row", "of it the tree", "its levels", "P@5", "peak GiB"]
    yield row(["head", "labels", "rows", *names])
    yield row(["---"] * (3 + len(names)))
    for one in sorted(sizes, key=lambda one: (one["head"], one["rows"], one["labels"])):
        spent = [f"{one['index_seconds']:.0f}"]
        # what is made once is a difference of two epochs, which are not equally long
        spent += [f"{max(0.0, one[f'{name}_seconds']):.1f}" for name in ("train", "hard", "once")]
        spent += [f"{one[f'{name}_microseconds_per_row']:.0f}" for name in ("train", "predict", "list")]
        rest = [one["levels"], f"{100 * one['P@5']:.1f}", f"{one['peak_gib']:.1f}"]
        yield row([one["head"], f"{one['labels']:,}", f"{one['rows']:,}", *spent, *rest])


if __name__ == "__main__":
    main()
