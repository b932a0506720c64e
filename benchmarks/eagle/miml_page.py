"""Write docs/miml.md and its pictures from benchmarks/results/eagle_miml.json and eagle_simulation.json."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common import paths
from benchmarks.common.markdown import header, row, select, spread, write_page
from benchmarks.eagle.miml import COMMON, METHODS, RATES, ROWS

SIMULATION = paths.RESULTS / "eagle_simulation.json"
PICTURE = "miml-embeddings.png"
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "digits": "scikit-learn's digits"}
CLOTHES = (
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
PAPER = {
    ("mnist", 4): ("94.70", "94.82", "94.82"), ("mnist", 50): ("33.33", "36.10", "38.46"),
    ("fashion_mnist", 4): ("84.70", "84.89", "85.09"), ("fashion_mnist", 50): ("19.00", "27.62", "28.65"),
}  # fmt: skip
ROW_TITLES = {"EAGLE-0": "EAGLE-0", "EAGLE": "EAGLE", "EAGLE, embeddings trained": "EAGLE, trained"}
SYMBOLS = {"tau": "τ", "direct": "α₀"}

ABOUT = """\
# Bags of rows: the head `miml`

This is section 6 of Shen et al. (2020). Rows come in bags (groups), and only the labels of a bag are known. The head
`miml` learns from bags and ranks labels for bags (`predict(X, k, groups=…)`) or for single rows:

    [head]
    use      = "miml"
    tau      = {tau:g}   # sharpness of the attention of labels to rows; 0: none, which is Deep-MIML
    concepts = {concepts}     # per label, of which the strongest counts

A row becomes one number per label: two layers with ReLU, and the maximum over the concepts. The attention
g·softmax(τ⟨x, e⟩) over the g rows of a bag multiplies these numbers; the bag's logit is their maximum over rows.
Algorithm 1 (`iterations = 0`: EAGLE-0) computes the label embeddings e from the same rows, at unit length; with
`embeddings = "trained"` they are trained further with the rest. The attention acts only within a bag: for a single row
it is 1, and the ranking of a row knows only as much of the embeddings as the network has learned from them. `direct`,
which is not in the paper, adds α·max(⟨x, e⟩, 0) to a row's number, with a learned α that starts at this value, and
starts the network small. It helps much with large bags and harms with small ones (below), so it is off by default.

`loss = "softmax"` reads the repeated labels of a bag as shares of it. The default `"bce"` learns which labels a bag
has, and learns nothing if every bag has every label. The head is meant for up to some thousands of labels; with more,
let the label preprocessor `eagle` give labels to rows and train any head on them. The head is not linear: it cannot be
verified, and it reports this.
"""
TABLE = """
## Images in bags (Table 3 of the paper)

Written by `python -m benchmarks.eagle.miml --data DIR`. A bag holds g random images, and the list of their classes is
known. The table shows the accuracy on single test images in per cent, mean and standard deviation over {seeds} seeds,
which change bags, validation rows and weights. {rows:,} images of each training set are used. A tenth of them, one by
one and with their classes, serve early stopping and, with seed 0, the choice of the loss (by Deep-MIML, for all
methods) and of τ or the start of α (by each method). The paper validates like this on Yelp; it does not say how it
does here. The paper uses more images and an unknown width; its Yelp data are not available here.{fashion} {dim} units,
{concepts} concepts, learning rate {rate:g} (not tuned), τ = 1 where embeddings are trained. The methods below the
paper's rows were found while looking at these test images: they are a finding, not a fair comparison.

