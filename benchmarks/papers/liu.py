"""Build the exhibits of Liu et al. (2021) for docs/reproduced.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.common.markdown import Cells, select, unique
from benchmarks.overlap import costs as overlap_costs
from benchmarks.overlap import measure as overlap
from benchmarks.papers.exhibits import (
    PRECISIONS,
    Exhibit,
    Published,
    Results,
    above,
    cells_of,
    count_claim,
    difference,
    join_numbers,
    mean,
    number_text,
    steps,
    table,
    value_of,
)

AS_THEY_ARE = "as they are"
Score = Callable[[str, str], float | None]


def overlap_cells(results: Results, **wanted: Any) -> Cells:
    return select(cells_of(results, "overlap"), **wanted)


def common_mean(cells: Cells, systems: Sequence[str]) -> Score:
    """Return a function (system, metric) → mean over the seeds that all systems with results have."""
    of_system = {system: {cell["seed"]: cell for cell in select(cells, system=system)} for system in systems}
    seeds = (
        set.intersection(*(set(found) for found in of_system.values() if found)) if any(of_system.values()) else set()
    )

    def score(system: str, what: str) -> float | None:
        found = of_system[system]
        return mean(found[seed][what] for seed in sorted(seeds) if seed in found)

    return score


def in_percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def cells_of_systems(systems: Sequence[str], labels: Sequence[str] = (AS_THEY_ARE,)) -> list[Any]:
    return unique(cell for cell in overlap.cells() if cell.system in systems and cell.labels in labels)


def programs(results: Results, published: Published) -> Exhibit:
    entry, cells = published["liu-table-3"], overlap_cells(results, labels=AS_THEY_ARE)
    there = unique(name.split(", ")[0] for name in entry["columns"])
    lines = []
    for method in entry["rows"]:
        pairs = [[value_of(entry, method, f"{data}, {what}") for what in ("P@5", "PSP@5")] for data in there]
        lines.append([f"published: {method}", *(join_numbers(pair, 2) for pair in pairs)])
    first = table(["P@5 / PSP@5", *there], lines)
    systems = (overlap.BASE, overlap.PECOS, overlap.NAPKIN, overlap.TWO, overlap.NARROWER_TWO)
    scores = {data: common_mean(select(cells, data=data), systems) for data in overlap.SETS}
    second = table(
        ["P@5 / PSP@5", *scores],
        (
            [
                system,
                *(
                    join_numbers((in_percent(score(system, what)) for what in ("P@5", "PSP@5")), 2)
                    for score in scores.values()
                ),
            ]
            for system in systems
        ),
    )
    best, good = [], []
    for score in scores.values():
        for what in PRECISIONS:
            rivals = [found for system in systems[:3] if (found := score(system, what)) is not None]
            best += above([(score(overlap.TWO, what), max(rivals, default=None))])
            good += above([(score(overlap.TWO, f"PS{what}"), score(overlap.BASE, f"PS{what}"))])
    theirs, their_good = [], []
    others = [method for method in entry["rows"] if method != "Ours"]
    for data in there:
        for what in PRECISIONS:
            found = [value_of(entry, method, f"{data}, {what}") for method in others]
            theirs += above(
                [
                    (
                        value_of(entry, "Ours", f"{data}, {what}"),
                        max(value for value in found if not math.isnan(value)),
                    )
                ]
            )
            name = f"{data}, PS{what}"
            their_good += above([(value_of(entry, "Ours", name), value_of(entry, "X-Transformer", name))])
    matched = [
        (score(overlap.NARROWER_TWO, what), score(other, what))
        for score in scores.values()
        for what in PRECISIONS
        for other in (overlap.PECOS, overlap.NAPKIN)
    ]
    return Exhibit(
        [*first, "", *second],
        [
            count_claim("overlap has a higher P@k than all others", best, theirs),
            count_claim("overlap has a higher PSP@k than what it is built on", good, their_good),
            count_claim(f"*{overlap.NARROWER_TWO}* has a higher P@k than PECOS and than napkinXC", above(matched)),
        ],
        cells_of_systems(systems),
        note="Here the mean over the seeds that all systems of a data set have. *Matched*: the beam is narrowed until "
        "no more labels are scored than XR-Linear scores.",
    )


def matcher_update(results: Results, published: Published) -> Exhibit:
    entry, cells = published["liu-table-4"], overlap_cells(results, labels=AS_THEY_ARE)
    lines = []
    theirs: dict[str, list[float]] = {name: [] for name in entry["columns"]}
    for data in unique(line.split(", ")[0] for line in entry["rows"]):
        found = {name: [value_of(entry, f"{data}, {metric}", name) for metric in PRECISIONS] for name in theirs}
        lines.append([f"published: {data}", *(join_numbers(values, 2) for values in found.values()), "–", "–"])
        for name, values in found.items():
            theirs[name] += values
    paper = (overlap.BASE, f"{overlap.PAPER}{overlap.SAME}", overlap.PAPER)
    systems = (*paper, f"{overlap.TWO}{overlap.SAME}", overlap.TWO)
    ours: dict[str, list[float | None]] = {system: [] for system in systems}
    for data in overlap.SETS:
        score = common_mean(select(cells, data=data), systems)
        mine = {system: [in_percent(score(system, metric)) for metric in PRECISIONS] for system in systems}
        lines.append([data, *(join_numbers(values, 2) for values in mine.values())])
        for system, values in mine.items():
            ours[system] += values
    base, same, updated = (ours[system] for system in paper)
    old, none, update = theirs.values()
    capped = zip(ours[overlap.TWO], base, strict=True)
    return Exhibit(
        table(
            ["data", "XR-Linear", "overlap, no update", "overlap, update", "capped, no update", "capped, update"], lines
        ),
        [
            count_claim(
                "overlap with the update is above XR-Linear",
                above(zip(updated, base, strict=True)),
                above(zip(update, old, strict=True)),
            ),
            count_claim(
                "the update is better than none",
                above(zip(updated, same, strict=True)),
                above(zip(update, none, strict=True)),
            ),
            count_claim("overlap with the update and xmckit's cap on leaves is above XR-Linear", above(capped)),
        ],
        cells_of_systems(systems),
        note="P@1 / P@3 / P@5, here the mean over the seeds that all systems of a data set have. More labels are "
        "scored with overlap than without; [several leaves](overlap.md) compares at equal cost.",
    )


def extra_time(results: Results, published: Published) -> Exhibit:
    entry, measured = published["liu-table-5"], results.get("overlap_costs", {}).get("cells", {})
    names = ("λ = 1", "λ = 2")
    by_turns = {one["data"]: one for one in results.get("overlap_speed", {}).get("sets", ())}
    theirs = [tuple(values) for values in entry["rows"].values()]
    lines = [
        [f"published: {data}", f"{seconds:,}", *(f"{value:.2f} ×" for value in values), "–", "–"]
        for data, (seconds, *values) in entry["rows"].items()
    ]
    ours, trained = [], []
    for data in overlap.SETS:
        spent, turns = measured.get(data, {}).get("seconds"), by_turns.get(data)
        if spent is None and turns is None:
            continue
        base, extra, at_equal_cost = None, [None] * 4, [None] * 2
        if spent is not None:
            base = spent["XR-Linear"]["train"]
            extra = [
                spent[name][what] / spent["XR-Linear"][what] - 1 for what in ("train", "predict") for name in names
            ]
            ours.append((base, *extra))
        if turns is not None:
            at_equal_cost = [turns[f"{what}_ratio"]["λ = 2"] - 1 for what in ("train", "predict")]
            trained.append((turns["systems"]["tree"]["train"], at_equal_cost[0]))
        shown = ["–" if more is None else f"{more:.2f} ×" for more in (*extra, *at_equal_cost)]
        lines.append([data, number_text(base), *shown])

    def slow(found: list[tuple[Any, ...]]) -> list[bool]:
        """Return whether the slowest set to train has less extra time than the fastest."""
        known = sorted(found)
        return above([(known[0][1], known[-1][1])]) if len(known) > 1 else []

    def second(found: list[tuple[Any, ...]]) -> list[bool]:
        return above(pair for line in found for pair in ((line[2], line[1]), (line[4], line[3])))

    head = ["data", "XR-Linear trains, s", "training, λ = 1", "λ = 2", "inference, λ = 1", "λ = 2"]
    return Exhibit(
        table([*head, "training, λ = 2, two threads", "inference at equal cost"], lines),
        [
            count_claim("two copies cost more than one", second(ours), second(theirs)),
            count_claim(
                "training costs less extra on the slowest set to train than on the fastest",
                slow(trained),
                slow([(line[0], line[2]) for line in theirs]),
            ),
        ],
        list(overlap_costs.cells()),
        note="Extra time as multiples of XR-Linear's, processor seconds of one thread. *Two threads*, *equal cost*: by "
        "`benchmarks/overlap/speed.py`, which narrows the beam until no more labels are scored than without overlap; "
        "the second count uses these times.",
    )


def merged_labels(results: Results, published: Published) -> Exhibit:
    cells = overlap_cells(results)
    systems = (overlap.BASE, overlap.PER_LABEL, overlap.TWO)
    difficulties, sizes = ("easy", "medium", "hard"), (2, 4, 8)
    lines, gains = [], {}
    for data in overlap.ENTANGLED_SETS:
        for size in sizes:
            for difficulty in difficulties:
                score = common_mean(select(cells, data=data, labels=f"{difficulty} {size}"), systems)
                base = score(overlap.BASE, "P@5")
                for system in systems[1:]:
                    found = score(system, "P@5")
                    gains[data, size, difficulty, system] = (
                        None if base is None or found is None else 100 * (found / base - 1)
                    )
            shown = [gains[data, size, difficulty, system] for system in systems[1:] for difficulty in difficulties]
            if set(shown) != {None}:
                lines.append([data, size, *("–" if gain is None else f"{gain:+.1f} %" for gain in shown)])
    hard = [
        (gains[data, size, "hard", overlap.TWO], gains[data, size, "easy", overlap.TWO])
        for data in overlap.ENTANGLED_SETS
        for size in sizes
    ]
    head = ["data", "merged labels", *(f"{name}, {how}" for name in ("per label", "λ = 2") for how in difficulties)]
    return Exhibit(
        table(head, lines) if lines else [],
        [
            count_claim(
                "overlap (λ = 2) gains over XR-Linear",
                [gain > 0 for (*_, system), gain in gains.items() if system == overlap.TWO and gain is not None],
            ),
            count_claim(
                "it gains more when random labels were merged (hard) than when similar ones were (easy)",
                above(hard),
            ),
        ],
        cells_of_systems(systems, overlap.ENTANGLED),
        [("overlap-entangled.svg", "Relative gain in P@5 over XR-Linear by merged labels")] if lines else [],
        "Gain in P@5 relative to XR-Linear's, the mean over the seeds that all systems have.",
    )


def copies(results: Results, published: Published) -> Exhibit:
    cells = overlap_cells(results, labels=AS_THEY_ARE)
    systems = (overlap.BASE, *(f"overlap λ = {count}" for count in range(1, 7)))
    lines, found = [], {}
    for data in overlap.SETS:
        score = common_mean(select(cells, data=data), systems)
        found[data] = [in_percent(score(system, "P@5")) for system in systems]
        lines.append([data, *(number_text(value, 2) for value in found[data])])
    plateau = [(difference(values[4], values[1]), difference(values[6], values[4])) for values in found.values()]
    return Exhibit(
        table(["data", "λ = 0", *(f"λ = {count}" for count in range(1, 7))], lines),
        [
            count_claim(
                "a further copy raises P@5", above(pair for values in found.values() for pair in steps(values))
            ),
            count_claim("P@5 gains more from λ = 1 to 4 than from 4 to 6", above(plateau)),
        ],
        cells_of_systems(systems),
        [("overlap-lambda.svg", "P@5 gained over XR-Linear, and labels scored, by copies")],
        "P@5, the mean over the seeds that all systems of a data set have.",
    )
