"""Draw the pictures of docs/papers.md, which are computed from the formulas, and the one of docs/architecture.md."""

from __future__ import annotations

from math import comb, log10
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Wedge

from xmckit.drawing import BLUE, COLOURS, GREEN, GREY, ORANGE, VERMILION, as_svg

LIGHT = "#E4E4E4"


def write_pictures(folder: Path) -> list[Path]:
    drawings = {
        "papers-bottleneck": bottleneck, "papers-count": count, "papers-proof": proof, "papers-dft": dft,
        "papers-lml": lml, "papers-eagle": eagle, "papers-overlap": overlap, "architecture-pipeline": pipeline,
    }  # fmt: skip
    files = []
    for name, draw in drawings.items():
        file = folder / f"{name}.svg"
        file.write_text(as_svg(draw()) + "\n", "utf-8")
        files.append(file)
    return files


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, panels)))


def _plain(axes: Axes, title: str = "", reach: float | None = None) -> None:
    """Remove the scales of a drawing."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)
    if reach:
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach))


def _unit(degrees: float | np.ndarray) -> np.ndarray:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=-1)


def _set_text(signs: np.ndarray) -> str:
    active = [str(label + 1) for label in np.flatnonzero(signs > 0)]
    return "{" + ", ".join(active) + "}" if active else "∅"


# Three labels in two dimensions, as in figure 1 of the paper.
ROWS = _unit(np.array([75.0, 160.0, 290.0]))


def bottleneck() -> Figure:
    """Draw the plane, cut by three lines into the regions of the label sets of three labels in two dimensions."""
    figure, (axes,) = _figure(5.2, 4.6)
    edges = np.sort(np.concatenate([(np.degrees(np.arctan2(w[1], w[0])) + np.array([90, 270])) % 360 for w in ROWS]))
    for place, (start, end) in enumerate(zip(edges, np.append(edges[1:], edges[0] + 360), strict=True)):
        middle = _unit((start + end) / 2)
        axes.add_patch(Wedge((0, 0), 1.25, start, end, color=COLOURS[place % len(COLOURS)], alpha=0.16, linewidth=0))
        axes.text(*(0.88 * middle), _set_text(np.sign(ROWS @ middle)), ha="center", va="center", fontsize=12)
    for label, w in enumerate(ROWS):
        side = np.array([-w[1], w[0]])
        axes.plot(*np.stack([-1.25 * side, 1.25 * side], axis=1), color=GREY, linewidth=1)
        axes.annotate("", 0.55 * w, (0, 0), arrowprops={"arrowstyle": "-|>", "color": VERMILION, "linewidth": 1.5})
        axes.text(*(0.66 * w), f"w{'₁₂₃'[label]}", ha="center", va="center", color=VERMILION, fontsize=11)
    _plain(axes, "3 labels, 2 dimensions: 6 of 8 label sets have a region.\n∅ and {1, 2, 3} have none.", 1.35)
    return figure


def count() -> Figure:
    """Plot Cover's count of the label sets that n labels in d dimensions can output, as a share of all."""
    figure, (axes,) = _figure(6.2, 3.4)
    for n, colour in ((100, GREEN), (1000, BLUE), (3000, VERMILION)):
        dims = np.unique(np.geomspace(2, n, 60).astype(int))
        sums = np.cumsum(np.array([comb(n - 1, i) for i in range(n)], dtype=object))
        shares = [log10(2 * int(sums[d - 1])) - n * log10(2) for d in dims]
        axes.plot(dims, shares, color=colour, label=f"{n:,} labels")
    axes.set(xscale="log", xlabel="dimensions d", ylabel="log₁₀ of the share of label sets", ylim=(-950, 30))
    axes.legend(frameon=False)
    axes.grid(color=LIGHT)
    return figure


