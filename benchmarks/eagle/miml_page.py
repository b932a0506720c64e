"""docs/miml.md and its pictures, from benchmarks/results/eagle_miml.json and eagle_simulation.json."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.common import paths
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
SHOWN = {"EAGLE-0": "EAGLE-0", "EAGLE": "EAGLE", "EAGLE, embeddings trained": "EAGLE, trained"}
SYMBOLS = {"tau": "τ", "direct": "α₀"}

ABOUT = """\
# Bags of rows: the head `miml`

Section 6 of Shen et al. (2020). Rows come in bags (groups), and only the labels of a bag are known. The head `miml`
learns from bags and ranks labels for bags (`predict(X, k, groups=…)`) or for single rows:

    [head]
    use      = "miml"
    tau      = {tau:g}   # sharpness of the attention of labels to rows; 0: none, which is Deep-MIML
    concepts = {concepts}     # per label, of which the strongest counts

A row becomes one number per label: two layers with ReLU, and the maximum over the concepts. The attention
g·softmax(τ⟨x, e⟩) over the g rows of a bag multiplies these numbers; the bag's logit is their maximum over rows. The
label embeddings e are made by Algorithm 1 (`iterations = 0`: EAGLE-0) from the same rows, at unit length; `embeddings =
"trained"` learns them on with the rest. The attention acts within a bag only: for a single row it is 1, and all that a
row's ranking knows of the embeddings is what the network has taken over from them. `direct`, which is not in the paper,
adds α·max(⟨x, e⟩, 0) to a row's number, with an α that starts there and is learned, and lets the network begin small.
It helps much where bags are large, and harms where they are small (below): it is off unless asked for.

`loss = "softmax"` takes the repeated labels of a bag as shares of it, the default `"bce"` asks which labels a bag has,
and learns nothing where every bag has every label. The head is meant for up to some thousands of labels; with more,
let the label preprocessor `eagle` give labels to rows, and any head learn from those. It is not linear: nothing of it
can be verified, and it says so.
"""
TABLE = """
## Images in bags (Table 3 of the paper)

Written by `python -m benchmarks.eagle.miml --data DIR`. A bag holds g random images, and the list of their classes is
known; accuracy on single test images, in per cent, mean and standard deviation over {seeds} seeds (other bags, other
validation rows, other weights). Of each training set {rows:,} images are used, and a tenth of these, one by one and
with their classes, serves early stopping and the choice of the loss (by Deep-MIML, kept for all) and of τ or α's start
(by each method), with seed 0: so the paper validates on Yelp; it does not say how here. The paper uses more images and
an unknown width; its Yelp column cannot be had here.{fashion} {dim} units, {concepts} concepts, learning rate {rate:g}
(not searched for), τ = 1 where embeddings are trained. What is below the paper's rows was found with an eye on these
test images: it is a finding, not a fair comparison.

