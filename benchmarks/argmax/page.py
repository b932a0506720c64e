"""Write the tables and pictures of docs/argmaxability.md from benchmarks/results/argmax_tables.json."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from xmckit_argmax.figures import ReachByDimension, reach_by_dimension

from benchmarks.common import paths
from benchmarks.common.markdown import Cells, header, row, select, versions_text

PAGE, START, END = paths.DOCS / "argmaxability.md", "<!-- tables:", "<!-- /tables -->"
HEADS = ("bsl", "dft")
LIBRARIES = ("torch", "numpy", "numba")

ABOUT = """\
This repeats tables 2 to 4 of the paper on other data. d: learned columns (`dim` of bsl, `slack` of dft, which has 2k +
1 fixed columns in addition). The verifier gets the different label sets of the test rows, a random sample of at most
{most} of them. *stored*, *at eps*, *radius 1*: the number of sets proved argmaxable for the stored matrix, at eps =
1e-8 and at radius 1, both in the box of 1e4. *guaranteed*: the number that dft guarantees by construction. *seconds*:
time of the verifier until the answers at eps, on one thread of a machine that ran other work too. One seed; heads
train for at most {epochs} epochs, fewer than they need, so P@1 and F1@5 (per cent) differ from [heads.md](heads.md).
The heads have their default biases; the paper's heads have none. Measured on {processor}, {versions}."""
FINDINGS = """\
Findings: BSL layers can never output some test label sets, {bsl_few} of the verified ones at the smallest d; at the
largest d these are {bsl_all}. With the same number of learned columns, DFT reaches {dft_exact} of the verified sets in
its worst cell, and all of them in {dft_full} of {dft_cells} cells; {dft_beyond} of the verified sets have more arcs
than its guarantee covers, which the training rows determine. In {dft_rounded} cells the stored matrix reaches fewer
sets than the definition guarantees: rounding to float32 loses them. The first two findings agree with the paper, as do
the small regions of DFT at a small d: in the worst cell DFT keeps {dft_eps} at eps and {dft_one} at radius 1. Unlike
in the paper, BSL loses sets at radius 1 too, up to {bsl_lost} of those that it reaches. The biases cause this: they
fix the scale, while without them a radius grows with the box, and a margin of 1e-4 is a radius of 1. The same W
without its biases loses {bare_lost} of the {bare_eps} sets that it reaches at eps, over all cells. {unresolved}
verdicts stayed unresolved, and so did {open_at_eps} answers at eps or radius 1."""


def write(results: dict[str, Any]) -> None:
    text = PAGE.read_text("utf-8")
    start, end = text.index("-->", text.index(START)) + len("-->\n"), text.index(END)
    body = "\n".join(page(results))
    PAGE.write_text(f"{text[:start]}{body}\n{text[end:]}", "utf-8")
    print(f"wrote {PAGE}")


def page(results: dict[str, Any]) -> Iterator[str]:
    cells = list(results["cells"].values())
    data_sets = [data for data in results["epochs"] if any(cell["data"] == data for cell in cells)]
    yield ""
    about = ABOUT.format(
        processor=results["machine"]["processor"],
        versions=versions_text(results["versions"], LIBRARIES),
        most=numbers_text(results["most_sets"], data_sets),
        epochs=numbers_text(results["epochs"], data_sets),
    )
    yield textwrap.fill(about, 120)
    yield ""
    yield textwrap.fill(findings(cells), 120)
    for data in data_sets:
        here = select(cells, data=data)
        yield from ["", f"### {data}", ""]
        yield f"{here[0]['labels']:,} labels; {here[0]['asked']:,} of {here[0]['of']:,} different test label sets."
        yield ""
        yield from table(here)
        picture = f"argmax-reach-{data}.svg"
        layers = [layer(here, head) for head in HEADS]
        (paths.DOCS / picture).write_text(reach_by_dimension(layers, dims="learned columns"), "utf-8")
        yield from ["", f"![Share of the test label sets of {data} within reach, by learned columns]({picture})"]


