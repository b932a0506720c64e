"""Write docs/heads.md and its pictures from benchmarks/results/heads.json."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common.markdown import (
    Cells,
    header,
    picture,
    row,
    save_figure,
    select,
    spread,
    unique,
    versions_text,
    write_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"bsl": "#0072B2", "dft": "#D55E00", "bce": "#0072B2", "softmax": "#0072B2", "topk-entropy": "#009E73"}
COLOURS |= {"lml": "#D55E00"}
LIBRARIES = ("torch", "numpy", "numba")

CAPTIONS = {
    "heads-width": "F1@5 by the number of learned columns, BSL and DFT",
    "heads-loss": "Training loss over time, BSL and DFT",
    "heads-noise": "How often the true class is among the first five, by class noise",
}
ABOUT = """
Written by `python -m benchmarks.heads.measure --data DIR`; every cell is a run of a recipe in
`benchmarks/heads/recipes`. All scores are percentages: means and standard deviations over seeds, which change the
weights, the order of rows and the validation rows, not the test rows. Without a deviation: one seed. Measured on
{processor}, {processors} processors, {versions}."""
WIDTH = """
## BSL against DFT, by width

d: learned columns of the output layer (`dim` of bsl, `slack` of dft, which has 2k + 1 fixed columns in addition and
reads k from the rows it sees). All other parameters are the defaults. *parameters*: learned numbers of the output
layer, and of the whole model in brackets. *epochs*, *seconds*: up to the epoch that is kept. *beyond*: test rows
outside the layer's guarantee."""
FINDINGS = """\
In {better} of {pairs} pairs of data set and d, dft has the higher mean F1@5, in {clear} of them by more than both
deviations together. It takes {slower:.2f} times as long to the epoch that is kept (geometric mean). The paper reports
faster convergence of dft; there BSL starts with even odds for every label, here both heads start at the frequencies of
the labels."""
FORMS = """
## Forms of the DFT layer, 32 slack columns

*columns*: the fixed ones. *outside*: test rows that the guarantee does not cover."""
HIDDEN = """
## Labels hidden at random

A share of the training pairs is removed; the test labels are complete. LML and the top-k entropy train for k = 10; all
three losses stop by the nDCG@5 of the validation rows, which suits bce best."""
NOISE = """
## Class noise, Fashion-MNIST

With the probability in the first column, the class of a training image is redrawn among the five classes that look
alike (tops; the rest). The columns show the recall of the first five of ten classes and of the first, on clean test
labels. This replaces section 5.2 of Amos et al. (2019), which uses CIFAR-100."""


def write(results: dict[str, Any]) -> None:
    parts: dict[str, Cells] = defaultdict(list)
    for cell in results["cells"].values():
        parts[cell["part"]].append(cell)
    pictures = draw(parts)
    write_page("heads.md", page(results, parts, pictures))


