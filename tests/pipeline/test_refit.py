"""`refit = true`: keep the values chosen on the validation rows, and train once more on all rows."""

from __future__ import annotations

import json
import textwrap

import numpy as np
import pytest

from xmckit import make_context, pipeline
from xmckit.errors import RecipeError
from xmckit.nn.training import Epoch, best_epoch
from xmckit.registry import default_registry
from xmckit.testing.problems import small_problem

RECIPE = """
    validation = 0.25
    refit = true

    [data]
    use = "synthetic"
    rows = 120
    test_rows = 40
    labels = 12
    features = 60
    topics = 6

    [index]
    use = "tree"
    leaf_size = 4

    [[head]]
    use = "xrlinear"

    [[head]]
    use = "bsl"
    epochs = 6
    dim = 8
    index = []
    """


@pytest.fixture
def write(tmp_path):
    def written(text, name="small.toml"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path / name

    return written


@pytest.fixture
def parts():
    whole = small_problem(rows=80)
    return whole, whole.take(np.arange(60)), whole.take(np.arange(60, 80))


def names(result):
    return [stage.name for stage in result.run.stages]


def test_a_run_trains_its_indexes_and_heads_on_all_rows(write, tmp_path):
    again = pipeline.run(write(RECIPE), root=tmp_path / "runs")
    assert names(again) == ["data", "features", "part-index-tree", "index-tree", "head-xrlinear", "head-bsl", "score"]
    parted = pipeline.run(write(RECIPE.replace("refit = true", "")), root=tmp_path / "runs")
    stages = {stage.name: stage for stage in parted.run.stages}
    assert stages["index-tree"].reused  # it is what the other run decided with
    assert not stages["head-bsl"].reused

    # On all rows from the start, for as many epochs as were best, a head is what refit made of it.
    history = json.loads((again.run.stage_folder("head-bsl") / "head" / "state.json").read_text())["history"]
    epochs = best_epoch([Epoch(*one) for one in history])
    whole = pipeline.run(
        write(RECIPE.replace("0.25", "0").replace("refit = true", "").replace("epochs = 6", f"epochs = {epochs}")),
        root=tmp_path / "runs",
    )
    scores = [{one["name"]: one["metrics"]["P@3"] for one in run.metrics["results"]} for run in (again, whole)]
    assert scores[0] == scores[1]
    thresholds = [_state(run, "head-bsl")["threshold"] for run in (again, parted, whole)]
    assert thresholds[0] == thresholds[1] != thresholds[2] == 0


def _state(result, stage):
    return json.loads((result.run.stage_folder(stage) / "head" / "state.json").read_text())


def test_nothing_to_refit_for_and_heads_that_cannot(write, tmp_path):
    with pytest.raises(RecipeError, match="validation = 0 all rows are used"):
        pipeline.run(write(RECIPE.replace("0.25", "0")), root=tmp_path / "runs")
    with pytest.raises(RecipeError, match="'popularity' cannot be trained again"):
        pipeline.run(write(RECIPE.replace('"xrlinear"', '"popularity"')), root=tmp_path / "runs")


@pytest.mark.parametrize("calibration", ["none", "platt", "isotonic"])
def test_a_linear_tree_keeps_calibration_and_threshold(parts, tmp_path, calibration):
    whole, part, held_out = parts
    context = make_context(registry=default_registry())
    build = default_registry().resolve("head", "xrlinear")
    head = build(leaf_size=4, calibration=calibration)
    head.fit(part, context=context.using(validation=held_out))
    decided = head.threshold, json.dumps(head._calibration.state()), head.facts(held_out.Y)
    head.refit(whole, context=context)
    assert (head.threshold, json.dumps(head._calibration.state())) == decided[:2]
    kept = {"threshold", "calibration"} & set(decided[2])
    assert {name: head.facts(held_out.Y)[name] for name in kept} == {name: decided[2][name] for name in kept}
    assert "warnings" not in head.facts(held_out.Y)

    fresh = build(leaf_size=4)
    fresh.fit(whole, context=context)
    np.testing.assert_array_equal(
        head.predict(whole.matrix, 3).indices[:, 0], fresh.predict(whole.matrix, 3).indices[:, 0]
    )


def test_the_best_epoch():
    def history(*scores):
        return [Epoch(number, 1.0, score, 0.0) for number, score in enumerate(scores, 1)]

    assert best_epoch(history(0.1, 0.3, 0.3, 0.2)) == 2  # the weights that `train` keeps are those of the first
    assert best_epoch(history(None, None, None)) == 3
