"""docs/overlap.md and its pictures, from benchmarks/results/overlap.json (see overlap.py)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from xmckit_pecos.linear.options import TOLERANCE
from xmckit_pecos.overlap import ROUGH

from benchmarks.common import paths
from benchmarks.common.study import picture, row
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
Cells = list[dict[str, Any]]

ABOUT = """\
# Labels in several leaves

Written by `python -m benchmarks.overlap.measure --data DIR`, which goes on where it was ended. Means over seeds, which
change label trees and random choices, not the rows; ± is the standard deviation, left out where there is one seed.
Percentages. Times are the least of the seeds, taken beside other work and rough; `python -m benchmarks.overlap.speed`
measures them by turns. Run on {processor}, {processors} processors, {versions}.

Every tree has about 64 leaves of up to 100 labels, and a row is led to 10 of them (to a sixth where there are fewer).
All systems on PECOS train with its own defaults (C = 1, squared hinge, `tfn`), and with one seed start from the same
tree. *scored*: labels that are ranked for a row, copies included, on average over test rows. Labels on no training row
are left out everywhere. The score of a label is the mean over its copies that are scored.

- *XR-Linear*: indexer `tree`, head `xrlinear`.
- *overlap per label*: indexer `overlap` as it comes: a label has a further copy where enough of its rows arrive
  elsewhere first.
