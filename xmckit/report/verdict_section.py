"""The section of a run's report about verdicts: counts, margins, and the label sets that can never be output."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from xmckit import store
from xmckit.errors import counted, shorten
from xmckit.report.charts import Axis, Chart, histogram
from xmckit.report.run_charts import decades
from xmckit.report.tables import Cell, ReportTable, count_cell, make_table, name_cell, number_cell, share_cell
from xmckit.runs import Run, layout

SCOPES = {"full": "full layer", "shortlist": "with each row's candidates"}
STATUSES = ("argmaxable", "unargmaxable", "unresolved")
OPTIONAL = {"ideal": "ideal: can / cannot", "eps": "at eps: can / cannot"}
MOST_SETS, LABELS_OF_A_SET, LONGEST_LABEL = 100, 20, 80
MOST_BINS = 60
MISSED = "missed by the shortlist"
BY_ROUNDING = "output by rounding"
# By the value of `replayed`: whether the head's own scorer confirmed the witness.
WITNESSES = {True: "replayed by the head", False: "lost in the head's own arithmetic", None: "proved, not replayed"}


def verdict_section(run: Run, label_name: Callable[[int], str]) -> dict[str, Any]:
    """Return what the page shows about verdicts: a line for each head and scope, and the sets never output."""
    verdicts = run.verdicts()
    proved, not_verifiable = split_results(verdicts["results"])
    margins = [
        margin_histogram(
            f"margins-{result['head']}-{result['scope']}",
            f"{result['head']}, {SCOPES[result['scope']]}: margins of the label sets that it can output",
            result["verdicts"],
        )
        for result in proved
    ]
    file = run.stage_folder(layout.VERIFY) / layout.ASSIGNMENTS
    label_sets = store.read_csr(file) if proved else None
    if label_sets is not None and label_sets.shape[0] != verdicts["assignments"]:
        raise store.damaged(file, f"{label_sets.shape[0]} label sets, {verdicts['assignments']} were verified")
    return {
        "proved": proved,
        "assignments": verdicts["assignments"],
        "of": verdicts["of"],
        "optional": _optional_columns(proved),
        "table": verdict_table(proved),
        "margins": [chart for chart in margins if chart is not None],
        "never": [
            _never_table(result, label_sets, label_name)
            for result in proved
            if label_sets is not None and result["counts"]["unargmaxable"]
        ],
        "caveats": caveats(proved),
        "rounding": rounding_notes(proved),
        "not_verifiable": not_verifiable,
        "shortlisted": any(result["scope"] != "full" for result in proved),
    }


def verdict_table(proved: Sequence[Mapping[str, Any]]) -> ReportTable:
    """Show the counts of each head and scope, and the columns that only some verifiers and layers fill."""
    optional, rows = _optional_columns(proved), []
    for result in proved:
        replayed, tried = result["replayed"]["yes"], result["replayed"]["yes"] + result["replayed"]["no"]
        rows.append(
            [
                name_cell(result["head"]),
                Cell(SCOPES[result["scope"]]),
                Cell(result["rule"]),
                *(count_cell(result["counts"][status]) for status in STATUSES),
                share_cell(result["share"]),
                *(Cell(_can_and_cannot(result[key])) for key in optional),
                number_cell(result["smallest_margin"], ".3g"),
                Cell(f"{replayed:,} of {tried:,}" if tried else "–"),
                Cell(f"{result['by_rounding']:,} of {result['outputs']:,}" if result.get("outputs") else "–"),
            ]
        )
    columns = ["head", "scope", "rule", *STATUSES, "share %", *(OPTIONAL[key] for key in optional)]
    table = make_table([*columns, "smallest margin", "replayed", BY_ROUNDING], rows)
    return table if any(_is_about_outputs(result) for result in proved) else table.without(BY_ROUNDING)


def _is_about_outputs(result: Mapping[str, Any]) -> bool:
    """Return whether a head output all verified label sets itself, or some only by rounding."""
    verified = sum(result["counts"].values())
    return bool(result.get("by_rounding")) or 0 < verified == result.get("outputs")


def rounding_notes(proved: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each head that output label sets only because its arithmetic rounds."""
    return [
        f"{result['head']}: of {counted(result['outputs'], 'verified label set')} that it output, it outputs "
        f"{result['by_rounding']:,} only by rounding: in exact arithmetic, W·x + b gives them for no input"
        for result in proved
        if result.get("by_rounding")
    ]


