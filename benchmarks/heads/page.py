"""docs/heads.md and its pictures, from benchmarks/results/heads.json (see heads.py)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.common import paths

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"bsl": "#0072B2", "dft": "#D55E00", "bce": "#0072B2", "softmax": "#0072B2", "topk-entropy": "#009E73"}
COLOURS |= {"lml": "#D55E00"}
LIBRARIES = ("torch", "numpy", "numba")
Cells = list[dict[str, Any]]

CAPTIONS = {
    "heads-width": "F1@5 by the number of learned columns, BSL and DFT",
    "heads-loss": "Training loss over time, BSL and DFT",
    "heads-noise": "How often the true class is among the first five, by class noise",
}
ABOUT = """
Written by `python -m benchmarks.heads.measure --data DIR`; every cell is a run of a recipe in
`benchmarks/heads/recipes`. Means and standard deviations over seeds (other weights, other order of rows, other
validation share; the same test
rows); no deviation: one seed. Percentages. Run on {processor}, {processors} processors, {versions}."""
WIDTH = """
## BSL against DFT, by width

d: learned columns of the output layer (`dim` of bsl, `slack` of dft, which has 2k + 1 fixed columns more and reads k
from the rows it sees). Everything else is the same and as the heads come. *parameters*: learned numbers of the output
layer, and of the whole model in brackets. *epochs*, *seconds*: to the epoch that is kept. *beyond*: test rows outside
the layer's guarantee."""
FINDINGS = """\
In {better} of {pairs} pairs of data set and d, dft has the higher mean F1@5, in {clear} of them by more than both
deviations together. It takes {slower:.2f} times as long to the epoch that is kept (geometric mean). The paper reports
faster convergence of dft; there BSL starts with every label at even odds, here both heads start at the labels'
frequencies."""
FORMS = """
## Forms of the DFT layer, 32 slack columns

*columns*: the fixed ones. *outside*: test rows that the guarantee does not cover."""
HIDDEN = """
## Labels hidden at random

A share of the training pairs is forgotten; the test labels are whole. LML and the top-k entropy are trained for k = 10;
all three stop by the validation share's nDCG@5, which suits bce best."""
NOISE = """
## Class noise, Fashion-MNIST

With the probability in the first column a training image's class is drawn anew among the five that look alike (tops;
the rest). Recall of the first five of ten classes and of the first, on clean test labels. Stands in for section 5.2 of
Amos et al. (2019), which does this on CIFAR-100."""


def write(found: dict[str, Any]) -> None:
    parts: dict[str, Cells] = defaultdict(list)
    for cell in found["cells"].values():
        parts[cell["part"]].append(cell)
    pictures = draw(parts)
    (paths.DOCS / "heads.md").write_text("\n".join(page(found, parts, pictures)) + "\n", "utf-8")
    print(f"wrote {paths.DOCS / 'heads.md'}")


def page(found: dict[str, Any], parts: dict[str, Cells], pictures: Sequence[str]) -> Iterator[str]:
    yield "# Heads compared"
    yield ABOUT.format(
        **found["machine"], versions=", ".join(f"{name} {found['versions'][name]}" for name in LIBRARIES)
    )
    yield WIDTH
    yield from ["", *width_findings(parts["width"])]
    yield from picture("heads-width", pictures)
    yield from picture("heads-loss", pictures)
    for data in unique(cell["data"] for cell in parts["width"]):
        yield from ["", f"### {data}", ""]
        yield from width_table([cell for cell in parts["width"] if cell["data"] == data])
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
        yield from hidden_table([cell for cell in parts["hidden"] if cell["data"] == data])
    yield NOISE
    yield from ["", *noise_table(parts["noise"])]
    yield from picture("heads-noise", pictures)


def picture(name: str, drawn: Sequence[str]) -> list[str]:
    return ["", f"![{CAPTIONS[name]}]({name}.svg)"] if name in drawn else []


