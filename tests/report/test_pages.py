"""Pages as texts: what is in them, what is kept out, and how large they get."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from forging import reseal
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import COMPARISON, HOSTILE, NAMES, SUITE

from xmckit import UsageError, pipeline, store
from xmckit.analysis.compare import RecipeDifference
from xmckit.cli.runs import runs
from xmckit.errors import shorten
from xmckit.report.comparison_page import comparison_page, write_comparison
from xmckit.report.page import render
from xmckit.report.run_charts import stage_section
from xmckit.report.run_report import without_index_facts, write_report
from xmckit.report.suite_page import suite_page, write_suite
from xmckit.report.tables import Cell, Column, ReportTable, metric_tables, name_cell
from xmckit.report.texts import number, size, visible
from xmckit.runs import Run, StageRecord

OWN_TAGS = {
    *("html", "head", "meta", "title", "link", "style", "script", "body", "header", "nav", "main", "section", "footer"),
    *("h1", "h2", "h3", "h4", "p", "a", "b", "i", "span", "bdi", "code", "pre", "div", "article", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td", "ol", "ul", "li", "dl", "dt", "dd"),
    *("figure", "figcaption", "svg", "path", "text", "tspan", "circle", "rect", "br"),
}


class Parsed(HTMLParser):
    """The tags and attributes of a page, and its visible text."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def check_own(page: str) -> Parsed:
    """No tag, attribute or address that is not ours, one script, one style, and a policy that allows only these."""
    parsed = Parsed(page)
    assert set(parsed.tags) <= OWN_TAGS
    assert not {name for name in parsed.attributes if name.startswith("on") or name in ("src", "style", "srcset")}
    assert parsed.tags.count("script") == parsed.tags.count("style") == 1
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    return parsed


@pytest.fixture(scope="session")
def page(run: pipeline.Result) -> str:
    return run.report.read_text("utf-8")


def test_nothing_of_the_data_becomes_a_tag(page: str) -> None:
    parsed = check_own(page)
    assert HOSTILE[0] in parsed.text
    assert HOSTILE[9] in parsed.text
    assert "{{ 7 * 7 }}" in parsed.text


def test_what_cannot_be_seen_is_spelled_out(page: str) -> None:
    assert not set(page) & set("\u202e\u0007\u001b\u0000")
    assert "\\u202egnp.exe" in page
    assert "bell \\u0007 escape \\u001b[31m null \\u0000" in page


def test_long_labels_are_cut(page: str) -> None:
    assert "x" * 700 not in page
    assert len(page) < 1_000_000


@pytest.mark.parametrize(
    "section",
    ["results", "frequency", "calibration", "examples", "training", "labels", "index", "heads", "verdicts", "data",
     "stages", "recipe", "repeat"],
)  # fmt: skip
def test_every_section_is_there_and_is_named_above(page: str, section: str) -> None:
    assert page.count(f'<section id="{section}">') == 1
    assert page.count(f'<a href="#{section}">') == 1


def test_what_components_show_is_there(page: str, run: pipeline.Result) -> None:
    text = Parsed(page).text
    for said in (
        "How sure the assignments are",
        "Some assignments",
        "Levels of the tree",
        "Labels in a leaf",
        "The label tree",
        "label sets that can never be predicted",
        "Origin of the values",
        "hostile.toml:",
        "xmckit run resolved.toml",
    ):
        assert said in text, said
    never = store.read_json(run.path / "verdicts.json")["results"][0]["never"]
    assert never, "three dimensions cannot produce all sets"


def test_the_same_run_gives_the_same_page(page: str, run: pipeline.Result) -> None:
    assert write_report(Run.open(run.path)).read_text("utf-8") == page


def test_the_headline_tells_what_is_never_output_and_what_it_took(page: str, run: pipeline.Result) -> None:
    verdicts = store.read_json(run.path / "verdicts.json")
    counts = verdicts["results"][0]["counts"]
    first = page[page.index('class="cards"') : page.index('id="results"')]
    assert f"<b>{counts['unargmaxable']} of {verdicts['assignments']}</b>" in first
    assert "for all stages" in first
    assert "P@1" in first


