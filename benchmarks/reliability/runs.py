"""Edit every file of finished runs that a command reads, call the command, and count what it does.

python -m benchmarks.reliability.runs [--cases 3000] [--calls 1] [--seed 0]

Fields are replaced by other values, types and paths, removed and renamed; bits are flipped; files are cut, extended,
swapped between runs, and replaced by folders and links. A call passes if it ends with an exit code of its own, names
the run or file, prints no control characters, still lists the other runs, and opens nothing outside the run. All edits,
`--cases 0`, take hours.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.common import paths
from xmckit import store

RESULTS = paths.RESULTS / "reliability_runs.json"
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "attack"))


def main() -> None:
    from run_forger import forge
    from run_subjects import make_runs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000, help="edits, drawn evenly over the files; 0 means all")
    parser.add_argument("--calls", type=int, default=1, help="commands for each edit; 0 means all that read the file")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder))
        report = forge(Path(folder), cases=options.cases or None, calls=options.calls or None, seed=options.seed)
    for failure in report.failures:
        print(failure, file=sys.stderr)
    result = {"seed": options.seed, **report.to_json()}
    store.write_json(RESULTS, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