def width_table(cells: Cells) -> Iterator[str]:
    metrics = ("P@1", "P@3", "P@5", "F1@5", "nDCG@5")
    yield row(["head", "d", *metrics, "parameters", "epochs", "seconds", "beyond"])
    yield row(["---"] * (len(metrics) + 6))
    for name in sorted(unique(cell["name"] for cell in cells), key=lambda name: (int(name.split()[1]), name)):
        same = [cell for cell in cells if cell["name"] == name]
        facts = same[0]["facts"]
        size = f"{facts['of these in the output layer']:,} ({facts['trainable parameters']:,})"
        epochs, seconds = (spread([converged(cell)[place] for cell in same], place) for place in (0, 1))
        beyond = facts.get("test rows beyond the guarantee", "–")
        yield row([*name.split(), *(percent(same, metric) for metric in metrics), size, epochs, seconds, beyond])


def width_findings(cells: Cells) -> Iterator[str]:
    """What the tables come to."""
    better = clear = pairs = 0
    slower = []
    for data, dim in dict.fromkeys((cell["data"], cell["name"].split()[1]) for cell in cells):
        here = [cell for cell in cells if cell["data"] == data]
        bsl, dft = (scores(here, f"{head} {dim}", "F1@5") for head in ("bsl", "dft"))
        if not bsl or not dft:  # of a study that is not finished
            continue
        gap = np.mean(dft) - np.mean(bsl)
        pairs, better = pairs + 1, better + (gap > 0)
        clear += len(bsl) > 1 and gap > np.std(bsl, ddof=1) + np.std(dft, ddof=1)
        spent = [
            np.mean([converged(cell)[1] for cell in here if cell["name"] == f"{head} {dim}"]) for head in ("bsl", "dft")
        ]
        slower.append(spent[1] / spent[0])
    yield FINDINGS.format(better=better, pairs=pairs, clear=clear, slower=np.exp(np.mean(np.log(slower))))


def hidden_table(cells: Cells) -> Iterator[str]:
    metrics = ("R@5", "R@10", "P@1", "nDCG@5")
    yield row(["hidden", "loss", *metrics])
    yield row(["---"] * (len(metrics) + 2))
    for name in sorted(unique(cell["name"] for cell in cells), key=lambda name: (float(name.split()[1]), name)):
        loss, share = name.split()
        same = [cell for cell in cells if cell["name"] == name]
        yield row([f"{100 * float(share):.0f} %", loss, *(percent(same, metric) for metric in metrics)])


def noise_table(cells: Cells) -> Iterator[str]:
    heads = unique(cell["name"].split()[0] for cell in cells)
    yield row(["noise", *(f"{head}, R@5" for head in heads), *(f"{head}, P@1" for head in heads)])
    yield row(["---"] * (1 + 2 * len(heads)))
    for share in sorted(unique(cell["name"].split()[1] for cell in cells), key=float):
        of_head = {head: [cell for cell in cells if cell["name"] == f"{head} {share}"] for head in heads}
        values = [percent(of_head[head], metric) for metric in ("R@5", "P@1") for head in heads]
        yield row([f"{100 * float(share):.0f} %", *values])


def draw(parts: dict[str, Cells]) -> list[str]:
    """The pictures that there are numbers for."""
    from matplotlib import rc_context
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
        for axes, one in zip(np.atleast_1d(figure.subplots(1, len(data))), data, strict=True):
            plot(axes, [cell for cell in parts[part] if cell["data"] == one])
            axes.set_title(one)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, fontsize=8)
        with rc_context({"svg.hashsalt": "xmckit"}):  # the same numbers give the same bytes
            figure.savefig(paths.DOCS / f"{name}.svg", metadata={"Date": None})
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
    """The paper's figure 7: training loss over time."""
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
    axes.set_xlabel("labels drawn anew, %")
    axes.set_ylabel("true class among the first 5, %")


def scores(cells: Cells, name: str, metric: str) -> list[float]:
    return [100 * cell["metrics"][metric] for cell in cells if cell["name"] == name]


def seeds(cells: Cells, data: str) -> int:
    return len({cell["seed"] for cell in cells if cell["data"] == data})


def converged(cell: dict[str, Any]) -> tuple[float, float]:
    """(number, seconds) of the epoch whose weights were kept."""
    best = max(cell["training"], key=lambda epoch: (epoch["score"], -epoch["number"]))
    return best["number"], best["seconds"]


def percent(cells: Cells, metric: str) -> str:
    return spread([100 * cell["metrics"][metric] for cell in cells], 1)


def spread(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"