def proof() -> Figure:
    """Draw a witness with the disc around it, and a combination of rows that is zero."""
    figure, (can, cannot) = _figure(8.4, 4.0, 2)
    signs = np.array([1.0, 1.0, -1.0])
    best = max((_unit(angle) for angle in np.arange(0, 360, 0.25)), key=lambda x: float(np.min(signs * (ROWS @ x))))
    room = float(np.min(signs * (ROWS @ best)))
    for axes in (can, cannot):
        for w in ROWS:
            side = np.array([-w[1], w[0]])
            axes.plot(*np.stack([-1.3 * side, 1.3 * side], axis=1), color=LIGHT, linewidth=1.2)
    witness = 0.8 * best
    can.add_patch(Circle(tuple(witness), 0.8 * room, color=GREEN, alpha=0.25, linewidth=0))
    can.plot(*witness, "o", color=GREEN)
    can.text(witness[0] - 0.06, witness[1] + 0.1, "x", color=GREEN, fontsize=13, ha="right")
    _plain(can, "{1, 2} can: x gives it, as does all in the disc", 1.35)
    multipliers = np.linalg.svd(ROWS.T)[2][-1]
    multipliers = np.abs(multipliers) / np.abs(multipliers).max()
    start = np.array([0.1, -0.4])
    for label, (share, w) in enumerate(zip(multipliers, ROWS, strict=True)):
        end = start + share * w
        cannot.annotate(
            "", end, start, arrowprops={"arrowstyle": "-|>", "color": VERMILION, "linewidth": 1.6, "shrinkA": 0}
        )
        middle = (start + end) / 2
        outward = np.array([w[1], -w[0]])
        name = f"{share:.2f} w{'₁₂₃'[label]}"
        cannot.text(*(middle + 0.25 * outward), name, color=VERMILION, ha="center", va="center")
        start = end
    _plain(cannot, "{1, 2, 3} cannot: 0.77 w₁ + 0.58 w₂ + 1.00 w₃ = 0", 1.35)
    return figure


def dft() -> Figure:
    """Draw a wave of degree 2 that is positive at exactly the labels of two arcs."""
    n, active = 16, np.array([2, 3, 4, 9, 10])
    angles = 2 * np.pi * np.arange(n) / n
    zeros = 2 * np.pi * np.array([1.5, 4.5, 8.5, 10.5]) / n
    on = np.isin(np.arange(n), active)

    def wave(t: np.ndarray) -> np.ndarray:
        # the product of four such sines is a trigonometric polynomial of degree 2 with these zeros and no others
        return -np.prod(np.sin((t[:, None] - zeros) / 2), axis=1)

    assert np.array_equal(wave(angles) > 0, on)
    figure, (circle, line) = _figure(8.6, 3.6, 2)
    circle.add_patch(Circle((0, 0), 1, fill=False, edgecolor=LIGHT))
    places = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    circle.scatter(*places.T, s=150, c=np.where(on, BLUE, "white"), edgecolors=BLUE, zorder=2)
    for label, place in enumerate(places):
        circle.text(*(1.2 * place), str(label), ha="center", va="center", fontsize=9)
    _plain(circle, "5 active labels, 2 arcs", 1.4)
    t = np.linspace(-0.2, 2 * np.pi - 0.1, 400)
    line.axhline(0, color=GREY, linewidth=0.8)
    line.plot(t * n / (2 * np.pi), wave(t), color=GREY)
    line.scatter(np.arange(n), wave(angles), s=45, c=np.where(on, BLUE, "white"), edgecolors=BLUE, zorder=3)
    line.set(xlabel="label, by its place on the circle", ylabel="logit", xticks=range(0, n, 2), yticks=[0])
    line.set_title("one wave of degree 2 outputs them", fontsize=10)
    for side in ("top", "right"):
        line.spines[side].set_visible(False)
    return figure


def lml() -> Figure:
    """Draw the sigmoids of logits, and their projection onto probabilities that sum up to 2."""
    logits = np.array([1.6, 0.9, 0.2, -0.4, -1.2, -2.0, -2.4])
    k = 2

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    low, high = -20.0, 20.0
    for _ in range(80):
        nu = (low + high) / 2
        low, high = (nu, high) if sigmoid(logits + nu).sum() < k else (low, nu)
    figure, panels = _figure(8.4, 2.9, 2)
    shown = (
        (sigmoid(logits), GREY, "σ(z): each label by itself"),
        (sigmoid(logits + nu), BLUE, f"LML: σ(z + ν), ν = {nu:.2f}"),
    )
    for axes, (values, colour, title) in zip(panels, shown, strict=True):
        bars = axes.bar(range(1, len(values) + 1), values, color=colour)
        axes.bar_label(bars, fmt="%.2f", fontsize=8, padding=1)
        axes.set(ylim=(0, 1.08), xlabel="label", title=f"{title}\nsum {values.sum():.2f}")
        axes.title.set_fontsize(10)
    return figure


