"""Build the exhibits of Grivas et al. (2024) for docs/reproduced.md."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from benchmarks.argmax import bottleneck
from benchmarks.argmax import measure as argmax
from benchmarks.common.markdown import select, unique
from benchmarks.heads import measure as heads
from benchmarks.papers.exhibits import (
    Exhibit,
    Published,
    Results,
    above,
    cells_of,
    count_claim,
    mean,
    number_text,
    steps,
    table,
    value_of,
)


def share_of_sets(results: Results, published: Published) -> Exhibit:
    cells = select(cells_of(results, "bottleneck"), figure="figure 2")
    shares = {cell["k"]: cell["log10_share"] for cell in sorted(cells, key=lambda cell: cell["k"])}
    lines = [["share of all 2ⁿ sets", *(power(share) for share in shares.values())]]
    low = [share for dim, share in shares.items() if dim <= bottleneck.SHARE_LABELS // 2]
    falls = count_claim(
        "the share falls by more than a factor of ten with every step of d below half of the labels",
        (larger - smaller > 1 for larger, smaller in steps(low)),
    )
    return Exhibit(
        table(["d", *shares], lines),
        [falls],
        [cell for cell in bottleneck.cells() if cell.figure == "figure 2"],
        [("papers-count.svg", "The share of all label sets that a layer can output, by its dimensions")],
    )


def power(exponent: float) -> str:
    return f"{10**exponent:.2g}" if exponent > -4 else f"1e{round(exponent)}"


def radius(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def regions(results: Results, published: Published) -> Exhibit:
    cells = select(cells_of(results, "bottleneck"), figure="figure 5")
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
    shrink = count_claim(
        "without slack the radius is provably smaller with more labels",
        above(
            (lowest(k, 0, few, 0), lowest(k, 0, many, 1)) for k in bottleneck.DEGREES for few, many in pairwise(sizes)
        ),
    )
    slack_helps = count_claim(
        "16 slack columns make it provably larger",
        above((lowest(k, 16, labels, 0), lowest(k, 0, labels, 1)) for k in bottleneck.DEGREES for labels in sizes),
    )
    deep = [cell for cell in bare if cell["k"] >= 3 and cell["labels"] == max(sizes)]
    undetected = count_claim(
        f"with k of 3 and more and {max(sizes, default=0):,} labels some sets were not proved argmaxable at 1e-8",
        (cell["at_eps"] < cell["sets"] for cell in deep),
    )
    total, proved = sum(cell["sets"] for cell in bare), sum(cell["proved"] for cell in bare)
    return Exhibit(
        table(["k", "slack", *(f"n = {labels:,}" for labels in sizes)], lines),
        [shrink, slack_helps, undetected],
        [cell for cell in bottleneck.cells() if cell.figure == "figure 5"],
        note=f"The first percentile of the radius over {bottleneck.SETS} random label sets of k labels, between two "
        f"proved bounds. Without slack {proved:,} of all {total:,} label sets were proved argmaxable.",
    )


def reached(counts: dict[str, int]) -> int:
    return int(counts.get("argmaxable", 0))


def share(cell: dict[str, Any], what: str) -> float:
    return 100 * reached(cell[what]) / cell["asked"]


def reach_by_width(results: Results, published: Published) -> Exhibit:
    cells = cells_of(results, "argmax_tables")
    found = {(cell["data"], cell["head"], cell["d"]): cell for cell in cells}
    widths = sorted({cell["d"] for cell in cells})
    lines, sooner = [], []
    for data in unique(cell["data"] for cell in cells):
        least = {}
        for head in ("bsl", "dft"):
            shares = {d: share(found[data, head, d], "eps") for d in widths if (data, head, d) in found}
            lines.append([data, head, *(number_text(shares.get(d)) for d in widths)])
            least[head] = min((d for d, value in shares.items() if value == 100), default=math.inf)
        sooner.append(least["dft"] < least["bsl"])
    bsl, dft = (select(cells, head=head) for head in ("bsl", "dft"))
    pairs = [(cell, found.get((cell["data"], "bsl", cell["d"]))) for cell in dft]
    return Exhibit(
        table(["data", "head", *(f"d = {d}" for d in widths)], lines),
        [
            count_claim(
                "BSL misses test label sets at d below 200",
                (share(cell, "eps") < 100 for cell in bsl if cell["d"] < 200),
            ),
            count_claim(
                "DFT reaches at least as many as BSL at the same d",
                (share(one, "eps") >= share(other, "eps") for one, other in pairs if other is not None),
            ),
            count_claim("DFT reaches all of them at a smaller d than BSL", sooner),
        ],
        list(argmax.cells()),
        [("argmax-reach-stdlib-calls.svg", "Share of the test label sets of stdlib-calls within reach, by width")],
        "Per cent of the verified test label sets, at eps = 1e-8.",
    )


def argmax_counts(results: Results, published: Published) -> Exhibit:
    """Combine tables 2 to 4."""
    cells = cells_of(results, "argmax_tables")
    names = ("BSL, eps", "DFT, eps", "BSL, radius 1", "DFT, radius 1")
    lines, theirs = [], []
    for key, data in (("2", "MIMIC-III"), ("3", "BioASQ"), ("4", "OpenImages v6")):
        entry = published[f"grivas-table-{key}"]
        for line in (line for line in entry["rows"] if line.startswith("test")):
            counts = [value_of(entry, line, name) for name in names]
            theirs.append((data, *counts, entry["of"]["test"]))
            whole = entry["of"]["test"]
            lines.append(
                [f"published: {data}", line.removeprefix("test, d = "), *(count_text(n, whole) for n in counts)]
            )
    ours = []
    for data in unique(cell["data"] for cell in cells):
        for d in sorted({cell["d"] for cell in select(cells, data=data)}):
            pair = [next(iter(select(cells, data=data, head=head, d=d)), None) for head in ("bsl", "dft")]
            shown = [
                "–" if cell is None else count_text(reached(cell[what]), cell["asked"])
                for what in ("eps", "one")
                for cell in pair
            ]
            lines.append([data, d, *shown])
            if None not in pair:
                ours.append(
                    (data, *(reached(cell[what]) for what in ("eps", "one") for cell in pair), pair[0]["asked"])
                )
    bare = [cell["without_biases"] for cell in select(cells, head="bsl")]
    return Exhibit(
        table(["data", "d", "BSL, eps 1e-8", "DFT, eps 1e-8", "BSL, radius 1", "DFT, radius 1"], lines),
        [
            count_claim("BSL misses label sets at the smallest d", *(narrowest(rows, 1) for rows in (ours, theirs))),
            count_claim("DFT reaches all at 1e-8", *([line[2] == line[5] for line in rows] for rows in (ours, theirs))),
            count_claim(
                "DFT loses some at radius 1 at the smallest d",
                *([line[4] < line[2] for line in smallest(rows)] for rows in (ours, theirs)),
            ),
            count_claim(
                "BSL without biases keeps 99 % of what it reaches at radius 1",
                (reached(counts["one"]) >= 0.99 * reached(counts["eps"]) for counts in bare),
                [line[3] >= 0.99 * line[1] for line in theirs],
            ),
        ],
        list(argmax.cells()),
        note="Number and per cent of the verified label sets. The heads here have biases, which keep BSL's "
        "radii below 1 (see [output layers](argmaxability.md)); the last count is of the same weights without them. "
        "One seed here.",
    )


def smallest(lines: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the first line of each data set."""
    return list({line[0]: line for line in reversed(lines)}.values())


