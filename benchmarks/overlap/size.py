"""The whole of overlapping clusters at the size of Amazon-670K: processor seconds and peak memory of index, head and
prediction.

    python -m benchmarks.overlap.size [--shares 0.0625 0.25 1] [--threads 2]

At a share of the size there are as many times fewer rows and labels. Each runs in a process of its own, whose peak
memory is that of everything. Results go to benchmarks/results/overlap_size.json, and with the next
`python -m benchmarks.overlap.measure --render` to docs/overlap.md.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.common import paths
from benchmarks.common.memory import apart, resident
from benchmarks.common.synthetic import LABELS, ROWS, TEST_ROWS, amazon
from xmckit.runs.provenance import library_versions, machine

RESULTS = paths.RESULTS / "overlap_size.json"


def measure(share: float, threads: int, sender: Any) -> None:
    from xmckit import make_context
    from xmckit.components.metrics import rank_metrics

    rows, test_rows, labels = (round(share * number) for number in (ROWS, TEST_ROWS, LABELS))
    context = make_context(workers=threads)
    train, test, truth = amazon(rows, test_rows, labels, context)
    start = time.process_time()  # of all threads, which other work on the machine disturbs least
    index = context.build("indexer", {"use": "overlap"}).build(train, context=context)
    indexed = time.process_time()
    head = context.build("head", {"use": "xrlinear", "threshold": 0.0})
    head.fit(train, indexes=[index], context=context)
    trained = time.process_time()
    found = head.predict(test, 5)
    predicted = time.process_time()
    sender.send(
        {
            "rows": rows, "test_rows": test_rows, "labels": labels, "threads": threads,
            "index_cpu": indexed - start, "head_cpu": trained - indexed, "predict_cpu": predicted - trained,
            "P@5": rank_metrics(found, truth, ks=(5,))["P@5"], "peak_gib": resident("VmHWM") / 1024,
        }
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0625, 0.25, 1.0], help="default: 1/16, 1/4, 1")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    options = parser.parse_args()
    for share in options.shares:
        one = apart(measure, share, options.threads)
        found = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"sizes": {}}
        found["sizes"][f"{share:g}"] = one
        found |= {"machine": machine(), "versions": library_versions()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
