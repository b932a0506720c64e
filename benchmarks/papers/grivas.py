"""The exhibits of Grivas et al. (2024) for docs/reproduced.md."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from benchmarks.argmax import bottleneck
from benchmarks.argmax import measure as argmax_tables
from benchmarks.heads import measure as heads
from benchmarks.papers.exhibits import (
    Published,
    Results,
    Shown,
    above,
    cells_of,
    claim,
    column,
    mean,
    of,
    steps,
    table,
    text,
    unique,
)


def share_of_sets(results: Results, published: Published) -> Shown:
    cells = of(cells_of(results, "bottleneck"), figure="figure 2")
    shares = {cell["k"]: cell["log10_share"] for cell in sorted(cells, key=lambda cell: cell["k"])}
    lines = [["share of all 2ⁿ sets", *(power(share) for share in shares.values())]]
    low = [share for dim, share in shares.items() if dim <= bottleneck.SHARE_LABELS // 2]
    falls = claim(
        "the share falls by more than a factor of ten with every step of d below half of the labels",
        (larger - smaller > 1 for larger, smaller in steps(low)),
    )
    return Shown(
        table(["d", *shares], lines),
        [falls],
        [cell for cell in bottleneck.cells() if cell.figure == "figure 2"],
        [("papers-count.svg", "The share of all label sets that a layer can output, by its dimensions")],
    )


def power(exponent: float) -> str:
    return f"{10**exponent:.2g}" if exponent > -4 else f"1e{round(exponent)}"


def radius(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def regions(results: Results, published: Published) -> Shown:
    cells = of(cells_of(results, "bottleneck"), figure="figure 5")
    sizes = sorted({cell["labels"] for cell in cells})
    found = {(cell["k"], cell["slack"], cell["labels"]): cell for cell in cells}

    def lowest(k: int, slack: int, labels: int, place: int) -> float | None:
        cell = found.get((k, slack, labels))
        return None if cell is None else cell["lowest"][place]

    lines = []
    for k in bottleneck.DEGREES:
        for slack in bottleneck.SLACKS:
            bounds = [[lowest(k, slack, labels, place) for place in (0, 1)] for labels in sizes]
            shown = ["–" if low is None else f"{radius(low)} … {radius(high)}" for low, high in bounds]
            lines.append([k, slack, *shown])
    bare = [cell for cell in cells if cell["slack"] == 0]
    shrink = claim(
        "without slack the radius is provably smaller with more labels",
        above(
            (lowest(k, 0, few, 0), lowest(k, 0, many, 1)) for k in bottleneck.DEGREES for few, many in pairwise(sizes)
        ),
    )
    slack_helps = claim(
        "16 slack columns make it provably larger",
        above((lowest(k, 16, labels, 0), lowest(k, 0, labels, 1)) for k in bottleneck.DEGREES for labels in sizes),
    )
    deep = [cell for cell in bare if cell["k"] >= 3 and cell["labels"] == max(sizes)]
    undetected = claim(
        f"with k of 3 and more and {max(sizes, default=0):,} labels some sets could not be shown argmaxable at 1e-8",
        (cell["at_eps"] < cell["sets"] for cell in deep),
    )
    total, proved = sum(cell["sets"] for cell in bare), sum(cell["proved"] for cell in bare)
    return Shown(
        table(["k", "slack", *(f"n = {labels:,}" for labels in sizes)], lines),
        [shrink, slack_helps, undetected],
        [cell for cell in bottleneck.cells() if cell.figure == "figure 5"],
        note=f"The radius that 1 % of {bottleneck.SETS} random label sets of k labels are below, between two proved "
        f"bounds. Without slack {proved:,} of all {total:,} label sets were proved argmaxable.",
    )


def reached(counts: dict[str, int]) -> int:
    return int(counts.get("argmaxable", 0))


def share(cell: dict[str, Any], what: str) -> float:
    return 100 * reached(cell[what]) / cell["asked"]


def reach_by_width(results: Results, published: Published) -> Shown:
    cells = cells_of(results, "argmax_tables")
    found = {(cell["data"], cell["head"], cell["d"]): cell for cell in cells}
    widths = sorted({cell["d"] for cell in cells})
    lines, sooner = [], []
    for data in unique(cell["data"] for cell in cells):
        least = {}
        for head in ("bsl", "dft"):
            shares = {d: share(found[data, head, d], "eps") for d in widths if (data, head, d) in found}
            lines.append([data, head, *(text(shares.get(d)) for d in widths)])
            least[head] = min((d for d, value in shares.items() if value == 100), default=math.inf)
        sooner.append(least["dft"] < least["bsl"])
    bsl, dft = (of(cells, head=head) for head in ("bsl", "dft"))
    pairs = [(cell, found.get((cell["data"], "bsl", cell["d"]))) for cell in dft]
    return Shown(
        table(["data", "head", *(f"d = {d}" for d in widths)], lines),
        [
            claim(
                "BSL misses test label sets at d below 200",
                (share(cell, "eps") < 100 for cell in bsl if cell["d"] < 200),
            ),
            claim(
                "DFT reaches at least as many as BSL at the same d",
                (share(one, "eps") >= share(other, "eps") for one, other in pairs if other is not None),
            ),
            claim("DFT has all of them within reach at a smaller d than BSL", sooner),
        ],
        list(argmax_tables.cells()),
        [("argmax-reach-stdlib-calls.svg", "Share of the test label sets of stdlib-calls within reach, by width")],
        "Per cent of the test label sets that were asked for, at eps = 1e-8.",
    )


def argmax_counts(results: Results, published: Published) -> Shown:
    """Tables 2 to 4 in one."""
    cells = cells_of(results, "argmax_tables")
    names = ("BSL, eps", "DFT, eps", "BSL, radius 1", "DFT, radius 1")
    lines, theirs = [], []
    for key, data in (("2", "MIMIC-III"), ("3", "BioASQ"), ("4", "OpenImages v6")):
        entry = published[f"grivas-table-{key}"]
        for line in (line for line in entry["rows"] if line.startswith("test")):
            counts = [column(entry, line, name) for name in names]
            theirs.append((data, *counts, entry["of"]["test"]))
            whole = entry["of"]["test"]
            lines.append([f"published: {data}", line.removeprefix("test, d = "), *(numbered(n, whole) for n in counts)])
    ours = []
    for data in unique(cell["data"] for cell in cells):
        for d in sorted({cell["d"] for cell in of(cells, data=data)}):
            pair = [next(iter(of(cells, data=data, head=head, d=d)), None) for head in ("bsl", "dft")]
            shown = [
                "–" if cell is None else numbered(reached(cell[what]), cell["asked"])
                for what in ("eps", "one")
                for cell in pair
            ]
            lines.append([data, d, *shown])
            if None not in pair:
                ours.append(
                    (data, *(reached(cell[what]) for what in ("eps", "one") for cell in pair), pair[0]["asked"])
                )
    bare = [cell["without_biases"] for cell in of(cells, head="bsl")]
    return Shown(
        table(["data", "d", "BSL, eps 1e-8", "DFT, eps 1e-8", "BSL, radius 1", "DFT, radius 1"], lines),
        [
            claim("BSL misses label sets at the smallest d", *(narrowest(rows, 1) for rows in (ours, theirs))),
            claim("DFT reaches all at 1e-8", *([line[2] == line[5] for line in rows] for rows in (ours, theirs))),
            claim(
                "DFT loses some at radius 1 at the smallest d",
                *([line[4] < line[2] for line in smallest(rows)] for rows in (ours, theirs)),
            ),
            claim(
                "BSL without biases keeps 99 % of what it reaches at radius 1",
                (reached(counts["one"]) >= 0.99 * reached(counts["eps"]) for counts in bare),
                [line[3] >= 0.99 * line[1] for line in theirs],
            ),
        ],
        list(argmax_tables.cells()),
        note="Number and per cent of the label sets that were asked for. The heads here have biases, which keep BSL's "
        "radii below 1 (see [output layers](argmaxability.md)); the last count is of the same weights without them. "
        "One seed here.",
    )


def smallest(lines: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The first line of each data set."""
    return list({line[0]: line for line in reversed(lines)}.values())


