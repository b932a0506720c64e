"""Run every speed benchmark one after the other, and write docs/speed.md and benchmarks/results/speed.json.

    python -m benchmarks.speed.measure [--only NAME …] [--render]

With XMCKIT_DATA set to a folder of data sets, the verifier, EAGLE and XR-Linear also run on some of them. Each
benchmark is its own program that prints ratios measured in one run; this one collects them. Run it on a machine
without other work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common import paths
from benchmarks.speed import page
from xmckit.runs.provenance import library_versions, machine

RESULTS = paths.RESULTS / "speed.json"
SCRIPTS = ("startup", "parse_text", "metrics", "lml", "dft", "training", "argmax", "eagle", "xrlinear", "sparse")
STORED_AS = {"eagle": "eagle_speed"}  # results with a key other than the name of the module
LIBRARIES = ("numba", "numpy", "python", "scikit-learn", "scipy", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=SCRIPTS, help="run these, keep the other results")
    parser.add_argument("--render", action="store_true", help="only write the page again, from the stored results")
    options = parser.parse_args()
    if not options.render:
        RESULTS.parent.mkdir(exist_ok=True)
        results = run_benchmarks(options.only)
        # Read this after the run: another run may have written in the meantime.
        kept = {} if set(options.only) == set(SCRIPTS) else json.loads(RESULTS.read_text("utf-8"))
        RESULTS.write_text(json.dumps(kept | results, indent=2) + "\n", "utf-8")
    page.write(json.loads(RESULTS.read_text("utf-8")))


def run_benchmarks(names: Sequence[str]) -> dict[str, Any]:
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": {name: version for name, version in library_versions().items() if name in LIBRARIES},
    }
    for name in names:
        print(f"running {name}", file=sys.stderr)
        command = [sys.executable, "-m", f"benchmarks.speed.{name}", "--json"]
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        results[STORED_AS.get(name, name)] = json.loads(process.stdout)
    return results


if __name__ == "__main__":
    main()
