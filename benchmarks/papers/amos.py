"""Build the exhibits of Amos, Koltun and Kolter (2019) for docs/reproduced.md."""

from __future__ import annotations

from benchmarks.common.markdown import select
from benchmarks.heads import measure as heads
from benchmarks.heads import topk_losses
from benchmarks.papers.exhibits import (
    Exhibit,
    Published,
    Results,
    above,
    cells_of,
    count_claim,
    difference,
    join_numbers,
    mean,
    table,
)

CLOSE = 1.0  # points


def loss_costs(results: Results, published: Published) -> Exhibit:
    cells = sorted(cells_of(results, "topk_losses"), key=lambda cell: cell["k"])
    spent = {
        name: [cell["milliseconds"][name] for cell in cells] for name in (cells[0]["milliseconds"] if cells else ())
    }
    lines = [[name, *(f"{milliseconds:.2f}" for milliseconds in found)] for name, found in spent.items()]
    svm, entropy, layer, ours = (
        spent.get(name, []) for name in ("smooth SVM", "top-k entropy, sorted", "LML, bracketing", "LML")
    )
    constant = [later <= 2 * found[0] for found in (entropy, layer) for later in found[1:]]
    note = ""
    if cells:
        ratios = [mine / theirs for mine, theirs in zip(ours, entropy, strict=True)]
        slower = [theirs / mine for mine, theirs in zip(ours, layer, strict=True)]
        note = (
            f"Milliseconds, forward and backward. xmckit's own LML takes {min(ratios):.2f} to {max(ratios):.2f} times "
            f"as long as the sorted entropy, and is {min(slower):.0f} to {max(slower):.0f} times faster than the "
            "paper's bracketing."
        )
    return Exhibit(
        table(["k", *(cell["k"] for cell in cells)], lines),
        [
            count_claim(
                "smooth SVM takes more than twice its time at the smallest k", (later > 2 * svm[0] for later in svm[1:])
            ),
            count_claim("the paper's LML and the sorted entropy take at most twice theirs", constant),
            count_claim("the sorted entropy is faster than smooth SVM", above(zip(svm, entropy, strict=True))),
            count_claim("and faster than the paper's LML", above(zip(layer, entropy, strict=True))),
        ],
        list(topk_losses.cells()),
        note=note,
    )


def class_noise(results: Results, published: Published) -> Exhibit:
    cells = select(cells_of(results, "heads"), part="noise")
    shares = sorted({cell["name"].split()[1] for cell in cells}, key=float)
    losses = {"cross-entropy": "softmax", "top-k entropy": "topk-entropy", "LML": "lml"}

    def recall(loss: str, noise: str, metric: str = "R@5") -> float | None:
        return mean(100 * cell["metrics"][metric] for cell in select(cells, name=f"{losses[loss]} {noise}"))

    lines = [
        [
            f"{100 * float(noise):.0f} %",
            *(join_numbers([recall(loss, noise, "P@1"), recall(loss, noise)]) for loss in losses),
        ]
        for noise in shares
    ]

    def behind(other: str, metric: str) -> list[bool]:
        pairs = [(recall("LML", noise, metric), recall(other, noise, metric)) for noise in shares]
        return above((difference(one, -CLOSE), theirs) for one, theirs in pairs)

    places = {"P@1": "first place", "R@5": "first five"}
    return Exhibit(
        table(["noise", *losses], lines),
        [
            count_claim(f"LML is less than {CLOSE:g} point behind {other} in the {place}", behind(other, metric))
            for other in ("cross-entropy", "top-k entropy")
            for metric, place in places.items()
        ],
        [cell for cell in heads.cells() if cell.part == "noise"],
        [("heads-noise.svg", "How often the true class is among the first five, by class noise")],
        "How often the true class is first / among the first five, per cent, the mean over seeds.",
    )
