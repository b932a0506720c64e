"""`xmckit labels`"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xmckit.errors import printable

if TYPE_CHECKING:
    import numpy as np

    from xmckit import Groups
    from xmckit.runs import Run

BARS = 10  # of the histogram of confidences
WIDTH = 40
TEXT = 60  # characters of a row's text


@click.group()
def labels() -> None:
    """Look at the labels that rows were given from their groups."""


@labels.command("inspect")
@click.argument("run")
@click.option("--group", help="Show this group, by its name, or by its number where groups have no names.")
@click.option("--stage", "stage_name", metavar="NAME", help="Which label stage, where the run has several.")
@click.option("--most", default=10, show_default=True, type=click.IntRange(min=1), help="Least clear choices to show.")
@click.option("--runs", "root", default="runs", show_default=True, type=click.Path(), help="Folder with runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def inspect(run: str, group: str | None, stage_name: str | None, most: int, root: str, as_json: bool) -> None:
    """Show which rows of a group got its labels in RUN, and how clear each choice was.

    RUN is a run folder, its name, or the name of a recipe for its newest finished run. The margin is how far the row
    is ahead of the best one of the group that did not get the label; below 0: the row took the label because it would
    have had none, or because no other group has the label and this row had the fewest. Without --group: how confident
    the choices were over all, and the least clear ones.
    """
    from xmckit import find_run

    found = find_run(run, Path(root))
    name, folder = _stage(found, stage_name)
    chosen = _read(folder)
    told: dict[str, Any] = {"run": str(found.path), "stage": name}
    if group is None:
        told |= _summary(found, folder, chosen, most)
        lines = _summary_lines(told)
    else:
        told |= _group(found, folder, chosen, group)
        lines = _group_lines(told)
    text = "\n".join(printable(line, keep="") for line in lines)
    click.echo(json.dumps(told, indent=2, ensure_ascii=True) if as_json else text)


def _stage(run: Run, wanted: str | None) -> tuple[str, Path]:
    """(name, folder) of the label stage that left assignments: the last one, unless one is asked for."""
    from xmckit import UsageError
    from xmckit.errors import nearest
    from xmckit_eagle.preprocessor import ASSIGNMENTS

    stages = {stage.section: run.path / stage.folder for stage in run.label_stages}
    stages = {name: folder for name, folder in stages.items() if (folder / "preprocessor" / ASSIGNMENTS).is_file()}
    if not stages:
        raise UsageError(
            f'{run.path} gave no rows the labels of their groups: that is done by [[labels]] use = "eagle"'
        )
    if wanted is not None and wanted not in stages:
        known = ", ".join(stages)
        raise UsageError(f"{run.path} has no label stage '{wanted}'{nearest(wanted, stages)} (known: {known})")
    name = wanted if wanted is not None else list(stages)[-1]
    return name, stages[name]


def _read(folder: Path) -> Mapping[str, np.ndarray]:
    from xmckit_eagle.preprocessor import read_assignments

    return read_assignments(folder / "preprocessor")


def _summary(run: Run, folder: Path, chosen: Mapping[str, np.ndarray], most: int) -> dict[str, Any]:
    import numpy as np

    from xmckit import store

    confidence, margins = chosen["confidence"], chosen["margins"]
    facts = store.read_json(folder / "labels.json")["facts"]
    counts, _ = np.histogram(confidence, bins=BARS, range=(0.0, 1.0))
    unclear = np.lexsort((margins, confidence))[:most]
    return {
        "assignments": len(confidence),
        "groups": len(np.unique(chosen["groups"])),
        "labels": len(np.unique(chosen["labels"])),
        "rows": len(np.unique(chosen["rows"])),
        "mean_confidence": float(confidence.mean()) if len(confidence) else None,
        "without_choice": int(np.isinf(margins).sum()),
        "histogram": counts.tolist(),
        "facts": facts,
        "least_clear": _entries(run, folder, chosen, unclear),
    }


def _group(run: Run, folder: Path, chosen: Mapping[str, np.ndarray], wanted: str) -> dict[str, Any]:
    import numpy as np

    from xmckit.data.saved import load_label_names, load_split

    split = load_split(folder)
    assert split.groups is not None
    group = _number(split.groups, wanted)
    membership, given = split.groups.membership.tocsc(), split.groups.labels.tocsr()
    rows = np.sort(membership.indices[membership.indptr[group] : membership.indptr[group + 1]])
    names = load_label_names(run.stage_folder("data"))
    own = given[group]
    places = np.flatnonzero(chosen["groups"] == group)
    placed = set(chosen["labels"][places].tolist())
    return {
        "group": _group_name(split.groups.names, group),
        "rows": [{"row": int(row), "is": about} for row, about in zip(rows, _rows(run, rows), strict=True)],
        "labels": [
            {"label": names[label], "times": round(float(times))}
            for label, times in zip(own.indices, own.data, strict=True)
        ],
        "assignments": _entries(run, folder, chosen, places),
        "not_placed": [names[label] for label in own.indices if label not in placed],
    }


def _number(groups: Groups, wanted: str) -> int:
    from xmckit import UsageError
    from xmckit.errors import nearest

    count = int(groups.membership.shape[1])
    if groups.names is None:
        if wanted.isascii() and wanted.isdigit() and int(wanted) < count:
            return int(wanted)
        raise UsageError(f"there is no group {wanted}: the run has {count} groups, numbered from 0")
    names = list(groups.names)
    if wanted not in names:
        raise UsageError(f"there is no group {wanted!r} among the {count} of the run{nearest(wanted, names)}")
    return names.index(wanted)


def _group_name(names: Sequence[str] | None, group: int) -> str:
    return str(group) if names is None else names[group]


def _group_names(folder: Path) -> Sequence[str] | None:
    """The names of the groups of a saved split, where they have some."""
    from xmckit import store

    path = folder / "group_names.npz"
    return store.read_strings(path) if path.is_file() else None


def _entries(run: Run, folder: Path, chosen: Mapping[str, np.ndarray], places: np.ndarray) -> list[dict[str, Any]]:
    """What there is to say about some assignments; a margin of None: there was no other row."""
    import numpy as np

    from xmckit.data.saved import load_label_names

    names = load_label_names(run.stage_folder("data"))
    about, group_names = _rows(run, chosen["rows"][places]), _group_names(folder)
    return [
        {
            "group": _group_name(group_names, int(chosen["groups"][place])),
            "label": names[chosen["labels"][place]],
            "row": int(chosen["rows"][place]),
            "is": text,
            "score": float(chosen["scores"][place]),
            "margin": float(chosen["margins"][place]) if np.isfinite(chosen["margins"][place]) else None,
            "confidence": float(chosen["confidence"][place]),
        }
        for place, text in zip(places.tolist(), about, strict=True)
    ]


def _rows(run: Run, rows: np.ndarray) -> Sequence[str]:
    """Names of training rows, or the beginnings of their texts, or nothing."""
    from xmckit import store

    for kind in ("names", "texts"):
        path = run.stage_folder("data") / "train" / f"{kind}.npz"
        if path.is_file():
            all_of_them = store.read_strings(path)
            return [" ".join(all_of_them[row].split())[:TEXT] for row in rows]
    return [""] * len(rows)


def _summary_lines(told: dict[str, Any]) -> list[str]:
    lines = [
        f"{told['stage']}: {told['assignments']:,} labels given to {told['rows']:,} rows, from {told['groups']:,} "
        f"groups and {told['labels']:,} labels"
    ]
    unplaced = sum(told["facts"].get("unplaced", {}).values())
    lines.append(f"{unplaced:,} labels of groups could not be placed; {told['without_choice']:,} had one row to go to")
    if told["mean_confidence"] is None:
        return lines
    lines += ["", f"confidence, {told['mean_confidence']:.3f} on average"]
    highest = max(told["histogram"])
    for place, count in enumerate(told["histogram"]):
        bar = "█" * round(WIDTH * count / highest)
        lines.append(f"  {place / BARS:.1f} to {(place + 1) / BARS:.1f}  {count:>9,}  {bar}".rstrip())
    return [*lines, "", "least clear", *_table(told["least_clear"], with_group=True)]


def _group_lines(told: dict[str, Any]) -> list[str]:
    lines = [f"group {told['group']}: {len(told['rows'])} rows, {len(told['labels'])} labels", ""]
    lines += [f"  row {entry['row']}  {entry['is']}".rstrip() for entry in told["rows"]]
    lines += ["", *_table(told["assignments"], with_group=False)]
    if told["not_placed"]:
        lines += ["", f"not placed: {', '.join(told['not_placed'])}"]
    return lines


def _table(entries: Sequence[Mapping[str, Any]], *, with_group: bool) -> list[str]:
    header = [*(["group"] if with_group else []), "label", "row", "confidence", "margin", "is"]
    rows = [
        [
            *([entry["group"]] if with_group else []),
            entry["label"],
            str(entry["row"]),
            f"{entry['confidence']:.3f}",
            "no other" if entry["margin"] is None else f"{entry['margin']:+.3f}",
            entry["is"],
        ]
        for entry in entries
    ]
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *rows]
    ]