- *overlap λ = n*: every label may have n copies, as in the paper, with a cap on leaves. *without cap*: the paper's own
  form. *same matcher*: the matcher stays as it was when labels move (`rounds = 0`, the paper's "alternative update:
  no").
- *matched to*: the beam of XR-Linear is widened until it scores at least as many labels as the other does; that of
  overlap is narrowed until it scores at most as many. Beams are whole numbers, so the matched system has the worse end.
- *random copies*: as many further copies of each label as *overlap per label*, in random leaves.
- *one-versus-all*: one linear model for each label, against all rows, all of them scored: what a tree could reach at
  best, where it is affordable.
- *PECOS*, *napkinXC*: called directly, with leaves and beam of the same size; *as it comes*: with their own defaults.
  napkinXC's exact search does not say how many labels it looks at."""
COPIES = """
## Copies and the matcher's update

As Figure 3 and Table 4 of the paper: P@5 with the matcher trained anew / as it was.
"""
MEANINGS = """
## Who has a further copy

Whether further copies go to labels with a second meaning, on made-up data in which it is known who has one
(`benchmarks/overlap/meanings.py`, {seeds} seeds). *of one topic*: how much of a leaf's labels are of its main topic.
Where leaves are of many topics, the leaves that rows reach cannot show a second one, and copies go to others as well.

| data | labels of a leaf of one topic | further copies | on planted labels | by chance | planted labels that have one |
| --- | --- | --- | --- | --- | --- |"""
MERGED = f"""
## Labels made one

As Figure 2 of the paper: every 2, 4 or 8 labels are made one, similar ones (easy), less similar ones (medium) or any
(hard), on train and test rows, by data set `entangled`. P@5, and the gain over {BASE} relative to it.
"""
FIRST_MATCHER = """
## How exact the first matcher is

The matcher that only says where labels move is trained to a tolerance of {rough:g} instead of PECOS's own {exact:g}.
P@5 on a fifth of the training rows that was held out, and processor seconds of the whole index, taken beside
other work and rough (`benchmarks/overlap/tolerance.py`, {seeds} seeds). On average P@5 changes by
{changes}.
(The choice was first made with a look at test rows; this table was made afterwards to see whether it holds without.)
"""


def write(found: dict[str, Any]) -> None:
    cells: Cells = list(found["cells"].values())
    pictures = draw(cells)
    (paths.DOCS / "overlap.md").write_text("\n".join(page(found, cells, pictures)) + "\n", "utf-8")
    print(f"wrote {paths.DOCS / 'overlap.md'}")


def page(found: dict[str, Any], cells: Cells, pictures: list[str]) -> Iterator[str]:
    known = found["versions"] | found["peers"]
    versions = ", ".join(f"{name} {known[name]}" for name in LIBRARIES if name in known)
    yield ABOUT.format(**found["machine"], versions=versions)
    plain = of(cells, labels=AS_THEY_ARE)
    yield "\n## Who is ahead at the same cost\n"
    yield from ahead(plain)
    yield "\n## What it costs\n"
    yield from costs(paths.RESULTS)
    yield from meanings(paths.RESULTS / "overlap_meanings.json")
    yield from first_matcher(paths.RESULTS / "overlap_tolerance.json")
    for data in (data for data in SETS if of(plain, data=data)):
        yield f"\n## {data}\n"
        yield from full_table(of(plain, data=data))
    if any("λ" in cell["system"] for cell in plain):
        yield COPIES
        yield from lambda_table(plain)
        yield from picture("overlap-lambda", pictures, "P@5 gained over XR-Linear, and labels scored, by copies")
    merged = [cell for cell in cells if cell["labels"] != AS_THEY_ARE]
    if merged:
        yield MERGED
        yield from merged_table(merged)
        yield from picture("overlap-entangled", pictures, "Relative gain in P@5 over XR-Linear by labels made one")


def of(cells: Cells, **wanted: Any) -> Cells:
    return [cell for cell in cells if all(cell[name] == value for name, value in wanted.items())]


def unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def mean(cells: Cells, name: str) -> float | None:
    values = [cell[name] for cell in cells if name in cell]
    return float(np.mean(values)) if values else None


def ahead(cells: Cells) -> Iterator[str]:
    """Overlap that scores no more labels than the others do, against PECOS and napkinXC."""
    systems = (BASE, NARROWER, NARROWER_TWO, PECOS, NAPKIN, PER_LABEL, WIDER, TWO, WIDER_TWO, CEILING)
    yield "P@5 / PSP@5 (labels scored for a row):\n"
    yield row(["system", *(data for data in SETS if of(cells, data=data))])
    yield row(["---", *("---" for data in SETS if of(cells, data=data))])
    for system in systems:
        same = [of(cells, data=data, system=system) for data in SETS if of(cells, data=data)]
        yield row([system, *(short(here) for here in same)])
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
    return f"{spread(cells, 'P@5')} / {spread(cells, 'PSP@5')} ({number(cells, 'scored', 0)})"


def verdict(cells: Cells, system: str, other: str) -> Iterator[str]:
    for name in ("P@5", "PSP@5"):
        gains = {data: gain for data in SETS if (gain := paired(cells, data, system, other, name)) is not None}
        if not gains:
            continue
        behind = ", ".join(f"{data} ({100 * gain:+.2f})" for data, gain in gains.items() if gain <= 0)
        won = sum(gain > 0 for gain in gains.values())
        yield (
            f"- {name}, *{system}* against *{other}*: ahead on {won} of {len(gains)} data sets, "
            f"{100 * float(np.mean(list(gains.values()))):+.2f} points on average"
            + (f"; not on {behind}." if behind else ".")
        )


def paired(cells: Cells, data: str, system: str, other: str, name: str) -> float | None:
    """The mean difference over the seeds that have both."""
    theirs = {cell["seed"]: cell[name] for cell in of(cells, data=data, system=other)}
    gains = [
        cell[name] - theirs[cell["seed"]] for cell in of(cells, data=data, system=system) if cell["seed"] in theirs
    ]
    return float(np.mean(gains)) if gains else None


SPEED = """Measured by themselves, {threads} threads, the best of several turns (`benchmarks/overlap/speed.py`).
Training and prediction divided by those of a plain tree (asked for: at most 2.0 and 3.0 for training, 1.3 for
prediction); the overlapping tree's beam is narrowed until it scores no more labels than the plain one.
"""
SIZE = """
Made-up data with the shape of Amazon-670K, and shares of it (`benchmarks/overlap/size.py`): index, head, and prediction
of the best 5 labels, in processor seconds, {threads} threads together; *peak* of the whole process (asked for: at most
20 GiB).
"""
ASSIGNMENT = """
The step that moves labels, by itself (`benchmarks/overlap/assignment.py`): {rows:,} rows, {labels:,} labels and
{leaves:,} leaves, {threads} threads, *peak* of the process with its data (asked for: at most {seconds} s and
{gib} GiB). *below the optimum*: of Σ C∘(YᵀM), at most so much by the prices of the auction.
"""
SMALL = """
On a problem of 400 labels with little room, against the optimum that HiGHS finds: {gaps}.
"""


def costs(results: Path) -> Iterator[str]:
    """Tables of what was measured apart from the study."""
    speed, size, assignment = (
        json.loads(file.read_text("utf-8")) if (file := results / name).exists() else None
        for name in ("overlap_speed.json", "overlap_size.json", "overlap_assignment.json")
    )
    if speed is not None:
        yield SPEED.format(**speed)
        systems = [(what, name) for what in ("train", "predict") for name in speed["sets"][0]["targets"]["train"]]
        titles = ["data", "plain tree: train s", "predict s", *(f"{what}, copies {name}" for what, name in systems)]
        yield row(titles)
        yield row(["---"] * len(titles))
        for one in speed["sets"]:
            plain = [f"{one['systems']['tree'][what]:.2f}" for what in ("train", "predict")]
            ratios = [f"{one[f'{what}_ratio'][name]:.2f} ×" for what, name in systems]
            yield row([one["data"], *plain, *ratios])
    if size is not None:
        sizes = sorted(size["sizes"].values(), key=lambda one: one["rows"])
        yield SIZE.format(**sizes[0])
        yield row(["rows", "labels", "index", "head", "prediction", "rows predicted", "P@5", "peak GiB"])
        yield row(["---"] * 8)
        for one in sizes:
            seconds = [f"{one[f'{part}_cpu']:.0f}" for part in ("index", "head", "predict")]
            about = [f"{one['rows']:,}", f"{one['labels']:,}"]
            yield row([*about, *seconds, f"{one['test_rows']:,}", f"{100 * one['P@5']:.1f}", f"{one['peak_gib']:.1f}"])
    if assignment is not None:
        yield from assignment_costs(assignment)


def assignment_costs(found: dict[str, Any]) -> Iterator[str]:
    yield ASSIGNMENT.format(**found, **found["targets"])
    yield row(["copies", "seconds", "peak GiB", "copies per label", "below the optimum", "where the time goes, s"])
    yield row(["---"] * 6)
    for one in found["results"]:
        what = ", ".join(f"`{name} = {value}`" for name, value in one["params"].items()) or "as it comes"
        gap = "–" if one["gap_at_most"] is None else f"≤ {one['gap_at_most']:.2%}"
        phases = sorted(one["phases"].items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases if seconds >= 0.05)
        copies = f"{one['facts']['copies per label']:.2f}"
        yield row([what, f"{one['seconds']:.1f}", f"{one['peak_gib']:.2f}", copies, gap, parts])
    gaps = [f"{one['gap']:.3%} below it with {one['copies']} a label" for one in found["small"]]
    yield SMALL.format(gaps=", ".join(gaps))


def meanings(results: Path) -> Iterator[str]:
    if not results.exists():
        return
    sets = json.loads(results.read_text("utf-8"))["sets"]
    yield MEANINGS.format(seeds=len(next(iter(sets.values()))))
    for name, seeds in sets.items():
        shares = [f"{100 * float(np.mean([one[key] for one in seeds])):.0f} %" for key in SHARES]
        yield row([name, shares[0], f"{np.mean([one['copies'] for one in seeds]):.0f}", *shares[1:]])


def first_matcher(results: Path) -> Iterator[str]:
    if not results.exists():
        return
    cells: Cells = list(json.loads(results.read_text("utf-8"))["cells"].values())
    tolerances = sorted({cell["tolerance"] for cell in cells})
    kinds = unique((cell["data"], cell["copies"]) for cell in cells)

    def here(kind: tuple[str, Any], tolerance: float) -> Cells:
        return of(cells, data=kind[0], copies=kind[1], tolerance=tolerance)

    def gain(kind: tuple[str, Any], tolerance: float) -> float:
        """In points, over the seeds that have both."""
        base = {one["seed"]: one["P@5"] for one in here(kind, tolerances[0])}
        found = {one["seed"]: one["P@5"] for one in here(kind, tolerance)}
        return 100 * float(np.mean([found[seed] - base[seed] for seed in found.keys() & base.keys()]))

    def told(tolerance: float) -> str:
        gains = {kind: gain(kind, tolerance) for kind in kinds}
        worst = min(gains, key=gains.__getitem__)
        what = f"{gains[worst]:+.2f} on {worst[0]}, {copies_of(worst)}"
        return f"{np.mean(list(gains.values())):+.2f} points at {tolerance:g} (at worst {what})"

    def copies_of(kind: tuple[str, Any]) -> str:
        return "per label" if kind[1] == "auto" else f"λ = {kind[1]}"

    changes = " and\n".join(map(told, tolerances[1:]))
    seeds = len({cell["seed"] for cell in cells})
    yield FIRST_MATCHER.format(rough=ROUGH, exact=TOLERANCE, seeds=seeds, changes=changes)
    yield row(["data", "copies", *(f"{what} at {one:g}" for what in ("P@5", "seconds") for one in tolerances)])
    yield row(["---"] * (2 + 2 * len(tolerances)))
    for kind in kinds:
        found = [spread(here(kind, one), "P@5") for one in tolerances]
        seconds = [number(here(kind, one), "index_cpu", 2) for one in tolerances]
        yield row([kind[0], copies_of(kind), *found, *seconds])


def full_table(cells: Cells) -> Iterator[str]:
    facts = ("scored", "copies", "leaves: smallest / median / largest / empty", "train s", "predict s", "model MB")
    yield row(["system", "seeds", "beam", *METRICS, *facts])
    yield row(["---"] * (3 + len(METRICS) + len(facts)))
    for system in ordered(unique(cell["system"] for cell in cells)):
        same = of(cells, system=system)
        told = [number(same, "scored", 0), number(same, "copies", 2), leaf_sizes(same)]
        spent = [least(same, "train_seconds"), least(same, "predict_seconds"), number(same, "bytes", 1, 1e-6)]
        found = [spread(same, name) for name in METRICS]
        yield row([system, len(same), same[0].get("beam", "–"), *found, *told, *spent])


def ordered(systems: list[str]) -> list[str]:
    """What is to be compared side by side, whatever the order in which it was run."""
    first = [BASE, WIDER, WIDER_TWO, PER_LABEL, f"{PER_LABEL}{SAME}", NARROWER, NARROWER_TWO, RANDOM]
    last = [PAPER, f"{PAPER}{SAME}", PECOS, PECOS_AS_IT_COMES, NAPKIN, NAPKIN_AS_IT_COMES, CEILING]
    middle = sorted(set(systems) - {*first, *last})
    return [system for system in (*first, *middle, *last) if system in systems]


def leaf_sizes(cells: Cells) -> str:
    found = [cell["leaves"] for cell in cells if "leaves" in cell]
    if not found:
        return "–"
    means = [np.mean([sizes[name] for sizes in found]) for name in ("smallest", "median", "largest", "empty")]
    return " / ".join(f"{value:.0f}" for value in means)


def lambda_table(cells: Cells) -> Iterator[str]:
    columns = [*(f"λ = {copies}" for copies in LAMBDAS), "per label"]
    systems = [*(f"overlap λ = {copies}" for copies in LAMBDAS), PER_LABEL]
    yield row(["data", BASE, *columns])
    yield row(["---"] * (len(columns) + 2))
    for data in SETS:
        here = of(cells, data=data)
        if any("λ" in cell["system"] for cell in here):
            pairs = [" / ".join(spread(of(here, system=name), "P@5") for name in (one, one + SAME)) for one in systems]
            yield row([data, spread(of(here, system=BASE), "P@5"), *pairs])


def merged_table(cells: Cells) -> Iterator[str]:
    systems = (PER_LABEL, WIDER, TWO, WIDER_TWO)
    yield row(["data", "labels made one", "seeds", BASE, *systems])
    yield row(["---"] * (4 + len(systems)))
    for data in ENTANGLED_SETS:
        for difficulty in ("easy", "medium", "hard"):
            for size in (2, 4, 8):
                here = of(cells, data=data, labels=f"{difficulty} {size}")
                base = of(here, system=BASE)
                if not base:
                    continue
                shown = []
                for system in systems:
                    gain = relative_gain(here, data, system)
                    text = "" if gain is None else f" ({gain:+.1f} %)"
                    shown.append(spread(of(here, system=system), "P@5") + text)
                yield row([data, f"{size}, {difficulty}", len(base), spread(base, "P@5"), *shown])


def relative_gain(cells: Cells, data: str, system: str) -> float | None:
    gain, base = paired(cells, data, system, BASE, "P@5"), mean(of(cells, data=data, system=BASE), "P@5")
    return None if gain is None or not base else 100 * gain / base


def spread(cells: Cells, name: str) -> str:
    values = 100 * np.array([cell[name] for cell in cells])
    if not len(values):
        return "–"
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def number(cells: Cells, name: str, digits: int, scale: float = 1) -> str:
    value = mean(cells, name)
    return "–" if value is None else f"{scale * value:,.{digits}f}"


def least(cells: Cells, name: str) -> str:
    """Of the seeds: what else the machine does only makes a time longer."""
    return f"{min(cell[name] for cell in cells):.2f}"


def draw(cells: Cells) -> list[str]:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = []
    for name, plot, panels in (("overlap-lambda", lambda_plot, 2), ("overlap-entangled", merged_plot, 3)):
        figure = Figure(figsize=(4.2 * panels, 3.3), layout="constrained")
        axes = figure.subplots(1, panels, sharey=name == "overlap-entangled")
        if not plot(axes, cells):
            continue
        for one in axes:
            one.spines[["top", "right"]].set_visible(False)
            one.grid(alpha=0.25)
        next(one for one in axes if one.get_legend_handles_labels()[0]).legend(frameon=False, fontsize=7)
        with rc_context({"svg.hashsalt": "xmckit"}):  # the same numbers give the same bytes
            figure.savefig(paths.DOCS / f"{name}.svg", metadata={"Date": None})
        names.append(name)
    return names


def lambda_plot(axes: Any, cells: Cells) -> bool:
    plain = of(cells, labels=AS_THEY_ARE)
    drawn = False
    for data, colour in zip(SETS, COLOURS, strict=True):
        here = of(plain, data=data)
        for suffix, style in (("", "-"), (SAME, ":")):
            points = [
                (copies, gain, scored / base)
                for copies in LAMBDAS
                if (gain := paired(here, data, f"overlap λ = {copies}{suffix}", BASE, "P@5")) is not None
                and (scored := mean(of(here, system=f"overlap λ = {copies}{suffix}"), "scored")) is not None
                and (base := mean(of(here, system=BASE), "scored"))
            ]
            if points:
                drawn = True
                places, gains, costs_ = zip(*points, strict=True)
                label = data if not suffix else None
                axes[0].plot(places, 100 * np.array(gains), style, marker="o", ms=3, color=colour, label=label)
                axes[1].plot(places, costs_, style, marker="o", ms=3, color=colour)
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
                    if (gain := relative_gain(of(cells, data=data, labels=f"{difficulty} {size}"), data, system))
                    is not None
                ]
                if points:
                    drawn = True
                    label = data if system == PER_LABEL else None
                    one.plot(*zip(*points, strict=True), style, marker="o", ms=3, color=colour, label=label)
        one.set_xticks((2, 4, 8))
        one.set_title(difficulty)
        one.set_xlabel("labels made one (dashed: λ = 2, dotted: wider beam)")
    axes[0].set_ylabel(f"P@5, gain over {BASE}, %")
    return drawn