def narrowest(lines: list[tuple[Any, ...]], place: int) -> list[bool]:
    return [line[place] < line[5] for line in smallest(lines)]


def count_text(count: float, whole: int) -> str:
    """Return the count and per cent, which round to 100 only if the count is complete."""
    share = 100 * count / whole if count == whole else min(99.9, 100 * count / whole)
    return f"{count:,.0f} ({share:.1f} %)"


def f1_by_width(results: Results, published: Published) -> Exhibit:
    cells = select(cells_of(results, "heads"), part="width")
    widths = sorted({int(cell["name"].split()[1]) for cell in cells})

    def f1(data: str, head: str, d: int) -> float | None:
        return mean(100 * cell["metrics"]["F1@5"] for cell in select(cells, data=data, name=f"{head} {d}"))

    sets = unique(cell["data"] for cell in cells)
    lines = [
        [data, head, *(number_text(f1(data, head, d)) for d in widths)] for data in sets for head in ("bsl", "dft")
    ]
    return Exhibit(
        table(["data", "head", *(f"d = {d}" for d in widths)], lines),
        [
            count_claim(
                "DFT's F1@5 is above BSL's at the same d",
                above((f1(data, "dft", d), f1(data, "bsl", d)) for data in sets for d in widths),
            ),
            count_claim(
                "DFT with half as many learned columns is above BSL",
                above((f1(data, "dft", d), f1(data, "bsl", 2 * d)) for data in sets for d in widths),
            ),
        ],
        [cell for cell in heads.cells() if cell.part == "width"],
        [("heads-width.svg", "F1@5 by the number of learned columns, BSL and DFT")],
        "F1@5, the mean over seeds.",
    )
