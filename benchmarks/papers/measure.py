"""Run the studies behind the papers' tables and figures, and write docs/reproduced.md.

    python -m benchmarks.papers.measure [--data DIR] [--only PART] [--minutes M] [--render]

Every study is its own program, which can resume and writes benchmarks/results/*.json. They run one after the other and
share the minutes; what one leaves over is for the next ones. Studies that cannot resume (simulation, speed) run if
they have no results yet or if --only names them. PART is a part of a study's name: bottleneck, topk_losses, heads,
argmax_tables, eagle, eagle_simulation, eagle_miml, overlap, overlap_costs, overlap_speed. The page comes from
benchmarks/papers/published.toml and the results; --render only writes it.
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

NOT_RESUMABLE = ("eagle_simulation", "overlap_speed")  # these have no --minutes


def main() -> None:
    options = study.parser(__doc__).parse_args()
    failed = [] if options.render else run_studies(options)
    page.write()
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; their finished cells are stored")


def run_studies(options: argparse.Namespace) -> list[str]:
    """Run the chosen studies one after the other, and return the names of those that failed."""
    names = choose_studies(options.only)
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


def choose_studies(only: Sequence[str]) -> list[str]:
    """Return the studies with names that contain all of `only`.

    Without `only`, return all studies except finished ones that cannot resume.
    """
    unknown = [part for part in only if not any(part in name for name in page.STUDIES)]
    if unknown:
        raise SystemExit(f"no study's name contains {', '.join(unknown)}; known studies: {', '.join(page.STUDIES)}")
    if only:
        return [name for name in page.STUDIES if all(part in name for part in only)]
    finished = {name for name in NOT_RESUMABLE if (paths.RESULTS / f"{name}.json").exists()}
    return [name for name in page.STUDIES if name not in finished]


def command(name: str, options: argparse.Namespace, minutes: float) -> list[str]:
    words = [sys.executable, "-m", page.STUDIES[name].module]
    if page.STUDIES[name].takes_data and options.data is not None:
        words += ["--data", str(options.data)]
    if name not in NOT_RESUMABLE and math.isfinite(minutes):
        words += ["--minutes", f"{minutes:.2f}"]
    return words


if __name__ == "__main__":
    main()