def eagle() -> Figure:
    """Draw EAGLE on rows in the plane: the embedding of what a label's groups share chooses one row in each."""
    rng = np.random.default_rng(3)
    centre, groups = 62.0, 5
    others = np.array([[5, 38], [95, 20], [10, 36], [-5, 85], [98, 10]], dtype=float)
    true = centre + rng.normal(0, 3, groups)
    rows = _unit(np.concatenate([true[:, None], others], axis=1))  # groups × 3 × 2
    e = rows.sum(axis=(0, 1))
    first = e = e / np.linalg.norm(e)
    for _ in range(20):
        chosen = np.argmax(rows @ e, axis=1)
        e = e + 0.1 * rows[np.arange(groups), chosen].sum(axis=0)
        e /= np.linalg.norm(e)
    figure, panels = _figure(8.6, 3.9, 2)
    titles = ("start: the mean of all rows; two choices are wrong", "after 20 steps: all are right")
    for axes, embedding, title in zip(panels, (first, e), titles, strict=True):
        picked = np.argmax(rows @ embedding, axis=1)
        assert np.count_nonzero(picked) == (2 if embedding is first else 0)
        for group in range(groups):
            length = 0.62 + 0.13 * group
            around = length * rows[group]
            axes.plot(*around[np.argsort(np.arctan2(*around.T))].T, color=LIGHT, linewidth=1)
            axes.scatter(*around.T, s=40, facecolors="white", edgecolors=COLOURS[group], zorder=2)
            axes.scatter(*around[picked[group]], s=42, color=COLOURS[group], zorder=3)
        axes.annotate("", 1.36 * embedding, (0, 0), arrowprops={"arrowstyle": "-|>", "linewidth": 2})
        axes.text(*(1.46 * embedding), "e", ha="center", va="center", fontsize=13)
        _plain(axes, title)
        axes.set(xlim=(-0.45, 1.4), ylim=(-0.15, 1.45))
    return figure


def overlap() -> Figure:
    """Draw the rows of a label with two meanings in a plane of four leaves, and the leaves that the counts choose."""
    rng = np.random.default_rng(1)
    centres = np.array([[-1.0, 0.9], [1.0, 0.9], [-1.0, -0.9], [1.0, -0.9]])
    cloud = np.concatenate([centre + rng.normal(0, 0.42, (45, 2)) for centre in centres])
    rows = (16, 2, 3, 11)
    label = np.concatenate([c + rng.normal(0, 0.3, (n, 2)) for c, n in zip(centres, rows, strict=True)])
    leaf = np.argmin(((label[:, None] - centres) ** 2).sum(-1), axis=1)
    counts = np.bincount(leaf, minlength=4)
    figure, (plane, bars) = _figure(8.4, 3.5, 2)
    plane.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    plane.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    plane.scatter(*cloud.T, s=9, color=LIGHT)
    plane.scatter(*label.T, s=26, color=VERMILION)
    for number, centre in enumerate(centres):
        plane.text(*(1.75 * centre), f"leaf {number + 1}", ha="center", va="center", fontsize=9, color=GREY)
    _plain(plane, "rows of the label “jaguar”, and four leaves", 2.1)
    kept = np.isin(np.arange(4), np.argsort(-counts)[:2])
    drawn = bars.bar(range(1, 5), counts, color=np.where(kept, ORANGE, LIGHT))
    bars.bar_label(drawn, fontsize=9)
    bars.set(xticks=range(1, 5), xlabel="leaf", ylabel="rows of the label", ylim=(0, counts.max() * 1.15))
    bars.set_title("the label's row of YᵀM: λ = 2 keeps two", fontsize=10)
    return figure


def pipeline() -> Figure:
    """Draw the stages of a run, each with the kind of its component and the files that it writes."""
    stages = (
        ("data", "dataset\nreader", "rows and\nlabels"),
        ("features", "featurizer", "feature\nmatrix"),
        ("labels", "label\npreprocessor", "new training\nlabels"),
        ("index", "indexer", "label index"),
        ("head", "head\nencoder", "model"),
        ("score", "metric", "metrics.json\npredictions.npz"),
        ("verify", "verifier", "verdicts.json\ncertificates.npz"),
        ("report", "", "report.html"),
    )
    figure, (axes,) = _figure(10.4, 2.1)
    for number, (stage, kind, output) in enumerate(stages):
        x = 1.5 * number
        axes.add_patch(FancyBboxPatch((x - 0.45, -0.2), 0.9, 0.4, boxstyle="round,pad=0.05", color=BLUE, alpha=0.16))
        axes.text(x, 0, stage, ha="center", va="center", fontsize=11)
        axes.text(x, 0.36, kind, ha="center", va="bottom", fontsize=8.5, color=VERMILION)
        axes.text(x, -0.36, output, ha="center", va="top", fontsize=8.5, color=GREY)
        if number:
            axes.annotate("", (x - 0.52, 0), (x - 0.98, 0), arrowprops={"arrowstyle": "-|>", "color": GREY})
    axes.set(xlim=(-0.7, 11.3), ylim=(-0.85, 0.9))
    axes.set_axis_off()
    axes.text(-0.6, 0.85, "kind of component", fontsize=8.5, color=VERMILION, va="top", style="italic")
    axes.text(-0.6, -0.84, "what it writes", fontsize=8.5, color=GREY, va="bottom", style="italic")
    return figure
