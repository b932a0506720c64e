"""Write docs/overlap.md and its pictures from benchmarks/results/overlap*.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xmckit_pecos.linear.options import TOLERANCE
from xmckit_pecos.overlap import ROUGH

from benchmarks.common import paths
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
from benchmarks.overlap.measure import (
    BASE,
    CEILING,
    ENTANGLED_SETS,
    NAPKIN,
    NAPKIN_AS_IT_COMES,
    NARROWER,
    NARROWER_TWO,
    PAPER,
    PECOS,
    PECOS_AS_IT_COMES,
    PER_LABEL,
    RANDOM,
    SAME,
    SETS,
    TWO,
    WIDER,
    WIDER_TWO,
)

METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
LAMBDAS = range(1, 7)
LIBRARIES = ("libpecos", "napkinxc", "numpy", "numba")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999")
AS_THEY_ARE = "as they are"
SHARES = ("pure", "planted_share", "by_chance", "found")

ABOUT = """\
# Labels in several leaves

Written by `python -m benchmarks.overlap.measure --data DIR`, which can be interrupted and resumed. Scores are
percentages: means over seeds, which change label trees and random choices, not the rows; ± is the standard deviation,
for more than one seed. Times are the least of the seeds; they were taken beside other work and are rough. `python -m
benchmarks.overlap.speed` measures them in turns. Measured on {processor}, {processors} processors, {versions}.

Every tree has about 64 leaves of up to 100 labels, and the search follows 10 of them per row (a sixth of the leaves in
smaller trees). All systems on PECOS train with its defaults (C = 1, squared hinge, `tfn`), and with the same seed
start from the same tree. *scored*: labels that are ranked for a row, including copies, on average over test rows.
Labels on no training row are left out everywhere. The score of a label is the mean over its scored copies.

- *XR-Linear*: indexer `tree`, head `xrlinear`.
- *overlap per label*: indexer `overlap` with its defaults: a label gets a further copy if enough of its rows reach
  another leaf first.
