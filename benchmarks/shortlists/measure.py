"""Compare heads on shortlists with the same heads in full and with XR-Linear, on four data sets.

    python -m benchmarks.shortlists.measure [--data DIR] [--only PART] [--minutes M] [--render]

Every cell is a run of benchmarks/heads/recipes/heads.toml through xmckit in its own process, in the folder --runs.
Each finished cell is stored in benchmarks/results/neural.json and is not run again. The first table of
docs/shortlists.md comes from that file; --render only writes it. python-source is the source code of the installed
packages, so its size depends on the machine; heads in full are left out there because they take hours. DIR holds the
other data sets as npz folders; without it, only the built-in stdlib-calls and python-source run.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import memory, paths, study
from benchmarks.common.markdown import header, replace_table, row

RESULTS, PAGE = paths.RESULTS / "neural.json", paths.DOCS / "shortlists.md"
BEGIN, END = "<!-- table: python -m benchmarks.shortlists.measure --render -->", "<!-- /table: heads -->"
SETS = ("stdlib-calls", "cve_libraries", "debian_depends", "python-source")
HEADS = ("bsl", "dft", "lml")
TREE = "XR-Linear"
SHORTLIST = ('index={use="tree"}', "head.hard=20", "head.uniform=1024", "head.candidates=500")
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
ENOUGH = 0.5  # points of P@5 that a shortlist may lose


class Cell(NamedTuple):
    data: str
    system: str

    @property
    def key(self) -> str:
        return f"{self.data} / {self.system}"

    @property
    def sets(self) -> tuple[str, ...]:
        """Return the changes to the recipe."""
        if self.system == TREE:
            return ('head={use="xrlinear"}',)
        head, _, how = self.system.partition(", ")
        return (f'head.use="{head}"', *(SHORTLIST if how == "shortlist" else ()))


def cells() -> Iterator[Cell]:
    for data in SETS:
        yield Cell(data, TREE)
        for head in HEADS:
            yield Cell(data, f"{head}, shortlist")
    for data in SETS[:-1]:
        for head in HEADS:
            yield Cell(data, f"{head}, full")


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    options = parser.parse_args()
    if not options.render:
        study.run_cells(
            cells(), lambda cell: memory.in_fresh_process(run_cell, cell, options.data, options.runs), RESULTS, options
        )
    replace_table(PAGE, BEGIN, END, table(json.loads(RESULTS.read_text("utf-8"))["cells"]))


def run_cell(cell: Cell, data: Path | None, runs: Path, sender: Any) -> None:
    import xmckit

    sets = list(cell.sets)
    if cell.data == "python-source":
        sets += ['features={use="tfidf"}', f'data={{use="python-source", path="{sysconfig.get_paths()["purelib"]}"}}']
    elif cell.data == "stdlib-calls":
        sets.append('features={use="tfidf"}')
    else:
        sets.append(f'data={{use="files", path="{cell.data}"}}')
    recipe, roots = paths.HEADS_RECIPE, [] if data is None else [data]
    result = xmckit.run(recipe, sets=sets, root=runs, data_roots=roots)
    (head,) = result.run.head_stages
    metrics = result.metrics["results"][0]["metrics"]
    sender.send(
        {
            "metrics": {name: round(metrics[name], 6) for name in METRICS},
            "labels": result.metrics["labels"],
            "train_seconds": round(sum(stage.seconds for stage in result.run.stages if stage.is_model), 1),
            "score_seconds": round(result.run.stage("score").seconds, 1),
            "peak_gib": round(head.peak_bytes / 2**30, 2),
        }
    )


def table(cells: dict[str, Any]) -> list[str]:
    lines = [*header(["data", "system", *METRICS, "training, s", "scoring, s", "peak GiB"])]
    for data in SETS:
        systems = [TREE, *(f"{head}, {how}" for head in HEADS for how in ("shortlist", "full"))]
        for system in systems:
            one = cells.get(Cell(data, system).key)
            if one is not None:
                scores = [f"{100 * one['metrics'][name]:.1f}" for name in METRICS]
                costs = [one[name] for name in ("train_seconds", "score_seconds", "peak_gib")]
                lines.append(row([data, system, *scores, *costs]))
    pairs = {
        (data, head): 100 * (cells[f"{data} / {head}, shortlist"]["metrics"]["P@5"] - cells[full]["metrics"]["P@5"])
        for data in SETS
        for head in HEADS
        if (full := f"{data} / {head}, full") in cells and f"{data} / {head}, shortlist" in cells
    }
    if pairs:
        far = [f"{head} on {data} ({change:+.1f})" for (data, head), change in pairs.items() if change < -ENOUGH]
        exceptions = f"; it loses more for {', '.join(far)}" if far else ""
        held = f"{len(pairs) - len(far)} of {len(pairs)} pairs"
        lines += [
            "",
            f"A shortlist loses at most {ENOUGH} points of P@5 against training in full in {held}{exceptions}.",
        ]
    return lines


if __name__ == "__main__":
    main()
