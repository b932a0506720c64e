"""`xmckit labels inspect`, on the run of a small recipe."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from xmckit_eagle.commands import labels

import xmckit
from xmckit import UsageError

ROWS = [
    ("a robin sings", ["bird"], "g1"),
    ("the cat sleeps", ["cat"], "g1"),
    ("a robin eats", ["bird"], "g2"),
    ("an oak grows", ["tree\x1b[31m"], "g2"),
    ("the cat eats", ["cat"], "g3"),
    ("an old oak", ["tree\x1b[31m"], "g3"),
    ("a lonely stone", ["stone"], "g4"),
]
RECIPE = """
    validation = 0.0
    [data]
    use = "files"
    path = "rows.jsonl"
    [features]
    use = "tfidf"
    {labels}
    [head]
    use = "popularity"
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    lines = [json.dumps({"text": text, "labels": names, "group": group}) for text, names, group in ROWS]
    (folder / "rows.jsonl").write_text("\n".join([*lines, *lines]), "utf-8")
    for name, stage in {"grouped": '[[labels]]\n    use = "eagle"', "plain": ""}.items():
        (folder / f"{name}.toml").write_text(RECIPE.format(labels=stage), "utf-8")
        xmckit.run(folder / f"{name}.toml", root=folder / "runs")
    return folder / "runs"


def inspected(runs, *words):
    result = CliRunner().invoke(labels, ["inspect", *words, "--runs", str(runs)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_summary(runs):
    told = json.loads(inspected(runs, "grouped", "--json", "--most", "3"))
    assert sum(told["histogram"]) == told["assignments"] >= 4
    assert len(told["least_clear"]) == 3
    sure = [entry["confidence"] for entry in told["least_clear"]]
    assert sure == sorted(sure)
    text = inspected(runs, "grouped")
    assert "█" in text
    assert "least clear" in text


def test_a_group_shows_its_rows_and_who_got_each_label(runs):
    groups = [json.loads(inspected(runs, "grouped", "--group", str(group), "--json")) for group in range(2)]
    for told in groups:
        rows = {entry["row"] for entry in told["rows"]}
        assert {entry["row"] for entry in told["assignments"]} <= rows
        assert {entry["label"] for entry in told["assignments"]} == {entry["label"] for entry in told["labels"]}
        assert told["not_placed"] == []
        assert sum(entry["times"] for entry in told["labels"]) == len(told["assignments"])
    everything = json.loads(inspected(runs, "grouped", "--json"))
    assert everything["assignments"] >= sum(len(told["assignments"]) for told in groups)


def test_names_cannot_steer_the_terminal(runs):
    number = json.loads(inspected(runs, "grouped", "--json"))["groups"]
    text = "".join(inspected(runs, "grouped", "--group", str(group)) for group in range(number))
    assert "\x1b" not in text
    assert "tree\\x1b[31m" in text


def test_mistakes_are_told(runs):
    with pytest.raises(UsageError, match="no group 99"):
        inspected(runs, "grouped", "--group", "99")
    with pytest.raises(UsageError, match="eagle"):
        inspected(runs, "plain")
    with pytest.raises(UsageError, match="eagle"):
        inspected(runs, "grouped", "--stage", "eagel")
