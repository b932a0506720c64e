"""What a suite file may say, and every mistake in it with its line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_suite import SUITE, write_suite

from xmckit import RecipeError
from xmckit.bench.suite import load_suite
from xmckit.cli.bench import _seeds
from xmckit.data.catalogue import catalogue
from xmckit.registry import default_registry

SUITES = Path(__file__).parents[2] / "benchmarks" / "suites"


def test_a_suite_is_read(tmp_path):
    suite = load_suite(write_suite(tmp_path), default_registry())
    assert (suite.name, suite.seeds, suite.threads, suite.k) == ("small", (0, 1), 1, (1, 3))
    assert [system.name for system in suite.systems] == [
        "popularity", "mine", "worst", "crashing", "hanging", "missing",
    ]  # fmt: skip
    assert suite.systems[4].limit == 4
    assert suite.systems[1].limit == 900
    assert suite.results == tmp_path / "out" / "results.json"
    keys = [(data.name, system.name, seed) for data, system, seed in suite.cells()]
    assert keys[:2] == [("made-up", "popularity", 0), ("gone", "popularity", 0)]
    assert len(keys) == len(set(keys)) == 2 + 2 * (2 * 2 + 3)
    assert ("gone", "crashing", 0) not in keys
    assert len(suite.cells([5])) == 2 + 2 * 2 + 3


def test_all_mistakes_come_at_once_with_their_lines(tmp_path):
    text = """\
titel = "x"
seeds = [0, -1]
threads = 0
[[data]]
name = "a"
source = { use = "synthetic" }
[[data]]
name = "a"
[[system]]
recipe = "xrlineer"
only = ["b"]
[[system]]
recipe = "gone.toml"
limit = "long"
[[peer]]
use = "pecoss"
[[peer]]
use = "pecos"
options = { beem = 3 }
[[peer]]
use = "fake_peers:Absent"
"""
    with pytest.raises(RecipeError) as caught:
        load_suite(write_suite(tmp_path, text), default_registry())
    mistakes = "\n".join(caught.value.mistakes)
    for line, words in (
        (1, "titel"), (2, "seeds"), (3, "threads"), (7, "source"), (10, "did you mean 'xrlinear'"),
        (11, "no data set 'b'"), (14, "limit"), (16, "did you mean 'pecos'"), (19, "beem"), (21, "fake_peers:Absent"),
    ):  # fmt: skip
        assert any(f"small.toml:{line}:" in one and words in one for one in caught.value.mistakes), (line, mistakes)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "worst"', 'name = "mine"', "the name 'mine' is used twice"),
        ('name = "mine"', 'name = "popularity"', "the name 'popularity' is used twice"),
        ('name = "gone"', 'name = "made-up"', "the name 'made-up' is used twice"),
        ('name = "gone"', 'name = "a/b"', "name"),
        ("limit = 4", "seeds = [0, 7]", r"7 is not among the suite's seeds \(0, 1\)"),
        ("limit = 4", "seeds = []", "seeds"),
        ('recipe = "mine.toml"', 'recipe = "yours.toml"', "yours.toml"),
        ("[[data]]", "[[dota]]", "dota"),
        ("k = [1, 3]", "k = [1, 3", "not TOML"),
        ("fake_peers:Commonest", "fake_peers:os", "not a subclass"),
    ],
)
def test_one_mistake(tmp_path, old, new, words):
    assert old in SUITE
    with pytest.raises(RecipeError, match=words):
        load_suite(write_suite(tmp_path, SUITE.replace(old, new, 1)), default_registry())


def test_a_system_may_have_fewer_seeds(tmp_path):
    text = SUITE.replace("options = { worst = true }", "options = { worst = true }\nseeds = [1]")
    suite = load_suite(write_suite(tmp_path, text), default_registry())

    def seeds_of(name, asked=()):
        return [seed for data, system, seed in suite.cells(asked) if (data.name, system.name) == ("made-up", name)]

    assert (seeds_of("worst"), seeds_of("mine")) == ([1], [0, 1])
    assert (seeds_of("worst", [0]), seeds_of("worst", [0, 1])) == ([], [1])  # a part of the suite
    assert (seeds_of("worst", [7, 8]), seeds_of("mine", [7, 8])) == ([7], [7, 8])  # other seeds instead of its own
    assert seeds_of("worst", [0, 7]) == [7]


def test_an_empty_suite_says_what_is_needed(tmp_path):
    with pytest.raises(RecipeError) as caught:
        load_suite(write_suite(tmp_path, ""), default_registry())
    assert "[[data]]" in str(caught.value)
    assert "[[system]]" in str(caught.value)
    with pytest.raises(RecipeError, match="no such file"):
        load_suite(tmp_path / "nothing.toml", default_registry())


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.one_of(st.integers(-5, 5), st.booleans(), st.text(max_size=4)),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "use", "only", "source"]), inner)
        ),
        max_leaves=6,
    ),
    st.sampled_from(["data", "system", "peer", "seeds", "k", "limit", "results"]),
)
def test_any_value_anywhere_is_read_or_refused(tmp_path_factory, value, key):
    import tomli_w

    folder = tmp_path_factory.mktemp("any")
    try:
        text = tomli_w.dumps({key: value})
    except (ValueError, TypeError):
        return
    with pytest.raises(RecipeError):
        load_suite(write_suite(folder, text), default_registry())


@pytest.mark.parametrize("name", ["smoke", "full", "repository"])
def test_the_suites_that_come_with_xmckit(name):
    suite = load_suite(SUITES / f"{name}.toml", default_registry())
    sources = [data.source for data in suite.data if data.source["use"] == "repository"]
    assert {source["name"] for source in sources} <= set(catalogue())
    for data in suite.data:
        for one in data.published:
            assert one["same_split"]
            assert one["metrics"]["P@1"] > one["metrics"]["P@3"] > one["metrics"]["P@5"] > 1


def test_seeds_of_the_command_line():
    assert _seeds(None, None, None) == []
    assert _seeds(None, None, "0, 7,7") == [0, 7]
    for wrong in ("a", "-1", "1,,2", "0.5"):
        with pytest.raises(click.BadParameter, match="such as 0,1,2"):
            _seeds(None, None, wrong)
