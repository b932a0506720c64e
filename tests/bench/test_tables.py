"""Tables, pages and pictures of results that are made up here."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
from small_suite import write_suite

from xmckit import StorageError, UsageError
from xmckit.analysis.compare import compare_rows
from xmckit.bench import tables
from xmckit.bench.cells import mean_rows, read_rows, write_rows
from xmckit.bench.plots import draw
from xmckit.bench.results import (
    DataResults,
    Duel,
    GapToBest,
    Results,
    _duels,
    _gaps,
    changes,
    kept_rows,
    read_results,
    with_earlier,
    write_results,
)
from xmckit.bench.suite import load_suite
from xmckit.components.metrics import RowScores
from xmckit.registry import default_registry

SYSTEMS = [
    {"name": "popularity", "title": "commonest labels", "kind": "baseline"},
    {"name": "ours", "title": "ours | first", "kind": "recipe"},
    {"name": "theirs", "title": "theirs", "kind": "peer"},
]


def cell(system, seed, p1, **more):
    costs = {"train_seconds": 2.0, "predict_seconds": 0.5, "seconds": 4.0, "cpu_seconds": 3.0, "bytes": 2**20}
    return {
        "status": "done", "data_set": "a", "system": system, "seed": seed, "metrics": {"P@1": p1, "PSP@1": p1 / 2},
        "peak_bytes": 3 * 2**20, **costs, **more,
    }  # fmt: skip


@pytest.fixture
def results():
    standings = {
        "P@1": {
            "theirs": GapToBest("theirs", 0.0, 0.0, 0.0, 1.0, same=True),
            "ours": GapToBest("theirs", 0.02, 0.01, 0.03, 0.001, same=False),
            "popularity": GapToBest("theirs", 0.3, 0.2, 0.4, 0.001, same=False),
        }
    }
    duels = [Duel("P@1", "ours", "theirs", -0.02, -0.03, -0.01, 0.001, True)]
    published = [{"system": "Other", "source": "a paper", "same_split": False, "metrics": {"P@1": 55.04}}]
    facts = {"rows": 1000, "test_rows": 100, "features": 50, "labels": 9}
    failed = {
        "status": "failed", "data_set": "b", "system": "ours", "seed": 0, "reason": "crashed",
        "error": "one\nsignal 11\n",
    }  # fmt: skip
    return Results(
        suite="made", title="Made", seeds=[0, 1], threads=2, k=[1], systems=SYSTEMS,
        data=[
            DataResults("a", facts, "abcdef0123456789", published, standings, duels),
            DataResults("b", {}, "", [], {}, []),
        ],
        cells=[
            cell("popularity", 0, 0.2), cell("ours", 0, 0.5), cell("ours", 1, 0.54), cell("theirs", 0, 0.53),
            cell("theirs", 1, 0.55), failed,
        ],
        machine={"processor": "P", "system": "S", "python": "CPython 3"}, versions={"numpy": "1"}, missing=["x"],
    )  # fmt: skip


def test_a_line_has_mean_deviation_and_mark(results):
    lines = {row[0]: row for row in tables.data_rows(results, results.data[0])}
    deviation = 100 * statistics.stdev([0.5, 0.54])
    assert lines["ours | first"][1] == f"52.0 ± {deviation:.1f}"
    assert lines["theirs"][1].endswith("*")
    assert lines["commonest labels"][1] == "20.0"
    assert lines["theirs"][-6:] == ["2.0", "0.50", "3.0", "3", "1.0", "2"]


def test_the_page_says_who_is_behind_what_failed_and_what_was_published(results):
    text = tables.markdown(results)
    assert "behind by 2.0" in text
    assert "| published: Other | 55.0 |" in text
    assert "on other rows of the same source" in text
    assert "| b | ours | 0 | crashed | signal 11 |" in text
    assert "data abcdef012345" in text
    assert "Not run yet: 1 cell." in text
    assert "ours \\| first" in text
    for line in text.splitlines():
        if line.startswith("| ours \\|"):
            assert line.replace("\\|", "").count("|") == len(tables.columns(results)) + 1


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.01, 0.03, "better"), (-0.01, 0.05, "matches"), (-0.05, 0.01, "matches"), (-0.03, -0.01, "behind by 2.0")],
)
def test_conclusions_go_by_the_interval(results, low, high, said):
    duel = replace(results.data[0].duels[0], difference=(low + high) / 2, low=low, high=high, significant=False)
    changed = replace(results, data=[replace(results.data[0], duels=[duel])])
    assert tables.duel_rows(changed)[0][-1] == said


@pytest.mark.parametrize(("threads", "said"), [(1, "\n1 thread for every"), (2, "\n2 threads for every")])
def test_threads_are_counted_in_words(results, threads, said):
    assert said in tables.markdown(replace(results, threads=threads))


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"format": 1, "suite": "a"}', '{"format": 1, "suite": "a", "data": 3}']
)
def test_another_file_is_not_taken_for_results(tmp_path, content):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(StorageError, match=r"mine\.json: expected results as `xmckit bench run` writes them") as caught:
        read_results(tmp_path / "mine.json")
    assert "Delete" not in str(caught.value)  # it may be anything of the user's


def test_only_what_is_between_the_markers_changes(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n<!-- begin y -->\nkept\n<!-- end y -->\n")
    for text in ("new\n", "newer\n"):
        tables.write_between_markers(page, "x", text)
        assert page.read_text() == (
            f"a\n<!-- begin x -->\n{text}<!-- end x -->\nb\n<!-- begin y -->\nkept\n<!-- end y -->\n"
        )
    with pytest.raises(UsageError, match="<!-- begin z -->"):
        tables.write_between_markers(page, "z", "new\n")
    with pytest.raises(StorageError, match="no such file"):
        tables.write_between_markers(tmp_path / "none.md", "x", "new\n")


def test_pictures_need_a_finished_cell_and_a_known_metric(results):
    assert draw(results, "P@1") == draw(results, "P@1")
    with pytest.raises(UsageError, match=r"PSP@1"):
        draw(results, "P@7")
    with pytest.raises(UsageError, match="no finished cell"):
        draw(replace(results, cells=[]), "P@1")


def test_changes_are_ratios_and_differences(results):
    later = replace(results, cells=[{**one, "train_seconds": 6.0} for one in results.cells if one["status"] == "done"])
    later = replace(later, data=[replace(results.data[0], checksum="other")])
    found = changes(results, later)
    assert [change.system for change in found] == ["popularity", "ours", "theirs"]
    assert all(change.train_ratio == 3 and change.predict_ratio == 1 and change.other_data for change in found)
    assert tables.change_rows(found, ["P@1"])[1] == ["a / ours", "52.0 (+0.0)", "3.00×", "1.00×", "1.00×"]


def test_gaps_and_duels_come_from_the_same_pairs():
    rng = np.random.default_rng(0)
    base = rng.random((200, 1))
    norms = np.ones((200, 1))
    shifts = {"popularity": -0.5, "ours": 0.1, "theirs": 0.0}
    rows = {name: RowScores(("P@1",), base + shift, norms) for name, shift in shifts.items()}
    found = compare_rows(list(rows), list(rows.values()), draws=300).differences
    gaps = _gaps(rows, found)["P@1"]
    assert gaps["ours"].best == "ours"
    assert gaps["theirs"].difference == pytest.approx(0.1)
    assert not gaps["theirs"].same
    duel = _duels(rows, found, {one["name"]: one["kind"] for one in SYSTEMS})[0]
    assert (duel.recipe, duel.peer) == ("ours", "theirs")
    assert duel.difference == pytest.approx(0.1)
    only_ours = {name: rows[name] for name in ("popularity", "ours")}
    assert _duels(only_ours, found, {one["name"]: one["kind"] for one in SYSTEMS}) == []


def test_rows_are_kept_in_single_precision_and_averaged(tmp_path):
    rng = np.random.default_rng(1)
    norms = np.hstack([np.ones((30, 1)), 1 + rng.random((30, 1))])
    scores = [RowScores(("P@1", "PSP@1"), rng.random((30, 2)), norms) for _ in range(2)]
    write_rows(tmp_path / "rows.npz", scores[0])
    found = read_rows(tmp_path / "rows.npz")
    assert found.names == ("P@1", "PSP@1")
    assert np.allclose(found.parts, scores[0].parts, atol=1e-7)
    assert np.allclose(found.norms, norms, atol=1e-6)
    assert (found.norms[:, 0] == 1).all()
    assert mean_rows(scores).totals["P@1"] == pytest.approx(np.mean([one.totals["P@1"] for one in scores]))
    (tmp_path / "rows.npz").write_bytes(b"PK")
    with pytest.raises(StorageError, match=r"rows\.npz"):
        read_rows(tmp_path / "rows.npz")


def test_a_suite_that_never_ran_has_no_rows(tmp_path):
    suite = load_suite(write_suite(tmp_path), default_registry())
    assert kept_rows(suite, tmp_path / "work") == {}


def sitting(*cells, machine, missing=(), systems=SYSTEMS):
    """Results of two data sets from one machine."""
    environments = [{"machine": {"system": machine}, "versions": {machine: "1"}}]
    data = [DataResults(name, {}, machine, [], {}, []) for name in ("a", "b")]
    return Results(
        suite="made", title="Made", seeds=[0, 1], threads=2, k=[1], systems=systems, data=data,
        cells=[{**one, "environment": 0} for one in cells], machine=environments[0]["machine"],
        versions=environments[0]["versions"], missing=missing, environments=environments,
    )  # fmt: skip


def test_results_of_data_sets_without_cells_are_kept():
    def on_b(*about):
        return {**cell(*about), "data_set": "b"}

    earlier = sitting(
        cell("ours", 0, 0.1), cell("ours", 1, 0.1), on_b("ours", 0, 0.2), on_b("theirs", 0, 0.4), machine="old"
    )
    failed = {**cell("theirs", 0, 0), "status": "failed"}
    missing = ["a / ours / seed 1", "b / ours / seed 0", "b / theirs / seed 0", "b / theirs / seed 1"]
    now = sitting(cell("ours", 0, 0.5), failed, machine="new", missing=missing)
    found, kept = with_earlier(now, earlier)
    assert kept == ["b"]
    assert [data.checksum for data in found.data] == ["new", "old"]
    assert [(one["data_set"], one["metrics"]["P@1"]) for one in found.cells] == [
        ("a", 0.5), ("a", 0), ("b", 0.2), ("b", 0.4),
    ]  # fmt: skip
    assert [found.environments[one["environment"]]["machine"]["system"] for one in found.cells] == [
        "new", "new", "old", "old",
    ]  # fmt: skip
    assert len(found.failed()) == 1
    assert found.missing == ["a / ours / seed 1", "b / theirs / seed 1"]
    assert (found.machine, found.versions) == ({"system": "new"}, {"new": "1", "old": "1"})


def test_results_that_cannot_stay_do_not():
    now, earlier = sitting(machine="new"), sitting(cell("ours", 0, 0.1), machine="old")
    assert with_earlier(now, earlier)[1] == ["a"]
    for other in ({"suite": "other"}, {"threads": 8}, {"k": [1, 3]}):
        assert with_earlier(now, replace(earlier, **other)) == (now, [])
    assert with_earlier(now, sitting(cell("gone", 0, 0.1), machine="old")) == (now, [])
    assert with_earlier(now, sitting({**cell("ours", 0, 0.1), "status": "failed"}, machine="old")) == (now, [])


@pytest.mark.parametrize("change", [{"environment": 1}, {"environment": None}, {"data_set": ...}])
def test_a_file_with_damaged_cells_is_named(tmp_path, change):
    results = sitting(cell("ours", 0, 0.1), machine="old")
    damaged = {key: value for key, value in {**results.cells[0], **change}.items() if value is not ...}
    write_results(replace(results, cells=[damaged]), tmp_path / "bad.json")
    with pytest.raises(StorageError, match=r"bad\.json"):
        read_results(tmp_path / "bad.json")
