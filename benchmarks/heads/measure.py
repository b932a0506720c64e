"""Measure heads: BSL against DFT by width, ranking losses with hidden labels, and ranking losses under class noise.

    python -m benchmarks.heads.measure [--data DIR] [--only PART] [--minutes M] [--render]

Every cell is a run of a recipe in benchmarks/heads/recipes through xmckit itself, in the folder --runs. Each finished
cell is stored in benchmarks/results/heads.json and is not run again. docs/heads.md and its pictures come from that
file; --render only writes them. DIR holds the data sets as npz folders and fashion_mnist; without it, only the
built-in stdlib-calls runs. PART is one of: width, forms, hidden, noise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import paths, study

RESULTS = paths.RESULTS / "heads.json"
PLUGIN = Path(__file__).with_name("label_noise.py")
SEEDS = (0, 1, 2)
DIMS = (8, 16, 32, 64, 128)
FULL, PART = ("stdlib-calls", "bibtex", "cve_libraries"), ("delicious", "debian_depends")
RANKING = {"bce": "bsl", "lml": "lml", "topk-entropy": "topk-entropy"}


class Cell(NamedTuple):
    """Describe one run: `name` is unique within its part, and `sets` are the changes to the recipe."""

    part: str
    data: str
    name: str
    seed: int
    sets: tuple[str, ...]
    recipe: str = "heads"

    @property
    def key(self) -> str:
        return f"{self.part} / {self.data} / {self.name} / seed {self.seed}"


def cells() -> Iterator[Cell]:
    """Yield the most informative cells first, for a study that is interrupted."""
    for seed in SEEDS:
        for data in FULL:
            for dim in DIMS:
                yield Cell("width", data, f"bsl {dim}", seed, ('head.use="bsl"', f"head.dim={dim}"))
                yield Cell("width", data, f"dft {dim}", seed, ('head.use="dft"', f"head.slack={dim}"))
            for share in (0.2, 0.5):
                hidden = ('labels=[{use="hide-labels"}]', f"labels.0.share={share}")
                for loss, head in RANKING.items():
                    k = () if head == "bsl" else ("head.k=10",)
                    yield Cell("hidden", data, f"{loss} {share}", seed, (f'head.use="{head}"', *k, *hidden))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            for head in ("softmax", "topk-entropy", "lml"):
                sets = (f'head.use="{head}"', f"labels.0.share={share}")
                yield Cell("noise", "fashion_mnist", f"{head} {share}", seed, sets, "class-noise")
        if seed == SEEDS[0]:
            for data in FULL:
                for name, change in FORMS.items():
                    yield Cell("forms", data, name, seed, ('head.use="dft"', "head.slack=32", *change))
            for data in PART:
                for dim in (16, 64):
                    yield Cell("width", data, f"bsl {dim}", seed, ('head.use="bsl"', f"head.dim={dim}"))
                    yield Cell("width", data, f"dft {dim}", seed, ('head.use="dft"', f"head.slack={dim}"))


FORMS = {
    "as it comes": (),
    "labels in the given order": ('head.order="given"',),
    "without biases, as in the paper": ("head.bias=false",),
    "both": ('head.order="given"', "head.bias=false"),
    "learned angles": ('head.angles="learned"',),
}


def main() -> None:
    parser = study.parser(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs")
    options = parser.parse_args()
    if not options.render:
        study.run_cells(cells(), lambda cell: run_cell(cell, options.data, options.runs), RESULTS, options)
    from benchmarks.heads import page

    page.write(json.loads(RESULTS.read_text("utf-8")))


def run_cell(cell: Cell, data: Path | None, runs: Path) -> dict[str, Any]:
    import xmckit
    from xmckit.registry import Registry

    sets = [f"seed={cell.seed}", *cell.sets]
    if cell.data == "stdlib-calls":
        sets.append('features={use="tfidf"}')
    elif cell.recipe == "heads":
        sets.append(f'data={{use="files", path="{cell.data}"}}')
    result = xmckit.run(
        paths.RECIPES / f"{cell.recipe}.toml",
        sets=sets,
        root=runs,
        registry=Registry(files=[PLUGIN]),
        data_roots=[] if data is None else [data],
    )
    (head,) = result.run.head_facts()
    return {
        "metrics": {name: round_digits(value) for name, value in result.metrics["results"][0]["metrics"].items()},
        "facts": head["facts"],
        "training": [{key: round_digits(value) for key, value in epoch.items()} for epoch in head["training"]],
        "peak_bytes": max(stage.peak_bytes for stage in result.run.head_stages),
    }


def round_digits(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