def page(results: dict[str, Any], parts: dict[str, Cells], pictures: Sequence[str]) -> Iterator[str]:
    yield "# Heads compared"
    yield ABOUT.format(**results["machine"], versions=versions_text(results["versions"], LIBRARIES))
    yield WIDTH
    yield from ["", *width_findings(parts["width"])]
    yield from picture("heads-width", pictures, CAPTIONS["heads-width"])
    yield from picture("heads-loss", pictures, CAPTIONS["heads-loss"])
    for data in unique(cell["data"] for cell in parts["width"]):
        yield from ["", f"### {data}", ""]
        yield from width_table(select(parts["width"], data=data))
    yield FORMS
    yield from [
        "",
        "| data | form | P@1 | P@5 | nDCG@5 | columns | outside | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in parts["forms"]:
        facts = cell["facts"]
        cells = [cell["data"], cell["name"], *(percent([cell], name) for name in ("P@1", "P@5", "nDCG@5"))]
        yield row(
            [*cells, facts["fixed columns"], facts["test rows beyond the guarantee"], f"{converged(cell)[1]:.1f}"]
        )
    yield HIDDEN
    for data in unique(cell["data"] for cell in parts["hidden"]):
        yield from ["", f"### {data}", ""]
        yield from hidden_table(select(parts["hidden"], data=data))
    yield NOISE
    yield from ["", *noise_table(parts["noise"])]
    yield from picture("heads-noise", pictures, CAPTIONS["heads-noise"])


def width_table(cells: Cells) -> Iterator[str]:
    metrics = ("P@1", "P@3", "P@5", "F1@5", "nDCG@5")
    yield from header(["head", "d", *metrics, "parameters", "epochs", "seconds", "beyond"])
    for name in sorted(unique(cell["name"] for cell in cells), key=lambda name: (int(name.split()[1]), name)):
        same = select(cells, name=name)
        facts = same[0]["facts"]
        size = f"{facts['of these in the output layer']:,} ({facts['trainable parameters']:,})"
        epochs, seconds = (spread([converged(cell)[place] for cell in same], place) for place in (0, 1))
        beyond = facts.get("test rows beyond the guarantee", "–")
        yield row([*name.split(), *(percent(same, metric) for metric in metrics), size, epochs, seconds, beyond])


def width_findings(cells: Cells) -> Iterator[str]:
    """Yield the summary of the tables."""
    better = clear = pairs = 0
    slower = []
    for data, dim in dict.fromkeys((cell["data"], cell["name"].split()[1]) for cell in cells):
        here = select(cells, data=data)
        bsl, dft = (scores(here, f"{head} {dim}", "F1@5") for head in ("bsl", "dft"))
        if not bsl or not dft:  # the study is not finished
            continue
        gap = np.mean(dft) - np.mean(bsl)
        pairs, better = pairs + 1, better + (gap > 0)
        clear += len(bsl) > 1 and gap > np.std(bsl, ddof=1) + np.std(dft, ddof=1)
        spent = [
            np.mean([converged(cell)[1] for cell in select(here, name=f"{head} {dim}")]) for head in ("bsl", "dft")
        ]
        slower.append(spent[1] / spent[0])
    yield FINDINGS.format(better=better, pairs=pairs, clear=clear, slower=np.exp(np.mean(np.log(slower))))


def hidden_table(cells: Cells) -> Iterator[str]:
    metrics = ("R@5", "R@10", "P@1", "nDCG@5")
    yield from header(["hidden", "loss", *metrics])
    for name in sorted(unique(cell["name"] for cell in cells), key=lambda name: (float(name.split()[1]), name)):
        loss, share = name.split()
        same = select(cells, name=name)
        yield row([f"{100 * float(share):.0f} %", loss, *(percent(same, metric) for metric in metrics)])


def noise_table(cells: Cells) -> Iterator[str]:
    heads = unique(cell["name"].split()[0] for cell in cells)
    yield from header(["noise", *(f"{head}, R@5" for head in heads), *(f"{head}, P@1" for head in heads)])
    for share in sorted(unique(cell["name"].split()[1] for cell in cells), key=float):
        of_head = {head: select(cells, name=f"{head} {share}") for head in heads}
        values = [percent(of_head[head], metric) for metric in ("R@5", "P@1") for head in heads]
        yield row([f"{100 * float(share):.0f} %", *values])


def draw(parts: dict[str, Cells]) -> list[str]:
    """Draw the pictures that have data, and return their names."""
    from matplotlib.figure import Figure

    names = []
    plots = {
        "heads-width": ("width", width_plot),
        "heads-loss": ("width", loss_plot),
        "heads-noise": ("noise", noise_plot),
    }
    for name, (part, plot) in plots.items():
        if not parts[part]:
            continue
        data = [
            one
            for one in unique(cell["data"] for cell in parts[part])
            if part == "noise" or seeds(parts[part], one) > 1
        ]
        if not data:
            continue
        figure = Figure(figsize=(4.2 * len(data), 3.3), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(data)))
        for axes, one in zip(panels, data, strict=True):
            plot(axes, select(parts[part], data=one))
            axes.set_title(one)
            axes.legend(frameon=False, fontsize=8)
        save_figure(figure, panels, name)
        names.append(name)
    return names


def width_plot(axes: Axes, cells: Cells) -> None:
    for head in ("bsl", "dft"):
        dims = sorted({int(cell["name"].split()[1]) for cell in cells})
        values = np.array([scores(cells, f"{head} {dim}", "F1@5") for dim in dims], dtype=object)
        mean, deviation = (np.array([reduce(value) for value in values]) for reduce in (np.mean, np.std))
        axes.plot(dims, mean, marker="o", color=COLOURS[head], label=head)
        axes.fill_between(dims, mean - deviation, mean + deviation, color=COLOURS[head], alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(dims, [str(dim) for dim in dims])
    axes.set_xlabel("learned columns d")
    axes.set_ylabel("F1@5, %")


def loss_plot(axes: Axes, cells: Cells) -> None:
    """Plot figure 7 of the paper: training loss over time."""
    for head in ("bsl", "dft"):
        for dim, style in ((16, "--"), (64, "-")):
            for cell in cells:
                if cell["name"] == f"{head} {dim}" and cell["seed"] == 0:
                    epochs = cell["training"]
                    seconds, losses = ([epoch[key] for epoch in epochs] for key in ("seconds", "loss"))
                    axes.plot(seconds, losses, style, color=COLOURS[head], label=f"{head}, d = {dim}")
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("training loss, per row")


def noise_plot(axes: Axes, cells: Cells) -> None:
    for head in unique(cell["name"].split()[0] for cell in cells):
        shares = sorted({float(cell["name"].split()[1]) for cell in cells})
        means = [np.mean(scores(cells, f"{head} {share}", "R@5")) for share in shares]
        axes.plot([100 * share for share in shares], means, marker="o", color=COLOURS[head], label=head)
    axes.set_xlabel("redrawn labels, %")
    axes.set_ylabel("true class among the first 5, %")


def scores(cells: Cells, name: str, metric: str) -> list[float]:
    return [100 * cell["metrics"][metric] for cell in select(cells, name=name)]


def seeds(cells: Cells, data: str) -> int:
    return len({cell["seed"] for cell in select(cells, data=data)})


def converged(cell: dict[str, Any]) -> tuple[float, float]:
    """Return (number, seconds) of the epoch that provides the final weights."""
    best = max(cell["training"], key=lambda epoch: (epoch["score"], -epoch["number"]))
    return best["number"], best["seconds"]


def percent(cells: Cells, metric: str) -> str:
    return spread([100 * cell["metrics"][metric] for cell in cells], 1)
