"""Sections of a page about one component: its facts, warnings and exhibits, as they are stored in a run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xmckit.errors import shorten
from xmckit.report.charts import Axis, Chart, histogram
from xmckit.report.tables import Cell, ReportTable, count_cell, make_table, name_cell
from xmckit.report.texts import flat_facts

LONGEST_IN_LIST = 60
LabelName = Callable[[int], str]


def component_section(record: Mapping[str, Any], kind: str, label_name: LabelName) -> dict[str, Any]:
    """Return what the page shows about one component; charts are named after its kind and name."""
    facts, exhibits = dict(record["facts"]), defaultdict(list)
    for exhibit in record["exhibits"]:
        exhibits[exhibit["kind"]].append(exhibit)
    return {
        "name": record["name"],
        "warnings": facts.pop("warnings", []),
        "facts": flat_facts(facts),
        "charts": [_histogram(one, f"{kind}-{record['name']}") for one in exhibits["histogram"]],
        "tables": [_table(one, label_name) for one in exhibits["table"] if one["rows"]],
        "outlines": [{**one, "branches": _branches(one["branches"], label_name)} for one in exhibits["outline"]],
    }


def is_empty(section: Mapping[str, Any]) -> bool:
    return not any(value for key, value in section.items() if key != "name")


def _histogram(exhibit: Mapping[str, Any], prefix: str) -> Chart:
    edges = exhibit["edges"]
    whole = all(isinstance(edge, int) for edge in edges)
    name = re.sub(r"[^a-z0-9]+", "-", f"{prefix}-{exhibit['title']}".lower()).strip("-")
    axis = Axis(exhibit["axis"], whole=whole)
    return histogram(name, exhibit["title"], edges, {"": exhibit["counts"]}, axis, exhibit["what"], exhibit["note"])


def _table(exhibit: Mapping[str, Any], label_name: LabelName) -> ReportTable:
    rows = [[_cell(value, label_name) for value in row] for row in exhibit["rows"]]
    return make_table(exhibit["columns"], rows, exhibit["title"], of=exhibit["of"], note=exhibit["note"])


def _cell(value: Any, label_name: LabelName) -> Cell:
    if isinstance(value, Mapping):
        if "label" in value:
            return name_cell(label_name(value["label"]))
        names = [shorten(label_name(label), LONGEST_IN_LIST) for label in value["labels"]]
        return Cell(names=names, more=value["of"] - len(names))
    return name_cell(value) if isinstance(value, str) else count_cell(value)


def _branches(branches: Sequence[Mapping[str, Any]], label_name: LabelName) -> list[dict[str, Any]]:
    return [
        {
            **branch,
            "labels": [shorten(label_name(label), LONGEST_IN_LIST) for label in branch["labels"]],
            "branches": _branches(branch["branches"], label_name),
        }
        for branch in branches
    ]