def numbers_text(numbers: dict[str, int], data_sets: list[str]) -> str:
    """Return one number, or one per data set where they differ."""
    if len({numbers[data] for data in data_sets}) == 1:
        return f"{numbers[data_sets[0]]:,}"
    return ", ".join(f"{numbers[data]:,} ({data})" for data in data_sets)


def table(cells: Cells) -> Iterator[str]:
    names = ["d"]
    for head in HEADS:
        names += [f"{head}: stored", *(["guaranteed"] if head == "dft" else []), "at eps", "radius 1", "P@1", "F1@5"]
    yield from header([*names, "seconds"])
    for d in sorted({cell["d"] for cell in cells}):
        values: list[Any] = [d]
        seconds = []
        for head in HEADS:
            cell = next((cell for cell in cells if (cell["head"], cell["d"]) == (head, d)), None)
            if cell is None:  # the study is not finished
                values += ["–"] * (6 if head == "dft" else 5)
                continue
            values += [reached(cell, "exact"), *([reached(cell, "ideal")] if head == "dft" else [])]
            values += [reached(cell, "eps"), reached(cell, "one")]
            values += [f"{100 * cell['metrics'][name]:.1f}" for name in ("P@1", "F1@5")]
            seconds.append(f"{cell['seconds']:.1f}")
        yield row([*values, " / ".join(seconds)])


def reached(cell: dict[str, Any], what: str) -> int:
    return int(cell[what].get("argmaxable", 0))


def share(cell: dict[str, Any], what: str) -> float:
    return reached(cell, what) / cell["asked"]


def layer(cells: Cells, head: str) -> ReachByDimension:
    own = sorted(select(cells, head=head), key=lambda cell: cell["d"])
    return ReachByDimension(
        head,
        [cell["d"] for cell in own],
        exact=[share(cell, "exact") for cell in own],
        at_eps=[share(cell, "eps") for cell in own],
        at_radius_1=[share(cell, "one") for cell in own],
    )


def findings(cells: Cells) -> str:
    bsl, dft = (select(cells, head=head) for head in HEADS)
    smallest = [cell for cell in bsl if cell["d"] == min(other["d"] for other in bsl if other["data"] == cell["data"])]
    widest = [cell for cell in bsl if cell["d"] == max(other["d"] for other in bsl if other["data"] == cell["data"])]
    bare_eps = sum(reached(cell["without_biases"], "eps") for cell in bsl)
    answers = [cell[what] for cell in cells for what in ("eps", "one")]
    return FINDINGS.format(
        bsl_few=range_text([1 - share(cell, "exact") for cell in smallest]),
        bsl_all=", ".join(
            f"{cell['asked'] - reached(cell, 'exact')} at {cell['d']} on {cell['data']}" for cell in widest
        ),
        dft_exact=percent_text(min(share(cell, "exact") for cell in dft)),
        dft_full=sum(share(cell, "exact") == 1 for cell in dft),
        dft_cells=len(dft),
        dft_beyond=range_text([1 - share(cell, "ideal") for cell in dft]),
        dft_rounded=sum(reached(cell, "exact") < reached(cell, "ideal") for cell in dft),
        dft_eps=percent_text(min(share(cell, "eps") for cell in dft)),
        dft_one=percent_text(min(share(cell, "one") for cell in dft)),
        bsl_lost=percent_text(max(map(lost, bsl))),
        bare_lost=bare_eps - sum(reached(cell["without_biases"], "one") for cell in bsl),
        bare_eps=bare_eps,
        unresolved=sum(cell["exact"]["unresolved"] for cell in cells),
        open_at_eps=sum(counts.get("None", 0) + counts.get("unresolved", 0) for counts in answers),
    )


def lost(cell: dict[str, Any]) -> float:
    """Return the share of the sets within reach at eps that is out of reach at radius 1."""
    return 1 - reached(cell, "one") / max(1, reached(cell, "eps"))


def range_text(shares: list[float]) -> str:
    low, high = percent_text(min(shares)), percent_text(max(shares))
    return low if low == high else f"{low} to {high}"


def percent_text(share: float) -> str:
    return f"{100 * share:.1f} %"