def test_what_an_index_tells_stands_there_once() -> None:
    index = {"name": "tree", "facts": {"leaves": {"largest": 3}}}
    facts = {"epochs": 2, "index tree": {"leaves": {"largest": 3}}, "index faiss": {"labels": 4}}
    left = {"epochs": 2, "index faiss": {"labels": 4}}
    assert without_index_facts({"name": "bsl", "facts": facts}, [index]) == {"name": "bsl", "facts": left}


def test_the_report_of_an_older_run_is_written_anew(page: str, run: pipeline.Result, tmp_path: Path) -> None:
    run.report.write_text("older", "utf-8")
    result = CliRunner().invoke(runs, ["report", str(run.path)])
    assert result.output.strip() == str(run.report)
    assert run.report.read_text("utf-8") == page
    older = tmp_path / "older"
    shutil.copytree(run.path, older)
    (older / run.run.stage_folder("score").relative_to(run.path) / "insights.json").unlink()
    refused = CliRunner().invoke(runs, ["report", str(older)])
    assert isinstance(refused.exception, UsageError)
    assert "keeps less than a report needs" in str(refused.exception)
    Run.open(older).update(status="failed")
    assert "is failed, not done" in str(CliRunner().invoke(runs, ["report", str(older)]).exception)


def test_an_empty_text_is_said_to_be_one(run: pipeline.Result, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy")
    copy = Run.open(tmp_path / "copy")
    examples = copy.stage_folder("score") / "examples.json"
    store.write_json(examples, [{**store.read_json(examples)[0], "text": " \u00a0\n"}])
    reseal(copy.path)
    page = write_report(copy).read_text("utf-8")
    assert page.count("The text is empty.") == 1
    assert 'class="quote"' not in page


def test_only_a_run_with_stages_from_the_cache_has_a_column_about_it() -> None:
    stage = {"name": "data", "key": "key", "identity": {"kind": "dataset"}, "seconds": 1.0, "peak_bytes": 1 << 20}
    fresh, reused = (StageRecord(**stage, folder="stages/0-data", reused=one) for one in (False, True))
    for records, has_column in (([fresh, fresh], False), ([fresh, reused], True)):
        table = stage_section(records)[1]
        assert ("from the cache" in [column.title for column in table.columns]) is has_column
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_charts_are_kept_as_files_too(run: pipeline.Result) -> None:
    names = {path.name for path in (run.path / "plots").iterdir()}
    assert {"precision-at-k.svg", "calibration.svg", "training.svg", "margins-bsl-full.svg"} <= names
    assert {"labels-eagle-how-sure-the-assignments-are.svg", "index-tree-labels-in-a-leaf.svg"} <= names


def test_examples_are_right_and_wrong_and_the_same_each_time(run: pipeline.Result) -> None:
    examples = json.loads((run.run.stage_folder("score") / "examples.json").read_text())
    kinds = {example["kind"] for example in examples}
    assert {"all right", "sure and wrong"} <= kinds
    for example in examples:
        hits = [item["hit"] for item in example["predicted"]]
        if example["kind"] == "all right":
            assert sum(hits) == min(5, example["true_labels"])
        if example["kind"] == "sure and wrong":
            assert not hits[0]
        if example["kind"] == "nothing right":
            assert not any(hits)


def test_the_page_of_a_comparison(tmp_path: Path) -> None:
    parsed = check_own(comparison_page(COMPARISON))
    assert NAMES[1] in parsed.text
    assert "-1.00" in parsed.text
    assert "may be chance" in parsed.text
    assert "significant" in parsed.text
    write_comparison(COMPARISON, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == comparison_page(COMPARISON)


def test_the_page_of_a_suite(tmp_path: Path) -> None:
    parsed = check_own(suite_page(SUITE))
    for said in (
        "60.5 ± 0.7",
        "published",
        "61.3",
        "better",
        "ValueError: <script>window.hit=1</script>",
        "No cell is done yet",
        "xmckit bench run smoke.toml --seeds 0,1",
    ):
        assert said in parsed.text, said
    write_suite(SUITE, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == suite_page(SUITE)


def test_the_best_recipe_is_drawn_against_the_best_peer_with_the_interval_of_the_difference() -> None:
    duel = suite_page(SUITE).split('data-name="suite-duel-psp"')[1].split("</figure>")[0]
    assert duel.count('class="whisker"') == 1
    assert "bibtex: +2.00, 95 % of draws +1.00 … +3.00, bsl against pecos" in duel


def test_the_baseline_is_not_drawn_against_time() -> None:
    baseline = {**SUITE.cells[0], "system": "popularity"}
    page = suite_page(replace(SUITE, cells=[*SUITE.cells, baseline]))
    bars, trade = (page.split(f'data-name="suite-0-{name}"')[1].split("</figure>")[0] for name in ("p", "trade"))
    assert "popularity" in bars
    assert "popularity" not in trade


def test_what_somebody_set_stands_before_the_defaults_of_other_components() -> None:
    left_alone = RecipeDifference("head.left_alone", (1, None, None), unset=True)
    recipes = (left_alone, RecipeDifference("head.chosen", (1, 2, 2)))
    page = comparison_page(replace(COMPARISON, recipes=recipes))
    assert page.index("head.chosen") < page.index("head.left_alone")


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.text())
def test_any_text_can_be_written_and_stays_text(text: str) -> None:
    table = ReportTable(
        text, [Column(text), Column("n", True)], [[name_cell(text), Cell(text, text, hint=text)]], note=text
    )
    suite = replace(SUITE, data=[replace(SUITE.data[0], name=text)])  # its name is in the navigation
    for page in (render("comparison.html.j2", **_with(table, text)), suite_page(suite)):
        check_own(page)
        page.encode("utf-8")


def _with(table: ReportTable, text: str) -> dict[str, object]:
    return {
        "title": text, "comparison": COMPARISON, "tables": [table], "charts": [],
        "differences": table, "costs": [], "cost_table": table, "recipes": table, "systems": table, "checksums": table,
    }  # fmt: skip


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.text(alphabet=st.characters()))
def test_visible_texts_hold_nothing_that_steers(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert not any("\u202a" <= mark <= "\u202e" or (mark < " " and mark not in "\n\t") for mark in shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (0.12345, "0.1235"),
        (3.0, "3"),
        (float("nan"), "–"),
        (None, "–"),
        (True, "yes"),
    ],
)
def test_numbers_as_they_are_read(value: float | None, text: str) -> None:
    assert number(value) == text


def test_short_texts_and_sizes() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab…"
    assert [size(2**power) for power in (3, 15, 21, 34)] == ["8 B", "32 KiB", "2.0 MiB", "16.0 GiB"]


def test_metrics_go_into_two_tables_and_the_best_is_marked() -> None:
    results = [{"metrics": {"P@1": 0.5, "R@1": 0.2, "micro-F1": 0.1}}, {"metrics": {"P@1": 0.4, "R@1": 0.3}}]
    first, second = metric_tables(results, ["a", "b"])
    assert [column.title for column in first.columns] == ["system", "@1"]
    assert [column.title for column in second.columns] == ["system", "@1", "micro-F1"]
    assert [row[1].style for row in first.rows] == ["best", ""]
    assert [row[1].style for row in second.rows] == ["", "best"]
    assert second.rows[1][2].text == "–"


def test_a_table_says_what_it_leaves_out() -> None:
    table = ReportTable("", [Column("a")], [[Cell("x")]] * 12, of=1000)
    assert table.filtered
    assert not ReportTable("", table.columns, table.rows, fixed=True).filtered
    assert table.left_out == 988
