"""Spread the labels over threads, in ranges of about equal work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import numpy as np

PARTS = 128  # ranges at most; more than threads, so that all threads end at about the same time
Result = TypeVar("Result")


def map_labels(
    run: Callable[[int, int], Result], work: np.ndarray, workers: int, advance: Callable[[float], None] | None
) -> list[Result]:
    """Return `run(begin, end)` for consecutive ranges of labels; `work` estimates the cost of each label.

    `advance` gets the share of the work that was done, range by range.
    """
    done = np.concatenate([[0], np.cumsum(work)])
    cuts = np.searchsorted(done, np.arange(1, PARTS) * (done[-1] / PARTS))
    cuts = np.unique(np.concatenate([[0], cuts, [len(work)]]))
    shares = np.diff(done[cuts]) / max(1, done[-1])
    # A range may be one label that is in most groups: the largest come first, so that none is left for the end.
    order = np.argsort(-shares, kind="stable").tolist()
    results = {}
    with ThreadPoolExecutor(max(1, workers)) as pool:
        waiting = {pool.submit(run, int(cuts[part]), int(cuts[part + 1])): part for part in order}
        try:
            for future in as_completed(waiting):
                results[waiting[future]] = future.result()
                if advance is not None:
                    advance(float(shares[waiting[future]]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[part] for part in range(len(shares))]
