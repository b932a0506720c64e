"""`xmckit labels inspect`, on the run of a small recipe."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from scipy.sparse import csr_matrix
from xmckit_eagle.cli import _group_number, labels

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


def inspect_output(runs, *words):
    result = CliRunner().invoke(labels, ["inspect", *words, "--runs", str(runs)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def names_of_groups(runs):
    result = json.loads(inspect_output(runs, "grouped", "--json", "--most", "99"))
    return sorted({entry["group"] for entry in result["least_clear"]})


def test_groups_without_names_have_numbers():
    groups = xmckit.Groups(csr_matrix((3, 2)), csr_matrix((2, 1)))
    assert _group_number(groups, "1") == 1
    for wrong in ("2", "-1", "²", "one"):
        with pytest.raises(UsageError, match="numbered from 0"):
            _group_number(groups, wrong)


def test_a_summary(runs):
    result = json.loads(inspect_output(runs, "grouped", "--json", "--most", "3"))
    assert sum(result["histogram"]) == result["assignments"] >= 4
    assert len(result["least_clear"]) == 3
    sure = [entry["confidence"] for entry in result["least_clear"]]
    assert sure == sorted(sure)
    text = inspect_output(runs, "grouped")
    assert "█" in text
    assert "least clear" in text


def test_a_group_shows_its_rows_and_who_got_each_label(runs):
    groups = [
        json.loads(inspect_output(runs, "grouped", "--group", group, "--json")) for group in names_of_groups(runs)
    ]
    assert {result["group"] for result in groups} < {"g1", "g2", "g3", "g4"}
    for result in groups:
        rows = {entry["row"] for entry in result["rows"]}
        assert {entry["row"] for entry in result["assignments"]} <= rows
        assert {entry["label"] for entry in result["assignments"]} == {entry["label"] for entry in result["labels"]}
        assert result["not_placed"] == []
        assert sum(entry["times"] for entry in result["labels"]) == len(result["assignments"])
    everything = json.loads(inspect_output(runs, "grouped", "--json"))
    assert everything["assignments"] == sum(len(result["assignments"]) for result in groups)


def test_names_cannot_steer_the_terminal(runs):
    text = "".join(inspect_output(runs, "grouped", "--group", group) for group in names_of_groups(runs))
    assert "\x1b" not in text
    assert "tree\\x1b[31m" in text


def test_mistakes_are_reported(runs):
    with pytest.raises(UsageError, match="no group 'g99' among the"):
        inspect_output(runs, "grouped", "--group", "g99")
    with pytest.raises(UsageError, match=r'plain.* has no label stage .*: add \[\[labels\]\] with use = "eagle"'):
        inspect_output(runs, "plain")
    with pytest.raises(UsageError, match="eagle"):
        inspect_output(runs, "grouped", "--stage", "eagel")