def _optional_columns(proved: Sequence[Mapping[str, Any]]) -> list[str]:
    return [key for key in OPTIONAL if any(any(result[key].values()) for result in proved)]


def caveats(proved: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each head whose verifier warns about its verdicts."""
    by_head = {result["head"]: result["caveat"] for result in proved if result["caveat"]}
    return [f"{head}: {caveat}" for head, caveat in by_head.items()]


def split_results(results: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the results with verdicts, and a line for each head that is not verifiable."""
    reasons = [f"{one['head']} is not verifiable: {one['why']}" for one in results if not one["verifiable"]]
    return [one for one in results if one["verifiable"]], reasons


def _can_and_cannot(counts: Mapping[str, int]) -> str:
    return f"{counts['argmaxable']:,} / {counts['unargmaxable']:,}" if sum(counts.values()) else "–"


def _never_table(result: Mapping[str, Any], label_sets: csr_matrix, label_name: Callable[[int], str]) -> ReportTable:
    """Name the label sets that can never be output, the most frequent first."""
    indices, indptr = label_sets.indices, label_sets.indptr
    positions: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position, verdict in enumerate(result["verdicts"]):
        if verdict["status"] == "unargmaxable":
            positions[tuple(indices[indptr[position] : indptr[position + 1]].tolist())].append(position)
    first = sorted(positions.items(), key=lambda item: (-len(item[1]), item[1][0]))[:MOST_SETS]
    verdicts = [result["verdicts"][own[0]] for _, own in first]
    rows = [
        [
            _names_cell(labels, label_name, "no label at all"),
            count_cell(len(labels)),
            count_cell(len(own)),
            Cell(verdict["proof"]),
            _names_cell(verdict["missed"], label_name, ""),
            Cell("yes" if verdict.get("by_rounding") else ""),
        ]
        for (labels, own), verdict in zip(first, verdicts, strict=True)
    ]
    title = f"{result['head']}, {SCOPES[result['scope']]}: label sets that can never be predicted"
    columns = ["label set", "labels", "occurrences", "proof", MISSED, BY_ROUNDING]
    table = make_table(columns, rows, title, of=len(positions))
    for column, key in ((MISSED, "missed"), (BY_ROUNDING, "by_rounding")):
        table = table if any(verdict.get(key) for verdict in verdicts) else table.without(column)
    return table


def _names_cell(labels: Sequence[int], label_name: Callable[[int], str], none: str) -> Cell:
    names = [shorten(label_name(label), LONGEST_LABEL) for label in labels[:LABELS_OF_A_SET]]
    return Cell(none, names=names, more=len(labels) - len(names))


def margin_histogram(name: str, title: str, verdicts: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Draw the margins of verdicts as verdicts.json has them; return None if no label set has a margin."""
    groups = {
        group: [verdict["margin"] for verdict in verdicts if verdict["margin"] and verdict["replayed"] is replayed]
        for replayed, group in WITNESSES.items()
    }
    groups = {group: margins for group, margins in groups.items() if margins}
    if not groups:
        return None
    edges = decades(min(map(min, groups.values())), max(map(max, groups.values())), MOST_BINS)
    stacks = {group: np.histogram(margins, edges)[0].tolist() for group, margins in groups.items()}
    axis = Axis("margin", log=True, format=lambda value: f"{value:.2g}")
    return histogram(name, title, edges, stacks, axis, "label sets", _margin_note(verdicts))


def _margin_note(verdicts: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(verdict["status"] for verdict in verdicts if not verdict["margin"])
    parts = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    return f"Without a margin: {parts}." if parts else ""
