"""Exhibits and facts of components, as they are stored in a run, made ready for a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmckit.report.charts import Axis, Chart, histogram
from xmckit.report.facts import flat_facts
from xmckit.report.tables import Cell, Column, Table, count, texts
from xmckit.report.texts import short

LONGEST_IN_LIST = 60
NameOf = Callable[[int], str]


def told(by: Mapping[str, Any], kind: str, name_of: NameOf) -> dict[str, Any]:
    """Facts, warnings and exhibits of one component."""
    facts = dict(by["facts"])
    return {
        "name": by["name"],
        "warnings": facts.pop("warnings", []),
        "facts": flat_facts(facts),
        "shown": shown(by["exhibits"], f"{kind}-{by['name']}", name_of),
    }


def shown(exhibits: Sequence[Mapping[str, Any]], prefix: str, name_of: NameOf) -> dict[str, list[Any]]:
    """Charts, tables and outlines; the charts are named after `prefix`."""
    found: dict[str, list[Any]] = {"charts": [], "tables": [], "outlines": []}
    for exhibit in exhibits:
        if exhibit["kind"] == "histogram":
            found["charts"].append(_histogram(exhibit, prefix))
        elif exhibit["kind"] == "table":
            found["tables"] += [_table(exhibit, name_of)] if exhibit["rows"] else []
        else:
            found["outlines"].append({**exhibit, "branches": _branches(exhibit["branches"], name_of)})
    return found


def _histogram(exhibit: Mapping[str, Any], prefix: str) -> Chart:
    edges = exhibit["edges"]
    whole = all(isinstance(edge, int) for edge in edges)
    name = re.sub(r"[^a-z0-9]+", "-", f"{prefix}-{exhibit['title']}".lower()).strip("-")
    axis = Axis(exhibit["axis"], whole=whole)
    return histogram(name, exhibit["title"], edges, {"": exhibit["counts"]}, axis, exhibit["what"], exhibit["note"])


def _table(exhibit: Mapping[str, Any], name_of: NameOf) -> Table:
    rows = exhibit["rows"]
    columns = []
    for place, title in enumerate(exhibit["columns"]):
        values = [row[place] for row in rows if row[place] is not None]
        columns.append(Column(title, bool(values) and all(isinstance(value, int | float) for value in values)))
    cells = [[_cell(value, name_of) for value in row] for row in rows]
    return Table(exhibit["title"], columns, cells, of=exhibit["of"], note=exhibit["note"])


def _cell(value: Any, name_of: NameOf) -> Cell:
    if isinstance(value, Mapping):
        if "label" in value:
            return texts(name_of(value["label"]))
        named = [short(name_of(label), LONGEST_IN_LIST) for label in value["labels"]]
        return Cell(names=named, more=value["of"] - len(named))
    return texts(value) if isinstance(value, str) else count(value)


def _branches(branches: Sequence[Mapping[str, Any]], name_of: NameOf) -> list[dict[str, Any]]:
    return [
        {
            **branch,
            "labels": [short(name_of(label), LONGEST_IN_LIST) for label in branch["labels"]],
            "branches": _branches(branch["branches"], name_of),
        }
        for branch in branches
    ]
