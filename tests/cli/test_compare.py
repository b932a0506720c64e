"""Finished runs side by side: values, significance, what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import scipy.stats
from click.testing import CliRunner
from forging import reseal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from xmckit import DataError, UsageError, pipeline, store
from xmckit.analysis import compare as comparison
from xmckit.analysis.compare import bootstrap, compare_rows, compare_runs, holm, recipe_differences
from xmckit.cli.compare import compare
from xmckit.components.metrics import RowScores, rank_metrics, row_scores
from xmckit.errors import StorageError
from xmckit.recipe import load_recipe
from xmckit.report.comparison_page import comparison_page
from xmckit.runs import Run

ROWS = [
    ("a robin sings in the tree", ["bird", "song"]),
    ("the hawk hunts a mouse", ["bird", "hunt"]),
    ("a cat hunts a mouse", ["cat", "hunt"]),
    ("the cat sleeps", ["cat"]),
    ("the robin sings a song", ["bird", "song"]),
    ("an oak is a tree", ["tree"]),
] * 25
RECIPE = """
[data]
use = "files"
path = "rows.jsonl"
[features]
use = "tfidf"
[score]
k = [1, 2]
top = 3
[head]
"""
BSL = RECIPE + 'use = "bsl"\nepochs = 6\nencoder = { use = "sparse-linear", width = 8 }\n'


def run_of(folder, name, text):
    (folder / f"{name}.toml").write_text(text)
    return pipeline.run(load_recipe(folder / f"{name}.toml"), root=folder / "runs").run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in ROWS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xmckit.pipeline.stages.report.write_report", lambda run: None)
        run_of(folder, "good", BSL)
        run_of(folder, "poor", RECIPE + 'use = "popularity"\n')
        shorter = "\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in ROWS[:-6])
        (folder / "fewer.jsonl").write_text(shorter)
        run_of(folder, "elsewhere", (RECIPE + 'use = "popularity"\n').replace("rows.jsonl", "fewer.jsonl"))
    return folder


def newest(folder, name):
    return Run.open(sorted((folder / "runs" / name).iterdir())[-1])


@pytest.fixture
def call(folder):
    def run(*arguments, fails=None):
        result = CliRunner().invoke(compare, [*arguments, "--runs", str(folder / "runs"), "--draws", "500"])
        if fails is None:
            assert result.exit_code == 0, result.output
            return result.stdout
        assert isinstance(result.exception, fails), result.output
        return str(result.exception)

    return run


# -- scores of rows ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_row_scores_add_up_to_the_metrics(seed, rows, labels, filtering):
    rng = np.random.default_rng(seed)
    dense = rng.random((rows, labels)) < 0.4
    dense[0, 0] = True
    truth = csr_matrix(dense, dtype=np.float32)
    predictions = csr_matrix(rng.random((rows, labels)) * (rng.random((rows, labels)) < 0.7), dtype=np.float32)
    dropped = rng.random((rows, labels)) < 0.1
    dropped[0, 0] = False
    filtered = csr_matrix(dropped, dtype=np.float32) if filtering else None
    weights = 1 + rng.random(labels)
    ks = (1, 3, 50)
    expected = rank_metrics(predictions, truth, ks=ks, inverse_propensity=weights, filtered=filtered)
    found = row_scores(predictions, truth, weights, ks=ks, filtered=filtered)
    assert found.parts.shape == found.norms.shape == (rows, 9)
    for name, value in found.totals.items():
        assert value == pytest.approx(expected[name], abs=1e-12), name


# -- bootstrap ---------------------------------------------------------------------------------------------------------


def scores_of(*columns):
    return RowScores(("P@1",), np.stack(columns, axis=1), np.ones((len(columns[0]), 1)))


def test_the_interval_of_a_mean_difference_is_that_of_scipy():
    rng = np.random.default_rng(0)
    one, other = rng.random(300), rng.random(300) * 0.9
    found = compare_rows(["one", "other"], [scores_of(one), scores_of(other)], draws=8000).differences[0]
    expected = scipy.stats.bootstrap(
        (one - other,), np.mean, n_resamples=8000, method="percentile", random_state=1, vectorized=True
    ).confidence_interval
    assert found.value == pytest.approx((one - other).mean())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.003)


@pytest.mark.parametrize("shift", [0.01, 0.02, 0.05, 0.2])
def test_p_values_agree_with_a_permutation_test(shift):
    rng = np.random.default_rng(3)
    base = rng.random(400)
    one, other = (base + rng.normal(0, 0.3, 400) for _ in range(2))
    one += shift - (one - other).mean()
    found = compare_rows(["one", "other"], [scores_of(one), scores_of(other)], draws=8000).differences[0]
    flipped = scipy.stats.permutation_test(
        (one, other), lambda a, b, axis: (a - b).mean(axis=axis), permutation_type="samples", n_resamples=4000,
        vectorized=True, random_state=0,
    )  # fmt: skip
    assert found.p == pytest.approx(flipped.pvalue, abs=0.025)


def test_a_ratio_is_drawn_as_the_ratio_of_sums():
    rng = np.random.default_rng(1)
    parts, norms = rng.random((200, 1)), 1 + 4 * rng.random((200, 1))
    drawn = bootstrap([parts], norms, 6000, seed=0)[:, 0, 0]
    ratio = parts.sum() / norms.sum()
    # the delta method's deviation of a ratio of means
    deviation = np.sqrt(np.mean((parts - ratio * norms) ** 2) / len(parts)) / norms.mean()
    assert drawn.mean() == pytest.approx(ratio, abs=3 * deviation / np.sqrt(6000) + 0.001)
    assert drawn.std() == pytest.approx(deviation, rel=0.06)


def test_no_difference_is_never_significant_and_a_constant_one_always_is():
    rng = np.random.default_rng(2)
    base = rng.random(100)
    found = compare_rows(["a", "b", "c"], [scores_of(base), scores_of(base), scores_of(base - 0.1)])
    same, *different = found.differences
    assert (same.value, same.p, same.significant) == (0, 1, False)
    assert all(one.significant and one.p < 0.001 for one in different)


def test_few_rows_prove_nothing():
    found = compare_rows(["a", "b"], [scores_of(np.ones(5)), scores_of(np.zeros(5))]).differences[0]
    assert (found.value, found.p, found.significant) == (1, 1, False)


def test_draws_do_not_depend_on_the_buffer(monkeypatch):
    rng = np.random.default_rng(5)
    scores = [scores_of(rng.random(64)) for _ in range(2)]
    whole = compare_rows(["a", "b"], scores, draws=300, seed=7)
    monkeypatch.setattr(comparison, "_BUFFER", 500)
    for one, other in zip(
        whole.differences, compare_rows(["a", "b"], scores, draws=300, seed=7).differences, strict=True
    ):
        assert (one.low, one.high, one.p) == pytest.approx((other.low, other.high, other.p))
    assert compare_rows(["a", "b"], scores, draws=300, seed=8).differences != whole.differences


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_stepwise_rule(values):
    """Rejected are those from the smallest on, until one is not below level / (number left)."""
    p = np.array(values)
    adjusted = holm(p)
    level, rejected = 0.05, set()
    order = sorted(range(len(p)), key=lambda place: p[place])
    for step, place in enumerate(order):
        if not (len(p) - step) * p[place] < level:
            break
        rejected.add(place)
    assert set(np.flatnonzero(adjusted < level)) == rejected
    assert (adjusted >= p - 1e-15).all()
    assert (adjusted <= 1).all()


def test_scores_of_other_rows_or_truths_are_refused():
    one = scores_of(np.zeros(30))
    with pytest.raises(DataError, match="b was scored on other rows"):
        compare_rows(["a", "b"], [one, scores_of(np.zeros(31))])
    with pytest.raises(DataError, match="other true labels or propensities"):
        compare_rows(["a", "b"], [one, one._replace(norms=np.full((30, 1), 2.0))])
    with pytest.raises(UsageError, match="at least one draw"):
        compare_rows(["a", "b"], [one, one], draws=0)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_runs_are_compared_by_their_own_metrics(folder):
    runs = [newest(folder, "good"), newest(folder, "poor")]
    found = compare_runs(runs, draws=500)
    for system, run in zip(found.systems, runs, strict=True):
        own = store.read_json(run.path / "metrics.json")["results"][0]["metrics"]
        assert system.metrics == pytest.approx(own)
        for metric in found.metrics:
            low, high = system.intervals[metric]
            assert low <= system.metrics[metric] <= high
    assert found.best("P@1") == ("good",)
    difference = found.difference("P@1", "good", "poor")
    assert difference.significant
    assert 0 < difference.low <= difference.value <= difference.high
    assert found.difference("P@1", "poor", "good") == difference.reversed
    assert difference.reversed.value == -difference.value
    assert not found.equals_best("P@1", "poor")
    assert found.systems[0].cost.seconds == pytest.approx(sum(found.systems[0].cost.stages.values()))
    assert found.systems[0].cost.bytes > 0
    assert {one.key: one.values for one in found.recipes}["head.use"] == ("bsl", "popularity")
    assert "seed" not in {one.key for one in found.recipes}
    json.dumps(found.to_json(), allow_nan=False)


def test_metrics_of_other_propensities_are_left_out(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(newest(folder, "poor").path, other)
    kept = store.read_json(other / "metrics.json")
    runs = [newest(folder, "good"), Run.open(other)]
    for place in (other, runs[1].stage_folder("score")):
        store.write_json(place / "metrics.json", {**kept, "propensity": {"A": 0.6, "B": 2.6, "from": "amazon"}})
    reseal(other)
    found = compare_runs(runs, draws=100)
    assert "PSnDCG@1" in found.systems[0].metrics
    assert "PSnDCG@1" not in found.systems[1].metrics
    # those that are compared by row are computed again, with the propensities of the first run
    assert found.systems[1].metrics["PSP@1"] == pytest.approx(kept["results"][0]["metrics"]["PSP@1"])
    assert "–" in comparison_page(found)


def test_the_table_marks_the_best_and_says_what_is_significant(call):
    text = call("good", "poor")
    assert "compared with good" in text
    assert "significant" in text
    assert "head.use" in text
    assert "peak MiB" in text
    line = next(line for line in text.splitlines() if line.startswith("good "))
    assert line.split()[1].endswith("*")


def test_metrics_without_a_mark_are_named(call):
    assert "Not compared by row, and therefore without a mark: R@2, coverage@2, micro-F1." in call("good", "poor")


def test_defaults_of_a_component_that_only_one_run_has_are_counted_not_listed(call):
    told = call("good", "poor")
    differ = told[told.index("where the recipes differ") :]
    for set_by_somebody in ("head.use", "head.epochs", "head.encoder.width"):
        assert set_by_somebody in differ
    assert "head.learning_rate" not in differ
    keys = json.loads(call("good", "poor", "--json"))["recipe_differences"]
    listed = [line for line in differ.splitlines()[2:] if line.startswith(("head.", "index."))]
    assert f"Not listed: defaults of components that not all runs have, {len(keys) - len(listed)};" in differ


def test_a_page_is_written_on_request(call, tmp_path):
    assert "page: " in call("good", "poor", "--html", str(tmp_path / "page.html"))
    assert "good" in (tmp_path / "page.html").read_text()


def test_json_has_everything(call, folder):
    found = json.loads(call("good", "poor", "--json"))
    assert found["best"]["P@1"] == ["good"]
    assert {one["metric"] for one in found["differences"]} == {
        f"{name}@{k}" for name in ("P", "nDCG", "PSP") for k in (1, 2)
    }
    assert found["checksums"] == newest(folder, "good").manifest.data


def test_other_rows_are_refused(call):
    message = call("good", "elsewhere", fails=DataError)
    assert "cannot be compared with" in message
    assert "test rows" in message or "labels" in message


def test_one_run_twice_one_run_alone_and_unfinished_runs_are_refused(call, folder, tmp_path):
    assert "two runs or more" in call("good", fails=UsageError)
    assert "is given twice" in call("good", "good", fails=UsageError)
    assert "no run 'goood'" in call("good", "goood", fails=UsageError)
    stopped = tmp_path / "stopped"
    shutil.copytree(newest(folder, "poor").path, stopped)
    Run.open(stopped).update(status="failed")
    assert "is failed, not done" in call("good", str(stopped), fails=UsageError)


def test_damaged_predictions_are_named(call, folder, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(newest(folder, "poor").path, damaged)
    (damaged / "predictions.npz").unlink()
    (damaged / "predictions.npz").write_bytes(b"nothing")
    assert "predictions.npz" in call("good", str(damaged), fails=StorageError)


def test_recipe_differences_name_keys_and_leave_titles_out(tmp_path):
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text('title = "a"\nseed = 1\n[[head]]\nuse = "x"\nwidth = 3\n')
    other.write_text('title = "b"\nseed = 2\n[[head]]\nuse = "x"\nwidth = 4\n[[head]]\nuse = "y"\n')
    found = {difference.key: difference.values for difference in recipe_differences([one, other])}
    assert found == {
        "seed": (1, 2), "head.use": ("x", None), "head.width": (3, None), "head.0.use": (None, "x"),
        "head.0.width": (None, 4), "head.1.use": (None, "y"),
    }  # fmt: skip
    other.write_text("=")
    with pytest.raises(StorageError, match=r"other\.toml"):
        recipe_differences([one, other])
