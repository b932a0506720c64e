"""Measure the parts of a training epoch, and the cost of Adam when a batch uses few rows of a large table.

    python -m benchmarks.speed.training [--json] [--epochs 5] [--workers 0]

Epochs: BSL heads train as in a run, on the built-in `stdlib-calls` with its tf-idf features and on a synthetic set
with 100,000 features. The parts are timed around the calls of the loop itself. "batches" builds the tensors of the
next batch, and "other" is the rest of the loop; together they are the time outside forward, backward and the
optimiser's step. Scoring the validation rows and keeping the best weights, which follows an epoch, is listed
separately and is included in a second share. Memory is the process's peak while training, and its excess over the
memory before.

Adam: a step over a 100,000 × 256 table of which a batch uses some rows, compared with the two of torch; the best of
several rounds in which all take turns, one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch

from xmckit import make_context
from xmckit.context import Context
from xmckit.data.model import Split, carve_validation
from xmckit.nn import training
from xmckit.nn.optimiser import Adam
from xmckit.nn.threads import use_threads
from xmckit.runs.resources import Measured

TARGET = 0.10
TABLE, WIDTH = 100_000, 256
ROUNDS = 5


def stdlib_calls(context: Context) -> tuple[Split, Split | None]:
    train = context.build("dataset", {"use": "stdlib-calls"}).read(context=context).train
    tfidf = context.build("featurizer", {"use": "tfidf"})
    tfidf.fit(train, context=context)
    return _parts(replace(train, X=tfidf.transform(train, context=context)), context)


def many_features(context: Context) -> tuple[Split, Split | None]:
    sizes = {"rows": 20_000, "test_rows": 1, "features": TABLE, "labels": 5_000, "topics": 200, "words_per_row": 60}
    return _parts(context.build("dataset", {"use": "synthetic", **sizes}).read(context=context).train, context)


def _parts(train: Split, context: Context) -> tuple[Split, Split | None]:
    return carve_validation(train, 0.1, context.rng("validation"))


class PartClock:
    """Sum up the seconds of calls by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.running(name):
                return function(*arguments, **named)

        return timed

    def around_each(self, name: str, function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Time how long an iterator takes to produce its items."""

        def timed(*arguments: Any) -> Iterator[Any]:
            items = function(*arguments)
            while True:
                with self.running(name):
                    item = next(items, None)
                if item is None:
                    return
                yield item

        return timed


def epoch_parts(train: Split, validation: Split | None, context: Context, epochs: int) -> dict[str, Any]:
    """Return the seconds of an epoch by part."""
    context = context.using(validation=validation)
    _fit(train, context, 1, PartClock())  # compile, and warm the memory
    clock = PartClock()
    with Measured() as before:
        pass
    with Measured() as cost:
        _fit(train, context, epochs, clock)
    seconds = {name: value / epochs for name, value in clock.seconds.items()}
    whole = seconds.pop("train")
    best_epoch = seconds.pop("best epoch", 0.0)
    seconds["other"] = whole - best_epoch - sum(seconds.values())
    outside = seconds["batches"] + seconds["other"]
    return {
        "rows": train.rows,
        "features": train.matrix.shape[1],
        "labels": train.labels,
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "outside": round(outside / sum(seconds.values()), 4),
        "best epoch seconds": round(best_epoch, 4),
        "outside with best epoch": round((outside + best_epoch) / whole, 4),
        "peak_mib": cost.peak_bytes >> 20,
        "added_mib": (cost.peak_bytes - before.peak_bytes) >> 20,
    }


def _fit(train: Split, context: Context, epochs: int, clock: PartClock) -> None:
    run = training.train

    def timed(network: Any, rows: Any, loss: Any, *, validate: Any, **others: Any) -> Any:
        timed_validate = None if validate is None else clock.around("best epoch", validate)
        return run(network, rows, clock.around("forward", loss), validate=timed_validate, **others)

    head = context.build("head", {"use": "bsl", "epochs": epochs, "patience": epochs})
    patches = [
        mock.patch("xmckit.nn.head.train", clock.around("train", timed)),
        mock.patch.object(training.RowExamples, "batches", clock.around_each("batches", training.RowExamples.batches)),
        mock.patch.object(training._Best, "consider", clock.around("best epoch", training._Best.consider)),
        mock.patch.object(torch.Tensor, "backward", clock.around("backward", torch.Tensor.backward)),
        mock.patch.object(Adam, "step", clock.around("optimiser", Adam.step)),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        head.fit(train, context=context)


def adam_steps(used: int) -> dict[str, Any]:
    """Return the milliseconds of a step when a batch uses `used` of the rows of the table."""
    rows = np.sort(np.random.default_rng(0).permutation(TABLE)[:used])
    values = torch.randn(used, WIDTH, generator=torch.Generator().manual_seed(0))

    def sparse() -> torch.Tensor:
        indices = torch.from_numpy(rows)[None]
        return torch.sparse_coo_tensor(indices, values, (TABLE, WIDTH), is_coalesced=True, check_invariants=True)

    def table() -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.zeros(TABLE, WIDTH))

    with use_threads(1) as pool:
        ours, rowwise, dense = table(), table(), table()
        mine = Adam([ours], weight_decay=0.0, threads=pool)
        torchs, torchs_sparse = torch.optim.Adam([dense]), torch.optim.SparseAdam([rowwise])
        ours.grad, rowwise.grad, dense.grad = sparse(), sparse(), sparse().to_dense()
        steps: dict[str, Callable[[], Any]] = {
            "xmckit": lambda: mine.step(0.001),
            "torch.optim.SparseAdam": torchs_sparse.step,
            "torch.optim.Adam, dense gradient": torchs.step,
        }
        best = dict.fromkeys(steps, float("inf"))
        mine.step(0.001)  # compile
        for _ in range(ROUNDS):
            for name, step in steps.items():
                begin = time.perf_counter()
                step()
                best[name] = min(best[name], 1000 * (time.perf_counter() - begin))
    return {
        "rows_used": used,
        "rows_touched": int((ours.detach() != 0).any(1).sum()),
        "milliseconds": {name: round(value, 3) for name, value in best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--epochs", type=int, default=5, help="epochs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="threads; 0: all (default: %(default)s)")
    options = parser.parse_args()
    context = make_context(workers=options.workers)
    sets = {"stdlib-calls": stdlib_calls, "synthetic": many_features}
    result = {
        "benchmark": "training",
        "workers": context.workers,
        "target_at_most": TARGET,
        "epochs": {name: epoch_parts(*make(context), context, options.epochs) for name, make in sets.items()},
        "adam": {"table": [TABLE, WIDTH], "steps": [adam_steps(used) for used in (1_000, 10_000)]},
    }
    print(json.dumps(result, indent=2) if options.json else "\n".join(_lines(result)))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    for name, epoch in result["epochs"].items():
        yield f"{name}: {epoch['rows']:,} rows, {epoch['features']:,} features, {epoch['labels']:,} labels"
        for part, seconds in epoch["seconds"].items():
            yield f"  {part:<12} {seconds:8.4f} s"
        yield f"  outside forward, backward, optimiser {epoch['outside']:.1%} (at most {result['target_at_most']:.0%})"
        yield f"  best epoch   {epoch['best epoch seconds']:8.4f} s, with it {epoch['outside with best epoch']:.1%}"
        yield f"  peak {epoch['peak_mib']} MiB, {epoch['added_mib']} MiB more than before"
    for step in result["adam"]["steps"]:
        yield f"Adam, {step['rows_used']:,} of {TABLE:,} rows of {WIDTH} used, {step['rows_touched']:,} touched:"
        for who, milliseconds in step["milliseconds"].items():
            yield f"  {who:<34} {milliseconds:9.3f} ms"


if __name__ == "__main__":
    main()