- *overlap λ = n*: every label may have n copies, as in the paper, with a cap on leaves. *without cap*: the paper's own
  form. *same matcher*: the matcher stays the same when labels move (`rounds = 0`, the paper's "alternative update:
  no").
- *matched to*: the beam of XR-Linear is widened until it scores at least as many labels as the other system; the beam
  of overlap is narrowed until it scores at most as many. Beams are whole numbers, so the matched system is at a slight
  disadvantage.
- *random copies*: as many further copies of each label as *overlap per label*, in random leaves.
- *one-versus-all*: one linear model per label, trained against all rows and always scored: the best that a tree could
  reach, where it is affordable.
- *PECOS*, *napkinXC*: called directly, with leaves and beam of the same size; *as it comes*: with their own defaults.
  The exact search of napkinXC does not report how many labels it scores."""
COPIES = """
## Copies and the matcher's update

As Figure 3 and Table 4 of the paper: P@5 with a retrained matcher / with the same matcher.
"""
MEANINGS = """
## Which labels get a further copy

This table shows whether further copies go to labels with a second meaning, on synthetic data with known meanings
(`benchmarks/overlap/meanings.py`, {seeds} seeds). *of one topic*: the share of a leaf's labels that belong to its main
topic. If leaves hold many topics, the leaves that rows reach cannot reveal a second meaning, and copies go to other
labels as well.

| data | labels of a leaf of one topic | further copies | on planted labels | by chance | planted labels that have one |
| --- | --- | --- | --- | --- | --- |"""
MERGED = f"""
## Merged labels

As Figure 2 of the paper: groups of 2, 4 or 8 labels are merged into one, on training and test rows, by data set
`entangled`: similar labels (easy), less similar labels (medium) or any labels (hard). The table shows P@5 and its gain
relative to {BASE}.
"""
FIRST_MATCHER = """
## How exact the first matcher is

The matcher that only decides where labels move trains to a tolerance of {rough:g} instead of PECOS's default
{exact:g}. The table shows P@5 on a held-out fifth of the training rows, and processor seconds of the whole index;
these were taken beside other work and are rough (`benchmarks/overlap/tolerance.py`, {seeds} seeds). On average P@5
changes by {changes}. (The tolerance was first chosen with a look at test rows; this table was made afterwards to check
the choice without them.)
"""


def write(results: dict[str, Any]) -> None:
    cells: Cells = list(results["cells"].values())
    pictures = draw(cells)
    write_page("overlap.md", page(results, cells, pictures))


def page(results: dict[str, Any], cells: Cells, pictures: list[str]) -> Iterator[str]:
    versions = versions_text(results["versions"] | results["peers"], LIBRARIES)
    yield ABOUT.format(**results["machine"], versions=versions)
    plain = select(cells, labels=AS_THEY_ARE)
    yield "\n## Comparison at the same cost\n"
    yield from comparison_lines(plain)
    yield "\n## Costs\n"
    yield from cost_lines(paths.RESULTS)
    yield from meaning_lines(paths.RESULTS / "overlap_meanings.json")
    yield from first_matcher_lines(paths.RESULTS / "overlap_tolerance.json")
    for data in (data for data in SETS if select(plain, data=data)):
        yield f"\n## {data}\n"
        yield from full_table(select(plain, data=data))
    if any("λ" in cell["system"] for cell in plain):
        yield COPIES
        yield from lambda_table(plain)
        yield from picture("overlap-lambda", pictures, "P@5 gained over XR-Linear, and labels scored, by copies")
    merged = [cell for cell in cells if cell["labels"] != AS_THEY_ARE]
    if merged:
        yield MERGED
        yield from merged_table(merged)
        yield from picture("overlap-entangled", pictures, "Relative gain in P@5 over XR-Linear by merged labels")


def mean(cells: Cells, name: str) -> float | None:
    values = [cell[name] for cell in cells if name in cell]
    return float(np.mean(values)) if values else None


def comparison_lines(cells: Cells) -> Iterator[str]:
    """Compare overlap, with no more scored labels than the others, with PECOS and napkinXC."""
    systems = (BASE, NARROWER, NARROWER_TWO, PECOS, NAPKIN, PER_LABEL, WIDER, TWO, WIDER_TWO, CEILING)
    yield "P@5 / PSP@5 (labels scored for a row):\n"
    sets = [data for data in SETS if select(cells, data=data)]
    yield from header(["system", *sets])
    for system in systems:
        yield row([system, *(short(select(cells, data=data, system=system)) for data in sets)])
    yield ""
    for system, others in (
        (NARROWER, (PECOS, NAPKIN)),
        (NARROWER_TWO, (PECOS, NAPKIN)),
        (PER_LABEL, (WIDER, RANDOM)),
        (TWO, (WIDER_TWO,)),
    ):
        for other in others:
            yield from verdict(cells, system, other)


def short(cells: Cells) -> str:
    if not cells:
        return "–"
    return f"{percent(cells, 'P@5')} / {percent(cells, 'PSP@5')} ({number(cells, 'scored', 0)})"


def verdict(cells: Cells, system: str, other: str) -> Iterator[str]:
    for name in ("P@5", "PSP@5"):
        gains = {data: gain for data in SETS if (gain := mean_gain(cells, data, system, other, name)) is not None}
        if not gains:
            continue
        behind = ", ".join(f"{data} ({100 * gain:+.2f})" for data, gain in gains.items() if gain <= 0)
        won = sum(gain > 0 for gain in gains.values())
        yield (
            f"- {name}, *{system}* against *{other}*: ahead on {won} of {len(gains)} data sets, "
            f"{100 * float(np.mean(list(gains.values()))):+.2f} points on average"
            + (f"; not on {behind}." if behind else ".")
        )


def mean_gain(cells: Cells, data: str, system: str, other: str, name: str) -> float | None:
    """Return the mean difference over the seeds that have both."""
    theirs = {cell["seed"]: cell[name] for cell in select(cells, data=data, system=other)}
    gains = [
        cell[name] - theirs[cell["seed"]] for cell in select(cells, data=data, system=system) if cell["seed"] in theirs
    ]
    return float(np.mean(gains)) if gains else None


SPEED = """\
Separate measurement, {threads} threads, the best of several turns (`benchmarks/overlap/speed.py`). Training and
prediction are divided by those of a plain tree (targets: at most 2.0 and 3.0 for training, 1.3 for prediction); the
beam of the overlapping tree is narrowed until it scores no more labels than the plain tree.
"""
SIZE = """
Synthetic data with the shape of Amazon-670K, and shares of it (`benchmarks/overlap/size.py`): index, head, and
prediction of the best 5 labels, in processor seconds of {threads} threads together; *peak* of the whole process
(target: at most 20 GiB).
"""
ASSIGNMENT = """
The step that moves labels, measured separately (`benchmarks/overlap/assignment.py`): {rows:,} rows, {labels:,} labels
and {leaves:,} leaves, {threads} threads, *peak* of the process with its data (target: at most {seconds} s and {gib}
GiB). *below the optimum*: an upper bound for the gap of Σ C∘(YᵀM), by the prices of the auction.
"""
SMALL = """
On a problem of 400 labels with little room, compared with the optimum that HiGHS finds: {gaps}.
"""


def cost_lines(results: Path) -> Iterator[str]:
    """Yield the tables of the separate measurements."""
    speed, size, assignment = (
        json.loads(file.read_text("utf-8")) if (file := results / name).exists() else None
        for name in ("overlap_speed.json", "overlap_size.json", "overlap_assignment.json")
    )
    if speed is not None:
        yield SPEED.format(**speed)
        systems = [(what, name) for what in ("train", "predict") for name in speed["sets"][0]["targets"]["train"]]
        titles = ["data", "plain tree: train s", "predict s", *(f"{what}, copies {name}" for what, name in systems)]
        yield from header(titles)
        for one in speed["sets"]:
            plain = [f"{one['systems']['tree'][what]:.2f}" for what in ("train", "predict")]
            ratios = [f"{one[f'{what}_ratio'][name]:.2f} ×" for what, name in systems]
            yield row([one["data"], *plain, *ratios])
    if size is not None:
        sizes = sorted(size["sizes"].values(), key=lambda one: one["rows"])
        yield SIZE.format(**sizes[0])
        yield from header(["rows", "labels", "index", "head", "prediction", "rows predicted", "P@5", "peak GiB"])
        for one in sizes:
            seconds = [f"{one[f'{part}_cpu']:.0f}" for part in ("index", "head", "predict")]
            about = [f"{one['rows']:,}", f"{one['labels']:,}"]
            yield row([*about, *seconds, f"{one['test_rows']:,}", f"{100 * one['P@5']:.1f}", f"{one['peak_gib']:.1f}"])
    if assignment is not None:
        yield from assignment_lines(assignment)


def assignment_lines(values: dict[str, Any]) -> Iterator[str]:
    yield ASSIGNMENT.format(**values, **values["targets"])
    yield from header(["copies", "seconds", "peak GiB", "copies per label", "below the optimum", "phases, s"])
    for one in values["results"]:
        what = ", ".join(f"`{name} = {value}`" for name, value in one["params"].items()) or "default"
        gap = "–" if one["gap_at_most"] is None else f"≤ {one['gap_at_most']:.2%}"
        phases = sorted(one["phases"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases if seconds >= 0.05)
        copies = f"{one['facts']['copies per label']:.2f}"
        yield row([what, f"{one['seconds']:.1f}", f"{one['peak_gib']:.2f}", copies, gap, parts])
    gaps = [f"{one['gap']:.3%} below it with {one['copies']} per label" for one in values["small"]]
    yield SMALL.format(gaps=", ".join(gaps))


def meaning_lines(results: Path) -> Iterator[str]:
    if not results.exists():
        return
    sets = json.loads(results.read_text("utf-8"))["sets"]
    yield MEANINGS.format(seeds=len(next(iter(sets.values()))))
    for name, seeds in sets.items():
        shares = [f"{100 * float(np.mean([one[key] for one in seeds])):.0f} %" for key in SHARES]
        yield row([name, shares[0], f"{np.mean([one['copies'] for one in seeds]):.0f}", *shares[1:]])


def first_matcher_lines(results: Path) -> Iterator[str]:
    if not results.exists():
        return
    cells: Cells = list(json.loads(results.read_text("utf-8"))["cells"].values())
    tolerances = sorted({cell["tolerance"] for cell in cells})
    kinds = unique((cell["data"], cell["copies"]) for cell in cells)

    def here(kind: tuple[str, Any], tolerance: float) -> Cells:
        return select(cells, data=kind[0], copies=kind[1], tolerance=tolerance)

    def gain(kind: tuple[str, Any], tolerance: float) -> float:
        """Return the gain in points, over the seeds that have both."""
        base = {one["seed"]: one["P@5"] for one in here(kind, tolerances[0])}
        values = {one["seed"]: one["P@5"] for one in here(kind, tolerance)}
        return 100 * float(np.mean([values[seed] - base[seed] for seed in values.keys() & base.keys()]))

    def change_text(tolerance: float) -> str:
        gains = {kind: gain(kind, tolerance) for kind in kinds}
        worst = min(gains, key=gains.__getitem__)
        what = f"{gains[worst]:+.2f} on {worst[0]}, {copies_of(worst)}"
        return f"{np.mean(list(gains.values())):+.2f} points at {tolerance:g} (at worst {what})"

    def copies_of(kind: tuple[str, Any]) -> str:
        return "per label" if kind[1] == "auto" else f"λ = {kind[1]}"

    changes = " and\n".join(map(change_text, tolerances[1:]))
    seeds = len({cell["seed"] for cell in cells})
    yield FIRST_MATCHER.format(rough=ROUGH, exact=TOLERANCE, seeds=seeds, changes=changes)
    yield from header(["data", "copies", *(f"{what} at {one:g}" for what in ("P@5", "seconds") for one in tolerances)])
    for kind in kinds:
        values = [percent(here(kind, one), "P@5") for one in tolerances]
        seconds = [number(here(kind, one), "index_cpu", 2) for one in tolerances]
        yield row([kind[0], copies_of(kind), *values, *seconds])


def full_table(cells: Cells) -> Iterator[str]:
    facts = ("scored", "copies", "leaves: smallest / median / largest / empty", "train s", "predict s", "model MB")
    yield from header(["system", "seeds", "beam", *METRICS, *facts])
    for system in sort_systems(unique(cell["system"] for cell in cells)):
        same = select(cells, system=system)
        sizes = [number(same, "scored", 0), number(same, "copies", 2), leaf_sizes(same)]
        spent = [least(same, "train_seconds"), least(same, "predict_seconds"), number(same, "bytes", 1, 1e-6)]
        scores = [percent(same, name) for name in METRICS]
        yield row([system, len(same), same[0].get("beam", "–"), *scores, *sizes, *spent])


def sort_systems(systems: list[str]) -> list[str]:
    """Sort systems so that those to compare are side by side."""
    first = [BASE, WIDER, WIDER_TWO, PER_LABEL, f"{PER_LABEL}{SAME}", NARROWER, NARROWER_TWO, RANDOM]
    last = [PAPER, f"{PAPER}{SAME}", PECOS, PECOS_AS_IT_COMES, NAPKIN, NAPKIN_AS_IT_COMES, CEILING]
    middle = sorted(set(systems) - {*first, *last})
    return [system for system in (*first, *middle, *last) if system in systems]


def leaf_sizes(cells: Cells) -> str:
    values = [cell["leaves"] for cell in cells if "leaves" in cell]
    if not values:
        return "–"
    means = [np.mean([sizes[name] for sizes in values]) for name in ("smallest", "median", "largest", "empty")]
    return " / ".join(f"{value:.0f}" for value in means)


def lambda_table(cells: Cells) -> Iterator[str]:
    columns = [*(f"λ = {copies}" for copies in LAMBDAS), "per label"]
    systems = [*(f"overlap λ = {copies}" for copies in LAMBDAS), PER_LABEL]
    yield from header(["data", BASE, *columns])
    for data in SETS:
        here = select(cells, data=data)
        if any("λ" in cell["system"] for cell in here):
            pairs = [
                " / ".join(percent(select(here, system=name), "P@5") for name in (system, system + SAME))
                for system in systems
            ]
            yield row([data, percent(select(here, system=BASE), "P@5"), *pairs])


def merged_table(cells: Cells) -> Iterator[str]:
    systems = (PER_LABEL, WIDER, TWO, WIDER_TWO)
    yield from header(["data", "merged labels", "seeds", BASE, *systems])
    for data in ENTANGLED_SETS:
        for difficulty in ("easy", "medium", "hard"):
            for size in (2, 4, 8):
                here = select(cells, data=data, labels=f"{difficulty} {size}")
                base = select(here, system=BASE)
                if not base:
                    continue
                scores = []
                for system in systems:
                    gain = relative_gain(here, data, system)
                    text = "" if gain is None else f" ({gain:+.1f} %)"
                    scores.append(percent(select(here, system=system), "P@5") + text)
                yield row([data, f"{size}, {difficulty}", len(base), percent(base, "P@5"), *scores])


def relative_gain(cells: Cells, data: str, system: str) -> float | None:
    gain, base = mean_gain(cells, data, system, BASE, "P@5"), mean(select(cells, data=data, system=BASE), "P@5")
    return None if gain is None or not base else 100 * gain / base


def percent(cells: Cells, name: str) -> str:
    return spread((100 * cell[name] for cell in cells), 2) if cells else "–"


def number(cells: Cells, name: str, digits: int, scale: float = 1) -> str:
    value = mean(cells, name)
    return "–" if value is None else f"{scale * value:,.{digits}f}"


def least(cells: Cells, name: str) -> str:
    """Return the least time of the seeds, because other work on the machine only adds time."""
    return f"{min(cell[name] for cell in cells):.2f}"


def draw(cells: Cells) -> list[str]:
    """Draw the pictures that have data, and return their names."""
    from matplotlib.figure import Figure

    names = []
    for name, plot, panels in (("overlap-lambda", lambda_plot, 2), ("overlap-entangled", merged_plot, 3)):
        figure = Figure(figsize=(4.2 * panels, 3.3), layout="constrained")
        axes = figure.subplots(1, panels, sharey=name == "overlap-entangled")
        if not plot(axes, cells):
            continue
        next(one for one in axes if one.get_legend_handles_labels()[0]).legend(frameon=False, fontsize=7)
        save_figure(figure, axes, name)
        names.append(name)
    return names


def lambda_plot(axes: Any, cells: Cells) -> bool:
    plain = select(cells, labels=AS_THEY_ARE)
    drawn = False
    for data, colour in zip(SETS, COLOURS, strict=True):
        here = select(plain, data=data)
        for suffix, style in (("", "-"), (SAME, ":")):
            points = [
                (copies, gain, scored / base)
                for copies in LAMBDAS
                if (gain := mean_gain(here, data, f"overlap λ = {copies}{suffix}", BASE, "P@5")) is not None
                and (scored := mean(select(here, system=f"overlap λ = {copies}{suffix}"), "scored")) is not None
                and (base := mean(select(here, system=BASE), "scored"))
            ]
            if points:
                drawn = True
                places, gains, costs = zip(*points, strict=True)
                label = data if not suffix else None
                axes[0].plot(places, 100 * np.array(gains), style, marker="o", ms=3, color=colour, label=label)
                axes[1].plot(places, costs, style, marker="o", ms=3, color=colour)
    for one in axes:
        one.set_xlabel("copies of a label, at most (dotted: same matcher)")
    axes[0].set_ylabel(f"P@5 gained over {BASE}, points")
    axes[1].set_ylabel(f"labels scored ÷ {BASE}'s")
    return drawn


def merged_plot(axes: Any, cells: Cells) -> bool:
    drawn = False
    for one, difficulty in zip(axes, ("easy", "medium", "hard"), strict=True):
        for data, colour in zip(ENTANGLED_SETS, COLOURS, strict=False):
            for system, style in ((PER_LABEL, "-"), (TWO, "--"), (WIDER, ":")):
                points = [
                    (size, gain)
                    for size in (2, 4, 8)
                    if (gain := relative_gain(select(cells, data=data, labels=f"{difficulty} {size}"), data, system))
                    is not None
                ]
                if points:
                    drawn = True
                    label = data if system == PER_LABEL else None
                    one.plot(*zip(*points, strict=True), style, marker="o", ms=3, color=colour, label=label)
        one.set_xticks((2, 4, 8))
        one.set_title(difficulty)
        one.set_xlabel("merged labels (dashed: λ = 2, dotted: wider beam)")
    axes[0].set_ylabel(f"P@5, gain over {BASE}, %")
    return drawn
