"""Test the page of the papers' tables and figures: its sources, and what it says about missing cells."""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import re
from pathlib import Path

import pytest

from benchmarks.heads import topk_losses
from benchmarks.papers import measure
from benchmarks.papers import page as papers_page
from benchmarks.papers.exhibits import Claim, above, count_claim
from benchmarks.papers.liu import common_mean


@pytest.fixture(scope="module")
def published():
    return papers_page.load_published()


@pytest.fixture(scope="module")
def results():
    return papers_page.load_results()


def section(page, heading):
    """Return the lines below a heading, up to the next one."""
    (found,) = re.findall(rf"^### {re.escape(heading)}.*?(?=^##|\Z)", page, re.DOTALL | re.MULTILINE)
    return found


def test_page_is_what_the_results_give(published, results):
    page = papers_page.PAGE.read_text("utf-8")
    newer = [name for name, found in results.items() if f"`{name}.json` {papers_page.digest(found)}" not in page]
    if newer:
        pytest.skip(
            f"results are newer than the page ({', '.join(newer)}): python -m benchmarks.papers.measure --render"
        )
    assert papers_page.page(published, results) == page


def test_every_published_number_has_its_place(published):
    assert {key for keys in papers_page.SECTIONS for key in keys} == {entry["key"] for entry in published["exhibit"]}
    for entry in published["exhibit"]:
        assert entry["paper"] in published["paper"]
        assert re.fullmatch(r"(Table|Figure) \d+[ab]?", entry["table"])
        assert entry["claim"]
        assert entry["published"]
        assert entry["here"]
        assert set(entry["studies"]) <= set(papers_page.STUDIES)
        assert ("columns" in entry) == ("rows" in entry)
        assert "columns" in entry or "(a plot" in entry["published"], entry["key"]
        names = entry.get("columns", [])
        assert len(set(names)) == len(names)
        for name, values in entry.get("rows", {}).items():
            assert len(values) == len(names), (entry["key"], name)
            assert all(isinstance(value, int | float) for value in values)
            assert not all(math.isnan(value) for value in values)


def test_tables_of_one_paper_agree(published):
    """Check that the grid of Shen et al. repeats rows of their larger table."""
    larger, grid = (
        next(entry for entry in published["exhibit"] if entry["key"] == key) for key in ("shen-table-2", "shen-table-5")
    )
    for ours, theirs in (("random 4", "random 4"), ("random 10", "random 10"), ("clusters", "clusters 8")):
        for metric in ("P@1", "P@3", "P@5"):
            assert larger["rows"][f"{ours}, {metric}"][:3] == grid["rows"][f"{theirs}, {metric}"][1:]


def test_nothing_run_yet(published):
    page = papers_page.page(published, {})
    assert f"Of {len(papers_page.SECTIONS)} claims: open {len(papers_page.SECTIONS)}." in page
    assert "No cell of this claim was run yet." in section(page, "Figure 6b")
    assert "*Not run yet*: 42 of 42 cells" in section(page, "Table 2, Table 3, Table 4")
    assert "| published: MIMIC-III | 25 | 229 (6.8 %) |" in page


def test_missing_cells_are_counted_and_named(published, results):
    some = copy.deepcopy(results)
    cells = some["argmax_tables"]["cells"]
    for key in [key for key in cells if key.startswith("delicious / dft")]:
        del cells[key]
    lines = section(papers_page.page(published, some), "Figure 6a")
    assert "*Not run yet*: 6 of 42 cells (delicious 6)." in lines
    assert "| delicious | dft | – | – | – | – | – | – |" in lines


def test_claims_are_counted():
    nan = float("nan")
    assert above([(2, 1), (1, 1), (None, 1), (nan, 0), (0, 1)]) == [True, False, False]
    counted = count_claim("it is better", [True, False], [True])
    assert counted == Claim("it is better", 1, 2, (1, 1))
    assert papers_page.sentence([counted]) == "**Does not hold.** It is better: 1 of 2 (in the paper 1 of 1)."
    verdicts = {
        "holds": [(3, 3), (1, 1)], "mostly holds": [(3, 3), (2, 3)], "holds in part": [(3, 3), (1, 3)],
        "does not hold": [(1, 2), (0, 3)], "open": [(0, 0)],
    }  # fmt: skip
    for name, counts in verdicts.items():
        assert papers_page.verdict([Claim("", right, of) for right, of in counts]) == name


def test_seeds_that_only_one_system_has_do_not_count():
    def cell(system, seed, value):
        return {"system": system, "seed": seed, "P@5": value}

    cells = [cell("a", 0, 0.2), cell("a", 1, 0.8), cell("b", 0, 0.3)]
    score = common_mean(cells, ("a", "b", "c"))
    assert [score(system, "P@5") for system in ("a", "b", "c")] == [0.2, 0.3, None]


def test_smooth_svm_and_entropy_against_all_sets():
    """Compare the timed losses with sums over all sets of k labels."""
    torch = pytest.importorskip("torch")
    from xmckit.nn import Targets, truncated_topk_entropy

    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    true = torch.tensor([0, 3, 6])
    targets = Targets(torch.arange(3), true, None, (3, 7))
    for k in (1, 2, 4, 6):
        wanted = 0.0
        for scores, label in zip(x.tolist(), true.tolist(), strict=True):
            sets = list(itertools.combinations(range(7), k))
            value = {labels: math.exp(sum(scores[j] for j in labels) / k) for labels in sets}
            right = sum(value[labels] for labels in sets if label in labels)
            wrong = sum(value[labels] for labels in sets if label not in labels)
            wanted += math.log1p(math.e * wrong / right) / 3
        assert topk_losses.smooth_svm(x, true, k).item() == pytest.approx(wanted)
        sorted_entropy = topk_losses.sorted_entropy(x, true, k).item()
        assert sorted_entropy == pytest.approx(truncated_topk_entropy(x, targets, k).item())


def test_minutes_are_divided_and_failed_studies_are_returned(monkeypatch):
    options = argparse.Namespace(data=Path("DIR"), only=["overlap"], minutes=30.0)
    calls = []

    def run(words, check):
        calls.append(words)
        return argparse.Namespace(returncode=len(calls) == 1)

    monkeypatch.setattr(measure.subprocess, "run", run)
    assert measure.run_studies(options) == ["overlap"]
    assert [words[1:3] for words in calls] == [
        ["-m", f"benchmarks.overlap.{name}"] for name in ("measure", "costs", "speed")
    ]
    assert [words[3:] for words in calls] == [
        ["--data", "DIR", "--minutes", "10.00"],
        ["--data", "DIR", "--minutes", "15.00"],
        ["--data", "DIR"],
    ]


def test_unknown_study_is_refused():
    with pytest.raises(SystemExit, match=r"no study's name contains nonsense; known studies: bottleneck, "):
        measure.choose_studies(["nonsense"])