The first three rows are the paper's methods. *Likeness added* (`direct` with EAGLE-0's embeddings, the background
removed, and no attention) and *likeness and attention* (`direct`, τ = 0.3, EAGLE's embeddings, the background removed)
are not in the paper. Measured on {processor}, {processors} processors, one thread, torch {torch}.
"""
FASHION = """ Fashion-MNIST is a class-balanced part of the published set with its own split: its numbers are not
comparable with published ones. For all:"""


def write(results: dict[str, Any]) -> None:
    write_page("miml.md", page(results))


def page(results: dict[str, Any]) -> Iterator[str]:
    from xmckit_eagle.miml.head import MIMLParams

    defaults = {name: field.default for name, field in MIMLParams.model_fields.items()}
    yield ABOUT.format(**defaults).rstrip("\n")
    cells = list(results["cells"].values())
    if cells:
        fashion = FASHION if any(cell["data"] == "fashion_mnist" for cell in cells) else ""
        yield TABLE.format(
            seeds=len({cell["seed"] for cell in cells}), rows=ROWS, fashion=fashion,
            rate=RATES[0], dim=COMMON["dim"], concepts=defaults["concepts"], torch=results["versions"]["torch"],
            **results["machine"],
        )  # fmt: skip
        yield from table(results)
    if draw_embeddings(results["pictures"]):
        yield from ["", "## What label embeddings of images look like (figures 5 and 10 of the paper)", ""]
        yield from [PICTURES.strip(), "", f"![Label embeddings of Fashion-MNIST as images]({PICTURE})"]
    if SIMULATION.exists():
        yield from simulation_lines(json.loads(SIMULATION.read_text("utf-8")))


PICTURES = """
The label embeddings of Fashion-MNIST, learned from bags only, minus the mean image: lighter is more, mid-grey is the
mean. The top row shows the means of the classes for comparison, which bags alone do not reveal. In bags of four the
embeddings show the garments. In bags of 50 nearly every bag has every label: EAGLE-0's embeddings differ only by how
often, and the paper's iterations lead all labels to the same image. Training blurs the visible shapes.
"""


def table(results: dict[str, Any]) -> Iterator[str]:
    columns = [(data, int(size)) for data, size in (key.split(" / ") for key in results["chosen"])]
    names = {column: f"{NAMES[column[0]]}, g = {column[1]}" for column in columns}
    yield from header(["", *names.values()])
    for place, (method, (_, parameter, _)) in enumerate(METHODS.items()):
        line = [method]
        for column in columns:
            value = choice_for(results, column)["value"][method]
            how = f", {SYMBOLS[parameter]} = {value:g}" if value else ""
            accuracies = [100 * share for share in seed_accuracies(results, column, method)]
            line.append(f"{spread(accuracies, 2)}{how}{published_text(*column, place)}")
        yield row(line)
    yield row(["loss", *(choice_for(results, column)["loss"] for column in columns)])
    yield ""
    for method in ("EAGLE-0", "EAGLE"):
        above = [
            names[column] for column in columns
            if mean_accuracy(results, column, method) > mean_accuracy(results, column, "Deep-MIML")
        ]  # fmt: skip
        where = "; ".join(above) or "nowhere"
        yield f"The paper has {method} above Deep-MIML in every column; here it is above in: {where}."


def choice_for(results: dict[str, Any], column: tuple[str, int]) -> dict[str, Any]:
    return dict(results["chosen"][f"{column[0]} / {column[1]}"])


def seed_accuracies(results: dict[str, Any], column: tuple[str, int], method: str) -> list[float]:
    """Return the test accuracies by seed, with the parameters chosen for the column and the method."""
    how = choice_for(results, column)
    chosen = (*column, method, how["loss"], how["rate"], how["value"][method])
    return [cell["test"] for cell in results["cells"].values() if form(cell) == chosen]


def mean_accuracy(results: dict[str, Any], column: tuple[str, int], method: str) -> float:
    return float(np.mean(seed_accuracies(results, column, method)))


def form(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("data", "size", "method", "loss", "rate", "value"))


def published_text(data: str, size: int, place: int) -> str:
    accuracies = PAPER.get((data, size), ())
    return f" (paper: {accuracies[place]})" if place < len(accuracies) else ""


def draw_embeddings(pictures: dict[str, str]) -> bool:
    """Draw the grid of embeddings, and return whether there is one."""
    rows = {}
    for size in (4, 50):
        for method in METHODS:
            key = f"fashion_mnist / {size} / {method}"
            if key in pictures and method in ROW_TITLES:
                rows[f"{ROW_TITLES[method]}\ng = {size}"] = pictures[key]
    if not rows:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    rows = {"class means": pictures["fashion_mnist / means"], **rows}
    figure, axes = plt.subplots(len(rows), 10, figsize=(9.5, 0.92 * len(rows) + 0.3), squeeze=False)
    for line, (name, text) in enumerate(rows.items()):
        values = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(10, 28, 28)
        for kind, ax in enumerate(axes[line]):
            ax.imshow(values[kind], cmap="gray", vmin=0, vmax=255)
            ax.set_xticks([])
            ax.set_yticks([])
            if line == 0:
                ax.set_title(CLOTHES[kind], fontsize=8)
        axes[line][0].set_ylabel(name, fontsize=7, rotation=0, ha="right", va="center")
    figure.tight_layout(pad=0.4)
    figure.savefig(paths.DOCS / PICTURE, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return True


SIMULATED = """
## When does giving labels to rows help? (section 7.1 and figures 3 and 6 of the paper)

Written by `python -m benchmarks.eagle.simulation`; {trials} data sets per point, the sizes of appendix B.1 (1000 rows,
10 features, 5 labels, groups of 10). Regression: the order of the responses of a group is unknown; AS gives each
response to the row it fits best, NoAS regresses the sums of groups. Classification: with σ₂ = 0 a group's labels are
drawn evenly, with a large σ₂ nearly all are the same; besides AS and NoAS, EAGLE gives labels to rows. Errors are
multiples of the error of an oracle that knows which label belongs to which row.

![Errors of estimators by the heterogeneity of groups](eagle-simulation.svg)

*Regression: the simulation reproduces the paper's curves.* NoAS rises to {noas:.2f} times the oracle at σ₂ = 10 (√g =
{root:.2f}), AS falls to {as_:.2f}; where a group's rows are nearly alike AS is worse, by up to {worse:.2f} times at σ₂
= {where:g}, which is more than the paper's "slightly". *Classification: the simulation reproduces the direction, not
the size.* With the appendix's noise of 0.1 the oracle is wrong on {few:.2f} % of the rows at most, too few for stable
ratios. With a noise of 0.3 AS is below NoAS, {as_even:.2f} against {noas_even:.2f} times the oracle, if a group's
labels are even; they meet if nearly all labels are the same. (The appendix does not state the size of the labels'
embeddings: here they have unit length. It does not name the classifier: here it is least squares, as in equation 3.
Its probabilities add up to more than 1; here the favoured label weighs exp σ₂ and every other label 1.) Algorithm 1 as
in the paper fails if every group has nearly every label, with {eagle:.1f} times the oracle's error at a noise of 0.3,
because all labels then start at nearly the same sum of rows; with the background removed it reaches {removed:.2f}.
"""


def simulation_lines(results: dict[str, Any]) -> Iterator[str]:
    at = {(cell["task"], cell["spread"]): cell for cell in results["cells"]}
    regression = {spread: cell["relative"] for (task, spread), cell in at.items() if task == "regression"}
    worst = max(regression, key=lambda spread: regression[spread]["AS"] / regression[spread]["NoAS"])
    even = at["classification, noise 0.3", 0.0]["relative"]
    yield SIMULATED.format(
        trials=results["trials"], noas=regression[10.0]["NoAS"], as_=regression[10.0]["AS"], root=10**0.5,
        worse=regression[worst]["AS"] / regression[worst]["NoAS"], where=worst,
        few=100 * max(cell["oracle"] for cell in results["cells"] if cell["task"] == "classification"),
        as_even=even["AS"], noas_even=even["NoAS"], eagle=even["EAGLE"], removed=even["EAGLE, background removed"],
    ).rstrip()  # fmt: skip
    for task in dict.fromkeys(cell["task"] for cell in results["cells"]):
        curve = select(results["cells"], task=task)
        yield from ["", *header([task, *(f"σ₂ = {cell['spread']:g}" for cell in curve)])]
        for name in curve[0]["relative"]:
            yield row([name, *(f"{cell['relative'][name]:.3g}" for cell in curve)])
        yield row(["the oracle's error", *(f"{cell['oracle']:.2g}" for cell in curve)])