The first three rows are the paper's. *Likeness added* (`direct` with EAGLE-0's embeddings, the background removed, and
no attention) and *likeness and attention* (`direct`, τ = 0.3, EAGLE's embeddings, the background removed) are not in
it. Run on {processor}, {processors} processors, one thread, torch {torch}.
"""
FASHION = """ Fashion-MNIST is a class-balanced part
of the published set with a split of its own: not comparable with published numbers. In all:"""


def write(found: dict[str, Any]) -> None:
    lines = [*page(found)]
    (paths.DOCS / "miml.md").write_text("\n".join(lines).rstrip() + "\n", "utf-8")
    print(f"wrote {paths.DOCS / 'miml.md'}")


def page(found: dict[str, Any]) -> Iterator[str]:
    from xmckit_eagle.miml.head import MIMLParams

    defaults = {name: field.default for name, field in MIMLParams.model_fields.items()}
    yield ABOUT.format(**defaults).rstrip("\n")
    cells = list(found["cells"].values())
    if cells:
        fashion = FASHION if any(cell["data"] == "fashion_mnist" for cell in cells) else ""
        yield TABLE.format(
            seeds=len({cell["seed"] for cell in cells}), rows=ROWS, fashion=fashion,
            rate=RATES[0], dim=COMMON["dim"], concepts=defaults["concepts"], torch=found["versions"]["torch"],
            **found["machine"],
        )  # fmt: skip
        yield from table(found)
    if draw(found["pictures"]):
        yield from ["", "## What label embeddings of images look like (figures 5 and 10 of the paper)", ""]
        yield from [PICTURES.strip(), "", f"![Label embeddings of Fashion-MNIST as images]({PICTURE})"]
    if SIMULATION.exists():
        yield from simulation(json.loads(SIMULATION.read_text("utf-8")))


PICTURES = """
The label embeddings of Fashion-MNIST, seen only in bags, less the mean image: lighter is more, mid-grey is the mean.
On top, for comparison, the means of the classes, which nobody who has only bags can see. In bags of four the embeddings
are the garments. In bags of 50 nearly every bag has every label: EAGLE-0's embeddings differ only by how often, and the
paper's iterations lead all labels to the same image. Training blurs what can be seen.
"""


def table(found: dict[str, Any]) -> Iterator[str]:
    columns = [(data, int(size)) for data, size in (key.split(" / ") for key in found["chosen"])]
    names = {column: f"{NAMES[column[0]]}, g = {column[1]}" for column in columns}
    yield row(["", *names.values()])
    yield row(["---"] * (len(columns) + 1))
    for place, (method, (_, parameter, _)) in enumerate(METHODS.items()):
        line = [method]
        for column in columns:
            value = chosen(found, column)["value"][method]
            how = f", {SYMBOLS[parameter]} = {value:g}" if value else ""
            line.append(f"{spread(tested(found, column, method))}{how}{published(*column, place)}")
        yield row(line)
    yield row(["loss", *(chosen(found, column)["loss"] for column in columns)])
    yield ""
    for method in ("EAGLE-0", "EAGLE"):
        above = [
            names[column] for column in columns
            if np.mean(tested(found, column, method)) > np.mean(tested(found, column, "Deep-MIML"))
        ]  # fmt: skip
        where = "; ".join(above) or "nowhere"
        yield f"The paper has {method} above Deep-MIML in every column; here it is so in: {where}."


def chosen(found: dict[str, Any], column: tuple[str, int]) -> dict[str, Any]:
    known: dict[str, Any] = found["chosen"][f"{column[0]} / {column[1]}"]
    return known


def tested(found: dict[str, Any], column: tuple[str, int], method: str) -> list[float]:
    """Test accuracies by seed, with what was chosen for the column and the method."""
    how = chosen(found, column)
    form = (*column, method, how["loss"], how["rate"], how["value"][method])
    return [cell["test"] for cell in found["cells"].values() if form_of(cell) == form]


def form_of(cell: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("data", "size", "method", "loss", "rate", "value"))


def published(data: str, size: int, place: int) -> str:
    known = PAPER.get((data, size), ())
    return f" (paper: {known[place]})" if place < len(known) else ""


def spread(shares: list[float]) -> str:
    values = 100 * np.array(shares)
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values.mean():.2f}"


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def draw(pictures: dict[str, str]) -> bool:
    """The grid of embeddings; whether there is one."""
    rows = {}
    for size in (4, 50):
        for method in METHODS:
            key = f"fashion_mnist / {size} / {method}"
            if key in pictures and method in SHOWN:
                rows[f"{SHOWN[method]}\ng = {size}"] = pictures[key]
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
10 features, 5 labels, groups of 10). Regression: the responses of a group come in unknown order; AS gives each response
to the row it fits best, NoAS regresses the sums of groups. Classification: with σ₂ = 0 a group's labels are drawn
evenly, with a large σ₂ nearly all are the same; besides AS and NoAS, EAGLE gives labels to rows. Errors are multiples
of those of an oracle that knows which label is whose.

![Errors of estimators by the heterogeneity of groups](eagle-simulation.svg)

*Regression: the paper's curves come out.* NoAS rises to {noas:.2f} times the oracle at σ₂ = 10 (√g = {root:.2f}), AS
falls to {as_:.2f}; where a group's rows are nearly alike AS is the worse one, by up to {worse:.2f} times at
σ₂ = {where:g}, which is more than the "slightly" of the paper. *Classification: the direction comes out, not the size.*
With the appendix's noise of 0.1 the oracle is wrong on {few:.2f} % of the rows at most, too few for steady ratios.
With a noise of 0.3 AS is below NoAS, {as_even:.2f} against {noas_even:.2f} times the oracle, where a group's labels are
even, and they meet where nearly all are the same. (The appendix does not say how large the labels' embeddings are: here
they have unit length; nor which classifier is used: here least squares, as in equation 3. Its probabilities add up to
more than 1; here the favoured label weighs exp σ₂ and every other one 1.) Algorithm 1 as in the paper fails where every
group has nearly every label, {eagle:.1f} times the oracle's error at a noise of 0.3, as all labels then begin at nearly
the same sum of rows; with the background removed it is at {removed:.2f}.
"""


def simulation(found: dict[str, Any]) -> Iterator[str]:
    at = {(cell["task"], cell["spread"]): cell for cell in found["cells"]}
    regression = {spread: cell["relative"] for (task, spread), cell in at.items() if task == "regression"}
    worst = max(regression, key=lambda spread: regression[spread]["AS"] / regression[spread]["NoAS"])
    even = at["classification, noise 0.3", 0.0]["relative"]
    yield SIMULATED.format(
        trials=found["trials"], noas=regression[10.0]["NoAS"], as_=regression[10.0]["AS"], root=10**0.5,
        worse=regression[worst]["AS"] / regression[worst]["NoAS"], where=worst,
        few=100 * max(cell["oracle"] for cell in found["cells"] if cell["task"] == "classification"),
        as_even=even["AS"], noas_even=even["NoAS"], eagle=even["EAGLE"], removed=even["EAGLE, background removed"],
    ).rstrip()  # fmt: skip
    for task in dict.fromkeys(cell["task"] for cell in found["cells"]):
        mine = [cell for cell in found["cells"] if cell["task"] == task]
        yield from ["", row([task, *(f"σ₂ = {cell['spread']:g}" for cell in mine)]), row(["---"] * (len(mine) + 1))]
        for name in mine[0]["relative"]:
            yield row([name, *(f"{cell['relative'][name]:.3g}" for cell in mine)])
        yield row(["the oracle's error", *(f"{cell['oracle']:.2g}" for cell in mine)])
