"""Run every speed benchmark, one after the other, and write docs/speed.md and benchmarks/results/speed.json.

    python benchmarks/speed.py [--render]

Each benchmark is a script of its own that prints ratios measured in one run; this one only collects them. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xmckit.provenance import library_versions, machine

HERE = Path(__file__).resolve().parent
PAGE, RESULTS = HERE.parent / "docs" / "speed.md", HERE / "results" / "speed.json"
SCRIPTS = ("startup", "parse_text", "metrics")
LIBRARIES = ("numba", "numpy", "python", "scikit-learn", "scipy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="only write the page anew, from the stored results")
    if not parser.parse_args().render:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(measured(), indent=2) + "\n", "utf-8")
    PAGE.write_text("\n".join(page(json.loads(RESULTS.read_text("utf-8")))) + "\n", "utf-8")
    print(PAGE.read_text("utf-8"))


def measured() -> dict[str, Any]:
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": {name: version for name, version in library_versions().items() if name in LIBRARIES},
    }
    for name in SCRIPTS:
        print(f"running {name}", file=sys.stderr)
        command = [sys.executable, str(HERE / f"{name}.py"), "--json"]
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def page(found: dict[str, Any]) -> Iterator[str]:
    where, versions = found["machine"], found["versions"]
    yield from ["# Speed", ""]
    yield "Written by `make bench`. Every ratio is measured in one run on one machine, never across machines. This run:"
    yield f"{where['processor']}, {where['processors']} processors, " + ", ".join(
        f"{name} {version}" for name, version in versions.items()
    ) + "."  # fmt: skip
    yield from ["", "## Start", "", "| command | seconds | ratio |", "|---|---|---|"]
    start = found["startup"]
    for name, seconds in start["seconds"].items():
        yield f"| `{name}` | {seconds:.3f} | {seconds / start['seconds']['import click']:.2f} |"
    text = found["parse_text"]
    same = "identical" if text["identical"] else "DIFFERENT"
    yield from ["", "## XMC text to CSR", ""]
    yield f"{text['megabytes']:.0f} MB, {text['rows']:,} rows, {text['nonzeros']:,} values, one thread each. The"
    yield f'matrices are {same}. "memory" sums up the bytes of the mapped file, which no reader can beat.'
    yield from ["", "| reader | seconds | MB/s | ÷ xmckit |", "|---|---|---|---|"]
    for name, spent in text["seconds"].items():
        ratio = spent["wall"] / text["seconds"]["xmckit"]["wall"]
        yield f"| {name} | {spent['wall']:.3f} | {text['megabytes_per_second'][name]:.0f} | {ratio:.2f} |"
    scores = found["metrics"]
    yield from ["", "## Metrics and top k", ""]
    yield f"{scores['rows']:,} rows × {scores['labels']:,} labels, top {scores['width']}. What each row is, is said in"
    yield '`benchmarks/metrics.py`; "÷ floor" compares with the time to read the input once.'
    yield from ["", "| task | who | seconds | ÷ xmckit | ÷ xmckit, all threads | ÷ floor | extra MiB |"]
    yield "|---|---|---|---|---|---|---|"
    for entry in scores["results"]:
        cells = [entry["task"], entry["who"], f"{entry['seconds']:.4f}", f"{entry['ratio']:.1f}"]
        for key, form in (("ratio_threads", "{:.1f}"), ("bandwidth_floors", "{:.1f}"), ("extra_mib", "{:.0f}")):
            cells.append("" if entry.get(key) is None else form.format(entry[key]))
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
