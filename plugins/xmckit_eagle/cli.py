"""The command `xmckit labels`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.cli.options import json_option, print_json, runs_option
from xmckit.errors import UsageError, nearest, printable
from xmckit.runs.layout import PREPROCESSOR

if TYPE_CHECKING:
    import numpy as np

    from xmckit import Groups
    from xmckit.runs import Run

BARS = 10  # in the histogram of confidences
WIDTH = 40  # characters of the longest bar
TEXT = 60  # characters of a row's text


@click.group()
def labels() -> None:
    """Inspect the labels that rows got from their groups."""


@labels.command("inspect")
@click.argument("run")
@click.option("--group", help="Group to show, by its name, or by its number if groups have no names.")
@click.option("--stage", "stage_name", metavar="NAME", help="Label stage to show; by default the last.")
@click.option(
    "--most", default=10, show_default=True, type=click.IntRange(min=1), help="Number of least clear choices to show."
)
@runs_option
@json_option
def inspect(run: str, group: str | None, stage_name: str | None, most: int, root: str, as_json: bool) -> None:
    """Show which rows of a group got its labels in RUN, and how clear each choice was.

    RUN is a run folder, its name, or the name of a recipe for its newest finished run. The margin is the distance in
    score to the best row of the group that did not get the label. A margin below 0 means that the row took the label
    because it had none, or because no other group has the label and this row had the fewest. Without --group, show the
    confidence of all choices and the least clear ones.
    """
    from xmckit import find_run
    from xmckit_eagle.preprocessor import read_assignments

    record = find_run(run, Path(root))
    name, folder = _label_stage(record, stage_name)
    assignments = read_assignments(folder / PREPROCESSOR)
    _check_numbers(folder, assignments)
    result: dict[str, Any] = {"run": str(record.path), "stage": name}
    if group is None:
        result |= _summary(record, name, folder, assignments, most)
    else:
        result |= _group(record, folder, assignments, group)
    if as_json:
        print_json(result)
    elif group is None:
        _print_summary(result)
    else:
        _print_group(result)


def _label_stage(run: Run, wanted: str | None) -> tuple[str, Path]:
    """Return (name, folder) of the wanted label stage with assignments; by default of the last one."""
    from xmckit_eagle.preprocessor import ASSIGNMENTS

    stages = {stage.section: run.path / stage.folder for stage in run.label_stages}
    stages = {name: folder for name, folder in stages.items() if (folder / PREPROCESSOR / ASSIGNMENTS).is_file()}
    if not stages:
        raise UsageError(
            f"{run.path} has no label stage that gives the labels of groups to rows: add [[labels]] with "
            'use = "eagle" to its recipe and run it again'
        )
    if wanted is not None and wanted not in stages:
        known = ", ".join(stages)
        raise UsageError(f"{run.path} has no label stage '{wanted}'{nearest(wanted, stages)} (known: {known})")
    name = wanted if wanted is not None else list(stages)[-1]
    return name, stages[name]


def _check_numbers(folder: Path, assignments: Mapping[str, np.ndarray]) -> None:
    """Raise StorageError if an assignment is about a group, label or row that the stage does not have."""
    from xmckit import store
    from xmckit.data.saved import load_split
    from xmckit_eagle.preprocessor import ASSIGNMENTS

    split = load_split(folder)
    if split.groups is None:
        raise store.damaged(folder / "split.json", "the labels of groups were given to rows, and there are no groups")
    for name, count in (("groups", split.groups.labels.shape[0]), ("labels", split.labels), ("rows", split.rows)):
        numbers = assignments[name]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
            raise store.damaged(folder / PREPROCESSOR / ASSIGNMENTS, f"{name}: expected numbers from 0 to {count - 1}")


def _summary(run: Run, name: str, folder: Path, assignments: Mapping[str, np.ndarray], most: int) -> dict[str, Any]:
    import numpy as np

    confidence, margins = assignments["confidence"], assignments["margins"]
    counts, _ = np.histogram(confidence, bins=BARS, range=(0.0, 1.0))
    unclear = np.lexsort((margins, confidence))[:most]
    return {
        "assignments": len(confidence),
        "groups": len(np.unique(assignments["groups"])),
        "labels": len(np.unique(assignments["labels"])),
        "rows": len(np.unique(assignments["rows"])),
        "mean_confidence": float(confidence.mean()) if len(confidence) else None,
        "without_choice": int(np.isinf(margins).sum()),
        "histogram": counts.tolist(),
        "facts": next(one["facts"] for one in run.label_facts() if one["name"] == name),
        "least_clear": _assignment_entries(run, folder, assignments, unclear),
    }


def _group(run: Run, folder: Path, assignments: Mapping[str, np.ndarray], wanted: str) -> dict[str, Any]:
    import numpy as np

    from xmckit.data.saved import load_split

    split = load_split(folder)
    assert split.groups is not None
    group = _group_number(split.groups, wanted)
    membership, group_labels = split.groups.membership.tocsc(), split.groups.labels.tocsr()[group]
    rows = np.sort(membership.indices[membership.indptr[group] : membership.indptr[group + 1]])
    names = run.label_names()
    numbers = np.flatnonzero(assignments["groups"] == group)
    assigned = set(assignments["labels"][numbers].tolist())
    return {
        "group": str(group) if split.groups.names is None else wanted,
        "rows": [{"row": int(row), "is": text} for row, text in zip(rows, _row_texts(run, rows), strict=True)],
        "labels": [
            {"label": names[label], "times": round(float(times))}
            for label, times in zip(group_labels.indices, group_labels.data, strict=True)
        ],
        "assignments": _assignment_entries(run, folder, assignments, numbers),
        "not_placed": [names[label] for label in group_labels.indices if label not in assigned],
    }


def _group_number(groups: Groups, wanted: str) -> int:
    """Return the number of a group; raise UsageError if it does not exist."""
    count = int(groups.membership.shape[1])
    if groups.names is None:
        if wanted.isascii() and wanted.isdigit() and int(wanted) < count:
            return int(wanted)
        raise UsageError(f"there is no group {wanted}: the run has {count} groups, numbered from 0")
    names = list(groups.names)
    if wanted not in names:
        raise UsageError(f"there is no group {wanted!r} among the {count} of the run{nearest(wanted, names)}")
    return names.index(wanted)


def _assignment_entries(
    run: Run, folder: Path, assignments: Mapping[str, np.ndarray], numbers: np.ndarray
) -> list[dict[str, Any]]:
    """Return entries about some assignments, by their numbers; a margin of None means that no other row was left."""
    from xmckit import store

    names, path = run.label_names(), folder / "group_names.npz"
    group_names = store.read_strings(path) if path.is_file() else None
    known = {"labels": len(names)} | ({} if group_names is None else {"groups": len(group_names)})
    for name, count in known.items():
        store.check_array(folder, name, assignments[name], "i", (None,), high=count - 1)
    texts = _row_texts(run, assignments["rows"][numbers])
    columns = {name: values[numbers].tolist() for name, values in assignments.items()}
    return [
        {
            "group": str(group) if group_names is None else group_names[group],
            "label": names[columns["labels"][entry]],
            "row": columns["rows"][entry],
            "is": text,
            "score": columns["scores"][entry],
            "margin": columns["margins"][entry] if math.isfinite(columns["margins"][entry]) else None,
            "confidence": columns["confidence"][entry],
        }
        for entry, (group, text) in enumerate(zip(columns["groups"], texts, strict=True))
    ]


def _row_texts(run: Run, rows: np.ndarray) -> Sequence[str]:
    """Return the names of training rows, or the beginnings of their texts, or empty strings."""
    from xmckit import store

    for kind in ("names", "texts"):
        path = run.train_folder / f"{kind}.npz"
        if path.is_file():
            texts = store.read_strings(path)
            store.check_array(path, "rows", rows, "i", (None,), high=len(texts) - 1)
            return [" ".join(texts[row].split())[:TEXT] for row in rows]
    return [""] * len(rows)


def _print_summary(summary: dict[str, Any]) -> None:
    click.echo(
        f"{summary['stage']}: {summary['assignments']:,} assignments of {summary['labels']:,} labels of "
        f"{summary['groups']:,} groups to {summary['rows']:,} rows"
    )
    unplaced = summary["facts"].get("unplaced", {})
    count = sum(unplaced.values()) if isinstance(unplaced, dict) else unplaced
    click.echo(f"{count:,} labels of groups could not be placed; {summary['without_choice']:,} left no choice")
    if summary["mean_confidence"] is None:
        return
    click.echo(f"\nconfidence, {summary['mean_confidence']:.3f} on average")
    highest = max(summary["histogram"])
    for number, count in enumerate(summary["histogram"]):
        bar = "█" * round(WIDTH * count / highest)
        click.echo(f"  {number / BARS:.1f} to {(number + 1) / BARS:.1f}  {count:>9,}  {bar}".rstrip())
    click.echo("\nleast clear")
    _print_assignments(summary["least_clear"], with_group=True)


def _print_group(group: dict[str, Any]) -> None:
    lines = [f"group {group['group']}: {len(group['rows'])} rows, {len(group['labels'])} labels", ""]
    lines += [f"  row {entry['row']}  {entry['is']}".rstrip() for entry in group["rows"]]
    click.echo("\n".join(printable(line, keep="") for line in [*lines, ""]))
    _print_assignments(group["assignments"], with_group=False)
    if group["not_placed"]:
        click.echo("\n" + printable(f"not placed: {', '.join(group['not_placed'])}", keep=""))


COLUMNS = ("group", "label", "text of the row", "row", "confidence", "margin")  # the last three are numbers


def _print_assignments(entries: Sequence[Mapping[str, Any]], *, with_group: bool) -> None:
    from xmckit.cli.tables import print_table

    hidden = set() if with_group else {"group"}
    if not any(entry["is"] for entry in entries):
        hidden.add("text of the row")
    columns = [name for name in COLUMNS if name not in hidden]
    rows = [
        {
            "group": entry["group"],
            "label": entry["label"],
            "text of the row": entry["is"],
            "row": str(entry["row"]),
            "confidence": f"{entry['confidence']:.3f}",
            "margin": "no other" if entry["margin"] is None else f"{entry['margin']:+.3f}",
        }
        for entry in entries
    ]
    print_table([[row[name] for name in columns] for row in rows], columns, left=len(columns) - 3)
