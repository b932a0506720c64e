"""The papers' tables and figures beside our own: runs the studies behind them and writes docs/reproduced.md.

    python -m benchmarks.papers.measure [--data DIR] [--only PART] [--minutes M] [--render]

Every study is a program of its own that goes on where it was ended and writes benchmarks/results/*.json; they run one
after the other, and share the minutes: what one leaves over is for those that follow. Studies without a way to go on
(simulation, speed) run when they have no results yet, or when --only names them. "PART" is a part of a study's name:
bottleneck, topk_losses, heads, argmax_tables, eagle, eagle_simulation, eagle_miml, overlap, overlap_costs,
overlap_speed. The page is made from benchmarks/papers/published.toml and the results alone (--render does only this).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.common import paths, study
from benchmarks.papers import page

AT_ONCE = ("eagle_simulation", "overlap_speed")  # these know no --minutes, and cannot go on


def main() -> None:
    options = study.parser(__doc__).parse_args()
    failed = [] if options.render else run_studies(options)
    page.write()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; what they had finished is kept")


def run_studies(options: argparse.Namespace) -> list[str]:
    """Run what is asked for, one program after the other; the names of those that failed."""
    names = chosen(options.only)
    end = time.monotonic() + 60 * options.minutes
    failed = []
    for place, name in enumerate(names):
        left = (end - time.monotonic()) / 60
        if left <= 0:
            print("the time is over", file=sys.stderr)
            break
        print(f"running {name}", file=sys.stderr, flush=True)
        done = subprocess.run(command(name, options, left / (len(names) - place)), check=False)
        if done.returncode:
            failed.append(name)
    return failed


def chosen(only: Sequence[str]) -> list[str]:
    """The studies whose names contain every word of `only`; without any, all but those that are done for good."""
    unknown = [part for part in only if not any(part in name for name in page.STUDIES)]
    if unknown:
        raise SystemExit(f"no study's name contains {', '.join(unknown)}; there are {', '.join(page.STUDIES)}")
    if only:
        return [name for name in page.STUDIES if all(part in name for part in only)]
    done = {name for name in AT_ONCE if (paths.RESULTS / f"{name}.json").exists()}
    return [name for name in page.STUDIES if name not in done]


def command(name: str, options: argparse.Namespace, minutes: float) -> list[str]:
    words = [sys.executable, "-m", page.STUDIES[name].module]
    if page.STUDIES[name].takes_data and options.data is not None:
        words += ["--data", str(options.data)]
    if name not in AT_ONCE and math.isfinite(minutes):
        words += ["--minutes", f"{minutes:.2f}"]
    return words


if __name__ == "__main__":
    main()