def narrowest(lines: list[tuple[Any, ...]], place: int) -> list[bool]:
    return [line[place] < line[5] for line in smallest(lines)]


def numbered(count: float, whole: int) -> str:
    """Per cent are rounded, but to 100 only where it is all."""
    share = 100 * count / whole if count == whole else min(99.9, 100 * count / whole)
    return f"{count:,.0f} ({share:.1f} %)"


def f1_by_width(results: Results, published: Published) -> Shown:
    cells = of(cells_of(results, "heads"), part="width")
    widths = sorted({int(cell["name"].split()[1]) for cell in cells})

    def f1(data: str, head: str, d: int) -> float | None:
        return mean(100 * cell["metrics"]["F1@5"] for cell in of(cells, data=data, name=f"{head} {d}"))

    sets = unique(cell["data"] for cell in cells)
    lines = [[data, head, *(text(f1(data, head, d)) for d in widths)] for data in sets for head in ("bsl", "dft")]
    return Shown(
        table(["data", "head", *(f"d = {d}" for d in widths)], lines),
        [
            claim(
                "DFT's F1@5 is above BSL's at the same d",
                above((f1(data, "dft", d), f1(data, "bsl", d)) for data in sets for d in widths),
            ),
            claim(
                "DFT with half as many learned columns is above BSL",
                above((f1(data, "dft", d), f1(data, "bsl", 2 * d)) for data in sets for d in widths),
            ),
        ],
        [cell for cell in heads.cells() if cell.part == "width"],
        [("heads-width.svg", "F1@5 by the number of learned columns, BSL and DFT")],
        "F1@5, the mean over seeds.",
    )


# Amos, Koltun and Kolter (2019) ---------------------------------------------------------------------------------------
