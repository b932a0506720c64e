"""`xmckit labels inspect`"""

import json
import textwrap

import pytest
from click.testing import CliRunner
from xmckit_eagle.commands import labels

from xmckit import UsageError, pipeline

RECIPE = """
    title = "groups"
    [data]
    use = "synthetic"
    rows = 300
    test_rows = 50
    features = 200
    labels = 20
    topics = 5
    [[labels]]
    use = "aggregate"
    size = 3
    [[labels]]
    use = "eagle"
    [head]
    use = "popularity"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    (folder / "groups.toml").write_text(textwrap.dedent(RECIPE))
    return pipeline.run(folder / "groups.toml", root=folder / "runs").path


def call(*arguments):
    return CliRunner().invoke(labels, ["inspect", *map(str, arguments)], catch_exceptions=False)


def test_the_whole_and_its_least_clear_choices(run):
    facts = json.loads(call(run, "--json", "--most", 3).stdout)
    assert facts["groups"] == 100
    assert sum(facts["confidence"]) == facts["given"] >= facts["group_labels"]
    sure = [choice["confidence"] for choice in facts["least_clear"]]
    assert len(sure) == 3
    assert sure == sorted(sure)
    shown = call(run)
    assert shown.exit_code == 0
    assert f"to {facts['rows']:,} rows" in shown.stdout
    assert "the least clear choices" in shown.stdout


def test_one_group(run):
    facts = json.loads(call(run, "--group", 7, "--json").stdout)
    assert len(facts["rows"]) == 3
    assert {choice["row"] for choice in facts["labels"]} <= set(facts["rows"])
    assert facts["unplaced"] == []
    shown = call(run, "--group", 7).stdout
    assert all(choice["label"] in shown for choice in facts["labels"])


def test_what_is_not_there(run):
    with pytest.raises(UsageError, match="there is no group 100: there are 100"):
        call(run, "--group", 100)
    with pytest.raises(UsageError, match="did you mean 'eagle'"):
        call(run, "--stage", "eagel")


def test_the_report_says_how_the_labels_agree(run):
    page = (run / "report.html").read_text()
    assert "Labels of the training rows" in page
    assert "of the former are among the latter" in page
