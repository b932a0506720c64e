"""Measure overlapping clusters at the size of Amazon-670K: processor seconds and peak memory of a whole run.

    python -m benchmarks.overlap.size [--shares 0.0625 0.25 1] [--threads 2]

A share of the size scales rows and labels. Each share builds an index, trains a head and predicts in its own process,
so the peak memory is that of the whole. Results are stored in benchmarks/results/overlap_size.json, and the next
`python -m benchmarks.overlap.measure --render` shows them in docs/overlap.md.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.common import paths, study
from benchmarks.common.memory import in_fresh_process, resident
from benchmarks.common.synthetic import LABELS, ROWS, TEST_ROWS, amazon

RESULTS = paths.RESULTS / "overlap_size.json"


def measure(share: float, threads: int, sender: Any) -> None:
    from xmckit import make_context
    from xmckit.components.metrics import rank_metrics

    rows, test_rows, labels = (round(share * number) for number in (ROWS, TEST_ROWS, LABELS))
    context = make_context(workers=threads)
    train, test, truth = amazon(rows, test_rows, labels, context)
    start = time.process_time()  # of all threads; other work on the machine disturbs it least
    index = context.build("indexer", {"use": "overlap"}).build(train, context=context)
    indexed = time.process_time()
    head = context.build("head", {"use": "xrlinear", "threshold": 0.0})
    head.fit(train, indexes=[index], context=context)
    trained = time.process_time()
    predictions = head.predict(test, 5)
    predicted = time.process_time()
    sender.send(
        {
            "rows": rows, "test_rows": test_rows, "labels": labels, "threads": threads,
            "index_cpu": indexed - start, "head_cpu": trained - indexed, "predict_cpu": predicted - trained,
            "P@5": rank_metrics(predictions, truth, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0625, 0.25, 1.0], help="default: 1/16, 1/4, 1")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    options = parser.parse_args()
    for share in options.shares:
        costs = in_fresh_process(measure, share, options.threads)
        results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sizes": {}}
        results["sizes"][f"{share:g}"] = costs
        study.write_results(RESULTS, results)
        print(json.dumps(costs), flush=True)


if __name__ == "__main__":
    main()
